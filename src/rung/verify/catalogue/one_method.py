"""One method, from all sides."""

import difflib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from rung.errors import UsageError
from rung.methods import Method
from rung.verify.bias import Bias
from rung.verify.catalogue.check import Case, Measured, build, measure
from rung.verify.catalogue.kl_part import cosine, kl_part
from rung.verify.catalogue.ladder import climb
from rung.verify.catalogue.row import ONE, TWO, Row
from rung.verify.claims import CLAIMS, SOURCES, Claim
from rung.verify.enumeration import SITUATIONS, Setting, Situation, estimator_of, moments
from rung.verify.findings import Cell, Chart, Findings, Line, Table, coinciding
from rung.verify.problems import moved
from rung.verify.unbiased import problem_named

TOPICS = ("kl", "credit", "clip")  # what else `rung verify` knows
SHARES = tuple(1 - i / 8 for i in range(9))


def examine(name: str, *, watch: Callable[[int, int], None] | None = None) -> Findings:
    """What one method of the catalogue estimates: its parts, its claim, and everything that can be measured of it.

    Args:
        name: in the catalogue.
        watch: is told how many cases are done, and of how many.

    Raises:
        UsageError: there is no such method; the nearest name is suggested.

    Exactness:
        Every batch that could be sampled, with its probability. Checked by
        tests/verify/test_catalogue.py::test_every_method_can_be_examined.
    """
    claim = _claim(name)
    method = build(claim)
    cases = _cases(method)
    found: dict[Case, Measured] = {}
    for case in cases:
        found[case] = measure(claim, case)
        if watch is not None:
            watch(len(found), len(cases))
    row = Row(claim, found, kl_part(claim), climb(claim, Case(ONE, 2)))
    return Findings(
        title=f"What {claim.name} estimates",
        summary=f"On policy {claim.on_policy.words}. Compared with the gradient of {claim.objective}. {claim.meaning}",
        settings={
            "KL coefficient": claim.beta,
            **{key: float(value) for key, value in claim.settings.items()},
            "KL(sampler‖policy) off policy, one prompt, nats": problem_named(ONE).distance(),
            "KL(sampler‖policy) off policy, two prompts, nats": problem_named(TWO).distance(),
        },
        tables=(_slots(method), _claims(claim), *_sources(claim), _numbers(row), *_ladder(row), _kl(row)),
        charts=_curves(claim, method),
        failures=row.failures,
    )


def _claim(name: str) -> Claim:
    if (known := name.lower()) in CLAIMS:
        return CLAIMS[known]
    names = (*CLAIMS, *TOPICS)
    close = difflib.get_close_matches(known, names, n=1, cutoff=0.4)
    hint = f'; did you mean "{close[0]}"?' if close else ""
    raise UsageError(f'"{name}" is not known; there is {", ".join(names)}{hint}')


def _cases(method: Method) -> list[Case]:
    critics: tuple[Literal["exact", "wrong"], ...] = ("wrong",)
    if "values" in method.needs:
        critics = ("wrong", "exact")
    return [
        Case(*case, critic)
        for case in (
            *((ONE, size, situation) for size in (2, 3, 4) for situation in SITUATIONS),
            *((TWO, 2, situation) for situation in SITUATIONS),
            (TWO, 3, SITUATIONS[0]),
        )
        for critic in critics
    ]


def _named(part: Any) -> str:
    """A function with what is fixed of it."""
    if isinstance(part, partial):
        fixed = ", ".join(f"{key}={value:g}" for key, value in part.keywords.items())
        return f"{_named(part.func)}({fixed})"
    return getattr(part, "__name__", "") or str(part)


def _first_line(part: Any) -> str:
    return (inspect.getdoc(part.func if isinstance(part, partial) else part) or "").split("\n")[0]


def _slots(method: Method) -> Table:
    parts: dict[str, Any] = {
        "credit": method.credit,
        "policy loss": method.policy_loss,
        "aggregation": method.aggregation,
        "select": method.select,
        "correction": method.correction,
        "update": method.update,
    }
    rows: list[tuple[Cell, ...]] = [
        (slot, _named(part), _first_line(part)) for slot, part in parts.items() if part is not None
    ]
    if method.kl is not None:
        kl = method.kl
        where = f"{_named(kl.estimator)}, in the {kl.placement}, against {kl.against}, β = {kl.beta:g}"
        rows.insert(2, ("KL", where, _first_line(kl.estimator)))
    if method.entropy_coefficient:
        rows.append(
            ("entropy bonus", f"c = {method.entropy_coefficient:g}", "Entropy at the visited prefixes.")
        )
    needs = ", ".join(sorted(method.needs)) or "nothing"
    return Table(
        "Its parts", ("slot", "function", "what it is"), tuple(rows), f"Annotated to its batches: {needs}."
    )


