"""All methods side by side."""

from collections import Counter
from collections.abc import Callable, Iterable

from rung.verify.bias import Bias
from rung.verify.catalogue.check import UNBIASED, Case, build, measure
from rung.verify.catalogue.kl_part import cosine, kl_part
from rung.verify.catalogue.ladder import climb
from rung.verify.catalogue.row import ONE, SIZES, TWO, Row
from rung.verify.claims import CLAIMS, Claim
from rung.verify.enumeration import SITUATIONS, Situation
from rung.verify.findings import Cell, Chart, Findings, Line, Table, coinciding
from rung.verify.unbiased import problem_named

CASES = (
    *(Case(ONE, 2, situation) for situation in SITUATIONS),
    *(Case(ONE, size) for size in SIZES[1:]),
    *(Case(TWO, 2, situation) for situation in SITUATIONS),
)


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
    kinds = Counter(str(row.claim.on_policy.kind) for row in rows)
    words = {
        "unbiased": "the gradient of their objective",
        "scale": f"a fixed multiple of {'it' if kinds['unbiased'] else 'the gradient of their objective'}",
        "biased": "another direction",
    }
    counted = [f"{kinds[kind]} {what}" for kind, what in words.items() if kinds[kind]]
    listed = " and ".join([*([", ".join(counted[:-1])] if counted[1:] else []), counted[-1]])
    first, _, rest = listed.partition(" ")
    worst = max(measured.deviation for row in rows for measured in row.cases.values())
    return (
        f"On policy {first} of {len(rows)} methods are {rest}{_furthest(rows)}. {_off_policy_in_words(rows)}\n"
        f"Every mean was derived before it was measured; the two differ by {worst:.1g} of their length at most."
    )


def _furthest(rows: list[Row]) -> str:
    """Which of the biased ones turns most."""
    turned = [
        (row.at(where, 2).degrees, row.claim.name, where)
        for row in rows
        if row.claim.on_policy.kind == "biased"
        for where in (ONE, TWO)
    ]
    if not turned:
        return ""
    furthest, name, where = max(turned)
    return f": in pairs {name} turns furthest, {furthest:.2g}° on {where}"


def _off_policy_in_words(rows: list[Row]) -> str:
    exact = [
        row.claim.name
        for row in rows
        if any(row.at(where, 2, s).relative <= UNBIASED for where in (ONE, TWO) for s in SITUATIONS[1:])
    ]
    left = f"only {', '.join(exact)} may be exact" if exact else "none is exact here"
    return f"Once the policy has moved, or with another sampler, {left}."


def _settings(rows: list[Row]) -> dict[str, Cell]:
    made = [
        f"{row.claim.name} " + ", ".join(f"{key} {value:g}" for key, value in row.claim.settings.items())
        for row in rows
        if row.claim.settings
    ]
    asked = any("values" in build(row.claim).needs for row in rows)
    return {
        "one prompt": "3 tokens, at most 2 a sequence: 7 sequences of 2 lengths, 6 reward values",
        "two prompts": "7 and 4 sequences of 1 to 3 tokens, 4 parameters shared by all",
        "KL(sampler‖policy) off policy, one prompt, nats": problem_named(ONE).distance(),
        "KL(sampler‖policy) off policy, two prompts, nats": problem_named(TWO).distance(),
        "KL coefficient": _by_most(rows, lambda claim: f"{claim.beta:g}", "{1} {0}"),
        **({"critic": "a wrong one, V = 0.3, 0, 1 where V^π = 0.08, 0.04, 0.46"} if asked else {}),
        **({"made with": "; ".join(made)} if made else {}),
    }


def _by_most(rows: list[Row], of: Callable[[Claim], str], words: str) -> str:
    """What is most usual among the methods, and then what the others have, with their names."""
    usual, *others = (what for what, _ in Counter(of(row.claim) for row in rows).most_common())
    names = {what: ", ".join(row.claim.name for row in rows if of(row.claim) == what) for what in others}
    return "; ".join([usual, *(words.format(what, who) for what, who in names.items())])


def _three(bias: Bias) -> tuple[float, float, float]:
    return bias.relative, bias.cosine, bias.moments.trace


def _on_policy(rows: list[Row]) -> Table:
    objectives = _by_most(rows, lambda claim: claim.objective, "{0} for {1}")
    return Table(
        "On policy: one prompt, G = 2",
        ("method", "claim", "bias", "cosine", "trace", "holds"),
        tuple(
            (row.claim.name, row.claim.on_policy.brief, *_three(row.at(ONE, 2)), not row.failures)
            for row in rows
        ),
        f"bias: |E[ĝ] − ∇J| / |∇J|, its length included; J is {objectives}. cosine: of the angle between the "
        "two, which no learning rate mends. trace: of the covariance of one batch's gradient, which grows with a "
        "method's scale.\nholds: whether everything that was measured of the method, here and below, is what its "
        f"definition gives on paper, to {UNBIASED:g}.",
    )


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
        OFF_POLICY[situation].format(problem_named(ONE).distance()),
    )


def _two_prompts(rows: list[Row]) -> Table:
    return Table(
        "Two prompts that share all parameters, G = 2",
        ("method", "bias", "cosine", "stale", "cosine", "mismatch", "cosine"),
        tuple(
            (row.claim.name, *(number for s in SITUATIONS for number in _three(row.at(TWO, 2, s))[:2]))
            for row in rows
        ),
        f"Pairs of bias and cosine: on policy, and {problem_named(TWO).distance():.3g} nats off it. Where sequences "
        "share parameters their gradients partly cancel, and what is left of them turns further.",
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
    columns = [f"{name} G={size}" for name in ("cosine", "trace") for size in SIZES]
    return Table(
        "More samples: one prompt, on policy",
        ("method", *(name if name.endswith("=2") else name[-3:] for name in columns)),
        tuple(
            (
                row.claim.name,
                *(row.at(ONE, size).cosine for size in SIZES),
                *(row.at(ONE, size).moments.trace for size in SIZES),
            )
            for row in rows
        ),
        "Where a bias comes from whitening, a random token count or a mean at each step, its direction heals as the "
        "batch grows; where it comes from 1/L, from the KL, or from a spread for each prompt, it stays.",
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


def _charts(rows: list[Row]) -> tuple[Chart, ...]:
    sizes = tuple(float(size) for size in SIZES)
    turned = tuple(
        Line(row.claim.name, sizes, tuple(row.at(ONE, size).degrees for size in SIZES))
        for row in rows
        if row.claim.on_policy.kind == "biased"
    )
    noise = tuple(
        Line(row.claim.name, sizes, tuple(row.at(ONE, size).moments.trace for size in SIZES))
        for row in rows
        if row.claim.on_policy.kind == "unbiased"
    )
    charts = (
        ("How far the biased ones turn", "degrees off the gradient", turned),
        ("How noisy the unbiased ones are", "covariance trace", noise),
    )
    return tuple(
        Chart(title, "samples for each prompt", y_label, lines, coinciding(lines))
        for title, y_label, lines in charts
        if lines
    )
