"""Points over steps: made from records, smoothed, thinned."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Point:
    """One value at one step; `y` is None where the recorded value was not a finite number.

    Attributes:
        x: the step.
        y: the value.
        low: lower end of its 95 % interval, where it has one.
        high: upper end.
    """

    x: float
    y: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """A named sequence of points and how it is drawn.

    Attributes:
        label: what the legend says.
        points: in the order of their steps.
        color: which of the page's colors, from 1.
        marker: "dot", "square" or "diamond", so that color is not the only difference.
        noisy: draw a smoothed line through many points instead of joining them.
        key: the metric's key.
    """

    label: str
    points: tuple[Point, ...]
    color: int
    marker: str = "dot"
    noisy: bool = False
    key: str = ""


def number(value: object) -> float | None:
    """A record's value as a finite float, or None (missing, NaN, infinite or close to it, not a number).

    >>> number(3), number(float("nan")), number("3"), number(True)
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if abs(value) < 1e300 else None
    except OverflowError:
        return None


def interval_keys(key: str) -> tuple[str, str]:
    """Where the ends of a value's interval stand.

    >>> interval_keys("reward_mean")
    ('reward_low', 'reward_high')
    """
    stem = key.removesuffix("_mean")
    return f"{stem}_low", f"{stem}_high"


def points(records: Iterable[Mapping[str, Any]], key: str, *, absolute: bool = False) -> tuple[Point, ...]:
    """The points of one key; records without the key give none, a null or non-finite value gives a gap."""
    found: list[Point] = []
    low, high = interval_keys(key)
    for record in records:
        if key in record:
            y = number(record[key])
            y = abs(y) if absolute and y is not None else y
            ends = (
                (number(record[low]), number(record[high]))
                if low in record and high in record
                else (None, None)
            )
            found.append(Point(float(record["step"]), y, *ends))
    return tuple(found)


def smoothing_window(count: int) -> int:
    """Points in the centered mean, odd; 1 (no smoothing) for a short series.

    >>> [smoothing_window(n) for n in (11, 12, 100, 2000)]
    [1, 3, 9, 101]
    """
    if count < 12:
        return 1
    return max(3, min(101, count // 12 + 1 - (count // 12) % 2))


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Centered moving mean; at the ends, of those points of the window that exist.

    >>> smooth([0.0, 3.0, 6.0, 0.0], 3)
    [1.5, 3.0, 3.0, 3.0]
    """
    half = window // 2
    result: list[float] = []
    for index in range(len(values)):
        part = values[max(0, index - half) : index + half + 1]
        result.append(math.fsum(part) / len(part))
    return result


def thin(series: Sequence[Point], limit: int = 220) -> list[Point]:
    """At most `limit` points that keep the first, the last, and the lowest and highest of each stretch."""
    if len(series) <= limit:
        return list(series)
    stretches = max(1, (limit - 2) // 2)
    kept = {0, len(series) - 1}
    for stretch in range(stretches):
        indices = range(stretch * len(series) // stretches, (stretch + 1) * len(series) // stretches)
        finite = [(series[index].y, index) for index in indices if series[index].y is not None]
        if finite:
            kept |= {min(finite)[1], max(finite)[1]}
        elif indices:
            kept.add(indices[0])
    return [series[index] for index in sorted(kept)]


def spread(count: int, limit: int) -> list[int]:
    """Indices of at most `limit` of `count` items, evenly spaced, first and last among them.

    >>> spread(10, 4)
    [0, 3, 6, 9]
    """
    if count <= limit:
        return list(range(count))
    if limit == 1:
        return [0]
    return sorted({round(index * (count - 1) / (limit - 1)) for index in range(limit)})
