"""Baselines over the batch: what is subtracted from a return to lower its variance."""

import torch

from rung.credit.returns import reward_to_go
from rung.masked import masked_mean, masked_sum, select
from rung.notation import PerSequence, PerToken, TokenMask


def minus_batch_mean(returns: PerSequence, valid: torch.Tensor | None = None) -> PerSequence:
    """Return minus the mean return of the batch, its own included.

        A_i = R_i − 1/B Σ_j R_j

    Source: Williams 1992 (reinforcement comparison).

    Args:
        returns: [B], R of each sequence, reward units.
        valid: [B] bool, or None for all; invalid rows get 0 and do not enter the mean.

    Returns:
        [B], reward units.

    Exactness:
        E[gradient] = (1 − 1/B) · ∇J, whatever the mixture of prompts: the right direction. Blind to the prompt, so a
        poor baseline where prompts differ.
        Checked by tests/unbiased/test_methods.py::test_a_batch_mean_is_a_matter_of_scale.

    >>> minus_batch_mean(torch.tensor([3.0, 1.0]))
    tensor([ 1., -1.])
    """
    if valid is None:
        valid = torch.ones_like(returns, dtype=torch.bool)
    return select(returns - masked_mean(returns, valid), valid)


def reward_to_go_minus_batch_mean(
    rewards: PerToken, mask: TokenMask, valid: torch.Tensor | None = None
) -> PerToken:
    """The return from each token on, minus the mean return of the batch.

        Ψ_t = G_t − 1/B Σ_j R_j

    Source: Williams 1992; Sutton and Barto, 2nd ed., section 13.4, with a baseline that is one number a batch.

    Args:
        rewards: [B, T], r_t for the token at t.
        mask: [B, T] bool.
        valid: [B] bool, or None for all; invalid rows get 0 and do not enter the mean.

    Returns:
        [B, T], reward units, 0 off the mask.

    Exactness:
        E[gradient] = (1 − 1/B) · ∇J, as for `minus_batch_mean`, with less variance: what was earned before t has
        mean zero against the score at t, both in G_t and in the sequence's own share of the baseline.
        Checked by tests/unbiased/test_methods.py::test_a_batch_mean_is_a_matter_of_scale.

    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> reward_to_go_minus_batch_mean(torch.tensor([[0.0, 3.0], [1.0, 0.0]]), mask)
    tensor([[ 1.,  1.],
            [-1.,  0.]])
    """
    rows = mask.any(1) if valid is None else mask.any(1) & valid
    baseline = masked_mean(masked_sum(rewards, mask, dim=1), rows)
    return select(reward_to_go(rewards, mask) - baseline, mask & rows.unsqueeze(1))
