"""`rung verify clip`: what the clipped objective does, region by region, and what it does not."""

from rung.verify.clip.tables import survey

__all__ = ["survey"]
