"""A baseline that remembers earlier batches."""

from dataclasses import dataclass, replace

import torch

from rung.credit.returns import counted_rows, reward_to_go
from rung.credit.scan import require_fractions
from rung.masked import masked_mean, select
from rung.notation import PerSequence, PerToken, TokenMask


@dataclass(frozen=True)
class MovingAverage:
    """The return from each token on, minus an average of the returns of earlier batches.

        Ψ_t = G_t − b        then, for the next batch:  b' = m b + (1 − m) mean R

    Frozen: `after` returns the next one, so that a batch cannot enter its own baseline by mistake.

    Source: Williams 1992 (reinforcement comparison with an exponentially weighted average).

    Attributes:
        value: b, reward units; for the first batch a guess.
        momentum: m in [0, 1], the weight of the past.

    Exactness:
        Unbiased, because b is older than the batch. With the batch's own mean already in b the gradient would be
        1 − (1 − m)/B of ∇J.
        Checked by tests/unbiased/test_credit_baselines.py::test_a_moving_average_of_earlier_batches_does_not_bias.

    >>> baseline = MovingAverage(1.0, 0.5)
    >>> baseline(torch.tensor([[0.0, 3.0]]), torch.tensor([[True, True]]))
    tensor([[2., 2.]])
    >>> baseline.after(torch.tensor([3.0, 5.0]))
    MovingAverage(value=2.5, momentum=0.5)
    """

    value: float
    momentum: float

    def __post_init__(self) -> None:
        """Refuse a momentum outside [0, 1]."""
        require_fractions(momentum=self.momentum)

    def __call__(self, rewards: PerToken, mask: TokenMask, valid: torch.Tensor | None = None) -> PerToken:
        """[B, T] Ψ_t = G_t − b, reward units, 0 off the mask and in invalid rows."""
        counted = mask & counted_rows(mask, valid).unsqueeze(1)
        return select(reward_to_go(rewards, counted) - self.value, counted)

    def after(self, returns: PerSequence, valid: torch.Tensor | None = None) -> "MovingAverage":
        """The baseline for the next batch, from the returns [B] of this one; unchanged if no row is valid."""
        if valid is None:
            valid = torch.ones_like(returns, dtype=torch.bool)
        if not bool(valid.any()):
            return self
        mean = float(masked_mean(returns, valid))
        return replace(self, value=self.momentum * self.value + (1.0 - self.momentum) * mean)
