"""The named methods: what each needs, its credit by hand, and that each of its settings reaches its slot."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from rung.errors import InvalidInput
from rung.methods import CATALOGUE, dr_grpo, grpo, ppo_loo, rloo, rloo_corrected, trpo
from rung.methods.method import clip_bounds
from rung.policy_losses import clipped_loss
from rung.trust_region import TrustRegion
from tests.batches import annotated, close, f64, gradient, leaf, rollouts
from tests.methods.helpers import COMPARES, NAMES, PLAIN, build, four_rows, loss_of, takes, unpenalized

RATIO = {"ppo-loo", "dual-clip", "ppo-penalty", "trpo", "grpo", "dr-grpo", "dapo", "gspo", "cispo"}
RATIO |= {"reinforce++", "reinforce++-baseline", "rloo-corrected", "impala"}
WITHOUT_KL = {"dr-grpo", "dapo", "gspo", "cispo"}  # unless one is asked for


def test_each_entry_carries_the_name_it_is_found_by():
    assert {name: build(name).name for name in CATALOGUE} == {name: name for name in CATALOGUE}
    assert len(CATALOGUE) == 22
    assert set(COMPARES) == set(CATALOGUE)


@pytest.mark.parametrize("name", NAMES)
def test_what_each_method_needs(name):
    needs = set()
    if name in RATIO:
        needs.add("old")
    if name in {"reinforce-learned", "a2c", "impala"}:
        needs.add("values")
    if name == "remax":
        needs.add("greedy")
    assert unpenalized(name).needs == needs
    bonus = {"entropy"} if name == "a2c" else set()
    assert build(name, kl_coefficient=0.0).needs == needs | bonus
    penalty = {"old"} if name == "ppo-penalty" else {"reference"}
    assert build(name, kl_coefficient=0.1).needs == needs | bonus | penalty
    assert build(name).needs == needs | bonus | (set() if name in WITHOUT_KL else penalty)


@pytest.mark.parametrize("name", ["dr-grpo", "dapo"])
def test_a_length_is_asked_for_where_it_decides_the_numbers(name):
    """No default of ours would be anybody's cap."""
    with pytest.raises(TypeError, match="length"):
        CATALOGUE[name]()
    method = dr_grpo(length=0)
    with pytest.raises(InvalidInput, match="positive"):
        method.weights(four_rows().mask)


ROOT = math.sqrt(0.5)
LEAVE_ONE_OUT = [[3.0, 3.0], [-3.0, 0.0], [1.0, 1.0], [-1.0, 0.0]]
STANDARDIZED = [[ROOT, ROOT], [-ROOT, 0.0], [ROOT, ROOT], [-ROOT, 0.0]]
TO_GO_LESS_V = [[3.5, 3.75], [0.5, 0.0], [0.5, 0.75], [-0.5, 0.0]]
CREDITS = {
    "vpg": [[4.0, 4.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]],
    "reinforce-constant": [[3.5, 3.5], [0.5, 0.0], [0.5, 0.5], [-0.5, 0.0]],
    "reinforce": [[2.5, 2.5], [-0.5, 0.0], [-0.5, -0.5], [-1.5, 0.0]],
    # Two sequences have a second token; they earn 4 and 1.
    "reinforce-step-mean": [[2.5, 1.5], [-0.5, 0.0], [-0.5, -1.5], [-1.5, 0.0]],
    "reinforce-moving-average": [[4.0, 4.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]],
    "reinforce-learned": TO_GO_LESS_V,
    "rloo": LEAVE_ONE_OUT,
    "rloo-corrected": LEAVE_ONE_OUT,
    "remax": [[2.0, 2.0], [-1.0, 0.0], [0.5, 0.5], [-0.5, 0.0]],
    # Six tokens with 4 4 1 1 1 0: mean 11/6, population variance 89/36.
    "reinforce++": [[13 / 89**0.5] * 2, [-5 / 89**0.5, 0.0], [-5 / 89**0.5] * 2, [-11 / 89**0.5, 0.0]],
    # Six tokens with 3/2 3/2 −3/2 1/2 1/2 −1/2: mean 1/3, population variance 41/36.
    "reinforce++-baseline": [[7 / 41**0.5] * 2, [-11 / 41**0.5, 0.0], [41**-0.5] * 2, [-5 / 41**0.5, 0.0]],
    # First token: −0.25 + 0.95 · the residual of the second.
    "a2c": [[3.3125, 3.75], [0.5, 0.0], [0.4625, 0.75], [-0.5, 0.0]],
    "impala": TO_GO_LESS_V,
    "ppo-loo": LEAVE_ONE_OUT,
    "dual-clip": LEAVE_ONE_OUT,
    "ppo-penalty": LEAVE_ONE_OUT,
    "trpo": LEAVE_ONE_OUT,
    "grpo": STANDARDIZED,
    "dr-grpo": [[1.5, 1.5], [-1.5, 0.0], [0.5, 0.5], [-0.5, 0.0]],
    "dapo": STANDARDIZED,
    "gspo": STANDARDIZED,
    "cispo": STANDARDIZED,
}


