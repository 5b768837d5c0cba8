"""Every method of the catalogue, trained to the end: does it arrive where its claim says?

VPG, REINFORCE, RLOO and PPO claim J − β KL(π‖π_ref) of whole sequences, and the oracle knows that optimum in closed
form: the tilted reference. GRPO claims no objective: where its mean update vanishes is worked out here in numpy, from
its definition alone, and is another policy.

By default training follows the mean update over every pair of sequences that could be sampled, each through the
method's own prepare, weights and loss, until it vanishes. The slow tests sample, with plain gradient descent.

In toy C the first token decides the length, so that a mean over each sequence moves no end; in LONG it does.
"""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from rung import exact
from rung.aggregation import sequence_mean
from rung.credit import group_standardized
from rung.kl import k3
from rung.methods import CATALOGUE, KLPenalty, grpo, ppo_loo, reinforce, rloo, vpg
from tests.enumeration import ONE_PROMPT, THREE_TOKENS, expected
from tests.methods.training import Pairs, Tree, train, train_by_sampling

BETA = 0.5
C, LONG = Tree(ONE_PROMPT), Tree(THREE_TOKENS)
IDS = {id(C): "C", id(LONG): "LONG"}
# REINFORCE compares within the batch, so that each pair has to be prepared by itself: on the smaller toy only.
BY_GROUP = [make for make in CATALOGUE.values() if make is not reinforce]
PENALIZED = [make for make in CATALOGUE.values() if make is not grpo]
EVERYWHERE = [(reinforce, C), *itertools.product(BY_GROUP, (C, LONG))]


def named(cases):
    return [pytest.param(make, tree, id=f"{make.__name__}-{IDS[id(tree)]}") for make, tree in cases]


@cache
def pairs(name, one_by_one=False):
    return Pairs(LONG if name == "LONG" else C, one_by_one=one_by_one)


def trained(method, tree, step, **settings):
    return train(method, pairs(IDS[id(tree)], one_by_one=method.name == "reinforce"), step, **settings)


def close(actual, wanted, atol=1e-10):
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=atol)


def apart(p, q):
    """Total-variation distance."""
    return 0.5 * float(np.abs(p - q).sum())


def tilted(tree):
    """p* of every sequence, and β log Z: p_ref e^(R/β) / Z."""
    weights = tree.sequences(tree.reference) * np.exp(tree.rewards / BETA)
    return weights / weights.sum(), BETA * np.log(weights.sum())


# --- J − β KL ------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("make", "tree"), named((m, t) for m, t in EVERYWHERE if m in PENALIZED))
def test_the_end_is_the_tilted_reference(make, tree):
    """REINFORCE is short by 1 − 1/B, a half: twice the step."""
    step = (1.0 if make is reinforce else 0.5) / BETA
    assert_optimal(tree, trained(make(kl_coefficient=BETA), tree, step).policy)


def test_ppo_arrives_with_several_updates_of_each_batch():
    """The clip acts on the way. At the optimum all penalized returns are equal, and nothing is left to clip."""
    end = trained(ppo_loo(kl_coefficient=BETA), LONG, 0.5 / BETA, updates=3)
    assert end.clipped > 100
    assert_optimal(LONG, end.policy)


def test_with_the_penalty_in_the_reward_no_weights_move_the_end():
    """At the optimum R − β log p/p_ref = β log Z for every sequence: leave-one-out credit is 0, not only on average."""
    method = replace(rloo(kl_coefficient=BETA), aggregation=sequence_mean)
    assert np.abs(expected(method, THREE_TOKENS, 2).ascent).max() > 1e-2
    assert_optimal(LONG, trained(method, LONG, 1.0 / BETA).policy)


# --- GRPO ----------------------------------------------------------------------------------------------------------


def mean_standardized(tree, probabilities, group_size):
    """E[(R − mean)/std | own sequence], over the other samples of the group; std with Bessel's correction."""
    found = np.zeros(len(tree.rewards))
    for own, *others in itertools.product(range(len(tree.rewards)), repeat=group_size):
        group = tree.rewards[[own, *others]]
        if np.ptp(group) > 0:
            credit = (group[0] - group.mean()) / np.std(group, ddof=1)
            found[own] += np.prod(probabilities[others]) * credit
    return found


def grpo_direction(tree, policy, group_size):
    """E[1/L Σ_t (A − β (1 − π_ref/π)) ∂ log π/∂θ(s,a)], a table, with A standardized over the group.

    1 − π_ref/π is ∂k3/∂ log π. The score of a table of logits is [a was chosen at s] − π(a|s).
    """
    p = tree.sequences(policy)
    pull = tree.at_choices(p * mean_standardized(tree, p, group_size) / tree.lengths)
    pull -= BETA * (1 - tree.reference / policy) * tree.at_choices(p / tree.lengths)
    return pull - policy * pull.sum(1, keepdims=True)


