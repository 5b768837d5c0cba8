"""What a task is: problems in three splits, and a judge."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:  # it brings torch, and problems are looked at without
    from rung.batch import Outcome

Split = Literal["train", "validation", "test"]
Message = dict[str, str]


@dataclass(frozen=True)
class Problem:
    """One prompt and what its judge needs.

    Attributes:
        row: a number that identifies the problem in its task, whatever the split. Sampling randomness depends on it.
        prompt: plain text for models without a chat template, or chat messages.
        reference: the answer as the task knows it; any JSON value.
    """

    row: int
    prompt: str | tuple[Message, ...]
    reference: Any


class Task(Protocol):
    """A source of problems and rewards. The same judge serves training and evaluation."""

    name: str

    def problems(self, split: Split) -> Sequence[Problem]:
        """All problems of a split, in a fixed order. A problem is in one split only."""
        ...

    def reward(self, problem: Problem, completion: str) -> "Outcome":
        """Judge one completion's text (its end token not included)."""
        ...

    def answer(self, problem: Problem) -> str | None:
        """A completion that deserves the full reward, for supervised fine-tuning; None if there is none."""
        ...


def judged(task: Task, problem: Problem, completion: str) -> "Outcome":
    """What a task's judge says of a completion's text. A judge that fails gives an error, and never a reward of 0."""
    from rung.batch import Outcome

    try:
        return task.reward(problem, completion)
    except Exception as error:  # a judge may fail in any way
        return Outcome("error", message=f"{type(error).__name__}: {error}")


def split_of(key: str, *, validation: int, test: int) -> Split:
    """Which split a problem belongs to, by a hash of its content: in percent, the rest is for training.

    >>> split_of("2+3", validation=0, test=100)
    'test'
    """
    bucket = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 100
    if bucket < test:
        return "test"
    return "validation" if bucket < test + validation else "train"
