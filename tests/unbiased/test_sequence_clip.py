"""GSPO away from the policy that sampled: one ratio a sequence, which is no importance weight, and its clip."""

import math

import numpy as np
import pytest
import torch

from rung import exact
from rung.aggregation import sequence_mean
from rung.policy_losses import sequence_clipped_loss
from tests.enumeration import ONE_PROMPT, THREE_TOKENS
from tests.toys import C_OBJECTIVE_BEHAVIOUR, C_SEQUENCE_CLIPPED_OBJECTIVE, assert_digits

ONE = pytest.mark.parametrize("problem", [ONE_PROMPT, THREE_TOKENS], ids=["C", "LONG"])


def layout(problem):
    """(mask [S, T], returns [S], p_μ [S]) over all sequences of one prompt."""
    lengths = torch.tensor([len(tokens) for _, tokens, _ in problem.sequences])
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    returns = torch.tensor([reward for _, _, reward in problem.sequences], dtype=torch.float64)
    return mask, returns, problem.frozen(problem.behaviour).sum(1).exp()


@ONE
def test_the_ratio_of_gspo_is_no_importance_weight(problem):
    """Its mean is not 1, and with varying lengths it is not even below 1."""
    mask, _, chances = layout(problem)
    ratio = -sequence_clipped_loss(
        problem.frozen(problem.policy),
        problem.frozen(problem.behaviour),
        torch.ones(mask.shape, dtype=torch.float64),
        mask,
        clip_low=1.0,
        clip_high=1e9,
    )
    assert (chances * ratio[:, 0]).sum().item() > 1.05


def test_published_value_of_the_clip_of_whole_sequences():
    """GSPO, 0.2 on both sides, credit R − J(μ): Σ_τ p_μ(τ) min(s A, clip(s) A), through `sequence_mean` of one row."""
    mask, returns, chances = layout(ONE_PROMPT)
    policy, behaviour = ONE_PROMPT.frozen(ONE_PROMPT.policy), ONE_PROMPT.frozen(ONE_PROMPT.behaviour)
    credit = (returns - C_OBJECTIVE_BEHAVIOUR).unsqueeze(1).expand(mask.shape)
    value = 0.0
    for row in range(len(mask)):
        one = [x[row : row + 1] for x in (policy, behaviour, credit, mask)]
        loss = (sequence_mean(one[3]) * sequence_clipped_loss(*one, clip_low=0.2, clip_high=0.2)).sum()
        value -= chances[row].item() * loss.item()
    assert_digits(value, C_SEQUENCE_CLIPPED_OBJECTIVE, 11)


@ONE
def test_gradient_of_the_clip_of_whole_sequences(problem):
    """s_i A_i 1/L_i Σ_t ∇log π where alive: Σ_τ p_μ(τ) of it from the oracle, the clipped sequences at 0."""
    mask, returns, chances = layout(problem)
    baseline = 0.25
    parameters = torch.tensor(problem.policy.parameters, requires_grad=True)
    live, old = problem.logprobs(problem.policy, parameters), problem.frozen(problem.behaviour)
    credit = (returns - baseline).unsqueeze(1).expand(mask.shape)
    loss = sequence_clipped_loss(live, old, credit, mask, clip_low=0.1, clip_high=0.15)
    weights = sequence_mean(mask) * len(mask)  # 1/L_i
    (slope,) = torch.autograd.grad((chances.unsqueeze(1) * weights * loss).sum(), parameters)
    ((_, mdp),) = problem.prompts
    clipped = 0

    def stated(tau):
        nonlocal clipped
        own, other = (
            sum(exact.evaluate(p, s)[0][a] for s, a in tau.steps) for p in (problem.policy, problem.behaviour)
        )
        ratio = math.exp((own - other) / tau.length)
        advantage = mdp.total_return(tau.tokens) - baseline
        cut = (advantage > 0 and ratio > 1.15) or (advantage < 0 and ratio < 0.9)
        clipped += cut
        return np.full(tau.length, 0.0 if cut else ratio * advantage / tau.length)

    wanted = exact.policy_gradient(mdp, problem.policy, stated, sampler=problem.behaviour)
    assert 0 < clipped < len(mask)
    np.testing.assert_allclose(-slope.numpy(), wanted, rtol=0, atol=1e-12)
