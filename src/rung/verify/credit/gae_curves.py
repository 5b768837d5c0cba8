"""GAE over λ: bias against variance, and which λ leaves the least error for a batch of B sequences.

error(λ, B) = |E[ĝ] − ∇J|² + trace Cov[ĝ of one sequence] / B
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from rung.exact import objective_gradient, policy_gradient
from rung.verify.credit.cells import Bench, Rows
from rung.verify.credit.oracle import Reader, of_sequence
from rung.verify.findings import Cell, Chart, Line, Table

Critic: TypeAlias = Literal["exact", "wrong"]
LAMBDAS = tuple(k / 20 for k in range(21))
SIZES = (1, 4, 16, 64, 256)


@dataclass(frozen=True)
class Curve:
    """One critic's bias and noise.

    Attributes:
        bias: |E[ĝ] − ∇J|² at each λ.
        variance: trace of one sequence's covariance at each λ.
    """

    bias: tuple[float, ...]
    variance: tuple[float, ...]

    def error(self, size: float) -> tuple[float, ...]:
        """|bias|² + variance/B at each λ; the bias alone for an infinite B."""
        return tuple(b + v / size for b, v in zip(self.bias, self.variance, strict=True))

    def best(self, size: float) -> int:
        """Which λ leaves the least error: the largest of several."""
        errors = self.error(size)
        return max(k for k, error in enumerate(errors) if error <= min(errors) + 1e-15)


@dataclass(frozen=True)
class Curves:
    """What is shown, and what is not as claimed."""

    by_critic: dict[Critic, Curve]
    table: Table
    charts: tuple[Chart, ...]
    failures: tuple[str, ...]


def curves(bench: Bench) -> Curves:
    """Both critics of a problem, every λ and every batch size. Nothing is sampled."""
    mdp, policy, _ = bench.problem.oracles()[0]
    target = objective_gradient(mdp, policy, gamma=bench.gamma)
    x = Reader(mdp, policy, bench.tables, bench.constants, bench.best_state, bench.gamma)
    found: dict[Critic, Curve] = {}
    failures: list[str] = []
    for critic in ("exact", "wrong"):
        bias, variance = [], []
        for lam in LAMBDAS:
            measured = bench.moments(partial(Rows.gae, critic=critic, lam=lam, gamma=bench.gamma), 1)
            exact = of_sequence(x, lambda x, tau, critic=critic, lam=lam: x.gae(tau, critic, lam))  # type: ignore[misc]
            errors = policy_gradient(mdp, policy, lambda tau, c=critic, k=lam: x.errors_ahead(tau, c, k))  # type: ignore[misc]
            off = max(
                float(np.abs(measured.ascent - exact.mean).max()),
                float(np.abs(measured.ascent - target - errors).max()),
                abs(measured.trace - exact.trace),
            )
            if off > 1e-10:
                failures.append(f"GAE({lam:g}) of the {critic} critic is off its definition by {off:.3g}")
            bias.append(float(np.sum((measured.ascent - target) ** 2)))
            variance.append(measured.trace)
        found[critic] = Curve(tuple(bias), tuple(variance))
    return Curves(found, _table(found), _charts(found), (*failures, *_faults(found)))


def _faults(found: dict[Critic, Curve]) -> list[str]:
    """Whether the best λ behaves as it was said to."""
    failures = []
    exact, wrong = ([found[critic].best(size) for size in (*SIZES, np.inf)] for critic in ("exact", "wrong"))
    if max(found["exact"].bias) > 1e-20:
        failures.append(
            f"an exact critic should bias at no λ; |bias|² reaches {max(found['exact'].bias):.3g}"
        )
    if len(set(exact[:-1])) != 1:
        failures.append(f"with an exact critic one λ should be best for every B, not {exact}")
    if found["wrong"].bias[-1] > 1e-20:
        failures.append(
            f"GAE(1) of a wrong critic should be unbiased; |bias|² is {found['wrong'].bias[-1]:.3g}"
        )
    if wrong != sorted(wrong) or LAMBDAS[wrong[-1]] != 1.0:
        failures.append(f"with a wrong critic the best λ should rise to 1: {[LAMBDAS[k] for k in wrong]}")
    return failures


def _table(found: dict[Critic, Curve]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for size in (*SIZES, np.inf):
        row: list[Cell] = ["∞" if size == np.inf else str(size)]
        for critic in ("exact", "wrong"):
            curve, best = found[critic], found[critic].best(size)
            row += ["any" if (critic, size) == ("exact", np.inf) else LAMBDAS[best], curve.error(size)[best]]
        rows.append((*row, found["wrong"].error(size)[0], found["wrong"].error(size)[-1]))
    return Table(
        "Where λ should land: the λ of least mean squared error",
        ("B", "exact V: λ", "error", "wrong V: λ", "error", "at λ = 0", "at λ = 1"),
        tuple(rows),
        note=f"error: |bias|² + variance/B, of λ in steps of {LAMBDAS[1]:g}; the last two columns are the wrong V's. "
        "The variance falls as B grows and the bias does not, so that a wrong critic is trusted less the larger the "
        "batch.",
    )


def _charts(found: dict[Critic, Curve]) -> tuple[Chart, ...]:
    charts = []
    for critic, curve in found.items():
        parts = [Line("variance, one sequence", LAMBDAS, curve.variance)]
        if critic == "wrong":
            parts.insert(0, Line("|bias|²", LAMBDAS, curve.bias))
        errors = [Line(f"B = {size}", LAMBDAS, curve.error(size)) for size in SIZES]
        charts += [
            Chart(f"GAE, {critic} critic: bias and noise", "λ", "reward units²", tuple(parts)),
            Chart(
                f"GAE, {critic} critic: mean squared error", "λ", "reward units²", tuple(errors), log_y=True
            ),
        ]
    return tuple(charts)
