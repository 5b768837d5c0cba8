"""Losses of installed libraries, called as they are, in the form that `rung.verify` takes."""

from rung.verify.peers.trl import trl_loss

__all__ = ["trl_loss"]
