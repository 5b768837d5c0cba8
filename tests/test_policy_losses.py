import math

import pytest
import torch

from rung.errors import InvalidInput
from rung.policy_losses import clipped_loss, importance_weighted_loss, policy_gradient_loss
from tests.batches import close, f64, gradient, leaf

WITH_RATIO = [importance_weighted_loss, clipped_loss]


def ratio_and_slope(loss, ratio, credit, **settings):
    """Value and derivative by log π at one token of a given ratio."""
    policy = leaf([math.log(ratio) - 1.3])
    value = loss(policy, f64([-1.3]), f64([credit]), **settings)
    return value.item(), gradient(value, policy).item()


def test_policy_gradient_loss_by_hand():
    policy, credit = leaf([[-0.5, -2.0]]), f64([[2.0, -3.0]])
    loss = policy_gradient_loss(policy, credit)
    close(loss, [[1.0, -6.0]])
    close(gradient(loss, policy), [[-2.0, 3.0]])


def test_importance_weighted_loss_by_hand():
    """ρ = 2 and ½; the derivative of −ρΨ by log π is −ρΨ itself."""
    policy, old = leaf([[-1.0, -2.0]]), f64([[-1.0 - math.log(2), -2.0 + math.log(2)]])
    loss = importance_weighted_loss(policy, old, f64([[3.0, -4.0]]))
    close(loss, [[-6.0, 2.0]])
    close(gradient(loss, policy), [[-6.0, 2.0]])


@pytest.mark.parametrize(
    ("ratio", "credit", "value", "slope"),
    [
        (1.5, 1.0, -1.2, 0.0),  # good and already likelier: clipped
        (1.5, -1.0, 1.5, 1.5),  # bad and likelier: alive, unbounded
        (1.1, 1.0, -1.1, -1.1),  # inside
        (1.1, -1.0, 1.1, 1.1),
        (0.9, 2.0, -1.8, -1.8),
        (0.5, 1.0, -0.5, -0.5),  # good and rarer: alive
        (0.5, -1.0, 0.8, 0.0),  # bad and already rarer: clipped
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_clipped_loss_by_hand(ratio, credit, value, slope):
    assert ratio_and_slope(clipped_loss, ratio, credit) == pytest.approx((value, slope), abs=1e-12)


def test_the_two_bounds_are_separate():
    bounds = {"clip_low": 0.1, "clip_high": 0.4}
    assert ratio_and_slope(clipped_loss, 1.3, 1.0, **bounds) == pytest.approx((-1.3, -1.3), abs=1e-12)
    assert ratio_and_slope(clipped_loss, 1.5, 1.0, **bounds) == pytest.approx((-1.4, 0.0), abs=1e-12)
    assert ratio_and_slope(clipped_loss, 0.95, -1.0, **bounds) == pytest.approx((0.95, 0.95), abs=1e-12)
    assert ratio_and_slope(clipped_loss, 0.85, -1.0, **bounds) == pytest.approx((0.9, 0.0), abs=1e-12)


def test_default_bounds_are_a_fifth_on_each_side():
    assert ratio_and_slope(clipped_loss, 1.19, 1.0) == pytest.approx((-1.19, -1.19), abs=1e-12)
    assert ratio_and_slope(clipped_loss, 1.21, 1.0) == pytest.approx((-1.2, 0.0), abs=1e-12)
    assert ratio_and_slope(clipped_loss, 0.81, -1.0) == pytest.approx((0.81, 0.81), abs=1e-12)
    assert ratio_and_slope(clipped_loss, 0.79, -1.0) == pytest.approx((0.8, 0.0), abs=1e-12)


def test_dual_clip_bounds_the_loss_of_bad_tokens_and_of_no_other():
    assert ratio_and_slope(clipped_loss, 10.0, -1.0, dual_clip=3.0) == pytest.approx((3.0, 0.0), abs=1e-12)
    assert ratio_and_slope(clipped_loss, 2.0, -1.0, dual_clip=3.0) == pytest.approx((2.0, 2.0), abs=1e-12)
    assert ratio_and_slope(clipped_loss, 0.5, -1.0, dual_clip=3.0) == pytest.approx((0.8, 0.0), abs=1e-12)
    # For a good token c Ψ = 3 would be above the objective: it must not be raised to it.
    assert ratio_and_slope(clipped_loss, 1.1, 1.0, dual_clip=3.0) == pytest.approx((-1.1, -1.1), abs=1e-12)
    assert ratio_and_slope(clipped_loss, 10.0, 1.0, dual_clip=3.0) == pytest.approx((-1.2, 0.0), abs=1e-12)


@pytest.mark.parametrize(
    "setting", [{"clip_low": -0.1}, {"clip_low": 1.1}, {"clip_high": -0.1}, {"dual_clip": 1.0}]
)
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(InvalidInput, match="clipping needs"):
        clipped_loss(f64([0.0]), f64([0.0]), f64([1.0]), **setting)


def test_case_E6_the_old_logprobs_stay_where_the_update_began():
    """Old −1.0, now −0.7, credit +1: ρ = e^0.3 is clipped. Read again from the policy, ρ would be 1, slope −1."""
    policy = leaf([-0.7])
    loss = clipped_loss(policy, f64([-1.0]), f64([1.0]))
    close(loss, [-1.2])
    close(gradient(loss, policy), [0.0])
    close(importance_weighted_loss(policy, f64([-1.0]), f64([1.0])), [-math.exp(0.3)])


@pytest.mark.parametrize("loss", WITH_RATIO)
def test_case_E7_tokens_are_paired_with_themselves(loss):
    """The sampler's and the trainer's log-probs of the same tokens: every ratio is 1, the loss −Ψ."""
    logprobs, credit = f64([[-0.5, -1.2, -0.3]]), f64([[1.0, 2.0, -4.0]])
    close(loss(logprobs, logprobs.clone(), credit), [[-1.0, -2.0, 4.0]])


@pytest.mark.parametrize("loss", [policy_gradient_loss, *WITH_RATIO])
def test_case_H11_nothing_is_broadcast(loss):
    column, row = f64([[-0.5], [-1.5]]), f64([-0.5, -1.5])
    arguments = {policy_gradient_loss: (column, row)}.get(loss, (column, column, row))
    with pytest.raises(InvalidInput, match="same shape"):
        loss(*arguments)
    if loss is not policy_gradient_loss:
        with pytest.raises(InvalidInput, match="same shape"):
            loss(column, row, column)


@pytest.mark.parametrize("loss", WITH_RATIO)
def test_case_N1_the_ratio_is_new_over_old(loss):
    """The policy has made the token 1.1 times likelier: ρ = 1.1, not 1/1.1."""
    assert ratio_and_slope(loss, 1.1, 1.0) == pytest.approx((-1.1, -1.1), abs=1e-12)


def test_case_N2_the_loss_of_a_bad_token_is_unbounded_by_design():
    assert ratio_and_slope(clipped_loss, 10.0, -1.0) == pytest.approx((10.0, 10.0), abs=1e-12)


def test_case_N6_a_loss_of_zero_is_not_a_gradient_of_zero():
    """Ratio 1, credit ±1: the values cancel, the gradients do not."""
    policy, credit = leaf([[-0.4, -0.4]]), f64([[1.0, -1.0]])
    for loss in WITH_RATIO:
        value = loss(policy, torch.full_like(policy, -0.4).detach(), credit)
        close(value.sum(), 0.0)
        close(gradient(value, policy), [[-1.0, 1.0]])