@pytest.mark.parametrize("name", NAMES)
def test_the_credit_of_each_method_by_hand(name):
    close(unpenalized(name).prepare(four_rows()).credit, CREDITS[name])


WEIGHTS = {  # of the four rows of 2, 1, 2 and 1 tokens
    "sequences": [[1 / 4, 1 / 4], [1 / 4, 0.0], [1 / 4, 1 / 4], [1 / 4, 0.0]],
    "means": [[1 / 8, 1 / 8], [1 / 4, 0.0], [1 / 8, 1 / 8], [1 / 4, 0.0]],
    "tokens": [[1 / 6, 1 / 6], [1 / 6, 0.0], [1 / 6, 1 / 6], [1 / 6, 0.0]],
    "constant": [[1 / 24, 1 / 24], [1 / 24, 0.0], [1 / 24, 1 / 24], [1 / 24, 0.0]],  # over 4 · 6
}
AGGREGATES = {"grpo": "means", "gspo": "means", "dr-grpo": "constant"}
AGGREGATES |= dict.fromkeys(("reinforce++", "reinforce++-baseline", "dapo", "cispo"), "tokens")


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_and_the_first_gradient_of_each_method_by_hand(name):
    """At the old policy and without a penalty every loss has the gradient −w Ψ."""
    method, batch = unpenalized(name), four_rows()
    prepared = method.prepare(batch)
    weights = f64(WEIGHTS[AGGREGATES.get(name, "sequences")])
    close(method.weights(prepared.mask), weights)
    policy = batch.behaviour_logprobs.clone().requires_grad_()
    close(gradient(loss_of(method, policy, prepared), policy), -weights * f64(CREDITS[name]))


def test_clip_bounds_are_those_of_the_policy_loss():
    assert clip_bounds(ppo_loo()) == (0.8, 1.2)
    assert clip_bounds(grpo(clip_low=0.1, clip_high=0.28)) == (0.9, 1.28)
    assert clip_bounds(replace(PLAIN, policy_loss=clipped_loss)) == (0.8, 1.2)
    assert clip_bounds(replace(PLAIN, policy_loss=partial(clipped_loss, clip_high=0.3))) == (0.8, 1.3)
    assert clip_bounds(rloo()) is None
    clipping = {name for name in NAMES if clip_bounds(build(name)) is not None}
    assert clipping == {
        "reinforce++",
        "reinforce++-baseline",
        "ppo-loo",
        "dual-clip",
        "grpo",
        "dr-grpo",
        "dapo",
    }
    assert clip_bounds(build("dapo")) == (0.8, 1.28)


@pytest.mark.parametrize("name", [name for name in NAMES if takes(name, "clip_low")])
def test_the_bounds_of_a_method_reach_its_loss(name):
    """ρ = 1.5 with a good credit is held at 1.4, ρ = 0.85 with a bad one at 0.9."""
    method = build(name, kl_coefficient=0.0, clip_low=0.1, clip_high=0.4)
    batch = annotated(rollouts([[1], [1]], [1.0, 0.0]), old_logprobs=f64([[-1.0], [-1.0]]))
    prepared = method.prepare(batch)
    credit = prepared.credit[0, 0].item()
    policy = leaf([[-1.0 + math.log(1.5)], [-1.0 + math.log(0.85)]])
    per_row = f64([[1.0], [1.0]])
    loss = loss_of(method, policy, prepared, per_row)
    close(loss, -1.4 * credit + 0.9 * credit)
    close(gradient(loss, policy), [[0.0], [0.0]])


