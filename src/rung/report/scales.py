"""Axes: round ticks, and numbers as people write them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


def format_number(value: float, digits: int = 3) -> str:
    """A number in few characters: plain where that is short, otherwise a power of ten.

    >>> [format_number(x) for x in (0.0, 0.12345, 3.0, 12345.0, 0.000021, -0.5, 2.5e7)]
    ['0', '0.123', '3', '12,345', '2.1e-5', '-0.5', '2.5e7']
    """
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    plain = f"{value:,.{decimals}f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def format_alike(values: Sequence[float]) -> list[str]:
    """Numbers to be compared, with the same number of decimals.

    >>> format_alike([0.299, 0.67])
    ['0.299', '0.670']
    """
    largest = max(map(abs, values), default=0.0)
    if not 1e-2 <= largest < 1e5:
        return [format_number(value) for value in values]
    decimals = max(0, 2 - math.floor(math.log10(largest)))
    return [f"{value:,.{decimals}f}" for value in values]


def format_duration(seconds: float) -> str:
    """A duration as people say it.

    >>> [format_duration(x) for x in (0.25, 12.34, 75.0, 3720.0)]
    ['0.25 s', '12.3 s', '1 min 15 s', '1 h 2 min']
    """
    if seconds < 60:
        return f"{format_number(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values (1, 2 or 5 times a power of ten apart) that lie within [low, high].

    >>> nice_ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((factor * power for factor in (1, 2, 5) if factor * power >= rough * 0.75), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    decimals = max(0, -math.floor(math.log10(step)))
    return [round(index * step, decimals) for index in range(first, last + 1)]


@dataclass(frozen=True)
class Axis:
    """Maps values to positions along an axis.

    Attributes:
        low: the value at `start`.
        high: the value at `end`.
        start: position of `low`, in drawing units.
        end: position of `high`.
        logarithmic: equal distances are equal factors.
    """

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Where a value lies."""
        low, high = self.low, self.high
        if self.logarithmic:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int = 5, *, whole: bool = False) -> list[float]:
        """Values to write along the axis; `whole` keeps to whole numbers."""
        if not self.logarithmic:
            ticks = nice_ticks(self.low, self.high, count)
            return [tick for tick in ticks if tick == round(tick)] or [round(self.low)] if whole else ticks
        first, last = round(math.log10(self.low)), round(math.log10(self.high))
        stride = max(1, math.ceil((last - first) / count))
        return [10.0**exponent for exponent in range(first, last + 1, stride)]


def linear_axis(
    values: Sequence[float], start: float, end: float, *, bounds: tuple[float, float] | None = None
) -> Axis:
    """A linear axis around the values, or over given bounds. Zero is included when it is near."""
    if bounds is not None and all(bounds[0] <= value <= bounds[1] for value in values):
        return Axis(*bounds, start, end)
    low, high = min(values), max(values)
    if high - low <= max(1e-12 * max(abs(low), abs(high)), 1e-290):
        pad = abs(low) * 0.1 if abs(low) > 1e-280 else 1.0
        return Axis(low - pad, high + pad, start, end)
    pad = (high - low) * 0.06
    bottom = 0.0 if 0 <= low < 0.5 * high else low - pad
    top = 0.0 if 0.5 * low < high <= 0 else high + pad
    return Axis(bottom, top, start, end)


def log_axis(values: Sequence[float], start: float, end: float) -> Axis | None:
    """A logarithmic axis over whole decades, or None where the positive values span less than one."""
    positive = [value for value in values if value > 0]
    if not positive or max(positive) < 10 * min(positive):
        return None
    low = 10.0 ** math.floor(math.log10(min(positive)))
    high = 10.0 ** math.ceil(math.log10(max(positive)))
    return Axis(low, high, start, end, logarithmic=True)
