"""Which gradient a penalty gives: every recorded cell of {k1, k2, k3} × {reward, loss} × {token, sequence}.

l = log π − log π_ref at the sampled token. In the reward the cost itself multiplies the score. In the loss the
multiplier is dk/dl, and only the token's own score gets it: γ = 0.
"""

import numpy as np
import pytest

from rung.exact import (
    distribution,
    expected_over_prefixes,
    policy_gradient,
    prefix_kl_policy_reference,
    prefix_kl_reference_policy,
    score_weighted,
    sequence_kl_policy_reference,
    sequence_kl_reference_policy,
    sequence_logprob,
)
from tests.exact.helpers import assert_is_derivative
from tests.toys import (
    A_GRADIENT_KL_POLICY_REFERENCE,
    A_GRADIENT_KL_REFERENCE_POLICY,
    A_GRADIENT_OF_MEAN_K2,
    A_K2_IN_REWARD,
    A_K3_IN_REWARD,
    A_OFF_POLICY_K1_IN_LOSS,
    A_OFF_POLICY_K2_IN_LOSS,
    A_OFF_POLICY_K3_IN_LOSS,
    B_FORWARD_KL_ON_POLICY_PREFIXES,
    B_GRADIENT_KL_POLICY_REFERENCE,
    B_IMMEDIATE_KL_POLICY_REFERENCE,
    B_REVERSE_KL_ON_BEHAVIOUR_PREFIXES,
    SHARED_POLICY,
    SHARED_REFERENCE,
    TOY_A,
    TOY_B,
    TOY_C,
    TOY_LONG,
    assert_digits,
)

PROBLEMS = [
    pytest.param(TOY_B.mdp, TOY_B.policy, TOY_B.reference, id="B"),
    pytest.param(TOY_C.mdp, TOY_C.policy, TOY_C.reference, id="C"),
    pytest.param(TOY_LONG.mdp, TOY_LONG.policy, TOY_LONG.reference, id="LONG"),
    pytest.param(TOY_LONG.mdp, SHARED_POLICY, SHARED_REFERENCE, id="LONG-shared"),
]


def log_ratio(policy, reference):
    return lambda prefix, token: float(policy(prefix)[0][token] - reference(prefix)[0][token])


def k1(policy, reference):
    return log_ratio(policy, reference)


def k2(policy, reference):
    return lambda prefix, token: log_ratio(policy, reference)(prefix, token) ** 2 / 2


def k3(policy, reference):
    def cost(prefix, token):
        ell = log_ratio(policy, reference)(prefix, token)
        return np.exp(-ell) - 1 + ell

    return cost


def slope_of_k3(policy, reference):
    return lambda prefix, token: 1 - np.exp(-log_ratio(policy, reference)(prefix, token))


def test_penalties_in_the_reward_on_toy_a():
    arguments = TOY_A.policy, TOY_A.reference
    found = [score_weighted(TOY_A.mdp, TOY_A.policy, k(*arguments)) for k in (k1, k2, k3)]
    for gradient, recorded in zip(
        found, [A_GRADIENT_KL_POLICY_REFERENCE, A_K2_IN_REWARD, A_K3_IN_REWARD], strict=True
    ):
        assert_digits(gradient, recorded, 12)


def test_penalties_in_the_loss_on_toy_a():
    arguments = TOY_A.policy, TOY_A.reference
    slopes = [lambda prefix, token: 1.0, k1(*arguments), slope_of_k3(*arguments)]
    recorded = [np.zeros(3), A_GRADIENT_KL_POLICY_REFERENCE, A_GRADIENT_KL_REFERENCE_POLICY]
    for slope, digits in zip(slopes, recorded, strict=True):
        assert_digits(score_weighted(TOY_A.mdp, TOY_A.policy, slope, gamma=0.0), digits, 12)


def test_penalties_in_the_loss_off_policy_on_toy_a():
    arguments = TOY_A.policy, TOY_A.reference
    slopes = [lambda prefix, token: 1.0, k1(*arguments), slope_of_k3(*arguments)]
    recorded = [A_OFF_POLICY_K1_IN_LOSS, A_OFF_POLICY_K2_IN_LOSS, A_OFF_POLICY_K3_IN_LOSS]
    for slope, digits in zip(slopes, recorded, strict=True):
        found = score_weighted(TOY_A.mdp, TOY_A.policy, slope, gamma=0.0, sampler=TOY_A.behaviour)
        assert_digits(found, digits, 12)


def test_the_whole_gradient_of_a_mean_is_reward_part_plus_loss_part_on_toy_a():
    arguments = TOY_A.policy, TOY_A.reference
    both = score_weighted(TOY_A.mdp, TOY_A.policy, k2(*arguments)) + score_weighted(
        TOY_A.mdp, TOY_A.policy, k1(*arguments), gamma=0.0
    )
    assert_digits(both, A_GRADIENT_OF_MEAN_K2, 12)


