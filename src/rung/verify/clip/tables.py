"""What clipping does: six regions, their edges, whole objectives, and how far the ratio goes all the same.

    ρ = π(a|s)/π_old(a|s)          slope = d(−loss)/d log π

Each loss of rung's is differentiated by autograd, on one token at a time (GSPO on a sequence of two), and compared with
the piecewise derivative by hand (rung.verify.clip.claims); then on every sequence of toy C, and over repeated steps.
"""

from rung.verify.clip.cells import CLIPS, EDGES, Clip
from rung.verify.clip.claims import Piece
from rung.verify.clip.steps import COMPARED, steps
from rung.verify.clip.toy import corrections, objectives
from rung.verify.findings import Cell, Chart, Findings, Line, Table

TOLERANCE = 1e-12
REGIONS = ((0.5, "below"), (1.0, "inside"), (1.5, "above"), (4.0, "far above"))
GRID = tuple(k / 10 for k in range(1, 41))
STEP = 2.0**-20  # beside an edge
VALUED = tuple(name for name in CLIPS if name != "CISPO 2")


def _compared(name: str, clip: Clip, ratio: float, credit: float, failures: list[str]) -> Piece:
    """What autograd gives; a sentence where the derivation by hand says otherwise."""
    found = Piece(*(part or 0.0 for part in clip.measure(ratio, credit)))  # no −0
    wanted = clip.piece(ratio, credit)
    for what, value, exact in zip(("objective", "slope"), found, wanted, strict=True):
        if abs(value - exact) > TOLERANCE * max(1.0, abs(exact)):
            failures.append(
                f"{name}, Ψ = {credit:g}, ρ = {ratio:g}: the {what} is {value:g}, by hand {exact:g}"
            )
    return found


def regions() -> tuple[list[Table], list[str]]:
    """Slope and value of every loss in every region."""
    failures: list[str] = []
    slopes: list[tuple[Cell, ...]] = []
    values: list[tuple[Cell, ...]] = []
    for credit in (1.0, -1.0):
        for ratio, where in REGIONS:
            pieces = [_compared(name, clip, ratio, credit, failures) for name, clip in CLIPS.items()]
            row = f"Ψ = {credit:+.0f}, ρ = {ratio:g}, {where}"
            slopes.append((row, *(piece.slope for piece in pieces)))
            values.append(
                (row, *(p.objective for p, name in zip(pieces, CLIPS, strict=True) if name in VALUED))
            )
    return [
        Table(
            "d(−loss)/d log π",
            ("region", *CLIPS),
            tuple(slopes),
            "0: clipped. The clip's gradient vanishes in two of the four outer regions only: Ψ > 0 above the window "
            "and Ψ < 0 below it. CISPO caps the weight and drops no token. GSPO: ρ is the whole sequence's, here of "
            "two tokens with ratios 2ρ and ρ/2, and the slope all its tokens' together.",
        ),
        Table(
            "−loss",
            ("region", *VALUED),
            tuple(values),
            "Without CISPO, whose value means nothing: it is a constant weight times log π.",
        ),
    ], failures


def edges() -> tuple[Table, list[str]]:
    """Slopes beside and exactly on each bound of a window [0.5, 2] and a dual clip at 4."""
    failures: list[str] = []
    rows: list[tuple[Cell, ...]] = []
    for name, clip in EDGES.items():
        for edge, credit in ((0.5, 1.0), (2.0, 1.0), (0.5, -1.0), (2.0, -1.0), (4.0, -1.0)):
            if edge == 4.0 and name != "dual clip":
                continue
            beside = (edge - STEP, edge, edge + STEP)
            found = [_compared(f"{name} at an edge", clip, ratio, credit, failures).slope for ratio in beside]
            rows.append((f"{name}, Ψ = {credit:+.0f}, ρ = {edge:g}", *(round(slope, 5) for slope in found)))
    return (
        Table(
            "Slopes at the edges of a window from 0.5 to 2, dual clip at 4",
            ("edge", "just below", "on it", "just above"),
            tuple(rows),
            "Exactly on an edge of the window torch keeps the gradient; exactly on the dual clip it keeps half of it.",
        ),
        failures,
    )


def curves() -> list[Chart]:
    """Objective and slope over ρ, for both signs of Ψ."""
    charts = []
    for credit, sign in ((1.0, "Ψ = +1"), (-1.0, "Ψ = −1")):
        for what, title in (("objective", "−loss"), ("slope", "d(−loss)/d log π")):
            shown = COMPARED if what == "objective" else (*COMPARED, "CISPO 2")
            lines = [
                Line(name, GRID, tuple(getattr(CLIPS[name].measure(ratio, credit), what) for ratio in GRID))
                for name in shown
            ]
            charts.append(Chart(f"{title}, {sign}", "ρ", "reward units", tuple(lines)))
    return charts


def survey() -> Findings:
    """Regions, edges, objectives, repeated steps and what ratios correct.

    Exactness:
        `failures` is empty. Checked by tests/verify/test_clip.py::test_every_claim_holds, and the numbers by
        ::test_the_slopes_are_those_of_the_six_regions, ::test_recorded_objectives_of_toy_c and those beside them.
    """
    by_region, wrong_regions = regions()
    at_edges, wrong_edges = edges()
    family, wrong_family = objectives()
    by_step, over_steps, wrong_steps = steps()
    correction, distance, wrong_corrections = corrections()
    return Findings(
        title="What clipping the importance ratio does, and what it does not",
        summary=SUMMARY,
        settings={"window": "0.8 to 1.2 unless said otherwise", "Ψ": "+1 and −1 in the regions"},
        tables=(*by_region, at_edges, family, *by_step, correction),
        charts=(*curves(), *over_steps, distance),
        failures=(*wrong_regions, *wrong_edges, *wrong_family, *wrong_steps, *wrong_corrections),
    )


SUMMARY = (
    "Outside the window the gradient is 0 only for Ψ > 0 above it and for Ψ < 0 below it; in the other two outer "
    "regions it is alive, and pulls back.\n"
    "Clipping does not bound ρ: the first step knows no clip, and what one token loses others gain.\n"
    "E_old[ρ] = 1 always, so that a mean ratio measures no divergence. Token ratios leave the prefixes to the old "
    "policy."
)
