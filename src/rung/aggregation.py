"""From a mask to weights: the only place where a loss is normalised.

    loss = Σ_it w_it · loss_it

The weights are made once per optimizer step, over all of its rows. Micro-batches and ranks then only add, so that no
split changes the gradient. `totals` are the counts of that whole step, where `mask` is only a part of it.

Weights are float64, whatever the model: 1/B in float32 would already be off in the eighth digit.

Once lengths differ these are different estimators, not conventions: on policy only the sum over each sequence, and
constant multiples of it, give the policy gradient.
"""

from dataclasses import dataclass

import torch

from rung.errors import InvalidInput
from rung.notation import BOOKKEEPING, PerToken, TokenMask


@dataclass(frozen=True)
class Totals:
    """Counts over everything that one optimizer step sees: sequences with a counted token, and counted tokens."""

    sequences: int
    tokens: int


def count(mask: TokenMask) -> Totals:
    """The totals of a mask. A row without a counted token is not a sequence: it enters no denominator.

    >>> count(torch.tensor([[True, True], [False, False]]))
    Totals(sequences=1, tokens=2)
    """
    if mask.dtype != torch.bool or mask.ndim != 2:
        raise InvalidInput(f"the mask must be boolean [B, T], got {mask.dtype} {tuple(mask.shape)}")
    return Totals(sequences=int(mask.any(1).sum()), tokens=int(mask.sum()))


def _totals(mask: TokenMask, totals: Totals | None) -> Totals:
    own = count(mask)  # always, so that no float passes for a mask
    return own if totals is None else totals


def _weights(mask: TokenMask, scale: torch.Tensor | float) -> PerToken:
    return mask.to(BOOKKEEPING) * scale


def sequence_sum(mask: TokenMask, totals: Totals | None = None) -> PerToken:
    """Sum over the tokens of each sequence, mean over sequences.

        w_it = 1/B

    Source: the policy gradient itself, g = E[Σ_t Ψ_t ∇log π(a_t|s_t)]; Ahmadian et al. 2024, 2402.14740 (RLOO).

    Returns:
        [B, T], 0 off the mask.

    Exactness:
        The only one that is the policy gradient.
        Checked by tests/unbiased/test_methods.py::test_unbiased_methods.

    >>> sequence_sum(torch.tensor([[True, True], [True, False]]))
    tensor([[0.5000, 0.5000],
            [0.5000, 0.0000]], dtype=torch.float64)
    """
    totals = _totals(mask, totals)
    return _weights(mask, 1.0 / max(totals.sequences, 1))


def sequence_mean(mask: TokenMask, totals: Totals | None = None) -> PerToken:
    """Mean over the tokens of each sequence, mean over sequences.

        w_it = 1/(B L_i)

    Source: Shao et al. 2024, 2402.03300 (GRPO), eq. 3.

    Returns:
        [B, T], 0 off the mask.

    Exactness:
        Not the policy gradient once lengths differ: it follows reward per token, and a length term. Growing the batch
        does not help.
        Checked by tests/unbiased/test_methods.py::test_a_mean_over_each_sequence_follows_reward_per_token.

    >>> sequence_mean(torch.tensor([[True, True], [True, False]]))
    tensor([[0.2500, 0.2500],
            [0.5000, 0.0000]], dtype=torch.float64)
    """
    totals = _totals(mask, totals)
    lengths = mask.sum(1, keepdim=True).clamp(min=1).to(BOOKKEEPING)
    return _weights(mask, 1.0 / (max(totals.sequences, 1) * lengths))


def token_mean(mask: TokenMask, totals: Totals | None = None) -> PerToken:
    """Mean over all tokens.

        w_it = 1/Σ_j L_j

    Source: Yu et al. 2025, 2503.14476 (DAPO), eq. 8.

    Returns:
        [B, T], 0 off the mask.

    Exactness:
        The denominator is drawn with the sample: a ratio estimator, whose direction bias vanishes as the batch grows.
        Checked by tests/unbiased/test_methods.py::test_a_mean_over_all_tokens_is_a_ratio_estimator.

    >>> token_mean(torch.tensor([[True, True], [True, False]]))
    tensor([[0.3333, 0.3333],
            [0.3333, 0.0000]], dtype=torch.float64)
    """
    totals = _totals(mask, totals)
    return _weights(mask, 1.0 / max(totals.tokens, 1))


def constant_length(mask: TokenMask, length: int, totals: Totals | None = None) -> PerToken:
    """Sum over the tokens of each sequence divided by a constant, mean over sequences.

        w_it = 1/(B L)

    Source: Liu et al. 2025, 2503.20783 (Dr. GRPO).

    Args:
        mask: [B, T] bool.
        length: L > 0, the same for every batch (the length cap, say).
        totals: counts over the whole optimizer step.

    Returns:
        [B, T], 0 off the mask.

    Exactness:
        The policy gradient, times 1/L.
        Checked by tests/unbiased/test_methods.py::test_a_constant_length_is_a_matter_of_scale.

    >>> constant_length(torch.tensor([[True, True], [True, False]]), 4)
    tensor([[0.1250, 0.1250],
            [0.1250, 0.0000]], dtype=torch.float64)
    """
    if length <= 0:
        raise InvalidInput(f"the constant length must be positive, got {length}")
    return sequence_sum(mask, totals) / length