def test_token_penalties_on_toy_b():
    cost = k1(TOY_B.policy, TOY_B.reference)
    whole = score_weighted(TOY_B.mdp, TOY_B.policy, cost)
    partial = score_weighted(TOY_B.mdp, TOY_B.policy, cost, gamma=0.0)
    assert_digits(whole, B_GRADIENT_KL_POLICY_REFERENCE, 10)
    assert_digits(partial, B_IMMEDIATE_KL_POLICY_REFERENCE, 10)
    # Two steps: a discount γ keeps γ of the future part.
    between = score_weighted(TOY_B.mdp, TOY_B.policy, cost, gamma=0.3)
    np.testing.assert_allclose(between, partial + 0.3 * (whole - partial), rtol=0, atol=1e-14)
    slope = slope_of_k3(TOY_B.policy, TOY_B.reference)
    forward = score_weighted(TOY_B.mdp, TOY_B.policy, slope, gamma=0.0)
    assert_digits(forward, B_FORWARD_KL_ON_POLICY_PREFIXES, 10)


@pytest.mark.parametrize(("mdp", "policy", "reference"), PROBLEMS)
def test_token_k1_in_the_reward_is_the_gradient_of_the_sequence_divergence(mdp, policy, reference):
    exact = sequence_kl_policy_reference(mdp, policy, reference)
    cost = k1(policy, reference)
    np.testing.assert_allclose(score_weighted(mdp, policy, cost), exact.gradient, rtol=0, atol=1e-14)
    immediate = score_weighted(mdp, policy, cost, gamma=0.0)
    np.testing.assert_allclose(immediate, exact.immediate, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("mdp", "policy", "reference"), PROBLEMS)
def test_the_full_divergence_in_the_reward_gives_only_the_future(mdp, policy, reference):
    """KL(s) is a function of the prefix: for its own token it is a baseline."""

    def cost(prefix, token):
        return prefix_kl_policy_reference(policy, reference, prefix).value

    exact = sequence_kl_policy_reference(mdp, policy, reference)
    np.testing.assert_allclose(score_weighted(mdp, policy, cost), exact.future, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("mdp", "policy", "reference"), PROBLEMS)
def test_whole_sequence_penalties_in_the_loss(mdp, policy, reference):
    """(Σl)²/2 gives the reverse gradient, k3 of the whole ratio the forward one, exactly."""

    def ell(tau):
        return sequence_logprob(policy, tau) - sequence_logprob(reference, tau)

    squared = policy_gradient(mdp, policy, lambda tau: np.full(tau.length, ell(tau)))
    ratio = policy_gradient(mdp, policy, lambda tau: np.full(tau.length, 1 - np.exp(-ell(tau))))
    reverse = sequence_kl_policy_reference(mdp, policy, reference).gradient
    forward = sequence_kl_reference_policy(mdp, policy, reference).gradient
    np.testing.assert_allclose(squared, reverse, rtol=0, atol=1e-14)
    np.testing.assert_allclose(ratio, forward, rtol=0, atol=1e-14)


@pytest.mark.parametrize("k", [k1, k2, k3])
@pytest.mark.parametrize(("mdp", "policy", "reference"), PROBLEMS)
def test_a_held_cost_is_differentiated_through_the_sampling_alone(mdp, policy, reference, k):
    """Finite difference of E_{τ~θ}[Σ c] with c frozen at the present policy."""
    cost = k(policy, reference)

    def mean_cost(changed):
        return sum(
            probability * sum(cost(prefix, token) for prefix, token in tau.steps)
            for tau, probability in distribution(mdp, changed)
        )

    assert_is_derivative(score_weighted(mdp, policy, cost), mean_cost, policy)


def test_a_live_token_ratio_times_k3_is_the_reverse_divergence_on_the_samplers_prefixes():
    """d(ρ k3) = (ρ k3 + ρ dk3/dl) score, sampled from μ: toy B's recorded numbers."""

    def slope(prefix, token):
        ratio = np.exp(TOY_B.policy(prefix)[0][token] - TOY_B.behaviour(prefix)[0][token])
        arguments = TOY_B.policy, TOY_B.reference
        return ratio * (k3(*arguments)(prefix, token) + slope_of_k3(*arguments)(prefix, token))

    found = score_weighted(TOY_B.mdp, TOY_B.policy, slope, gamma=0.0, sampler=TOY_B.behaviour)
    assert_digits(found, B_REVERSE_KL_ON_BEHAVIOUR_PREFIXES, 10)


def test_a_detached_token_ratio_times_k3_is_the_forward_divergence_on_the_samplers_prefixes():
    def slope(prefix, token):
        ratio = np.exp(TOY_LONG.policy(prefix)[0][token] - TOY_LONG.behaviour(prefix)[0][token])
        return ratio * slope_of_k3(TOY_LONG.policy, TOY_LONG.reference)(prefix, token)

    found = score_weighted(TOY_LONG.mdp, TOY_LONG.policy, slope, gamma=0.0, sampler=TOY_LONG.behaviour)
    expected = expected_over_prefixes(
        TOY_LONG.mdp,
        TOY_LONG.behaviour,
        lambda s: prefix_kl_reference_policy(TOY_LONG.policy, TOY_LONG.reference, s).gradient,
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)
