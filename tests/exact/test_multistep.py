"""Credit over several steps from its definition, against published tables and against the usual recursions."""

import numpy as np
import pytest

from rung.errors import InvalidInput
from rung.exact import generalized_advantages, k_step_returns, lambda_returns, vtrace_targets
from tests.toys import assert_digits, rows

# GAE of r = 0, 0, 1 with V = .2, .4, .6, γ = .9, λ = .8.
MICRO = {
    0.0: ([0.46816, 0.428, 0.4], [0.66816, 0.828, 1.0]),
    0.5: ([0.70144, 0.752, 0.85], [0.90144, 1.152, 1.45]),
}
# rlax's tests, recomputed; rewards, values with the bootstrap last, discounts.
RLAX_GAE = [
    (
        ([0, 0, 1, 0, -0.5], [1, 4, -3, -2, -1, -1], 0.99),
        {
            1.0: "-1.45118805 -4.45574551 2.539651 .5249 -.49",
            0.7: "-.67697950 -5.24816666 2.48460799 .67043 -.49",
            0.4: ".56731873 -6.04212442 2.34312016 .81596 -.49",
        },
    ),
    (
        ([0, 0, 0, 0, 1], [-3, -2, -1, 0, 5, -1], [0.9, 0.9, 0.9, 0.0, 0.9]),
        {1.0: "3 2 1 0 -4.9", 0.7: "2.2899 1.73 1 0 -4.9", 0.4: "1.7256 1.46 1 0 -4.9"},
    ),
]
RLAX_LAMBDA = {0.75: "1.6460546875 .7228125 .7375 .65 3.4", 1.0: "1.315 .63 .7 1.7 3.4"}
# tianshou's three episodes; the value of the next state stands beside each reward, and episodes follow each other in
# one buffer, so that the value of a state is the next-value of the entry before.
TIANSHOU_REWARDS = [[101, 102, 103, 200], [104, 105, 106, 201], [107, 108, 109, 202]]
TIANSHOU_NEXT = [[2, 3, 4, -1], [5, 6, 7, -2], [8, 9, 10, -3]]
TIANSHOU = {
    "terminated": [
        "454.8344 376.1143 291.298 200",
        "464.5610 383.1085 295.387 201",
        "474.2876 390.1027 299.476 202",
    ],
    "truncated": [
        "454.0109 375.2386 290.3669 199.01",
        "462.9138 381.3571 293.5248 199.02",
        "474.2876 390.1027 299.476 202",
    ],
}
VTRACE_BEHAVIOUR = [
    [[8.9, 0.7], [5, 1], [0.6, 0.1], [-0.9, -0.1]],
    [[0.3, -5], [1, -8], [0.3, 1.7], [4.7, 3.3]],
]
VTRACE_TARGET = [
    [[0.4, 0.5], [9.2, 8.8], [0.7, 4.4], [7.9, 1.4]],
    [[1, 0.9], [1, -1], [-4.3, 8.7], [0.8, 0.3]],
]
VTRACE_ACTIONS = [[0, 1, 0, 0], [1, 0, 0, 1]]
VTRACE_REWARDS = [[-1.3, -1.3, 2.3, 42], [1.3, 5.3, -3.3, -5]]
VTRACE_DISCOUNTS = [[0, 0.89, 0.85, 0.99], [0.88, 1, 0.83, 0.95]]
VTRACE_VALUES = [[2.1, 1.1, -3.1, 0], [3.1, 0.1, -1.1, 7.4]]
VTRACE_BOOTSTRAP = [8.4, -1.2]
VTRACE_ERRORS = [
    "-1.6155143475 -3.4973224266 1.8670534533 50.316",
    "1.4662434157 3.6116402451 -8.336923632e-05 -13.54",
]

