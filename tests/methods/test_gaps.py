"""What a mutation run found that no other test of the methods notices."""

import math
from dataclasses import replace

import pytest
import torch

from rung.errors import InvalidInput
from rung.kl import k1, k2, k3
from rung.methods import KLPenalty
from rung.methods.method import clip_bounds
from rung.notation import MAX_LOG_RATIO
from rung.trust_region import TrustRegion
from tests.batches import NAN, close, f64, flags, gradient, leaf
from tests.methods.helpers import PLAIN, build, four_rows, penalized, two_rows

LIVE = ["behaviour_logprobs", "old_logprobs", "reference_logprobs", "values"]

# --- a penalty -------------------------------------------------------------------------------------------------------


def test_the_last_token_of_a_row_is_the_last_wherever_its_holes_are():
    """Two tokens at the front, in the middle, at the end, and around a hole: l = 0.3 + 0.2 stands on the second."""
    mask = flags([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1]])
    sampled = torch.zeros(4, 4, dtype=torch.float64)
    reference = sampled.masked_scatter(mask, f64([-0.3, -0.2] * 4))
    wanted = [[0.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.5], [0.0, 0.0, 0.0, 0.5]]
    close(KLPenalty(k1, "reward", 1.0, level="sequence").in_reward(sampled, reference, mask), wanted)


@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_a_sequence_without_a_token_has_a_penalty_of_zero(estimator):
    nothing = torch.zeros(1, 2, dtype=torch.float64)
    penalty = KLPenalty(estimator, "loss", 1.0, level="sequence")
    close(penalty.in_loss(nothing, nothing, None, flags([[0, 0]])), [[0.0, 0.0]])


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_case_A5_an_importance_weight_is_at_most_e40(level):
    """e^100 times as likely as at the rollout, e times as likely as under the reference: ρ k1 is e^40 and not e^100."""
    penalty = KLPenalty(k1, "loss", 1.0, level=level, weight="detached")
    found = penalty.in_loss(f64([[-1.0]]), f64([[-2.0]]), f64([[-101.0]]), flags([[1]]))
    assert MAX_LOG_RATIO == 40.0
    assert found.item() == pytest.approx(math.exp(40.0), rel=1e-12)


# --- the slots -------------------------------------------------------------------------------------------------------


def test_a_slot_gets_constants_whatever_is_live():
    """A slot may turn its arguments into plain numbers, and a graph would keep the rollout's forward pass alive."""
    seen = []

    def credit(rewards, returns, values, old_logprobs, behaviour_logprobs):
        seen.extend([rewards, returns, values, old_logprobs, behaviour_logprobs])
        return returns

    live = {name: getattr(four_rows(), name).clone().requires_grad_() for name in LIVE}
    method = penalized(k1, "reward", credit=credit)
    prepared = method.prepare(replace(four_rows(), **live))
    assert [x.requires_grad for x in seen] == [False] * 5
    assert not prepared.reference_logprobs.requires_grad


def test_what_a_live_batch_was_worth_is_a_number():
    """b = 0.9 · 0 + 0.1 · 1.5, of the returns 4, 1, 1, 0, although the penalty of 0 nats in them has a gradient."""
    live = {name: getattr(four_rows(), name).clone().requires_grad_() for name in LIVE}
    later = build("reinforce-moving-average", kl_coefficient=0.5).after(replace(four_rows(), **live))
    assert later.state == {"baseline": pytest.approx(0.15, abs=1e-12)}


def test_a_state_without_a_coefficient_leaves_the_penalty_as_it_is():
    assert build("rloo", kl_coefficient=0.3).with_state({"baseline": 1.0}).kl.beta == 0.3


def test_a_trust_region_needs_the_old_policy_whatever_the_loss_reads():
    assert PLAIN.needs == frozenset()
    assert replace(PLAIN, update=TrustRegion()).needs == {"old"}


def test_bounds_are_those_of_a_loss_that_names_nothing_else():
    assert clip_bounds(replace(PLAIN, policy_loss=lambda clip_low=0.25, clip_high=0.5: None)) == (0.75, 1.5)


# --- the loss --------------------------------------------------------------------------------------------------------


def test_case_H11_weights_of_other_rows_are_refused():
    """One row of weights beside two of losses would be used for both."""
    batch = PLAIN.prepare(two_rows())
    with pytest.raises(InvalidInput, match=r"same shape: mask \(2, 3\), weights \(1, 3\)"):
        PLAIN.loss(f64([[-1.0] * 3] * 2), batch, PLAIN.weights(batch.mask)[:1])


def test_a_penalty_of_coefficient_zero_needs_no_reference():
    """½ (3 − 2), the plain loss of these rows at log π = −1."""
    batch = replace(two_rows(), reference_logprobs=None)
    method = penalized(k3, "loss", 0.0)
    prepared = method.prepare(batch)
    close(method.loss(f64([[-1.0] * 3] * 2), prepared, method.weights(prepared.mask)), 0.5)


def test_an_entropy_bonus_by_hand():
    """½ (3 − 2) − ½ · ½ (2 + 4 + 0.5 + 3); the slope by the entropy is −½ · ½ on each token that counts."""
    method = replace(PLAIN, entropy_coefficient=0.5)
    batch, entropy = method.prepare(two_rows()), leaf([[2.0, 4.0, 0.5], [3.0, NAN, NAN]])
    loss = method.loss(f64([[-1.0] * 3] * 2), batch, method.weights(batch.mask), entropy=entropy)
    close(loss, 0.5 - 0.25 * 9.5)
    close(gradient(loss, entropy), [[-0.25] * 3, [-0.25, 0.0, 0.0]])
