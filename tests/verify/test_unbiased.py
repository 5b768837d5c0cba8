"""`assert_unbiased` on losses as people write them: it passes the right ones, and says of the others what they are."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import rung.verify
from rung.errors import InvalidInput
from rung.methods import dr_grpo, grpo, ppo_penalty, rloo
from rung.verify import assert_unbiased, bias_and_variance, describe
from tests.losses import (
    advantages_for_a_mask,
    baseline_of_all_others,
    baseline_with_a_gradient,
    divided_by_the_spread,
    end_token_left_out,
    groups_cut_across_prompts,
    in_float32,
    mean_over_all_tokens,
    mean_over_each_sequence,
    mean_over_padding_too,
    own_sample_in_the_mean,
    right,
    shifted_by_a_token,
    summed_over_the_batch,
    wrong_sign,
)
from tests.toys import C_OBJECTIVE_GRADIENT, C_SEQUENCE_MEAN_COSINE, C_TOKEN_MEAN_COSINE, assert_digits

MISTAKES = {
    wrong_sign: "it descends: exactly the wrong sign",
    own_sample_in_the_mean: ".*learning rate; it is the length that comes of a return in its group's own mean",
    divided_by_the_spread: "another direction, 24° off the gradient",
    mean_over_each_sequence: r"another direction, 8\.3° off the gradient",
    mean_over_all_tokens: r"another direction, 2\.4° off the gradient",
    mean_over_padding_too: "another direction",
    end_token_left_out: "another direction",
    advantages_for_a_mask: "it does not climb the objective at all|another direction",
    baseline_with_a_gradient: "it does nothing: on average its gradient is 0",
    summed_over_the_batch: ".*a matter of the learning rate; it is the length that comes of a sum over the batch in",
    shifted_by_a_token: "another direction",
    in_float32: "unbiased but for rounding: something in it is float32",
}


def test_the_right_loss_passes():
    assert_unbiased(right)
    assert bias_and_variance(right, group_size=3).relative < 1e-12
    for group_size in (2, 3):
        assert_unbiased(rloo(kl_coefficient=0.0), group_size=group_size)
    assert_unbiased(rloo(kl_coefficient=0.3), kl_coefficient=0.3)


def said_of(loss, **settings):
    """What `assert_unbiased` says of a loss; nothing of one that passes."""
    try:
        assert_unbiased(loss, **settings)
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda function: function.__name__)
def test_a_mistake_fails_and_is_described(mistake):
    first, _, *meaning = said_of(mistake).splitlines()
    assert re.fullmatch(
        r'not the gradient of J on the problem "(one|two) prompts?", G = 2, on-policy:', first
    )
    assert re.match(MISTAKES[mistake], *meaning)


def test_groups_cut_across_prompts_show_on_two_prompts_alone():
    """With one prompt everything is one group; with two, a spread of other prompts divides."""

    def apart(problem):
        cut = bias_and_variance(groups_cut_across_prompts, problem=problem).moments.ascent
        return np.linalg.norm(cut - bias_and_variance(divided_by_the_spread, problem=problem).moments.ascent)

    assert apart("one prompt") < 1e-12
    assert apart("two prompts") > 0.05


def test_a_baseline_of_other_prompts_does_not_bias():
    """Other prompts' samples are independent of this one: a poor baseline, and an unbiased one."""
    assert_unbiased(baseline_of_all_others)
    own, all_others = (
        bias_and_variance(loss, problem="two prompts") for loss in (right, baseline_of_all_others)
    )
    assert own.moments.trace != pytest.approx(all_others.moments.trace, rel=0.01)


def test_up_to_scale_accepts_a_length_and_no_other_sign():
    assert_unbiased(own_sample_in_the_mean, up_to_scale=True)
    assert_unbiased(dr_grpo(length=7), up_to_scale=True)
    for loss in (wrong_sign, mean_over_all_tokens):
        assert said_of(loss, up_to_scale=True).startswith("not a positive multiple of the gradient of J on")
    assert "it does nothing" in said_of(baseline_with_a_gradient, up_to_scale=True)


def test_a_mean_over_padding_is_no_matter_of_scale():
    """On the first problem it is one by chance: whatever is padded there to one token has no credit."""
    assert bias_and_variance(mean_over_padding_too).relative_beside_scale < 1e-12
    with pytest.raises(AssertionError, match="two prompts"):
        assert_unbiased(mean_over_padding_too, up_to_scale=True)


