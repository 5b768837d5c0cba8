"""The parts of a loss, as TRL 1.16.0 computes them, in numpy: what each makes of sequences of toy C.

    advantage   rewards [P, G] → A [P, G]
    slope       d(−loss)/d log π of one token, with its ratio ρ_t = π/π_old and its sequence's A
    weight      what one token of a sequence counts
    kl          the same slope of the KL term
    factor      what else multiplies the policy term: the sampler's weights, masks

Read from TRL's source and documentation; nothing here comes from running it, or from rung's own estimators.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rung import exact
from tests.toys import TOY_C

Array = NDArray[np.float64]
MDP, POLICY, REFERENCE, BEHAVIOUR = TOY_C.mdp, TOY_C.policy, TOY_C.reference, TOY_C.behaviour

# --- sequences ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """One sequence with everything that a loss may look at; log-probs, scores and entropies are per token."""

    tokens: tuple[int, ...]
    reward: float
    ended: bool
    policy: Array
    old: Array
    behaviour: Array
    reference: Array
    scores: Array
    entropies: Array

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def ratio(self) -> Array:
        """ρ_t = π/π_old."""
        return np.exp(self.policy - self.old)


Batch = list[list[Sample]]
Situation = Literal["on-policy", "stale", "mismatch"]


@cache
def samples(situation: Situation) -> list[tuple[Sample, float]]:
    """Every sequence of toy C with its probability under the sampler. TRL's old is μ only for earlier weights."""
    sampler = POLICY if situation == "on-policy" else BEHAVIOUR
    found = []
    for tau, probability in exact.distribution(MDP, sampler):

        def logprobs(policy: exact.Policy, tau: exact.Trajectory = tau) -> Array:
            return np.array([policy(prefix)[0][token] for prefix, token in tau.steps])

        rows = [POLICY(prefix)[0] for prefix, _ in tau.steps]
        sample = Sample(
            tokens=tau.tokens,
            reward=MDP.total_return(tau.tokens),
            ended=tau.end == "stop",
            policy=logprobs(POLICY),
            old=logprobs(BEHAVIOUR if situation == "stale" else POLICY),
            behaviour=logprobs(sampler),
            reference=logprobs(REFERENCE),
            scores=exact.token_scores(POLICY, tau),
            entropies=np.array([-np.exp(row) @ row for row in rows]),
        )
        found.append((sample, probability))
    return found


# --- advantages: [P, G] → [P, G] ------------------------------------------------------------------------------------

EPSILON = 1e-4  # TRL's, in every denominator


def leave_one_out(rewards: Array) -> Array:
    size = rewards.shape[1]
    return rewards - (rewards.sum(1, keepdims=True) - rewards) / (size - 1)


def centered(rewards: Array) -> Array:
    return rewards - rewards.mean(1, keepdims=True)


def by_group(rewards: Array) -> Array:
    return centered(rewards) / (_deviation(rewards, axis=1) + EPSILON)


def by_batch(rewards: Array) -> Array:
    return centered(rewards) / (_deviation(rewards, axis=None) + EPSILON)


def whitened_leave_one_out(rewards: Array) -> Array:
    advantages = leave_one_out(rewards)
    return (advantages - advantages.mean()) / (_deviation(advantages, axis=None) + EPSILON)


def by_group_then_batch(rewards: Array) -> Array:
    scaled = by_group(rewards)
    return (scaled - scaled.mean()) / (_deviation(scaled, axis=None) + EPSILON)


def _deviation(values: Array, axis: int | None) -> Array:
    """With Bessel's correction. Equal rewards deviate by nothing, whatever rounding says."""
    spread = values.std(axis=axis, ddof=1, keepdims=True)
    return np.where(spread < 1e-12, 0.0, spread)


# --- slopes: (sample, A) → [L], or a number for all its tokens -------------------------------------------------------

Slope = Callable[[Sample, float], Array | float]


def _kept(ratio: Array | float, advantage: float, low: float, high: float, delta: float) -> Array:
    """1 where min(ρA, clip(ρ)A) still depends on ρ."""
    above = (advantage > 0) & (np.asarray(ratio) > 1 + high)
    below = (advantage < 0) & ((np.asarray(ratio) < 1 - low) | (np.asarray(ratio) > delta))
    return np.where(above | below, 0.0, 1.0)


def clipped(low: float = 0.2, high: float = 0.2, delta: float = np.inf) -> Slope:
    """ρ_t A inside the clip range, 0 outside: each token by its own ratio."""
    return lambda x, a: x.ratio * a * _kept(x.ratio, a, low, high, delta)


def clipped_sequence(low: float = 0.2, high: float = 0.2) -> Slope:
    """RLOO: the ratio of the whole sequence, Π ρ_t."""

    def slope(x: Sample, a: float) -> Array:
        ratio = float(np.prod(x.ratio))
        return ratio * a * _kept(ratio, a, low, high, np.inf)

    return slope


