"""Requests that several tests of the engine share, and what it samples for them."""

from collections.abc import Sequence
from typing import Any

from rung.batch import Completion
from rung.rollout.engine import Request
from rung.rollout.local import LocalEngine
from tests.decoders import exact_llama

ENDS = {12, 4}
LONG, SHORT = (3, 1, 4, 1, 5, 9, 2), (7, 2)
REQUESTS = [
    Request(LONG, (101, 102, 103, 104, 105, 106), 0, 12),
    Request(SHORT, (201, 202, 203, 204), 1, 5),
    Request((8,), (301, 302), 2, 20),
]


def sample(
    requests: Sequence[Request] = REQUESTS, *, model: Any = None, **settings: Any
) -> dict[tuple[int, int], Completion]:
    """All completions, by group and sample."""
    engine = LocalEngine(model or exact_llama(), settings.pop("ends", ENDS), **settings)
    return {(c.group, c.sample): c for c in engine.generate(requests)}