# --- settings ------------------------------------------------------------------------------------------------------


def test_baselines_that_are_given():
    constant = build("reinforce-constant", kl_coefficient=0.0, baseline=2.0)
    close(constant.prepare(four_rows()).credit, [[2.0, 2.0], [-1.0, 0.0], [-1.0, -1.0], [-2.0, 0.0]])
    moving = build("reinforce-moving-average", kl_coefficient=0.0, baseline=2.0, momentum=0.25)
    close(moving.prepare(four_rows()).credit, [[2.0, 2.0], [-1.0, 0.0], [-1.0, -1.0], [-2.0, 0.0]])
    assert moving.after(four_rows()).state == {"baseline": 0.25 * 2.0 + 0.75 * 1.5}


def test_lambda_of_the_actor_critic():
    credit = build("a2c", kl_coefficient=0.0, lam=0.0).prepare(four_rows()).credit
    close(credit, [[-0.25, 3.75], [0.5, 0.0], [-0.25, 0.75], [-0.5, 0.0]])


def test_the_entropy_bonus_is_subtracted_with_the_weights_of_the_loss():
    """Four sequences, six tokens, 1 + θ nats at each: −c · 6/4 of value and slope. A bonus, so θ goes up."""
    method = build("a2c", kl_coefficient=0.0, entropy_coefficient=0.5)
    prepared = method.prepare(four_rows())
    policy, theta = four_rows().behaviour_logprobs, leaf(0.0)
    entropy = torch.ones_like(policy) * (1.0 + theta)

    def loss(bonus):
        return bonus.loss(policy, prepared, bonus.weights(prepared.mask), entropy=entropy)

    without = loss(replace(method, entropy_coefficient=0.0))
    close(loss(method) - without, -0.75)
    close(gradient(loss(method), theta), -0.75)
    with pytest.raises(InvalidInput, match="entropy bonus: give the policy's entropy"):
        method.loss(policy, prepared, method.weights(prepared.mask))


def test_the_caps_of_vtrace_cut_off_the_ratio():
    """One token: Ψ = min(ρ̄, w)(r − V). Three: the errors e of later values come back through ρ, and twice through c."""
    ratio = math.log(3.0)
    batch = annotated(
        rollouts([[1], [1, 1, 1]], [1.0, 1.0]),
        old_logprobs=f64([[-0.5 + ratio, 0.0, 0.0], [-0.5 + ratio] * 3]),
        values=f64([[0.25, 0.0, 0.0], [0.25, 0.5, 0.75]]),
    )
    for cap, rho in ((1.0, 1.0), (2.0, 2.0), (5.0, 3.0)):
        credit = build("impala", kl_coefficient=0.0, rho_cap=cap, c_cap=1.0).prepare(batch).credit
        last = rho * (1.0 - 0.75)
        second = rho * (0.75 + last - 0.5)
        error = rho * (0.75 - 0.5) + 1.0 * last  # of V at the second token, with c = min(1, 3)
        close(credit, [[rho * 0.75, 0.0, 0.0], [rho * (0.5 + error - 0.25), second, last]])


def test_the_second_clip_holds_a_bad_token():
    method = build("dual-clip", kl_coefficient=0.0, dual_clip=1.5)
    prepared = method.prepare(annotated(rollouts([[1], [1]], [1.0, 0.0]), old_logprobs=f64([[-1.0], [-1.0]])))
    policy = leaf([[-1.0], [-1.0 + math.log(4.0)]])
    loss = loss_of(method, policy, prepared)
    close(loss, (-1.0 + 1.5) / 2)
    close(gradient(loss, policy), [[-0.5], [0.0]])
    once = loss_of(unpenalized("ppo-loo"), policy, prepared)
    close(once, (-1.0 + 4.0) / 2)


