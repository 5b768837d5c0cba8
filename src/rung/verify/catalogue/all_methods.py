"""All methods side by side."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rung.verify.catalogue.check import SHOWS, SITUATIONS, UNBIASED, Case, Measured, measure, problem
from rung.verify.catalogue.kl_part import KLPart, cosine, kl_part
from rung.verify.catalogue.ladder import climb
from rung.verify.claims import CLAIMS, Claim
from rung.verify.enumeration import Situation
from rung.verify.findings import Cell, Chart, Findings, Line, Table
from rung.verify.unbiased import Bias

ONE, TWO = "one prompt", "two prompts"
SIZES = (2, 3, 4)
CASES = (
    *(Case(ONE, 2, situation) for situation in SITUATIONS),
    *(Case(ONE, size) for size in SIZES[1:]),
    *(Case(TWO, 2, situation) for situation in SITUATIONS),
)


@dataclass(frozen=True)
class Row:
    """Everything that was measured of one method."""

    claim: Claim
    cases: dict[Case, Measured]
    kl: KLPart
    ladder: list[tuple[str, Bias]]

    @property
    def failures(self) -> tuple[str, ...]:
        """What does not hold, a sentence each."""
        found = [text for measured in self.cases.values() for text in measured.failures]
        if not self.kl.holds:
            found.append(
                f"{self.claim.name} ({self.kl.case}): the part of its {self.kl.words} is off the derived one by "
                f"{self.kl.deviation:.2g} of that one's length"
            )
        return (*found, *_off_the_ladder(self.claim, self.ladder))

    def at(self, *case: object) -> Bias:
        """What was measured on a case, given by its fields."""
        return self.cases[Case(*case)].bias  # type: ignore[arg-type]


def _off_the_ladder(claim: Claim, ladder: list[tuple[str, Bias]]) -> list[str]:
    """Each change must do something, and after the last one no bias may be left."""
    idle = [
        what
        for (_, before), (what, after) in pairwise(ladder)
        if np.linalg.norm(after.moments.ascent - before.moments.ascent)
        < SHOWS * np.linalg.norm(before.target)
        and np.array_equal(before.target, after.target)
    ]
    found = [f'{claim.name}: "{what}" was to take out a source of bias, and changes nothing' for what in idle]
    left = ladder[-1][1].relative
    if not left <= UNBIASED:
        found.append(
            f"{claim.name}: with its sources of bias taken out, a relative bias of {left:.2g} is left"
        )
    return found


def measure_all(claim: Claim) -> Row:
    """One method on every case of the survey."""
    return Row(
        claim,
        {case: measure(claim, case) for case in CASES},
        kl_part(claim),
        climb(claim, Case(ONE, 2)),
    )


def survey(
    names: Iterable[str] = tuple(CLAIMS), *, watch: Callable[[int, int], None] | None = None
) -> Findings:
    """What each method of the catalogue estimates: claimed beforehand, then enumerated.

    Args:
        names: of the catalogue.
        watch: is told after each method how many are done, and of how many.

    Returns:
        Tables and charts; failures where a method does not do what is claimed of it.

    Exactness:
        Every batch that could be sampled, with its probability. Checked by
        tests/verify/test_catalogue.py::test_the_whole_catalogue_is_as_claimed.
    """
    rows, names = [], tuple(names)
    for name in names:
        rows.append(measure_all(CLAIMS[name]))
        if watch is not None:
            watch(len(rows), len(names))
    return Findings(
        title="What each method estimates",
        summary=_summary(rows),
        settings=_settings(rows),
        tables=(
            _on_policy(rows),
            *(_off_policy(rows, situation) for situation in SITUATIONS[1:]),
            _sizes(rows),
            _meanings(rows),
            _two_prompts(rows),
            _reasons(rows),
            _ladders(rows),
            _kl_parts(rows),
        ),
        charts=_charts(rows),
        failures=tuple(text for row in rows for text in row.failures),
    )


def _summary(rows: list[Row]) -> str:
    kinds = [row.claim.on_policy.kind for row in rows]
    worst = max(measured.deviation for row in rows for measured in row.cases.values())
    turned = [(degrees(row.at(where, 2)), row.claim.name, where) for row in rows for where in (ONE, TWO)]
    furthest, name, where = max(turned)
    return (
        f"On policy {kinds.count('unbiased')} of {len(rows)} methods are the gradient of their objective, "
        f"{kinds.count('scale')} a fixed multiple of it, and {kinds.count('biased')} another direction: in pairs "
        f"{name} turns furthest, {furthest:.0f}° on {where}. Once the policy has moved, or with another sampler, "
        "none is exact here.\n"
        f"Every mean was derived before it was measured; the two differ by {worst:.1g} of their length at most."
    )


def _settings(rows: list[Row]) -> dict[str, Cell]:
    made = {
        row.claim.name: ", ".join(f"{key} {value:g}" for key, value in row.claim.settings.items())
        for row in rows
        if row.claim.settings
    }
    return {
        "one prompt": "3 tokens, at most 2 a sequence: 7 sequences of 2 lengths, 6 reward values",
        "two prompts": "7 and 4 sequences of 1 to 3 tokens, 4 parameters shared by all",
        "KL(sampler‖policy) off policy, one prompt, nats": problem(ONE).distance(),
        "KL(sampler‖policy) off policy, two prompts, nats": problem(TWO).distance(),
        "KL coefficient": "0.1; ppo-penalty 1; dr-grpo, dapo, gspo, cispo 0, as published",
        "critic": "a wrong one, V = 0.3, 0, 1 where V^π = 0.08, 0.04, 0.46",
        "made with": "; ".join(f"{name} {text}" for name, text in made.items()),
    }


def _three(bias: Bias) -> tuple[float, float, float]:
    return bias.relative, bias.cosine, bias.moments.trace


def _on_policy(rows: list[Row]) -> Table:
    return Table(
        "On policy: one prompt, G = 2",
        ("method", "claim", "bias", "cosine", "trace", "holds"),
        tuple(
            (row.claim.name, row.claim.on_policy.brief, *_three(row.at(ONE, 2)), not row.failures)
            for row in rows
        ),
        f"bias: |E[ĝ] − ∇J| / |∇J|, its length included; J is {_objectives(rows)}. cosine: of the angle between the "
        "two, which no learning rate mends. trace: of the covariance of one batch's gradient, which grows with a "
        "method's scale.\nholds: whether everything that was measured of the method, here and below, is what its "
        f"definition gives on paper, to {UNBIASED:g}.",
    )


def _objectives(rows: list[Row]) -> str:
    """What each method is compared with, the usual objective first."""
    usual, *others = (
        objective for objective, _ in Counter(row.claim.objective for row in rows).most_common()
    )
    methods = {o: ", ".join(row.claim.name for row in rows if row.claim.objective == o) for o in others}
    return usual + "".join(f"; {objective} for {names}" for objective, names in methods.items())


OFF_POLICY = {
    "stale": "The policy has moved {:.3g} nats, KL(sampler‖policy), since the batch was sampled, as in a later update "
    "on it.",
    "mismatch": "The sampler is {:.3g} nats, KL(sampler‖policy), from a trainer that has not moved.",
}


def _off_policy(rows: list[Row], situation: Situation) -> Table:
    return Table(
        f"{situation.capitalize()}: one prompt, G = 2",
        ("method", "bias", "cosine", "trace"),
        tuple((row.claim.name, *_three(row.at(ONE, 2, situation))) for row in rows),
        OFF_POLICY[situation].format(problem(ONE).distance()),
    )


def _two_prompts(rows: list[Row]) -> Table:
    return Table(
        "Two prompts that share all parameters, G = 2",
        ("method", "bias", "cosine", "stale", "cosine", "mismatch", "cosine"),
        tuple(
            (row.claim.name, *(number for s in SITUATIONS for number in _three(row.at(TWO, 2, s))[:2]))
            for row in rows
        ),
        f"Pairs of bias and cosine: on policy, and {problem(TWO).distance():.3g} nats off it. Where sequences share "
        "parameters their gradients partly cancel, and what is left of them turns further.",
        detail=True,
    )


def _reasons(rows: list[Row]) -> Table:
    return Table(
        "Where the biases come from",
        ("method", *SITUATIONS),
        tuple(
            (row.claim.name, *(", ".join(row.claim.standing(s).sources) for s in SITUATIONS)) for row in rows
        ),
        "`rung verify METHOD` says what each of them is.",
        detail=True,
    )


def _sizes(rows: list[Row]) -> Table:
    columns = [f"{name} G={size}" for name in ("bias", "trace") for size in SIZES]
    return Table(
        "More samples: one prompt, on policy",
        ("method", *(name if name.endswith("=2") else name[-3:] for name in columns)),
        tuple(
            (
                row.claim.name,
                *(row.at(ONE, size).relative for size in SIZES),
                *(row.at(ONE, size).moments.trace for size in SIZES),
            )
            for row in rows
        ),
        "What comes from whitening, a random token count or a mean at each step goes away as the batch grows; "
        "what comes from 1/L, from the KL, or from a spread for each prompt stays.",
    )


def _ladders(rows: list[Row]) -> Table:
    return Table(
        "The biases on policy, taken out one after the other",
        ("method", "change", "bias", "cosine"),
        tuple(
            (row.claim.name, what, bias.relative, bias.cosine)
            for row in rows
            if len(row.ladder) > 1
            for what, bias in row.ladder
        ),
        "One prompt, G = 2, on policy. Each line keeps the changes above it; after the last one nothing is left.",
        detail=True,
    )


def _kl_parts(rows: list[Row]) -> Table:
    return Table(
        "What the KL alone does",
        ("method", "KL", "cosine with −∇KL(π‖other)", "cosine with −∇KL(other‖π)", "as derived"),
        tuple(
            (
                row.claim.name,
                row.kl.words,
                cosine(row.kl.push, row.kl.kl_policy_other),
                cosine(row.kl.push, row.kl.kl_other_policy),
                row.kl.holds,
            )
            for row in rows
        ),
        "The mean with the KL less the mean without. other: the reference, or the old policy (on stale samples, since "
        "on policy that one pushes nowhere). KL(π‖other) is of whole sequences, KL(other‖π) at the sampled prefixes.",
        detail=True,
    )


def _meanings(rows: list[Row]) -> Table:
    return Table(
        "What it means", ("method", "in practice"), tuple((r.claim.name, r.claim.meaning) for r in rows)
    )


def degrees(bias: Bias) -> float:
    """The angle between E[ĝ] and ∇J."""
    return float(np.degrees(np.arccos(np.clip(bias.cosine, -1.0, 1.0))))


def _charts(rows: list[Row]) -> tuple[Chart, ...]:
    sizes = tuple(float(size) for size in SIZES)
    turned = tuple(
        Line(row.claim.name, sizes, tuple(degrees(row.at(ONE, size)) for size in SIZES))
        for row in rows
        if row.claim.on_policy.kind == "biased"
    )
    noise = tuple(
        Line(row.claim.name, sizes, tuple(row.at(ONE, size).moments.trace for size in SIZES))
        for row in rows
        if row.claim.on_policy.kind == "unbiased"
    )
    charts = (
        Chart("How far the biased ones turn", "samples for each prompt", "degrees off the gradient", turned),
        Chart("How noisy the unbiased ones are", "samples for each prompt", "covariance trace", noise),
    )
    return tuple(chart for chart in charts if chart.lines)
