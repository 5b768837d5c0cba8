"""Methods that are one another with a slot exchanged, on one ragged batch."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from rung.aggregation import constant_length, sequence_sum
from rung.credit import group_centered, leave_one_out, minus_batch_mean
from rung.kl import k1, k2
from rung.methods import KLPenalty, Method, grpo, ppo_loo, reinforce, rloo
from rung.policy_losses import policy_gradient_loss
from tests.batches import close, gradient, ragged, rollouts


def slope(method, batch, policy=None):
    """∂ loss/∂ log π at the old policy."""
    policy = (batch.old_logprobs if policy is None else policy).clone().requires_grad_()
    prepared = method.prepare(batch)
    return gradient(method.loss(policy, prepared, method.weights(prepared.mask)), policy)


def equal_groups():
    """Three groups of three, lengths 1 to 3, and log-probs of the irregular batch."""
    masks = [[1, 1, 1], [1], [1, 1], [1, 0, 1], [1, 1], [1], [1], [1, 1, 1], [0, 1]]
    batch = rollouts(masks, [1.0, 0.0, -0.5, 2.0, 2.0, 0.3, 0.0, 0.0, 4.0], [2, 0, 1, 0, 1, 2, 0, 2, 1])
    other = ragged()
    old = other.old_logprobs[:9, : batch.mask.shape[1]] - 0.1
    reference = other.reference_logprobs[:9, : batch.mask.shape[1]] - 0.2
    return replace(batch, old_logprobs=old, reference_logprobs=reference)


def test_ppo_before_its_first_update_is_rloo():
    for batch in (ragged(), equal_groups()):
        close(slope(ppo_loo(kl_coefficient=0.1), batch), slope(rloo(kl_coefficient=0.1), batch))


def test_grpo_without_its_three_biases_is_rloo_shortened():
    """No deviation, no division by length, no KL in the loss: (G − 1)/G · RLOO at G = 3."""
    plain = replace(grpo(kl_coefficient=0.0), credit=group_centered, aggregation=sequence_sum)
    close(slope(plain, equal_groups()), 2 / 3 * slope(rloo(kl_coefficient=0.0), equal_groups()))


def test_dr_grpo_is_rloo_shortened_over_a_constant():
    tested = Method("dr-grpo", group_centered, policy_gradient_loss, partial(constant_length, length=7))
    close(slope(tested, equal_groups()), 2 / 3 / 7 * slope(rloo(kl_coefficient=0.0), equal_groups()))


def test_reinforce_with_rewards_at_the_end_is_the_batch_mean():
    tested = replace(reinforce(kl_coefficient=0.0), credit=minus_batch_mean)
    for batch in (ragged(), equal_groups()):
        close(slope(tested, batch), slope(reinforce(kl_coefficient=0.0), batch))


@pytest.mark.parametrize("batch", [ragged(), equal_groups()], ids=["ragged", "equal groups"])
def test_a_kl_in_the_reward_is_a_reward_that_was_always_lower(batch):
    """Subtracting β k1 per token from R is what changes the credit; nothing else of the method knows."""
    beta = 0.3
    with_kl = rloo(kl_coefficient=beta).prepare(batch).credit
    penalty = torch.where(batch.mask, beta * (batch.old_logprobs - batch.reference_logprobs), 0.0).sum(1)
    stated = leave_one_out(batch.outcome_rewards - penalty, batch.groups, batch.valid)
    close(with_kl, stated.unsqueeze(1) * (batch.mask & batch.valid.unsqueeze(1)))


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


def test_at_the_reference_a_penalty_is_nothing():
    batch = equal_groups()
    at_reference = replace(batch, reference_logprobs=batch.old_logprobs)
    for make in (rloo, ppo_loo, grpo, reinforce):
        close(slope(make(kl_coefficient=5.0), at_reference), slope(make(kl_coefficient=0.0), at_reference))
