"""A model on a task's test problems: mean reward, pass@k, and the difference of two models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rung.errors import InvalidInput
from rung.training.evaluation import Sampled, interval
from rung.training.pass_at_k import pass_at_k

Estimate = tuple[float, float, float]


@dataclass(frozen=True)
class Evaluation:
    """Rewards of K samples of each of P problems. An estimate is a mean over problems with its 95 % interval.

    Samples of one problem are not independent of each other, so each problem counts as one value.

    Attributes:
        model: as it was asked for.
        task: by name.
        rows: [P] the problems, by their rows in the task.
        rewards: [P][K] of each sample; None where the judge gave no reward.
        length_mean: tokens per completion, the end token included.
        stop_fraction: completions that ended by themselves.
        max_new_tokens: the length cap.
        temperature: of the sampling.
        seed: of the sampling.
    """

    model: str
    task: str
    rows: tuple[int, ...]
    rewards: tuple[tuple[float | None, ...], ...]
    length_mean: float
    stop_fraction: float
    max_new_tokens: int
    temperature: float
    seed: int

    @property
    def samples(self) -> int:
        """K."""
        return len(self.rewards[0])

    @property
    def reward_errors(self) -> int:
        """Completions without a reward: no mean has them."""
        return sum(reward is None for row in self.rewards for reward in row)

    def means(self) -> dict[int, float]:
        """Mean reward by row, of the problems with at least one reward."""
        judged = {
            row: [reward for reward in rewards if reward is not None]
            for row, rewards in zip(self.rows, self.rewards, strict=True)
        }
        return {row: math.fsum(rewards) / len(rewards) for row, rewards in judged.items() if rewards}

    def reward(self) -> Estimate:
        """Mean reward: Wilson's interval where each problem has 0 or 1, else mean ± 1.96 · s/√P."""
        return interval(list(self.means().values()))

    def pass_at(self, k: int) -> Estimate:
        """pass@k; a sample passes with a reward of 1. Only problems of which all K samples were judged count.

        Raises:
            InvalidInput: k < 1, or k > K.
        """
        if not 1 <= k <= self.samples:
            raise InvalidInput(
                f"pass@{k} cannot be told from {self.samples} samples of a problem: take k from 1 to {self.samples}"
            )
        values = [
            pass_at_k(len(row), sum(reward == 1.0 for reward in row), k)
            for row in self.rewards
            if None not in row
        ]
        mean, low, high = interval(values)
        return mean, max(0.0, low), min(1.0, high)

    def minus(self, other: "Evaluation") -> Estimate:
        """Mean over the problems of this model's reward minus the other's, mean ± 1.96 · s/√P of the differences.

        Paired: what makes a problem hard is hard for both, and cancels. Where no problem tells the models apart the
        interval has width 0, which does not say that none would. Problems that only one of them has a reward for are
        left out.

        Raises:
            InvalidInput: other problems.
        """
        if (self.task, self.rows) != (other.task, other.rows):
            raise InvalidInput("a paired difference needs both models on the same problems of the same task")
        own, others = self.means(), other.means()
        return interval([own[row] - others[row] for row in own if row in others], binary=False)


def of_samples(sampled: Sampled, samples: int) -> tuple[tuple[float | None, ...], ...]:
    """[P][K] rewards of judged completions, which are ordered by problem and sample."""
    flat: Sequence[float | None] = [outcome.reward for outcome in sampled.outcomes]
    return tuple(tuple(flat[i : i + samples]) for i in range(0, len(flat), samples))
