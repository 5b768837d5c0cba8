"""Charts as inline SVG: pure functions from numbers to markup.

Every mark carries its value in `data-` attributes, unrounded, so that a reader, or a test, can take the
numbers back out. Sizes are in drawing units; the style sheet scales the drawing to its column.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rung.report.scales import Axis, format_number, linear_axis, log_axis
from rung.report.series import Point, Series, smooth, smoothing_window, spread, thin
from rung.report.text import escape

WIDTH, HEIGHT = 400, 236
LEFT, RIGHT, TOP, BOTTOM = 50, 390, 24, 202


@dataclass(frozen=True)
class Bar:
    """One stacked bar: where it stands, what it covers, and its parts from the bottom up."""

    step: float
    label: str
    parts: Mapping[str, float]


def _number(value: float) -> str:
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def _grid(y_axis: Axis) -> str:
    """Horizontal lines with their values."""
    parts: list[str] = []
    for tick in y_axis.ticks():
        y = _number(y_axis(tick))
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}"/>')
        place = f'x="{LEFT - 6}" y="{y}" dy=".32em" text-anchor="end"'
        parts.append(f'<text class="tick" {place}>{format_number(tick)}</text>')
    return "".join(parts)


def _base(ticks: Sequence[tuple[float, str]], x_label: str, y_label: str) -> str:
    """The bottom line with its labels at the given positions, and both axes' units."""
    parts = [f'<line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{BOTTOM}" y2="{BOTTOM}"/>']
    for x, label in ticks:
        place = f'x="{_number(x)}" y="{BOTTOM + 15}" text-anchor="middle"'
        parts.append(f'<text class="tick" {place}>{escape(label)}</text>')
    middle = (LEFT + RIGHT) // 2
    parts.append(f'<text class="unit" x="2" y="11">{escape(y_label)}</text>')
    parts.append(
        f'<text class="unit" x="{middle}" y="{HEIGHT - 3}" text-anchor="middle">{escape(x_label)}</text>'
    )
    return "".join(parts)


def _svg(label: str, body: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{body}</svg>'


def marker(kind: str, x: float, y: float, size: float, attributes: str = "", title: str = "") -> str:
    """One mark: a dot, square, diamond or cross centered at (x, y), with an optional tooltip."""
    inside = f"<title>{escape(title)}</title>" if title else ""
    if kind == "dot":
        return f'<circle cx="{_number(x)}" cy="{_number(y)}" r="{size}"{attributes}>{inside}</circle>'
    if kind == "square":
        shape = f"M{_number(x - size)} {_number(y - size)}h{2 * size}v{2 * size}h{-2 * size}z"
    elif kind == "diamond":
        reach = 1.4 * size
        sides = f"l{reach:.1f} {reach:.1f}l{-reach:.1f} {reach:.1f}l{-reach:.1f} {-reach:.1f}z"
        shape = f"M{_number(x)} {_number(y - reach)}{sides}"
    else:
        strokes = f"l{2 * size} {2 * size}m0 {-2 * size}l{-2 * size} {2 * size}"
        shape = f"M{_number(x - size)} {_number(y - size)}{strokes}"
    return f'<path d="{shape}"{attributes}>{inside}</path>'


def _path(points: Sequence[tuple[float, float | None]], x_axis: Axis, y_axis: Axis) -> str:
    """A line through the points that stops at gaps."""
    commands: list[str] = []
    pen_down = False
    for x, y in points:
        if y is None or (y_axis.logarithmic and y <= 0):
            pen_down = False
            continue
        commands.append(f"{'L' if pen_down else 'M'}{_number(x_axis(x))} {_number(y_axis(y))}")
        pen_down = True
    return "".join(commands)


def _interval(point: Point, x_axis: Axis, y_axis: Axis) -> str:
    if point.low is None or point.high is None:
        return ""
    x, low, high = x_axis(point.x), _number(y_axis(point.low)), _number(y_axis(point.high))
    left, width = _number(x - 3), 6
    return f'<path class="bar" d="M{left} {low}h{width}M{left} {high}h{width}M{_number(x)} {low}V{high}"/>'


def _mark(series: Series, point: Point, x_axis: Axis, y_axis: Axis, size: float, x_name: str) -> str:
    """A point's mark with its interval; a value that cannot be drawn is a cross at the bottom."""
    x = x_axis(point.x)
    data = f' data-x="{point.x:.17g}"'
    step = format_number(point.x, 9)
    if point.y is None:
        title = f"{x_name} {step}: {series.label} is not a finite number"
        return marker("cross", x, BOTTOM - 4, 3, f' class="bad"{data} data-y=""', title)
    data += f' data-y="{point.y!r}"'
    title = f"{x_name} {step}: {series.label} {format_number(point.y, 4)}"
    if point.low is not None and point.high is not None:
        data += f' data-low="{point.low!r}" data-high="{point.high!r}"'
        title += f" (95 %: {format_number(point.low, 4)} to {format_number(point.high, 4)})"
    if y_axis.logarithmic and point.y <= 0:
        return marker("cross", x, BOTTOM - 4, 3, f' class="low"{data}', title + ", below a logarithmic axis")
    return _interval(point, x_axis, y_axis) + marker(series.marker, x, y_axis(point.y), size, data, title)


def _lines(series: Series, x_axis: Axis, y_axis: Axis) -> str:
    """The line through a series: smoothed where it is noisy and long enough, otherwise through each point."""
    finite = [(point.x, point.y) for point in series.points if point.y is not None]
    window = smoothing_window(len(finite)) if series.noisy else 1
    if window > 1:
        smoothed = smooth([y for _, y in finite], window)
        drawn = thin([Point(x, y) for (x, _), y in zip(finite, smoothed, strict=True)], 300)
        return f'<path class="line" d="{_path([(p.x, p.y) for p in drawn], x_axis, y_axis)}"/>'
    if len(finite) < 3:
        return ""
    raw = [(point.x, point.y) for point in thin(series.points, 300)]
    return f'<path class="line thin" d="{_path(raw, x_axis, y_axis)}"/>'


def _x_axis(steps: Sequence[float]) -> Axis:
    low, high = min(steps), max(steps)
    if low == high:
        low, high = low - 1, high + 1
    return Axis(low, high, LEFT + 6, RIGHT - 6)


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    y_label: str,
    x_label: str = "step",
    bounds: tuple[float, float] | None = None,
    logarithmic: bool = False,
    x_name: str = "step",
    whole: bool = True,
) -> str:
    """Several series over one x axis: raw points, error bars where points have intervals, and lines.

    Args:
        series: at least one, each with at least one point.
        title: for people who hear the page.
        y_label: quantity and unit.
        x_label: quantity and unit.
        bounds: the y axis, if all values lie within.
        logarithmic: use a logarithmic y axis if the positive values span a decade.
        x_name: what stands before an x value in a tooltip.
        whole: write whole numbers only along the x axis.
    """
    points = [point for one in series for point in one.points]
    values = [
        value for point in points for value in (point.y, point.low, point.high) if value is not None
    ] or [0.0]
    decades = log_axis(values, BOTTOM, TOP) if logarithmic else None
    y_axis = decades or linear_axis(values, BOTTOM, TOP, bounds=bounds)
    x_axis = _x_axis([point.x for point in points])
    ticks = [(x_axis(tick), format_number(tick, 6)) for tick in x_axis.ticks(6, whole=whole)]
    body = [_grid(y_axis), _base(ticks, x_label, y_label)]
    for one in series:
        shown = thin(one.points)
        size = 3 if len(shown) <= 12 else 2 if len(shown) <= 60 else 1.5
        faint = " faint" if one.noisy and smoothing_window(len(one.points)) > 1 else ""
        marks = "".join(_mark(one, point, x_axis, y_axis, size, x_name) for point in shown)
        name = f'data-series="{escape(one.label)}" data-key="{escape(one.key)}"'
        lines = _lines(one, x_axis, y_axis)
        body.append(f'<g class="s{one.color}{faint}" {name}>{lines}<g class="marks">{marks}</g></g>')
    return _svg(f"{title}. {'; '.join(_in_words(one, x_name) for one in series)}", "".join(body))


