"""Methods that are one another with a setting or a slot exchanged, sample by sample, on irregular batches."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from rung.aggregation import sequence_mean, sequence_sum, token_mean
from rung.credit import group_centered, group_standardized, leave_one_out, minus_batch_mean, reward_to_go
from rung.methods import Method, dr_grpo, grpo, ppo_loo, reinforce, rloo
from rung.policy_losses import importance_weighted_loss, policy_gradient_loss
from rung.trust_region import TrustRegion, trust_region_step
from tests.batches import annotated, close, ragged, rollouts
from tests.methods.helpers import NAMES, build, unpenalized
from tests.reductions.helpers import BATCHES, equal_groups, moved, slope

UNREACHED = {"clip_low": 1.0, "clip_high": 1e9}


# --- at the old policy ---------------------------------------------------------------------------------------------


@BATCHES
@pytest.mark.parametrize("name", NAMES)
def test_before_the_first_update_every_method_is_the_policy_gradient_of_its_credit(name, batch):
    """−w Ψ on each token, times the sampler's weight where there is one: clips, caps and ratios do nothing yet."""
    method = unpenalized(name)
    prepared = method.prepare(batch)
    weights = method.weights(prepared.mask)
    correction = 1.0 if prepared.correction is None else prepared.correction
    assert prepared.credit.abs().max().item() > 0.1
    close(slope(method, batch), -weights * correction * prepared.credit)


def test_ppo_before_its_first_update_is_rloo():
    for name in ("ppo-loo", "dual-clip", "trpo"):
        for batch in (ragged(), equal_groups()):
            close(slope(build(name, kl_coefficient=0.1), batch), slope(rloo(kl_coefficient=0.1), batch))


@BATCHES
def test_a_penalty_on_the_step_is_rloo_before_the_first_update(batch):
    for coefficient in (0.0, 9.0):
        tested = build("ppo-penalty", kl_coefficient=coefficient)
        close(slope(tested, batch), slope(rloo(kl_coefficient=0.0), batch))


def test_at_the_reference_a_penalty_is_nothing():
    batch = equal_groups()
    at_reference = replace(batch, reference_logprobs=batch.old_logprobs)
    for name in NAMES:
        close(
            slope(build(name, kl_coefficient=5.0), at_reference),
            slope(build(name, kl_coefficient=0.0), at_reference),
        )


# --- later updates -------------------------------------------------------------------------------------------------


@BATCHES
def test_a_clip_that_nothing_reaches_leaves_the_importance_weight(batch):
    weighted = Method("weighted", leave_one_out, importance_weighted_loss, sequence_sum)
    wanted = slope(weighted, batch, moved(batch))
    for name in ("ppo-loo", "dual-clip", "ppo-penalty", "trpo"):
        open_ = UNREACHED | {"dual_clip": 1e9} if name == "dual-clip" else UNREACHED
        tested = unpenalized(name, **(open_ if name in ("ppo-loo", "dual-clip") else {}))
        close(slope(tested, batch, moved(batch)), wanted)
    assert (slope(unpenalized("ppo-loo"), batch, moved(batch)) - wanted).abs().max().item() > 0.05


@BATCHES
def test_a_second_clip_that_nothing_reaches_is_ppo(batch):
    close(
        slope(unpenalized("dual-clip", dual_clip=1e9), batch, moved(batch)),
        slope(unpenalized("ppo-loo"), batch, moved(batch)),
    )


def test_one_token_each_and_grpo_is_gspo():
    """A sequence of one token is clipped as a token; the mean over its tokens is itself."""
    batch = rollouts([[1]] * 4 + [[0, 1]], [1.0, 0.0, -0.5, 2.0, 0.3], [2, 0, 2, 0, 2])
    batch = annotated(batch, reference_logprobs=batch.behaviour_logprobs + 0.3)
    settings = {"kl_coefficient": 0.2, "clip_low": 0.2, "clip_high": 0.28}
    for policy in (batch.old_logprobs, moved(batch)):
        close(
            slope(build("gspo", **settings), batch, policy), slope(build("grpo", **settings), batch, policy)
        )


@BATCHES
def test_gspo_at_the_old_policy_is_grpo(batch):
    close(slope(build("gspo", kl_coefficient=0.2), batch), slope(build("grpo", kl_coefficient=0.2), batch))
    away = [slope(build(name, kl_coefficient=0.2), batch, moved(batch)) for name in ("gspo", "grpo")]
    assert (away[0] - away[1]).abs().max().item() > 0.01


