"""Rewards and data of the runs of the small model."""

from collections.abc import Sequence
from typing import Any

import pytest

from rung.batch import Outcome
from rung.tasks import Problem
from rung.tasks.addition import Addition
from tests.tiny import sft_run


@pytest.fixture
def many_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards of several values, seldom all equal: the small model's answers are hardly ever right."""

    def reward(self: Addition, problem: Problem, completion: str) -> Outcome:
        return Outcome("reward", 0.25 * len(set(completion)) + (completion[:1] == str(problem.reference)[:1]))

    monkeypatch.setattr(Addition, "reward", reward)


@pytest.fixture
def first_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 if the first digit is right, else 0: every other group is mixed, the others all wrong."""

    def reward(self: Addition, problem: Problem, completion: str) -> Outcome:
        return Outcome("reward", float(completion[:1] == str(problem.reference)[:1]))

    monkeypatch.setattr(Addition, "reward", reward)


@pytest.fixture
def two_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 if the first two digits are right, else 0: one group of six is mixed."""

    def reward(self: Addition, problem: Problem, completion: str) -> Outcome:
        return Outcome("reward", float(completion[:2] == str(problem.reference)[:2]))

    monkeypatch.setattr(Addition, "reward", reward)


@pytest.fixture
def small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty training problems: an epoch of eight prompts a step ends every fourth step."""
    sft_run()  # on all of them, whichever test asks for it first
    whole = Addition.problems

    def few(self: Addition, split: Any) -> Sequence[Problem]:
        return whole(self, split)[:30]

    monkeypatch.setattr(Addition, "problems", few)
