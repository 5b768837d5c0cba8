"""rung: post-train language models by reinforcement learning, every number checked against an exact answer.

Importing rung loads no torch. The numeric core is in `rung.masked`, `rung.kl`, `rung.credit`, `rung.policy_losses`
and `rung.aggregation`; the named methods are in `rung.methods`; `rung.train` runs a recipe, and
`rung.sample` and `rung.evaluate` ask a model.
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "resume", "sample", "train"]


def __getattr__(name: str) -> Any:
    """Load what runs models when it is first used: it needs torch, `import rung` does not."""
    if name in ("evaluate", "resume", "sample", "train"):
        from rung import api

        return getattr(api, name)
    raise AttributeError(f"module 'rung' has no attribute {name!r}")
