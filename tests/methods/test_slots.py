"""How the four slots join: what each is given, where the KL goes, what is detached, what is counted."""

import math
from dataclasses import replace

import pytest
import torch

from rung.aggregation import Totals, token_mean
from rung.credit import group_centered, leave_one_out, minus_batch_mean, reward_to_go, total_return
from rung.errors import InvalidInput
from rung.kl import k1, k2, k3
from rung.methods import KLPenalty, TrainingBatch, grpo, ppo_loo
from rung.methods.method import call_by_name
from rung.policy_losses import clipped_loss, importance_weighted_loss
from tests.batches import NAN, close, f64, flags, gradient, leaf, rollouts
from tests.methods.helpers import PLAIN, penalized, two_rows

# --- rewards and credit -------------------------------------------------------------------------------------------


def test_the_kl_in_the_reward_is_subtracted_token_by_token():
    close(
        penalized(k1, "reward").token_rewards(two_rows()),
        [[-0.1, 0.2, 1.0 - 0.05], [-2.0 - 0.15, 0.0, 0.0]],
    )
    close(
        penalized(k2, "reward", 2.0).token_rewards(two_rows()),
        [[-0.04, -0.16, 1.0 - 0.01], [-2.0 - 0.09, 0.0, 0.0]],
    )


def test_the_kl_in_the_reward_reaches_the_credit_of_earlier_tokens():
    to_go = penalized(k1, "reward", credit=reward_to_go).prepare(two_rows())
    close(to_go.credit, [[1.05, 1.15, 0.95], [-2.15, 0.0, 0.0]])
    whole = penalized(k1, "reward").prepare(two_rows())
    close(whole.credit, [[1.05, 1.05, 1.05], [-2.15, 0.0, 0.0]])
    compared = penalized(k1, "reward", credit=leave_one_out).prepare(two_rows())
    close(compared.credit, [[3.2, 3.2, 3.2], [-3.2, 0.0, 0.0]])


def test_a_kl_in_the_loss_leaves_rewards_and_credit_alone():
    for method in (PLAIN, penalized(k1, "loss"), penalized(k1, "reward", 0.0)):
        close(method.token_rewards(two_rows()), [[0.0, 0.0, 1.0], [-2.0, 0.0, 0.0]])
        close(method.prepare(two_rows()).credit, [[1.0, 1.0, 1.0], [-2.0, 0.0, 0.0]])


def test_the_penalty_is_that_of_the_old_policy_where_it_is_annotated():
    """Old log-probs are the trainer's own; without them the sampler's stand in."""
    batch = two_rows()
    shifted = replace(batch, old_logprobs=batch.old_logprobs + 1.0)
    close(penalized(k1, "reward").token_rewards(shifted)[1], [-2.0 - 0.65, 0.0, 0.0])
    close(penalized(k1, "reward").token_rewards(replace(shifted, old_logprobs=None))[1], [-2.15, 0.0, 0.0])


def test_a_credit_per_sequence_is_repeated_over_its_tokens_only():
    batch = rollouts([[1, 0, 1], [1], [0, 1]], [3.0, 1.0, -1.0])
    close(
        replace(PLAIN, credit=group_centered).prepare(batch).credit,
        [[2.0, 0.0, 2.0], [0.0, 0.0, 0.0], [0.0, -2.0, 0.0]],
    )


def test_a_slot_gets_what_it_names():
    seen = {}

    def credit(valid, groups, returns, rewards, mask):
        seen.update(valid=valid, groups=groups, returns=returns, rewards=rewards, mask=mask)
        return returns

    batch = rollouts([[1, 1], [1], [1, 1]], [3.0, None, -1.0], [5, 5, 8])
    replace(PLAIN, credit=credit).prepare(batch)
    assert seen["valid"].tolist() == [True, False, True]
    assert seen["groups"].tolist() == [5, 5, 8]
    assert seen["mask"].tolist() == [[True, True], [False, False], [True, True]]
    close(seen["returns"], [3.0, 0.0, -1.0])
    close(seen["rewards"], [[0.0, 3.0], [0.0, 0.0], [0.0, -1.0]])


