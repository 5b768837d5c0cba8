"""`rung eval`: mean reward, pass@k and paired differences on held-out problems."""

import dataclasses
import itertools
import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

import rung as package
from rung import api
from rung.batch import Outcome
from rung.errors import InvalidInput
from rung.models import loading
from rung.tasks import Addition, Problem
from rung.training.held_out import Evaluation
from tests.tiny import TINY_SIZES, metrics, rl_recipe, rung, sft_run

TOY = Evaluation(
    model="toy",
    task="addition",
    rows=(3, 5, 8),
    rewards=((1.0, 0.0, 0.0), (1.0, 0.5, 1.0), (0.25, None, 0.0)),
    length_mean=2.0,
    stop_fraction=1.0,
    max_new_tokens=4,
    temperature=1.0,
    seed=0,
)


@pytest.fixture(autouse=True)
def _easier(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model is seldom right: 1 for the first digit, ½ for as many digits."""

    def reward(self: Addition, problem: Problem, completion: str) -> Outcome:
        right = str(problem.reference)
        return Outcome("reward", 1.0 if completion[:1] == right[0] else 0.5 * (len(completion) == len(right)))

    monkeypatch.setattr(Addition, "reward", reward)


def evaluated(*words: object) -> dict[str, Any]:
    answer = rung("eval", sft_run(), "addition", "--json", *words)
    assert (answer.code, answer.err) == (0, "")
    found: dict[str, Any] = json.loads(answer.out)
    return found


def test_a_mean_is_over_problems_and_what_was_not_judged_counts_nowhere() -> None:
    """Problem means 1/3, 5/6 and 1/8 (of two samples)."""
    means = [1 / 3, 5 / 6, 1 / 8]
    half = 1.959964 * statistics.stdev(means) / math.sqrt(3)
    mean = sum(means) / 3
    assert TOY.reward() == pytest.approx((mean, mean - half, mean + half), abs=1e-12)
    assert TOY.reward_errors == 1


def test_pass_at_k_is_over_problems_that_were_judged_in_full() -> None:
    """Of 3 samples 1 and 2 pass: pass@1 (1/3 + 2/3)/2, pass@2 (2/3 + 1)/2, pass@3 1. A reward of 0.5 is no pass."""
    assert [TOY.pass_at(k)[0] for k in (1, 2, 3)] == pytest.approx([1 / 2, 5 / 6, 1.0], abs=1e-12)
    assert TOY.pass_at(2)[2] == 1.0  # 5/6 + 1.96 · (1/6) is more than a probability can be
    for k in (0, 4):
        with pytest.raises(InvalidInput, match="from 1 to 3"):
            TOY.pass_at(k)


def test_a_difference_is_paired_by_problem() -> None:
    """Differences 1/3 − 1, 5/6 − 0; the third problem has no reward on the other side."""
    other = dataclasses.replace(TOY, rewards=((1.0,) * 3, (0.0,) * 3, (None,) * 3))
    values = [-2 / 3, 5 / 6]
    half = 1.959964 * statistics.stdev(values) / math.sqrt(2)
    assert TOY.minus(other) == pytest.approx((1 / 12, 1 / 12 - half, 1 / 12 + half), abs=1e-12)
    assert other.minus(TOY)[0] == pytest.approx(-1 / 12, abs=1e-12)
    for change in ({"rows": (3, 5, 9)}, {"task": "extraction"}):
        with pytest.raises(InvalidInput, match="same problems"):
            TOY.minus(dataclasses.replace(TOY, **change))


def test_pairing_narrows_the_interval_of_what_both_find_hard() -> None:
    """A constant difference of ½ between problems as far apart as 0 and ½ is known exactly."""
    low, high = (
        dataclasses.replace(TOY, rewards=tuple((x + up,) for x in (0.0, 0.25, 0.5))) for up in (0.0, 0.5)
    )
    assert high.minus(low) == pytest.approx((0.5, 0.5, 0.5), abs=1e-12)


def test_it_gives_the_runs_own_last_evaluation(tmp_path: Path) -> None:
    """Same problems, seed, cap and temperature: the same completions, by another road."""
    run = api.train(
        rl_recipe(tmp_path), ["rollout.temperature=0.7", "training.steps=1"], root=tmp_path
    ).folder
    line = metrics(run, "eval")[-1]
    found = rung("eval", run, "addition", "--problems", "12", "--seed", "3", "--json")
    (model,) = json.loads(found.out)["models"]
    assert (model["temperature"], model["max_new_tokens"]) == (0.7, 4)
    for name in ("mean", "low", "high"):
        assert model["reward"][name] == line[f"reward_{name}"]
    assert model["length_mean"] == line["length_mean"]


def test_more_samples_keep_the_first_and_give_pass_at_k() -> None:
    (one,), (three,) = (evaluated("--problems", 40, "--samples", k)["models"] for k in (1, 3))
    assert [row[:1] for row in three["rewards"]] == one["rewards"]
    assert list(three["pass_at_k"]) == ["1", "2", "3"]
    solved = [any(r == 1.0 for r in row) for row in three["rewards"]]
    pairs = [
        statistics.mean(float(1.0 in two) for two in itertools.combinations(row, 2))
        for row in three["rewards"]
    ]
    single = [statistics.mean(float(r == 1.0) for r in row) for row in three["rewards"]]
    assert 0 < sum(solved) < 40
    for k, values in (("1", single), ("2", pairs), ("3", solved)):
        assert three["pass_at_k"][k]["mean"] == pytest.approx(statistics.mean(map(float, values)), abs=1e-12)
    assert three["reward"]["mean"] == pytest.approx(statistics.mean(map(statistics.mean, three["rewards"])))


def test_against_another_model_both_means_and_the_difference(tmp_path: Path) -> None:
    """The other one is untrained; the difference is recomputed from the rewards."""
    loading.scratch(Addition.characters, seed=1, **TINY_SIZES).save(tmp_path / "other")
    found = evaluated("--problems", 30, "--samples", 2, "--against", tmp_path / "other")
    one, two = found["models"]
    assert two["max_new_tokens"] == one["max_new_tokens"] == 4
    values = [
        statistics.mean(a) - statistics.mean(b) for a, b in zip(one["rewards"], two["rewards"], strict=True)
    ]
    mean, half = statistics.mean(values), 1.959964 * statistics.stdev(values) / math.sqrt(30)
    assert mean > 0
    assert [found["difference"][k] for k in ("mean", "low", "high")] == pytest.approx(
        [mean, mean - half, mean + half], abs=1e-12
    )
    swapped = api.evaluate(tmp_path / "other", "addition", problems=30, samples=2, max_new_tokens=4)
    assert [list(row) for row in swapped.rewards] == two["rewards"]


def test_the_plain_form_shows_the_same_numbers() -> None:
    words = ("--problems", 30, "--samples", 2, "--against", sft_run())
    (one, _) = evaluated(*words)["models"]
    answer = rung("eval", sft_run(), "addition", *words)
    assert answer.code == 0
    reward, second = one["reward"], one["pass_at_k"]["2"]
    assert answer.out.startswith("addition: 30 test problems, 2 samples of each, at most 4 tokens, seed 0.")
    assert f"reward      {reward['mean']:.1%} [{reward['low']:.1%}, {reward['high']:.1%}]\n" in answer.out
    assert f"pass@2      {second['mean']:.1%} [{second['low']:.1%}, {second['high']:.1%}]\n" in answer.out
    assert "difference  +0.0 points [+0.0, +0.0], the first minus the second, paired" in answer.out


def test_what_is_not_known_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = dataclasses.replace(TOY, rows=(3,), rewards=((None,),))
    monkeypatch.setattr(api, "evaluate", lambda *_, **__: nothing)
    found = evaluated("--against", sft_run())
    assert found["difference"] == found["models"][0]["reward"] == {"mean": None, "low": None, "high": None}
    answer = rung("eval", sft_run(), "addition", "--against", sft_run())
    assert "reward      unknown" in answer.out
    assert "errors      1 completions got no reward" in answer.out
    assert "difference  unknown" in answer.out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["additon"], 'task "additon" is not known'),
        (["extraction"], "has no chat template"),
        (["addition", "--temperature", "0"], "must be positive"),
        (["addition", "--max-new-tokens", "64"], "lower max_new_tokens"),
        (["addition", "--against", "./nowhere"], "no such folder"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], what: str) -> None:
    answer = rung("eval", sft_run(), *words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert what in answer.err


def test_it_is_there_as_a_python_call() -> None:
    assert package.evaluate is api.evaluate
    assert len(package.evaluate(sft_run(), "addition", problems=3).rows) == 3
    for wrong in ({"problems": 0}, {"samples": 0}):
        with pytest.raises(package.errors.UsageError, match="at least"):
            package.evaluate(sft_run(), "addition", **wrong)
