"""The named methods. Read them side by side: the lines that differ are what the papers differ in."""

from collections.abc import Callable
from functools import partial

from rung.aggregation import sequence_mean, sequence_sum
from rung.credit import group_standardized, leave_one_out, reward_to_go_minus_batch_mean, total_return
from rung.kl import k1, k3
from rung.methods.method import KLPenalty, Method
from rung.policy_losses import clipped_loss, policy_gradient_loss


def vpg(*, kl_coefficient: float = 0.05) -> Method:
    """Vanilla policy gradient: the whole return on every token. Unbiased, and as noisy as it gets."""
    return Method(
        name="vpg",
        credit=total_return,
        policy_loss=policy_gradient_loss,
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
    )


def reinforce(*, kl_coefficient: float = 0.05) -> Method:
    """REINFORCE with a baseline: the return from each token on, minus the batch's mean. Unbiased up to 1 − 1/B."""
    return Method(
        name="reinforce",
        credit=reward_to_go_minus_batch_mean,
        policy_loss=policy_gradient_loss,
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
    )


def rloo(*, kl_coefficient: float = 0.05) -> Method:
    """REINFORCE with a leave-one-out baseline: unbiased, no critic, at least two samples per prompt."""
    return Method(
        name="rloo",
        credit=leave_one_out,
        policy_loss=policy_gradient_loss,
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
    )


def ppo_loo(*, kl_coefficient: float = 0.05, clip_low: float = 0.2, clip_high: float = 0.2) -> Method:
    """PPO's clipped ratio on leave-one-out credit, for several updates per batch. No critic, hence not `ppo`."""
    return Method(
        name="ppo-loo",
        credit=leave_one_out,
        policy_loss=partial(clipped_loss, clip_low=clip_low, clip_high=clip_high),
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
    )


def grpo(*, kl_coefficient: float = 0.05, clip_low: float = 0.2, clip_high: float = 0.2) -> Method:
    """GRPO as published: standardised credit, k3 in the loss, the mean over each sequence. All three bias it."""
    return Method(
        name="grpo",
        credit=group_standardized,
        policy_loss=partial(clipped_loss, clip_low=clip_low, clip_high=clip_high),
        kl=KLPenalty(k3, placement="loss", coefficient=kl_coefficient),
        aggregation=sequence_mean,
    )


CATALOGUE: dict[str, Callable[..., Method]] = {
    "vpg": vpg,
    "reinforce": reinforce,
    "rloo": rloo,
    "grpo": grpo,
    "ppo-loo": ppo_loo,
}
