"""Penalties that are one another, sample by sample, on irregular batches."""

from dataclasses import replace

import torch

from rung.aggregation import sequence_sum
from rung.credit import leave_one_out
from rung.kl import k1, k2
from rung.methods import KLPenalty, Method, rloo
from rung.policy_losses import policy_gradient_loss
from tests.batches import close
from tests.methods.helpers import build
from tests.reductions.helpers import BATCHES, equal_groups, slope


@BATCHES
def test_a_kl_in_the_reward_is_a_reward_that_was_always_lower(batch):
    """Subtracting β k1 per token from R is what changes the credit; nothing else of the method knows."""
    beta = 0.3
    with_kl = rloo(kl_coefficient=beta).prepare(batch).credit
    penalty = torch.where(batch.mask, beta * (batch.old_logprobs - batch.reference_logprobs), 0.0).sum(1)
    stated = leave_one_out(batch.outcome_rewards - penalty, batch.groups, batch.valid)
    close(with_kl, stated.unsqueeze(1) * (batch.mask & batch.valid.unsqueeze(1)))


@BATCHES
def test_k1_of_whole_sequences_in_the_reward_is_the_sum_over_their_tokens(batch):
    """To whom the whole return is credited it is the same; a return to go charges earlier tokens for it as well."""
    for name in ("vpg", "rloo", "ppo-loo"):
        by_token = build(name, kl_coefficient=0.3)
        whole = replace(by_token, kl=replace(by_token.kl, level="sequence"))
        close(slope(whole, batch), slope(by_token, batch))
    by_token = build("reinforce", kl_coefficient=0.3)
    whole = replace(by_token, kl=replace(by_token.kl, level="sequence"))
    assert (slope(whole, batch) - slope(by_token, batch)).abs().max().item() > 0.01


def test_k2_of_whole_sequences_in_the_loss_is_k1_in_the_reward():
    """Sample by sample: the slope of ½(Σl)² at each token is Σl, the total penalty that the reward charges to it."""
    batch = replace(equal_groups(), outcome_rewards=torch.zeros(9).double())
    in_loss = Method(
        "k2",
        lambda mask: 0.0 * mask,
        policy_gradient_loss,
        sequence_sum,
        KLPenalty(k2, "loss", 1.0, level="sequence"),
    )
    close(slope(in_loss, batch), slope(build("vpg", kl_coefficient=1.0), batch))


def test_k2_in_the_loss_is_k1_as_an_immediate_cost():
    """Sample by sample: the slope of ½l² is l, which is what −(−l)·score gives."""
    batch = equal_groups()
    in_loss = Method(
        "k2", lambda mask: 0.0 * mask, policy_gradient_loss, sequence_sum, KLPenalty(k2, "loss", 1.0)
    )
    immediate = Method(
        "k1", lambda rewards: rewards, policy_gradient_loss, sequence_sum, KLPenalty(k1, "reward", 1.0)
    )
    worthless = replace(batch, outcome_rewards=torch.zeros_like(batch.outcome_rewards))
    close(slope(in_loss, worthless), slope(immediate, worthless))
