"""Policy losses that become one another, and the six regions of the clip."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.policy_losses import clipped_loss, importance_weighted_loss, policy_gradient_loss
from tests.batches import close, f64, gradient, leaf

LOW, HIGH = 0.2, 0.28
CREDITS = st.floats(0.05, 5.0)
LOGPROBS = st.lists(st.floats(-6, 0), min_size=3, max_size=3)
SIGNED = st.lists(st.floats(-5, 5), min_size=3, max_size=3)


@given(LOGPROBS, SIGNED, st.sampled_from([(0.2, 0.2), (0.1, 0.4), (0.0, 0.0), (1.0, 0.0)]))
def test_at_the_old_policy_every_gradient_is_the_policy_gradient(old, credit, bounds):
    """ρ = 1, also with bounds at 1: exactly at the edge the gradient is kept."""
    policy, old, credit = leaf(old), f64(old), f64(credit)
    wanted = gradient(policy_gradient_loss(policy, credit), policy)
    close(wanted, -credit)
    close(gradient(importance_weighted_loss(policy, old, credit), policy), wanted)
    clipped = clipped_loss(policy, old, credit, clip_low=bounds[0], clip_high=bounds[1])
    close(clipped, -credit)
    close(gradient(clipped, policy), wanted)
    close(gradient(clipped_loss(policy, old, credit, dual_clip=3.0), policy), wanted)


@given(LOGPROBS, LOGPROBS, SIGNED)
def test_a_clip_that_is_never_reached_is_the_importance_weight(new, old, credit):
    policy, old, credit = leaf(new), f64(old), f64(credit)
    wanted = importance_weighted_loss(policy, old, credit)
    for settings in (
        {"clip_low": 1.0, "clip_high": 1e9},
        {"clip_low": 1.0, "clip_high": 1e9, "dual_clip": 1e9},
    ):
        found = clipped_loss(policy, old, credit, **settings)
        close(found, wanted.detach())
        close(gradient(found, policy), gradient(importance_weighted_loss(policy, old, credit), policy))


@given(LOGPROBS, LOGPROBS, SIGNED)
def test_the_clip_is_pessimistic_and_dual_clip_takes_part_of_it_back(new, old, credit):
    """Never a lower loss than without a clip; with a dual clip, never a higher one than with the clip alone."""
    policy, old, credit = f64(new), f64(old), f64(credit)
    clipped = clipped_loss(policy, old, credit)
    assert (clipped >= importance_weighted_loss(policy, old, credit) - 1e-12).all()
    assert (clipped_loss(policy, old, credit, dual_clip=2.0) <= clipped + 1e-12).all()


REGIONS = [
    pytest.param(st.floats(0.01, 1 - LOW - 1e-6), +1, True, id="good, rarer: alive"),
    pytest.param(st.floats(1 - LOW + 1e-6, 1 + HIGH - 1e-6), +1, True, id="good, inside: alive"),
    pytest.param(st.floats(1 + HIGH + 1e-6, 50), +1, False, id="good, likelier: clipped"),
    pytest.param(st.floats(0.01, 1 - LOW - 1e-6), -1, False, id="bad, rarer: clipped"),
    pytest.param(st.floats(1 - LOW + 1e-6, 1 + HIGH - 1e-6), -1, True, id="bad, inside: alive"),
    pytest.param(st.floats(1 + HIGH + 1e-6, 50), -1, True, id="bad, likelier: alive"),
]


@pytest.mark.parametrize(("ratios", "sign", "alive"), REGIONS)
def test_the_six_regions_of_the_clip(ratios, sign, alive):
    """dloss/dlog π = −ρΨ where alive, 0 where clipped; the value is −ρΨ or the bound's."""

    @given(ratios, CREDITS)
    def in_this_region(ratio, size):
        credit = sign * size
        policy = leaf([math.log(ratio)])
        loss = clipped_loss(policy, f64([0.0]), f64([credit]), clip_low=LOW, clip_high=HIGH)
        bound = 1 + HIGH if ratio > 1 else 1 - LOW
        close(loss, [-(ratio if alive else bound) * credit], atol=1e-10)
        close(gradient(loss, policy), [-ratio * credit if alive else 0.0], atol=1e-10)

    in_this_region()


@given(st.floats(0.01, 50), CREDITS, st.sampled_from([1.5, 3.0]))
def test_dual_clip_adds_a_seventh_region_and_changes_no_other(ratio, size, cap):
    """Bad and likelier than c times: value cΨ, derivative 0."""
    for sign in (1, -1):
        policy, credit = leaf([math.log(ratio)]), f64([sign * size])
        dual = clipped_loss(policy, f64([0.0]), credit, dual_clip=cap)
        if sign < 0 and ratio > cap + 1e-6:
            close(dual, -cap * credit)
            close(gradient(dual, policy), [0.0])
        elif sign > 0 or ratio < cap - 1e-6:
            plain = clipped_loss(policy, f64([0.0]), credit)
            close(dual, plain.detach())
            close(gradient(dual, policy), gradient(plain, policy))
