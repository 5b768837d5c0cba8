import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.errors import InvalidInput
from rung.kl import AdaptiveKL, k1, k2, k3, kl_divergence
from rung.masked import masked_mean
from rung.notation import MAX_LOG_RATIO
from tests.batches import close, f64, flags, gradient, leaf
from tests.toys import assert_digits

# p and q of cases A1, A9 and the steps below.
P, Q = [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]


def test_estimators_by_hand():
    """l = 0.2 and −0.5."""
    policy, reference = f64([[-1.0, -2.0]]), f64([[-1.2, -1.5]])
    close(k1(policy, reference), [[0.2, -0.5]])
    close(k2(policy, reference), [[0.02, 0.125]])
    close(k3(policy, reference), [[math.exp(-0.2) - 1 + 0.2, math.exp(0.5) - 1 - 0.5]])


def test_derivatives_by_hand():
    """dk/dl = 1, l, 1 − e^(−l) with l = log π − log π_ref; in the reference it is the opposite."""
    for estimator, slopes in (
        (k1, [1.0, 1.0]),
        (k2, [0.2, -0.5]),
        (k3, [1 - math.exp(-0.2), 1 - math.exp(0.5)]),
    ):
        policy, reference = leaf([-1.0, -2.0]), leaf([-1.2, -1.5])
        close(gradient(estimator(policy, reference), policy), slopes)
        close(gradient(estimator(policy, reference), reference), [-slope for slope in slopes])


@given(st.floats(-30, 30), st.floats(-30, 0))
def test_k2_and_k3_are_never_negative_and_vanish_at_equality(log_ratio, reference):
    policy = f64([reference + log_ratio])
    assert k2(policy, f64([reference])).item() >= 0.0
    assert k3(policy, f64([reference])).item() >= 0.0
    close(k3(policy, policy), [0.0])
    close(k2(policy, policy), [0.0])


def test_k3_keeps_its_digits_near_equality():
    """k3 = l²/2 − l³/6 + …: at l = 1e-9 that is 5e-19, where e^(−l) − 1 + l in plain float64 gives noise of 1e-16."""
    assert abs(k3(f64([1e-9]), f64([0.0])).item() - 5e-19) < 1e-24


def test_k3_does_not_always_vary_less_than_k1():
    """π = (.999, .001), π_ref = (½, ½): published moments, exact over both tokens."""
    chances = f64([0.999, 0.001])
    values = {k: k(chances.log(), f64([0.5, 0.5]).log()) for k in (k1, k2, k3)}
    means = {k: (chances * value).sum() for k, value in values.items()}
    variances = {k: (chances * (value - means[k]).square()).sum().item() for k, value in values.items()}
    assert_digits(
        [means[k1].item(), means[k3].item(), means[k2].item()], [0.6852399254, 0.6852399254, 0.2586046569], 10
    )
    assert_digits([variances[k1], variances[k3]], [0.0476555583, 242.4049645395], 10)


