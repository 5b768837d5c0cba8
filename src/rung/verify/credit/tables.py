"""Every credit Ψ in g = E[Σ_t Ψ_t ∇log π(a_t|s_t)]: its bias and its noise, exactly.

    ĝ = 1/B Σ_i Σ_t Ψ_it ∇log π(a_it|s_it)      rel. bias = |E[ĝ] − ∇J| / |∇J|      cov. trace = Σ_k Var[ĝ_k]

Each Ψ is computed by rung's own function on every batch of B sequences that the policy may give, and goes through
`policy_gradient_loss` and `sequence_sum`; Q, A and the best baselines are the oracle's numbers. Mean and covariance are
compared with the definition of Ψ in numpy, and with what is claimed of it (rung.verify.credit.claims). Nothing is
sampled.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rung.exact import Moments as ExactMoments
from rung.exact import Trajectory, gradient_without_time_discount, objective_gradient, policy_gradient
from rung.exact.token_mdp import FloatArray
from rung.verify.credit import cells, gae_curves, oracle
from rung.verify.credit import claims as claimed
from rung.verify.credit.cells import Bench, Credit
from rung.verify.credit.facts import facts
from rung.verify.credit.oracle import Reader
from rung.verify.enumeration import Setting
from rung.verify.findings import Findings, Table
from rung.verify.problems import one_prompt
from rung.verify.three_tokens import three_tokens
from rung.verify.unbiased import Bias

TOLERANCE = 1e-10
BENCHES = {"two tokens": (Bench(one_prompt()), (2, 3)), "three tokens": (Bench(three_tokens()), (2,))}
GAMMA = 0.9
IS = {
    "unbiased": "unbiased",
    "times 1 − 1/B": "∇J (1 − 1/B)",
    "times a factor a step": "turned, by step",
    "biased by V's errors": "V's errors",
    "turned": "turned",
    "no time discount": "γ^t missing",
}


@dataclass(frozen=True)
class Row:
    """A credit, its moments beside ∇J, and what is claimed of it."""

    name: str
    bias: Bias
    claim: str

    @property
    def trace(self) -> float:
        """Of the covariance of one batch's gradient."""
        return self.bias.moments.trace


def reader_of(bench: Bench) -> Reader:
    """What the oracle reads of a problem."""
    mdp, policy, _ = bench.problem.oracles()[0]
    return Reader(mdp, policy, bench.tables, bench.constants, bench.best_state, bench.gamma)


def examine(
    bench: Bench,
    credits: dict[str, Credit],
    exact: Callable[[str], ExactMoments],
    claims: dict[str, str],
    size: int,
) -> tuple[list[Row], list[str]]:
    """Measure credits on batches of one size. Returns the rows, and a sentence for each thing not as claimed."""
    mdp, policy, _ = bench.problem.oracles()[0]
    target, x = objective_gradient(mdp, policy, gamma=bench.gamma), reader_of(bench)
    rows, failures = [], []
    for name, claim in claims.items():
        bias = Bias(name, Setting(bench.problem, size), bench.moments(credits[name], size), target)
        row = Row(name, bias, claim)
        rows.append(row)
        failures += [f"{name}, B = {size}: {fault}" for fault in _faults(row, exact(name), x, size)]
    return rows, failures


def _faults(row: Row, exact: ExactMoments, x: Reader, size: int) -> Iterator[str]:
    """What the definition or the claim says otherwise."""
    found = row.bias.moments
    off = float(np.abs(found.ascent - exact.mean).max())
    if off > TOLERANCE:
        yield f"its expected gradient is off its definition's by {off:.3g}"
    if abs(found.trace - exact.trace) > TOLERANCE:
        yield f"its covariance has trace {found.trace:.9f}; by its definition {exact.trace:.9f}"
    if row.claim == "turned":
        if row.bias.relative_beside_scale < 1e-3:
            yield "it is said to turn the gradient, and is a multiple of it"
        return
    off = float(np.abs(found.ascent - _claimed(row, x, size)).max())
    if off > TOLERANCE:
        yield f'it is said to be "{row.claim}", and its expected gradient is off that by {off:.3g}'


def _claimed(row: Row, x: Reader, size: int) -> FloatArray:
    """[n] the expected gradient that follows from a claim."""
    if row.claim == "times 1 − 1/B":
        return (1 - 1 / size) * row.bias.target
    if row.claim == "times a factor a step":
        return oracle.step_mean_expectation(x, size)
    if row.claim == "no time discount":
        return gradient_without_time_discount(x.mdp, x.policy, gamma=x.gamma)
    if row.claim == "biased by V's errors":
        critic, lam = oracle.BIASED[row.name]

        def errors(tau: Trajectory) -> FloatArray:
            return x.gamma ** np.arange(tau.length) * x.errors_ahead(tau, critic, lam)

        return row.bias.target + policy_gradient(x.mdp, x.policy, errors)
    return row.bias.target


def _small(number: float) -> float:
    return 0.0 if abs(number) < TOLERANCE else number


def _singles(title: str, rows: list[Row], note: str = "") -> Table:
    return Table(
        title,
        ("credit Ψ", "rel. bias", "cosine", "cov. trace", "E[ĝ] is"),
        tuple((r.name, _small(r.bias.relative), r.bias.cosine, _small(r.trace), IS[r.claim]) for r in rows),
        note,
    )