def test_a_slot_that_asks_for_something_else_is_refused_by_name():
    with pytest.raises(
        InvalidInput, match=r"asks for 'scores'; there is behaviour_logprobs, bootstrap, greedy"
    ):
        replace(PLAIN, credit=lambda scores: scores).prepare(two_rows())
    with pytest.raises(InvalidInput, match="'plain' asks for values: annotate them"):
        replace(PLAIN, credit=lambda values: values).prepare(two_rows())
    close(call_by_name(lambda a, b=2.0: a + b, {"a": f64(1.0)}), 3.0)


# --- detaching -----------------------------------------------------------------------------------------------------


def slope_of(loss, constant):
    """∂ loss/∂ something that should be a constant: 0 if it is not in the graph at all."""
    (slope,) = torch.autograd.grad(loss, constant, allow_unused=True, materialize_grads=True)
    return slope


def test_credit_is_detached_whatever_the_slot_returns():
    scale, policy = leaf(2.0), leaf([[-1.0, -1.0, -1.0], [-1.0, 0.0, 0.0]])
    method = replace(PLAIN, credit=lambda rewards, mask: scale * total_return(rewards, mask))
    batch = method.prepare(two_rows())
    close(batch.credit, [[2.0, 2.0, 2.0], [-4.0, 0.0, 0.0]])
    close(slope_of(method.loss(policy, batch, method.weights(batch.mask)), scale), 0.0)


@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_a_kl_in_the_reward_is_a_constant_even_if_the_logprobs_are_live(estimator):
    """The gradient is −w Ψ and nothing else, although the same tensor made the penalty."""
    live = leaf([[-1.0, -1.0, -1.0], [-1.0, 0.0, 0.0]])
    method = penalized(estimator, "reward")
    batch = method.prepare(replace(two_rows(), old_logprobs=live))
    assert not batch.credit.requires_grad
    loss = method.loss(live, batch, method.weights(batch.mask))
    close(gradient(loss, live), -batch.credit / 2)


@pytest.mark.parametrize("loss", [importance_weighted_loss, clipped_loss])
def test_case_E6_live_old_logprobs_do_not_cancel_the_gradient(loss):
    """ρ = π/π_old with both from the same graph would be the constant 1: a loss without a gradient."""
    live = leaf([[-1.0, -1.0, -1.0], [-1.0, 0.0, 0.0]])
    method = replace(PLAIN, policy_loss=loss)
    batch = method.prepare(replace(two_rows(), old_logprobs=live))
    close(gradient(method.loss(live, batch, method.weights(batch.mask)), live), [[-0.5] * 3, [1.0, 0.0, 0.0]])


@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_live_reference_logprobs_are_constants(estimator):
    """A penalty in the loss moves the policy towards the reference, not the reference towards the policy."""
    policy = leaf([[-1.0, -1.0, -1.0], [-1.0, 0.0, 0.0]])
    reference = leaf([[-1.2, -0.8, -1.5], [-0.3, 0.0, 0.0]])
    method = penalized(estimator, "loss", 1.0)
    batch = method.prepare(replace(two_rows(), reference_logprobs=reference))
    close(
        slope_of(method.loss(policy, batch, method.weights(batch.mask)), reference),
        torch.zeros(2, 3).double(),
    )


def test_case_E6_old_logprobs_are_frozen_over_several_updates():
    """The batch is prepared once; a second update sees the ratio, and its clip, of the first's start."""
    method = ppo_loo(kl_coefficient=0.0)
    batch = method.prepare(replace(rollouts([[1], [1]], [1.0, 0.0]), old_logprobs=f64([[-1.0], [-1.0]])))
    policy = leaf([[-0.7], [-1.0]])
    loss = method.loss(policy, batch, method.weights(batch.mask))
    close(loss, (-1.2 + 1.0) / 2)
    close(gradient(loss, policy), [[0.0], [0.5]])


