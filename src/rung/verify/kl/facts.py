"""What circulates about KL and is wrong, as a few numbers each: direction, sampler, sign, steps, returns."""

import math

import numpy as np
import torch

from rung.credit import reward_to_go, total_return
from rung.exact import (
    SoftmaxTable,
    distribution,
    sequence_kl_policy_reference,
    sequence_kl_reference_policy,
)
from rung.exact.token_mdp import FloatArray
from rung.kl import k1, kl_divergence
from rung.masked import masked_sum
from rung.methods import KLPenalty
from rung.policy_losses import policy_gradient_loss
from rung.verify.findings import Cell as Entry
from rung.verify.findings import Table
from rung.verify.kl.cells import Cell, World
from rung.verify.problems import Problem

BETA = 0.1


def facts(problem: Problem) -> tuple[list[Table], list[str]]:
    """Tables of numbers, and a sentence for each that the oracle says otherwise."""
    found = [_whole(problem), _numbers(problem), _steps(), _returns(problem)]
    return [table for table, _ in found], [failure for _, failures in found for failure in failures]


def _compared(rows: list[tuple[str, float, float]]) -> tuple[tuple[tuple[Entry, ...], ...], list[str]]:
    """(what, by rung, exact) as rows without the last, and sentences where the two differ."""
    wrong = [
        f"{what} is {value:.12g} by rung, and {exact:.12g} exactly"
        for what, value, exact in rows
        if abs(value - exact) > 1e-10
    ]
    return tuple((what, value) for what, value, _ in rows), wrong


def both_placements(world: World) -> tuple[FloatArray, float]:
    """The full divergence twice: differentiated at each prefix, and in the credit of the tokens before it.

        ĝ = Σ_t ∇KL_t + Σ_t S_t Σ_{u>t} KL_u

    Returns:
        [n] its mean, and the trace of its covariance.
    """
    full = world.divergences
    later = reward_to_go(full.detach(), world.mask) - full.detach()
    return world.moments(masked_sum(full + policy_gradient_loss(world.logprobs, -later), world.mask))


def _whole(problem: Problem) -> tuple[Table, list[str]]:
    """How noisy each way to all of ∇KL(π‖π_ref) is."""
    world = World(problem, on_policy=True)
    wanted = sequence_kl_policy_reference(*problem.oracles()[0]).gradient
    mean, trace = both_placements(world)
    off = float(np.abs(mean - wanted).max())
    ways = (
        Cell("k1", "reward", "token", None),
        Cell("k1", "reward", "sequence", None),
        Cell("k2", "loss", "sequence", None),
        Cell("k3", "loss", "sequence", "live"),
        Cell("full", "loss", "sequence", "live"),
    )
    rows = [(str(way), world.measure(way).trace) for way in ways]
    return (
        Table(
            "Ways to all of ∇KL(π‖ref), on policy",
            ("cell", "noise"),
            (*rows, ("full loss token, and full of later tokens in the reward", trace)),
            note="Each alone, the full divergence gives the immediate part in the loss and the future part in the "
            "reward: it does not depend on the token drawn, hence its own token earns nothing by it. Together "
            "they are the whole.",
        ),
        [f"the full divergence in the loss and in the reward is off ∇KL(π‖ref) by {off:.3g}"]
        if off > 1e-10
        else [],
    )