def _batches(title: str, rows: list[tuple[int, Row]], note: str = "") -> Table:
    return Table(
        title,
        ("credit Ψ", "B", "rel. bias", "cosine", "scale", "trace", "E[ĝ] is"),
        tuple(
            (r.name, size, _small(r.bias.relative), r.bias.cosine, r.bias.scale, r.trace, IS[r.claim])
            for size, r in rows
        ),
        note,
    )


def _undiscounted() -> tuple[list[Table], list[str]]:
    """γ = 1: a table of single sequences and one of batches for each problem."""
    singles: list[Table] = []
    batches: list[Table] = []
    failures: list[str] = []
    for problem, (bench, sizes) in BENCHES.items():
        x = reader_of(bench)
        rows, wrong = examine(
            bench,
            cells.SINGLE,
            lambda name, x=x: oracle.of_sequence(x, oracle.SINGLE[name]),  # type: ignore[misc]
            dict(claimed.SINGLE),
            1,
        )
        failures += [f"{problem}, {sentence}" for sentence in wrong]
        singles.append(_singles(f"One sequence, {problem} at most", rows, LONG_NOTE if singles else NOTE))
        by_name: list[tuple[int, Row]] = []
        for size in sizes:
            more, wrong = examine(
                bench,
                cells.BATCH,
                lambda name, x=x, size=size: oracle.of_group(x, oracle.BATCH[name], size),  # type: ignore[misc]
                dict(claimed.BATCH),
                size,
            )
            failures += [f"{problem}, {sentence}" for sentence in wrong]
            by_name += [(size, row) for row in more]
        order = list(claimed.BATCH)
        by_name.sort(key=lambda pair: order.index(pair[1].name))
        batches.append(
            _batches(f"A batch of B, {problem} at most", by_name, BATCH_NOTE if not batches else "")
        )
    return [*singles, *batches], failures


def _discounted() -> tuple[Table, list[str]]:
    """γ < 1 on the longer problem."""
    bench = Bench(three_tokens(), GAMMA)
    x = reader_of(bench)

    def timed(tau: Trajectory) -> FloatArray:
        return np.array([GAMMA**t for t in range(tau.length)])

    exact: dict[str, oracle.OfSequence] = {
        "R(τ), total return": oracle.SINGLE["R(τ), total return"],
        "G_t": lambda x, tau: x.to_go(tau),
        "γ^t G_t": lambda x, tau: timed(tau) * x.to_go(tau),
        "GAE(0.5), exact V": lambda x, tau: x.gae(tau, "exact", 0.5),
        "γ^t GAE(0.5), exact V": lambda x, tau: timed(tau) * x.gae(tau, "exact", 0.5),
        "γ^t (G_t − wrong V)": lambda x, tau: timed(tau) * x.gae(tau, "wrong", 1.0),
        "γ^t GAE(0.5), wrong V": lambda x, tau: timed(tau) * x.gae(tau, "wrong", 0.5),
    }
    rows, failures = examine(
        bench,
        cells.discounted(GAMMA),
        lambda name: oracle.of_sequence(x, exact[name]),
        dict(claimed.DISCOUNTED),
        1,
    )
    table = _singles(
        f"One sequence, three tokens at most, γ = {GAMMA:g}, beside the gradient of the discounted J",
        rows,
        "γ^t missing: Σ_s d_1(s) Σ_a ∇π Q_γ, discounted values at undiscounted visits: in general the gradient of no "
        "function.",
    )
    return table, [f"γ = {GAMMA:g}, {sentence}" for sentence in failures]


def survey() -> Findings:
    """Bias, direction and noise of every credit, and where λ of GAE should land.

    Exactness:
        `failures` is empty. Checked by tests/verify/test_credit.py::test_every_claim_holds, and the numbers by
        ::test_digits_of_single_sequences and those after it.
    """
    tables, failures = _undiscounted()
    discounted, wrong_discounted = _discounted()
    numbers, wrong_facts = facts()
    curves = gae_curves.curves(Bench(three_tokens()))
    return Findings(
        title="What each credit Ψ is an estimate of, and how noisy it is",
        summary=SUMMARY,
        settings={
            "problems": "sequences of one or two tokens; of one to three, with rewards on steps too",
            "objective": "J = E[R(τ)]",
            "B": "sequences of one prompt, the denominator of the mean",
        },
        tables=(*tables, discounted, curves.table, *numbers),
        charts=curves.charts,
        failures=(*failures, *wrong_discounted, *curves.failures, *wrong_facts),
    )


NOTE = (
    "Unbiased are returns, minus anything that knows neither this token nor what follows; Q and A; TD residuals and "
    "GAE of the exact V. With a wrong V a TD residual and GAE(λ < 1) carry its errors at later states, G_t − V none. A "
    "V that is wrong only at the start does no harm: its error there does not depend on an action. A is not the Ψ of "
    "least variance."
)
LONG_NOTE = (
    "Less variance is no law: here the return from each token on scatters more than the total one, and J as a baseline "
    "more than none."
)
BATCH_NOTE = (
    "scale: the multiple of ∇J that is nearest to E[ĝ]. trace: of a batch's covariance. A mean with the sample's own "
    "return in it shortens the gradient; a mean over those still alive shortens later steps more; a spread in the "
    "denominator turns it."
)
SUMMARY = (
    "Not every Ψ is unbiased: TD residuals and GAE(λ < 1) carry the critic's errors at later states, whitening and "
    "standardizing turn the gradient, and with γ < 1 a return from t on needs γ^t.\n"
    "The advantage is not the Ψ of least variance, and the mean value as a baseline may raise it.\n"
    "With an exact critic one λ is best for every batch size; with a wrong one the best λ rises to 1 as B grows."
)