def test_a_correction_is_detached_and_masked():
    """Weights between two models are constants: a live one would add the gradient of the weight itself."""
    scale, policy = leaf(2.0), leaf([[-1.0, -1.0, -1.0], [-1.0, 0.0, 0.0]])
    method = replace(PLAIN, correction=lambda mask: scale * torch.ones(mask.shape).double())
    batch = method.prepare(two_rows())
    close(batch.correction, [[2.0, 2.0, 2.0], [2.0, 0.0, 0.0]])
    loss = method.loss(policy, batch, method.weights(batch.mask))
    close(loss, 2 * 0.5)
    close(slope_of(loss, scale), 0.0)
    with pytest.raises(InvalidInput, match="has a correction: prepare the batch with it"):
        method.loss(policy, PLAIN.prepare(two_rows()), method.weights(batch.mask))


def test_a_correction_weighs_no_penalty_and_no_bonus():
    """Tripled policy loss, ½ k1 and −½ H as they are: (3 · (3 − 2) + ½ (0.2 − 0.4 + 0.1 + 0.3) − ½ · 4)/2."""
    policy = leaf([[-1.0, -1.0, -1.0], [-1.0, 0.0, 0.0]])
    method = replace(
        penalized(k1, "loss"),
        correction=lambda mask: 3.0 * torch.ones(mask.shape).double(),
        entropy_coefficient=0.5,
    )
    batch = method.prepare(two_rows())
    entropy = torch.ones(2, 3).double()
    loss = method.loss(policy, batch, method.weights(batch.mask), entropy=entropy)
    close(loss, (3.0 * 1.0 + 0.5 * 0.2 - 0.5 * 4.0) / 2)


def test_a_correction_gets_what_it_names_of_the_rows_that_train():
    seen = {}

    def correction(old_logprobs, behaviour_logprobs, mask):
        seen.update(old=old_logprobs, behaviour=behaviour_logprobs, mask=mask)
        return torch.ones_like(old_logprobs)

    batch = two_rows()
    batch = replace(batch, valid=flags([1, 0]), old_logprobs=batch.old_logprobs - 0.5)
    replace(PLAIN, correction=correction).prepare(batch)
    close(seen["old"], [[-1.5, -1.5, -1.5], [0.0, 0.0, 0.0]])
    close(seen["behaviour"], [[-1.0, -1.0, -1.0], [0.0, 0.0, 0.0]])
    assert seen["mask"].tolist() == [[True] * 3, [False] * 3]


def test_a_selection_sees_the_judges_rewards_and_decides_what_trains():
    """Without the KL, and before credit: a row that is not selected is in nobody's baseline and no denominator."""
    seen = {}

    def select(returns, groups, valid):
        seen.update(returns=returns, groups=groups, valid=valid)
        return returns > 0

    method = penalized(k1, "reward", select=select, credit=minus_batch_mean)
    batch = two_rows()
    prepared = method.prepare(batch)
    close(seen["returns"], [1.0, -2.0])
    assert seen["groups"].tolist() == [0, 0]
    assert seen["valid"].tolist() == [True, True]
    assert prepared.mask.tolist() == [[True] * 3, [False] * 3]
    close(prepared.credit, [[0.0] * 3] * 2)  # the only one left is its own mean
    close(method.weights(prepared.mask), [[1.0] * 3, [0.0] * 3])


def test_a_selection_cannot_bring_back_a_row_that_failed():
    method = replace(PLAIN, select=lambda returns: torch.ones_like(returns) == 1)
    prepared = method.prepare(replace(two_rows(), valid=flags([1, 0])))
    assert prepared.mask.tolist() == [[True] * 3, [False] * 3]


# --- the loss ------------------------------------------------------------------------------------------------------


