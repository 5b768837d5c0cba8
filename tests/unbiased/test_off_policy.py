"""Away from the policy that sampled: what the ratio corrects, what it does not, and what the clip adds."""

from functools import partial

import numpy as np
import torch

from rung import exact
from rung.aggregation import sequence_sum
from rung.credit import total_return
from rung.methods import Method
from rung.policy_losses import clipped_loss, importance_weighted_loss
from tests.enumeration import ONE_PROMPT, THREE_TOKENS, expected
from tests.toys import (
    C_CLIP_HIGHER_OBJECTIVE_NEGATED,
    C_CLIPPED_GRADIENT,
    C_CLIPPED_OBJECTIVE,
    C_CLIPPED_OBJECTIVE_NEGATED,
    C_DUAL_CLIPPED_OBJECTIVE,
    C_TOKEN_IMPORTANCE,
    assert_digits,
)


def surrogate(problem, policy_loss, *, sign=1.0):
    """(value, gradient) of −Σ_τ p_μ(τ) Σ_t loss_t with the exact advantage of μ as the credit."""
    ((_, mdp),) = problem.prompts
    advantage = exact.advantages(mdp, problem.behaviour)
    credit = torch.zeros(len(problem.sequences), mdp.max_length, dtype=torch.float64)
    mask = torch.zeros_like(credit, dtype=torch.bool)
    for row, (_, tokens, _) in enumerate(problem.sequences):
        for t, token in enumerate(tokens):
            credit[row, t] = sign * advantage[tokens[:t]][token]
            mask[row, t] = True
    parameters = torch.tensor(problem.policy.parameters, requires_grad=True)
    old = problem.frozen(problem.behaviour)
    loss = policy_loss(problem.logprobs(problem.policy, parameters), old, credit)
    value = -(old.sum(1).exp().unsqueeze(1) * loss * mask).sum()
    (slope,) = torch.autograd.grad(value, parameters)
    return value.item(), slope.numpy()


def test_a_ratio_per_token_is_not_the_gradient_but_its_published_digits():
    """Ψ = R, sequences of μ: the token is corrected, its prefix and its continuation are not."""
    method = Method("is", total_return, importance_weighted_loss, sequence_sum)
    found = expected(method, ONE_PROMPT, 1, ONE_PROMPT.behaviour).ascent
    assert_digits(found, C_TOKEN_IMPORTANCE, 10)
    wide = Method("wide", total_return, partial(clipped_loss, clip_low=1.0, clip_high=1e9), sequence_sum)
    np.testing.assert_allclose(
        expected(wide, ONE_PROMPT, 1, ONE_PROMPT.behaviour).ascent, found, rtol=0, atol=1e-12
    )


def test_the_unclipped_surrogate_is_that_of_conservative_policy_iteration():
    """∇ of Σ_s d_μ(s) Σ_a π(a|s) A_μ(s,a), from the oracle: prefixes of μ, tokens of π."""
    for problem in (ONE_PROMPT, THREE_TOKENS):
        ((_, mdp),) = problem.prompts
        advantage = exact.advantages(mdp, problem.behaviour)

        def at(prefix, problem=problem, advantage=advantage):
            logprobs, jacobian = exact.evaluate(problem.policy, prefix)
            return (np.exp(logprobs) * advantage[prefix]) @ jacobian

        stated = exact.expected_over_prefixes(mdp, problem.behaviour, at)
        _, found = surrogate(problem, importance_weighted_loss)
        np.testing.assert_allclose(found, stated, rtol=0, atol=1e-12)


def test_published_values_and_gradient_of_the_clip():
    value, slope = surrogate(ONE_PROMPT, clipped_loss)
    assert_digits(value, C_CLIPPED_OBJECTIVE, 12)
    assert_digits(slope, C_CLIPPED_GRADIENT, 10)
    dual, _ = surrogate(ONE_PROMPT, partial(clipped_loss, dual_clip=1.5))
    assert_digits(dual, C_DUAL_CLIPPED_OBJECTIVE, 12)


def test_published_values_of_the_clip_with_rewards_negated():
    value, _ = surrogate(ONE_PROMPT, clipped_loss, sign=-1.0)
    assert_digits(value, C_CLIPPED_OBJECTIVE_NEGATED, 12)
    higher, _ = surrogate(ONE_PROMPT, partial(clipped_loss, clip_high=0.28), sign=-1.0)
    assert_digits(higher, C_CLIP_HIGHER_OBJECTIVE_NEGATED, 12)
