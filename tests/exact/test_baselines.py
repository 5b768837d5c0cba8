"""The baselines of least variance: recorded digits of toy C, and no other one is better."""

import numpy as np
import pytest

from rung.exact import (
    action_values,
    best_constant_baseline,
    best_state_baseline,
    expectation,
    objective,
    sequence_score,
    state_values,
    token_scores,
)
from tests.exact.problems import TOOL_MDP, TOOL_POLICY, TOOL_SHARED_POLICY
from tests.toys import (
    C_BEST_CONSTANT_BASELINE,
    C_BEST_STATE_BASELINE,
    C_TRACE_BEST_CONSTANT_BASELINE,
    C_TRACE_Q_LESS_BEST_STATE_BASELINE,
    SHARED_POLICY,
    TOY_C,
    TOY_LONG,
    assert_digits,
)

PROBLEMS = [
    pytest.param(TOY_C.mdp, TOY_C.policy, id="C"),
    pytest.param(TOY_LONG.mdp, TOY_LONG.policy, id="LONG"),
    pytest.param(TOY_LONG.mdp, SHARED_POLICY, id="LONG-shared"),
    pytest.param(TOOL_MDP, TOOL_POLICY, id="TOOL"),
    pytest.param(TOOL_MDP, TOOL_SHARED_POLICY, id="TOOL-shared"),
]
CREDITS = pytest.mark.parametrize("name", ["return", "to go", "Q"])


def constant(mdp, policy, baseline):
    def estimator(group):
        return (mdp.total_return(group[0].tokens) - baseline) * sequence_score(policy, group[0])

    return expectation(mdp, policy, 1, estimator)


def by_state(mdp, policy, credit, baseline):
    def estimator(group):
        less = credit(group[0]) - np.array([baseline[prefix] for prefix, _ in group[0].steps])
        return less @ token_scores(policy, group[0])

    return expectation(mdp, policy, 1, estimator)


def credit_of(name, mdp, policy):
    q = action_values(mdp, policy)
    return {
        "return": lambda tau: np.full(tau.length, mdp.total_return(tau.tokens)),
        "to go": lambda tau: np.cumsum(mdp.rewards(tau.tokens)[::-1])[::-1],
        "Q": lambda tau: np.array([q[prefix][token] for prefix, token in tau.steps]),
    }[name]


def test_the_best_constant_of_toy_c():
    found = best_constant_baseline(TOY_C.mdp, TOY_C.policy)
    assert_digits(found, C_BEST_CONSTANT_BASELINE, 12)
    assert_digits(constant(TOY_C.mdp, TOY_C.policy, found).trace, C_TRACE_BEST_CONSTANT_BASELINE, 10)


@pytest.mark.parametrize(("mdp", "policy"), PROBLEMS)
def test_no_other_constant_is_better(mdp, policy):
    """The trace is a parabola in b: equal at equal distances, least in the middle, and its mean stays ∇J."""
    best = best_constant_baseline(mdp, policy)
    least, left, right = (constant(mdp, policy, best + shift) for shift in (0.0, -0.3, 0.3))
    assert left.trace == pytest.approx(right.trace, abs=1e-12)
    assert least.trace < left.trace - 1e-3
    np.testing.assert_allclose(least.mean, left.mean, rtol=0, atol=1e-13)
    assert least.trace < constant(mdp, policy, objective(mdp, policy)).trace - 1e-6


def test_the_best_state_baseline_of_toy_c():
    for name in ("Q", "return"):  # a terminal reward: the mean of the return given token and prefix is Q
        found = best_state_baseline(TOY_C.mdp, TOY_C.policy, credit_of(name, TOY_C.mdp, TOY_C.policy))
        assert found.keys() == C_BEST_STATE_BASELINE.keys()
        for prefix, recorded in C_BEST_STATE_BASELINE.items():
            assert_digits(found[prefix], recorded, 10)
    credit = credit_of("Q", TOY_C.mdp, TOY_C.policy)
    found = best_state_baseline(TOY_C.mdp, TOY_C.policy, credit)
    trace = by_state(TOY_C.mdp, TOY_C.policy, credit, found).trace
    assert_digits(trace, C_TRACE_Q_LESS_BEST_STATE_BASELINE, 10)


@CREDITS
@pytest.mark.parametrize(("mdp", "policy"), PROBLEMS)
def test_no_other_state_baseline_is_better(mdp, policy, name):
    """At every prefix the trace is equal at equal distances; the value function never does better."""
    credit = credit_of(name, mdp, policy)
    best = best_state_baseline(mdp, policy, credit)
    least = by_state(mdp, policy, credit, best).trace
    for prefix in best:
        left, right = (
            by_state(mdp, policy, credit, best | {prefix: best[prefix] + shift}).trace
            for shift in (-0.5, 0.5)
        )
        assert left == pytest.approx(right, abs=1e-12)
        assert left > least + 1e-6
    assert by_state(mdp, policy, credit, state_values(mdp, policy)).trace > least


def test_where_prefixes_share_no_parameters_it_is_local():
    """E[Q |∇ log π|²] / E[|∇ log π|²] at each prefix."""
    q = action_values(TOY_LONG.mdp, TOY_LONG.policy)
    found = best_state_baseline(TOY_LONG.mdp, TOY_LONG.policy, credit_of("Q", TOY_LONG.mdp, TOY_LONG.policy))
    for prefix in TOY_LONG.mdp.prefixes():
        logprobs, jacobian = TOY_LONG.policy(prefix)
        weights = np.exp(logprobs) * (jacobian**2).sum(axis=1)
        assert found[prefix] == pytest.approx(weights @ q[prefix] / weights.sum(), abs=1e-13)
