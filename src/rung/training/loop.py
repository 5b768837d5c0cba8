"""The loop: collect, reward, annotate, credit and update, record."""

import math
import statistics
from typing import Any

import torch

from rung.batch import Rollouts, build_rollouts
from rung.kl import k1, k3
from rung.masked import masked_sum
from rung.rollout.collect import collect, requests_for
from rung.training.evaluation import Sampled, judge
from rung.training.order import rows_at
from rung.training.session import Clock, Session


def train_policy(session: Session) -> None:
    """Train with a policy-gradient method from the session's start to its last step."""
    recipe, learner = session.recipe, session.learner
    method = recipe.build_method()
    if session.start == 0 and recipe.evaluation.test_problems:
        session.evaluate(0, "test", recipe.evaluation.test_problems)
    for step in range(session.start + 1, recipe.training.steps + 1):
        clock = Clock()
        with clock("collect"):
            problems, completions = _collect(session, step)
        with clock("reward"):
            sampled = judge(session.task, session.language, problems, completions)
        with clock("annotate"):
            rollouts = learner.annotate(build_rollouts(completions, sampled.outcomes), method.needs)
            if step == session.start + 1:
                learner.compare_sampler(rollouts).check(recipe.rollout.mismatch_tolerance)
        with clock("update"):
            metrics = learner.step(rollouts, method, step)
            session.engine.load(learner.updates, learner.policy.model.named_parameters())
        with clock("record"):
            metrics = {"step": step, "kind": "train"} | describe(rollouts, sampled) | metrics
            session.run.write(session.run.metrics, metrics)
            session.run.write_rollouts(
                step, "train", sampled.prompts(), completions, sampled.outcomes, sampled.texts
            )
        timing = clock.timing(step, metrics["tokens"])
        session.run.write(session.run.timing, timing)
        session.observer.step(step, recipe.training.steps, metrics, timing)
        if session.validation_due(step):
            session.evaluate(step, "validation", recipe.evaluation.validation_problems)
        if step == recipe.training.steps and recipe.evaluation.test_problems:
            session.evaluate(step, "test", recipe.evaluation.test_problems)
        if session.checkpoint_due(step):
            session.save(step)


def _collect(session: Session, step: int) -> tuple[list[Any], list[Any]]:
    """The problems of a step and their completions, ordered by group and sample."""
    settings, train = session.recipe.rollout, session.task.problems("train")
    number = settings.prompts_per_step
    rows, visits = rows_at(range((step - 1) * number, step * number), len(train), session.recipe.seed)
    problems = [train[row] for row in rows]
    requests = requests_for(
        [session.language.encode(p.prompt) for p in problems],
        [p.row for p in problems],
        visits,
        samples=settings.samples_per_prompt,
        max_new_tokens=settings.max_new_tokens,
        seed=session.recipe.seed,
        stream="train",
    )
    return problems, collect(session.engine, requests)


def describe(rollouts: Rollouts, sampled: Sampled) -> dict[str, float]:
    """What the rollouts of a step were like, before the update."""
    rewards = sampled.rewards()
    out = sampled.summary()
    out["reward_mean"] = statistics.fmean(rewards) if rewards else math.nan
    out["reward_std"] = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
    out["groups_without_signal"] = groups_without_signal(rollouts)
    if rollouts.reference_logprobs is not None:
        arguments = (rollouts.behaviour_logprobs, rollouts.reference_logprobs)
        sequences = max(int(rollouts.mask.any(1).sum()), 1)
        for name, estimator in (("k1", k1), ("k3", k3)):
            total = float(masked_sum(estimator(*arguments), rollouts.mask))
            out[f"kl_policy_reference_{name}"] = total / sequences
    return out


def groups_without_signal(rollouts: Rollouts) -> int:
    """Groups whose valid outcomes are all equal, or fewer than two: their comparison tells nothing of the task."""
    count = 0
    for group in torch.unique(rollouts.groups).tolist():
        rewards = rollouts.outcome_rewards[(rollouts.groups == group) & rollouts.valid]
        count += len(rewards) < 2 or bool((rewards == rewards[0]).all())
    return count
