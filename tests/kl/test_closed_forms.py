"""Closed forms: the spread of each estimator for two Gaussians, torch's own divergence, entropy, and the cap shown."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.errors import InvalidInput
from rung.kl import AdaptiveKL, DoublingKL, capped, entropy, k1, k2, k3, kl_divergence
from rung.masked import masked_mean, masked_sum
from rung.notation import MAX_LOG_RATIO
from tests.batches import INF, NAN, close, f64, flags, gradient, leaf
from tests.toys import assert_digits

P, Q = [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]


def moments(estimator, mean):
    """(bias/true, std/true) on samples of N(0,1), against N(m,1), by Gauss–Hermite quadrature; true = m²/2."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    values = estimator(torch.tensor(-(nodes**2) / 2), torch.tensor(-((nodes - mean) ** 2) / 2)).numpy()
    expected = weights @ values
    true = mean**2 / 2
    return expected / true - 1, math.sqrt(weights @ (values - expected) ** 2) / true


@pytest.mark.parametrize(
    ("mean", "recorded"),
    [
        (0.1, {k1: (0.0, 20.0), k2: (0.0025, 1.4177446879), k3: (0.0, 1.4165745186)}),
        (1.0, {k1: (0.0, 2.0), k2: (0.25, 1.7320508076), k3: (0.0, 1.6950301808)}),
    ],
)
def test_published_bias_and_spread_of_two_gaussians(mean, recorded):
    for estimator, (bias, spread) in recorded.items():
        found = moments(estimator, mean)
        assert_digits(found[0], bias, 10)
        assert_digits(found[1], spread, 10)


@pytest.mark.parametrize("mean", [0.1, 0.3, 1.0, 1.5])
def test_bias_and_spread_of_two_gaussians_in_closed_form(mean):
    """k1 2/m; k2 m²/4 and √(2 + m²); k3 √(e^{m²} − 1 − m²) / (m²/2)."""
    square = mean**2
    assert moments(k1, mean) == pytest.approx((0.0, 2 / mean), abs=1e-9)
    assert moments(k2, mean) == pytest.approx((square / 4, math.sqrt(2 + square)), abs=1e-9)
    spread = math.sqrt(math.expm1(square) - square) / (square / 2)
    assert moments(k3, mean) == pytest.approx((0.0, spread), abs=1e-9)


def test_case_G1_torch_takes_the_arguments_the_other_way_round():
    """F.kl_div(input, target) is KL(target‖input), and exponentiates neither unless told: ours is KL(first‖second)."""
    p, q = f64(P).log(), f64(Q).log()
    forward = sum(a * math.log(a / b) for a, b in zip(P, Q, strict=True))
    reverse = sum(b * math.log(b / a) for a, b in zip(P, Q, strict=True))
    assert abs(forward - reverse) > 1e-4
    close(kl_divergence(p, q), forward)
    close(kl_divergence(q, p), reverse)
    close(torch.nn.functional.kl_div(q, p, reduction="sum", log_target=True), forward)


# --- the cap -------------------------------------------------------------------------------------------------------


def test_case_A5_what_is_capped_is_shown():
    """The case's tokens, and two at the edge: only above the cap, only where the reference is the likelier one."""
    reference = torch.tensor([[-0.5, -1.3, 0.0, 0.0, 0.0]])
    policy = torch.tensor([[-120.0, -1.0, -MAX_LOG_RATIO, -MAX_LOG_RATIO - 0.5, 120.0]])
    assert capped(policy, reference).tolist() == [[True, False, False, True, False]]
    mask = flags([[1, 1, 1, 0, 1]])
    assert int((capped(policy, reference) & mask).sum()) == 1


@given(st.floats(-100, 100))
def test_case_A5_a_token_is_capped_exactly_where_k3_leaves_its_definition(log_ratio):
    policy, reference = f64([[log_ratio]]), f64([[0.0]])
    exact = math.expm1(-log_ratio) + log_ratio
    left = abs(k3(policy, reference).item() - exact) > 1e-9 * abs(exact)
    assert capped(policy, reference).item() == (log_ratio < -MAX_LOG_RATIO)
    if abs(log_ratio + MAX_LOG_RATIO) > 1e-6:
        assert left == capped(policy, reference).item()


def test_what_is_not_a_number_is_not_capped_but_not_a_number():
    assert capped(f64([[NAN, 0.0, -INF]]), f64([[0.0, NAN, 0.0]])).tolist() == [[False, False, True]]
    with pytest.raises(InvalidInput, match="same shape"):
        capped(f64([[0.0]]), f64([0.0]))


