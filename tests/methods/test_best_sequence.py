"""Without a penalty on its divergence: does every method arrive at J*, all on the best sequence?

Unbiased methods, and those whose mean update is a positive multiple of ∇J, have to. The others do so here too, where
one sequence is the best and its rank the highest; that is no proof for them, and test_biased_ends.py shows where they
go as soon as something holds them. DAPO's returns are less by its charge for length, and so is its best.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.enumeration import ONE_PROMPT
from tests.methods.critics import LearnedCritic
from tests.methods.ends import IDS, SHIFT, close, pairs, trained, whole_batch
from tests.methods.helpers import NAMES, build, unpenalized
from tests.methods.training import Pairs, train
from tests.methods.trees import LONG, C, Tree
from tests.unbiased.test_binary_rewards import solved

ALL = [
    pytest.param(name, tree, id=f"{name}-{IDS[id(tree)]}")
    for name, tree in itertools.product(NAMES, (C, LONG))
    if tree is C or not whole_batch(name)
]


def steps_of(name, tree):
    """Dr. GRPO divides by its constant; it gets a step as much longer."""
    return float(tree.lengths.max()) if name == "dr-grpo" else 1.0


@pytest.mark.parametrize(("name", "tree"), ALL)
def test_without_a_penalty_all_goes_to_the_best_sequence(name, tree):
    """J within 1e-3 of J*. Critics are exact; DAPO's cap is far away, so that nothing is charged."""
    best = tree.rewards.max()
    assert tree.sequences(tree.start)[tree.rewards.argmax()] < 0.1
    settings = {"length": int(tree.lengths.max()) if name == "dr-grpo" else 20}
    end = trained(unpenalized(name, **settings), tree, steps_of(name, tree), most=50)
    close(tree.objective(end.policy), best, atol=1e-3)


# Sequence by sequence what the mean update of these is a multiple of is ∇J, so that J never falls in small steps.
UPHILL = [
    "vpg",
    "reinforce-constant",
    "reinforce",
    "reinforce-moving-average",
    "reinforce-learned",
    "rloo",
    "rloo-corrected",
    "remax",
    "a2c",
    "impala",
    "ppo-loo",
    "dual-clip",
    "ppo-penalty",
    "trpo",
    "dr-grpo",
]


@pytest.mark.parametrize("name", UPHILL)
def test_the_way_to_the_best_sequence_never_goes_down(name):
    end = trained(unpenalized(name, length=2), C, 0.2 * steps_of(name, C), most=25)
    assert min(np.diff(end.objectives)) > 0.0
    assert end.objectives[-1] > 1.0


@pytest.mark.parametrize("name", ["reinforce-learned", "impala", "a2c"])
def test_with_a_critic_that_learns_too(name):
    """From values of 0. A2C keeps its entropy bonus: at 0.01 it costs less than 1e-3 here."""
    critic = LearnedCritic(torch.zeros(3, dtype=torch.float64), rate=0.5)
    end = trained(build(name, kl_coefficient=0.0), C, 0.5, most=100, critic=critic)
    close(C.objective(end.policy), 2.0, atol=1e-3)


@pytest.mark.parametrize("name", ["gspo", "cispo", "ppo-loo", "dual-clip", "ppo-penalty"])
def test_with_several_updates_of_each_batch(name):
    """From the second on the samples are those of another policy: ratios, clips and caps act. GSPO's narrow clip

    leaves little of the later updates, and it takes the longest.
    """
    settings = {"cap": 1.2} if name == "cispo" else {}
    if name != "ppo-penalty":
        settings["kl_coefficient"] = 0.0
    end = trained(build(name, **settings), C, 1.0, updates=3, most=130 if name == "gspo" else 50)
    assert end.clipped > 20
    close(C.objective(end.policy), 2.0, atol=1e-3)


# --- dynamic sampling ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [0.3, 0.5])
def test_dapo_on_one_prompt_of_binary_rewards(threshold):
    """Right or wrong: half the groups teach nothing and are left out; the rest lead to a success rate of 1."""
    tree = Tree(solved(ONE_PROMPT, threshold=threshold))
    assert sorted(set(tree.rewards)) == [0.0, 1.0]
    assert tree.objective(tree.start) < 0.4
    method = build("dapo", length=20)
    end = train(method, Pairs(tree, one_by_one=True), 1.0, most=40)
    close(tree.objective(end.policy), 1.0, atol=1e-3)
    assert min(np.diff(end.objectives)) > -1e-9


def test_dapo_with_a_charge_goes_to_the_best_of_what_it_credits():
    """Cap of 2: two tokens cost 1. With 1.1 for (a, E) and 0.5 for E the short one wins; uncharged, the long."""
    rewards = {(2,): 0.5, (0, 0): 0.2, (0, 1): -0.5, (0, 2): 1.1, (1, 0): 0.0, (1, 1): 0.3, (1, 2): 0.4}
    ((prompt, mdp),) = ONE_PROMPT.prompts
    tree = Tree(replace(ONE_PROMPT, prompts=((prompt, replace(mdp, reward=rewards.__getitem__)),)))
    every = Pairs(tree, one_by_one=True)
    ends = {}
    for length in (2, 20):
        p = tree.sequences(train(build("dapo", length=length), every, 1.0, most=60).policy)
        ends[length] = dict(zip(tree.tokens, p, strict=True))
    assert ends[2][2,] > 0.999
    assert ends[20][0, 2] > 0.999


# --- samples of another policy ---------------------------------------------------------------------------------------


def end_of(method, sampler, most=150):
    return C.objective(train(method, pairs("C"), 0.3, most=most, sampler=sampler).policy)


def shifted(logits):
    return logits + SHIFT


def uniform(logits):
    return 0.0 * logits


def test_a_correction_reaches_the_optimum_from_samples_of_another_policy_and_rloo_does_not():
    """A sampler that likes other tokens than the trainer: weights up to 2 are enough, and none lead elsewhere."""
    assert C.objective(C.start) < 0.1
    close(end_of(build("rloo-corrected", kl_coefficient=0.0), shifted), 2.0, atol=1e-3)
    assert end_of(build("rloo", kl_coefficient=0.0), shifted) < 1.2
    # Ratios to the old policy are 1 whoever sampled; a token's own ratio does not correct its prefix.
    assert end_of(build("ppo-loo", kl_coefficient=0.0), shifted) < 1.2
    assert end_of(build("impala", kl_coefficient=0.0), shifted) < 1.2


def test_the_cap_decides_how_far_away_a_sampler_may_be():
    """Uniform samples to the end: the best sequence's weight has to grow to 9, and is held at 2."""
    close(end_of(build("rloo-corrected", kl_coefficient=0.0, cap=1e9), uniform), 2.0, atol=1e-3)
    assert end_of(build("rloo-corrected", kl_coefficient=0.0), uniform) < 1.8