def _in_words(series: Series, x_name: str) -> str:
    finite = [point for point in series.points if point.y is not None]
    if not finite:
        return f"{series.label}: no finite value"
    first, last = (
        f"{format_number(p.y or 0.0)} at {x_name} {format_number(p.x, 9)}" for p in (finite[0], finite[-1])
    )
    return f"{series.label}: {first}" + (f", {last}" if len(finite) > 1 else "")


def _stack(bar: Bar, order: Sequence[str], center: float, width: float, y_axis: Axis) -> str:
    parts: list[str] = []
    level = 0.0
    for color, name in enumerate(order, start=1):
        value = bar.parts.get(name, 0.0)
        if value > 0:
            bottom, top = y_axis(level), y_axis(level + value)
            place = f'x="{_number(center - width / 2)}" y="{top:.2f}"'
            size = f'width="{width:.1f}" height="{bottom - top:.2f}"'
            data = f'data-x="{bar.step:.17g}" data-part="{escape(name)}" data-y="{value!r}"'
            tip = escape(f"{bar.label}: {name} {format_number(value)} s")
            parts.append(f'<rect class="s{color}" {place} {size} {data}><title>{tip}</title></rect>')
            level += value
    return "".join(parts)


def stacked_bars(
    bars: Sequence[Bar], order: Sequence[str], *, title: str, y_label: str, x_label: str = "step"
) -> str:
    """One bar a stretch of steps, its parts stacked in the given order, the first at the bottom."""
    high = max(sum(bar.parts.values()) for bar in bars) or 1.0
    y_axis = Axis(0.0, high * 1.04, BOTTOM, TOP)
    slot = (RIGHT - LEFT - 4) / len(bars)
    width = min(slot * 0.82, 36.0)
    centers = [LEFT + 4 + slot * (index + 0.5) for index in range(len(bars))]
    ticks = [(centers[index], format_number(bars[index].step, 6)) for index in spread(len(bars), 6)]
    stacks = (_stack(bar, order, center, width, y_axis) for bar, center in zip(bars, centers, strict=True))
    return _svg(title, _grid(y_axis) + _base(ticks, x_label, y_label) + "".join(stacks))