@BATCHES
def test_a_cap_that_nothing_reaches_leaves_the_importance_weight(batch):
    weighted = Method("weighted", group_standardized, importance_weighted_loss, token_mean)
    close(slope(unpenalized("cispo", cap=1e9), batch, moved(batch)), slope(weighted, batch, moved(batch)))
    capped = slope(unpenalized("cispo", cap=1.0), batch, moved(batch)) - slope(weighted, batch, moved(batch))
    assert capped.abs().max().item() > 0.02


def test_dapo_is_grpo_over_all_tokens_of_the_groups_that_it_keeps():
    """Its cap far away and its upper clip as GRPO's; the ragged batch without the group of one, equal groups whole."""
    over_tokens = replace(grpo(kl_coefficient=0.0), aggregation=token_mean)
    whole = equal_groups()
    tested = unpenalized("dapo", length=50, clip_high=0.2)
    close(slope(tested, whole, moved(whole)), slope(over_tokens, whole, moved(whole)))
    batch = ragged()
    kept = replace(batch, valid=batch.valid & (batch.groups != 30))
    close(slope(tested, batch, moved(batch)), slope(over_tokens, kept, moved(batch)))


def test_trpo_on_a_round_fisher_is_a_step_of_fixed_length_down_rloos_gradient():
    """F = 1, no damping: −√(2δ) g/|g|, shortened until it is inside the region and below the start."""
    batch = equal_groups()
    method = unpenalized("trpo")
    prepared = method.prepare(batch)
    weights = method.weights(prepared.mask)
    g = slope(method, batch).flatten()
    close(g, slope(unpenalized("rloo"), batch).flatten())

    def evaluate(step):
        policy = batch.old_logprobs + step.reshape(batch.mask.shape)
        return float(method.loss(policy, prepared, weights)), float(step @ step) / 2

    region = TrustRegion(max_kl=method.update.max_kl, damping=0.0)
    taken = trust_region_step(g, lambda v: v, evaluate, region)
    shortened = 0.8**taken.backtracks
    close(taken.step, -shortened * (0.02**0.5) * g / g.norm())
    assert taken.accepted


# --- credits -------------------------------------------------------------------------------------------------------


def test_grpo_without_its_three_biases_is_rloo_shortened():
    """No deviation, no division by length, no KL in the loss: (G − 1)/G · RLOO at G = 3."""
    plain = replace(grpo(kl_coefficient=0.0), credit=group_centered, aggregation=sequence_sum)
    close(slope(plain, equal_groups()), 2 / 3 * slope(rloo(kl_coefficient=0.0), equal_groups()))


def test_dr_grpo_is_rloo_shortened_over_a_constant():
    close(
        slope(dr_grpo(length=7), equal_groups()), 2 / 3 / 7 * slope(rloo(kl_coefficient=0.0), equal_groups())
    )


def test_dr_grpo_is_grpo_with_two_slots_exchanged():
    tested = replace(
        grpo(kl_coefficient=0.3), credit=group_centered, aggregation=dr_grpo(length=5).aggregation
    )
    for batch in (ragged(), equal_groups()):
        wanted = slope(dr_grpo(length=5, kl_coefficient=0.3), batch, moved(batch))
        close(slope(tested, batch, moved(batch)), wanted)


@BATCHES
def test_reinforce_with_rewards_at_the_end_is_the_batch_mean(batch):
    tested = replace(reinforce(kl_coefficient=0.0), credit=minus_batch_mean)
    close(slope(tested, batch), slope(reinforce(kl_coefficient=0.0), batch))


@BATCHES
def test_baselines_of_zero_leave_the_return(batch):
    """The return of the whole or, the same for rewards at the end, the return to go."""
    free = replace(batch, greedy_rewards=torch.zeros_like(batch.outcome_rewards))
    wanted = slope(unpenalized("vpg"), free)
    close(slope(unpenalized("remax"), free), wanted)
    close(slope(unpenalized("reinforce-constant", baseline=0.0), free), wanted)
    close(slope(unpenalized("reinforce-moving-average", baseline=0.0), free), wanted)
    close(
        slope(unpenalized("reinforce-moving-average", baseline=0.7), free),
        slope(unpenalized("reinforce-constant", baseline=0.7), free),
    )


