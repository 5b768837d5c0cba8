"""The parts of published definitions, in numpy, for claims to put together: credits within a group, clips, k's slopes.

Each is written from its paper, a loop or a line, for one group or one sequence.
"""

import numpy as np

from rung.exact.token_mdp import FloatArray
from rung.verify.claims.scene import Group, Numbers

# A spread below this is three times the same decimal fraction, which a float does not add up to exactly.
FLAT = 1e-9


def totals(group: Group) -> FloatArray:
    """[G] R̂, with what is subtracted in the reward."""
    return np.array([numbers.total for numbers in group])


def rewards(group: Group) -> FloatArray:
    """[G] R, as judged."""
    return np.array([numbers.reward for numbers in group])


def less_others(returns: FloatArray) -> FloatArray:
    """RLOO: each return minus the mean of the others."""
    found = [own - np.delete(returns, i).mean() for i, own in enumerate(returns)]
    return np.array(found)


def less_mean(returns: FloatArray) -> FloatArray:
    """Dr. GRPO: minus the mean, its own included."""
    found: FloatArray = returns - returns.mean()
    return found


def standardized(returns: FloatArray) -> FloatArray:
    """GRPO: minus the mean, over the sample standard deviation; nothing where all are equal."""
    if np.ptp(returns) < FLAT:
        return np.zeros(len(returns))
    found: FloatArray = (returns - returns.mean()) / returns.std(ddof=1)
    return found


def whitened(parts: list[FloatArray]) -> list[FloatArray]:
    """Minus the mean, over the population standard deviation, of all tokens' numbers together."""
    together = np.concatenate(parts)
    if np.ptp(together) < FLAT:
        return [np.zeros(len(part)) for part in parts]
    return [(part - together.mean()) / together.std() for part in parts]


def clipped(
    credit: FloatArray | float,
    log_ratio: FloatArray,
    *,
    low: float = 0.2,
    high: float = 0.2,
    dual: float = np.inf,
) -> FloatArray:
    """What multiplies the score in PPO's clipped surrogate, as an ascent: ρΨ, and 0 in the regions that are flat.

    Flat: Ψ > 0 with ρ > 1 + high, Ψ < 0 with ρ < 1 − low, and Ψ < 0 with ρ > dual.
    """
    ratio = np.exp(log_ratio)
    psi = credit * np.ones_like(ratio)
    flat = ((psi > 0) & (ratio > 1 + high)) | ((psi < 0) & ((ratio < 1 - low) | (ratio > dual)))
    return np.where(flat, 0.0, ratio * psi)


def k2_slope(numbers: Numbers) -> FloatArray:
    """d k2/d log π = log π − log π_ref."""
    return numbers.log_reference


def k3_slope(numbers: Numbers) -> FloatArray:
    """d k3/d log π = 1 − π_ref/π."""
    return 1 - np.exp(-numbers.log_reference)


def gae(numbers: Numbers, lam: float) -> FloatArray:
    """Σ_l λ^l δ_{t+l} with δ_t = r̂_t + V(s_{t+1}) − V(s_t), V of an ended sequence 0."""
    later = np.append(numbers.values[1:], 0.0)
    residuals = numbers.penalized + later - numbers.values
    return np.array(
        [sum(lam**u * d for u, d in enumerate(residuals[t:])) for t in range(numbers.length)],
        dtype=np.float64,
    )


def vtrace(numbers: Numbers, *, rho_cap: float, c_cap: float) -> FloatArray:
    """IMPALA: Ψ_t = ρ_t (r̂_t + v_{t+1} − V_t), v_t = V_t + Σ_{k≥t} (Π_{t≤i<k} c_i) ρ_k δ_k, ratios capped."""
    ratio = np.exp(numbers.log_correction)
    rho, c = np.minimum(ratio, rho_cap), np.minimum(ratio, c_cap)
    length = numbers.length
    values = np.append(numbers.values, 0.0)
    targets = np.zeros(length + 1)
    for t in range(length):
        targets[t] = values[t] + sum(
            np.prod(c[t:k]) * rho[k] * (numbers.penalized[k] + values[k + 1] - values[k])
            for k in range(t, length)
        )
    found: FloatArray = rho * (numbers.penalized + targets[1:] - values[:-1])
    return found
