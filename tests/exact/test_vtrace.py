"""What V-trace evaluates: the capped mixture of target and sampler."""

import numpy as np
import pytest

from rung.errors import InvalidInput
from rung.exact import (
    FixedPolicy,
    distribution,
    evaluate,
    state_values,
    vtrace_target_policy,
    vtrace_targets,
)
from tests.exact.problems import TOOL_BEHAVIOUR, TOOL_MDP, TOOL_POLICY
from tests.toys import SHARED_BEHAVIOUR, SHARED_POLICY, TOY_A, TOY_C, TOY_LONG, assert_digits, rows

A_VTRACE_TARGET = rows(".3714328058 .1748981407 .4536690535")  # ρ̄ = 1.1
PROBLEMS = [
    pytest.param(TOY_C.mdp, TOY_C.policy, TOY_C.behaviour, id="C"),
    pytest.param(TOY_LONG.mdp, TOY_LONG.policy, TOY_LONG.behaviour, id="LONG"),
    pytest.param(TOY_LONG.mdp, SHARED_POLICY, SHARED_BEHAVIOUR, id="LONG-shared"),
    pytest.param(TOOL_MDP, TOOL_POLICY, TOOL_BEHAVIOUR, id="TOOL"),
]


def test_the_target_policy_of_toy_a():
    found = vtrace_target_policy(TOY_A.policy, TOY_A.behaviour, rho_cap=1.1)
    assert_digits(np.exp(evaluate(found, (), 3)[0]), A_VTRACE_TARGET, 10)


@pytest.mark.parametrize(("mdp", "policy", "behaviour"), PROBLEMS)
def test_a_high_cap_is_the_target_and_a_low_one_the_sampler(mdp, policy, behaviour):
    for prefix in mdp.prefixes():
        for cap, limit in ((1e6, policy), (1e-6, behaviour)):
            found = vtrace_target_policy(policy, behaviour, rho_cap=cap)(prefix)[0]
            np.testing.assert_allclose(np.exp(found), np.exp(limit(prefix)[0]), rtol=0, atol=1e-14)


@pytest.mark.parametrize("caps", [(1.0, 1.0), (0.6, 1.0), (1.05, 0.4), (1e9, 1e9)])
@pytest.mark.parametrize(("mdp", "policy", "behaviour"), PROBLEMS)
def test_the_fixed_point_is_the_value_of_the_target_policy(mdp, policy, behaviour, caps):
    """With the values of π_ρ̄ in the table, E_μ[v_t | s_t] − V(s_t) = 0 at every prefix, whatever c̄ and λ are."""
    rho_cap, c_cap = caps
    values = state_values(mdp, vtrace_target_policy(policy, behaviour, rho_cap=rho_cap), gamma=0.9)
    surprise = dict.fromkeys(mdp.prefixes(), 0.0)
    for tau, probability in distribution(mdp, behaviour):
        ratios = [np.exp(policy(s)[0][a] - behaviour(s)[0][a]) for s, a in tau.steps]
        table = np.array([values[s] for s, _ in tau.steps])
        settings = {"gamma": 0.9, "lam": 0.8, "rho_cap": rho_cap, "c_cap": c_cap}
        targets = vtrace_targets(mdp.rewards(tau.tokens), table, ratios, **settings)
        for (prefix, _), gap in zip(tau.steps, targets - table, strict=True):
            surprise[prefix] += probability * gap
    for prefix, gap in surprise.items():
        assert gap == pytest.approx(0.0, abs=1e-14), prefix
    if rho_cap > 1e6:
        assert values == pytest.approx(state_values(mdp, policy, gamma=0.9), abs=1e-14)
    else:
        assert abs(values[()] - state_values(mdp, policy, gamma=0.9)[()]) > 1e-4


def test_actions_that_one_of_them_cannot_take_are_left_out():
    first, second = FixedPolicy({0: np.log([0.5, 0.5])}), FixedPolicy({0: np.array([0.0, -np.inf])})
    assert np.exp(vtrace_target_policy(first, second)(0)[0]).tolist() == [1.0, 0.0]
    never = FixedPolicy({0: np.array([-np.inf, 0.0])})
    with pytest.raises(InvalidInput, match="no action is possible"):
        vtrace_target_policy(second, never)(0)
    with pytest.raises(InvalidInput, match="must be positive"):
        vtrace_target_policy(first, second, rho_cap=0.0)
