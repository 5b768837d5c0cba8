"""Public mistakes that are made where the slots join, each under its id."""

import math
from dataclasses import replace

import pytest
import torch

from rung.aggregation import token_mean
from rung.errors import InvalidInput
from rung.kl import k1, k2
from rung.methods import grpo
from tests.batches import annotated, close, f64, gradient, leaf, rollouts
from tests.methods.helpers import COMPARES, NAMES, PLAIN, build, loss_of, penalized, two_rows, unpenalized
from tests.toys import assert_digits


@pytest.mark.parametrize(("estimator", "placement"), [(k1, "reward"), (k2, "loss")])
def test_case_A1_the_penalty_brings_the_policy_nearer_to_the_reference(estimator, placement):
    """p = (.5, .3, .2), q = (.4, .4, .2), no reward, β = 0.1: in expectation the gradient of 0.1 KL(p‖q)."""
    p, q = [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]
    logits = leaf([math.log(x) for x in p])
    policy = logits.log_softmax(-1).unsqueeze(1)
    batch = replace(
        rollouts([[1], [1], [1]], [0.0, 0.0, 0.0]),
        old_logprobs=policy.detach(),
        reference_logprobs=f64(q).log().unsqueeze(1),
    )
    method = penalized(estimator, placement, 0.1)
    prepared = method.prepare(batch)
    slope = gradient(
        method.loss(policy, prepared, f64(p).unsqueeze(1)), logits
    )  # each token with its probability
    kl = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    close(slope, [0.1 * a * (math.log(a / b) - kl) for a, b in zip(p, q, strict=True)])
    assert_digits(slope / 0.1, [0.09893820, -0.09388477, -0.00505343], 8)


def test_case_A4_no_kl_of_a_tools_output_in_reward_or_loss():
    """k1 = .05, .03 | −3, −4 | .02 with two tokens of a tool: the sum is 0.10, not −6.9."""
    batch = rollouts([[1, 1, 0, 0, 1]], [0.0])
    ratio = f64([[0.05, 0.03, -3.0, -4.0, 0.02]])
    batch = replace(batch, old_logprobs=ratio, reference_logprobs=torch.zeros_like(ratio))
    in_reward = penalized(k1, "reward", 1.0)
    close(in_reward.token_rewards(batch), [[-0.05, -0.03, 0.0, 0.0, -0.02]])
    close(in_reward.prepare(batch).credit, [[-0.1, -0.1, 0.0, 0.0, -0.1]])
    in_loss = penalized(k1, "loss", 1.0, aggregation=token_mean)
    prepared = in_loss.prepare(batch)
    close(in_loss.loss(ratio, prepared, in_loss.weights(prepared.mask)), 0.1 / 3)


@pytest.mark.parametrize("reward", [10.0, 1000.0])
@pytest.mark.parametrize("name", NAMES)
def test_case_B12_a_row_without_a_token_changes_no_loss(name, reward):
    """One empty row beside 1 and 0: the numbers of a batch without it."""
    method = unpenalized(name)

    def trained(masks, rewards):
        batch = annotated(rollouts(masks, rewards), greedy_rewards=torch.full((len(masks),), 0.5).double())
        prepared = method.prepare(batch)
        policy = batch.behaviour_logprobs.clone().requires_grad_()
        loss = loss_of(method, policy, prepared)
        return loss, gradient(loss, policy)

    loss, slope = trained([[], [1, 1], [1, 1]], [reward, 1.0, 0.0])
    alone, slope_alone = trained([[1, 1], [1, 1]], [1.0, 0.0])
    close(loss, alone.detach())
    close(slope[1:], slope_alone)
    assert not slope[0].any()
    assert slope[1].abs().min().item() > 0.02


def test_case_B12_the_numbers_of_the_sheet():
    """Mean-centred 1 and 0: +0.5 and −0.5, whatever the empty row earned."""
    for reward in (10.0, 1000.0):
        batch = annotated(rollouts([[], [1, 1], [1, 1]], [reward, 1.0, 0.0]))
        close(unpenalized("dr-grpo").prepare(batch).credit, [[0.0, 0.0], [0.5, 0.5], [-0.5, -0.5]])


