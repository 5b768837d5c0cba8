"""From one policy to the next: the performance difference, the surrogate, Fisher information and TRPO's bound."""

import numpy as np
import pytest

from rung.errors import InvalidInput
from rung.exact import (
    LogLinear,
    SoftmaxTable,
    TabularMDP,
    advantages,
    expected_over_prefixes,
    fisher_information,
    mean_fisher_information,
    natural_gradient,
    objective,
    objective_gradient,
    occupancy,
    performance_difference,
    prefix_kl_policy_reference,
    prefix_kl_reference_policy,
    surrogate_objective,
    total_variation,
    trust_region_bound,
)
from tests.exact.helpers import assert_is_derivative
from tests.exact.problems import TOOL_BEHAVIOUR, TOOL_MDP, TOOL_POLICY, TOY_D
from tests.toys import (
    A_OBJECTIVE_GRADIENT,
    C_TOKEN_IMPORTANCE,
    SHARED_BEHAVIOUR,
    SHARED_POLICY,
    TOY_A,
    TOY_B,
    TOY_C,
    TOY_LONG,
    assert_digits,
)

D_POLICY = SoftmaxTable(range(3), [[0.4, -0.3], [-1.1, 0.6], [0.2, 0.9]])
D_BEHAVIOUR = SoftmaxTable(range(3), [[0.1, 0.2], [0.3, -0.6], [-0.5, 0.0]])
D_SHARED = LogLinear(lambda state: np.array([[0.5, state], [1.0, -0.3 * state]]), np.array([0.7, -0.4]))
PROBLEMS = [
    pytest.param(TOY_A.mdp, TOY_A.policy, TOY_A.behaviour, id="A"),
    pytest.param(TOY_B.mdp, TOY_B.policy, TOY_B.behaviour, id="B"),
    pytest.param(TOY_C.mdp, TOY_C.policy, TOY_C.behaviour, id="C"),
    pytest.param(TOY_LONG.mdp, TOY_LONG.policy, TOY_LONG.behaviour, id="LONG"),
    pytest.param(TOY_LONG.mdp, SHARED_POLICY, SHARED_BEHAVIOUR, id="LONG-shared"),
    pytest.param(TOOL_MDP, TOOL_POLICY, TOOL_BEHAVIOUR, id="TOOL"),
    pytest.param(TOY_D, D_POLICY, D_BEHAVIOUR, id="D"),
    pytest.param(TOY_D, D_SHARED, D_BEHAVIOUR, id="D-shared"),
]
GAMMAS = pytest.mark.parametrize("gamma", [1.0, 0.9, 0.3])


def states_of(mdp):
    return np.flatnonzero(~mdp.terminal).tolist() if isinstance(mdp, TabularMDP) else mdp.prefixes()


@GAMMAS
@pytest.mark.parametrize(("mdp", "policy", "behaviour"), PROBLEMS)
def test_performance_difference_lemma(mdp, policy, behaviour, gamma):
    gain = objective(mdp, policy, gamma=gamma) - objective(mdp, behaviour, gamma=gamma)
    assert abs(gain) > 1e-4
    found = performance_difference(mdp, policy, behaviour, gamma=gamma)
    assert found == pytest.approx(gain, abs=1e-13)
    assert performance_difference(mdp, policy, policy, gamma=gamma) == pytest.approx(0.0, abs=1e-14)


@GAMMAS
@pytest.mark.parametrize(("mdp", "policy", "behaviour"), PROBLEMS)
def test_the_gradient_of_the_surrogate_is_the_finite_difference(mdp, policy, behaviour, gamma):
    found = surrogate_objective(mdp, policy, behaviour, gamma=gamma)

    def value(changed):
        return surrogate_objective(mdp, changed, behaviour, gamma=gamma).value

    assert_is_derivative(found.gradient, value, policy)


@GAMMAS
@pytest.mark.parametrize(("mdp", "policy", "behaviour"), PROBLEMS)
def test_the_surrogate_touches_the_objective_at_the_old_policy(mdp, policy, behaviour, gamma):
    """Same value and same slope at π = μ, and only there."""
    there = surrogate_objective(mdp, policy, policy, gamma=gamma)
    assert there.value == pytest.approx(objective(mdp, policy, gamma=gamma), abs=1e-13)
    slope = objective_gradient(mdp, policy, gamma=gamma)
    np.testing.assert_allclose(there.gradient, slope, rtol=0, atol=1e-13)
    if mdp is not TOY_A.mdp:  # with one step there are no visits to be wrong about
        elsewhere = surrogate_objective(mdp, policy, behaviour, gamma=gamma)
        assert abs(elsewhere.value - objective(mdp, policy, gamma=gamma)) > 1e-5
        assert np.abs(elsewhere.gradient - slope).max() > 1e-4


