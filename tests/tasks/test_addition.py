"""Two-digit addition: its splits, its judge and its answers."""

import pytest

from rung.errors import UsageError
from rung.tasks import Problem, load_task
from rung.tasks.addition import Addition
from rung.tasks.base import split_of

SPLITS = ("train", "validation", "test")


def test_every_sum_is_in_exactly_one_split() -> None:
    prompts = [problem.prompt for split in SPLITS for problem in Addition().problems(split)]
    assert len(prompts) == 10_000
    assert set(prompts) == {f"{a}+{b}=" for a in range(100) for b in range(100)}


def test_the_splits_have_about_the_sizes_they_claim() -> None:
    """A tenth and a twentieth of 10,000, to three binomial deviations: √(10,000 · 0.1 · 0.9) = 30 and √475 = 21.8."""
    sizes = {split: len(Addition().problems(split)) for split in SPLITS}
    assert abs(sizes["test"] - 1000) < 90
    assert abs(sizes["validation"] - 500) < 66


@pytest.mark.parametrize("split", SPLITS)
def test_rows_rise_and_name_the_problem(split: str) -> None:
    problems = Addition().problems(split)  # type: ignore[arg-type]
    assert [p.row for p in problems] == sorted({p.row for p in problems})
    for p in problems:
        a, b = divmod(p.row, 100)
        assert (p.prompt, p.reference) == (f"{a}+{b}=", a + b)


def test_the_split_is_by_content_and_never_moves() -> None:
    """`printf 2+3 | sha256sum` begins with 5d4b463cb15d83aa, which leaves 14 when divided by 100."""
    assert split_of("2+3", validation=0, test=14) == "train"
    assert split_of("2+3", validation=1, test=14) == "validation"
    assert split_of("2+3", validation=0, test=15) == "test"


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("65", 1.0),
        ("65 ", 0.0),
        ("065", 0.0),
        ("6", 0.0),
        ("656", 0.0),
        ("", 0.0),
        ("+65", 0.0),
        ("６５", 0.0),
    ],
)
def test_only_the_right_digits_are_rewarded(completion: str, reward: float) -> None:
    outcome = Addition().reward(Problem(758, "7+58=", 65), completion)
    assert (outcome.kind, outcome.reward) == ("reward", reward)


def test_the_answer_gets_the_full_reward() -> None:
    task = Addition()
    assert all(task.reward(p, task.answer(p)).reward == 1.0 for p in task.problems("test"))
    assert {len(task.answer(p)) for p in task.problems("train")} == {1, 2, 3}


def test_an_unknown_task_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r'task "sums" is not known; there is .*addition'):
        load_task("sums")
