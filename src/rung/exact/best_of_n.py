"""The best of N samples: its distribution, how far it is from the base, and how often it wins."""

import math

import numpy as np
from numpy.typing import ArrayLike

from rung.errors import InvalidInput
from rung.exact.token_mdp import SUM_TOLERANCE, FloatArray


def best_of_n(probabilities: ArrayLike, rewards: ArrayLike, n: int) -> FloatArray:
    """How probable each outcome is as the best of N independent samples.

        p_N(y) = (F(r)^N − F⁻(r)^N) · p(y)/p(r),   F(r) = Σ_{r(z)≤r} p(z),   F⁻(r) = Σ_{r(z)<r} p(z)

    with r = r(y) and p(r) the probability of that reward; for distinct rewards the last factor is 1. Among samples
    with the best reward the first drawn is taken. One drawn at random from them has the same distribution: whichever
    of N exchangeable samples it is, it is distributed as the base is within that reward.

    Source: Beirami et al. 2024, arXiv:2401.01879 (distinct rewards).

    Args:
        probabilities: p [K] of each outcome.
        rewards: r [K], what the best is chosen by; equal rewards are ties.
        n: N, the number of samples.

    Returns:
        [K], sums to 1.

    Raises:
        InvalidInput: lengths differ, p is no distribution, or N is below 1.

    Exactness:
        Checked by tests/exact/test_best_of_n.py::test_it_is_what_all_draws_give.

    >>> best_of_n([0.5, 0.5], [0.0, 1.0], 2)
    array([0.25, 0.75])
    >>> best_of_n([0.5, 0.25, 0.25], [0.0, 1.0, 1.0], 2)  # the two that tie share ¾
    array([0.25 , 0.375, 0.375])
    """
    p, r = _checked(probabilities, rewards, n)
    found = np.zeros(len(p))
    for y in range(len(p)):
        level, below = float(p[r == r[y]].sum()), float(p[r < r[y]].sum())
        if level > 0.0:
            found[y] = ((below + level) ** n - below**n) * p[y] / level
    return found


def best_of_n_kl(probabilities: ArrayLike, rewards: ArrayLike, n: int) -> float:
    """The divergence of the best of N from one sample, KL(p_N‖p) = Σ_y p_N(y) log(p_N(y)/p(y)), nats.

    Never above `best_of_n_kl_bound`, and far below it when few outcomes tie or have much probability.

    Source: Beirami et al. 2024, arXiv:2401.01879.

    Exactness:
        Checked by tests/exact/test_best_of_n.py::test_recorded_divergences.

    >>> round(best_of_n_kl([0.5, 0.5], [0.0, 1.0], 2), 6)  # ¼ log ½ + ¾ log 3/2
    0.130812
    """
    p, best = np.asarray(probabilities, dtype=np.float64), best_of_n(probabilities, rewards, n)
    return float(sum(q * math.log(q / base) for q, base in zip(best, p, strict=True) if q > 0.0))


def best_of_n_kl_bound(n: int) -> float:
    """The widely quoted log N − (N − 1)/N, nats: an upper bound, reached only where no two samples tie.

    Source: Stiennon et al. 2020, arXiv:2009.01325, appendix G.3, who give it as the divergence; Beirami et al. 2024,
    arXiv:2401.01879, who show that it bounds it.

    >>> round(best_of_n_kl_bound(4), 10)
    0.6362943611
    """
    if n < 1:
        raise InvalidInput(f"the best of {n} samples does not exist; N is at least 1")
    return math.log(n) - (n - 1) / n


def best_of_n_win_rate(probabilities: ArrayLike, rewards: ArrayLike, n: int) -> float:
    """How often the best of N beats one more sample; a tie counts one half.

        Σ_y p_N(y) (F⁻(r(y)) + ½ p(r(y)))

    Never above N/(N + 1), which it is where no two samples tie.

    Source: Beirami et al. 2024, arXiv:2401.01879.

    Exactness:
        Checked by tests/exact/test_best_of_n.py::test_win_rates_stay_below_their_bound.

    >>> best_of_n_win_rate([0.5, 0.5], [0.0, 1.0], 2)  # ¼·¼ + ¾·¾
    0.625
    """
    p, r = _checked(probabilities, rewards, n)
    best = best_of_n(p, r, n)
    return float(sum(best[y] * (p[r < r[y]].sum() + p[r == r[y]].sum() / 2) for y in range(len(p))))


def _checked(probabilities: ArrayLike, rewards: ArrayLike, n: int) -> tuple[FloatArray, FloatArray]:
    p, r = np.asarray(probabilities, dtype=np.float64), np.asarray(rewards, dtype=np.float64)
    if p.ndim != 1 or p.shape != r.shape:
        raise InvalidInput(f"probabilities and rewards are [K] both, not {list(p.shape)} and {list(r.shape)}")
    if not abs(float(p.sum()) - 1.0) < SUM_TOLERANCE or not (p >= 0.0).all() or not np.isfinite(r).all():
        raise InvalidInput(
            "the probabilities must sum to 1, without negative ones, and the rewards be finite"
        )
    if n < 1:
        raise InvalidInput(f"the best of {n} samples does not exist; N is at least 1")
    return p, r
