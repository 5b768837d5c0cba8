"""Which plots a run has: a panel for each question, drawn only when its numbers exist."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rung.report.load import Run
from rung.report.scales import format_number
from rung.report.series import Series, interval_keys, number, points
from rung.report.svg import Bar
from rung.tracking.definitions import METRICS

_HELD_OUT = {"validation": (2, "square"), "test": (3, "diamond")}
_NOT_DRAWN = {"step", "kind", "split", "n", "updates"}
_PHASES = ("collect", "reward", "annotate", "update", "record")
_NOT_PHASES = {"step", "kind", "split", "total", "tokens_per_second"}
MOST_BARS = 40


@dataclass(frozen=True)
class Panel:
    """One plot.

    Attributes:
        title: what it shows.
        y_label: quantity and unit.
        series: what is drawn.
        bounds: the y axis, if the values lie within.
        logarithmic: equal distances are equal factors.
    """

    title: str
    y_label: str
    series: tuple[Series, ...]
    bounds: tuple[float, float] | None = None
    logarithmic: bool = False


@dataclass(frozen=True)
class TimePanel:
    """Time per phase: bars over stretches of steps."""

    bars: tuple[Bar, ...]
    order: tuple[str, ...]
    steps_per_bar: int


def label_of(key: str) -> str:
    """What a person calls a metric; a key of the user's own stays as it is."""
    return METRICS[key].label if key in METRICS else key


def unit_of(key: str) -> str:
    """A metric's unit."""
    return METRICS[key].unit if key in METRICS else "as recorded"


def _series(
    run: Run, train: Sequence[str], held_out: Sequence[str], absolute: Iterable[str] = ()
) -> tuple[Series, ...]:
    """Training series of some keys, then the held-out series of each split."""
    found: list[Series] = []
    several = len(train) > 1
    for key, color in zip(train, (1, 4, 5), strict=False):
        flat = key in absolute
        label = (label_of(key) if several else "training") + (", absolute value" if flat else "")
        found.append(Series(label, points(run.train, key, absolute=flat), color, noisy=True, key=key))
    for split in run.splits:
        for key in held_out:
            color, marker = _HELD_OUT.get(split, (6, "square"))
            label = f"{split} (held out)"
            found.append(Series(label, points(run.evaluations(split), key), color, marker, key=key))
    return tuple(series for series in found if series.points)


def _candidates(run: Run) -> list[Panel]:
    """All panels with a place of their own, in reading order, those without data included."""
    reward = Panel("Learning curve", "reward units", _series(run, ["reward_mean"], ["reward_mean"]))
    loss = Panel("Loss", "loss", _series(run, ["loss"], ["loss"]))
    full = _series(run, [], ["full_reward"])
    exact = Panel("Held-out exact match", "fraction right", full or reward.series, (0.0, 1.0))
    if run.supervised:
        loss = Panel("Loss", "nats per token", loss.series)
    ratios = ["sampler_logratio_max", "sampler_logratio_p99", "sampler_logratio_mean"]
    kl = ["kl_policy_reference_k1", "kl_policy_reference_k3"]
    return [
        *((loss, exact) if run.supervised else (reward,)),
        Panel("KL(policy‖reference)", "nats per sequence", _series(run, kl, ["kl_policy_reference"])),
        Panel("Entropy", "nats per token", _series(run, ["entropy"], [])),
        Panel("Completion length", "tokens", _series(run, ["length_mean"], ["length_mean"])),
        Panel(
            "Stopped by itself", "fraction", _series(run, ["stop_fraction"], ["stop_fraction"]), (0.0, 1.0)
        ),
        *(() if run.supervised else (loss,)),
        Panel("Gradient norm", "norm, before clipping", _series(run, ["grad_norm"], [])),
        Panel(
            "Sampler against trainer",
            "nats, log scale",
            _series(run, ratios, [], ratios[2:]),
            logarithmic=True,
        ),
    ]


def main_panels(run: Run) -> list[Panel]:
    """The panels that every reader should see."""
    return [panel for panel in _candidates(run) if panel.series]


def _numeric_keys(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys with numbers, but for those that are ends of another key's interval, or repeat another key."""
    keys = {key: None for record in records for key in record if number(record[key]) is not None}
    ends = {end for key in keys for end in interval_keys(key)}
    if all(record.get("full_reward") == record.get("reward_mean") for record in records):
        ends.add("full_reward")
    return [key for key in keys if key not in _NOT_DRAWN | ends]


def more_panels(run: Run, main: Sequence[Panel]) -> tuple[list[Panel], dict[str, dict[str, float]]]:
    """A panel for each number that `main` does not draw; those that never changed as values by series instead."""
    drawn = {(series.key, series.marker == "dot") for panel in main for series in panel.series}
    panels: list[Panel] = []
    constant: dict[str, dict[str, float]] = {}
    evaluated = [record for split in run.splits for record in run.evaluations(split)]
    keys = dict.fromkeys([*_numeric_keys(run.train), *_numeric_keys(evaluated)])
    for key in keys:
        series = _series(run, [] if (key, True) in drawn else [key], [] if (key, False) in drawn else [key])
        if not series:
            continue
        values = [{point.y for point in one.points} for one in series]
        if len(run.train) > 1 and all(len(found) == 1 and None not in found for found in values):
            constant[key] = {one.label: one.points[0].y or 0.0 for one in series}
        else:
            panels.append(Panel(label_of(key), unit_of(key), series))
    speed = points(run.timing, "tokens_per_second")
    if speed:
        one = Series("training", speed, 1, noisy=True, key="tokens_per_second")
        panels.append(Panel("Speed", "tokens per second", (one,)))
    return panels, constant


def time_panel(run: Run) -> TimePanel | None:
    """Time per phase, each bar the mean of a stretch of steps; what no phase measured is "other"."""
    rows: list[tuple[float, dict[str, float]]] = []
    for record in run.timing:
        parts = {
            k: v for k in record if k not in _NOT_PHASES and (v := number(record[k])) is not None and v >= 0
        }
        total = number(record.get("total"))
        other = 0.0 if total is None else total - sum(parts.values())
        if total is not None and other > 0.005 * total:
            parts["other"] = other
        if parts:
            rows.append((float(record["step"]), parts))
    if not rows:
        return None
    names = {name for _, parts in rows for name in parts}
    order = (*(n for n in _PHASES if n in names), *sorted(names - {*_PHASES, "other"}), *(names & {"other"}))
    size = -(-len(rows) // MOST_BARS)
    return TimePanel(tuple(_bar(rows[i : i + size]) for i in range(0, len(rows), size)), order, size)


def _bar(rows: Sequence[tuple[float, dict[str, float]]]) -> Bar:
    first, last = rows[0][0], rows[-1][0]
    label = f"step {format_number(first, 9)}"
    if len(rows) > 1:
        label = f"mean of steps {format_number(first, 9)} to {format_number(last, 9)}"
    names = {name for _, parts in rows for name in parts}
    return Bar(first, label, {name: sum(p.get(name, 0.0) for _, p in rows) / len(rows) for name in names})
