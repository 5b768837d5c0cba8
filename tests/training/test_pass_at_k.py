"""pass@k against every subset of the samples, and its expectation against the chance that it estimates."""

import itertools
import math
from fractions import Fraction

import pytest

from rung.errors import InvalidInput
from rung.training.pass_at_k import pass_at_k


@pytest.mark.parametrize("n", range(1, 8))
def test_it_is_the_share_of_subsets_with_a_pass(n: int) -> None:
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
        assert pass_at_k(n, c, k) == float(Fraction(sum(map(any, subsets)), len(subsets))), (n, c, k)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_its_expectation_is_the_chance_of_a_pass(p: float) -> None:
    """Σ_c P(c) pass@k(n, c) = 1 − (1 − p)^k; the plug-in 1 − (1 − c/n)^k falls short of it."""
    n = 6
    chance = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    for k in range(1, n + 1):
        truth = 1 - (1 - p) ** k
        assert sum(w * pass_at_k(n, c, k) for c, w in enumerate(chance)) == pytest.approx(truth, abs=1e-12)
        plug_in = sum(w * (1 - (1 - c / n) ** k) for c, w in enumerate(chance))
        assert k == 1 or plug_in < truth - 1e-6


def test_many_samples_do_not_overflow() -> None:
    """C(2000, 1000) has 600 digits. With one pass, a subset of half the samples has it with probability ½."""
    assert pass_at_k(2000, 1, 1000) == 0.5
    assert pass_at_k(2000, 1001, 1000) == 1.0


@pytest.mark.parametrize(("n", "c", "k"), [(4, 2, 5), (4, 2, 0), (4, 5, 1), (4, -1, 1), (0, 0, 1)])
def test_what_the_samples_cannot_tell_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(InvalidInput, match="samples"):
        pass_at_k(n, c, k)