def test_published_directions_of_wrong_normalisations():
    """Toy C: the cosines with ∇J of a mean over each sequence and over all tokens, and ∇J itself."""
    assert_digits(bias_and_variance(mean_over_each_sequence).cosine, C_SEQUENCE_MEAN_COSINE, 8)
    assert_digits(bias_and_variance(mean_over_all_tokens).cosine, C_TOKEN_MEAN_COSINE, 5)
    assert_digits(bias_and_variance(right).moments.ascent, C_OBJECTIVE_GRADIENT, 10)


def test_the_kl_belongs_to_the_objective():
    """A method with a KL is not the gradient of J, and is that of J − β KL."""
    with pytest.raises(AssertionError, match="another direction"):
        assert_unbiased(rloo(kl_coefficient=0.3), kl_coefficient=0.0)
    with pytest.raises(AssertionError):
        assert_unbiased(grpo(kl_coefficient=0.3), kl_coefficient=0.3, up_to_scale=True)


def test_a_methods_own_kl_is_in_its_objective_unless_another_is_asked_for():
    """None is the method's β against the reference; a loss's, and a KL to the old policy's, is none."""
    assert_unbiased(rloo(kl_coefficient=0.3))
    reference_kl = bias_and_variance(rloo(kl_coefficient=0.3)).target
    plain = bias_and_variance(right).target
    assert_digits(plain, C_OBJECTIVE_GRADIENT, 10)
    assert np.abs(reference_kl - plain).max() > 1e-3
    assert_digits(bias_and_variance(ppo_penalty(kl_coefficient=0.3)).target, C_OBJECTIVE_GRADIENT, 10)
    assert_digits(
        bias_and_variance(rloo(kl_coefficient=0.3), kl_coefficient=0.0).target, C_OBJECTIVE_GRADIENT, 10
    )


def test_stale_samples_are_corrected_by_whole_sequences_only():
    """The live ratio of the whole sequence makes old samples exact; the ratio of each token does not."""

    def whole(policy_logprobs, old_logprobs, rewards, mask):
        return -(((policy_logprobs - old_logprobs) * mask).sum(1).exp() * rewards).mean()

    def by_token(policy_logprobs, old_logprobs, rewards, mask):
        return -((policy_logprobs - old_logprobs).exp() * rewards.unsqueeze(1) * mask).sum(1).mean()

    for situation in ("on-policy", "stale"):
        assert_unbiased(whole, situation=situation)
    assert_unbiased(by_token)
    with pytest.raises(AssertionError, match="stale"):
        assert_unbiased(by_token, situation="stale")


def test_a_loss_that_tells_the_order_is_enumerated_in_order():
    """Minus the mean of what came before it in the batch: unbiased, and another estimator in another order."""

    def minus_earlier(policy_logprobs, rewards, mask):
        earlier = [rewards[:i].mean() if i else rewards.new_zeros(()) for i in range(len(rewards))]
        return -(((rewards - torch.stack(earlier)).unsqueeze(1) * policy_logprobs * mask).sum(1)).mean()

    assert_unbiased(minus_earlier)


def test_a_bias_in_numbers():
    """E[ĝ] = 2∇J: off by its own length, in the same direction."""

    def twice(policy_logprobs, rewards, mask, groups):
        return 2 * right(policy_logprobs, rewards, mask, groups)

    bias = bias_and_variance(twice, group_size=3)
    assert (bias.relative, bias.cosine, bias.scale) == pytest.approx((1.0, 1.0, 2.0), abs=1e-10)
    assert bias.relative_beside_scale < 1e-10
    assert bias.moments.trace == pytest.approx(4 * bias_and_variance(right, group_size=3).moments.trace)
    assert describe(bias).startswith("relative bias 1, cosine 1.000000, scale 2, covariance trace ")


def test_what_there_is_not_is_named_with_the_nearest():
    with pytest.raises(
        InvalidInput, match=r"asks for 'old_logprob'; there is .*did you mean 'old_logprobs'\?"
    ):
        assert_unbiased(lambda policy_logprobs, old_logprob: policy_logprobs.sum())
    with pytest.raises(InvalidInput, match=r"asks for 'x'; there is behaviour_logprobs, .*values$"):
        assert_unbiased(lambda x: x.sum())


def test_defaults_and_keywords_are_left_alone():
    def with_default(policy_logprobs, rewards, mask, groups, scale=1.0):
        return scale * right(policy_logprobs, rewards, mask, groups)

    def with_everything(**batch):
        return right(*(batch[name] for name in ("policy_logprobs", "rewards", "mask", "groups")))

    assert_unbiased(with_default)
    assert_unbiased(with_everything)


