"""What stands off the mask changes nothing, in value and gradient: NaN and infinity too."""

from dataclasses import replace

import pytest
import torch

from rung.aggregation import sequence_mean
from rung.credit import leave_one_out
from rung.methods import CATALOGUE, KLPenalty, Method
from tests.batches import INF, NAN, close, ragged
from tests.invariance.helpers import METHODS, NAMES, sample, step

JUNK = [NAN, INF, -INF, 1e300, -700.0]
WHOLE = sample(ragged())


def off_mask(batch):
    """Everything that does not train: tokens the policy did not sample, and whole rows whose judge failed."""
    return ~(batch.mask & batch.valid.unsqueeze(1))


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_annotated_logprobs_off_the_mask(method, junk):
    clean, batch = step(method, WHOLE), WHOLE.rollouts
    for name in ("behaviour_logprobs", "old_logprobs", "reference_logprobs"):
        dirty = getattr(batch, name).masked_fill(off_mask(batch), junk)
        found = step(method, replace(WHOLE, rollouts=replace(batch, **{name: dirty})))
        close(found.credit, clean.credit)
        close(found.loss, clean.loss)
        close(found.gradient, clean.gradient)


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_policy_logprobs_off_the_mask(method, junk):
    """As a leaf: the gradient of every off-mask entry is 0, never NaN, and the others keep theirs."""
    batch = WHOLE.rollouts
    prepared = method.prepare(batch)
    weights = method.weights(prepared.mask)

    def slope(filler):
        policy = (batch.old_logprobs + 0.1).masked_fill(off_mask(batch), filler).requires_grad_()
        loss = method.loss(policy, prepared, weights)
        loss.backward()
        return loss, policy.grad

    loss, gradient = slope(0.0)
    dirty_loss, dirty_gradient = slope(junk)
    close(dirty_loss, loss.detach())
    close(dirty_gradient, gradient)
    assert not dirty_gradient[off_mask(batch)].any()


@pytest.mark.parametrize("junk", JUNK)
def test_a_slot_that_sums_over_tokens_sees_zeros_off_the_mask(junk):
    """A ratio and a k2 of whole sequences, as somebody might write them without a thought of the mask."""

    def sequence_ratio(policy_logprobs, old_logprobs, credit):
        return -(policy_logprobs - old_logprobs).sum(1, keepdim=True).exp() * credit

    def sequence_k2(policy_logprobs, reference_logprobs):
        ratio = (policy_logprobs - reference_logprobs).sum(1, keepdim=True)
        return (ratio.square() / 2).expand_as(policy_logprobs)

    penalty = KLPenalty(sequence_k2, placement="loss", coefficient=0.3)
    method = Method("whole sequences", leave_one_out, sequence_ratio, sequence_mean, penalty)
    clean, batch = step(method, WHOLE), WHOLE.rollouts
    for name in ("old_logprobs", "reference_logprobs"):
        dirty = getattr(batch, name).masked_fill(off_mask(batch), junk)
        found = step(method, replace(WHOLE, rollouts=replace(batch, **{name: dirty})))
        close(found.loss, clean.loss)
        close(found.gradient, clean.gradient)


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_rewards_of_rows_that_have_none(method, junk):
    clean, batch = step(method, WHOLE), WHOLE.rollouts
    dirty = batch.outcome_rewards.masked_fill(~batch.valid, junk)
    found = step(method, replace(WHOLE, rollouts=replace(batch, outcome_rewards=dirty)))
    close(found.credit, clean.credit)
    close(found.gradient, clean.gradient)


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_credit_off_the_mask_is_zero(method):
    prepared = method.prepare(WHOLE.rollouts)
    assert not prepared.credit[off_mask(WHOLE.rollouts)].any()
    assert torch.equal(prepared.mask, ~off_mask(WHOLE.rollouts))


@pytest.mark.parametrize("make", CATALOGUE.values(), ids=CATALOGUE)
def test_rows_that_do_not_train_can_be_left_out(make):
    """Failed judges, empty rows and rows without a sampled token: the batch without them gives the same step."""
    method = make(kl_coefficient=0.3)
    valid = torch.arange(len(WHOLE.rollouts.valid))[WHOLE.rollouts.valid]
    found, whole = step(method, WHOLE.rows(valid)), step(method, WHOLE)
    close(found.loss, whole.loss)
    close(found.gradient, whole.gradient)
    close(found.credit, whole.credit[valid])
