"""Held-out reward with its interval, sampled at the policy's own temperature."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rung.batch import Completion, Outcome
from rung.models.loading import LanguageModel
from rung.rollout.collect import collect, requests_for
from rung.rollout.engine import Engine
from rung.tasks.base import Problem, Task, judged

Z95 = 1.959964


def interval(values: Sequence[float], *, binary: bool | None = None) -> tuple[float, float, float]:
    """Mean and 95 % interval of independent values.

    Values that are 0 or 1: Wilson's score interval (1927), sound near 0 and 1. Others: mean ± 1.96 · s/√n, which
    needs two of them. `binary` says which they are; None takes rewards for binary when all of them are 0 or 1.

    >>> [round(x, 4) for x in interval([1.0] * 8 + [0.0] * 2)]
    [0.8, 0.4902, 0.9433]
    """
    n = len(values)
    if n == 0:
        return math.nan, math.nan, math.nan
    mean = sum(values) / n
    if all(v in (0.0, 1.0) for v in values) if binary is None else binary:
        centre = (mean + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
        half = Z95 / (1 + Z95**2 / n) * math.sqrt(mean * (1 - mean) / n + Z95**2 / (4 * n * n))
        return mean, max(0.0, centre - half), min(1.0, centre + half)  # rounding could leave a −0.0 %
    if n == 1:
        return mean, math.nan, math.nan
    variance = sum((v - mean) ** 2 for v in values) / (n - 1)
    half = Z95 * math.sqrt(variance / n)
    return mean, mean - half, mean + half


@dataclass(frozen=True)
class Sampled:
    """Completions of some problems, judged."""

    problems: tuple[Problem, ...]
    completions: tuple[Completion, ...]
    texts: tuple[str, ...]
    outcomes: tuple[Outcome, ...]

    def rewards(self) -> list[float]:
        """Of those outcomes that are rewards."""
        return [o.reward for o in self.outcomes if o.reward is not None]

    def summary(self) -> dict[str, float]:
        """Means over the completions."""
        n = max(len(self.completions), 1)
        return {
            "completions": len(self.completions),
            "tokens": sum(sum(c.sampled) for c in self.completions),
            "length_mean": sum(sum(c.sampled) for c in self.completions) / n,
            "stop_fraction": sum(c.end_reason == "stop" for c in self.completions) / n,
            "reward_errors": sum(o.kind != "reward" for o in self.outcomes),
        }

    def prompts(self) -> list[tuple[int, str, object]]:
        """(row, prompt text, reference) by group, for the run's database."""
        return [(p.row, prompt_text(p), p.reference) for p in self.problems]


def prompt_text(problem: Problem) -> str:
    """A prompt for people."""
    if isinstance(problem.prompt, str):
        return problem.prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in problem.prompt)


def judge(
    task: Task,
    language: LanguageModel,
    problems: Sequence[Problem],
    completions: Sequence[Completion],
    *,
    first_group: int = 0,
) -> Sampled:
    """Decode and score completions whose groups number the problems, from `first_group` on."""
    texts = [language.decode(c.token_ids) for c in completions]
    outcomes = [
        judged(task, problems[c.group - first_group], text)
        for c, text in zip(completions, texts, strict=True)
    ]
    return Sampled(tuple(problems), tuple(completions), tuple(texts), tuple(outcomes))


def spread_over(problems: Sequence[Problem], number: int) -> list[Problem]:
    """`number` problems, evenly spread over the whole list, always the same ones."""
    if number >= len(problems):
        return list(problems)
    return [problems[i * len(problems) // number] for i in range(number)]


def evaluate_policy(
    engine: Engine,
    language: LanguageModel,
    task: Task,
    problems: Sequence[Problem],
    *,
    seed: int,
    max_new_tokens: int,
    samples: int = 1,
    on_completion: Callable[[Completion], None] | None = None,
) -> Sampled:
    """Samples of each problem. The same problems get the same randomness at every evaluation of a run."""
    requests = requests_for(
        [language.encode(p.prompt) for p in problems],
        [p.row for p in problems],
        [0] * len(problems),
        samples=samples,
        max_new_tokens=max_new_tokens,
        seed=seed,
        stream="eval",
    )
    return judge(task, language, problems, collect(engine, requests, on_completion))
