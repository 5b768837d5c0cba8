"""A panel as a figure: the chart, its legend, what the lines are, what each number means, and the numbers."""

from collections.abc import Mapping, Sequence

from rung.report.panels import Panel, TimePanel
from rung.report.scales import format_number
from rung.report.series import Point, Series, smoothing_window, spread, thin
from rung.report.svg import line_chart, marker, stacked_bars
from rung.report.text import escape
from rung.tracking.definitions import METRICS, Metric

TABLE_ROWS = 40


def definition_list(metrics: Sequence[Metric]) -> str:
    """Metrics with everything that is known about them."""
    parts: list[str] = []
    for metric in metrics:
        rows = (
            ("formula", metric.formula),
            ("normalizer", metric.normaliser),
            ("expected", metric.expected),
            ("when odd", metric.odd),
        )
        lines = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in rows)
        parts.append(
            f'<h4>{escape(metric.label)} <code>{escape(metric.name)}</code></h4><dl class="def">{lines}</dl>'
        )
    return "".join(parts)


def one_line_definitions(keys: Sequence[str]) -> str:
    """The visible line for each metric of a figure, with the rest folded."""
    known = [METRICS[key] for key in dict.fromkeys(keys) if key in METRICS]
    foreign = [key for key in dict.fromkeys(keys) if key not in METRICS]
    lines = [f"<p><b>{escape(metric.label)}</b>: {escape(metric.one_line)}</p>" for metric in known]
    lines += [
        f"<p><b>{escape(key)}</b>: recorded by this run; not a metric that rung defines.</p>"
        for key in foreign
    ]
    folded = (
        f"<details><summary>How it is computed</summary>{definition_list(known)}</details>" if known else ""
    )
    return f'<div class="defs">{"".join(lines)}</div>{folded}'


def legend(series: Sequence[Series]) -> str:
    """What each line's color and mark stand for."""
    items: list[str] = []
    for one in series:
        swatch = f'<path class="line" d="M1 6H23"/>{marker(one.marker, 12, 6, 3)}'
        items.append(
            f'<li><svg class="swatch s{one.color}" viewBox="0 0 24 12" aria-hidden="true">{swatch}</svg>'
            f"{escape(one.label)}</li>"
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _caption(panel: Panel) -> str:
    """What the marks are, and what was left out of the drawing."""
    said: list[str] = []
    windows = {
        smoothing_window(sum(p.y is not None for p in one.points)) for one in panel.series if one.noisy
    }
    for window in sorted(windows - {1}):
        said.append(f"Dots: steps as recorded; line: centered moving mean over {window} steps.")
    if any(point.low is not None for one in panel.series for point in one.points):
        said.append("Bars: 95 % intervals.")
    if panel.logarithmic and any(p.y == 0 for one in panel.series for p in one.points):
        said.append("A zero has no place on a logarithmic axis: a cross at the bottom.")
    most = max(len(one.points) for one in panel.series)
    drawn = max(len(thin(one.points)) for one in panel.series)
    if drawn < most:
        said.append(f"{drawn} of {most:,} dots drawn: the lowest and highest of each stretch.")
    for one in panel.series:
        gaps = [format_number(point.x, 9) for point in one.points if point.y is None]
        if gaps:
            listed = ", ".join(gaps[:5]) + (", …" if len(gaps) > 5 else "")
            said.append(
                f"{one.label}: {len(gaps)} value(s) not finite, a cross at the bottom (step {listed})."
            )
    return f'<p class="note">{escape(" ".join(said))}</p>' if said else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], more: str = "") -> str:
    """A folded table of numbers."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f"<details><summary>Numbers</summary>{more}"
        f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div></details>'
    )


def _numbers(series: Sequence[Series]) -> str:
    columns = [{point.x: point for point in one.points} for one in series]
    steps = sorted({x for column in columns for x in column})
    sparse = {x for one in series if not one.noisy for x in (point.x for point in one.points)}
    chosen = {steps[index] for index in spread(len(steps), TABLE_ROWS)}
    if len(sparse) <= TABLE_ROWS:
        chosen |= sparse
    rows = [[format_number(x, 9), *(_cell(column, x) for column in columns)] for x in sorted(chosen)]
    more = f'<p class="note">{len(rows)} of {len(steps):,} steps; all are in metrics.jsonl.</p>'
    return table(
        ["step", *(one.label.replace(" (held out)", "") for one in series)],
        rows,
        more if len(rows) < len(steps) else "",
    )


def _cell(column: Mapping[float, Point], x: float) -> str:
    point = column.get(x)
    if point is None:
        return ""
    return "not finite" if point.y is None else format_number(point.y, 4)


def figure(panel: Panel) -> str:
    """One panel as a figure."""
    chart = line_chart(
        panel.series,
        title=panel.title,
        y_label=panel.y_label,
        bounds=panel.bounds,
        logarithmic=panel.logarithmic,
    )
    return (
        f"<figure><figcaption>{escape(panel.title)}</figcaption>{chart}{legend(panel.series)}{_caption(panel)}"
        f"{one_line_definitions([one.key for one in panel.series])}{_numbers(panel.series)}</figure>"
    )


def time_figure(panel: TimePanel) -> str:
    """Time per phase as a figure."""
    chart = stacked_bars(panel.bars, panel.order, title="Time per phase", y_label="seconds per step")
    items = "".join(
        f'<li><svg class="swatch s{color}" viewBox="0 0 24 12" aria-hidden="true">'
        f'<rect x="6" width="12" height="12"/></svg>{escape(name)}</li>'
        for color, name in enumerate(panel.order, start=1)
    )
    words = f"Each bar is the mean of {panel.steps_per_bar} steps. " if panel.steps_per_bar > 1 else ""
    if "other" in panel.order:
        words += "other: time of the step that no phase measured."
    rows = [
        [format_number(bar.step, 9), *(format_number(bar.parts.get(name, 0.0)) for name in panel.order)]
        for bar in panel.bars
    ]
    keys = [name for name in panel.order if name != "other"]
    return (
        f'<figure><figcaption>Time per phase</figcaption>{chart}<ul class="legend">{items}</ul>'
        f'<p class="note">{escape(words)}</p>{one_line_definitions(keys)}'
        f"{table(['step', *panel.order], rows)}</figure>"
    )
