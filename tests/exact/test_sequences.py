"""Probabilities, scores and visits of prefixes."""

import numpy as np
import pytest

from rung.exact import (
    FixedPolicy,
    TokenMDP,
    Trajectory,
    distribution,
    expected_over_prefixes,
    occupancy,
    sequence_logprob,
    sequence_score,
    token_scores,
)
from tests.exact.helpers import assert_is_derivative
from tests.toys import SHARED_POLICY, TOY_A, TOY_B, TOY_C, TOY_LONG

PROBLEMS = [
    pytest.param(TOY_A.mdp, TOY_A.policy, id="A"),
    pytest.param(TOY_B.mdp, TOY_B.policy, id="B"),
    pytest.param(TOY_C.mdp, TOY_C.policy, id="C"),
    pytest.param(TOY_LONG.mdp, TOY_LONG.policy, id="LONG"),
    pytest.param(TOY_LONG.mdp, SHARED_POLICY, id="LONG-shared"),
]


@pytest.mark.parametrize(("mdp", "policy"), PROBLEMS)
def test_probabilities_sum_to_one(mdp, policy):
    assert sum(probability for _, probability in distribution(mdp, policy)) == pytest.approx(1.0, abs=1e-14)


def test_a_probability_is_the_product_of_its_tokens():
    # π() = softmax(.5, −.3, 1), π(b) = softmax(1.2, 0, −.5): p(b) p(b|b)
    first = np.exp(-0.3) / (np.exp(0.5) + np.exp(-0.3) + np.exp(1.0))
    second = 1.0 / (np.exp(1.2) + 1.0 + np.exp(-0.5))
    found = {tau.tokens: probability for tau, probability in distribution(TOY_C.mdp, TOY_C.policy)}
    assert found[1, 1] == pytest.approx(first * second, abs=1e-15)
    assert found[2,] == pytest.approx(np.exp(1.0) / (np.exp(0.5) + np.exp(-0.3) + np.exp(1.0)), abs=1e-15)


@pytest.mark.parametrize(("mdp", "policy"), PROBLEMS)
def test_the_log_probability_is_the_log_of_the_probability(mdp, policy):
    for tau, probability in distribution(mdp, policy):
        assert sequence_logprob(policy, tau) == pytest.approx(np.log(probability), abs=1e-13)


@pytest.mark.parametrize(("mdp", "policy"), PROBLEMS)
def test_the_score_is_the_finite_difference_of_the_log_probability(mdp, policy):
    for tau in mdp.trajectories():
        assert_is_derivative(sequence_score(policy, tau), lambda p, tau=tau: sequence_logprob(p, tau), policy)


def test_the_score_of_each_token_stays_in_the_row_of_its_prefix():
    scores = token_scores(TOY_C.policy, Trajectory((1, 2), "stop"))
    assert scores.shape == (2, 9)
    assert np.flatnonzero(scores[0]).tolist() == [0, 1, 2]
    assert np.flatnonzero(scores[1]).tolist() == [6, 7, 8]


@pytest.mark.parametrize(("mdp", "policy"), PROBLEMS)
def test_the_expected_score_is_zero(mdp, policy):
    total = sum(probability * sequence_score(policy, tau) for tau, probability in distribution(mdp, policy))
    np.testing.assert_allclose(total, 0.0, rtol=0, atol=1e-14)


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
@pytest.mark.parametrize(("mdp", "policy"), PROBLEMS)
def test_the_occupancy_counts_the_visits_along_every_sequence(mdp, policy, gamma):
    counted = dict.fromkeys(mdp.prefixes(), 0.0)
    for tau, probability in distribution(mdp, policy):
        for t, (prefix, _) in enumerate(tau.steps):
            counted[prefix] += gamma**t * probability
    found = occupancy(mdp, policy, gamma=gamma)
    assert list(found) == mdp.prefixes()
    assert found == pytest.approx(counted, abs=1e-14)


@pytest.mark.parametrize(("mdp", "policy"), PROBLEMS)
def test_undiscounted_visits_add_up_to_the_expected_length(mdp, policy):
    expected_length = sum(probability * tau.length for tau, probability in distribution(mdp, policy))
    assert sum(occupancy(mdp, policy).values()) == pytest.approx(expected_length, abs=1e-14)


def test_a_sum_over_prefixes_weighs_each_by_its_visits():
    visits = occupancy(TOY_LONG.mdp, TOY_LONG.behaviour, gamma=0.9)
    values = {prefix: np.array([i + 1.0, i**2]) for i, prefix in enumerate(visits)}
    expected = sum(visits[prefix] * values[prefix] for prefix in visits)
    found = expected_over_prefixes(TOY_LONG.mdp, TOY_LONG.behaviour, values.__getitem__, gamma=0.9)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


def test_impossible_tokens_lead_nowhere():
    """Only token 1 can start; the rows after token 0 do not even exist."""
    mdp = TokenMDP(2, end_token=None, max_length=2, reward=lambda tokens: 0.0)
    certain, fair = np.array([-np.inf, 0.0]), np.log([0.5, 0.5])
    policy = FixedPolicy({(): certain, (1,): fair})
    assert [(tau.tokens, round(p, 12)) for tau, p in distribution(mdp, policy)] == [
        ((1, 0), 0.5),
        ((1, 1), 0.5),
    ]
    assert occupancy(mdp, policy) == {(): 1.0, (0,): 0.0, (1,): 1.0}
    assert sequence_logprob(policy, Trajectory((1, 0), "length")) == pytest.approx(-np.log(2.0), abs=1e-15)
