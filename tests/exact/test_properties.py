"""Random small problems: whatever the oracle says must be the finite difference of something simpler.

Derandomized, so that every run sees the same problems. Logits stay within ±3, rewards within ±3.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rung.exact import (
    SoftmaxTable,
    TokenMDP,
    advantages,
    distribution,
    evaluate,
    expectation,
    expected_over_prefixes,
    objective,
    objective_gradient,
    occupancy,
    regularized_objective,
    score_weighted,
    sequence_kl_policy_reference,
    sequence_kl_reference_policy,
    sequence_score,
    tilted_optimum,
)
from tests.exact.helpers import assert_is_derivative

# Larger numbers than in the toys: rounding and truncation of the central difference grow with them.
TOLERANCE = 1e-8
VALUES = st.floats(-3.0, 3.0, allow_nan=False, width=32)
SIZES = st.sampled_from([(2, 1), (2, 2), (2, 3), (3, 1), (3, 2)])


@st.composite
def problems(draw):
    """A token MDP with rewards on sequences and steps, a policy and a reference."""
    vocabulary_size, max_length = draw(SIZES)
    end_token = draw(st.sampled_from([None, *range(vocabulary_size)]))
    bare = TokenMDP(vocabulary_size, end_token=end_token, max_length=max_length, reward=lambda tokens: 0.0)
    sequences = [tau.tokens for tau in bare.trajectories()]
    rewards = dict(zip(sequences, draw(st.tuples(*[VALUES] * len(sequences))), strict=True))
    steps = draw(st.tuples(*[VALUES] * (max_length * vocabulary_size)))
    mdp = replace(
        bare,
        reward=rewards.__getitem__,
        step_reward=lambda prefix, token: steps[len(prefix) * vocabulary_size + token],
    )
    prefixes = mdp.prefixes()
    tables = [
        SoftmaxTable(
            prefixes,
            np.reshape(draw(st.tuples(*[VALUES] * (len(prefixes) * vocabulary_size))), (len(prefixes), -1)),
        )
        for _ in range(2)
    ]
    return mdp, *tables


def checked(test):
    return settings(max_examples=25, deadline=None, derandomize=True)(
        given(problems(), st.floats(0.0, 1.0))(test)
    )


@checked
def test_objective_gradient(problem, gamma):
    mdp, policy, _ = problem
    gradient = objective_gradient(mdp, policy, gamma=gamma)
    assert_is_derivative(gradient, lambda p: objective(mdp, p, gamma=gamma), policy, TOLERANCE)


@checked
def test_divergence_gradients(problem, gamma):
    mdp, policy, reference = problem
    for kl in (sequence_kl_policy_reference, sequence_kl_reference_policy):
        found = kl(mdp, policy, reference)
        assert found.value >= -1e-15
        np.testing.assert_allclose(found.immediate + found.future, found.gradient, rtol=0, atol=1e-13)
        assert_is_derivative(found.gradient, lambda p, kl=kl: kl(mdp, p, reference).value, policy, TOLERANCE)


@checked
def test_a_held_cost(problem, gamma):
    mdp, policy, _ = problem
    gradient = score_weighted(mdp, policy, mdp.step_reward)
    costs = replace(mdp, reward=lambda tokens: 0.0)
    assert_is_derivative(gradient, lambda p: objective(costs, p), policy, TOLERANCE)


@checked
def test_regularized_gradient_and_optimum(problem, gamma):
    mdp, policy, reference = problem
    beta = 0.2 + gamma
    found = regularized_objective(mdp, policy, reference, beta)

    def function(p):
        return regularized_objective(mdp, p, reference, beta).value

    assert_is_derivative(found.gradient, function, policy, TOLERANCE)
    optimum = tilted_optimum(mdp, reference, beta)
    shortfall = beta * sequence_kl_policy_reference(mdp, policy, optimum.policy).value
    assert found.value == pytest.approx(optimum.value - shortfall, abs=1e-12)


@checked
def test_identities(problem, gamma):
    mdp, policy, other = problem
    assert sum(p for _, p in distribution(mdp, policy)) == pytest.approx(1.0, abs=1e-14)
    theirs = advantages(mdp, other, gamma=gamma)
    for prefix, values in theirs.items():
        assert np.exp(evaluate(other, prefix)[0]) @ values == pytest.approx(0.0, abs=1e-13)

    def at(prefix):
        return np.exp(evaluate(policy, prefix)[0]) @ theirs[prefix]

    gain = expected_over_prefixes(mdp, policy, at, gamma=gamma)
    difference = objective(mdp, policy, gamma=gamma) - objective(mdp, other, gamma=gamma)
    assert gain == pytest.approx(difference, abs=1e-12)
    length = sum(p * tau.length for tau, p in distribution(mdp, policy))
    assert sum(occupancy(mdp, policy).values()) == pytest.approx(length, abs=1e-13)


@checked
def test_leave_one_out_of_two(problem, gamma):
    mdp, policy, _ = problem

    def estimator(group):
        first, second = (mdp.total_return(tau.tokens) for tau in group)
        return (first - second) * (sequence_score(policy, group[0]) - sequence_score(policy, group[1])) / 2

    found = expectation(mdp, policy, 2, estimator).mean
    np.testing.assert_allclose(found, objective_gradient(mdp, policy), rtol=0, atol=1e-12)
