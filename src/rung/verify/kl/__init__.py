"""`rung verify kl`: every way to use an estimate of a KL, as a value and as a gradient."""

from rung.verify.kl.tables import survey

__all__ = ["survey"]
