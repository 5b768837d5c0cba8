"""Methods that claim J − β KL(π‖π_ref) of whole sequences, trained to the end: do they arrive at its optimum?

The oracle knows that optimum in closed form: the tilted reference. With k1 in the reward it is a fixed point of more
than unbiased methods: there R − β log p/p_ref is the same for every sequence, so that no comparison finds a difference.

By default training follows the mean update over every pair of sequences that could be sampled, each through the
method's own prepare, weights and loss, until it vanishes. The slow tests (test_sampled.py) sample.

In toy C the first token decides the length, so that a mean over each sequence moves no end; in LONG it does.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from rung import exact
from rung.aggregation import sequence_mean
from rung.methods import rloo
from tests.enumeration import THREE_TOKENS, expected
from tests.methods.critics import ExactCritic, LearnedCritic
from tests.methods.ends import (
    BETA,
    IDS,
    SHIFT,
    apart,
    close,
    tilted,
    tilted_with_a_bonus,
    trained,
    whole_batch,
)
from tests.methods.helpers import build, takes
from tests.methods.trees import LONG, C

TILTED = [
    "vpg",
    "reinforce-constant",
    "reinforce",
    # Each prefix of a table stands at one step, so that the step means only scale its row. See test_methods.py for
    # parameters that steps share.
    "reinforce-step-mean",
    "reinforce-moving-average",
    "reinforce-learned",
    "rloo",
    "rloo-corrected",
    "remax",
    "impala",
    "ppo-loo",
    "dual-clip",
    "trpo",
]
SHORT = {"reinforce", "reinforce-step-mean"}  # by 1 − 1/B or more, a half in pairs: twice the step
EVERYWHERE = [
    pytest.param(name, tree, id=f"{name}-{IDS[id(tree)]}")
    for name, tree in itertools.product(TILTED, (C, LONG))
    if tree is C or not whole_batch(name)
]


def assert_optimal(tree, policy):
    """Every sequence as likely as under the oracle's optimum, and the oracle's objective there is β log Z."""
    optimum = exact.tilted_optimum(tree.mdp, tree.problem.reference, BETA)
    best = {tau.tokens: p for tau, p in exact.distribution(tree.mdp, optimum.policy)}
    found, (wanted, value) = tree.sequences(policy), tilted(tree)
    assert apart(tree.sequences(tree.start), wanted) > 0.8  # it had a way to go
    close(found, [best[tokens] for tokens in tree.tokens])
    close(found, wanted)
    table = exact.SoftmaxTable(tree.mdp.prefixes(), np.log(policy))
    reached = exact.regularized_objective(tree.mdp, table, tree.problem.reference, BETA).value
    close([reached, optimum.value], value)


@pytest.mark.parametrize(("name", "tree"), EVERYWHERE)
def test_the_end_is_the_tilted_reference(name, tree):
    """Critics are exact here, computed anew before each batch. TRPO takes steps of first order: test_trust.py."""
    step = (1.0 if name in SHORT else 0.5) / BETA
    assert_optimal(tree, trained(build(name, kl_coefficient=BETA), tree, step).policy)


def test_a_baseline_is_learned_on_the_way_and_moves_no_end():
    """From 0 to the mean of the penalized returns, which at the optimum are all β log Z."""
    end = trained(build("reinforce-moving-average", kl_coefficient=BETA, momentum=0.5), C, 0.5 / BETA)
    assert end.batches > 20
    close(end.method.state["baseline"], tilted(C)[1], atol=1e-4)
    assert_optimal(C, end.policy)


@pytest.mark.parametrize("name", ["ppo-loo", "dual-clip"])
def test_ppo_arrives_with_several_updates_of_each_batch(name):
    """The clip acts on the way. At the optimum all penalized returns are equal, and nothing is left to clip."""
    settings = {"dual_clip": 1.3} if takes(name, "dual_clip") else {}
    end = trained(build(name, kl_coefficient=BETA, **settings), LONG, 0.5 / BETA, updates=3)
    assert end.clipped > 100
    assert_optimal(LONG, end.policy)


def test_with_the_penalty_in_the_reward_no_weights_move_the_end():
    """At the optimum R − β log p/p_ref = β log Z for every sequence: leave-one-out credit is 0, not only on average."""
    method = replace(rloo(kl_coefficient=BETA), aggregation=sequence_mean)
    assert np.abs(expected(method, THREE_TOKENS, 2).ascent).max() > 1e-2
    assert_optimal(LONG, trained(method, LONG, 1.0 / BETA).policy)


@pytest.mark.parametrize("name", ["rloo", "rloo-corrected", "ppo-loo", "impala"])
def test_with_the_penalty_in_the_reward_no_sampler_moves_the_end(name):
    """Samples of another policy, corrected or not: where all penalized returns are equal it is nothing to whom."""
    method = build(name, kl_coefficient=BETA)
    end = trained(method, C, 0.2 / BETA, enough=1e-12, sampler=lambda logits: logits + SHIFT / 2)
    assert_optimal(C, end.policy)


# --- critics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", [C, LONG], ids=IDS.values())
@pytest.mark.parametrize("name", ["reinforce-learned", "impala", "a2c"])
def test_a_critic_that_learns_beside_the_policy(name, tree):
    """A table of values from 0, one step of value_loss a batch. It ends at V of the penalized reward, the policy at

    the tilted reference; A2C's, for its entropy bonus of 0.01, a little flatter. GAE with λ < 1 is biased by an error
    of the critic, and at the end there is none.
    """
    settings = {"lam": 0.5, "entropy_coefficient": 0.1} if name == "a2c" else {}
    critic = LearnedCritic(torch.zeros(len(tree.mdp.prefixes()), dtype=torch.float64))
    end = trained(build(name, kl_coefficient=BETA, **settings), tree, 0.3 / BETA, most=600, critic=critic)
    if name == "a2c":
        close(end.policy, tilted_with_a_bonus(tree, BETA, 0.1))
    else:
        assert_optimal(tree, end.policy)
    table = tree.table(torch.from_numpy(np.log(end.policy)).flatten())
    true = ExactCritic(BETA).values(tree, table)
    close(end.critic.values(tree, table), true)
    assert np.abs(true.numpy()).max() > 0.5


def test_an_entropy_bonus_moves_the_end_by_a_known_amount():
    """Of 0.01 by default. Closed form; without a bonus the same form is the tilted reference."""
    close(C.sequences(tilted_with_a_bonus(C, BETA, 0.0)), tilted(C)[0])
    stated = tilted_with_a_bonus(C, BETA, 0.01)
    assert 0.005 < apart(C.sequences(stated), tilted(C)[0]) < 0.01
    close(trained(build("a2c", kl_coefficient=BETA), C, 0.5 / BETA).policy, stated)


def test_a_wrong_critic_moves_the_end_of_a2c_and_not_that_of_a_learned_baseline():
    """V = 0 for ever: G_t − 0 is unbiased, and λ = 0.5 credits half of what comes later."""

    def stubborn(name, **settings):
        critic = LearnedCritic(torch.zeros(3, dtype=torch.float64), rate=0.0)
        return trained(
            build(name, kl_coefficient=BETA, **settings), C, 0.5 / BETA, most=400, critic=critic
        ).policy

    assert_optimal(C, stubborn("reinforce-learned"))
    wrong = stubborn("a2c", lam=0.5, entropy_coefficient=0.0)
    assert apart(C.sequences(wrong), tilted(C)[0]) > 0.1
