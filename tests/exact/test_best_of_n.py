"""The best of N samples: against all N-tuples, recorded divergences, and the bounds that are quoted for them."""

import itertools
import math

import numpy as np
import pytest

from rung.errors import InvalidInput
from rung.exact import (
    best_of_n,
    best_of_n_kl,
    best_of_n_kl_bound,
    best_of_n_win_rate,
    distribution,
)
from tests.toys import TOY_A, TOY_C, TOY_LONG, assert_digits

BOUNDS = {
    2: 0.1931471806,
    4: 0.6362943611,
    8: 1.2044415417,
    16: 1.8350887222,
    64: 3.1745080834,
    100: 3.6151701860,
    1000: 5.9087552790,
}
# Toy A's reference with token 1 worst, token 2 better, token 0 best.
A_DIVERGENCES = {2: 0.152566386503, 4: 0.555296745592, 8: 0.923267625380}
COIN_DIVERGENCES = {2: 0.130812035941, 4: 0.459355521853, 8: 0.667587720516, 16: 0.692962696501}

PROBLEMS = [
    pytest.param([0.2, 0.5, 0.3], [1.0, -1.0, 0.5], id="distinct"),
    pytest.param([0.2, 0.3, 0.1, 0.4], [1.0, 0.0, 1.0, 0.0], id="two values"),
    pytest.param([0.25, 0.15, 0.3, 0.2, 0.1], [0.4, 0.4, -1.0, 2.0, 0.4], id="three tie"),
    pytest.param([0.5, 0.5], [3.0, 3.0], id="all tie"),
    pytest.param([0.5, 0.0, 0.5], [0.0, 1.0, 1.0], id="impossible"),
]
SIZES = pytest.mark.parametrize("n", [1, 2, 3, 5])


def outcomes_of(toy):
    found = distribution(toy.mdp, toy.policy)
    return [p for _, p in found], [toy.mdp.total_return(tau.tokens) for tau, _ in found]


@SIZES
@pytest.mark.parametrize(("probabilities", "rewards"), PROBLEMS)
def test_it_is_what_all_draws_give(probabilities, rewards, n):
    """Every N-tuple: the first of the best, and one of the best at random, have the same distribution."""
    first, at_random = np.zeros(len(rewards)), np.zeros(len(rewards))
    for draw in itertools.product(range(len(rewards)), repeat=n):
        chance = math.prod(probabilities[y] for y in draw)
        best = max(rewards[y] for y in draw)
        tied = [y for y in draw if rewards[y] == best]
        first[tied[0]] += chance
        for y in tied:
            at_random[y] += chance / len(tied)
    found = best_of_n(probabilities, rewards, n)
    np.testing.assert_allclose(found, first, rtol=0, atol=1e-13)
    np.testing.assert_allclose(found, at_random, rtol=0, atol=1e-13)


def test_one_sample_is_the_base():
    probabilities, rewards = outcomes_of(TOY_LONG)
    np.testing.assert_allclose(best_of_n(probabilities, rewards, 1), probabilities, rtol=0, atol=1e-15)
    assert best_of_n_kl(probabilities, rewards, 1) == pytest.approx(0.0, abs=1e-14)
    assert best_of_n_win_rate(probabilities, rewards, 1) == pytest.approx(0.5, abs=1e-14)


@pytest.mark.parametrize(("n", "recorded"), BOUNDS.items())
def test_recorded_bounds(n, recorded):
    assert_digits(best_of_n_kl_bound(n), recorded, 10)


def test_recorded_divergences():
    reference = np.exp(TOY_A.reference(())[0])
    for n, recorded in A_DIVERGENCES.items():
        assert_digits(best_of_n_kl(reference, [3.0, 1.0, 2.0], n), recorded, 12)
    for n, recorded in COIN_DIVERGENCES.items():
        assert_digits(best_of_n_kl([0.5, 0.5], [0.0, 1.0], n), recorded, 12)


@pytest.mark.parametrize("n", [2, 4, 16, 100])
@pytest.mark.parametrize("toy", [TOY_C, TOY_LONG], ids=["C", "LONG"])
def test_divergences_stay_below_their_bound(toy, n):
    """Toy C's rewards tie twice, LONG's with another; the divergence stops growing at −log p of the best reward."""
    probabilities, rewards = outcomes_of(toy)
    found = best_of_n_kl(probabilities, rewards, n)
    assert 0.0 < found < best_of_n_kl_bound(n)
    top = sum(p for p, r in zip(probabilities, rewards, strict=True) if r == max(rewards))
    assert found < -math.log(top)


def test_without_ties_the_bound_is_the_limit():
    """A thousand outcomes, alike in probability and different in reward: 4 samples hardly ever tie."""
    found = best_of_n_kl(np.full(1000, 1e-3), np.arange(1000.0), 4)
    assert 0.0 < best_of_n_kl_bound(4) - found < 5e-3
    assert best_of_n_win_rate(np.full(1000, 1e-3), np.arange(1000.0), 4) == pytest.approx(0.8, abs=2e-3)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 50])
@pytest.mark.parametrize(("probabilities", "rewards"), PROBLEMS)
def test_win_rates_stay_below_their_bound(probabilities, rewards, n):
    found = best_of_n_win_rate(probabilities, rewards, n)
    assert 0.5 - 1e-15 <= found <= n / (n + 1) + 1e-15
    best, p, r = best_of_n(probabilities, rewards, n), np.array(probabilities), np.array(rewards)
    pairs = sum(
        best[i] * p[j] * (1.0 if r[i] > r[j] else 0.5 if r[i] == r[j] else 0.0)
        for i, j in itertools.product(range(len(p)), repeat=2)
    )
    assert found == pytest.approx(pairs, abs=1e-14)


@pytest.mark.parametrize(
    ("probabilities", "rewards", "n", "message"),
    [
        ([0.5, 0.5], [1.0], 2, "both"),
        ([0.5, 0.4], [1.0, 2.0], 2, "sum to 1"),
        ([1.5, -0.5], [1.0, 2.0], 2, "negative"),
        ([0.5, 0.5], [1.0, np.nan], 2, "finite"),
        ([0.5, 0.5], [1.0, 2.0], 0, "best of 0"),
    ],
)
def test_what_is_no_draw_is_refused(probabilities, rewards, n, message):
    with pytest.raises(InvalidInput, match=message):
        best_of_n(probabilities, rewards, n)
    if n < 1:
        with pytest.raises(InvalidInput, match=message):
            best_of_n_kl_bound(n)
