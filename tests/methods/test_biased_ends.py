"""Methods that claim no objective, trained to the end: it is where their own mean update vanishes, not the optimum.

That point is worked out in numpy from each method's definition (directions.py), and is another policy for each.
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
from rung.methods import KLPenalty, grpo, rloo
from tests.enumeration import ONE_PROMPT, expected
from tests.methods.directions import (
    cispo_rule,
    dapo_rule,
    direction,
    dr_grpo_rule,
    grpo_rule,
    reinforce_pp_baseline_rule,
    reinforce_pp_rule,
    standardized,
    vanishes_at,
)
from tests.methods.ends import BETA, IDS, apart, close, tilted, trained
from tests.methods.helpers import build
from tests.methods.trees import LONG, C

# --- GRPO ----------------------------------------------------------------------------------------------------------


def mean_standardized(tree, probabilities, group_size):
    """E[(R − mean)/std | own sequence], over the other samples of the group; std with Bessel's correction."""
    found = np.zeros(len(tree.rewards))
    for own, *others in itertools.product(range(len(tree.rewards)), repeat=group_size):
        found[own] += np.prod(probabilities[others]) * standardized(tree.rewards[[own, *others]])[0]
    return found


@cache
def grpo_end(name, group_size):
    """The policy at which the direction of GRPO vanishes, a table.

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
        # A row's sum is infinite at the first, and below 1 ten higher.
        low = (credit - stiffness).max(1, keepdims=True)
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
    assert np.abs(direction(tree, tree.start, grpo_rule(BETA))).max() > 0.05
    close(direction(tree, policy, grpo_rule(BETA)), np.zeros(policy.shape))
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
    close(direction(C, policy, grpo_rule(BETA), 3), np.zeros(policy.shape))
    problem = replace(ONE_PROMPT, policy=exact.SoftmaxTable(C.mdp.prefixes(), np.log(policy)))
    close(expected(grpo(kl_coefficient=BETA), problem, 3).ascent, np.zeros(policy.size))
    assert apart(C.sequences(policy), C.sequences(grpo_end("C", 2))) > 0.05


def test_each_step_from_rloo_to_grpo_moves_the_end():
    """k3 in the loss, then the mean over each sequence, then standardized credit."""
    with_k3 = replace(rloo(), kl=KLPenalty(k3, placement="loss", coefficient=BETA))
    with_mean = replace(with_k3, aggregation=sequence_mean)
    standardized_too = replace(with_mean, credit=group_standardized)
    ends = [tilted(LONG)[0]]
    for method, step in ((with_k3, 0.3), (with_mean, 0.4), (standardized_too, 1.0)):
        ends.append(LONG.sequences(trained(method, LONG, step / BETA).policy))
    assert [apart(*neighbours) > 0.005 for neighbours in itertools.pairwise(ends)] == [True] * 3
    close(ends[-1], LONG.sequences(grpo_end("LONG", 2)))


# --- its relatives -------------------------------------------------------------------------------------------------


def charge(length):
    """DAPO's, with a cap of two tokens: its buffer is one, so that the second costs 1."""
    return -1.0 if length == 2 else 0.0


def no_charge(length):
    return 0.0


# (entry, its settings, problem, β, rule, step of training, step of numpy, how far from the optimum at least)
ENDS = {
    "gspo, C": ("gspo", {}, C, 0.5, grpo_rule(0.5), 2.0, 1.0, 0.3),
    "gspo, LONG": ("gspo", {}, LONG, 0.5, grpo_rule(0.5), 2.0, 2.0, 0.25),
    "dr-grpo, C": ("dr-grpo", {"length": 2}, C, 0.5, dr_grpo_rule(0.5, 2), 1.0, 1.0, 0.1),
    "dr-grpo, LONG": ("dr-grpo", {"length": 7}, LONG, 0.5, dr_grpo_rule(0.5, 7), 4.0, 4.0, 0.1),
    "cispo": ("cispo", {}, C, 0.5, cispo_rule(0.5), 2.0, 2.0, 0.3),
    "dapo": ("dapo", {"length": 20}, C, 0.5, dapo_rule(0.5, no_charge), 2.0, 2.0, 0.25),
    "dapo, charged": ("dapo", {"length": 2}, C, 0.5, dapo_rule(0.5, charge), 2.0, 2.0, 0.25),
    "reinforce++-baseline": (
        "reinforce++-baseline",
        {},
        C,
        0.5,
        reinforce_pp_baseline_rule(0.5),
        1.0,
        1.0,
        0.1,
    ),
    "reinforce++": ("reinforce++", {}, C, 3.0, reinforce_pp_rule(3.0), 0.1, 0.1, 0.04),
}


