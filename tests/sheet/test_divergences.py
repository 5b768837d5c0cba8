"""Recorded divergences that only the oracle held, and identities between recorded gradients, by rung's estimators.

The other numbers of KL penalties are held by
    toy A on policy: values, gradients
        tests/unbiased/test_kl_gradients.py::test_as_a_value_k2_is_biased_by_a_published_amount
        tests/unbiased/test_kl_gradients.py::test_published_digits_of_the_loss
        tests/unbiased/test_kl_gradients.py::test_published_digits_of_the_reward
        tests/verify/test_kl.py::test_digits_of_one_step_as_a_value
    toy A off policy, every weight
        tests/unbiased/test_kl_gradients.py::test_published_digits_of_the_loss_on_samples_of_another_policy
        tests/verify/test_kl.py::test_digits_of_one_step_off_policy
    toy B: values and their variances, gradients and their traces
        tests/verify/test_kl.py::test_digits_of_two_steps_as_a_value
        tests/verify/test_kl.py::test_digits_of_two_steps_on_policy
        tests/verify/test_kl.py::test_digits_of_the_noise_of_two_steps
        tests/exact/test_kl_variances.py::test_estimates_of_the_gradient_of_toy_b
    toy B: k1 in the reward with γ, the full KL in the reward, the forward divergence of sequences
        tests/unbiased/test_kl_gradients.py::test_discounting_the_kl_in_the_reward_drops_part_of_the_future
        tests/unbiased/test_claims.py::test_claim_13_a_full_divergence_in_the_reward_acts_through_the_future_alone
        tests/unbiased/test_kl_gradients.py::test_on_whole_sequences_the_loss_has_no_future_to_miss
    toy B off policy: token ratios, ratios of sequences
        tests/unbiased/test_kl_cells.py::test_published_digits_of_the_live_token_ratio
        tests/unbiased/test_kl_cells.py::test_token_ratios_correct_the_token_and_leave_the_samplers_prefixes
        tests/verify/test_kl.py::test_digits_of_two_steps_off_policy
    a k3 of more variance than k1
        tests/kl/test_estimators.py::test_k3_does_not_always_vary_less_than_k1
    the cap of k3, torch's order of arguments
        tests/kl/test_closed_forms.py::test_case_A5_a_token_is_capped_exactly_where_k3_leaves_its_definition
        tests/kl/test_closed_forms.py::test_case_G1_torch_takes_the_arguments_the_other_way_round
"""

import numpy as np
import pytest
import torch

from rung.kl import k1, k2, k3, kl_divergence
from tests.batches import f64, gradient, leaf
from tests.enumeration import Problem
from tests.toys import (
    A_GRADIENT_KL_POLICY_REFERENCE,
    A_GRADIENT_KL_REFERENCE_POLICY,
    A_GRADIENT_OF_MEAN_K2,
    A_K2_IN_REWARD,
    A_K3_IN_REWARD,
    A_KL_POLICY_REFERENCE,
    A_KL_REFERENCE_POLICY,
    A_OFF_POLICY_K1_IN_LOSS,
    A_OFF_POLICY_K2_IN_LOSS,
    B_FUTURE_FIRST_ROW,
    B_GRADIENT_KL_POLICY_REFERENCE,
    B_IMMEDIATE_KL_POLICY_REFERENCE,
    B_KL_POLICY_REFERENCE,
    B_KL_REFERENCE_POLICY,
    B_PREFIX_KL_POLICY_REFERENCE,
    BEHAVIOUR_ROWS,
    PI_ROWS,
    REFERENCE_ROWS,
    TOY_B,
    assert_digits,
)
from tests.unbiased.on_sequences import chances

PI, REFERENCE, MU = (f64(rows) for rows in (PI_ROWS, REFERENCE_ROWS, BEHAVIOUR_ROWS))
ROW = {(): 0, (0,): 1, (1,): 2, (2,): 3}  # of toy B's prefixes; toy A is the first
B = Problem.of(TOY_B)


# --- values ----------------------------------------------------------------------------------------------------------


def test_both_directions_of_toy_a():
    """In full, and as means of k1 and k3 on samples of the first argument."""
    for first, second, recorded in (
        (PI[0], REFERENCE[0], A_KL_POLICY_REFERENCE),
        (REFERENCE[0], PI[0], A_KL_REFERENCE_POLICY),
    ):
        assert_digits(kl_divergence(first, second), recorded, 13)
        p, q = first.log_softmax(-1), second.log_softmax(-1)
        for estimator in (k1, k3):
            assert_digits((p.exp() * estimator(p, q)).sum(), recorded, 13)