def test_the_surrogate_of_toy_c_is_the_token_ratio_gradient():
    """With μ's advantages or with the return as credit: what comes before μ's token has no part in either."""
    found = surrogate_objective(TOY_C.mdp, TOY_C.policy, TOY_C.behaviour)
    assert_digits(found.gradient, C_TOKEN_IMPORTANCE, 10)
    # E_μ[Σ ρ A^μ] is what is added to J(μ).
    gains = advantages(TOY_C.mdp, TOY_C.behaviour)
    visits = occupancy(TOY_C.mdp, TOY_C.behaviour)
    added = sum(visits[s] * np.exp(TOY_C.policy(s)[0]) @ gains[s] for s in visits)
    assert found.value == pytest.approx(objective(TOY_C.mdp, TOY_C.behaviour) + added, abs=1e-14)


@pytest.mark.parametrize(("mdp", "policy", "behaviour"), PROBLEMS)
def test_the_fisher_information_is_the_curvature_of_both_divergences(mdp, policy, behaviour):
    """Differences of the gradients of KL(π_old‖π) and KL(π‖π_old) at π = π_old."""
    parameters = np.array(policy.parameters)
    for state in states_of(mdp)[:4]:
        fisher = fisher_information(policy, state)
        for kl in (prefix_kl_policy_reference, prefix_kl_reference_policy):
            for i in range(len(parameters)):
                shift = 1e-5 * np.eye(len(parameters))[i]
                up, down = (policy.with_parameters(parameters + sign * shift) for sign in (1, -1))
                slope = kl(up, policy, state).gradient - kl(down, policy, state).gradient
                np.testing.assert_allclose(fisher[i], slope / 2e-5, rtol=0, atol=2e-9)


def test_the_fisher_information_of_a_softmax_row():
    for prefix in TOY_LONG.mdp.prefixes():
        row, p = TOY_LONG.policy.row_of(prefix), np.exp(TOY_LONG.policy(prefix)[0])
        found = fisher_information(TOY_LONG.policy, prefix)
        block = found[3 * row : 3 * row + 3, 3 * row : 3 * row + 3]
        np.testing.assert_allclose(block, np.diag(p) - np.outer(p, p), rtol=0, atol=1e-15)
        assert np.count_nonzero(found) == 9


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_the_mean_information_is_per_visit(gamma):
    """Weighted by visits and divided by their number; without the division it is the information of a sequence."""
    visits = occupancy(TOY_LONG.mdp, TOY_LONG.behaviour, gamma=gamma)
    total = sum(w * fisher_information(TOY_LONG.policy, s) for s, w in visits.items())
    found = mean_fisher_information(TOY_LONG.mdp, TOY_LONG.policy, sampler=TOY_LONG.behaviour, gamma=gamma)
    np.testing.assert_allclose(found, total / sum(visits.values()), rtol=0, atol=1e-15)
    own = mean_fisher_information(TOY_D, D_POLICY, gamma=0.9)
    visits = occupancy(TOY_D, D_POLICY, gamma=0.9)
    total = sum(visits[s] * fisher_information(D_POLICY, s) for s in range(3))
    np.testing.assert_allclose(own, total / visits.sum(), rtol=0, atol=1e-15)


def test_the_natural_gradient_of_toy_a_is_its_advantage():
    """F⁺ ∇J = A − mean(A): recorded (.5, −.5, 0) for rewards 1, 0, .5."""
    gradient = objective_gradient(TOY_A.mdp, TOY_A.policy)
    assert_digits(gradient, A_OBJECTIVE_GRADIENT, 10)
    found = natural_gradient(gradient, fisher_information(TOY_A.policy, ()))
    np.testing.assert_allclose(found, [0.5, -0.5, 0.0], rtol=0, atol=1e-14)
    gains = advantages(TOY_A.mdp, TOY_A.policy)[()]
    np.testing.assert_allclose(found, gains - gains.mean(), rtol=0, atol=1e-14)


