"""What stands off the mask changes nothing, in value and gradient: NaN and infinity too."""

from dataclasses import replace

import pytest
import torch

from rung.aggregation import sequence_mean
from rung.credit import leave_one_out
from rung.methods import KLPenalty, Method
from tests.batches import INF, NAN, close, ragged
from tests.invariance.helpers import METHODS, NAMES, PER_TOKEN, sample, step

JUNK = [NAN, INF, -INF, 1e300, -700.0]
WHOLE = sample(ragged())


def off_mask(batch):
    """Everything that does not train: tokens the policy did not sample, and whole rows whose judge failed."""
    return ~(batch.mask & batch.valid.unsqueeze(1))


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_annotations_off_the_mask(method, junk):
    """Log-probabilities of three policies, and the values of a critic."""
    clean, batch = step(method, WHOLE), WHOLE.rollouts
    for name in PER_TOKEN:
        if name == "mask":
            continue
        dirty = getattr(batch, name).masked_fill(off_mask(batch), junk)
        found = step(method, replace(WHOLE, rollouts=replace(batch, **{name: dirty})))
        close(found.credit, clean.credit)
        close(found.loss, clean.loss)
        close(found.gradient, clean.gradient)


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_policy_logprobs_and_entropies_off_the_mask(method, junk):
    """As leaves: the gradient of every off-mask entry is 0, never NaN, and the others keep theirs."""
    batch = WHOLE.rollouts
    prepared = method.prepare(batch)
    weights = method.weights(prepared.mask)

    def slopes(filler):
        policy = (batch.old_logprobs + 0.1).masked_fill(off_mask(batch), filler).requires_grad_()
        entropy = torch.ones_like(batch.old_logprobs).masked_fill(off_mask(batch), filler).requires_grad_()
        loss = method.loss(policy, prepared, weights, entropy=entropy)
        return loss, *torch.autograd.grad(loss, (policy, entropy), allow_unused=True, materialize_grads=True)

    clean, dirty = slopes(0.0), slopes(junk)
    for found, wanted in zip(dirty, clean, strict=True):
        close(found, wanted.detach())
    for gradient in dirty[1:]:
        assert not gradient[off_mask(batch)].any()


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
def test_numbers_of_rows_that_have_no_reward(method, junk):
    """The reward itself, that of the greedy completion, and the value after a cut."""
    clean, batch = step(method, WHOLE), WHOLE.rollouts
    for name in ("outcome_rewards", "greedy_rewards", "bootstrap"):
        dirty = getattr(batch, name).masked_fill(~batch.valid, junk)
        found = step(method, replace(WHOLE, rollouts=replace(batch, **{name: dirty})))
        close(found.credit, clean.credit)
        close(found.gradient, clean.gradient)


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_what_trains_and_its_credit_off_the_mask(method):
    """Rows that failed or have no token never train; DAPO leaves out the groups of one reward too, here that of one."""
    batch = WHOLE.rollouts
    prepared = method.prepare(batch)
    trains = ~off_mask(batch)
    if method.name == "dapo":
        trains = trains & (batch.groups != 30).unsqueeze(1)
    assert torch.equal(prepared.mask, trains)
    assert not prepared.credit[~trains].any()


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_rows_that_do_not_train_can_be_left_out(method):
    """Failed judges, empty rows and rows without a sampled token: the batch without them gives the same step."""
    valid = torch.arange(len(WHOLE.rollouts.valid))[WHOLE.rollouts.valid]
    found, whole = step(method, WHOLE.rows(valid)), step(method, WHOLE)
    close(found.loss, whole.loss)
    close(found.gradient, whole.gradient)
    close(found.credit, whole.credit[valid])