def test_case_A5_in_a_batch_the_ordinary_tokens_keep_their_gradient():
    """β = 0.05, token mean, float32: 0.00647954 and k3 = 0.04081822 beside the absurd token; all is finite."""
    policy = torch.tensor([[-120.0, -1.0, NAN]], requires_grad=True)
    reference, mask = torch.tensor([[-0.5, -1.3, NAN]]), flags([[1, 1, 0]])
    value = k3(policy, reference)
    loss = 0.05 * masked_mean(value, mask)
    slope = gradient(loss, policy)
    assert torch.isfinite(loss)
    assert torch.isfinite(slope).all()
    assert value[0, 1].item() == pytest.approx(0.04081822, abs=1e-7)  # float32: −1.3 has seven digits
    assert slope[0, 1].item() == pytest.approx(0.00647954, abs=2e-8)
    assert int((capped(policy, reference) & mask).sum()) == 1


# --- monitoring ----------------------------------------------------------------------------------------------------


def test_case_A4_the_mean_of_each_estimator_is_over_the_tokens_of_the_policy():
    """k1 of 0.05, 0.03 and 0.02 with a tool's output between them at −3 and −4: 0.1/3, and not −1.38."""
    ratios, actions = f64([[0.05, 0.03, -3.0, -4.0, 0.02]]), flags([[1, 1, 0, 0, 1]])
    zero = torch.zeros_like(ratios)
    close(masked_mean(k1(ratios, zero), actions), 0.1 / 3)
    close(masked_sum(k1(ratios, zero), actions), 0.1)
    close(masked_mean(k2(ratios, zero), actions), (0.0025 + 0.0009 + 0.0004) / 6)
    close(masked_mean(k3(ratios, zero), actions), sum(math.exp(-x) - 1 + x for x in (0.05, 0.03, 0.02)) / 3)


# --- entropy -------------------------------------------------------------------------------------------------------


def test_entropy_by_hand():
    """1.5 bits; log 3 for three equal ones, whatever constant is added; 0 for a certain one."""
    logits = torch.stack([f64([0.5, 0.25, 0.25]).log(), f64([7.0, 7.0, 7.0]), f64([0.0, -900.0, -900.0])])
    close(entropy(logits), [1.5 * math.log(2), math.log(3), 0.0])


def test_an_excluded_entry_adds_nothing_and_poisons_nothing():
    logits = leaf([0.3, -INF, 0.3])
    close(entropy(logits), math.log(2))
    close(gradient(entropy(logits), logits), [0.0, 0.0, 0.0])
    skewed = leaf([math.log(0.75), -INF, math.log(0.25)])
    h = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    close(entropy(skewed), h)
    close(
        gradient(entropy(skewed), skewed), [-0.75 * (math.log(0.75) + h), 0.0, -0.25 * (math.log(0.25) + h)]
    )


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=6))
def test_entropy_is_what_the_divergence_from_the_uniform_leaves(logits):
    """H(p) = log V − KL(p‖uniform), between 0 and log V."""
    p = f64(logits)
    size = len(logits)
    wanted = math.log(size) - kl_divergence(p, torch.zeros_like(p)).item()
    close(entropy(p), wanted, atol=1e-10)
    assert -1e-12 <= entropy(p).item() <= math.log(size) + 1e-12


def test_case_A9_the_entropy_bonus_carries_a_gradient_of_the_right_sign():
    """loss = −0.01 H: dH/dz = −p (log p + H). A step down the loss spreads the policy."""
    logits = leaf([math.log(p) for p in P])
    h = -sum(p * math.log(p) for p in P)
    close(entropy(logits), h)
    assert_digits(h, 1.02965301, 8)
    slope = gradient(-0.01 * entropy(logits), logits)
    close(slope, [0.01 * p * (math.log(p) + h) for p in P])
    assert_digits(slope.numpy(), [0.00168253, -0.00052296, -0.00115957], 8)
    assert entropy(logits - 10 * slope).item() > h


def test_a_doubling_coefficient_comes_back_in_time():
    """A thousand updates in which nothing moved, or everything did: 14 halvings or doublings at most."""
    still = moving = DoublingKL(1.0, target=0.01)
    for _ in range(1000):
        still, moving = still.update(0.0, 8), moving.update(1.0, 8)
    assert (still.coefficient, moving.coefficient) == (1e-4, 1e4)
    assert still.update(1.0, 8).coefficient == 2e-4
    assert moving.update(0.0, 8).coefficient == 5e3
    assert DoublingKL(1e-6, target=0.01).update(0.0, 8).coefficient == 1e-6  # as it was set
    assert DoublingKL(1e6, target=0.01).update(1.0, 8).coefficient == 1e6


def test_a_horizon_that_could_turn_a_penalty_into_a_bonus_is_refused():
    with pytest.raises(InvalidInput, match=r"a horizon of 3 sequences is too short .* use more than 12.8"):
        AdaptiveKL(0.1, target=3.0, horizon=3).update(1.0, 64)
    with pytest.raises(InvalidInput, match="too short"):
        AdaptiveKL(0.1, target=3.0, horizon=0.2 * 64).update(
            1.0, 64
        )  # β could fall to 0 at once, and stay there
    assert AdaptiveKL(0.1, target=3.0, horizon=64).update(0.0, 64).coefficient == pytest.approx(0.08)
    assert AdaptiveKL(0.1, target=3.0, horizon=0.5).update(0.0, 2).coefficient == pytest.approx(0.02)