def test_the_divergence_of_sequences_is_a_sum_over_prefixes():
    """KL(π‖ref) at each prefix of toy B, and both chain rules: the forward one needs the reference's prefixes."""
    reverse, forward = kl_divergence(PI, REFERENCE), kl_divergence(REFERENCE, PI)
    for prefix, recorded in B_PREFIX_KL_POLICY_REFERENCE.items():
        assert_digits(reverse[ROW[prefix]], recorded, 10)
    assert_digits(reverse[0] + PI[0].softmax(-1) @ reverse[1:], B_KL_POLICY_REFERENCE, 12)
    assert_digits(forward[0] + REFERENCE[0].softmax(-1) @ forward[1:], B_KL_REFERENCE_POLICY, 12)
    # The same of whole sequences, sampled from the first argument.
    policy, reference = (B.frozen(chosen).sum(1) for chosen in (B.policy, B.reference))
    assert_digits((chances(B, B.policy) * k1(policy, reference)).sum(), B_KL_POLICY_REFERENCE, 12)
    assert_digits((chances(B, B.reference) * k1(reference, policy)).sum(), B_KL_REFERENCE_POLICY, 12)


def test_how_far_k2_is_off_where_k3_is_wild():
    """π = (.999, .001), π_ref = (½, ½): E[k2] is 62 % too low."""
    p, q = f64([0.999, 0.001]), f64([0.5, 0.5]).log()
    assert_digits((p @ k2(p.log(), q)) / kl_divergence(p.log(), q) - 1, -0.62, 2)


# --- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "whole", "in_reward", "in_loss"),
    [
        (k1, A_GRADIENT_KL_POLICY_REFERENCE, A_GRADIENT_KL_POLICY_REFERENCE, np.zeros(3)),
        (k2, A_GRADIENT_OF_MEAN_K2, A_K2_IN_REWARD, A_GRADIENT_KL_POLICY_REFERENCE),
        (k3, A_GRADIENT_KL_POLICY_REFERENCE, A_K3_IN_REWARD, A_GRADIENT_KL_REFERENCE_POLICY),
    ],
    ids=["k1", "k2", "k3"],
)
def test_the_gradient_of_a_mean_is_that_of_its_reward_and_of_its_loss(estimator, whole, in_reward, in_loss):
    """∇E_π[k] = E_π[k ∇log π] + E_π[∇k], on toy A: the chances differentiated, the estimate, and both."""
    logits, reference = leaf(PI_ROWS[0]), REFERENCE[0].log_softmax(-1)
    logprobs = logits.log_softmax(-1)
    chance, value = logprobs.exp(), estimator(logprobs, reference)
    for mean, recorded in (
        (chance * value, whole),
        (chance * value.detach(), in_reward),
        (chance.detach() * value, in_loss),
    ):
        (slope,) = torch.autograd.grad(mean.sum(), logits, retain_graph=True)
        assert_digits(slope, recorded, 12)


def test_on_samples_of_another_policy_k1_ascends_its_divergence_from_them():
    """E_μ[∇k1] = E_μ[∇log π] = −∇KL(μ‖π): minimising it pushes π away from μ. k2 there is a regression to π_ref."""
    logits, mu = leaf(PI_ROWS[0]), MU[0].softmax(-1)
    assert_digits(-gradient(kl_divergence(MU[0], logits), logits), A_OFF_POLICY_K1_IN_LOSS, 12)
    squared = mu @ (logits.log_softmax(-1) - REFERENCE[0].log_softmax(-1)).square() / 2
    assert_digits(gradient(squared, logits), A_OFF_POLICY_K2_IN_LOSS, 12)


def test_the_future_of_toy_b_in_closed_form():
    """A − B = Σ_a π(a) (e_a − π) KL_2(a) in the row of the first token; the last rows have no future."""
    p, later = PI[0].softmax(-1), kl_divergence(PI[1:], REFERENCE[1:])
    assert_digits(p * (later - p @ later), B_FUTURE_FIRST_ROW, 10)
    difference = B_GRADIENT_KL_POLICY_REFERENCE - B_IMMEDIATE_KL_POLICY_REFERENCE
    np.testing.assert_allclose(difference, [*B_FUTURE_FIRST_ROW, *np.zeros(9)], rtol=0, atol=1.5e-10)


def test_near_the_reference_the_two_directions_differ_in_second_order():
    """At ref + h d the losses k2 and k3 both have the gradient h F d; their difference falls as h², each as h."""
    direction, reference = f64([0.7, -1.1, 0.4]), REFERENCE[0]
    p = reference.softmax(-1)
    fisher = torch.diag(p) - torch.outer(p, p)
    apart, size = [], []
    for h in (1e-3, 1e-4):
        slopes = []
        for estimator in (k2, k3):
            logits = (reference + h * direction).requires_grad_()
            logprobs = logits.log_softmax(-1)
            loss = logprobs.detach().exp() @ estimator(logprobs, reference.log_softmax(-1))
            slopes.append(gradient(loss, logits))
        np.testing.assert_allclose(slopes[0] / h, fisher @ direction, rtol=0, atol=0.5 * h)
        apart.append((slopes[0] - slopes[1]).abs().max().item())
        size.append(slopes[0].abs().max().item())
    assert size[0] / size[1] == pytest.approx(10.0, rel=0.02)
    assert apart[0] / apart[1] == pytest.approx(100.0, rel=0.02)
