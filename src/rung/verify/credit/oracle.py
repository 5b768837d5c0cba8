"""The oracle's side of `rung verify credit`: every Ψ in numpy, from its definition, a sequence or a group at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from rung.exact import (
    Group,
    Moments,
    Policy,
    Trajectory,
    action_values,
    expectation,
    generalized_advantages,
    occupancy,
    policy_gradient,
    token_scores,
)
from rung.exact.token_mdp import FloatArray, Prefix, TokenMDP
from rung.verify.credit.cells import CONSTANT, EARLIER_RETURNS, Critic

OfSequence: TypeAlias = Callable[["Reader", Trajectory], FloatArray]
OfGroup: TypeAlias = Callable[["Reader", Group], list[FloatArray]]


@dataclass(frozen=True)
class Reader:
    """What the definitions read.

    Attributes:
        mdp: which sequences there are.
        policy: π.
        critics: V by critic.
        constants: J, best constant and greedy return.
        best_state: b(s).
        gamma: discount γ.
    """

    mdp: TokenMDP
    policy: Policy
    critics: dict[Critic, dict[Prefix, float]]
    constants: dict[str, float]
    best_state: dict[Prefix, float]
    gamma: float = 1.0

    def to_go(self, tau: Trajectory) -> FloatArray:
        """[L] G_t = Σ_u γ^(u−t) r_u, each as its own sum."""
        if tau not in self._seen:
            r = self.mdp.rewards(tau.tokens)
            self._seen[tau] = np.array(
                [sum(self.gamma ** (u - t) * r[u] for u in range(t, len(r))) for t in range(len(r))]
            )
        return self._seen[tau]

    @cached_property
    def _seen(self) -> dict[Trajectory, FloatArray]:
        """Returns of the sequences so far: each is in many groups."""
        return {}

    def total(self, tau: Trajectory) -> float:
        """R(τ) = G_0."""
        return float(self.to_go(tau)[0])

    def gae(self, tau: Trajectory, critic: Critic, lam: float) -> FloatArray:
        """[L] as the weighted mean of k-step advantages."""
        values = [self.critics[critic][s] for s, _ in tau.steps]
        return generalized_advantages(self.mdp.rewards(tau.tokens), values, gamma=self.gamma, lam=lam)

    def action_values(self, tau: Trajectory) -> FloatArray:
        """[L] Q(s_t, a_t)."""
        q = action_values(self.mdp, self.policy, gamma=self.gamma)
        return np.array([q[s][a] for s, a in tau.steps])

    def errors_ahead(self, tau: Trajectory, critic: Critic, lam: float) -> FloatArray:
        """[L] (1 − λ) Σ_{l≥1} γ^l λ^(l−1) e(s_{t+l}): all that a critic's errors add to the mean of GAE."""
        errors = [self.critics[critic][s] - self.critics["exact"][s] for s, _ in tau.steps]
        return np.array(
            [
                (1 - lam)
                * sum(self.gamma**k * lam ** (k - 1) * errors[t + k] for k in range(1, len(errors) - t))
                for t in range(len(errors))
            ]
        )


def _spread(tau: Trajectory, number: float) -> FloatArray:
    return np.full(tau.length, number)


def _minus(name: str) -> OfSequence:
    return lambda x, tau: _spread(tau, x.total(tau) - x.constants[name])


def _gae(critic: Critic, lam: float) -> OfSequence:
    return lambda x, tau: x.gae(tau, critic, lam)


SINGLE: dict[str, OfSequence] = {
    "R(τ), total return": lambda x, tau: _spread(tau, x.total(tau)),
    "G_t, reward-to-go": lambda x, tau: x.to_go(tau),
    "R − constant 0.5": lambda x, tau: _spread(tau, x.total(tau) - CONSTANT),
    "R − J": _minus("J"),
    "R − best constant": _minus("best"),
    "R − R(greedy)": _minus("greedy"),
    "G_t − moving average": lambda x, tau: x.to_go(tau) - 0.1 * np.mean(EARLIER_RETURNS),
    "G_t − V": _gae("exact", 1.0),
    "Q": lambda x, tau: x.action_values(tau),
    "A": lambda x, tau: x.action_values(tau) - [x.critics["exact"][s] for s, _ in tau.steps],
    "Q − best b(s)": lambda x, tau: x.action_values(tau) - [x.best_state[s] for s, _ in tau.steps],
    "TD residual, exact V": _gae("exact", 0.0),
    "GAE(0.5), exact V": _gae("exact", 0.5),
    "GAE(0.95), exact V": _gae("exact", 0.95),
    "G_t − wrong V": lambda x, tau: x.to_go(tau) - [x.critics["wrong"][s] for s, _ in tau.steps],
    "TD residual, wrong V": _gae("wrong", 0.0),
    "GAE(0.5), wrong V": _gae("wrong", 0.5),
    "GAE(0.95), wrong V": _gae("wrong", 0.95),
    "TD, V wrong at the start": _gae("start", 0.0),
}
# λ and critic of the credits whose bias is the critic's.
BIASED: dict[str, tuple[Critic, float]] = {
    "TD residual, wrong V": ("wrong", 0.0),
    "GAE(0.5), wrong V": ("wrong", 0.5),
    "GAE(0.95), wrong V": ("wrong", 0.95),
    "γ^t GAE(0.5), wrong V": ("wrong", 0.5),
}