@cache
def grpo_end(name, group_size):
    """The policy at which that direction vanishes, a table.

        π(a|s) = π_ref(a|s) / (1 + (λ(s) − C(s,a)) / (β w(s,a))),   C = E[A/L | s,a],   w = E[1/L | s,a]

    and λ(s) such that each row sums to 1: a hyperbola, where the tilted reference has an exponential. C and w are
    those of the policy itself, so that it is solved by iteration.
    """
    tree = LONG if name == "LONG" else C
    policy = tree.reference
    for _ in range(40):
        p = tree.sequences(policy)
        passing = tree.at_choices(p)
        credit = tree.at_choices(p * mean_standardized(tree, p, group_size) / tree.lengths) / passing
        stiffness = BETA * tree.at_choices(p / tree.lengths) / passing
        low = (credit - stiffness).max(
            1, keepdims=True
        )  # a row's sum is infinite here, and below 1 ten higher
        high = low + 10.0
        for _ in range(60):
            middle = (low + high) / 2
            policy = stiffness * tree.reference / (stiffness + middle - credit)
            above = policy.sum(1, keepdims=True) > 1
            low, high = np.where(above, middle, low), np.where(above, high, middle)
    return policy


@pytest.mark.parametrize("tree", [C, LONG], ids=IDS.values())
def test_grpo_ends_where_its_own_mean_update_vanishes_and_not_at_the_optimum(tree):
    policy = trained(grpo(kl_coefficient=BETA), tree, 1.0 / BETA).policy
    assert np.abs(grpo_direction(tree, tree.start, 2)).max() > 0.05
    close(grpo_direction(tree, policy, 2), np.zeros(policy.shape))
    close(tree.sequences(policy), tree.sequences(grpo_end(IDS[id(tree)], 2)))
    assert apart(tree.sequences(policy), tilted(tree)[0]) > 0.25


def test_the_end_of_grpo_is_tilted_for_no_kl_coefficient():
    """β log(p/p_ref) = R + constant would give equal rewards equal gains. A tilt of each prefix by itself does not."""
    gains = C.sequences(grpo_end("C", 2)) / C.sequences(C.reference)
    gain, reward = dict(zip(C.tokens, gains, strict=True)), dict(zip(C.tokens, C.rewards, strict=True))
    assert reward[(2,)] == reward[(1, 0)] == 0.0
    assert gain[(1, 0)] > 1.2 * gain[(2,)]


def test_groups_of_three_move_the_end_of_grpo():
    """To where the same condition holds for three; RLOO's optimum knows no G."""
    policy = grpo_end("C", 3)
    close(grpo_direction(C, policy, 3), np.zeros(policy.shape))
    problem = replace(ONE_PROMPT, policy=exact.SoftmaxTable(C.mdp.prefixes(), np.log(policy)))
    close(expected(grpo(kl_coefficient=BETA), problem, 3).ascent, np.zeros(policy.size))
    assert apart(C.sequences(policy), C.sequences(grpo_end("C", 2))) > 0.05


def test_each_step_from_rloo_to_grpo_moves_the_end():
    """k3 in the loss, then the mean over each sequence, then standardized credit."""
    with_k3 = replace(rloo(), kl=KLPenalty(k3, placement="loss", coefficient=BETA))
    with_mean = replace(with_k3, aggregation=sequence_mean)
    standardized = replace(with_mean, credit=group_standardized)
    ends = [tilted(LONG)[0]]
    for method, step in ((with_k3, 0.3), (with_mean, 0.4), (standardized, 1.0)):
        ends.append(LONG.sequences(trained(method, LONG, step / BETA).policy))
    assert [apart(*neighbours) > 0.005 for neighbours in itertools.pairwise(ends)] == [True] * 3
    close(ends[-1], LONG.sequences(grpo_end("LONG", 2)))


# --- without a penalty ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "tree"), named(EVERYWHERE))
def test_without_a_penalty_all_goes_to_the_best_sequence(make, tree):
    best = tree.rewards.argmax()
    assert tree.sequences(tree.start)[best] < 0.1
    policy = trained(make(kl_coefficient=0.0), tree, 1.0, most=40).policy
    assert tree.sequences(policy)[best] > 0.99


# --- sampled -------------------------------------------------------------------------------------------------------

# 500 batches of 64 sampled pairs. Each bound is the mean and five standard deviations (z = 5) of the distance that
# the seeds 1 to 20 ended at; the test takes another. What is left of the noise is in the credit: the whole return on
# every token, the return to go less the mean, and leave-one-out, which at the optimum is 0 for every sequence.
SAMPLED = [
    (vpg, 1, 0.050),  # 0.0159 ± 0.0069
    (reinforce, 1, 0.0096),  # 0.0030 ± 0.0013
    (rloo, 1, 0.00018),  # 0.000070 ± 0.000022
    (ppo_loo, 3, 0.00024),  # 0.000084 ± 0.000031
    (grpo, 1, 0.043),  # 0.0138 ± 0.0058
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "updates", "bound"), SAMPLED, ids=[make.__name__ for make, _, _ in SAMPLED])
def test_the_end_of_training_on_samples(make, updates, bound):
    """Total variation from the tilted reference, for GRPO from its own end. The start is 0.85 from the first."""
    method = make(kl_coefficient=BETA)
    policy = train_by_sampling(method, C, 10.0, seed=0, batches=500, updates=updates)
    end = C.sequences(grpo_end("C", 2)) if make is grpo else tilted(C)[0]
    assert apart(C.sequences(policy), end) < bound
