"""Steps of a measured length: TRPO by its trust region, PPO by a penalty that is doubled and halved."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from rung import exact
from rung.kl import DoublingKL
from rung.trust_region import trust_region_step
from tests.enumeration import Tables
from tests.methods.ends import BETA, IDS, close, pairs, tilted, trained
from tests.methods.helpers import build, unpenalized
from tests.methods.trees import LONG, Array, C, softmax

TREES = pytest.mark.parametrize("tree", [C, LONG], ids=IDS.values())


@dataclass(frozen=True)
class Walk:
    """Of one training: J − β KL(π‖π_ref) before each step, each step's KL(old‖new), and the last policy."""

    objectives: list[float]
    lengths: list[float]
    policy: Array


def walk(tree, beta, steps, max_kl=0.01):
    """TRPO on a table of logits: gradient, Fisher products and divergences are expectations over all pairs.

    F is block by block diag(π) − ππᵀ, each prefix weighted by its share of the sampled tokens; so is the divergence.
    """
    method, every = build("trpo", kl_coefficient=beta, max_kl=max_kl), pairs(IDS[id(tree)])
    logits, objectives, lengths = torch.tensor(tree.problem.policy.parameters), [], []
    for _ in range(steps):
        old, policy = tree.logprobs(logits), torch.from_numpy(softmax(tree.table(logits).logits))
        p = tree.sequences(policy.numpy())
        objectives.append(float(p @ (tree.rewards - beta * (old - every.reference).sum(1).numpy())))
        visits = torch.from_numpy(tree.at_choices(p)).sum(1)
        share = (visits / visits.sum()).unsqueeze(1)
        nothing = torch.zeros_like(old)
        batch, weights = every.prepared(method, Tables(old, old, every.reference, nothing, nothing[:, 0]))

        def product(v, policy=policy, share=share):
            rows = v.reshape(policy.shape)
            return (share * policy * (rows - (policy * rows).sum(1, keepdim=True))).flatten()

        def evaluate(step, at=logits, policy=policy, share=share, batch=batch, weights=weights):
            new = (at + step).reshape(policy.shape).log_softmax(1)
            loss = method.loss(tree.logprobs(at + step)[every.rows], batch, weights)
            return float(loss), float((share * policy * (policy.log() - new)).sum())

        slope = tree.slope(method, logits, every.rows, batch, weights)
        taken = trust_region_step(slope, product, evaluate, method.update)
        lengths.append(taken.kl)
        logits = logits + taken.step
    return Walk(objectives, lengths, softmax(tree.table(logits).logits))


@TREES
def test_trpo_climbs_to_the_best_sequence_without_a_step_down(tree):
    """J rises at every step, by steps of at most 0.01 nats a token, to within 1e-3 of J*."""
    way = walk(tree, 0.0, 60)
    assert min(np.diff(way.objectives)) > 0.0
    assert max(way.lengths) <= 0.01
    assert max(way.lengths) > 0.005  # and not by creeping
    close(way.objectives[-1], tree.rewards.max(), atol=1e-3)


@TREES
@pytest.mark.parametrize(("max_kl", "steps"), [(0.01, 80), (0.001, 200)])
def test_trpo_with_a_penalty_ends_within_a_step_of_the_tilted_reference(tree, max_kl, steps):
    """A step has its length even where nothing is left to gain, so that it circles: J* − J = β KL(π‖p*) stays below

    what a step of twice δ a token would cost.
    """
    _, best = tilted(tree)
    way = walk(tree, BETA, steps, max_kl)
    late = np.array(way.objectives[-20:])
    assert way.objectives[0] < best - 1.0
    assert late.max() <= best + 1e-12
    assert best - late.min() < BETA * 2 * max_kl * tree.lengths.max()


def test_a_step_of_trpo_is_the_damped_natural_gradient_of_full_length():
    """x = (F + 0.1)⁻¹ g by a linear solve, and √(2δ/xᵀ(F + 0.1)x) · x: g(s,a) = p(s) π(a|s) A(s,a), from the oracle."""
    advantage, visits = exact.advantages(C.mdp, C.problem.policy), exact.occupancy(C.mdp, C.problem.policy)
    tokens = sum(visits.values())
    fisher, gradient = np.zeros((9, 9)), np.zeros(9)
    for row, prefix in enumerate(C.mdp.prefixes()):
        block, pi = slice(3 * row, 3 * row + 3), C.start[row]
        fisher[block, block] = visits[prefix] / tokens * (np.diag(pi) - np.outer(pi, pi))
        gradient[block] = visits[prefix] * pi * advantage[prefix]
    damped = fisher + 0.1 * np.eye(9)
    x = np.linalg.solve(damped, gradient)
    step = (np.sqrt(2 * 1e-6 / (x @ damped @ x)) * x).reshape(3, 3)
    taken = np.log(walk(C, 0.0, 1, max_kl=1e-6).policy) - np.log(C.start)
    close(
        taken - taken[:, :1], step - step[:, :1], atol=1e-9
    )  # logits are known up to a constant in each row


# --- a penalty on the step -------------------------------------------------------------------------------------------


@TREES
def test_ppo_with_a_penalty_climbs_to_the_best_sequence(tree):
    """β doubles where a batch moved the policy by more than 1.5 times the target, and halves below target/1.5."""
    method = build("ppo-penalty", kl_coefficient=DoublingKL(1.0, target=0.05))
    end = trained(method, tree, 1.0, updates=5, most=60)
    assert min(np.diff(end.objectives)) > 0.0
    close(end.objectives[-1], tree.rewards.max(), atol=1e-3)


def test_the_penalty_holds_the_step():
    """Once β is found no batch moves the policy by more than three times the target; without it, by more than ten."""
    target = 0.02
    held = trained(
        build("ppo-penalty", kl_coefficient=DoublingKL(1.0, target=target)), C, 2.0, updates=10, most=25
    )
    free = trained(unpenalized("ppo-penalty"), C, 2.0, updates=10, most=25)
    assert max(held.betas) == 4.0
    assert max(held.moved[6:]) < 3 * target
    assert max(free.moved) > 10 * target


def test_a_constant_penalty_on_the_step_moves_no_end():
    """Its gradient is 0 where a batch begins, so that only the way is longer: no interior optimum."""
    method = build("ppo-penalty", kl_coefficient=0.5)
    close(trained(method, C, 1.0, most=40).objectives[-1], 2.0, atol=1e-3)
    slow = trained(method, C, 1.0, updates=4, most=8).objectives[-1]
    fast = trained(unpenalized("ppo-penalty"), C, 1.0, updates=4, most=8).objectives[-1]
    assert slow < fast - 0.01
