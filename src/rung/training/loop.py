"""The loop: collect, reward, annotate, credit and update, record."""

import math
import statistics
from typing import Any

import torch

from rung.batch import Rollouts
from rung.kl import k1, k3
from rung.masked import masked_sum
from rung.methods import Method
from rung.training.drawing import Drawn, draw
from rung.training.evaluation import Sampled
from rung.training.session import Clock, Session


def train_policy(session: Session) -> None:
    """Train with a policy-gradient method from the session's start to its last step."""
    recipe, learner = session.recipe, session.learner
    if session.start == 0 and recipe.evaluation.test_problems:
        session.evaluate(0, "test", recipe.evaluation.test_problems)
    for step in range(session.start + 1, recipe.training.steps + 1):
        method, clock = session.method, Clock()
        assert method is not None
        drawn = draw(session, clock, method)
        with clock("annotate"):
            rollouts = learner.annotate(drawn.rollouts, method.needs)
            if step == session.start + 1:
                learner.compare_sampler(rollouts).check(recipe.rollout.mismatch_tolerance)
        with clock("update"):
            updated = learner.step(rollouts, method, step)
            session.engine.load(learner.updates, learner.policy.model.named_parameters())
        with clock("record"):
            seen = describe(drawn.judged, drawn.sampled) | divergence(rollouts) | drawn.counts | method.state
            metrics = {"step": step, "kind": "train"} | seen | updated
            session.method = method.after(rollouts, steering_divergence(method, metrics))
            record(session, step, drawn, metrics)
        timing = clock.timing(step, metrics["tokens"] + metrics.get("greedy_tokens", 0))
        session.run.write(session.run.timing, timing)
        session.observer.step(step, recipe.training.steps, metrics, timing)
        if session.validation_due(step):
            session.evaluate(step, "validation", recipe.evaluation.validation_problems)
        if step == recipe.training.steps and recipe.evaluation.test_problems:
            session.evaluate(step, "test", recipe.evaluation.test_problems)
        if session.checkpoint_due(step):
            session.save(step)


def record(session: Session, step: int, drawn: Drawn, metrics: dict[str, Any]) -> None:
    """Write down a step: its line, and everything that was sampled for it."""
    session.run.write(session.run.metrics, metrics)
    for split, sampled in (("train", drawn.sampled), ("greedy", drawn.greedy)):
        if sampled is not None:
            session.run.write_rollouts(
                step, split, sampled.prompts(), sampled.completions, sampled.outcomes, sampled.texts
            )


def steering_divergence(method: Method, metrics: dict[str, Any]) -> float | None:
    """What steers a KL coefficient, by k3: never negative, whatever the batch."""
    if method.kl is None:
        return None
    measured: float | None = metrics.get(
        "kl_old_policy" if method.kl.against == "old" else "kl_policy_reference_k3"
    )
    return measured


def describe(judged: Rollouts, sampled: Sampled) -> dict[str, float]:
    """What the completions of a step were like, before the update."""
    rewards = sampled.rewards()
    out = sampled.summary()
    out["reward_mean"] = statistics.fmean(rewards) if rewards else math.nan
    out["reward_std"] = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
    out["groups_without_signal"] = groups_without_signal(judged)
    return out


def divergence(rollouts: Rollouts) -> dict[str, float]:
    """How far the policy was from the reference on the rows that train: sums over tokens, means over sequences.

    Rows without a reward do not train, and must not steer.
    """
    if rollouts.reference_logprobs is None:
        return {}
    mask = rollouts.mask & rollouts.valid.unsqueeze(1)
    sequences = max(int(mask.any(1).sum()), 1)
    pair = (rollouts.behaviour_logprobs, rollouts.reference_logprobs)
    return {
        f"kl_policy_reference_{name}": float(masked_sum(estimator(*pair), mask)) / sequences
        for name, estimator in (("k1", k1), ("k3", k3))
    }


def groups_without_signal(rollouts: Rollouts) -> int:
    """Groups whose valid outcomes are all equal, or fewer than two: their comparison tells nothing of the task."""
    count = 0
    for group in torch.unique(rollouts.groups).tolist():
        rewards = rollouts.outcome_rewards[(rollouts.groups == group) & rollouts.valid]
        count += len(rewards) < 2 or bool((rewards == rewards[0]).all())
    return count