def test_a_module_is_asked_by_its_forward():
    class Loss(torch.nn.Module):
        def forward(self, policy_logprobs, rewards, mask, groups):
            return right(policy_logprobs, rewards, mask, groups)

    assert_unbiased(Loss())


def test_a_loss_by_position_or_of_nothing_is_refused_with_what_to_do():
    def by_position(policy_logprobs, /, rewards):
        return (policy_logprobs.sum(1) * rewards).mean()

    with pytest.raises(InvalidInput, match=r"takes 'policy_logprobs' by position only.*remove the \"/\""):
        assert_unbiased(by_position)
    with pytest.raises(InvalidInput, match=r"names nothing of what there is: behaviour_logprobs, .*values$"):
        assert_unbiased(lambda *batch: batch[0].sum())
    with pytest.raises(InvalidInput, match="does not show what it asks for: wrap it in a function"):
        assert_unbiased(torch.sum)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"situation": "stal"}, "situation must be one of 'on-policy', 'stale', 'mismatch', got 'stal'"),
        ({"situation": "off-policy"}, "situation must be one of"),
        (
            {"problem": "three prompts"},
            "problem must be one of 'one prompt', 'two prompts', got 'three prompts'",
        ),
        ({"group_size": 0}, "group_size must be a whole number ≥ 1, got 0"),
    ],
)
def test_what_there_is_no_such_of_is_refused(settings, message):
    with pytest.raises(InvalidInput, match=message):
        bias_and_variance(right, **settings)


def test_a_random_loss_has_no_gradient_to_enumerate():
    def with_dropout(policy_logprobs, rewards, mask, groups):
        return right(torch.nn.functional.dropout(policy_logprobs, 0.5), rewards, mask, groups)

    with pytest.raises(InvalidInput, match=r"two gradients for one batch: it is random \(dropout\?\)"):
        assert_unbiased(with_dropout)


def test_two_causes_of_a_length_are_named_together():
    """1/4 = (1 − 1/G)/T on one prompt, with G = T = 2; neither alone gives it."""

    def dr(policy_logprobs, rewards, mask, groups):
        return own_sample_in_the_mean(policy_logprobs, rewards, mask, groups) / 2

    found = bias_and_variance(dr)
    assert found.scale == pytest.approx(0.25, abs=1e-12)
    assert describe(found).endswith(
        "comes of a return in its group's own mean and a constant length as the divisor"
    )


def test_small_angles_have_two_digits():
    """A little of another direction in the right one: 0.04°, which one digit behind the point would call 0.0°."""

    def nearly(policy_logprobs, rewards, mask, groups):
        return right(policy_logprobs, rewards, mask, groups) + 3e-2 * mean_over_all_tokens(
            policy_logprobs, rewards, mask, groups
        )

    found = bias_and_variance(nearly)
    wrong = bias_and_variance(mean_over_all_tokens).moments.ascent
    beside = wrong - (wrong @ found.target) / (found.target @ found.target) * found.target
    angle = np.degrees(3e-2 * np.linalg.norm(beside) / np.linalg.norm(found.moments.ascent))
    assert 0.01 < angle < 0.05
    assert found.degrees == pytest.approx(angle, rel=1e-6)
    assert f"another direction, {angle:.2g}° off" in describe(found)


def test_a_loss_that_takes_positions_for_groups_is_told_so():
    """Its credit is prompt by prompt, its log-probabilities as they came: right only where that is one order."""

    def prompt_by_prompt(policy_logprobs, rewards, mask, groups):
        own = [rewards[groups == group] for group in groups.unique()]
        credit = torch.cat([rewards - rewards.flip(0) for rewards in own])
        return -(credit.unsqueeze(1) * policy_logprobs * mask).sum() / len(rewards)

    assert 'on the problem "two prompts"' in said_of(prompt_by_prompt)
    assert "with each prompt's samples adjacent in the batch it is unbiased" in said_of(prompt_by_prompt)
    assert "adjacent" not in said_of(
        mean_over_padding_too, up_to_scale=True
    )  # wrong on two prompts in any order


def test_importing_the_package_is_enough():
    """`rung.verify.assert_unbiased` after `import rung.verify`, in a process of its own, with torch and numpy alone."""
    assert rung.verify.assert_unbiased is assert_unbiased
    code = (
        "import sys, rung.verify; print(callable(rung.verify.assert_unbiased), "
        "[m for m in ('transformers', 'pydantic', 'rich') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "[]"]
