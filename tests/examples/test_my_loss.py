"""The example's losses through the oracle, and losses that tell their samples apart by order."""

import numpy as np
import pytest

from examples import my_loss
from rung.verify import assert_unbiased, bias_and_variance, moments
from rung.verify.unbiased import estimator_of_loss


def test_the_example_of_a_right_loss_is_right() -> None:
    my_loss.test_leave_one_out_is_the_policy_gradient()
    my_loss.test_gradients_flow_to_the_policy_only()


def test_the_example_of_a_biased_loss_is_biased() -> None:
    my_loss.test_the_normalised_one_is_not()


def previous_as_baseline(policy_logprobs, rewards, mask, groups):  # type: ignore[no-untyped-def]
    """The sample before, of the same prompt, is the baseline; rows take turns over prompts. The first has none."""
    prompts = groups.unique().numel()
    credit = rewards.clone()
    credit[prompts:] -= rewards[:-prompts]
    return -(credit.unsqueeze(1) * policy_logprobs * mask).sum() / len(rewards)


def only_the_first_pair(policy_logprobs, rewards, mask, groups):  # type: ignore[no-untyped-def]
    """Trains on each prompt's first sample alone, and takes its mean with the second one off."""
    prompts = groups.unique().numel()
    first, second = rewards[:prompts], rewards[prompts : 2 * prompts]
    rows = slice(0, prompts)
    credit = first - (first + second) / 2
    return -(credit.unsqueeze(1) * policy_logprobs[rows] * mask[rows]).sum() / prompts


def test_a_loss_may_tell_its_samples_apart_by_order() -> None:
    """Unbiased, although each order has another gradient: enumerating one order of each batch would deny it."""
    assert_unbiased(previous_as_baseline)
    found = bias_and_variance(previous_as_baseline, group_size=3)
    assert found.relative < 1e-12
    one_order = moments(estimator_of_loss(previous_as_baseline), found.setting)
    assert np.abs(one_order.ascent - found.target).max() > 1e-3


def test_what_a_loss_that_knows_order_is_worth_is_counted_over_all_orders() -> None:
    """Half of ∇J, by its own share of the mean."""
    found = bias_and_variance(only_the_first_pair, problem="two prompts")
    assert found.scale == pytest.approx(0.5, abs=1e-12)
    assert found.relative_beside_scale < 1e-12
