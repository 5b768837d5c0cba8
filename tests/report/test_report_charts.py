"""What is drawn is what the numbers say: marks against axis labels, sums of bars, smoothing by hand."""

import math
import random
import re

import pytest

from rung.report.scales import format_duration, format_number, linear_axis, log_axis, nice_ticks
from rung.report.series import Point, Series, number, points, smooth, smoothing_window, spread, thin
from rung.report.svg import Bar, line_chart, stacked_bars


def ticks_of(svg: str) -> list[tuple[float, float]]:
    """The y axis as it is written: (position, value)."""
    found = re.findall(
        r'<text class="tick" x="44" y="([\d.]+)" dy=".32em" text-anchor="end">([^<]+)</text>', svg
    )
    return [(float(y), float(value.replace(",", ""))) for y, value in found]


def dots_of(svg: str) -> list[tuple[float, float]]:
    """The drawn dots: (position, value)."""
    found = re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)" r="[\d.]+" data-x="[^"]+" data-y="([^"]+)"', svg)
    return [(float(y), float(value)) for y, value in found]


def series(values: list[float | None], **options) -> Series:
    return Series("s", tuple(Point(float(i), value) for i, value in enumerate(values)), 1, **options)


@pytest.mark.parametrize(
    "values", [[0.1, 0.42, 0.9], [-3.0, 7.0, 2.5], [1200.0, 56000.0, 31000.0], [2e-5, 9e-5, 4e-5]]
)
def test_dots_stand_where_the_axis_labels_put_their_values(values):
    """Each dot's height, interpolated between two written labels, is its value to 0.1 drawing units."""
    svg = line_chart([series(values)], title="t", y_label="u")
    (y0, v0), *_, (y1, v1) = ticks_of(svg)
    dots = dots_of(svg)
    assert [value for _, value in dots] == values
    for y, value in dots:
        assert abs(y - (y0 + (value - v0) / (v1 - v0) * (y1 - y0))) <= 0.11


def test_a_logarithmic_axis_places_by_factors():
    values = [2e-6, 3e-5, 4e-4]
    svg = line_chart([series(values)], title="t", y_label="u", logarithmic=True)
    (y0, v0), *_, (y1, v1) = ticks_of(svg)
    for y, value in dots_of(svg):
        expected = y0 + math.log(value / v0) / math.log(v1 / v0) * (y1 - y0)
        assert abs(y - expected) <= 0.11


def test_a_zero_on_a_logarithmic_axis_is_a_cross_and_all_zeros_use_a_linear_one():
    svg = line_chart([series([0.0, 1e-5, 1e-3])], title="t", y_label="u", logarithmic=True)
    assert svg.count('class="low"') == 1
    flat = line_chart([series([0.0, 0.0])], title="t", y_label="u", logarithmic=True)
    assert 'class="low"' not in flat
    assert len(dots_of(flat)) == 2


def test_a_value_that_is_not_finite_is_a_cross_and_a_gap_in_the_line():
    svg = line_chart([series([1.0, 2.0, None, 4.0])], title="t", y_label="u")
    assert svg.count('class="bad"') == 1
    assert "is not a finite number" in svg
    (path,) = re.findall(r'class="line thin" d="([^"]*)"', svg)
    assert path.count("M") == 2


def test_nothing_but_missing_values_still_draws():
    svg = line_chart([series([None, None])], title="t", y_label="u")
    assert svg.count('class="bad"') == 2
    assert "no finite value" in svg


def test_error_bars_span_the_interval():
    point = Point(3.0, 0.5, 0.4, 0.65)
    svg = line_chart([Series("e", (point,), 2, "square")], title="t", y_label="u", bounds=(0.0, 1.0))
    (y0, v0), *_, (y1, v1) = ticks_of(svg)
    (low, high) = re.search(r'class="bar" d="M[\d.]+ ([\d.]+)h6M[\d.]+ ([\d.]+)h6', svg).groups()
    for drawn, value in ((low, 0.4), (high, 0.65)):
        assert abs(float(drawn) - (y0 + (value - v0) / (v1 - v0) * (y1 - y0))) <= 0.11
    assert 'data-low="0.4" data-high="0.65"' in svg