def test_the_step_of_toy_a_for_a_radius_of_a_hundredth():
    """√(2δ / xᵀFx) and the divergence that it really makes: recorded."""
    fisher = fisher_information(TOY_A.policy, ())
    direction = natural_gradient(objective_gradient(TOY_A.mdp, TOY_A.policy), fisher)
    step = np.sqrt(2 * 0.01 / (direction @ fisher @ direction))
    assert_digits(step, 0.428242209120, 12)
    moved = TOY_A.policy.with_parameters(TOY_A.policy.parameters + step * direction)
    assert_digits(prefix_kl_reference_policy(moved, TOY_A.policy, ()).value, 0.009888682047, 12)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_the_natural_gradient_of_a_table_is_the_advantage_of_every_prefix(gamma):
    """With the information of whole trajectories, ∇J's visits cancel: A(s,·) less its plain mean."""
    fisher = expected_over_prefixes(
        TOY_LONG.mdp, TOY_LONG.policy, lambda s: fisher_information(TOY_LONG.policy, s), gamma=gamma
    )
    found = natural_gradient(objective_gradient(TOY_LONG.mdp, TOY_LONG.policy, gamma=gamma), fisher)
    gains = advantages(TOY_LONG.mdp, TOY_LONG.policy, gamma=gamma)
    expected = np.concatenate([gains[s] - gains[s].mean() for s in TOY_LONG.policy.prefixes])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("share", [0.03, 0.3, 1.0])
@pytest.mark.parametrize(("mdp", "policy", "behaviour"), PROBLEMS)
def test_the_bound_holds_and_is_not_empty(mdp, policy, behaviour, share, gamma):
    """J(π) lies above both bounds, for steps of several sizes; ours is above theirs by TV² ≤ KL/2."""
    if policy is D_SHARED:
        policy = D_POLICY
    target = policy.with_parameters(
        share * np.array(policy.parameters) + (1 - share) * np.array(behaviour.parameters)
    )
    bound = trust_region_bound(mdp, target, behaviour, gamma=gamma)
    value = objective(mdp, target, gamma=gamma)
    assert value >= bound.by_total_variation - 1e-14
    assert bound.by_total_variation >= bound.by_kl
    assert bound.surrogate == pytest.approx(
        surrogate_objective(mdp, target, behaviour, gamma=gamma).value, abs=1e-15
    )
    if gamma == 0.0:
        assert bound.by_kl == pytest.approx(value, abs=1e-14)  # nothing but the first step
    elif mdp is not TOY_A.mdp:
        assert bound.surrogate - bound.by_total_variation < 100 * share**2 * bound.epsilon / (1 - gamma) ** 2


def test_the_bound_spelled_out_for_toy_c():
    bound = trust_region_bound(TOY_C.mdp, TOY_C.policy, TOY_C.behaviour, gamma=0.9)
    gains = advantages(TOY_C.mdp, TOY_C.behaviour, gamma=0.9)
    epsilon = max(np.abs(gains[s]).max() for s in TOY_C.mdp.prefixes())
    assert bound.epsilon == pytest.approx(epsilon, abs=1e-15)
    assert bound.constant == pytest.approx(4 * epsilon * 0.9 / 0.01, abs=1e-11)
    pairs = [(np.exp(TOY_C.policy(s)[0]), np.exp(TOY_C.behaviour(s)[0])) for s in TOY_C.mdp.prefixes()]
    variation = max(np.abs(p - m).sum() / 2 for p, m in pairs)
    divergence = max((m * np.log(m / p)).sum() for p, m in pairs)
    assert bound.by_total_variation == pytest.approx(
        bound.surrogate - bound.constant * variation**2, abs=1e-11
    )
    assert bound.by_kl == pytest.approx(bound.surrogate - bound.constant * divergence, abs=1e-11)
    assert variation**2 < divergence / 2


def test_total_variation_is_between_zero_and_one_and_symmetric():
    for prefix in TOY_LONG.mdp.prefixes():
        found = total_variation(TOY_LONG.policy, TOY_LONG.behaviour, prefix)
        assert 0.0 < found < 1.0
        assert found == total_variation(TOY_LONG.behaviour, TOY_LONG.policy, prefix)
        # The largest difference that the two can have on a set of tokens.
        p, m = np.exp(TOY_LONG.policy(prefix)[0]), np.exp(TOY_LONG.behaviour(prefix)[0])
        assert found == pytest.approx(np.maximum(p - m, 0.0).sum(), abs=1e-15)


def test_the_bound_needs_a_discount():
    with pytest.raises(InvalidInput, match=r"discount in \[0, 1\)"):
        trust_region_bound(TOY_C.mdp, TOY_C.policy, TOY_C.behaviour, gamma=1.0)