generator = np.random.default_rng(11)
SEGMENT = {"rewards": generator.normal(size=6), "values": generator.normal(size=6)}
SETTINGS = pytest.mark.parametrize(
    ("gamma", "lam", "bootstrap"),
    [(1.0, 0.95, 0.0), (0.9, 0.7, 0.0), (0.9, 0.7, 1.3), (0.99, 0.0, -0.4), (0.8, 1.0, 2.0), (0.0, 0.5, 1.0)],
)


@pytest.mark.parametrize(("bootstrap", "recorded"), MICRO.items())
def test_the_small_example_terminated_and_truncated(bootstrap, recorded):
    arguments = [0.0, 0.0, 1.0], [0.2, 0.4, 0.6]
    settings = {"gamma": 0.9, "lam": 0.8, "bootstrap": bootstrap}
    np.testing.assert_allclose(
        generalized_advantages(*arguments, **settings), recorded[0], rtol=0, atol=1e-14
    )
    np.testing.assert_allclose(lambda_returns(*arguments, **settings), recorded[1], rtol=0, atol=1e-14)


@pytest.mark.parametrize("case", [0, 1], ids=["one episode", "an end inside"])
@pytest.mark.parametrize("lam", [1.0, 0.7, 0.4])
def test_gae_of_rlax(case, lam):
    (rewards, values, discounts), recorded = RLAX_GAE[case]
    found = generalized_advantages(rewards, values[:-1], gamma=discounts, lam=lam, bootstrap=values[-1])
    assert_digits(found, rows(recorded[lam]), 8)


@pytest.mark.parametrize(("lam", "recorded"), RLAX_LAMBDA.items())
def test_lambda_returns_of_rlax(lam, recorded):
    """Only the values of the states after a step play a part: the first state's may be anything."""
    following = [3, 1, 5, -5, 3]
    found = lambda_returns(
        [1, 0, -1, 0, 1],
        [77.0, *following[:-1]],
        gamma=[0.5, 0.9, 1, 0.5, 0.8],
        lam=lam,
        bootstrap=following[-1],
    )
    assert_digits(found, rows(recorded), 10)


@pytest.mark.parametrize("ended", TIANSHOU)
def test_an_episode_that_is_cut_off_keeps_the_value_of_what_comes_after(ended):
    """The first two of three episodes truncated or not: the best public table of the difference."""
    for i, recorded in enumerate(TIANSHOU[ended]):
        cut = ended == "truncated" and i < 2
        before = 0.0 if i == 0 else TIANSHOU_NEXT[i - 1][-1]  # drops out: returns are advantage plus value
        values = [before, *TIANSHOU_NEXT[i][:-1]]
        settings = {"gamma": 0.99, "lam": 0.95, "bootstrap": TIANSHOU_NEXT[i][-1] if cut else 0.0}
        gains = generalized_advantages(TIANSHOU_REWARDS[i], values, **settings)
        # Published to four places, and cut there rather than rounded: 454.83447 stands as 454.8344.
        np.testing.assert_allclose(gains + values, rows(recorded), rtol=0, atol=1e-4)
        found = lambda_returns(TIANSHOU_REWARDS[i], values, **settings)
        np.testing.assert_allclose(found, rows(recorded), rtol=0, atol=1e-4)


def test_returns_to_go_with_ends_of_both_kinds():
    """tianshou's rewards 0 … 7, γ = .1, λ = 1: ends after 0, 3 and 7, a cut after 5 with nothing to come."""
    expected = [[0.0], [1.23, 2.3, 3.0], [4.5, 5.0], [6.7, 7.0]]
    for rewards, returns in zip([[0.0], [1, 2, 3], [4, 5], [6, 7]], expected, strict=True):
        found = lambda_returns(rewards, np.zeros(len(rewards)), gamma=0.1)
        np.testing.assert_allclose(found, returns, rtol=0, atol=1e-14)


