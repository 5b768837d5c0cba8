import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rung.aggregation import constant_length, sequence_mean, sequence_sum, token_mean
from rung.errors import InvalidInput
from rung.models.head import Head, picked_logprobs
from rung.policy_losses import (
    cispo_loss,
    clipped_loss,
    importance_weighted_loss,
    policy_gradient_loss,
    sequence_clipped_loss,
)
from rung.rollout.sampling import draw
from tests.batches import NAN, close, f64, flags, gradient, leaf
from tests.toys import assert_digits

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
    assert ratio_and_slope(clipped_loss, 1.1, 0.5, dual_clip=3.0) == pytest.approx((-0.55, -0.55), abs=1e-12)
    # It is c Ψ, whatever the size of either.
    assert ratio_and_slope(clipped_loss, 10.0, -2.0, dual_clip=1.5) == pytest.approx((3.0, 0.0), abs=1e-12)


def test_bounds_may_leave_no_room_and_all_of_it_below():
    """ε = 0: every ratio that a credit would push further counts as 1. ε_low = 1: no ratio is too small."""
    none = {"clip_low": 0.0, "clip_high": 0.0}
    assert ratio_and_slope(clipped_loss, 1.5, 2.0, **none) == pytest.approx((-2.0, 0.0), abs=1e-12)
    assert ratio_and_slope(clipped_loss, 0.5, -2.0, **none) == pytest.approx((2.0, 0.0), abs=1e-12)
    assert ratio_and_slope(clipped_loss, 0.01, -2.0, clip_low=1.0) == pytest.approx((0.02, 0.02), abs=1e-12)


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


@pytest.mark.parametrize("odd", ["policy_logprobs", "old_logprobs", "credit"])
@pytest.mark.parametrize("loss", [*WITH_RATIO, partial(cispo_loss, cap=2.0)], ids=["plain", "clip", "cispo"])
def test_case_H11_one_argument_of_another_shape_is_named(loss, odd):
    arguments = dict.fromkeys(["policy_logprobs", "old_logprobs", "credit"], f64([[-0.5, -1.5]]))
    arguments[odd] = arguments[odd].T
    with pytest.raises(InvalidInput, match=rf"same shape.* {odd} \(2, 1\)"):
        loss(**arguments)


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


# --- the capped weight ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "credit", "weight"),
    [
        (0.25, 2.0, 0.25),
        (1.0, -3.0, 1.0),
        (1.9, 1.0, 1.9),
        (2.5, 1.0, 2.0),
        (2.5, -1.0, 2.0),
        (50.0, 4.0, 2.0),
    ],
)
def test_cispo_by_hand(ratio, credit, weight):
    """Cap 2 and not 1 + 2. The slope by log π is −min(ρ, 2) Ψ, also beyond the cap: no token drops out."""
    logprob = math.log(ratio) - 1.3
    value, slope = ratio_and_slope(cispo_loss, ratio, credit, cap=2.0)
    assert slope == pytest.approx(-weight * credit, abs=1e-12)
    assert value == pytest.approx(-weight * credit * logprob, abs=1e-12)


def test_the_cap_of_cispo_is_a_ratio_and_not_a_distance():
    for cap in (1.0, 1.5):
        assert ratio_and_slope(cispo_loss, 2.0, 3.0, cap=cap)[1] == pytest.approx(-3.0 * cap, abs=1e-12)
    for wrong in (0.28, 0.0, -1.0, NAN):
        with pytest.raises(InvalidInput, match="the largest ratio itself"):
            cispo_loss(f64([0.0]), f64([0.0]), f64([1.0]), cap=wrong)


def test_an_absurd_ratio_leaves_cispo_finite():
    policy = torch.tensor([-1.0], requires_grad=True)
    slope = gradient(cispo_loss(policy, torch.tensor([-200.0]), torch.tensor([1.0]), cap=5.0), policy)
    assert slope.item() == pytest.approx(-5.0, abs=1e-6)


