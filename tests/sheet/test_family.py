"""Recorded numbers of toy C that had no estimator beside them: values, advantages, objectives, a field of no function.

The other numbers of the family g = E[Σ_t Ψ_t ∇log π(a_t|s_t)] are held by
    J, V, ∇J
        tests/exact/test_values.py::test_objective_of_toy_c
        tests/exact/test_values.py::test_values_and_advantages_of_toy_c
        tests/exact/test_values.py::test_objective_gradient_of_toys_a_and_c
        tests/verify/test_enumeration.py::test_the_exact_critic_is_the_value_of_the_old_policy
    all traces of covariance
        tests/unbiased/test_credit_family.py::test_recorded_variances_of_every_choice_of_credit
        tests/verify/test_credit.py::test_digits_of_single_sequences
    the best baselines
        tests/exact/test_baselines.py::test_the_best_constant_of_toy_c
        tests/exact/test_baselines.py::test_the_best_state_baseline_of_toy_c
    a wrong critic, by λ
        tests/unbiased/test_credit_family.py::test_the_bias_of_a_wrong_critic_on_toy_c
    γ^t left out
        tests/unbiased/test_methods.py::test_the_bias_of_a_missing_discount_weight_on_toy_c
    γ^t in its place
        tests/unbiased/test_methods.py::test_discounted_returns
    the small example of GAE
        tests/credit/test_gae_tables.py::test_the_worked_example_terminated
        tests/credit/test_gae_tables.py::test_the_worked_example_truncated
    GAE as k-step advantages
        tests/reductions/test_credit.py::test_gae_is_the_weighted_mean_of_k_step_advantages
    GAE across tool tokens
        tests/credit/test_gae.py::test_holes_are_skipped_and_nothing_off_the_mask_counts
    which index a reward has
        tests/reductions/test_credit.py::test_converting_rewards_there_and_back
    ∂J/∂θ(s,a) = d π A
        tests/exact/test_values.py::test_tabular_softmax_closed_form
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from rung import exact
from rung.aggregation import sequence_sum
from rung.correction import importance
from rung.credit import reward_to_go, td_residual, total_return
from rung.methods import Method
from rung.policy_losses import policy_gradient_loss
from tests.enumeration import ONE_PROMPT, expected
from tests.toys import (
    C_FIRST_ADVANTAGES,
    C_OBJECTIVE,
    C_OBJECTIVE_BEHAVIOUR,
    C_OBJECTIVE_DISCOUNTED,
    C_VALUES,
    TOY_C,
    assert_digits,
)
from tests.unbiased.credited import Batch
from tests.unbiased.on_sequences import chances

GROUP = tuple(TOY_C.mdp.trajectories())
EVERY = Batch(TOY_C.mdp, GROUP)  # each sequence of toy C once
PI, MU = (chances(ONE_PROMPT, policy) for policy in (TOY_C.policy, TOY_C.behaviour))


def residuals(values):
    """{(prefix, token): δ} over all sequences; the same wherever it occurs, as nothing else is random."""
    found = {}
    delta = td_residual(EVERY.rewards, EVERY.at_states(values), EVERY.mask)
    for row, tau in enumerate(GROUP):
        for t, step in enumerate(tau.steps):
            assert found.setdefault(step, delta[row, t].item()) == pytest.approx(
                delta[row, t].item(), abs=1e-15
            )
    return found


def test_residuals_of_the_exact_critic_are_the_recorded_advantages():
    """δ = A: after a token that goes on Q is V of the next prefix, and after the end token 0, the reward of E."""
    values = exact.state_values(TOY_C.mdp, TOY_C.policy)
    delta = residuals(values)
    assert_digits([delta[(), token] for token in range(3)], C_FIRST_ADVANTAGES, 10)
    first = [delta[(), token] + values[()] for token in range(3)]
    assert_digits(first, [C_VALUES[0,], C_VALUES[1,], 0.0], 10)
    chance = np.exp(exact.evaluate(TOY_C.policy, ())[0])
    assert chance @ [delta[(), token] for token in range(3)] == pytest.approx(0.0, abs=1e-15)


def test_recorded_objectives_as_means_of_returns():
    """J(π), J(μ), J_γ(π) at γ = .9, and J(π) again from sequences of μ with the ratio of whole sequences."""
    returns = total_return(EVERY.rewards, EVERY.mask)[:, 0]
    assert_digits((PI * returns).sum(), C_OBJECTIVE, 12)
    assert_digits((MU * returns).sum(), C_OBJECTIVE_BEHAVIOUR, 12)
    assert_digits(
        (PI * total_return(EVERY.rewards, EVERY.mask, gamma=0.9)[:, 0]).sum(), C_OBJECTIVE_DISCOUNTED, 12
    )
    pi, mu = (EVERY.logprobs(policy) for policy in (TOY_C.policy, TOY_C.behaviour))
    weights = importance(pi, mu, EVERY.mask, level="sequence")[:, 0]
    assert_digits((MU * weights * returns).sum(), C_OBJECTIVE, 12)


def test_the_performance_difference_is_a_sum_of_residuals():
    """J(π) − J(μ) = E_π[Σ_t δ_t] with V of μ: both recorded, and far apart."""
    delta = td_residual(
        EVERY.rewards, EVERY.at_states(exact.state_values(TOY_C.mdp, TOY_C.behaviour)), EVERY.mask
    )
    gained = (PI * delta.nan_to_num().sum(1)).sum()
    assert_digits(gained, C_OBJECTIVE - C_OBJECTIVE_BEHAVIOUR, 11)  # two numbers of twelve places
    assert abs(gained.item()) > 0.1


def jacobian(method):
    """∂E[ĝ_i]/∂θ_j by central differences, of one sequence of toy C."""
    theta, step, columns = np.array(TOY_C.policy.parameters), 1e-4, []
    for j in range(len(theta)):
        ends = []
        for sign in (1.0, -1.0):
            moved = TOY_C.policy.with_parameters(theta + sign * step * np.eye(len(theta))[j])
            ends.append(expected(method, replace(ONE_PROMPT, policy=moved), 1).ascent)
        columns.append((ends[0] - ends[1]) / (2 * step))
    return np.array(columns).T


def test_what_most_code_does_at_a_discount_is_the_gradient_of_no_function():
    """Nota and Thomas 2020, 1906.07073: G_t without γ^t is not ∇ of J_γ, nor of anything else.

    A gradient has a symmetric Jacobian. Here the row of the first token feels the second policy through γ V(s_1),
    while the rows of the second token are weighted by the chance to get there without γ. So between rows
    ∂g_first/∂θ_second = γ (∂g_second/∂θ_first)ᵀ; with γ^t at the score they are equal.
    """
    gamma = 0.9
    without = Method("without", partial(reward_to_go, gamma=gamma), policy_gradient_loss, sequence_sum)
    whole = Method("whole", partial(total_return, gamma=gamma), policy_gradient_loss, sequence_sum)
    found, symmetric = jacobian(without), jacobian(whole)
    np.testing.assert_allclose(symmetric, symmetric.T, rtol=0, atol=1e-8)
    first, second = found[:3, 3:], found[3:, :3]
    np.testing.assert_allclose(first, gamma * second.T, rtol=0, atol=1e-8)
    assert np.abs(first - second.T).max() > 1e-3
    np.testing.assert_allclose(found[:3], symmetric[:3], rtol=0, atol=1e-8)
    np.testing.assert_allclose(gamma * found[3:], symmetric[3:], rtol=0, atol=1e-8)
