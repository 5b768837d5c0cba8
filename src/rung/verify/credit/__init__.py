"""`rung verify credit`: every Ψ, its bias and its variance, and where λ of GAE should lie."""

from rung.verify.credit.tables import survey

__all__ = ["survey"]
