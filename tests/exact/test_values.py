"""J, ∇J, V, Q and A: recorded digits, finite differences, and the identities that tie them together."""

import numpy as np
import pytest

from rung.exact import (
    action_values,
    advantages,
    distribution,
    evaluate,
    expected_over_prefixes,
    objective,
    objective_gradient,
    occupancy,
    policy_gradient,
    state_values,
)
from tests.exact.helpers import assert_is_derivative
from tests.toys import (
    A_OBJECTIVE_GRADIENT,
    C_BIAS_WITHOUT_DISCOUNT_WEIGHT,
    C_FIRST_ADVANTAGES,
    C_OBJECTIVE,
    C_OBJECTIVE_BEHAVIOUR,
    C_OBJECTIVE_DISCOUNTED,
    C_OBJECTIVE_GRADIENT,
    C_VALUES,
    SHARED_BEHAVIOUR,
    SHARED_POLICY,
    TOY_A,
    TOY_B,
    TOY_C,
    TOY_LONG,
    assert_digits,
)

PROBLEMS = [
    pytest.param(TOY_A.mdp, TOY_A.policy, TOY_A.behaviour, id="A"),
    pytest.param(TOY_B.mdp, TOY_B.policy, TOY_B.behaviour, id="B"),
    pytest.param(TOY_C.mdp, TOY_C.policy, TOY_C.behaviour, id="C"),
    pytest.param(TOY_LONG.mdp, TOY_LONG.policy, TOY_LONG.behaviour, id="LONG"),
    pytest.param(TOY_LONG.mdp, SHARED_POLICY, SHARED_BEHAVIOUR, id="LONG-shared"),
]
GAMMAS = pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])


def returns_to_go(mdp, tau, gamma):
    rewards = mdp.rewards(tau.tokens)
    return np.array(
        [sum(gamma ** (u - t) * rewards[u] for u in range(t, len(rewards))) for t in range(len(rewards))]
    )


def test_objective_of_toy_c():
    assert_digits(objective(TOY_C.mdp, TOY_C.policy), C_OBJECTIVE, 12)
    assert_digits(objective(TOY_C.mdp, TOY_C.behaviour), C_OBJECTIVE_BEHAVIOUR, 12)
    assert_digits(objective(TOY_C.mdp, TOY_C.policy, gamma=0.9), C_OBJECTIVE_DISCOUNTED, 12)


def test_values_and_advantages_of_toy_c():
    values = state_values(TOY_C.mdp, TOY_C.policy)
    for prefix, recorded in C_VALUES.items():
        assert_digits(values[prefix], recorded, 10)
    assert_digits(advantages(TOY_C.mdp, TOY_C.policy)[()], C_FIRST_ADVANTAGES, 10)


def test_objective_gradient_of_toys_a_and_c():
    assert_digits(objective_gradient(TOY_A.mdp, TOY_A.policy), A_OBJECTIVE_GRADIENT, 10)
    assert_digits(objective_gradient(TOY_C.mdp, TOY_C.policy), C_OBJECTIVE_GRADIENT, 10)


@GAMMAS
@pytest.mark.parametrize(("mdp", "policy", "behaviour"), PROBLEMS)
def test_objective_gradient_is_the_finite_difference(mdp, policy, behaviour, gamma):
    gradient = objective_gradient(mdp, policy, gamma=gamma)
    assert_is_derivative(gradient, lambda p: objective(mdp, p, gamma=gamma), policy)


@GAMMAS
@pytest.mark.parametrize(("mdp", "policy", "behaviour"), PROBLEMS)
def test_the_value_of_the_empty_prefix_is_the_objective(mdp, policy, behaviour, gamma):
    value = state_values(mdp, policy, gamma=gamma)[()]
    assert value == pytest.approx(objective(mdp, policy, gamma=gamma), abs=1e-14)


@GAMMAS
@pytest.mark.parametrize(("mdp", "policy", "behaviour"), PROBLEMS)
def test_q_is_the_mean_return_of_the_sequences_that_take_the_token(mdp, policy, behaviour, gamma):
    """Conditioning the enumeration, without Bellman: E[G_t | s_t, a_t]."""
    weight, total = {}, {}
    for tau, probability in distribution(mdp, policy):
        for step, to_go in zip(tau.steps, returns_to_go(mdp, tau, gamma), strict=True):
            weight[step] = weight.get(step, 0.0) + probability
            total[step] = total.get(step, 0.0) + probability * to_go
    found = action_values(mdp, policy, gamma=gamma)
    for (prefix, token), conditioned in total.items():
        assert found[prefix][token] == pytest.approx(conditioned / weight[prefix, token], abs=1e-13)


@GAMMAS
@pytest.mark.parametrize(("mdp", "policy", "behaviour"), PROBLEMS)
def test_advantages_average_to_zero(mdp, policy, behaviour, gamma):
    for prefix, values in advantages(mdp, policy, gamma=gamma).items():
        assert np.exp(evaluate(policy, prefix)[0]) @ values == pytest.approx(0.0, abs=1e-14)