@pytest.mark.parametrize(
    ("name", "settings", "tree", "beta", "rule", "step", "own_step", "off"), ENDS.values(), ids=ENDS
)
def test_the_end_is_where_the_definition_says(name, settings, tree, beta, rule, step, own_step, off):
    method = build(name, kl_coefficient=beta, **settings)
    policy = trained(method, tree, step, most=400, enough=1e-11).policy
    close(direction(tree, policy, rule), np.zeros(policy.shape))
    close(policy, vanishes_at(tree, rule, own_step), atol=1e-8)
    assert apart(tree.sequences(policy), tilted(tree, beta)[0]) > off


@pytest.mark.parametrize("case", ["cispo", "dapo", "dr-grpo, C"])
def test_several_updates_of_each_batch_move_none_of_these_ends(case):
    """Ratios, clips and caps act on the way; where the first update of a batch vanishes there is no second."""
    name, settings, tree, beta, rule, step, own_step, _ = ENDS[case]
    method = build(name, kl_coefficient=beta, **settings)
    end = trained(method, tree, step, most=400, enough=1e-10, updates=3)
    assert end.clipped > 20
    close(end.policy, vanishes_at(tree, rule, own_step), atol=1e-6)


def test_several_updates_of_each_batch_pull_gspo_to_its_reference():
    """A clip of 3e-4 silences the credit after the first update, and never the penalty, which acts in all of them.

    So with a penalty in the loss more updates of a batch are a larger β: with two the end is nearer to that of twice
    the β than to its own.
    """
    method = build("gspo", kl_coefficient=BETA)
    reference = C.sequences(C.reference)
    once, twice, thrice = (
        C.sequences(trained(method, C, 0.5 * updates, most=150, updates=updates).policy)
        for updates in (1, 2, 3)
    )
    own, of_twice = (C.sequences(vanishes_at(C, grpo_rule(beta), 1.0)) for beta in (BETA, 2 * BETA))
    close(once, own, atol=1e-6)
    assert apart(twice, of_twice) < 0.08 < 0.11 < apart(twice, own)
    assert apart(once, reference) > apart(twice, reference) + 0.1 > apart(thrice, reference) + 0.15


def test_all_these_ends_are_different():
    ends = {
        "rloo": tilted(C)[0],
        "grpo": C.sequences(grpo_end("C", 2)),
        **{
            name: C.sequences(vanishes_at(C, rule, own_step))
            for name, (_, _, tree, beta, rule, _, own_step, _) in ENDS.items()
            if tree is C and beta == BETA and name != "gspo, C"
        },
    }
    for (one, p), (other, q) in itertools.combinations(ends.items(), 2):
        assert apart(p, q) > 0.004, (one, other)


def test_whitened_returns_to_go_do_not_settle_where_the_penalty_is_weak():
    """Whitening makes a standard deviation of the smallest difference, and in pairs only its sign is left.

    Where an end would need two returns to be equal, the update does not shrink on the way there, but changes sign.
    """
    end = trained(build("reinforce++", kl_coefficient=BETA), C, 0.5, most=80)
    left = np.abs(direction(C, end.policy, reinforce_pp_rule(BETA))).max()
    assert end.batches == 80
    assert left > 1e-3
    assert 0.1 < apart(C.sequences(end.policy), tilted(C)[0]) < 0.4
