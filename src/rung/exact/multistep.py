"""Credit over several steps from its definition: weighted sums of k-step returns, term by term, no recursion.

One segment of L steps at a time: rewards r_0 … r_{L−1}, the values V(s_0) … V(s_{L−1}) of any table, right or wrong,
and `bootstrap` = V(s_L), the value of what comes after it: 0 where the process *terminated*, the critic's value where
an artificial limit *truncated* it.

`gamma` is one number, or one for each step: the discount between s_t and s_{t+1}, 0 where an episode ended within the
segment.
"""

import numpy as np
from numpy.typing import ArrayLike

from rung.errors import InvalidInput
from rung.exact.token_mdp import FloatArray


def k_step_returns(
    rewards: ArrayLike, values: ArrayLike, *, gamma: ArrayLike = 1.0, bootstrap: float = 0.0
) -> list[FloatArray]:
    """The returns that trust the values after k steps, for every k that the segment allows.

        G_t^(k) = r_t + γ r_{t+1} + … + γ^(k−1) r_{t+k−1} + γ^k V(s_{t+k}),   k = 1 … L − t

    Source: Sutton and Barto, 2nd edition, equation 7.1.

    Args:
        rewards: r [L], reward units.
        values: V [L] of the states in which they were earned.
        gamma: discount γ, one number or [L].
        bootstrap: V(s_L), 0 after termination.

    Returns:
        For each t its L − t returns, shortest first. Beyond these nothing changes: the segment is over.

    Raises:
        InvalidInput: the lengths differ.

    >>> [g.tolist() for g in k_step_returns([1.0, 2.0], [0.0, 10.0], gamma=0.5, bootstrap=4.0)]
    [[6.0, 3.0], [4.0]]
    """
    r, v, discounts = _segment(rewards, values, gamma, bootstrap)
    found = []
    for t in range(len(r)):
        returns = []
        for k in range(1, len(r) - t + 1):
            total = sum(np.prod(discounts[t:u]) * r[u] for u in range(t, t + k))
            returns.append(total + np.prod(discounts[t : t + k]) * v[t + k])
        found.append(np.array(returns, dtype=np.float64))
    return found


def lambda_returns(
    rewards: ArrayLike,
    values: ArrayLike,
    *,
    gamma: ArrayLike = 1.0,
    lam: float = 1.0,
    bootstrap: float = 0.0,
) -> FloatArray:
    """The λ-return of every step of a segment.

        G_t^λ = (1 − λ) Σ_{k=1}^{K−1} λ^(k−1) G_t^(k) + λ^(K−1) G_t^(K),   K = L − t

    The last return takes the weight of all longer ones, which would be equal to it.

    Source: Sutton and Barto, 2nd edition, equation 12.3.

    Returns:
        [L], reward units: what a critic is fitted to.

    Exactness:
        Checked by tests/exact/test_multistep.py::test_lambda_returns_of_rlax.

    >>> lambda_returns([1.0, 2.0], [0.0, 10.0], gamma=0.5, lam=0.5, bootstrap=4.0)  # ½·6 + ½·3
    array([4.5, 4. ])
    """
    returns = k_step_returns(rewards, values, gamma=gamma, bootstrap=bootstrap)
    return np.array([_weighted(g, lam) for g in returns], dtype=np.float64)


