"""Baselines: what is subtracted from a return to lower its variance. Whether it does depends on the problem.

A baseline that is learned is `gae(lam=1)` with the critic's values; one from the group's other samples, `groups`.
"""

import torch

from rung.credit.returns import counted_rows, reward_to_go
from rung.credit.scan import Steps
from rung.masked import masked_mean, masked_sum, require_same_shape, select, whiten
from rung.notation import PerSequence, PerToken, TokenMask


def minus_constant(returns: PerSequence, *, baseline: float) -> PerSequence:
    """Return minus a number that was fixed beforehand.

        A_i = R_i − b

    Source: Williams 1992 (reinforcement baseline).

    Args:
        returns: [B], R of each sequence, reward units.
        baseline: b, reward units.

    Returns:
        [B], reward units.

    Exactness:
        Unbiased for every b. The b of least variance is E[R |S|²] / E[|S|²] with S = ∇log p(τ), which is not J.
        Checked by tests/unbiased/test_credit_family.py::test_a_constant_never_biases_and_the_best_one_is_not_the_mean.

    >>> minus_constant(torch.tensor([3.0, 1.0]), baseline=0.5)
    tensor([2.5000, 0.5000])
    """
    return returns - baseline


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
        E[gradient] = (1 − 1/B) · ∇J, as for `minus_batch_mean`: what was earned before t has
        mean zero against the score at t, both in G_t and in the sequence's own share of the baseline.
        Checked by tests/unbiased/test_methods.py::test_a_batch_mean_is_a_matter_of_scale.

    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> reward_to_go_minus_batch_mean(torch.tensor([[0.0, 3.0], [1.0, 0.0]]), mask)
    tensor([[ 1.,  1.],
            [-1.,  0.]])
    """
    rows = counted_rows(mask, valid)
    baseline = masked_mean(masked_sum(rewards, mask, dim=1), rows)
    return select(reward_to_go(rewards, mask) - baseline, mask & rows.unsqueeze(1))


def reward_to_go_minus_step_mean(
    rewards: PerToken, mask: TokenMask, valid: torch.Tensor | None = None
) -> PerToken:
    """The return from each token on, minus its mean over the sequences of the batch that have that token.

        Ψ_it = G_it − 1/n_t Σ_{j alive at t} G_jt        n_t: how many sequences have a t-th token

    Source: Williams 1992, with a baseline for each step, estimated on the batch; the bias is derived here.

    Args:
        rewards: [B, T], r_t for the token at t.
        mask: [B, T] bool. Holes are skipped: t counts a row's own tokens.
        valid: [B] bool, or None for all; invalid rows get 0 and do not enter the means.

    Returns:
        [B, T], reward units, 0 off the mask, and 0 where a sequence is the only one left.

    Exactness:
        Biased once lengths differ, and not in scale alone: with p_t the chance to be alive at t, the part of the
        gradient that comes from step t is multiplied by 1 − (1 − (1−p_t)^B) / (B p_t), which falls with t. With equal
        lengths it is 1 − 1/B at every step.
        Checked by tests/unbiased/test_credit_baselines.py::test_a_mean_at_each_step_turns_the_gradient.

    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> reward_to_go_minus_step_mean(torch.tensor([[0.0, 3.0], [1.0, 0.0]]), mask)
    tensor([[ 1.,  0.],
            [-1.,  0.]])
    """
    counted = mask & counted_rows(mask, valid).unsqueeze(1)
    steps = Steps.of(counted)
    to_go = steps.by_step(reward_to_go(rewards, counted))
    return steps.by_token(select(to_go - masked_mean(to_go, steps.counts, dim=0), steps.counts))


def minus_greedy(
    returns: PerSequence, greedy_returns: PerSequence, valid: torch.Tensor | None = None
) -> PerSequence:
    """Return minus that of the same prompt's greedy sequence: the likeliest token at every step.

        A_i = R_i − R(greedy)

    Source: Li et al. 2023, 2310.10505 (ReMax), algorithm 1.

    Args:
        returns: [B], R of each sequence, reward units.
        greedy_returns: [B], R of the greedy sequence for the same prompt. A row without one must not be valid.
        valid: [B] bool, or None for all; invalid rows get 0.

    Returns:
        [B], reward units.

    Exactness:
        Unbiased: the greedy sequence does not depend on what was sampled. It need not lower the variance: where the
        greedy return is 0 this is plain REINFORCE.
        Checked by tests/unbiased/test_credit_baselines.py::test_the_greedy_return_never_biases_and_may_not_help.

    >>> minus_greedy(torch.tensor([1.0, 0.0]), torch.tensor([0.25, 0.25]))
    tensor([ 0.7500, -0.2500])
    """
    require_same_shape(returns=returns, greedy_returns=greedy_returns)
    if valid is None:
        valid = torch.ones_like(returns, dtype=torch.bool)
    return select(returns - greedy_returns, valid)


def whitened_to_go(
    rewards: PerToken, mask: TokenMask, valid: torch.Tensor | None = None, *, correction: int = 0
) -> PerToken:
    """The return from each token on, whitened over all tokens of the batch.

        Ψ_it = (G_it − mean G) / std G        mean and std over every counted token

    Source: Hu 2025, 2501.03262 (REINFORCE++), with −β k1 of each token in its reward; the population standard
    deviation, as the authors' code has it.

    Args:
        rewards: [B, T], r_t for the token at t.
        mask: [B, T] bool.
        valid: [B] bool, or None for all; invalid rows get 0 and enter neither mean nor spread.
        correction: 0 for the population standard deviation, 1 for the sample one.

    Returns:
        [B, T], standard deviations, 0 off the mask.

    Exactness:
        Biased at every finite batch size: mean and spread depend on the sample itself, and long sequences weigh more
        in both. Checked by tests/unbiased/test_credit_baselines.py::test_whitening_biases.

    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> whitened_to_go(torch.tensor([[0.0, 3.0], [0.0, 0.0]]), mask)
    tensor([[ 0.7071,  0.7071],
            [-1.4142,  0.0000]])
    """
    counted = mask & counted_rows(mask, valid).unsqueeze(1)
    return whiten(reward_to_go(rewards, counted), counted, correction=correction)
