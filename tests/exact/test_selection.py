"""Recorded facts about groups that are selected or standardised, enumerated: binary rewards, success p."""

import math

import numpy as np
import pytest

from rung.exact import (
    FixedPolicy,
    TokenMDP,
    expectation,
    groups,
    objective,
    objective_gradient,
    sequence_score,
)
from tests.toys import TOY_C, assert_digits

COIN = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: float(tokens[0]))


def standardized(size, p):
    """E[Σ (R − mean)/std · score]/G with the population deviation, over ∇p = p(1 − p) of a sigmoid's logit."""

    def estimator(group):
        wins = np.array([tau.tokens[0] for tau in group])
        share = wins.mean()
        if share in (0.0, 1.0):
            return np.zeros(1)
        credit = (wins - share) / math.sqrt(share * (1 - share))
        return np.array([(credit * (wins - p)).mean()])

    policy = FixedPolicy({(): np.log([1 - p, p])})
    return expectation(COIN, policy, size, estimator).mean[0] / (p * (1 - p))


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5])
def test_pairs_are_the_exception_and_threes_rescale_by_the_root_of_two(p):
    assert standardized(2, p) == pytest.approx(1.0, abs=1e-13)
    assert standardized(3, p) == pytest.approx(math.sqrt(2.0), abs=1e-13)


def test_dropping_groups_without_contrast_reweights_by_how_often_that_happens():
    """G = 8, p = .1: recorded factor 2.3277, P(mixed) .5695, and their quotient, what is left to train on."""
    policy = FixedPolicy({(): np.log([0.9, 0.1])})
    mixed = sum(p for group, p in groups(COIN, policy, 8) if 0 < sum(tau.tokens[0] for tau in group) < 8)
    assert_digits(mixed, 0.56953278, 8)
    assert mixed == pytest.approx(1 - 0.1**8 - 0.9**8, abs=1e-13)
    assert_digits(standardized(8, 0.1) / mixed, 4.0870150654, 10)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_fitting_to_accepted_samples_is_the_gradient_of_the_log_of_success(size):
    """The mean score of accepted samples, given that there is one, and the sum over N: REINFORCE with R in {0, 1}."""
    mdp = TokenMDP(3, end_token=2, max_length=2, reward=lambda tokens: float(TOY_C.mdp.reward(tokens) > 0.3))
    policy = TOY_C.policy
    some, mean, total = 0.0, np.zeros(9), np.zeros(9)
    for group, probability in groups(mdp, policy, size):
        accepted = [sequence_score(policy, tau) for tau in group if mdp.total_return(tau.tokens) == 1.0]
        if accepted:
            some += probability
            mean += probability * np.mean(accepted, axis=0)
            total += probability * np.sum(accepted, axis=0) / size
    success, slope = objective(mdp, policy), objective_gradient(mdp, policy)
    np.testing.assert_allclose(mean / some, slope / success, rtol=0, atol=1e-13)
    np.testing.assert_allclose(total, slope, rtol=0, atol=1e-14)