def _centered(x: Reader, group: Group) -> list[float]:
    returns = [x.total(tau) for tau in group]
    return [r - sum(returns) / len(returns) for r in returns]


def _on_tokens(group: Group, numbers: list[float]) -> list[FloatArray]:
    return [_spread(tau, number) for tau, number in zip(group, numbers, strict=True)]


def _whitened(psi: list[FloatArray]) -> list[FloatArray]:
    tokens = np.concatenate(psi)
    spread = np.sqrt(np.mean((tokens - tokens.mean()) ** 2))
    return [np.zeros_like(p) if spread < 1e-9 else (p - tokens.mean()) / spread for p in psi]


def _standardized(x: Reader, group: Group) -> list[FloatArray]:
    centered = _centered(x, group)
    spread = np.sqrt(sum(c * c for c in centered) / (len(group) - 1))
    return _on_tokens(group, [0.0 if spread < 1e-9 else float(c / spread) for c in centered])


def _minus_step_mean(x: Reader, group: Group) -> list[FloatArray]:
    to_go = [x.to_go(tau) for tau in group]
    return [
        np.array([g[t] - np.mean([h[t] for h in to_go if len(h) > t]) for t in range(len(g))]) for g in to_go
    ]


BATCH: dict[str, OfGroup] = {
    "R − batch mean": lambda x, group: _on_tokens(group, _centered(x, group)),
    "G_t − batch mean": lambda x, group: [
        x.to_go(tau) - np.mean([x.total(other) for other in group]) for tau in group
    ],
    "G_t − step mean": _minus_step_mean,
    "leave-one-out": lambda x, group: [
        _spread(tau, x.total(tau) - sum(x.total(o) for j, o in enumerate(group) if j != i) / (len(group) - 1))
        for i, tau in enumerate(group)
    ],
    "group-centered": lambda x, group: _on_tokens(group, _centered(x, group)),
    "group-standardized": _standardized,
    "whitened G_t": lambda x, group: _whitened([x.to_go(tau) for tau in group]),
    "whitened group-centered": lambda x, group: _whitened(_on_tokens(group, _centered(x, group))),
}


def of_sequence(x: Reader, credit: OfSequence) -> Moments:
    """Mean and covariance of Σ_t Ψ_t ∇log π of one sequence."""
    return of_group(x, lambda x, group: [credit(x, group[0])], 1)


def of_group(x: Reader, credit: OfGroup, size: int) -> Moments:
    """Mean and covariance of 1/B Σ_i Σ_t Ψ_it ∇log π of B sequences."""
    scores: dict[Trajectory, FloatArray] = {}

    def estimate(group: Group) -> FloatArray:
        found = np.zeros(0)
        for tau, psi in zip(group, credit(x, group), strict=True):
            if tau not in scores:
                scores[tau] = token_scores(x.policy, tau)
            one = psi @ scores[tau] / size
            found = one if not found.size else found + one
        return found

    return expectation(x.mdp, x.policy, size, estimate)


def step_mean_expectation(x: Reader, size: int) -> FloatArray:
    """Σ_t (1 − (1 − (1−p_t)^B)/(B p_t)) × the part of ∇J that comes from step t, p_t the chance to be alive at t."""
    reached = occupancy(x.mdp, x.policy)
    found = np.zeros(0)
    for t in range(x.mdp.max_length):
        alive = sum(chance for prefix, chance in reached.items() if len(prefix) == t)
        factor = 1 - (1 - (1 - alive) ** size) / (size * alive)

        def at_step(tau: Trajectory, t: int = t) -> FloatArray:
            to_go = x.to_go(tau)
            return np.array([g if u == t else 0.0 for u, g in enumerate(to_go)])

        part = factor * policy_gradient(x.mdp, x.policy, at_step)
        found = part if not found.size else found + part
    return found
