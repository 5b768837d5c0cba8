"""Means and variances of estimators, enumerated: recorded digits, and identities that hold for any problem."""

import math

import numpy as np
import pytest

from rung.errors import InvalidInput
from rung.exact import (
    FixedPolicy,
    SoftmaxTable,
    TokenMDP,
    action_values,
    advantages,
    distribution,
    expectation,
    groups,
    objective,
    objective_gradient,
    sequence_score,
    state_values,
    token_scores,
)
from tests.toys import (
    BINARY_STANDARDIZED_FACTORS,
    C_ALIVE_MEAN_FACTORS,
    C_BEST_CONSTANT_BASELINE,
    C_BEST_STATE_BASELINE,
    C_OBJECTIVE_GRADIENT,
    C_SEQUENCE_MEAN,
    C_SEQUENCE_MEAN_COSINE,
    C_STANDARDIZED,
    C_STANDARDIZED_COSINES,
    C_TOKEN_MEAN_COSINE,
    C_TRACE_A,
    C_TRACE_BEST_CONSTANT_BASELINE,
    C_TRACE_GAE_HALF,
    C_TRACE_Q,
    C_TRACE_Q_LESS_BEST_STATE_BASELINE,
    C_TRACE_RETURN,
    C_TRACE_RETURN_LESS_J,
    C_TRACE_TO_GO_LESS_V,
    C_WRONG_CRITIC,
    C_WRONG_CRITIC_BIAS,
    SHARED_POLICY,
    TOY_C,
    TOY_LONG,
    assert_digits,
)

MDP, POLICY = TOY_C.mdp, TOY_C.policy
J, V, Q, A = (function(MDP, POLICY) for function in (objective, state_values, action_values, advantages))


def reward_of(tau):
    return MDP.total_return(tau.tokens)


def gae(tau, values, lam):
    """Σ_l λ^l δ_{t+l} with γ = 1, term by term."""
    rewards = MDP.rewards(tau.tokens)
    later = [values[tau.tokens[: t + 1]] if t + 1 < tau.length else 0.0 for t in range(tau.length)]
    delta = [r + after - values[s] for r, after, (s, _) in zip(rewards, later, tau.steps, strict=True)]
    return np.array([sum(lam ** (u - t) * delta[u] for u in range(t, tau.length)) for t in range(tau.length)])


def one_sample(psi):
    """The estimator Σ_t Ψ_t ∇log π of a single sequence."""
    return lambda group: np.asarray(psi(group[0])) @ token_scores(POLICY, group[0])


def cosine(first, second):
    return first @ second / np.linalg.norm(first) / np.linalg.norm(second)


CREDITS = {
    "R": (lambda tau: np.full(tau.length, reward_of(tau)), C_TRACE_RETURN),
    "R - J": (lambda tau: np.full(tau.length, reward_of(tau) - J), C_TRACE_RETURN_LESS_J),
    "R - b*": (
        lambda tau: np.full(tau.length, reward_of(tau) - C_BEST_CONSTANT_BASELINE),
        C_TRACE_BEST_CONSTANT_BASELINE,
    ),
    "G - V": (lambda tau: np.array([reward_of(tau) - V[s] for s, _ in tau.steps]), C_TRACE_TO_GO_LESS_V),
    "Q": (lambda tau: np.array([Q[s][a] for s, a in tau.steps]), C_TRACE_Q),
    "A": (lambda tau: np.array([A[s][a] for s, a in tau.steps]), C_TRACE_A),
    "TD": (lambda tau: gae(tau, V, 0.0), C_TRACE_A),
    "GAE .5": (lambda tau: gae(tau, V, 0.5), C_TRACE_GAE_HALF),
    "GAE 1": (lambda tau: gae(tau, V, 1.0), C_TRACE_TO_GO_LESS_V),
    "Q - b*": (
        lambda tau: np.array([Q[s][a] - C_BEST_STATE_BASELINE[s] for s, a in tau.steps]),
        C_TRACE_Q_LESS_BEST_STATE_BASELINE,
    ),
}


@pytest.mark.parametrize("name", CREDITS)
def test_the_family_on_toy_c_has_one_mean_and_the_recorded_variances(name):
    psi, trace = CREDITS[name]
    moments = expectation(MDP, POLICY, 1, one_sample(psi))
    assert_digits(moments.mean, C_OBJECTIVE_GRADIENT, 10)
    assert_digits(moments.trace, trace, 10)


