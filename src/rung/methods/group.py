"""GRPO and what came after it: credit by comparison within a group, and what each paper changed."""

from functools import partial

from rung.aggregation import constant_length, sequence_mean, token_mean
from rung.credit import group_centered, group_standardized
from rung.kl import k3
from rung.methods.method import Method
from rung.methods.penalty import Coefficient, KLPenalty
from rung.notation import GroupIds, PerSequence, TokenMask
from rung.policy_losses import cispo_loss, clipped_loss, sequence_clipped_loss
from rung.selection import mixed_groups, overlong_penalty


def grpo(*, kl_coefficient: Coefficient = 0.05, clip_low: float = 0.2, clip_high: float = 0.2) -> Method:
    """GRPO as published: standardised credit, k3 in the loss, the mean over each sequence. All three bias it."""
    return Method(
        name="grpo",
        credit=group_standardized,
        policy_loss=partial(clipped_loss, clip_low=clip_low, clip_high=clip_high),
        kl=KLPenalty(k3, placement="loss", coefficient=kl_coefficient),
        aggregation=sequence_mean,
    )


def dr_grpo(
    *, length: int, kl_coefficient: Coefficient = 0.0, clip_low: float = 0.2, clip_high: float = 0.2
) -> Method:
    """Dr. GRPO: centred credit and a constant in place of each length. Without KL, (G − 1)/(G · length) times ∇J."""
    return Method(
        name="dr-grpo",
        credit=group_centered,
        policy_loss=partial(clipped_loss, clip_low=clip_low, clip_high=clip_high),
        kl=KLPenalty(k3, placement="loss", coefficient=kl_coefficient),
        aggregation=partial(constant_length, length=length),
    )


def overlong_standardized(
    returns: PerSequence, mask: TokenMask, groups: GroupIds, valid: PerSequence, *, length: int, buffer: int
) -> PerSequence:
    """DAPO's credit: the soft penalty on overlong completions is part of the return that is standardised."""
    shaped = returns + overlong_penalty(mask.sum(1), max_length=length, buffer=buffer)
    return group_standardized(shaped, groups, valid)


def dapo(
    *,
    length: int,
    overlong_buffer: int | None = None,
    kl_coefficient: Coefficient = 0.0,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
) -> Method:
    """DAPO: a higher upper clip, the mean over all tokens, groups of one reward left out, long answers penalised."""
    buffer = max(length // 5, 1) if overlong_buffer is None else overlong_buffer
    return Method(
        name="dapo",
        credit=partial(overlong_standardized, length=length, buffer=buffer),
        policy_loss=partial(clipped_loss, clip_low=clip_low, clip_high=clip_high),
        kl=KLPenalty(k3, placement="loss", coefficient=kl_coefficient),
        aggregation=token_mean,
        select=mixed_groups,
    )


def gspo(*, kl_coefficient: Coefficient = 0.0, clip_low: float = 3e-4, clip_high: float = 4e-4) -> Method:
    """GSPO: one ratio a sequence, the geometric mean of its tokens', and one clip. GRPO's credit."""
    return Method(
        name="gspo",
        credit=group_standardized,
        policy_loss=partial(sequence_clipped_loss, clip_low=clip_low, clip_high=clip_high),
        kl=KLPenalty(k3, placement="loss", coefficient=kl_coefficient),
        aggregation=sequence_mean,
    )


def cispo(*, kl_coefficient: Coefficient = 0.0, cap: float = 5.0) -> Method:
    """CISPO: the ratio is capped and held constant, so that no token is dropped. GRPO's credit, mean over tokens."""
    return Method(
        name="cispo",
        credit=group_standardized,
        policy_loss=partial(cispo_loss, cap=cap),
        kl=KLPenalty(k3, placement="loss", coefficient=kl_coefficient),
        aggregation=token_mean,
    )