@BATCHES
def test_a_critic_of_zero_leaves_the_return_to_go(batch):
    """With the KL of the later tokens in it, which the total return of `vpg` would add that of the earlier to."""
    silent = replace(
        batch, values=torch.zeros_like(batch.values), bootstrap=torch.zeros_like(batch.outcome_rewards)
    )
    to_go = replace(build("vpg", kl_coefficient=0.3), credit=reward_to_go)
    close(slope(build("reinforce-learned", kl_coefficient=0.3), silent), slope(to_go, silent))
    difference = slope(build("vpg", kl_coefficient=0.3), silent) - slope(to_go, silent)
    assert difference.abs().max().item() > 0.01


@BATCHES
def test_a2c_at_lambda_one_and_without_a_bonus_is_reinforce_with_a_learned_baseline(batch):
    tested = build("a2c", kl_coefficient=0.3, lam=1.0, entropy_coefficient=0.0)
    close(slope(tested, batch), slope(build("reinforce-learned", kl_coefficient=0.3), batch))


def test_vtrace_on_policy_is_a_learned_baseline():
    """Caps of 1 that ratios of 1 do not exceed, λ = 1: G_t − V(s_t)."""
    batch = equal_groups()
    wanted = slope(build("reinforce-learned", kl_coefficient=0.3), batch)
    close(slope(build("impala", kl_coefficient=0.3), batch), wanted)
    other = replace(batch, behaviour_logprobs=batch.behaviour_logprobs - 0.2)
    assert (slope(build("impala", kl_coefficient=0.3, rho_cap=9.0), other) - wanted).abs().max().item() > 0.01


def test_a_correction_for_the_trainers_own_samples_is_nothing():
    batch = equal_groups()
    close(slope(build("rloo-corrected", kl_coefficient=0.3), batch), slope(rloo(kl_coefficient=0.3), batch))
    other = replace(batch, behaviour_logprobs=batch.behaviour_logprobs - 0.2)
    difference = slope(build("rloo-corrected", kl_coefficient=0.3), other) - slope(
        rloo(kl_coefficient=0.3), other
    )
    assert difference.abs().max().item() > 0.01


def one_length(groups):
    return annotated(rollouts([[1, 1]] * 4, [1.0, 0.0, -0.5, 2.0], groups))


def test_with_one_length_step_means_are_the_batch_mean():
    batch = one_length([0, 0, 1, 1])
    close(slope(unpenalized("reinforce-step-mean"), batch), slope(unpenalized("reinforce"), batch))


def test_with_one_prompt_and_one_length_whitening_is_standardizing():
    """By the population deviation: over tokens or sequences is then the same, and so is what was subtracted before."""
    batch = one_length([0, 0, 0, 0])
    wanted = replace(PLAIN_MEAN, credit=partial(group_standardized, correction=0))
    for name in ("reinforce++", "reinforce++-baseline"):
        close(slope(unpenalized(name), batch), slope(wanted, batch))


PLAIN_MEAN = Method("plain", group_standardized, policy_gradient_loss, token_mean)


def test_with_two_prompts_of_one_length_whitening_divides_by_one_deviation_for_both():
    """Centred on the prompt, ±0.5 and ±1.25, over √((0.5² + 1.25²)/2): each prompt keeps its own spread."""
    batch = one_length([0, 0, 1, 1])
    centered = slope(replace(PLAIN_MEAN, credit=group_centered), batch)
    spread = ((0.5**2 + 1.25**2) / 2) ** 0.5
    close(slope(unpenalized("reinforce++-baseline"), batch), centered / spread)


def test_a_mean_over_each_sequence_of_one_token_is_its_sum():
    batch = rollouts([[1]] * 4, [1.0, 0.0, -0.5, 2.0], [2, 0, 2, 0])
    batch = annotated(batch, reference_logprobs=batch.behaviour_logprobs + 0.3)
    summed = replace(grpo(kl_coefficient=0.2), aggregation=sequence_sum)
    averaged = replace(ppo_loo(kl_coefficient=0.2), aggregation=sequence_mean)
    close(slope(grpo(kl_coefficient=0.2), batch), slope(summed, batch))
    close(slope(averaged, batch), slope(ppo_loo(kl_coefficient=0.2), batch))