@pytest.mark.parametrize(("lam", "bias"), C_WRONG_CRITIC_BIAS.items())
def test_the_bias_of_gae_with_a_wrong_critic(lam, bias):
    moments = expectation(MDP, POLICY, 1, one_sample(lambda tau: gae(tau, C_WRONG_CRITIC, lam)))
    found = np.abs(moments.mean - objective_gradient(MDP, POLICY)).max()
    assert_digits(found, bias, 10)


def leave_one_out(group):
    rewards = np.array([reward_of(tau) for tau in group])
    return rewards - (rewards.sum() - rewards) / (len(group) - 1)


def weighted_scores(group, credit, weights=None):
    weights = np.full(len(group), 1 / len(group)) if weights is None else weights
    return sum(w * c * sequence_score(POLICY, tau) for w, c, tau in zip(weights, credit, group, strict=True))


@pytest.mark.parametrize("size", [2, 3])
def test_leave_one_out_is_unbiased_and_the_own_mean_only_rescales(size):
    exact = objective_gradient(MDP, POLICY)
    apart = expectation(MDP, POLICY, size, lambda group: weighted_scores(group, leave_one_out(group)))
    np.testing.assert_allclose(apart.mean, exact, rtol=0, atol=1e-14)

    def centered(group):
        rewards = np.array([reward_of(tau) for tau in group])
        return weighted_scores(group, rewards - rewards.mean())

    own = expectation(MDP, POLICY, size, centered)
    np.testing.assert_allclose(own.mean, (size - 1) / size * exact, rtol=0, atol=1e-14)


def standardized(group):
    rewards = np.array([reward_of(tau) for tau in group])
    spread = rewards.std()
    # Equal rewards may differ from their mean by rounding: no spread, not a small one.
    return np.zeros(len(group)) if spread < 1e-9 else (rewards - rewards.mean()) / spread


@pytest.mark.parametrize("size", [2, 3])
def test_standardized_rewards_point_elsewhere(size):
    mean = expectation(MDP, POLICY, size, lambda group: weighted_scores(group, standardized(group))).mean
    assert_digits(cosine(mean, C_OBJECTIVE_GRADIENT), C_STANDARDIZED_COSINES[size], 8)
    if size == 2:
        assert_digits(mean, C_STANDARDIZED, 10)


def test_dividing_by_the_length_optimises_something_else():
    def estimator(group):
        lengths = np.array([tau.length for tau in group])
        return weighted_scores(group, leave_one_out(group), 1 / lengths / len(group))

    mean = expectation(MDP, POLICY, 2, estimator).mean
    assert_digits(mean, C_SEQUENCE_MEAN, 10)
    assert_digits(cosine(mean, C_OBJECTIVE_GRADIENT), C_SEQUENCE_MEAN_COSINE, 8)


def test_dividing_by_the_number_of_tokens_turns_the_gradient():
    def estimator(group):
        tokens = sum(tau.length for tau in group)
        return weighted_scores(group, leave_one_out(group), np.full(len(group), 1 / tokens))

    mean = expectation(MDP, POLICY, 2, estimator).mean
    assert_digits(cosine(mean, C_OBJECTIVE_GRADIENT), C_TOKEN_MEAN_COSINE, 5)


@pytest.mark.parametrize("size", [2, 3])
def test_a_mean_over_the_samples_still_alive_scales_each_step_differently(size):
    def estimator(group):
        total = np.zeros(9)
        for t in range(2):
            alive = [tau for tau in group if tau.length > t]
            for tau in alive:
                baseline = np.mean([reward_of(other) for other in alive])
                total += (reward_of(tau) - baseline) * token_scores(POLICY, tau)[t] / len(group)
        return total

    mean = expectation(MDP, POLICY, size, estimator).mean
    first, second = C_ALIVE_MEAN_FACTORS[size]
    exact = objective_gradient(MDP, POLICY)
    # Ten printed places of a factor of numbers below 0.1.
    np.testing.assert_allclose(mean[:3], first * exact[:3], rtol=0, atol=5e-11)
    np.testing.assert_allclose(mean[3:], second * exact[3:], rtol=0, atol=5e-11)