def _claims(claim: Claim) -> Table:
    return Table(
        "Claimed, before it was measured",
        ("situation", "claim"),
        tuple((situation, claim.standing(situation).words) for situation in SITUATIONS),
        "stale: the policy has moved since the batch was sampled. mismatch: another sampler than the trainer's policy.",
    )


def _sources(claim: Claim) -> list[Table]:
    where: dict[str, list[str]] = {}
    for situation in SITUATIONS:
        for source in claim.standing(situation).sources:
            where.setdefault(source, []).append(situation)
    rows = tuple((source, SOURCES[source], ", ".join(at)) for source, at in where.items())
    return (
        [Table("What keeps it from the gradient", ("source", "what it does", "where"), rows)] if rows else []
    )


def _numbers(row: Row) -> Table:
    critics = any(case.critic == "exact" for case in row.cases)
    return Table(
        "Measured",
        (
            "problem",
            "G",
            "situation",
            *(("critic",) if critics else ()),
            "bias",
            "cosine",
            "scale",
            "trace",
            "as derived",
        ),
        tuple(
            (
                case.problem,
                case.group_size,
                case.situation,
                *((case.critic,) if critics else ()),
                measured.bias.relative,
                measured.bias.cosine,
                measured.bias.scale,
                measured.bias.moments.trace,
                not measured.failures,
            )
            for case, measured in row.cases.items()
        ),
        "bias: |E[ĝ] − ∇J| / |∇J|. cosine: between the two. scale: the multiple of ∇J that is nearest to E[ĝ]. trace: "
        "of the covariance of one batch's gradient."
        + (" The exact critic is V of the old policy, the KL in its returns." if critics else ""),
    )


def _ladder(row: Row) -> list[Table]:
    if len(row.ladder) == 1:
        return []
    rows = tuple((what, bias.relative, bias.cosine, bias.moments.trace) for what, bias in row.ladder)
    note = "One prompt, G = 2, on policy. Each line keeps the changes above it; after the last one nothing is left."
    return [
        Table(
            "Its sources of bias, taken out one after the other",
            ("change", "bias", "cosine", "trace"),
            rows,
            note,
        )
    ]


def _kl(row: Row) -> Table:
    part = row.kl
    pairs = (
        (f"−∇KL(π‖{part.other}), whole sequences", part.kl_policy_other),
        (f"−∇KL({part.other}‖π), sampled prefixes", part.kl_other_policy),
    )
    return Table(
        "Its KL alone",
        (part.words, "cosine", "multiple"),
        tuple((name, cosine(part.push, v), float(part.push @ v / (v @ v))) for name, v in pairs),
        f"The mean with the KL less the mean without; {part.case}. As derived: {'yes' if part.holds else 'no'}.",
    )


def _curves(claim: Claim, method: Method) -> tuple[Chart, ...]:
    """Bias and noise over the distance between sampler and policy, which is moved towards the sampler."""
    estimator = estimator_of(method)
    distances = tuple(moved(problem_named(ONE), share).distance() for share in SHARES)
    off: dict[Situation, list[Bias]] = {"stale": [], "mismatch": []}
    for situation, found in off.items():
        for share in SHARES:
            setting = Setting(moved(problem_named(ONE), share), 2, situation, kl_coefficient=claim.beta)
            found.append(Bias(ONE, setting, moments(estimator, setting), claim.gradient(setting, claim.beta)))

    def chart(title: str, y_label: str, y: Callable[[Bias], float]) -> Chart:
        lines = tuple(Line(s, distances, tuple(y(bias) for bias in found)) for s, found in off.items())
        return Chart(
            title,
            "KL(sampler‖policy), nats",
            y_label,
            lines,
            f"One prompt, G = 2. {coinciding(lines)}".rstrip(),
        )

    return (
        chart("Bias over the distance", "relative bias", lambda bias: bias.relative),
        chart("Direction over the distance", "degrees off the gradient", lambda bias: bias.degrees),
        chart("Noise over the distance", "covariance trace", lambda bias: bias.moments.trace),
    )
