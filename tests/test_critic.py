"""Losses of the critic: by hand, region by region, and what must not enter."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.aggregation import Totals, sequence_mean, sequence_sum, token_mean
from rung.critic import clipped_value_loss, value_loss
from rung.errors import InvalidInput
from tests.batches import INF, NAN, close, f64, flags, gradient, leaf

ONE = f64([[1.0]])


def clipped(value, old, target, clip=0.2):
    """Loss and derivative by V of one value."""
    values = leaf([[value]])
    loss = clipped_value_loss(values, f64([[old]]), f64([[target]]), ONE, clip=clip)
    return loss.item(), gradient(loss, values).item()


def test_value_loss_by_hand():
    """½ (4/2 + 1/4 + 9/4) with weights ½, ¼, ¼; the gradient is w (V − R)."""
    values = leaf([[3.0, 1.0], [-1.0, 8.0]])
    returns, weights = f64([[1.0, 2.0], [2.0, 5.0]]), f64([[0.5, 0.25], [0.25, 0.0]])
    loss = value_loss(values, returns, weights)
    close(loss, 0.5 * (4 * 0.5 + 1 * 0.25 + 9 * 0.25))
    close(gradient(loss, values), [[1.0, -0.25], [-0.75, 0.0]])


def test_case_E4_the_old_value_is_that_of_the_rollout():
    """V_old 0.5, V 1.2, R 1, ε 0.2: held at 0.7, ½ max(0.04, 0.09) = 0.045. With V_old read again it is 0.02."""
    assert clipped(1.2, 0.5, 1.0) == pytest.approx((0.045, 0.0), abs=1e-12)
    assert clipped(1.2, 1.2, 1.0) == pytest.approx((0.02, 0.2), abs=1e-12)


def test_case_N7_the_larger_error_counts_by_design():
    """Held at 0.7 the error is 0.05² where the value's own is 0.75²: the maximum, and its gradient."""
    assert clipped(1.4, 0.5, 0.65) == pytest.approx((0.5 * 0.75**2, 0.75), abs=1e-12)


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "slope"),
    [
        (0.6, 0.5, 2.0, 0.5 * 1.4**2, -1.4),  # inside: the plain loss
        (0.3, 0.5, 0.0, 0.5 * 0.3**2, 0.3),  # at the bound: kept
        (0.9, 0.5, 2.0, 0.5 * 1.3**2, 0.0),  # moved far enough towards the target: held at 0.7
        (0.1, 0.5, -1.0, 0.5 * 1.3**2, 0.0),  # likewise below: held at 0.3
        (0.1, 0.5, 2.0, 0.5 * 1.9**2, -1.9),  # moved away from it: alive
        (2.0, 0.5, 1.0, 0.5 * 1.0**2, 1.0),  # far past it, by more than the held value falls short: alive
        (1.2, 0.5, 1.0, 0.5 * 0.3**2, 0.0),  # past it, by less: held
        (1.0, 0.5, 0.5, 0.5 * 0.5**2, 0.5),  # the target was the old value
    ],
)
def test_clipped_value_loss_by_hand(value, old, target, loss, slope):
    assert clipped(value, old, target) == pytest.approx((loss, slope), abs=1e-12)


@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(-3, 3), st.floats(0.05, 1.0))
def test_the_gradient_is_zero_only_past_the_clip_on_the_way_to_the_target(value, old, target, clip):
    loss, slope = clipped(value, old, target, clip)
    held = min(max(value, old - clip), old + clip)
    if abs(abs(held - target) - abs(value - target)) < 1e-9 and held != value:
        return  # which of two equal errors is differentiated is a matter of rounding
    cut = abs(value - old) > clip + 1e-12 and abs(held - target) > abs(value - target)
    assert loss == pytest.approx(0.5 * max((held - target) ** 2, (value - target) ** 2), abs=1e-12)
    assert slope == pytest.approx(0.0 if cut else value - target, abs=1e-12)


def test_of_two_equal_errors_the_live_one_counts():
    """Held at 0.75 and the value at 1.25, the target between: ½ · ¼² either way, and the gradient is kept."""
    assert clipped(1.25, 0.5, 1.0, clip=0.25) == pytest.approx((0.03125, 0.25), abs=1e-12)