@pytest.mark.parametrize(
    ("size", "p"),
    [(4, 0.05), (4, 0.1), (4, 0.25), (4, 0.5), (8, 0.05), (8, 0.1), (8, 0.25), (8, 0.5), (16, 0.1)],
)
def test_standardizing_binary_rewards_rescales_by_the_recorded_factor(size, p):
    """One step, success p = σ(θ): ∇p = p(1 − p), so the expected gradient is factor · p(1 − p)."""
    mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: float(tokens[0]))
    policy = FixedPolicy({(): np.log([1 - p, p])})

    def estimator(group):
        wins = np.array([tau.tokens[0] for tau in group])
        share = wins.sum() / size
        if share in (0.0, 1.0):
            return np.zeros(1)
        return np.array([((wins - share) * (wins - p)).sum() / size / math.sqrt(share * (1 - share))])

    mean = expectation(mdp, policy, size, estimator).mean[0]
    # The factor is printed to ten places; the gradient is the factor times p(1 − p) < 1.
    assert_digits(mean / (p * (1 - p)), BINARY_STANDARDIZED_FACTORS[size][p], 10)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_variance_of_a_mean_falls_with_the_group(size):
    one = expectation(MDP, POLICY, 1, one_sample(CREDITS["R"][0]))
    several = expectation(
        MDP, POLICY, size, lambda group: weighted_scores(group, [reward_of(tau) for tau in group])
    )
    np.testing.assert_allclose(several.mean, one.mean, rtol=0, atol=1e-14)
    np.testing.assert_allclose(several.covariance, one.covariance / size, rtol=0, atol=1e-14)


def test_the_covariance_is_about_the_mean():
    moments = expectation(
        MDP, POLICY, 1, lambda group: np.array([10.0 + reward_of(group[0]), group[0].length])
    )
    p = np.array([probability for _, probability in distribution(MDP, POLICY)])
    x = np.array([[10.0 + reward_of(tau), tau.length] for tau, _ in distribution(MDP, POLICY)])
    centered = x - p @ x
    np.testing.assert_allclose(moments.covariance, centered.T @ (p[:, None] * centered), rtol=0, atol=1e-13)
    assert moments.trace == pytest.approx(np.diag(moments.covariance).sum(), abs=1e-15)
    assert moments.covariance[0, 1] != 0.0


def test_off_policy_the_sampler_decides_the_probabilities():
    behaviour = dict(distribution(MDP, TOY_C.behaviour))
    target = dict(distribution(MDP, POLICY))

    def estimator(group):
        ratio = target[group[0]] / behaviour[group[0]]
        return ratio * reward_of(group[0]) * sequence_score(POLICY, group[0])

    weighted = expectation(MDP, TOY_C.behaviour, 1, estimator).mean
    np.testing.assert_allclose(weighted, objective_gradient(MDP, POLICY), rtol=0, atol=1e-14)
    value = expectation(MDP, TOY_C.behaviour, 1, lambda group: np.array([reward_of(group[0])])).mean
    assert value[0] == pytest.approx(objective(MDP, TOY_C.behaviour), abs=1e-14)


def test_groups_have_probabilities_that_sum_to_one_and_keep_their_order():
    found = list(groups(MDP, POLICY, 2))
    assert len(found) == 49
    assert sum(probability for _, probability in found) == pytest.approx(1.0, abs=1e-14)
    single = dict(distribution(MDP, POLICY))
    for (first, second), probability in found:
        assert probability == pytest.approx(single[first] * single[second], abs=1e-15)
    assert len({group for group, _ in found}) == 49


def test_long_toy_leave_one_out_is_unbiased_with_step_rewards():
    mdp, policy = TOY_LONG.mdp, SHARED_POLICY

    def estimator(group):
        first, second = (mdp.total_return(tau.tokens) for tau in group)
        return (first - second) * (sequence_score(policy, group[0]) - sequence_score(policy, group[1])) / 2

    found = expectation(mdp, policy, 2, estimator).mean
    np.testing.assert_allclose(found, objective_gradient(mdp, policy), rtol=0, atol=1e-13)


def test_what_cannot_be_enumerated_is_refused():
    wide = SoftmaxTable([()], [np.zeros(200)])
    mdp = TokenMDP(200, end_token=None, max_length=1, reward=lambda tokens: 0.0)
    with pytest.raises(InvalidInput, match="8,000,000 outcomes"):
        next(groups(mdp, wide, 3))
    with pytest.raises(InvalidInput, match="groups of 0"):
        expectation(MDP, POLICY, 0, lambda group: np.zeros(1))


@pytest.mark.parametrize(
    "answer", [np.array([np.nan]), np.array(1.0), np.zeros((2, 2))], ids=["nan", "scalar", "matrix"]
)
def test_an_estimate_that_is_no_finite_vector_is_refused(answer):
    with pytest.raises(InvalidInput, match="finite vector"):
        expectation(MDP, POLICY, 1, lambda group: answer)