def test_bars_are_as_high_as_their_parts_and_stand_on_each_other():
    bars = [Bar(1.0, "step 1", {"a": 1.0, "b": 2.0}), Bar(2.0, "step 2", {"b": 0.5})]
    svg = stacked_bars(bars, ["a", "b"], title="t", y_label="s")
    rects = re.findall(
        r'y="([\d.]+)" width="[\d.]+" height="([\d.]+)" data-x="(\d+)" data-part="(\w)" data-y="([\d.]+)"',
        svg,
    )
    (y0, v0), *_, (y1, v1) = ticks_of(svg)
    unit = (y0 - y1) / (v1 - v0)
    tops = {(x, part): float(y) for y, _, x, part, _ in rects}
    assert [(part, float(value)) for *_, part, value in rects] == [("a", 1.0), ("b", 2.0), ("b", 0.5)]
    for y, height, x, part, value in rects:
        assert abs(float(height) - float(value) * unit) <= 0.2
        floor = tops[x, "a"] if part == "b" and x == "1" else y0
        assert abs(float(y) + float(height) - floor) <= 0.2


def test_smoothing_is_the_centered_mean_of_the_points_that_exist():
    assert smooth([1.0, 2.0, 6.0, 3.0, 8.0], 3) == [1.5, 3.0, 11 / 3, 17 / 3, 5.5]
    assert smooth([4.0, 1.0], 1) == [4.0, 1.0]


@pytest.mark.parametrize("count", [1, 12, 40, 200, 5000])
def test_the_window_is_odd_and_small_against_the_series(count):
    window = smoothing_window(count)
    assert window % 2 == 1
    assert window == 1 or 3 <= window <= max(3, count / 4)


def test_the_drawn_line_of_a_noisy_series_is_its_moving_mean():
    rng = random.Random(1)
    values = [rng.random() for _ in range(48)]
    svg = line_chart([series(values, noisy=True)], title="t", y_label="u", bounds=(0.0, 1.0))
    (path,) = re.findall(r'class="line" d="M([^"]*)"', svg)
    drawn = [float(pair.split(" ")[1]) for pair in path.split("L")]
    (y0, v0), *_, (y1, v1) = ticks_of(svg)
    window = smoothing_window(48)
    half = window // 2
    for index, y in enumerate(drawn):
        part = values[max(0, index - half) : index + half + 1]
        mean = sum(part) / len(part)
        assert abs(y - (y0 + (mean - v0) / (v1 - v0) * (y1 - y0))) <= 0.11


def test_thinning_keeps_ends_and_extremes():
    rng = random.Random(2)
    values = [rng.gauss(0, 1) for _ in range(5000)]
    values[3210] = 99.0
    values[77] = -99.0
    kept = thin(series(values).points, 200)
    assert len(kept) <= 200
    assert {0.0, 77.0, 3210.0, 4999.0} <= {point.x for point in kept}


def test_ticks_are_round_inside_and_few():
    rng = random.Random(3)
    for _ in range(200):
        low = rng.uniform(-1, 1) * 10 ** rng.randint(-6, 6)
        high = low + abs(rng.gauss(0, 1)) * 10 ** rng.randint(-6, 6) + 1e-9
        ticks = nice_ticks(low, high)
        slack = 1e-6 * (high - low)
        assert 2 <= len(ticks) <= 8
        assert all(low - slack <= tick <= high + slack for tick in ticks)


@pytest.mark.parametrize("values", [[0.0], [1e-320, 2e-320], [1e299, -1e299], [5.0, 5.0], [1.0, 1.0 + 1e-16]])
def test_axes_hold_at_the_edges_of_floating_point(values):
    axis = linear_axis(values, 0.0, 100.0)
    assert all(0 <= axis(value) <= 100 for value in values)
    assert axis.ticks()


def test_log_axis_needs_a_decade():
    assert log_axis([1.0, 5.0], 0, 1) is None
    assert log_axis([0.0, -1.0], 0, 1) is None
    assert log_axis([1.0, 50.0], 0, 1).high == 100.0


def test_numbers_that_are_none():
    assert [number(x) for x in (None, "1", True, math.nan, math.inf, 10**400, [1])] == [None] * 7
    assert number(10**30) == 1e30


def test_points_keep_intervals_only_for_the_reward():
    record = {"step": 4, "reward_mean": 0.5, "reward_low": 0.4, "reward_high": 0.6, "length_mean": 3}
    assert points([record], "reward_mean") == (Point(4.0, 0.5, 0.4, 0.6),)
    assert points([record], "length_mean") == (Point(4.0, 3.0),)
    assert points([record], "absent") == ()


def test_spread_has_both_ends():
    assert spread(3, 8) == [0, 1, 2]
    assert spread(100, 3) == [0, 50, 99]
    assert spread(100, 1) == [0]
    assert spread(0, 4) == []


def test_durations_and_negative_numbers_read_well():
    assert format_duration(7322) == "2 h 2 min"
    assert format_number(-1234.5) == "-1,234"
    assert format_number(math.nan) == "not finite"