@SETTINGS
def test_gae_is_the_sum_of_td_residuals(gamma, lam, bootstrap):
    """Σ_l (γλ)^l δ_{t+l}, by the recursion that everybody codes."""
    r, v = SEGMENT["rewards"], np.append(SEGMENT["values"], bootstrap)
    tail, expected = 0.0, np.zeros(6)
    for t in reversed(range(6)):
        tail = expected[t] = r[t] + gamma * v[t + 1] - v[t] + gamma * lam * tail
    found = generalized_advantages(**SEGMENT, gamma=gamma, lam=lam, bootstrap=bootstrap)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    returns = lambda_returns(**SEGMENT, gamma=gamma, lam=lam, bootstrap=bootstrap)
    np.testing.assert_allclose(returns, found + SEGMENT["values"], rtol=0, atol=1e-13)


@SETTINGS
def test_lambda_returns_follow_their_recursion(gamma, lam, bootstrap):
    """G_t^λ = r_t + γ ((1 − λ) V(s_{t+1}) + λ G_{t+1}^λ)."""
    r, v = SEGMENT["rewards"], np.append(SEGMENT["values"], bootstrap)
    tail, expected = bootstrap, np.zeros(6)
    for t in reversed(range(6)):
        tail = expected[t] = r[t] + gamma * ((1 - lam) * v[t + 1] + lam * tail)
    found = lambda_returns(**SEGMENT, gamma=gamma, lam=lam, bootstrap=bootstrap)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_k_step_returns_by_hand():
    found = k_step_returns([1.0, 2.0, 3.0], [10.0, 20.0, 30.0], gamma=0.5, bootstrap=40.0)
    expected = [[11.0, 9.5, 7.75], [17.0, 13.5], [23.0]]
    assert [g.tolist() for g in found] == expected


@pytest.mark.parametrize("row", [0, 1])
def test_vtrace_of_rlax(row):
    def logprob(logits, action):
        return logits[action] - np.log(np.exp(logits).sum())

    ratios = [
        np.exp(logprob(target, action) - logprob(behaviour, action))
        for target, behaviour, action in zip(
            VTRACE_TARGET[row], VTRACE_BEHAVIOUR[row], VTRACE_ACTIONS[row], strict=True
        )
    ]
    found = vtrace_targets(
        VTRACE_REWARDS[row],
        VTRACE_VALUES[row],
        ratios,
        gamma=VTRACE_DISCOUNTS[row],
        bootstrap=VTRACE_BOOTSTRAP[row],
    )
    assert_digits(found - VTRACE_VALUES[row], rows(VTRACE_ERRORS[row]), 10)


@SETTINGS
def test_vtrace_on_policy_is_the_lambda_return(gamma, lam, bootstrap):
    found = vtrace_targets(**SEGMENT, ratios=np.ones(6), gamma=gamma, lam=lam, bootstrap=bootstrap)
    expected = lambda_returns(**SEGMENT, gamma=gamma, lam=lam, bootstrap=bootstrap)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_vtrace_follows_its_recursion():
    """v_t − V_t = ρ_t δ_t + γ c_t (v_{t+1} − V_{t+1})."""
    r, v, w = SEGMENT["rewards"], np.append(SEGMENT["values"], 0.7), np.exp(generator.normal(size=6))
    tail, expected = 0.0, np.zeros(6)
    for t in reversed(range(6)):
        surprise = min(1.5, w[t]) * (r[t] + 0.9 * v[t + 1] - v[t])
        tail = surprise + 0.9 * 0.8 * min(1.2, w[t]) * tail
        expected[t] = v[t] + tail
    caps = {"gamma": 0.9, "lam": 0.8, "rho_cap": 1.5, "c_cap": 1.2, "bootstrap": 0.7}
    np.testing.assert_allclose(vtrace_targets(**SEGMENT, ratios=w, **caps), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "arguments", [([1.0], [1.0, 2.0], 1.0), ([[1.0]], [[1.0]], 1.0), ([1.0, 2.0], [0.0, 0.0], [0.9])]
)
def test_lengths_that_differ_are_refused(arguments):
    rewards, values, gamma = arguments
    with pytest.raises(InvalidInput, match="a segment has rewards"):
        generalized_advantages(rewards, values, gamma=gamma)
