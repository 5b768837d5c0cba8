"""The estimators' side of `rung verify clip`: each loss with autograd, on one token and on all sequences of toy C."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import torch

from rung.aggregation import sequence_sum
from rung.exact.token_mdp import FloatArray
from rung.masked import masked_sum
from rung.notation import PerToken, TokenMask
from rung.policy_losses import cispo_loss, clipped_loss, importance_weighted_loss, sequence_clipped_loss
from rung.verify.clip.claims import Piece, capped_weight, clipped, no_clip
from rung.verify.enumeration import Setting
from rung.verify.problems import Problem

TokenLoss: TypeAlias = Callable[[PerToken, PerToken, PerToken], PerToken]
SequenceLoss: TypeAlias = Callable[[PerToken, PerToken, PerToken, TokenMask], PerToken]


@dataclass(frozen=True)
class Clip:
    """A loss of rung's, and its value and slope as derived by hand.

    Attributes:
        loss: (policy log-probs, old log-probs, credit, mask) → [B, T].
        piece: (ratio, credit) → −loss and slope of one token.
        tokens: 1, or 2 where the ratio is the sequence's: then one token is above it and the other below.
    """

    loss: SequenceLoss
    piece: Callable[[float, float], Piece]
    tokens: int = 1

    def measure(self, ratio: float, credit: float) -> Piece:
        """−loss and d(−loss)/d log π by autograd, at a ratio; of a sequence, all its tokens' slopes together."""
        apart = [ratio] if self.tokens == 1 else [2.0 * ratio, ratio / 2.0]
        policy = torch.tensor([apart], dtype=torch.float64).log().requires_grad_()
        old, mask = torch.zeros_like(policy), torch.ones_like(policy, dtype=torch.bool)
        loss = self.loss(policy, old, torch.full_like(old, credit), mask).mean()
        (slope,) = torch.autograd.grad(loss, policy)
        return Piece(-float(loss.detach()), -float(slope.sum()))


def of_tokens(loss: TokenLoss) -> SequenceLoss:
    """A loss that reads no mask."""
    return lambda policy, old, credit, mask: loss(policy, old, credit)


def _without_value(loss: PerToken) -> PerToken:
    """A loss whose value means nothing: the gradient stays, the value is 0."""
    return loss - loss.detach()


CLIPS: dict[str, Clip] = {
    "no clip": Clip(of_tokens(importance_weighted_loss), no_clip),
    "clip 0.2": Clip(of_tokens(clipped_loss), clipped(0.8, 1.2)),
    "dual clip 3": Clip(of_tokens(partial(clipped_loss, dual_clip=3.0)), clipped(0.8, 1.2, 3.0)),
    "CISPO 2": Clip(
        lambda policy, old, credit, mask: _without_value(cispo_loss(policy, old, credit, cap=2.0)),
        capped_weight(2.0),
    ),
    "GSPO 0.2": Clip(
        partial(sequence_clipped_loss, clip_low=0.2, clip_high=0.2), clipped(0.8, 1.2), tokens=2
    ),
}
# Bounds that binary fractions hold exactly, so that a ratio can stand exactly on them.
EDGES: dict[str, Clip] = {
    "clip": Clip(of_tokens(partial(clipped_loss, clip_low=0.5, clip_high=1.0)), clipped(0.5, 2.0)),
    "dual clip": Clip(
        of_tokens(partial(clipped_loss, clip_low=0.5, clip_high=1.0, dual_clip=4.0)), clipped(0.5, 2.0, 4.0)
    ),
    "GSPO": Clip(partial(sequence_clipped_loss, clip_low=0.5, clip_high=1.0), clipped(0.5, 2.0), tokens=2),
}


@dataclass(frozen=True)
class Surrogate:
    """E_μ[−loss] of one sequence, and its gradient [n] in θ."""

    value: float
    gradient: FloatArray


def surrogate(
    problem: Problem,
    loss: SequenceLoss,
    credit: torch.Tensor,
    weights: Callable[[TokenMask], PerToken] = sequence_sum,
) -> Surrogate:
    """An objective on the samples of μ, over every sequence there is.

    Args:
        problem: one prompt.
        loss: per token, minimized.
        credit: [N, T] of all sequences.
        weights: how the tokens of one sequence add up.
    """
    setting = Setting(problem, 1, "stale")
    batch = setting.batch(tuple(range(len(problem.sequences))))
    mask, old = batch.rollouts.mask, batch.rollouts.old_logprobs
    assert old is not None
    chances = torch.tensor(setting.chances, dtype=torch.float64)
    one_each = weights(mask) * len(chances)  # a batch of one sequence
    tokens = one_each * loss(batch.policy_logprobs, old, credit, mask)
    total = chances @ masked_sum(tokens, mask, dim=1)
    (slope,) = torch.autograd.grad(total, batch.policy_logprobs)
    return Surrogate(-float(total.detach()), -np.einsum("bt,btn->n", slope.numpy(), setting.scores))