@pytest.mark.parametrize("name", NAMES)
def test_case_C10_nothing_to_train_on_gives_zero_not_nan(name):
    batch = rollouts([[0, 0], [1, 1]], [1.0, None])
    batch = annotated(batch, reference_logprobs=batch.behaviour_logprobs - 0.1)
    method = build(name, kl_coefficient=0.3)
    prepared = method.prepare(batch)
    policy = batch.behaviour_logprobs.clone().requires_grad_()
    loss = loss_of(method, policy, prepared)
    close(loss, 0.0)
    assert not gradient(loss, policy).any()


@pytest.mark.parametrize("name", NAMES)
def test_case_C12_the_end_token_is_credited_like_any_other(name):
    """Two sequences of three tokens, the last of them the end token: a gradient on each, the same but for λ = 0.95."""
    method = unpenalized(name)
    batch = annotated(rollouts([[1, 1, 1], [1, 1, 1]], [1.0, 0.0]))
    prepared = method.prepare(batch)
    policy = batch.behaviour_logprobs.clone().requires_grad_()
    slope = gradient(loss_of(method, policy, prepared), policy)
    factors = f64([0.95**2, 0.95, 1.0]) if name == "a2c" else f64([1.0, 1.0, 1.0])
    close(slope, slope[:, 2:] * factors)
    assert slope[0, 2].item() < -0.02


@pytest.mark.parametrize("name", NAMES)
def test_case_H10_a_failed_judge_is_no_reward_of_zero(name):
    """Rewards 1, missing, 1: the missing row has no credit, no weight, and no part in anybody's baseline."""
    method = unpenalized(name)
    batch = annotated(rollouts([[1, 1], [1, 1], [1, 1]], [1.0, None, 1.0]))
    prepared = method.prepare(batch)
    # Compared with each other the two are equal; compared with nothing each has its return, or that less a constant.
    last = {"nothing": 1.0}.get(COMPARES[name], 0.0) - (0.5 if name == "reinforce-constant" else 0.0)
    first = 0.95 * last if name == "a2c" else last
    close(prepared.credit, [[first, last], [0.0, 0.0], [first, last]])
    kept = name != "dapo"  # which drops a group of one reward
    assert prepared.mask.tolist() == [[kept, kept], [False, False], [kept, kept]]
    assert not method.weights(prepared.mask)[1].any()


@pytest.mark.parametrize("shape", [(2,), (2, 1), (1, 2), (4,)])
def test_case_H11_weights_do_not_broadcast(shape):
    batch = PLAIN.prepare(rollouts([[1, 1], [1, 1]], [1.0, 0.0]))
    with pytest.raises(InvalidInput, match="same shape"):
        PLAIN.loss(leaf([[-1.0, -1.0], [-1.0, -1.0]]), batch, torch.ones(shape, dtype=torch.float64))


@pytest.mark.parametrize("name", ["policy", "old_logprobs", "reference_logprobs", "credit"])
def test_case_H11_no_tensor_of_the_loss_broadcasts(name):
    method = grpo()
    whole = method.prepare(two_rows())
    policy, weights = leaf([[-1.0] * 3] * 2), method.weights(whole.mask)
    if name == "policy":
        policy = leaf([[-1.0], [-1.0]])
    else:
        whole = replace(whole, **{name: f64([[-1.0], [-1.0]])})
    with pytest.raises(InvalidInput, match="same shape"):
        method.loss(policy, whole, weights)


def test_case_N6_grpo_starts_at_zero_and_still_moves():
    """Ratio 1, policy = reference: value 0. Credit ±1/√2, mean over sequences of 2 and 1 tokens: gradient not 0."""
    batch = rollouts([[1, 1], [1]], [1.0, 0.0])
    logprobs = batch.behaviour_logprobs
    batch = replace(batch, old_logprobs=logprobs, reference_logprobs=logprobs)
    method = grpo()
    prepared = method.prepare(batch)
    policy = logprobs.clone().requires_grad_()
    loss = method.loss(policy, prepared, method.weights(prepared.mask))
    close(loss, 0.0)
    root = math.sqrt(0.5)
    close(gradient(loss, policy), [[-root / 4, -root / 4], [root / 2, 0.0]])