def test_one_ratio_a_sequence_is_clipped_as_a_whole():
    """ρ = 4 and ¼: their geometric mean is 1, and nothing is clipped. 4 and 1: it is 2, and everything is."""
    batch = annotated(rollouts([[1, 1], [1, 1], [1, 1]], [3.0, 3.0, 0.0]))
    method = build("gspo", kl_coefficient=0.0, clip_low=0.2, clip_high=0.28)
    prepared = method.prepare(batch)
    good, bad = prepared.credit[0, 0].item(), prepared.credit[2, 0].item()
    step = f64([[4.0, 0.25], [4.0, 1.0], [1.0, 1.0]]).log()
    policy = (batch.old_logprobs + step).requires_grad_()
    loss = loss_of(method, policy, prepared)
    close(loss, -(good + 1.28 * good + bad) / 3)
    close(gradient(loss, policy), [[-good / 6] * 2, [0.0, 0.0], [-bad / 6] * 2])


def test_a_ratio_is_held_at_the_cap_itself_and_keeps_its_token():
    """ρ = 8 counts 5, and 5.5 too: the cap is no distance from 1."""
    batch = annotated(rollouts([[1], [1], [1]], [3.0, 3.0, 0.0]))
    method = build("cispo")
    prepared = method.prepare(batch)
    good, bad = prepared.credit[0, 0].item(), prepared.credit[2, 0].item()
    policy = (batch.old_logprobs + f64([[8.0], [5.5], [0.25]]).log()).requires_grad_()
    close(
        gradient(loss_of(method, policy, prepared), policy),
        [[-5.0 * good / 3], [-5.0 * good / 3], [-0.25 * bad / 3]],
    )


def test_the_sequences_ratio_to_its_sampler_is_truncated_and_weighs_the_loss():
    """w = 3 · ½ = 1.5 on both tokens of the first row, 8 → 2 on the second; they enter no denominator."""
    log = torch.log
    old = f64([[-0.5, -0.5], [-0.5, 0.0]]) + log(f64([[3.0, 0.5], [8.0, 1.0]]))
    batch = annotated(rollouts([[1, 1], [1]], [1.0, 0.0]), old_logprobs=old)
    method = rloo_corrected(kl_coefficient=0.0)
    prepared = method.prepare(batch)
    close(prepared.correction, [[1.5, 1.5], [2.0, 0.0]])
    policy = old.clone().requires_grad_()
    close(gradient(loss_of(method, policy, prepared), policy), [[-0.75, -0.75], [1.0, 0.0]])
    wide = rloo_corrected(kl_coefficient=0.0, cap=100.0).prepare(batch)
    close(wide.correction, [[1.5, 1.5], [8.0, 0.0]])


def test_the_correction_is_of_the_policy_loss_and_not_of_a_penalty():
    """ρ = π/π_old of the KL is 1; the sampler's ratio of 2 stands on the credit's part of the gradient alone."""
    old = f64([[-0.5 + math.log(2.0)], [-0.5]])
    batch = annotated(rollouts([[1], [1]], [1.0, 0.0]), old_logprobs=old, reference_logprobs=old - 0.3)
    method = replace(
        rloo_corrected(kl_coefficient=0.0), kl=build("reinforce++-baseline", kl_coefficient=0.1).kl
    )
    policy = old.clone().requires_grad_()
    close(
        gradient(loss_of(method, policy, method.prepare(batch)), policy),
        [[-2.0 / 2 + 0.1 * 0.3 / 2], [1.0 / 2 + 0.1 * 0.3 / 2]],
    )


def test_the_trust_region_of_a_method():
    assert trpo().update == TrustRegion(max_kl=0.01)
    assert trpo(max_kl=0.2).update.max_kl == 0.2
    assert [name for name in NAMES if build(name).update is not None] == ["trpo"]


def test_which_methods_weigh_select_or_reward_entropy():
    built = {name: build(name) for name in NAMES}
    assert [name for name, method in built.items() if method.correction is not None] == ["rloo-corrected"]
    assert [name for name, method in built.items() if method.select is not None] == ["dapo"]
    assert [name for name, method in built.items() if method.entropy_coefficient] == ["a2c"]