def test_loss_by_hand():
    """½ (Σ −1·log π over three tokens + 2·log π of one): ½ (3 − 2) at log π = −1."""
    policy = leaf([[-1.0, -1.0, -1.0], [-1.0, NAN, NAN]])
    batch = PLAIN.prepare(two_rows())
    loss = PLAIN.loss(policy, batch, PLAIN.weights(batch.mask))
    close(loss, 0.5)
    close(gradient(loss, policy), [[-0.5] * 3, [1.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        (k1, lambda r: r, lambda r: 1.0),
        (k2, lambda r: r * r / 2, lambda r: r),
        (k3, lambda r: math.exp(-r) - 1 + r, lambda r: 1 - math.exp(-r)),
    ],
)
def test_a_kl_in_the_loss_is_added_with_the_same_weights(estimator, value, slope):
    """Mean over four tokens, β = 0.5: to both the value and the gradient, so A9 cannot happen."""
    ratios = [0.2, -0.4, 0.1, 0.3]
    policy = leaf([[-1.0, -1.0, -1.0], [-1.0, NAN, NAN]])
    method = penalized(estimator, "loss", aggregation=token_mean)
    batch = method.prepare(two_rows())
    loss = method.loss(policy, batch, method.weights(batch.mask))
    close(loss, (3.0 - 2.0 + 0.5 * sum(value(r) for r in ratios)) / 4)
    expected = [(-c + 0.5 * slope(r)) / 4 for c, r in zip([1.0, 1.0, 1.0, -2.0], ratios, strict=True)]
    close(gradient(loss, policy), [expected[:3], [expected[3], 0.0, 0.0]])


def test_weights_are_the_aggregation_of_the_mask_and_its_totals():
    mask = flags([[1, 1, 1], [1, 0, 0]])
    close(replace(PLAIN, aggregation=token_mean).weights(mask), mask.double() / 4)
    close(replace(PLAIN, aggregation=token_mean).weights(mask, Totals(3, 10)), mask.double() / 10)
    close(PLAIN.weights(mask, Totals(3, 10)), mask.double() / 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_of_another_precision_gets_its_gradient_in_that_precision(dtype):
    """−1 and the credits 1 and −2 are exact in each: so is the result, ½ (3 − 2) as above."""
    policy = torch.full((2, 3), -1.0, dtype=dtype, requires_grad=True)
    batch = PLAIN.prepare(two_rows())
    loss = PLAIN.loss(policy, batch, PLAIN.weights(batch.mask))
    assert loss.item() == 0.5
    loss.backward()
    assert policy.grad.dtype == dtype
    close(policy.grad.double(), [[-0.5] * 3, [1.0, 0.0, 0.0]])


def test_rows_of_a_batch():
    batch = grpo().prepare(two_rows())
    part = batch.rows(torch.tensor([1]))
    close(part.credit, batch.credit[1:])
    close(part.old_logprobs[part.mask], [-1.0])
    close(part.reference_logprobs[part.mask], [-1.3])
    bare = TrainingBatch(batch.mask, batch.credit).rows(torch.tensor([0]))
    assert bare.old_logprobs is None
    assert bare.reference_logprobs is None


def test_missing_annotations_are_named():
    batch = rollouts([[1, 1]], [1.0])
    policy, weights = leaf([[-1.0, -1.0]]), f64([[1.0, 1.0]])
    with pytest.raises(InvalidInput, match="KL in the reward: annotate reference"):
        penalized(k1, "reward").prepare(batch)
    method = penalized(k3, "loss")
    with pytest.raises(InvalidInput, match="KL in the loss: annotate reference"):
        method.loss(policy, method.prepare(batch), weights)
    method = ppo_loo(kl_coefficient=0.0)
    with pytest.raises(InvalidInput, match="asks for old_logprobs: annotate them"):
        method.loss(policy, method.prepare(batch), weights)


def test_a_penalty_is_not_a_bonus():
    with pytest.raises(InvalidInput, match="≥ 0"):
        KLPenalty(k1, placement="reward", coefficient=-0.01)


def test_a_slot_may_be_an_object_without_a_hash():
    class Doubled:
        __hash__ = None

        def __call__(self, returns):
            return 2.0 * returns

    close(replace(PLAIN, credit=Doubled()).prepare(two_rows()).credit, [[2.0, 2.0, 2.0], [-4.0, 0.0, 0.0]])
