"""Held-out rewards: their interval, the problems, and the same randomness at every evaluation."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.batch import Outcome
from rung.models import loading
from rung.rollout.local import LocalEngine
from rung.tasks.addition import Addition
from rung.training.evaluation import Sampled, evaluate_policy, interval, prompt_text, spread_over
from tests.batches import completion
from tests.tiny import TINY_SIZES


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Newcombe 1998, Statistics in Medicine 17, table I, method 3 (score without continuity correction).
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0000, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_zeros_and_ones_get_wilsons_interval_as_published(
    successes: int, n: int, low: float, high: float
) -> None:
    mean, *bounds = interval([1.0] * successes + [0.0] * (n - successes))
    assert mean == successes / n
    assert bounds == pytest.approx([low, high], abs=5e-5)


@given(st.integers(1, 400), st.integers(0, 400))
def test_wilsons_bounds_solve_its_equation(n: int, successes: int) -> None:
    """Wilson 1927: the bounds are the p with |p̂ − p| = z √(p(1 − p)/n)."""
    successes = min(successes, n)
    mean, low, high = interval([1.0] * successes + [0.0] * (n - successes))
    for bound in (low, high):
        z = 1.959964 * math.sqrt(max(bound * (1 - bound), 0.0) / n)
        assert abs(mean - bound) == pytest.approx(z, abs=1e-7)
    assert 0 <= low <= mean + 1e-12
    assert mean - 1e-12 <= high <= 1


def test_other_rewards_get_the_normal_interval() -> None:
    """Mean 2; deviations −2, −1, 0, 3 give s² = 14/3; half = 1.959964 · √(14/3 / 4)."""
    half = 1.959964 * math.sqrt(14 / 12)
    assert interval([0.0, 1.0, 2.0, 5.0]) == pytest.approx((2.0, 2.0 - half, 2.0 + half), abs=1e-12)


def test_one_reward_has_a_mean_and_no_interval_and_none_has_neither() -> None:
    """One value says nothing of its spread: an interval of width 0 would claim certainty."""
    mean, *ends = interval([0.25])
    assert mean == 0.25
    assert all(math.isnan(x) for x in ends)
    assert all(math.isnan(x) for x in interval([]))


@given(st.integers(1, 300), st.integers(1, 300))
def test_held_out_problems_are_spread_over_the_whole_split(size: int, number: int) -> None:
    chosen = spread_over(range(size), number)  # type: ignore[arg-type]
    assert len(chosen) == min(number, size)
    assert chosen == sorted(set(chosen))
    assert chosen[0] == 0
    assert (
        max(b - a for a, b in zip([*chosen, size], [*chosen[1:], size], strict=False))
        <= size // len(chosen) + 1
    )


def test_means_leave_out_what_was_not_judged_and_count_it() -> None:
    """Case H10: a failed judge is counted and enters no mean."""
    rows = [completion([1, 2, 3], sampled=[1, 0, 1]), completion([1]), completion([4, 5])]
    outcomes = (Outcome("reward", 1.0), Outcome("error"), Outcome("abstain"))
    sampled = Sampled((), tuple(rows), ("", "", ""), outcomes)
    assert sampled.rewards() == [1.0]
    expected = {"completions": 3, "tokens": 5, "length_mean": 5 / 3, "stop_fraction": 1.0, "reward_errors": 2}
    assert sampled.summary() == expected


def test_messages_are_written_for_people() -> None:
    problem = Addition().problems("test")[0]
    assert prompt_text(problem) == problem.prompt
    chat = ({"role": "system", "content": "Add."}, {"role": "user", "content": "1+1"})
    assert prompt_text(type(problem)(0, chat, 2)) == "system: Add.\nuser: 1+1"


def test_the_same_problems_get_the_same_randomness_whatever_else_is_sampled() -> None:
    """Nothing but key and logits decides a token: not the place in the batch, the wave, or earlier evaluations."""
    language = loading.scratch(Addition.characters, seed=1, max_position_embeddings=64, **TINY_SIZES)
    problems = spread_over(Addition().problems("test"), 12)

    def texts(chosen: list[int], *, rows: int, seed: int = 0) -> dict[int, str]:
        engine = LocalEngine(language.model, language.end_ids, max_rows=rows)
        sampled = evaluate_policy(
            engine, language, Addition(), [problems[i] for i in chosen], seed=seed, max_new_tokens=6
        )
        return dict(zip(chosen, sampled.texts, strict=True))

    everything = texts(list(range(12)), rows=256)
    torch.rand(3)
    assert texts(list(range(12)), rows=5) == everything
    backwards = texts(list(range(11, 3, -1)), rows=3)
    assert backwards == {i: everything[i] for i in backwards}
    assert texts(list(range(12)), rows=256, seed=1) != everything
