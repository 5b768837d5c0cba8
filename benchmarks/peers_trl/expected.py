"""What TRL's losses ought to estimate, derived before anything was measured, and summed over every batch.

A `Row` is one configuration of `RLOOTrainer` or `GRPOTrainer` with the parts of its gradient:

    −∇loss = Σ_i w_i Σ_t (slope_t · factor_t − β kl_t) ∇ log π(a_t|s_t)

`derive` takes its exact mean and covariance in float64. Where the mean has a closed form, that stands in `closed`, and
must equal the sum. The rows themselves are in on_policy.py and off_policy.py.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.peers_trl.parts import (
    BEHAVIOUR,
    MDP,
    POLICY,
    REFERENCE,
    Array,
    Batch,
    Factor,
    Sample,
    Situation,
    Slope,
    Weight,
    centered,
    clipped,
    clipped_sequence,
    constant,
    leave_one_out,
    one,
    samples,
    sequence_sum,
)
from rung import exact

BETA = 0.1  # of every row with a KL term
J = exact.objective_gradient(MDP, POLICY)
REGULARIZED = exact.regularized_objective(MDP, POLICY, REFERENCE, BETA).gradient
Closed = Callable[[int], Array]


@dataclass(frozen=True)
class Row:
    """One configuration: how TRL is called, and what its gradient ought to be."""

    trainer: str
    config: Mapping[str, Any]
    estimates: str
    advantage: Callable[[Array], Array]
    slope: Slope
    weight: Weight
    situation: Situation = "on-policy"
    factor: Factor = one
    kl: Callable[[Sample], Array] | None = None
    closed: Closed | None = None
    prompts: int = 1
    sizes: tuple[int, ...] = (2, 3)

    @property
    def name(self) -> str:
        """The configuration in words, unique within its situation."""
        settings = ", ".join(f"{key}={value}" for key, value in self.config.items())
        several = f"; {self.prompts} prompts a batch" if self.prompts > 1 else ""
        return f"{self.trainer.removesuffix('Trainer')} {settings}{several}"

    @property
    def beta(self) -> float:
        return float(self.config.get("beta", 0.0))

    @property
    def target(self) -> Array:
        """What the bias is measured against: ∇J, or ∇(J − β KL) where β > 0."""
        return REGULARIZED if self.beta else J

    def rewards(self, batch: Batch) -> Array:
        """[P, G]; RLOO takes the KL of a sequence out of its reward, at the old log-probs."""
        in_reward = self.beta if self.trainer == "RLOOTrainer" else 0.0
        return np.array(
            [[x.reward - in_reward * (x.old - x.reference).sum() for x in group] for group in batch]
        )

    def ascent(self, batch: Batch) -> Array:
        """−∇loss of one batch."""
        total = np.zeros(len(J))
        for group, advantages in zip(batch, self.advantage(self.rewards(batch)), strict=True):
            for x, a in zip(group, advantages, strict=True):
                per_token = np.zeros(x.length) + self.slope(x, a) * self.factor(x, a, batch)
                if self.kl is not None:
                    per_token = per_token - self.beta * self.kl(x)
                total += self.weight(x, batch) * (per_token @ x.scores)
        return total


def batches(row: Row, size: int) -> list[tuple[Batch, float]]:
    """Every batch that could be sampled, with its probability."""
    found = []
    for draw in itertools.product(samples(row.situation), repeat=size * row.prompts):
        rows = [x for x, _ in draw]
        groups = [rows[start : start + size] for start in range(0, len(rows), size)]
        found.append((groups, float(np.prod([p for _, p in draw]))))
    return found


def derive(row: Row, size: int) -> exact.Moments:
    """Exact mean and covariance of −∇loss."""
    return moments([(p, row.ascent(batch)) for batch, p in batches(row, size)])


def moments(outcomes: list[tuple[float, Array]]) -> exact.Moments:
    """Mean and covariance of vectors with their probabilities."""
    chances = np.array([p for p, _ in outcomes])
    vectors = np.array([v for _, v in outcomes], dtype=np.float64)
    mean = chances @ vectors
    away = vectors - mean
    return exact.Moments(mean, (away * chances[:, None]).T @ away)


# --- closed forms of the mean, by G ---------------------------------------------------------------------------------

VALUE, BEHAVIOUR_VALUE = exact.objective(MDP, POLICY), exact.objective(MDP, BEHAVIOUR)
L_MAX = MDP.max_length


def credit(function: Callable[[Sample], Array | float], situation: Situation) -> Array:
    """E[Σ_t Ψ_t ∇ log π] of one sequence, Ψ = function(sequence)."""
    return np.sum(
        [p * ((np.zeros(x.length) + function(x)) @ x.scores) for x, p in samples(situation)], axis=0
    )


def shared(mean: Array, scale: float = 1.0, less: Array | float = 0.0) -> Closed:
    """(G−1)/G · scale · mean − less: a baseline with the sample's own reward in it leaves (G−1)/G of the gradient."""
    return lambda size: (size - 1) / size * scale * mean - less


# --- rows: what most have in common ---------------------------------------------------------------------------------

PLAIN = {"scale_rewards": "none"}


def rloo(config: dict[str, Any], estimates: str, *, slope: Slope | None = None, **parts: Any) -> Row:
    parts = {"advantage": leave_one_out, "weight": sequence_sum} | parts
    return Row("RLOOTrainer", config, estimates, slope=slope or clipped_sequence(), **parts)


def grpo(
    loss_type: str,
    config: dict[str, Any],
    estimates: str,
    *,
    slope: Slope | None = None,
    weight: Weight = constant,
    advantage: Callable[[Array], Array] = centered,
    **parts: Any,
) -> Row:
    config = {"loss_type": loss_type} | config
    return Row("GRPOTrainer", config, estimates, advantage, slope or clipped(), weight, **parts)