@GAMMAS
@pytest.mark.parametrize(("mdp", "policy", "behaviour"), PROBLEMS)
def test_policy_gradient_theorem(mdp, policy, behaviour, gamma):
    """∇J = Σ_s d_γ(s) Σ_a ∇π(a|s) Q(s,a)."""
    values = action_values(mdp, policy, gamma=gamma)

    def at(prefix):
        logprobs, jacobian = evaluate(policy, prefix)
        return (np.exp(logprobs) * values[prefix]) @ jacobian

    found = expected_over_prefixes(mdp, policy, at, gamma=gamma)
    np.testing.assert_allclose(found, objective_gradient(mdp, policy, gamma=gamma), rtol=0, atol=1e-14)


@GAMMAS
@pytest.mark.parametrize("toy", [TOY_A, TOY_B, TOY_C, TOY_LONG], ids=["A", "B", "C", "LONG"])
def test_tabular_softmax_closed_form(toy, gamma):
    """∂J/∂θ(s,a) = d_γ(s) π(a|s) A(s,a)."""
    visits = occupancy(toy.mdp, toy.policy, gamma=gamma)
    advantage = advantages(toy.mdp, toy.policy, gamma=gamma)
    expected = [visits[s] * np.exp(evaluate(toy.policy, s)[0]) * advantage[s] for s in toy.policy.prefixes]
    found = objective_gradient(toy.mdp, toy.policy, gamma=gamma)
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=0, atol=1e-14)


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.3])
@pytest.mark.parametrize(("mdp", "policy", "behaviour"), PROBLEMS)
def test_performance_difference_lemma(mdp, policy, behaviour, gamma):
    """J(π) = J(μ) + Σ_s d_γ^π(s) Σ_a π(a|s) A^μ(s,a)."""
    other = advantages(mdp, behaviour, gamma=gamma)
    gain = expected_over_prefixes(
        mdp, policy, lambda prefix: np.exp(evaluate(policy, prefix)[0]) @ other[prefix], gamma=gamma
    )
    difference = objective(mdp, policy, gamma=gamma) - objective(mdp, behaviour, gamma=gamma)
    assert abs(difference) > 1e-3
    assert gain == pytest.approx(difference, abs=1e-14)


@pytest.mark.parametrize("credit", ["return", "to_go", "q", "a", "td"])
@pytest.mark.parametrize(("mdp", "policy", "behaviour"), PROBLEMS)
def test_every_credit_of_the_family_gives_the_same_gradient(mdp, policy, behaviour, credit):
    v, q, a = (function(mdp, policy) for function in (state_values, action_values, advantages))

    def psi(tau):
        rewards = mdp.rewards(tau.tokens)
        following = [
            v.get(tau.tokens[: t + 1], 0.0) if t + 1 < tau.length else 0.0 for t in range(tau.length)
        ]
        return {
            "return": np.full(tau.length, rewards.sum()),
            "to_go": returns_to_go(mdp, tau, 1.0),
            "q": np.array([q[prefix][token] for prefix, token in tau.steps]),
            "a": np.array([a[prefix][token] for prefix, token in tau.steps]),
            "td": rewards + following - np.array([v[prefix] for prefix, _ in tau.steps]),
        }[credit]

    found = policy_gradient(mdp, policy, psi)
    np.testing.assert_allclose(found, objective_gradient(mdp, policy), rtol=0, atol=1e-14)


def test_discounted_returns_need_the_discount_of_their_time():
    """γ^t G_t gives ∇J_γ; G_t alone is off by a recorded amount."""
    exact = objective_gradient(TOY_C.mdp, TOY_C.policy, gamma=0.9)
    plain = policy_gradient(TOY_C.mdp, TOY_C.policy, lambda tau: returns_to_go(TOY_C.mdp, tau, 0.9))
    weighted = policy_gradient(
        TOY_C.mdp, TOY_C.policy, lambda tau: 0.9 ** np.arange(tau.length) * returns_to_go(TOY_C.mdp, tau, 0.9)
    )
    np.testing.assert_allclose(weighted, exact, rtol=0, atol=1e-14)
    assert_digits(np.abs(plain - exact).max(), C_BIAS_WITHOUT_DISCOUNT_WEIGHT, 10)


@pytest.mark.parametrize(("mdp", "policy", "behaviour"), PROBLEMS)
def test_importance_weights_of_whole_sequences_undo_the_sampler(mdp, policy, behaviour):
    ratio = {tau: p / dict(distribution(mdp, behaviour))[tau] for tau, p in distribution(mdp, policy)}
    found = policy_gradient(
        mdp,
        policy,
        lambda tau: np.full(tau.length, ratio[tau] * mdp.total_return(tau.tokens)),
        sampler=behaviour,
    )
    np.testing.assert_allclose(found, objective_gradient(mdp, policy), rtol=0, atol=1e-14)
