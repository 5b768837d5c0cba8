"""Coefficients that are steered by a measured divergence: published steps, both directions, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.errors import InvalidInput
from rung.kl import AdaptiveKL, DoublingKL

ADAPTIVE = AdaptiveKL(coefficient=0.5, target=2.0, horizon=1000)
DOUBLING = DoublingKL(coefficient=0.5, target=0.03)


@pytest.mark.parametrize(
    ("kl", "coefficient"),
    [
        (0.0, 0.25),
        (0.0199, 0.25),  # below target/1.5 = 0.02
        (0.0201, 0.5),
        (0.03, 0.5),
        (0.0449, 0.5),
        (0.0451, 1.0),  # above 1.5 · target = 0.045
        (7.0, 1.0),
    ],
)
def test_the_coefficient_is_halved_below_the_band_and_doubled_above_it(kl, coefficient):
    assert DOUBLING.update(kl, 256).coefficient == pytest.approx(coefficient, abs=1e-15)
    assert DOUBLING.coefficient == 0.5
    assert DOUBLING.update(kl, 1) == DOUBLING.update(kl, 10**6)


def test_steps_are_forgotten_and_the_target_is_kept():
    controller = DOUBLING
    for kl in (1.0, 1.0, 0.03, 0.0):
        controller = controller.update(kl, 8)
    assert controller == DoublingKL(coefficient=1.0, target=0.03)


def test_the_edges_of_the_band_are_inside():
    """A target of 1.5: the band is [1, 2.25], exactly."""
    controller = DoublingKL(coefficient=1.0, target=1.5)
    assert [controller.update(kl, 1).coefficient for kl in (1.0, 2.25)] == [1.0, 1.0]
    assert controller.update(math.nextafter(1.0, 0.0), 1).coefficient == 0.5
    assert controller.update(math.nextafter(2.25, 3.0), 1).coefficient == 2.0


@given(st.floats(0.0, 100.0), st.integers(0, 500))
def test_both_push_the_same_way_outside_the_band(kl, sequences):
    """Too far: a larger coefficient. Too near: a smaller one. A target of 2 for both."""
    doubling = DoublingKL(coefficient=1.0, target=2.0).update(kl, sequences).coefficient
    adaptive = AdaptiveKL(coefficient=1.0, target=2.0, horizon=1000).update(kl, sequences).coefficient
    if kl > 3.0:
        assert doubling == 2.0
        assert adaptive == pytest.approx(1 + 0.2 * sequences / 1000, abs=1e-12)
    elif kl < 2 / 1.5:
        assert doubling == 0.5
        assert adaptive == pytest.approx(1 + max(kl / 2 - 1, -0.2) * sequences / 1000, abs=1e-12)


@pytest.mark.parametrize("controller", [ADAPTIVE, DOUBLING], ids=["adaptive", "doubling"])
@pytest.mark.parametrize("kl", [math.nan, math.inf, -1e-9, -3.0])
def test_a_measurement_that_is_no_divergence_is_refused(controller, kl):
    """NaN passes every comparison as false: the coefficient would be NaN for ever, or never move again."""
    with pytest.raises(InvalidInput, match="finite and ≥ 0"):
        controller.update(kl, 256)


@pytest.mark.parametrize("controller", [ADAPTIVE, DOUBLING], ids=["adaptive", "doubling"])
def test_a_negative_number_of_sequences_is_refused(controller):
    with pytest.raises(InvalidInput, match="-1 sequences"):
        controller.update(1.0, -1)


@pytest.mark.parametrize("setting", [{"coefficient": -0.1}, {"target": 0.0}, {"target": math.nan}])
def test_settings_that_cannot_work_are_refused(setting):
    with pytest.raises(InvalidInput, match="target > 0"):
        DoublingKL(**({"coefficient": 0.1, "target": 1.0} | setting))
    with pytest.raises(InvalidInput, match="target > 0"):
        AdaptiveKL(**({"coefficient": 0.1, "target": 1.0, "horizon": 10.0} | setting))


def test_a_coefficient_of_zero_stays_off_and_small_targets_work():
    for controller in (
        AdaptiveKL(coefficient=0.0, target=0.01, horizon=1.7),
        DoublingKL(coefficient=0.0, target=0.01),
    ):
        assert controller.update(1.0, 8).coefficient == 0.0
