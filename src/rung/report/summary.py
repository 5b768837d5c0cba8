"""The top of the page: which run this is, how far it came, and what it changed."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rung.report.load import Record, Run, setting
from rung.report.rollouts import PairedChange
from rung.report.scales import format_alike, format_duration, format_number, linear_axis
from rung.report.series import Point, number, points, smoothing_window
from rung.report.text import escape

_STAGES = {"rl": "reinforcement learning", "sft": "supervised fine-tuning"}


def planned_steps(config: Mapping[str, object]) -> int | None:
    """How many steps the recipe asks for, if it says so."""
    training = config.get("training")
    steps = training.get("steps") if isinstance(training, Mapping) else None
    return steps if isinstance(steps, int) and not isinstance(steps, bool) else None


def last_step(run: Run) -> int:
    """The last step that any line speaks of."""
    return max((int(record["step"]) for record in run.metrics), default=0)


def status(run: Run) -> tuple[str, str]:
    """How far the run came, as (kind, words); kind is "done", "open" or "bad"."""
    step, planned = last_step(run), planned_steps(run.config)
    far = f"step {step:,}" + (f" of {planned:,}" if planned is not None else "")
    loss = points(run.train, "loss")
    if loss and loss[-1].y is None:
        return "bad", f"loss not finite at step {format_number(loss[-1].x, 9)}"
    if run.finished is not None or (planned is not None and step >= planned):
        return "done", f"finished at {far}"
    if not run.metrics:
        return "open", "nothing recorded yet"
    return "open", f"at {far}: stopped, or still running"


def header(run: Run) -> str:
    """Name, stage, method, model, start and status."""
    kind, words = status(run)
    stage = "sft" if run.supervised else "rl" if run.train else ""
    facts = [
        ("stage", _STAGES.get(stage, "")),
        ("method", setting(run.config, "method")),
        ("model", _model(run)),
        ("task", setting(run.config, "task")),
        ("started", _when(run.environment.get("started"))),
        ("ended", _when(run.finished)),
    ]
    items = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts if value)
    title = f'<h1>{escape(run_name(run))}</h1><p class="status {kind}">{escape(words)}</p>'
    return f'{title}<dl class="facts">{items}</dl>'


def _model(run: Run) -> str:
    """The model that the run started from; a folder beside the folder of all runs by its short path."""
    name = setting(run.config, "model")
    home = run.directory.resolve().parent.parent
    path = Path(name)
    return str(path.relative_to(home)) if path.is_absolute() and path.is_relative_to(home) else name


def run_name(run: Run) -> str:
    """The name in the recipe, or the folder's."""
    return setting(run.config, "name") or run.directory.resolve().name


def _when(moment: object) -> str:
    text = "" if moment is None else str(moment).strip()
    return text[:19].replace("T", " ") + (" UTC" if text.endswith(("Z", "+00:00")) else "")


def _tile(label: str, value: str, below: str = "", extra: str = "", *, wide: bool = False) -> str:
    small = f"<small>{escape(below)}</small>" if below else ""
    name = "tile wide" if wide else "tile"
    return f'<div class="{name}"><dt>{escape(label)}</dt><dd>{escape(value)}{small}{extra}</dd></div>'


def _ends(found: Sequence[Point]) -> tuple[Point, Point] | None:
    finite = [point for point in found if point.y is not None]
    return (finite[0], finite[-1]) if finite else None


def _arrow(first: Point, last: Point) -> str:
    values = format_alike([first.y or 0.0, last.y or 0.0])
    return values[0] if first.x == last.x else " → ".join(values)


def _steps(first: Point, last: Point) -> str:
    steps = dict.fromkeys(format_number(point.x, 9) for point in (first, last))
    return f"step {' → '.join(steps)}"


def _interval_drawing(ends: Sequence[Point]) -> str:
    """Before and after with their intervals on one axis."""
    values = [value for point in ends for value in (point.y, point.low, point.high) if value is not None]
    axis = linear_axis(values, 8, 392, bounds=(0.0, 1.0))
    parts: list[str] = []
    for row, point in enumerate(ends):
        y = 8 + 13 * row
        if point.low is not None and point.high is not None:
            parts.append(f'<path class="bar" d="M{axis(point.low):.1f} {y}H{axis(point.high):.1f}"/>')
        parts.append(f'<circle cx="{axis(point.y or 0.0):.1f}" cy="{y}" r="4" data-y="{point.y!r}"/>')
    base = 13 * len(ends) + 4
    parts.append(f'<line class="axis" x1="8" x2="392" y1="{base}" y2="{base}"/>')
    for x, anchor, value in ((8, "start", axis.low), (392, "end", axis.high)):
        place = f'x="{x}" y="{base + 13}" text-anchor="{anchor}"'
        parts.append(f'<text class="tick" {place}>{format_number(value)}</text>')
    return f'<svg class="strip s2" viewBox="0 0 400 {base + 16}" aria-hidden="true">{"".join(parts)}</svg>'


def _signed(values: Sequence[float]) -> list[str]:
    texts = format_alike([abs(value) for value in values])
    return [("−" if value < 0 else "+") + text for value, text in zip(values, texts, strict=True)]


