"""Policy losses that become one another, and the six regions of the clip."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.aggregation import sequence_mean
from rung.policy_losses import (
    cispo_loss,
    clipped_loss,
    importance_weighted_loss,
    policy_gradient_loss,
    sequence_clipped_loss,
)
from tests.batches import close, f64, flags, gradient, leaf

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


# --- one ratio a sequence, and the capped weight ---------------------------------------------------------------------

MASK = flags([[1, 1, 0, 1], [0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
CREDIT = f64([[1.5], [-2.0], [0.25], [3.0]]).expand(4, 4)
BATCHES = st.lists(st.lists(st.floats(-3, 0), min_size=4, max_size=4), min_size=4, max_size=4)
BOUNDS = {"clip_low": 0.2, "clip_high": 0.28}


@given(BATCHES)
def test_at_the_old_policy_a_sequence_ratio_gives_the_sequence_mean(logprobs):
    """Of the plain policy gradient: Σ_i 1/B A_i 1/L_i Σ_t ∇log π, and so does the capped weight."""
    policy, old, weights = leaf(logprobs), f64(logprobs), sequence_mean(MASK)
    wanted = gradient(weights * policy_gradient_loss(policy, CREDIT), policy)
    close(wanted, -weights * CREDIT)
    loss = weights * sequence_clipped_loss(policy, old, CREDIT, MASK, **BOUNDS)
    close(loss.sum(), -(1.5 - 2.0 + 0.25) / 3)
    close(gradient(loss, policy), wanted)
    close(gradient(weights * cispo_loss(policy, old, CREDIT, cap=1.0), policy), wanted)


@given(st.floats(-3, 0), st.floats(-3, 0), st.floats(-5, 5))
def test_a_sequence_of_one_token_is_clipped_as_a_token(new, old, credit):
    policy, old, credit = leaf([[new]]), f64([[old]]), f64([[credit]])
    loss, token = (
        sequence_clipped_loss(policy, old, credit, flags([[1]]), **BOUNDS),
        clipped_loss(policy, old, credit, **BOUNDS),
    )
    close(loss, token.detach())
    close(gradient(loss, policy), gradient(token, policy))


@given(BATCHES, BATCHES)
def test_the_clip_of_sequences_is_that_of_tokens_with_the_geometric_mean_as_ratio(new, old):
    """Written out row by row in plain Python; what stands off the mask changes nothing."""
    loss = sequence_clipped_loss(f64(new), f64(old), CREDIT, MASK, **BOUNDS)
    for row in range(4):
        on = [t for t in range(4) if MASK[row, t]]
        if not on:
            close(loss[row], [0.0] * 4)
            continue
        ratio = math.prod(math.exp(new[row][t] - old[row][t]) for t in on) ** (1 / len(on))
        credit = CREDIT[row, 0].item()
        wanted = -min(ratio * credit, min(max(ratio, 0.8), 1.28) * credit)
        close(loss[row], [wanted if t in on else 0.0 for t in range(4)], atol=1e-10)


@given(LOGPROBS, LOGPROBS, SIGNED)
def test_under_the_cap_cispo_is_the_importance_weight(new, old, credit):
    """Same gradient, another value: ∇ρ = ρ ∇log π. Beyond the cap c it is c/ρ of it, and never 0."""
    policy, old, credit = leaf(new), f64(old), f64(credit)
    wanted = gradient(importance_weighted_loss(policy, old, credit), policy)
    close(gradient(cispo_loss(policy, old, credit, cap=1e6), policy), wanted)
    ratio = (policy.detach() - old).exp()
    held = torch.where(ratio > 1.5, 1.5 / ratio, 1.0)
    close(gradient(cispo_loss(policy, old, credit, cap=1.5), policy), held * wanted)


def test_the_clip_does_not_bound_the_ratio():
    """Logits (3θ, θ, 0 and a large one): both credits good. The first token is soon clipped and has no gradient; the
    second is not, and moves θ, and so the first token's ratio, far beyond the bound.
    """

    def logprobs(theta):
        return torch.stack([3 * theta, theta, theta * 0, theta * 0 + 8.0]).log_softmax(-1)[:2]

    theta = torch.zeros((), dtype=torch.float64, requires_grad=True)
    old = logprobs(theta).detach()
    for _ in range(2000):
        loss = clipped_loss(logprobs(theta), old, f64([1.0, 1.0]))
        theta = (theta - 0.001 * gradient(loss, theta)).detach().requires_grad_()
    ratio = (logprobs(theta).detach() - old).exp()
    assert 1.2 < ratio[1].item() < 1.21  # itself it stops at the bound, up to one step
    assert ratio[0].item() > 1.7  # 1.2³ = 1.728
    alive = gradient(clipped_loss(logprobs(theta), old, f64([1.0, -1.0])), theta)
    assert abs(alive.item()) > 0.1  # a bad token above the bound is still pushed
