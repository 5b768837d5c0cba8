"""Every way to use an estimate of KL(π‖π_ref), as a value and as a gradient, against the oracle.

A cell is an estimator, a placement, a level and a weight. With l_t = log π(a_t|s_t) − log π_ref(a_t|s_t), sequences
sampled from μ (π itself, on policy) and S_t = ∇log π(a_t|s_t):

    estimator   k1 = l, k2 = ½l², k3 = e^(−l) − 1 + l of a sampled token; full = KL(π‖π_ref) of the whole next-token
                distribution at the prefix, Σ_a π(a) (log π(a) − log π_ref(a))
    level       token: k_t at each token. sequence: one k of L = Σ_t l_t (for full: Σ_t full_t, one number)
    weight      none; w_t = π/μ of the token, or W = Π_t w_t of the sequence, as the level is; detached sg(w), or live
    loss        E_μ[Σ_t ∇(w_t k_t)], or E_μ[∇(W k)]: the penalty is differentiated, its weight too if it is live
    reward      E_μ[Σ_t w_t K_t S_t], K_t = Σ_{u≥t} k_u (k at every token of a sequence-level one): the penalty stands
                in the reward, constant, and the return from each token on is its credit. The weight multiplies the
                policy loss: detached as a correction, live as the importance ratio; their gradients are the same
    Σ           (third table) k at each token, under the weight W of the whole sequence
    value       Σ_t w_t k_t, or W k, as an estimate of KL(π‖π_ref) of whole sequences

Each cell runs as a `Method` with a `KLPenalty` through prepare and loss, on every sequence there is; autograd goes
through torch's softmax. The expected gradient is then looked up, by number, among those of the oracle.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from rung.exact.token_mdp import FloatArray
from rung.verify.findings import Chart, Findings, Line, Table
from rung.verify.kl import claims as claims
from rung.verify.kl.cells import Cell, Measured, World
from rung.verify.kl.facts import facts
from rung.verify.kl.oracle import Oracle
from rung.verify.problems import Problem
from rung.verify.three_tokens import three_tokens

TOLERANCE = 1e-10
COLUMNS = ("cell", "bias", "var.", "gradient", "noise")
USE = (
    (
        "on policy, loss",
        "k2, or full: KL(π‖ref) at each visited prefix; k2 of the whole sequence where the future is to count",
        "k1: 0 on average, pure noise. k3: the other direction, KL(ref‖π)",
    ),
    (
        "on policy, loss, live weight",
        "k1 and k3: KL(π‖ref) at π, k3 token by token what k2 is without a weight. Under W: all of it, full too",
        "k2: it follows E[k2], which is no divergence",
    ),
    (
        "on policy, reward",
        "k1, from each token on",
        "k2, k3: neither direction. full: only the future part",
    ),
    (
        "μ's samples, loss",
        "full; sg(w) k2; w k1 or w k3: KL(π‖ref) at μ's prefixes. With W at π's, or whole",
        "no weight: k1 pushes π away from μ, k2 and k3 fit log-ratios. sg(w) k3: the other direction",
    ),
    ("μ's samples, reward", "k1 under W, on tokens or whole", "no weight, or w: later tokens remain μ's"),
)


@dataclass(frozen=True)
class Row:
    """A cell, what was measured, and what it was found to be."""

    cell: Cell
    measured: Measured
    bias: float
    gradient: str
    claim: str


def recognize(gradient: FloatArray, candidates: dict[str, FloatArray]) -> str:
    """The name of a gradient among the candidates: "0", one name, several if they coincide, or none.

    >>> recognize(np.array([1.0, 0.0]), {"a": np.array([1.0, 0.0]), "b": np.array([0.0, 1.0])})
    'a'
    >>> recognize(np.array([1.0, 1.0]), {"a": np.array([1.0, 0.0])})
    'none of these'
    """
    if np.abs(gradient).max() < TOLERANCE:
        return claims.ZERO
    same = [name for name, other in candidates.items() if np.abs(gradient - other).max() < TOLERANCE]
    return " = ".join(same) or claims.NONE


def cells(table: claims.Claims) -> Iterator[tuple[Cell, str]]:
    """Every cell of a table of claims, and which gradient it is said to give."""
    for (placement, level, weight), names in table.items():
        for estimator, name in zip(claims.ESTIMATORS, names, strict=True):
            yield Cell(estimator, placement, level, weight), name


def oracle_of(problem: Problem, *, on_policy: bool) -> Oracle:
    """The oracle of a problem of one prompt without tokens before it."""
    mdp, *policies = problem.oracles()[0]
    policy, reference, behaviour = (cache(p) for p in (*policies, problem.behaviour))
    return Oracle(mdp, policy, reference, policy if on_policy else behaviour)


def examine(problem: Problem, table: claims.Claims, *, on_policy: bool) -> tuple[list[Row], list[str]]:
    """Measure all cells of a table. Returns the rows, and a sentence for each thing that is not as claimed."""
    oracle, world = oracle_of(problem, on_policy=on_policy), World(problem, on_policy)
    candidates = oracle.candidates(on_policy=on_policy)
    wanted, _ = Oracle(oracle.mdp, oracle.policy, oracle.reference, oracle.policy).value("k1", "token", None)
    rows, failures = [], []
    for cell, claim in cells(table):
        measured = world.measure(cell)
        row = Row(cell, measured, measured.mean - wanted, recognize(measured.gradient, candidates), claim)
        rows.append(row)
        failures += [
            f"{'on' if on_policy else 'off'} policy, {cell}: {problem}"
            for problem in _faults(row, oracle, on_policy)
        ]
    return rows, failures


def _faults(row: Row, oracle: Oracle, on_policy: bool) -> Iterator[str]:
    """What the oracle or the claim says otherwise."""
    cell, measured = row.cell, row.measured
    if row.gradient != row.claim:
        yield f"its expected gradient is {row.gradient}, not {row.claim}"
    mean, variance = oracle.value(cell.estimator, cell.level, cell.weight)
    if abs(measured.mean - mean) > TOLERANCE or abs(measured.variance - variance) > TOLERANCE:
        yield (
            f"its value has mean {measured.mean:.9f} and variance {measured.variance:.9f}; "
            f"exact are {mean:.9f} and {variance:.9f}"
        )
    unbiased = claims.value_is_unbiased(cell.estimator, cell.level, cell.weight, on_policy=on_policy)
    if unbiased != (abs(row.bias) < TOLERANCE):
        yield f"its value should be {'unbiased' if unbiased else 'biased'}, and the bias is {row.bias:.3g} nats"
    exact = oracle.gradient(cell.estimator, cell.placement, cell.level, cell.weight)
    off = np.abs(measured.gradient - exact.mean).max()
    if off > TOLERANCE:
        yield f"its expected gradient is off the oracle's by {off:.3g}"
    if abs(measured.trace - exact.trace) > TOLERANCE:
        yield f"its gradient's covariance has trace {measured.trace:.9f}; exact is {exact.trace:.9f}"


def _table(title: str, rows: list[Row], reverse: FloatArray) -> Table:
    """One row a cell; a gradient without a name gets its cosine with ∇KL(π‖ref)."""

    def named(row: Row) -> str:
        if row.gradient != claims.NONE:
            return row.gradient
        size = np.linalg.norm(row.measured.gradient) * np.linalg.norm(reverse)
        return f"none (cosine {row.measured.gradient @ reverse / size:.2f})"

    return Table(
        title,
        COLUMNS,
        tuple(
            (str(row.cell), _rounded(row.bias), row.measured.variance, named(row), row.measured.trace)
            for row in rows
        ),
    )


def _rounded(bias: float) -> float:
    return 0.0 if abs(bias) < TOLERANCE else bias


def _distances(problem: Problem) -> Chart:
    """How far each cell is from ∇KL(π‖ref) as the policy leaves its reference."""
    shown = (
        Cell("k2", "loss", "token", None),
        Cell("k3", "loss", "token", None),
        Cell("k1", "reward", "token", None),
        Cell("k3", "reward", "token", None),
        Cell("full", "loss", "sequence", "live"),
    )
    theta, reference = problem.policy.parameters, problem.reference.parameters
    x: list[float] = []
    y: dict[Cell, list[float]] = {cell: [] for cell in shown}
    for share in (0.05, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5):
        policy = problem.policy.with_parameters(reference + share * (theta - reference))
        there = replace(problem, policy=policy)
        oracle, world = oracle_of(there, on_policy=True), World(there, True)
        wanted = oracle.candidates(on_policy=True)[claims.REVERSE]
        x.append(oracle.value("k1", "token", None)[0])
        for cell in shown:
            off = np.linalg.norm(world.measure(cell).gradient - wanted) / np.linalg.norm(wanted)
            y[cell].append(float(off))
    return Chart(
        "On policy: how far from the gradient of KL(π‖ref) of whole sequences",
        "KL(π‖ref), nats a sequence",
        "|g − ∇KL| / |∇KL|",
        tuple(Line(str(cell), tuple(x), tuple(values)) for cell, values in y.items()),
        note="Near the reference both directions of KL have one gradient, and k3 in the loss looks right. The future "
        "part, which estimates at tokens leave out in the loss, weighs more the farther apart they are.",
    )


def survey() -> Findings:
    """Bias and variance as a value, and the expected gradient by name, of every cell, on and off policy.

    Exactness:
        `failures` is empty. Checked by tests/verify/test_kl.py::test_every_claim_holds, and the numbers by
        ::test_digits_of_one_step_on_policy and those beside it.
    """
    problem = three_tokens()
    on, wrong_on = examine(problem, claims.ON_POLICY, on_policy=True)
    off, wrong_off = examine(problem, claims.OFF_POLICY, on_policy=False)
    mixed, wrong_mixed = examine(problem, claims.MIXED, on_policy=False)
    reverse = oracle_of(problem, on_policy=True).candidates(on_policy=True)[claims.REVERSE]
    numbers, wrong_facts = facts(problem)
    tables = [
        Table("What to use", ("where", "use", "not"), USE, VALUES),
        _table("On policy: samples of π", on, reverse),
        _table("Off policy: samples of μ", off, reverse),
        _table("Off policy: k at each token, under the weight W of the whole sequence", mixed, reverse),
    ]
    note = (
        "bias, var.: of the value, nats a sequence. noise: trace of the covariance of one sequence's gradient. "
        f"{claims.LEGEND}"
    )
    tables[1] = replace(tables[1], note=note)
    return Findings(
        title="What each KL estimate is worth, and which gradient it gives",
        summary=SUMMARY,
        settings={
            "problem": "three tokens, sequences of one to three",
            "KL(π‖ref), nats a sequence": problem_kl(problem),
            "KL(μ‖π), nats a sequence": problem.distance(),
            "cells": len(on) + len(off) + len(mixed),
        },
        tables=(*tables, *numbers),
        charts=(_distances(problem),),
        failures=(*wrong_on, *wrong_off, *wrong_mixed, *wrong_facts),
    )


def problem_kl(problem: Problem) -> float:
    """KL(π‖π_ref) of whole sequences, nats."""
    return oracle_of(problem, on_policy=True).value("k1", "token", None)[0]


VALUES = (
    "As a value k1, k3 and full are unbiased on policy; k3 of tokens scatters less than k1 here, k3 of whole sequences "
    "more."
)
SUMMARY = (
    "A good value need not give the right gradient: k3 is an unbiased value, but in the loss it follows KL(ref‖π), and "
    "in the reward neither direction.\n"
    "In the reward: k1. In the loss: k2 or the full divergence, at each token without its effect on later tokens; all "
    "of ∇KL(π‖ref) by k2 of whole sequences, or by the full divergence under the sequence's live weight.\n"
    "On samples of another policy, and without a weight, only the full divergence in the loss is a gradient of "
    "KL(π‖ref): at the other policy's prefixes."
)