def test_case_D7_at_ratio_one_every_aggregation_has_a_gradient():
    """Credit +1 over two tokens, −1 over six. Values 0, ½, 2, ¼; the gradient is −weight · credit on every token."""
    mask = flags([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    credit = f64([[1.0], [-1.0]]).expand(2, 6)
    values = {
        sequence_mean: (0.0, [1 / 4, 1 / 12]),
        token_mean: (0.5, [1 / 8, 1 / 8]),
        sequence_sum: (2.0, [1 / 2, 1 / 2]),
        partial(constant_length, length=8): (0.25, [1 / 16, 1 / 16]),
    }
    for aggregation, (value, (good, bad)) in values.items():
        policy = leaf([[-0.7] * 6, [-1.1] * 6])
        loss = (aggregation(mask) * clipped_loss(policy, policy.detach().clone(), credit)).sum()
        close(loss, value)
        close(gradient(loss, policy), [[-good, -good, 0.0, 0.0, 0.0, 0.0], [bad] * 6])


def trainer_logprob(logits, token, temperature):
    """As the policy scores a token: an output layer that hands the logits through."""
    identity = torch.nn.Linear(len(logits), len(logits), bias=False, dtype=torch.float64)
    torch.nn.init.eye_(identity.weight)
    model = SimpleNamespace(get_output_embeddings=lambda: identity)
    picked, _ = picked_logprobs(
        f64([logits]), model, torch.tensor([token]), temperature=temperature, head=Head()
    )
    return picked.detach()


def test_case_E1_sampler_and_trainer_share_the_temperature():
    """Logits (2, 1, 0), T = 0.7, token 1: the ratio of the first step is 1. Mixed with T = 1 it would not be."""
    token, sampled = draw(f64([[2.0, 1.0, 0.0]]), np.array([0.9]), 0.7)
    assert token.tolist() == [1]
    assert_digits(sampled.numpy(), [-1.68868983], 8)
    own, plain = trainer_logprob([2.0, 1.0, 0.0], 1, 0.7), trainer_logprob([2.0, 1.0, 0.0], 1, 1.0)
    assert_digits(plain.numpy(), [-1.40760596], 8)
    close(importance_weighted_loss(own, sampled, f64([1.0])), [-1.0])
    assert_digits(importance_weighted_loss(plain, sampled, f64([-1.0])).numpy(), [1.32456469], 8)
    assert_digits(importance_weighted_loss(sampled, plain, f64([-1.0])).numpy(), [0.75496502], 8)


def test_case_E8_a_logprob_is_looked_up_by_the_id_of_its_token():
    """Two ids with nearly all the mass, −0.25 and −3.1, in either order: the sampled one counts, never the first."""
    rest = math.log(1 - math.exp(-0.25) - math.exp(-3.1))
    for logits, sampled_id in (([-0.25, -3.1, rest], 1), ([-3.1, -0.25, rest], 0)):
        low = sum(math.exp(x) for x in logits[:sampled_id])
        token, logprob = draw(f64([logits]), np.array([low + 0.5 * math.exp(-3.1)]), 1.0)
        assert token.tolist() == [sampled_id]
        close(logprob, [-3.1])
        close(trainer_logprob(logits, sampled_id, 1.0), [-3.1])


def test_case_H11_cispo_does_not_broadcast():
    column, row = f64([[-0.5], [-1.5]]), f64([-0.5, -1.5])
    for arguments in ((column, row, column), (column, column, row)):
        with pytest.raises(InvalidInput, match="same shape"):
            cispo_loss(*arguments, cap=2.0)


def test_published_loss_of_three_actions():
    """Clip 0.2, three actions at three states: a well-known test vector, here to more digits than it prints."""
    new = f64([[1.0, 1.0, 1.0], [2.0, 0.0, 0.0], [-1.0, -2.0, -3.0]]).log_softmax(-1)
    old = f64([[1.0, 1.0, 1.0], [2.0, 0.0, 0.0], [-3.0, -2.0, -1.0]]).log_softmax(-1)
    actions = torch.tensor([[0], [1], [2]])
    taken, before = new.gather(1, actions).squeeze(1), old.gather(1, actions).squeeze(1)
    assert_digits(clipped_loss(taken, before, f64([0.3, 0.2, 0.1])).mean().item(), -0.1711778428, 10)
    assert_digits(clipped_loss(taken, before, f64([-0.3, -0.2, -0.1])).mean().item(), 0.1933333333, 10)


@pytest.mark.parametrize("credit", [1.5, -1.5])
@pytest.mark.parametrize("log_ratio", [-120.0, 39.0, 120.0])
@pytest.mark.parametrize(
    "loss",
    [
        importance_weighted_loss,
        clipped_loss,
        partial(clipped_loss, dual_clip=3.0),
        partial(cispo_loss, cap=5.0),
        lambda policy, old, credit: sequence_clipped_loss(
            policy, old, credit, torch.ones_like(policy, dtype=torch.bool), clip_low=0.2, clip_high=0.2
        ),
    ],
    ids=["importance", "clip", "dual clip", "cispo", "sequence clip"],
)
def test_case_A5_an_absurd_token_has_a_finite_loss_and_gradient(loss, log_ratio, credit):
    """In float32 e^120 is ∞, and ∞ · 0 is NaN where a clip should give 0. Beyond e^40 a ratio grows no further."""
    policy = torch.tensor([[-1.0 + log_ratio]], requires_grad=True)
    found = loss(policy, torch.tensor([[-1.0]]), torch.tensor([[credit]])).sum()
    (slope,) = torch.autograd.grad(found, policy)
    assert found.isfinite()
    assert slope.isfinite()
    if loss is clipped_loss and log_ratio * credit > 0:
        assert slope.item() == 0.0
