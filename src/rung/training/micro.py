"""Rows in micro-batches, log-probabilities through them, and how those compare with the sampler's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from rung.batch import Rollouts
from rung.errors import SamplerMismatch
from rung.models.layout import Row
from rung.models.policy import Policy
from rung.notation import PerToken


def rows_of(rollouts: Rollouts) -> list[Row]:
    """What the policy reads of a batch."""
    return [Row(c.prompt_ids, c.token_ids) for c in rollouts.completions]


def micro_batches(rows: Sequence[Row], budget: int, *, shared: bool) -> Iterator[list[int]]:
    """Row numbers in pieces of at most `budget` tokens, rows of one prompt together. A longer row stands alone.

    `shared` says that the rows of a piece compute a common prompt once, so that it counts once.
    """
    order = sorted(range(len(rows)), key=lambda i: (rows[i].prompt_ids, i))
    piece: list[int] = []
    size, prompt = 0, None
    for i in order:
        is_new = not shared or rows[i].prompt_ids != prompt
        cost = len(rows[i].token_ids) + (len(rows[i].prompt_ids) if is_new else 0)
        if piece and size + cost > budget:
            yield piece
            piece, size = [], 0
            cost = len(rows[i].token_ids) + len(rows[i].prompt_ids)
        piece.append(i)
        size += cost
        prompt = rows[i].prompt_ids
    if piece:
        yield piece


def place(values: PerToken, length: int) -> PerToken:
    """[b, t] widened with zeros to [b, length]: a micro-batch may be shorter than its batch."""
    return torch.nn.functional.pad(values, (0, length - values.shape[1]))


@torch.no_grad()
def logprobs_of(policy: Policy, rows: Sequence[Row], budget: int) -> PerToken:
    """[B, T] log-probabilities without gradient, float64, in micro-batches."""
    length = max(len(row.token_ids) for row in rows)
    out = torch.zeros(len(rows), length, dtype=torch.float64)
    for piece in micro_batches(rows, budget, shared=policy.path == "grouped"):
        out[piece] = place(policy([rows[i] for i in piece]).logprobs.double(), length)
    return out


@dataclass(frozen=True)
class SamplerComparison:
    """log π_trainer − log π_sampler of the sampled tokens, nats: what should be rounding alone."""

    largest: float
    p99: float
    mean: float
    mean_absolute: float

    @classmethod
    def of(cls, trainer: PerToken, sampler: PerToken, mask: torch.Tensor) -> "SamplerComparison":
        """Compare two [B, T] tensors over the mask."""
        difference = (trainer - sampler)[mask].double()
        if difference.numel() == 0:
            return cls(0.0, 0.0, 0.0, 0.0)
        size = difference.abs()
        return cls(
            float(size.max()), float(size.quantile(0.99)), float(difference.mean()), float(size.mean())
        )

    def check(self, tolerance: float) -> None:
        """Refuse to train on tokens whose probability the trainer sees otherwise.

        Raises:
            SamplerMismatch: the largest difference exceeds the tolerance.
        """
        if not self.largest <= tolerance:
            raise SamplerMismatch(
                f"sampler and trainer disagree on the log-probabilities of the same tokens: max {self.largest:.3g}, "
                f"99th percentile {self.p99:.3g}, mean {self.mean:+.3g} nats, where rollout.mismatch_tolerance allows "
                f"{tolerance:.3g}. Importance ratios and KL would be wrong from the first step. Usual causes: another "
                "temperature in one of the two, tokens paired with their neighbour's log-probability, weights that did "
                "not reach the sampler, another precision. If it is rounding (a large model), raise the tolerance"
            )