def test_a_clip_that_is_never_reached_is_the_plain_loss():
    values, returns = leaf([[3.0, 1.0], [-1.0, 8.0]]), f64([[1.0, 2.0], [2.0, 5.0]])
    weights = f64([[0.5, 0.25], [0.25, 0.0]])
    wide = clipped_value_loss(values, torch.zeros_like(returns), returns, weights, clip=1e9)
    close(wide, value_loss(values, returns, weights).detach())
    close(gradient(wide, values), gradient(value_loss(values, returns, weights), values))


@pytest.mark.parametrize("junk", [NAN, INF, -INF])
def test_what_has_no_weight_is_not_read(junk):
    mask = flags([[1, 0], [1, 1]])
    weights = token_mean(mask)

    def spoilt(x):
        return torch.where(mask, f64(x), junk)

    values = spoilt([[1.0, 0.0], [2.0, 4.0]]).requires_grad_()
    old, returns = spoilt([[1.0, 0.0], [2.0, 4.0]]), spoilt([[0.0, 0.0], [3.0, 1.0]])
    for loss in (
        value_loss(values, returns, weights),
        clipped_value_loss(values, old, returns, weights, clip=1.0),
    ):
        close(loss, 0.5 * (1 + 1 + 9) / 3)
        close(gradient(loss, values), [[1 / 3, 0.0], [-1 / 3, 1.0]])


def test_targets_and_old_values_are_constants():
    """Returns made of the values themselves, R = A + V: only the first V may move."""
    values = leaf([[0.5, 2.0]])
    weights = f64([[0.5, 0.5]])
    close(gradient(value_loss(values, values + 1.0, weights), values), [[-0.5, -0.5]])
    loss = clipped_value_loss(values, values - 0.1, values + 1.0, weights, clip=0.2)
    close(gradient(loss, values), [[-0.5, -0.5]])
    held = clipped_value_loss(values, values - 0.5, values + 1.0, weights, clip=0.2)
    close(held, 0.5 * 1.3**2)
    close(gradient(held, values), [[0.0, 0.0]])


def test_pieces_with_the_totals_of_the_whole_add_up():
    generator = torch.Generator().manual_seed(3)
    values, old, returns = (torch.randn(5, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    mask = flags([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1], [1, 0, 0, 0]])
    for aggregation in (sequence_sum, sequence_mean, token_mean):
        whole = clipped_value_loss(values, old, returns, aggregation(mask), clip=0.3)
        totals = Totals(sequences=4, tokens=10)
        parts = [
            clipped_value_loss(
                values[rows], old[rows], returns[rows], aggregation(mask[rows], totals), clip=0.3
            )
            for rows in ([0, 3], [1, 2], [4])
        ]
        close(sum(parts), whole)


def test_float32_values_meet_float64_returns_without_losing_digits():
    values = torch.tensor([[1.0]], requires_grad=True)
    target = f64([[1.0 + 1e-9]])
    close(value_loss(values, target, ONE), 0.5e-18, atol=1e-24)
    assert gradient(value_loss(values, target, ONE), values).item() == pytest.approx(-1e-9, rel=1e-6)


def test_case_H11_nothing_is_broadcast():
    column, row = f64([[0.5], [1.5]]), f64([[0.5, 1.5]])
    for arguments in ((column, row, row), (row, row, column)):
        with pytest.raises(InvalidInput, match="same shape"):
            value_loss(*arguments)
    with pytest.raises(InvalidInput, match="same shape"):
        clipped_value_loss(row, column, row, row, clip=0.2)


@pytest.mark.parametrize("odd", ["values", "returns", "weights"])
def test_one_argument_of_another_shape_is_named(odd):
    arguments = dict.fromkeys(["values", "returns", "weights"], f64([[0.5, 1.5]]))
    arguments[odd] = arguments[odd].T
    with pytest.raises(InvalidInput, match=rf"same shape.* {odd} \(2, 1\)"):
        value_loss(**arguments)


@pytest.mark.parametrize("odd", ["values", "old_values", "returns", "weights"])
def test_one_argument_of_another_shape_is_named_also_with_a_clip(odd):
    arguments = dict.fromkeys(["values", "old_values", "returns", "weights"], f64([[0.5, 1.5]]))
    arguments[odd] = arguments[odd].T
    with pytest.raises(InvalidInput, match=rf"same shape.* {odd} \(2, 1\)"):
        clipped_value_loss(**arguments, clip=0.2)


@pytest.mark.parametrize("clip", [0.0, -0.2, NAN])
def test_the_clip_is_positive(clip):
    with pytest.raises(InvalidInput, match="positive"):
        clipped_value_loss(ONE, ONE, ONE, ONE, clip=clip)