def generalized_advantages(
    rewards: ArrayLike,
    values: ArrayLike,
    *,
    gamma: ArrayLike = 1.0,
    lam: float = 1.0,
    bootstrap: float = 0.0,
) -> FloatArray:
    """GAE(γ, λ) of every step of a segment, from k-step advantages and not from TD residuals.

        A_t^(k) = −V(s_t) + r_t + γ r_{t+1} + … + γ^(k−1) r_{t+k−1} + γ^k V(s_{t+k})
        A_t     = (1 − λ) Σ_{k=1}^{K−1} λ^(k−1) A_t^(k) + λ^(K−1) A_t^(K),   K = L − t

    Source: Schulman et al. 2015, arXiv:1506.02438, equations 11 to 16; for a finite segment the last advantage takes
    the weight of all longer ones, which would be equal to it.

    Returns:
        [L], reward units.

    Exactness:
        Equal to Σ_l (γλ)^l δ_{t+l}. Checked by tests/exact/test_multistep.py::test_gae_is_the_sum_of_td_residuals.

    >>> generalized_advantages([0.0, 0.0, 1.0], [0.2, 0.4, 0.6], gamma=0.9, lam=0.8)
    array([0.46816, 0.428  , 0.4    ])
    """
    returns = k_step_returns(rewards, values, gamma=gamma, bootstrap=bootstrap)
    start = np.asarray(values, dtype=np.float64)
    return np.array([_weighted(g - start[t], lam) for t, g in enumerate(returns)], dtype=np.float64)


def vtrace_targets(
    rewards: ArrayLike,
    values: ArrayLike,
    ratios: ArrayLike,
    *,
    gamma: ArrayLike = 1.0,
    lam: float = 1.0,
    rho_cap: float = 1.0,
    c_cap: float = 1.0,
    bootstrap: float = 0.0,
) -> FloatArray:
    """V-trace's value targets, each as its whole sum.

        v_t = V(s_t) + Σ_{u≥t} (Π_{i=t}^{u−1} γ c_i) ρ_u (r_u + γ V(s_{u+1}) − V(s_u))
        ρ_u = min(ρ̄, w_u),   c_i = λ min(c̄, w_i),   w = π/μ

    Source: Espeholt et al. 2018, arXiv:1802.01561, equation 1 and remark 2 (λ).

    Args:
        rewards: r [L], reward units.
        values: V [L].
        ratios: w [L], π(a_t|s_t)/μ(a_t|s_t).
        gamma: discount γ, one number or [L].
        lam: λ.
        rho_cap: ρ̄, which decides the fixed point: the values of `vtrace_target_policy`.
        c_cap: c̄, which decides how far a surprise travels.
        bootstrap: V(s_L), 0 after termination.

    Returns:
        [L], reward units.

    Exactness:
        Checked by tests/exact/test_multistep.py::test_vtrace_of_rlax and, for the fixed point,
        tests/exact/test_vtrace.py::test_the_fixed_point_is_the_value_of_the_target_policy.

    >>> vtrace_targets([1.0, 2.0], [0.0, 0.0], [0.5, 3.0])  # 0.5·1 + 0.5·(1·2), and 1·2
    array([1.5, 2. ])
    """
    r, v, discounts = _segment(rewards, values, gamma, bootstrap)
    w = np.asarray(ratios, dtype=np.float64)
    rho, c = np.minimum(rho_cap, w), lam * np.minimum(c_cap, w)
    found = []
    for t in range(len(r)):
        surprises = [
            np.prod(discounts[t:u] * c[t:u]) * rho[u] * (r[u] + discounts[u] * v[u + 1] - v[u])
            for u in range(t, len(r))
        ]
        found.append(v[t] + sum(surprises))
    return np.array(found, dtype=np.float64)


def _weighted(returns: FloatArray, lam: float) -> float:
    """(1 − λ) Σ_{k<K} λ^(k−1) x_k + λ^(K−1) x_K."""
    last = len(returns) - 1
    return float((1 - lam) * sum(lam**k * returns[k] for k in range(last)) + lam**last * returns[last])


def _segment(
    rewards: ArrayLike, values: ArrayLike, gamma: ArrayLike, bootstrap: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """r [L], V [L + 1] with the bootstrap at its end, γ [L]."""
    r, v = np.asarray(rewards, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if r.ndim != 1 or r.shape != v.shape or np.shape(gamma) not in {(), r.shape}:
        raise InvalidInput(
            f"a segment has rewards [L], values [L] and gamma, one number or [L], "
            f"not {list(r.shape)}, {list(v.shape)} and {list(np.shape(gamma))}"
        )
    return r, np.append(v, float(bootstrap)), np.broadcast_to(np.asarray(gamma, dtype=np.float64), r.shape)
