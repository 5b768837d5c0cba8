"""The named methods: what each needs, and its credit and bounds by hand."""

import math
from dataclasses import replace
from functools import partial

import pytest

from rung.methods import CATALOGUE, grpo, ppo_loo, reinforce, rloo, vpg
from rung.methods.method import clip_bounds
from rung.policy_losses import clipped_loss
from tests.batches import close, f64, rollouts
from tests.methods.helpers import PLAIN


def test_each_entry_carries_the_name_it_is_found_by():
    assert {name: make().name for name, make in CATALOGUE.items()} == {name: name for name in CATALOGUE}


def test_what_each_method_needs():
    ratio = {"ppo-loo", "grpo"}
    for name, make in CATALOGUE.items():
        old = {"old"} if name in ratio else set()
        assert make().needs == old | {"reference"}
        assert make(kl_coefficient=0.0).needs == old


def test_the_credit_of_each_method_by_hand():
    """Group 1: R = 4 over two tokens and 1 over one; group 2: R = 1 and 0. Step rewards only at the end."""
    batch = rollouts([[1, 1], [1], [1, 1], [1]], [4.0, 1.0, 1.0, 0.0], [1, 1, 2, 2])
    root = math.sqrt(0.5)
    per_sequence = {
        vpg: [4.0, 1.0, 1.0, 0.0],
        reinforce: [2.5, -0.5, -0.5, -1.5],
        rloo: [3.0, -3.0, 1.0, -1.0],
        ppo_loo: [3.0, -3.0, 1.0, -1.0],
        grpo: [root, -root, root, -root],
    }
    for make, expected in per_sequence.items():
        credit = make(kl_coefficient=0.0).prepare(batch).credit
        close(credit, f64(expected).unsqueeze(1) * batch.mask)


def test_clip_bounds_are_those_of_the_policy_loss():
    assert clip_bounds(ppo_loo()) == (0.8, 1.2)
    assert clip_bounds(grpo(clip_low=0.1, clip_high=0.28)) == (0.9, 1.28)
    assert clip_bounds(replace(PLAIN, policy_loss=clipped_loss)) == (0.8, 1.2)
    assert clip_bounds(replace(PLAIN, policy_loss=partial(clipped_loss, clip_high=0.3))) == (0.8, 1.3)
    assert clip_bounds(rloo()) is None


@pytest.mark.parametrize("make", [ppo_loo, grpo])
def test_the_bounds_of_a_method_reach_its_loss(make):
    method = make(kl_coefficient=0.0, clip_low=0.1, clip_high=0.4)
    batch = replace(rollouts([[1], [1]], [1.0, 0.0]), old_logprobs=f64([[-1.0], [-1.0]]))
    prepared = method.prepare(batch)
    credit = prepared.credit[0, 0].item()
    policy = f64([[-1.0 + math.log(1.5)], [-1.0 + math.log(0.85)]])
    close(method.loss(policy, prepared, method.weights(prepared.mask)), (-1.4 * credit + 0.9 * credit) / 2)