def _paired_words(change: PairedChange) -> str:
    half = change.half_width or 0.0
    middle, low, high = _signed([change.change, change.change - half, change.change + half])
    interval = f" (95 %: {low} to {high})" if change.half_width is not None else ""
    counts = f"{change.better:,} better, {change.worse:,} worse"
    return f"Paired over {change.prompts:,} prompts: {middle}{interval}; {counts}."


def _evaluation_words(record: Record, point: Point) -> str:
    """When, how much, how sure."""
    when = "before training" if point.x == 0 else f"step {format_number(point.x, 9)}"
    if point.low is None or point.high is None:
        return f"{when}: no interval recorded"
    low, high = format_alike([point.low, point.high])
    judged = number(record.get("n"))
    return f"{when}: {low} to {high} (95 %" + ("" if judged is None else f", n = {int(judged):,}") + ")"


def _reward_tile(run: Run, split: str, paired: Sequence[PairedChange]) -> str:
    evaluations = run.evaluations(split)
    ends = _ends(points(evaluations, "reward_mean"))
    if ends is None:
        return ""
    shown = ends if ends[0].x != ends[1].x else ends[:1]
    words = [_evaluation_words(_at(evaluations, point.x), point) for point in shown]
    words += [_paired_words(change) for change in paired if change.split == split]
    lines = "".join(f"<small>{escape(line)}</small>" for line in words)
    return _tile(
        f"Held-out reward, {split}", _arrow(*ends), extra=lines + _interval_drawing(shown), wide=True
    )


def _at(records: Sequence[Record], step: float) -> Record:
    return next(record for record in records if float(record["step"]) == step)


def _either(run: Run, held_out_key: str, train_key: str, label: str, unit: str) -> str:
    """A tile of first → last, from held-out evaluations if there are any, otherwise from training."""
    for split in run.splits:
        ends = _ends(points(run.evaluations(split), held_out_key))
        if ends is not None:
            return _tile(label, _arrow(*ends), f"{unit}, {split}, {_steps(*ends)}")
    ends = _ends(points(run.train, train_key))
    return "" if ends is None else _tile(label, _arrow(*ends), f"{unit}, training, {_steps(*ends)}")


def _kl_tile(run: Run) -> str:
    unit = "nats per sequence from the reference"
    for split in run.splits:
        ends = _ends(points(run.evaluations(split), "kl_policy_reference"))
        if ends is not None:
            (value,), last = format_alike([ends[1].y or 0.0]), ends[1]
            words = f"{unit}, {split}, step {format_number(last.x, 9)}"
            if last.low is not None and last.high is not None:
                words += f" (95 %: {' to '.join(format_alike([last.low, last.high]))})"
            return _tile("KL spent", value, words)
    values = [point.y for point in points(run.train, "kl_policy_reference_k1") if point.y is not None]
    if not values:
        return ""
    recent = values[-smoothing_window(len(values)) :]
    (value,) = format_alike([math.fsum(recent) / len(recent)])
    return _tile("KL spent", value, f"{unit}, training, mean of the last {len(recent)} step(s)")


def _total(records: Sequence[Record], key: str) -> float | None:
    values = [value for record in records if (value := number(record.get(key))) is not None]
    return math.fsum(values) if values else None


def _work_tiles(run: Run) -> str:
    tiles: list[str] = []
    steps, seconds = len(run.train), _total(run.timing, "total")
    tokens, completions = _total(run.train, "tokens"), _total(run.train, "completions")
    planned = planned_steps(run.config)
    if steps:
        tiles.append(_tile("Steps", f"{steps:,}", f"of {planned:,} planned" if planned else ""))
    if seconds is not None:
        below = f"in {len(run.timing):,} steps, {format_duration(seconds / len(run.timing))} each"
        tiles.append(_tile("Time", format_duration(seconds), below))
    if tokens is not None:
        below = f"in {int(completions):,} completions" if completions is not None else "trained on"
        tiles.append(_tile("Tokens", f"{int(tokens):,}", below))
    return "".join(tiles)


def summary(run: Run, paired: Sequence[PairedChange]) -> str:
    """Before → after, with what it cost."""
    reward = "".join(_reward_tile(run, split, paired) for split in run.splits)
    if not reward:
        words = (
            "No held-out evaluation was recorded: nothing here says how well the model does on new problems."
        )
        return f'<p class="note">{words}</p>' + f'<dl class="tiles">{_train_reward(run)}{_cost(run)}</dl>'
    return f'<dl class="tiles">{reward}{_cost(run)}</dl>'


def _cost(run: Run) -> str:
    length = _either(run, "length_mean", "length_mean", "Length", "tokens")
    stopped = _either(run, "stop_fraction", "stop_fraction", "Stopped by itself", "fraction")
    return _kl_tile(run) + length + stopped + _work_tiles(run)


def _train_reward(run: Run) -> str:
    key = "loss" if run.supervised else "reward_mean"
    ends = _ends(points(run.train, key))
    label = "Training loss" if run.supervised else "Training reward"
    return "" if ends is None else _tile(label, _arrow(*ends), "first → last step, single steps")
