"""What is counted before a run: at most so much, whatever a method samples beside its completions."""

from pathlib import Path

import pytest

from rung import api
from rung.training.estimate import Estimate, estimate
from tests.tiny import rl_recipe


def plan(tmp_path: Path, *words: str) -> Estimate:
    return estimate(api.prepared(rl_recipe(tmp_path), ["training.steps=3", *words]))


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["method=rloo"], 3 * 8 * 6),
        (["method=remax"], 3 * (8 * 6 + 8)),
        (["method=dapo"], 3 * 4 * 8 * 6),
        (["method=dapo", "rollout.max_rounds=2"], 3 * 2 * 8 * 6),
    ],
    ids=str,
)
def test_greedy_completions_and_further_rounds_are_counted(
    words: list[str], completions: int, tmp_path: Path
) -> None:
    made = plan(tmp_path, *words)
    assert (made.completions, made.tokens) == (completions, 4 * completions)


def test_a_trust_region_has_its_vectors_in_place_of_the_optimizers_moments(tmp_path: Path) -> None:
    """Old weights, gradient, solution, residual, direction and product: six vectors of four bytes a parameter."""
    made = plan(tmp_path, "method=trpo")
    assert made.memory["trust region"] == 6 * 4 * made.parameters
    assert "optimizer" not in made.memory
    assert plan(tmp_path).memory["optimizer"] == 2 * 4 * made.parameters


def test_a_reference_is_counted_where_a_method_has_one(tmp_path: Path) -> None:
    assert "reference" in plan(tmp_path).memory
    assert "reference" not in plan(tmp_path, "method=ppo-penalty", "training.epochs=2").memory
