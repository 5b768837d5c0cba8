"""What a step samples: the next prompts in line, more of them where some are left out, and greedy completions."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from rung.batch import Completion, Rollouts, build_rollouts
from rung.masked import select
from rung.methods.method import Method, call_by_name
from rung.notation import BOOKKEEPING
from rung.rollout.collect import collect, requests_for
from rung.tasks import Problem
from rung.training.evaluation import Sampled, judge
from rung.training.order import rows_at
from rung.training.session import Clock, Session


@dataclass(frozen=True)
class Drawn:
    """What a step sampled and judged.

    Attributes:
        sampled: everything, by group and sample.
        judged: everything, as tensors.
        rollouts: the rows of the groups that train.
        greedy: the greedy completion of each prompt that trains, or None.
        counts: what is logged of the drawing.
    """

    sampled: Sampled
    judged: Rollouts
    rollouts: Rollouts
    greedy: Sampled | None = None
    counts: dict[str, float] = field(default_factory=dict)


def draw(session: Session, clock: Clock, method: Method) -> Drawn:
    """Sample and judge the completions of a step; `session.position` moves past the prompts drawn."""
    settings = session.recipe.rollout
    sampled = _next_prompts(session, clock, 0)
    judged = build_rollouts(sampled.completions, sampled.outcomes)
    drawn = Drawn(sampled, judged, judged)
    if method.select is not None:
        rounds, passed = 1, _selected(method, judged)
        while len(passed) < settings.prompts_per_step and rounds < settings.max_rounds:
            sampled = _together(sampled, _next_prompts(session, clock, len(sampled.problems)))
            judged = build_rollouts(sampled.completions, sampled.outcomes)
            rounds, passed = rounds + 1, _selected(method, judged)
        number = len(sampled.problems)
        counts = {"groups_drawn": number, "groups_dropped": number - len(passed)}
        if not passed:
            session.observer.note(
                f"none of {number} groups passed the selection of {method.name}, so this step has no update"
            )
        trained = (passed or list(range(number)))[: settings.prompts_per_step]
        drawn = Drawn(sampled, judged, _of_groups(sampled, trained), counts=counts)
    return _with_greedy(session, clock, drawn) if "greedy" in method.needs else drawn


def _next_prompts(session: Session, clock: Clock, first_group: int) -> Sampled:
    """The next prompts of the data with their completions, judged; groups are numbered from `first_group`."""
    settings, train = session.recipe.rollout, session.task.problems("train")
    number = settings.prompts_per_step
    with clock("collect"):
        positions = range(session.position, session.position + number)
        rows, visits = rows_at(positions, len(train), session.recipe.seed)
        session.position += number
        problems = [train[row] for row in rows]
        requests = requests_for(
            [session.language.encode(p.prompt) for p in problems],
            [p.row for p in problems],
            visits,
            samples=settings.samples_per_prompt,
            max_new_tokens=settings.max_new_tokens,
            seed=session.recipe.seed,
            stream="train",
            first_group=first_group,
        )
        completions = collect(session.engine, requests)
    with clock("reward"):
        return judge(session.task, session.language, problems, completions, first_group=first_group)


def _together(one: Sampled, other: Sampled) -> Sampled:
    return Sampled(
        one.problems + other.problems,
        one.completions + other.completions,
        one.texts + other.texts,
        one.outcomes + other.outcomes,
    )


def _selected(method: Method, judged: Rollouts) -> list[int]:
    """The groups of which the method selects a row, in the order in which they were drawn."""
    assert method.select is not None
    available = {"returns": judged.outcome_rewards, "groups": judged.groups, "valid": judged.valid}
    rows = judged.valid & call_by_name(method.select, available)
    return sorted(set(judged.groups[rows].tolist()))


def _of_groups(sampled: Sampled, groups: Sequence[int]) -> Rollouts:
    wanted = set(groups)
    kept = [i for i, completion in enumerate(sampled.completions) if completion.group in wanted]
    return build_rollouts([sampled.completions[i] for i in kept], [sampled.outcomes[i] for i in kept])


def _with_greedy(session: Session, clock: Clock, drawn: Drawn) -> Drawn:
    """One greedy completion of each prompt that trains, judged like the others.

    Where that judgement failed there is nothing to subtract, and no number stands in for it: the rows of the prompt
    are left out.
    """
    groups = sorted(set(drawn.rollouts.groups.tolist()))
    problems: list[Problem] = [drawn.sampled.problems[group] for group in groups]
    with clock("collect"):
        requests = requests_for(
            [session.language.encode(p.prompt) for p in problems],
            [p.row for p in problems],
            [0] * len(problems),
            samples=1,
            max_new_tokens=session.recipe.rollout.max_new_tokens,
            seed=session.recipe.seed,
            stream="train",
            greedy=True,
        )
        completions: list[Completion] = collect(session.engine, requests)
    with clock("reward"):
        greedy = judge(session.task, session.language, problems, completions)
    rewards = {group: outcome.reward for group, outcome in zip(groups, greedy.outcomes, strict=True)}
    of_row = [rewards[group] for group in drawn.rollouts.groups.tolist()]
    known = torch.tensor([reward is not None for reward in of_row])
    rollouts = replace(
        drawn.rollouts,
        valid=drawn.rollouts.valid & known,
        outcome_rewards=select(drawn.rollouts.outcome_rewards, known),
        greedy_rewards=torch.tensor([reward or 0.0 for reward in of_row], dtype=BOOKKEEPING),
    )
    counts = drawn.counts | {
        "greedy_reward_mean": statistics.fmean(greedy.rewards()) if greedy.rewards() else math.nan,
        "greedy_errors": len(groups) - len(greedy.rewards()),
        "greedy_tokens": sum(len(c.token_ids) for c in completions),
    }
    return replace(drawn, rollouts=rollouts, greedy=greedy, counts=counts)