def clipped_geometric(low: float = 0.2, high: float = 0.2) -> Slope:
    """GSPO: s = exp(mean log ρ). One value a sequence, counted once a token: L·w·∂s/∂log π_t = w·s."""

    def slope(x: Sample, a: float) -> Array:
        ratio = _geometric(x)
        return ratio * a * _kept(ratio, a, low, high, np.inf)

    return slope


def cispo(cap: float) -> Slope:
    """The ratio is a detached weight, at most `cap`."""
    return lambda x, a: np.minimum(x.ratio, cap) * a


def sapo(x: Sample, a: float) -> Array:
    """d/d log π of (4/τ) σ(τ(ρ − 1)) A, τ = 1 for A > 0 and 1.05 otherwise; A at ρ = 1 whatever τ is."""
    temperature = 1.0 if a > 0 else 1.05
    gate = 1 / (1 + np.exp(-temperature * (x.ratio - 1)))
    return 4 * gate * (1 - gate) * x.ratio * a


def vespo(x: Sample, a: float) -> float:
    """φ(w) A with φ(w) = w^k e^(λ(1 − w)), detached; w = Π ρ_t, and (k, λ) = (2, 3) for A ≥ 0, (3, 2) below."""
    return _gamma(float(np.prod(x.ratio)), a)


def vespo_engine(x: Sample, a: float) -> float:
    """As `vespo`, w times the sampler's token weights, each at most 3."""
    return _gamma(float(np.prod(x.ratio * np.minimum(np.exp(x.policy - x.behaviour), 3.0))), a)


def _gamma(weight: float, a: float) -> float:
    k, lam = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
    return float(weight**k * np.exp(lam * (1 - weight)) * a)


def _geometric(x: Sample) -> float:
    return float(np.exp((x.policy - x.old).mean()))


# --- KL slopes ------------------------------------------------------------------------------------------------------


def k3_alone(x: Sample) -> Array:
    """d k3/d log π = 1 − π_ref/π."""
    return 1 - np.exp(x.reference - x.policy)


def k3_times_ratio(x: Sample) -> Array:
    """d(ρ k3)/d log π = ρ (k3 + 1 − π_ref/π) = ρ log(π/π_ref)."""
    return x.ratio * (x.policy - x.reference)


def k3_times_geometric(x: Sample) -> Array:
    """The same with s = exp(mean log ρ): s (1 − π_ref/π + the sequence's mean k3)."""
    log_ratio = x.reference - x.policy
    k3 = np.exp(log_ratio) - log_ratio - 1
    return _geometric(x) * (k3_alone(x) + k3.mean())


# --- weights of a token: (sample, batch) → number --------------------------------------------------------------------

Weight = Callable[[Sample, Batch], float]


def sequence_sum(x: Sample, batch: Batch) -> float:
    return 1 / _rows(batch)


def sequence_mean(x: Sample, batch: Batch) -> float:
    return 1 / (_rows(batch) * x.length)


def token_mean(x: Sample, batch: Batch) -> float:
    return 1 / sum(y.length for group in batch for y in group)


def constant(x: Sample, batch: Batch) -> float:
    return 1 / (_rows(batch) * MDP.max_length)


def ended_token_mean(x: Sample, batch: Batch) -> float:
    return 1 / max(1, sum(y.length for group in batch for y in group if y.ended))


def _rows(batch: Batch) -> int:
    return sum(len(group) for group in batch)


# --- factors: (sample, A, batch) → [L] or a number -------------------------------------------------------------------

Factor = Callable[[Sample, float, Batch], Array | float]
Closed = Callable[[int], Array]


def one(x: Sample, a: float, batch: Batch) -> float:
    return 1.0


def only_ended(x: Sample, a: float, batch: Batch) -> float:
    return float(x.ended)


def high_entropy_half(x: Sample, a: float, batch: Batch) -> Array:
    entropies = np.concatenate([y.entropies for group in batch for y in group])
    return (x.entropies >= np.quantile(entropies, 0.5) - 1e-9).astype(np.float64)


def near_or_positive(threshold: float) -> Factor:
    """0 for a sequence with A < 0 whose mean log(π_old/π) is above the threshold."""
    return lambda x, a, batch: float(a >= 0 or (x.old - x.policy).mean() <= threshold)


def engine_sequence(high: float, *, mask: bool = False) -> Factor:
    def factor(x: Sample, a: float, batch: Batch) -> float:
        weight = float(np.exp((x.policy - x.behaviour).sum()))
        return weight * float(weight <= high) if mask else min(weight, high)

    return factor


def engine_token(high: float, *, low: float = 0.0, mask: bool = False) -> Factor:
    def factor(x: Sample, a: float, batch: Batch) -> Array:
        weight = np.exp(x.policy - x.behaviour)
        return weight * ((weight >= low) & (weight <= high)) if mask else np.minimum(weight, high)

    return factor
