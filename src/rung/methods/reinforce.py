"""REINFORCE and its baselines: what is subtracted from a return. Read them side by side: they differ in a line.

J is the expected reward of a completion, less β · KL(policy‖reference) where k1 stands in the reward.
"""

from functools import partial

from rung.aggregation import sequence_sum, token_mean
from rung.correction import sequence_truncation
from rung.credit import (
    MovingAverage,
    gae,
    leave_one_out,
    minus_constant,
    minus_greedy,
    reward_to_go_minus_batch_mean,
    reward_to_go_minus_step_mean,
    total_return,
    whitened_group_centered,
    whitened_to_go,
)
from rung.kl import k1, k2
from rung.methods.method import Method
from rung.methods.penalty import Coefficient, KLPenalty
from rung.policy_losses import clipped_loss, policy_gradient_loss


def vpg(*, kl_coefficient: Coefficient = 0.05) -> Method:
    """Vanilla policy gradient: the whole return on every token. Unbiased, with nothing taken off its noise."""
    return Method(
        name="vpg",
        credit=total_return,
        policy_loss=policy_gradient_loss,
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
    )


def reinforce_constant(*, kl_coefficient: Coefficient = 0.05, baseline: float = 0.5) -> Method:
    """The return minus a number fixed beforehand. Unbiased for any number; which one decides the variance."""
    return Method(
        name="reinforce-constant",
        credit=partial(minus_constant, baseline=baseline),
        policy_loss=policy_gradient_loss,
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
    )


def reinforce(*, kl_coefficient: Coefficient = 0.05) -> Method:
    """REINFORCE with a baseline: the return from each token on, minus the batch's mean. Unbiased up to 1 − 1/B."""
    return Method(
        name="reinforce",
        credit=reward_to_go_minus_batch_mean,
        policy_loss=policy_gradient_loss,
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
    )


def reinforce_step_mean(*, kl_coefficient: Coefficient = 0.05) -> Method:
    """A baseline for each step: the mean over the sequences that are still alive. Turns once lengths differ."""
    return Method(
        name="reinforce-step-mean",
        credit=reward_to_go_minus_step_mean,
        policy_loss=policy_gradient_loss,
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
    )


def reinforce_moving_average(
    *, kl_coefficient: Coefficient = 0.05, baseline: float = 0.0, momentum: float = 0.9
) -> Method:
    """A baseline from the batches before this one. Unbiased: it does not know the samples that it is taken from."""
    return Method(
        name="reinforce-moving-average",
        credit=MovingAverage(baseline, momentum),
        policy_loss=policy_gradient_loss,
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
    )


def reinforce_learned(*, kl_coefficient: Coefficient = 0.05) -> Method:
    """REINFORCE with a learned baseline, G_t − V(s_t). Unbiased whatever the critic says."""
    return Method(
        name="reinforce-learned",
        credit=partial(gae, lam=1.0),
        policy_loss=policy_gradient_loss,
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
    )


def rloo(*, kl_coefficient: Coefficient = 0.05) -> Method:
    """REINFORCE with a leave-one-out baseline: unbiased, no critic, at least two samples per prompt."""
    return Method(
        name="rloo",
        credit=leave_one_out,
        policy_loss=policy_gradient_loss,
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
    )


def rloo_corrected(*, kl_coefficient: Coefficient = 0.05, cap: float = 2.0) -> Method:
    """RLOO whose samples come from another engine: the sequence's ratio to it, truncated, weighs each token's loss.

    Where sampler and trainer agree, as the engine in this process does, every weight is 1 and this is RLOO.
    """
    return Method(
        name="rloo-corrected",
        credit=leave_one_out,
        policy_loss=policy_gradient_loss,
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
        correction=partial(sequence_truncation, cap=cap),
    )


def remax(*, kl_coefficient: Coefficient = 0.05) -> Method:
    """The return minus the reward of the greedy completion. Unbiased; it need not lower the variance."""
    return Method(
        name="remax",
        credit=minus_greedy,
        policy_loss=policy_gradient_loss,
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
    )


def reinforce_pp(
    *, kl_coefficient: Coefficient = 0.05, clip_low: float = 0.2, clip_high: float = 0.2
) -> Method:
    """REINFORCE++: the return from each token on, whitened over all tokens of the batch, and PPO's clip. Biased."""
    return Method(
        name="reinforce++",
        credit=whitened_to_go,
        policy_loss=partial(clipped_loss, clip_low=clip_low, clip_high=clip_high),
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=token_mean,
    )


def reinforce_pp_baseline(
    *, kl_coefficient: Coefficient = 0.05, clip_low: float = 0.2, clip_high: float = 0.2
) -> Method:
    """REINFORCE++ with a baseline: minus the group's mean, then whitened over all tokens; k2 in the loss. Biased."""
    return Method(
        name="reinforce++-baseline",
        credit=whitened_group_centered,
        policy_loss=partial(clipped_loss, clip_low=clip_low, clip_high=clip_high),
        kl=KLPenalty(k2, placement="loss", coefficient=kl_coefficient),
        aggregation=token_mean,
    )