@pytest.mark.parametrize("mean", [0.5, 1.0, 2.0])
def test_k2_of_two_gaussians_is_biased_by_a_quarter_of_the_squared_distance(mean):
    """N(0,1) against N(m,1): KL = m²/2, E[k1] = E[k3] = KL, E[k2] = KL (1 + m²/4). Gauss–Hermite, exact for k1, k2."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    policy, reference = torch.tensor(-(nodes**2) / 2), torch.tensor(-((nodes - mean) ** 2) / 2)

    def expected(estimator):
        return float(weights @ estimator(policy, reference).numpy())

    kl = mean**2 / 2
    assert expected(k1) == pytest.approx(kl, abs=1e-12)
    assert expected(k3) == pytest.approx(kl, abs=1e-12)
    assert expected(k2) == pytest.approx(kl * (1 + mean**2 / 4), abs=1e-12)


def test_divergence_is_not_symmetric_and_ignores_constants():
    """p = (½, ½), q = (¼, ¾): KL(p‖q) = ½ log 4/3, KL(q‖p) = ¾ log 3 − log 2."""
    half, quarter = f64([0.0, 0.0]), f64([0.25, 0.75]).log()
    close(kl_divergence(half, quarter), 0.5 * math.log(4 / 3))
    close(kl_divergence(quarter, half), 0.75 * math.log(3) - math.log(2))
    close(kl_divergence(half + 700.0, quarter - 300.0), 0.5 * math.log(4 / 3))
    close(
        kl_divergence(torch.stack([half, quarter]), torch.stack([quarter, quarter])),
        [0.5 * math.log(4 / 3), 0.0],
    )


def test_case_A1_a_step_down_the_kl_loss_brings_the_policy_nearer():
    logits, reference = leaf([math.log(p) for p in P]), f64(Q).log()
    loss = 0.1 * kl_divergence(logits, reference)
    kl = sum(p * math.log(p / q) for p, q in zip(P, Q, strict=True))
    slope = [p * (math.log(p / q) - kl) for p, q in zip(P, Q, strict=True)]
    close(loss, 0.1 * kl)
    assert_digits(loss.item(), 0.00252672, 8)
    assert_digits(slope, [0.09893820, -0.09388477, -0.00505343], 8)
    close(gradient(loss, logits) / 0.1, slope)
    stepped = logits.detach() - gradient(kl_divergence(logits, reference), logits)
    assert_digits(kl_divergence(stepped, reference).item(), 0.00999137, 8)


def test_case_A5_an_absurd_log_ratio_poisons_neither_value_nor_gradient():
    policy = torch.tensor([-120.0, -1.0], requires_grad=True)
    value = k3(policy, torch.tensor([-0.5, -1.3]))
    loss = 0.05 * masked_mean(value, flags([1, 1]))
    slope = gradient(loss, policy)
    assert torch.isfinite(loss)
    assert torch.isfinite(slope).all()
    # The ordinary token keeps its own numbers, to the rounding of −1.3 in float32.
    assert value[1].item() == pytest.approx(math.exp(-0.3) - 1 + 0.3, abs=1e-7)
    assert slope[1].item() == pytest.approx(0.05 * (1 - math.exp(-0.3)) / 2, abs=5e-9)
    # The absurd one is held at the cap, still pushed in the right direction.
    assert value[0].item() == pytest.approx(math.expm1(MAX_LOG_RATIO) - 119.5, rel=1e-6)
    assert slope[0].item() == pytest.approx(0.05 / 2, abs=1e-9)


@pytest.mark.parametrize("log_ratio", [-1e4, -300.0, -88.8, 88.8, 300.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_case_A5_every_estimator_is_finite_for_every_finite_log_ratio(estimator, dtype, log_ratio):
    policy = torch.tensor([log_ratio], dtype=dtype, requires_grad=True)
    value = estimator(policy, torch.zeros(1, dtype=dtype))
    assert torch.isfinite(value).all()
    assert torch.isfinite(gradient(value, policy)).all()


def test_case_A8_each_estimator_has_its_own_mean():
    """log(p/q) = −0.3, 0.1, −0.2."""
    ratio, everything = f64([-0.3, 0.1, -0.2]), flags([1, 1, 1])
    zero = torch.zeros_like(ratio)
    close(masked_mean(k1(ratio, zero), everything), -0.4 / 3)
    close(masked_mean(k2(ratio, zero), everything), (0.045 + 0.005 + 0.02) / 3)
    expected = sum(math.exp(-x) - 1 + x for x in (-0.3, 0.1, -0.2)) / 3
    close(masked_mean(k3(ratio, zero), everything), expected)
    assert_digits(expected, 0.02536633, 8)


def test_case_A9_the_divergence_carries_a_gradient():
    logits = leaf([math.log(p) for p in P])
    slope = gradient(0.1 * kl_divergence(logits, f64(Q).log()), logits)
    assert_digits(slope.numpy(), [0.00989382, -0.00938848, -0.00050534], 8)


def test_case_A9_no_estimator_detaches_the_policy():
    for estimator in (k2, k3):
        policy = leaf([-1.0])
        assert gradient(estimator(policy, f64([-1.3])), policy).abs().item() > 0.2


def test_case_G1_the_order_of_the_arguments_is_the_order_in_the_divergence():
    teacher, student = f64([0.7, 0.2, 0.1]).log(), f64([0.4, 0.4, 0.2]).log()
    forward = 0.7 * math.log(0.7 / 0.4) + 0.2 * math.log(0.2 / 0.4) + 0.1 * math.log(0.1 / 0.2)
    reverse = 0.4 * math.log(0.4 / 0.7) + 0.4 * math.log(0.4 / 0.2) + 0.2 * math.log(0.2 / 0.1)
    close(kl_divergence(teacher, student), forward)
    close(kl_divergence(student, teacher), reverse)
    assert_digits([forward, reverse], [0.18378690, 0.19204199], 8)


def test_case_H11_estimators_do_not_broadcast():
    for function in (k1, k2, k3, kl_divergence):
        with pytest.raises(InvalidInput, match="same shape"):
            function(f64([[0.5], [1.5]]), f64([0.5, 1.5]))


def test_case_N5_one_negative_k1_is_no_error():
    close(k1(f64([-2.0]), f64([-1.0])), [-1.0])


def test_the_controller_follows_its_published_steps():
    controller = AdaptiveKL(coefficient=0.2, target=6.0, horizon=10_000)
    found = []
    for kl in (12.0, 6.0, 3.0, 6.6):
        controller = controller.update(kl, 256)
        found.append(controller.coefficient)
    assert_digits(found, [0.201024, 0.201024, 0.19999475712, 0.200506743698], 12)


def test_the_controller_raises_the_coefficient_when_the_policy_is_too_far():
    """A tenth too far, 100 of 1000 sequences: 1 % up; far below the target it is held at −0.2: 2 % down."""
    controller = AdaptiveKL(coefficient=1.0, target=2.0, horizon=1000)
    assert controller.update(2.2, 100).coefficient == pytest.approx(1.01, abs=1e-12)
    assert controller.update(0.0, 100).coefficient == pytest.approx(0.98, abs=1e-12)
    assert controller.coefficient == 1.0


@pytest.mark.parametrize("setting", [{"coefficient": -0.1}, {"target": 0.0}, {"horizon": 0.0}])
def test_the_controller_refuses_settings_that_cannot_work(setting):
    with pytest.raises(InvalidInput, match="target > 0"):
        AdaptiveKL(**({"coefficient": 0.1, "target": 1.0, "horizon": 10.0} | setting))