def _numbers(problem: Problem) -> tuple[Table, list[str]]:
    """A log-ratio's sign, and its mean under each sampler."""
    mdp, policy, reference = problem.oracles()[0]
    reverse = sequence_kl_policy_reference(mdp, policy, reference)
    forward = sequence_kl_reference_policy(mdp, policy, reference).value
    world = World(problem, on_policy=True)
    pi = world.logprobs.detach()
    ref = world.rollouts("stale").reference_logprobs
    assert ref is not None
    from_pi, from_ref = pi.sum(1).exp(), ref.sum(1).exp()
    ratios = k1(pi, ref).sum(1)

    def mean(chances: torch.Tensor, values: torch.Tensor) -> float:
        return float(chances @ values)

    negative = sum(
        probability
        for tau, probability in distribution(mdp, policy)
        if sum(policy(s)[0][a] - reference(s)[0][a] for s, a in tau.steps) < 0
    )
    rows, wrong = _compared(
        [
            ("mean of log π − log ref, samples of π: KL(π‖ref)", mean(from_pi, ratios), reverse.value),
            (
                "mean of log ref − log π, samples of π: −KL(π‖ref)",
                mean(from_pi, k1(ref, pi).sum(1)),
                -reverse.value,
            ),
            (
                "mean of log ref − log π, samples of ref: KL(ref‖π)",
                mean(from_ref, k1(ref, pi).sum(1)),
                forward,
            ),
            (
                "share of π's sequences whose log π − log ref < 0",
                mean(from_pi, (ratios < 0).double()),
                negative,
            ),
        ]
    )
    future = float(np.linalg.norm(reverse.future) / np.linalg.norm(reverse.gradient))
    return (
        Table(
            "Direction, and who samples",
            ("what", "measured"),
            (*rows, ("|future part| / |∇KL(π‖ref)|", future)),
            note="KL is not symmetric, hence no distance. Who samples sets the direction, not which logarithm stands "
            "first: with a teacher for ref, the mean of log teacher − log student over the student's samples is "
            "minus KL(student‖teacher). One log-ratio estimates the divergence; that it is negative is no error. "
            "Per-token gradients summed over sampled prefixes lack the future part; forward KL on the reference's own "
            "prefixes has none.",
        ),
        wrong,
    )


def _steps() -> tuple[Table, list[str]]:
    """A step that the divergence from the reference does not see."""
    old, new = torch.tensor([0.8, 0.1, 0.1]).double().log(), torch.tensor([0.1, 0.8, 0.1]).double().log()
    uniform = torch.zeros(3, dtype=torch.float64)
    to_uniform = 0.8 * math.log(2.4) + 0.2 * math.log(0.3)
    rows, wrong = _compared(
        [
            ("KL(old‖ref)", float(kl_divergence(old, uniform)), to_uniform),
            ("KL(new‖ref)", float(kl_divergence(new, uniform)), to_uniform),
            ("KL(old‖new), the step", float(kl_divergence(old, new)), 0.7 * math.log(8.0)),
        ]
    )
    return (
        Table(
            "A step from (.8, .1, .1) to (.1, .8, .1), with a uniform reference",
            ("divergence", "nats"),
            rows,
            note="A step goes from the old policy to the new one; the reference is somewhere else, and a penalty on "
            "the divergence from it bounds no step.",
        ),
        wrong,
    )


def _returns(problem: Problem) -> tuple[Table, list[str]]:
    """Returns of a sequence that is rewarded at its end only, with β k1 in the reward."""
    world = World(problem, on_policy=True)
    rollouts = world.rollouts("stale")
    row = max(range(len(rollouts.mask)), key=lambda i: int(rollouts.mask[i].sum()))
    mask, policy = rollouts.mask[row : row + 1], world.logprobs.detach()[row : row + 1]
    assert rollouts.reference_logprobs is not None
    reference = rollouts.reference_logprobs[row : row + 1]
    penalty = KLPenalty(k1, placement="reward", coefficient=BETA)
    rewards = -BETA * penalty.in_reward(policy, reference, mask)
    rewards[0, int(mask.sum()) - 1] += 1.0
    to_go, total = reward_to_go(rewards, mask)[0].tolist(), total_return(rewards, mask)[0].tolist()
    tokens = problem.sequences[row].tokens
    assert isinstance(problem.policy, SoftmaxTable)
    log_ratios = [
        problem.policy(tokens[:t])[0][a] - problem.reference(tokens[:t])[0][a] for t, a in enumerate(tokens)
    ]
    wrong = [
        f"the return from token {t} on is {to_go[t]:.12g} with β k1 in the reward, and {exact:.12g} exactly"
        for t in range(len(tokens))
        if abs(to_go[t] - (exact := 1.0 - BETA * sum(log_ratios[t:]))) > 1e-10
    ]
    return (
        Table(
            f"One sequence of reward 1 at its end, with {BETA:g} · k1 in the reward",
            ("token", "r − β·k1", "G_t", "R(τ)"),
            tuple((t, rewards[0, t].item(), to_go[t], total[t]) for t in range(len(tokens))),
            note="Without the penalty G_t = R(τ) at every token. With it they differ from the second token on: the "
            "return from a token on leaves out what earlier tokens were charged.",
        ),
        wrong,
    )
