"""`rung quickstart`, its two runs made small; the whole of it is among the slow tests."""

import re
from pathlib import Path
from typing import Any

import pytest

from rung import api
from tests.tiny import metrics, rollouts, rung

SMALL = {
    "addition-sft": ["training.steps=20", "evaluation.every=10", "evaluation.validation_problems=20"],
    "addition-rloo": ["training.steps=3", "evaluation.every=0", "rollout.prompts_per_step=4"],
}
SIZES = ["scratch.hidden_size=32", "scratch.intermediate_size=64", "scratch.layers=1", "scratch.heads=2"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real calls, with a few settings over the shipped recipes."""
    real = api.train

    def train(recipe: str, overrides: list[str], **others: Any) -> api.Result:
        words = [*overrides, *SMALL[recipe], "evaluation.test_problems=40"]
        words += [*SIZES, "scratch.key_value_heads=2"] if recipe == "addition-sft" else []
        return real(recipe, words, **others)

    monkeypatch.setattr(api, "train", train)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("small")
def test_it_shows_before_and_after_side_by_side_and_what_to_try_next() -> None:
    answer = rung("quickstart", "--seed", "5", "--threads", "1")
    assert (answer.code, answer.err) == (0, "")
    run = Path("runs/quickstart-rloo")
    before, after = (line for line in metrics(run, "eval") if line["split"] == "test")
    for line in (before, after):
        low, high = line["reward_low"], line["reward_high"]
        assert f"{line['reward_mean']:.1%} [{low:.1%}, {high:.1%}]" in answer.out
    assert re.search(rf"KL\(policy‖reference\).*0 +{after['kl_policy_reference']:.2f}", answer.out)
    shown = re.findall(r"^ *(\d+\+\d+=) +(\d+) +(\S*) ?([✓✗]) +(\S*) ?([✓✗])", answer.out, re.MULTILINE)
    assert len(shown) == 6
    for prompt, right, old, old_mark, new, new_mark in shown:
        assert str(sum(map(int, prompt[:-1].split("+")))) == right
        stored = rollouts(run, "completion, reward", f"split = 'test' AND prompt = '{prompt}'")
        assert [text for text, _ in stored] == [old, new]
        assert [mark == "✓" for mark in (old_mark, new_mark)] == [reward == 1.0 for _, reward in stored]
    commands = [
        line.split("#")[0].strip() for line in answer.out.splitlines() if " train addition-rloo" in line
    ]
    assert any("model=runs/quickstart-sft" in command and "method=grpo" in command for command in commands)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", answer.out)


@pytest.mark.usefixtures("small")
def test_a_second_one_goes_into_folders_of_its_own() -> None:
    assert rung("quickstart", "--threads", "1").code == 0
    first = (Path("runs/quickstart-rloo") / "metrics.jsonl").read_bytes()
    answer = rung("quickstart", "--threads", "1")
    assert answer.code == 0
    assert "model=runs/quickstart-sft-2" in answer.out
    assert (Path("runs/quickstart-rloo") / "metrics.jsonl").read_bytes() == first
    assert (
        Path("runs/quickstart-rloo-2") / "metrics.jsonl"
    ).read_bytes() == first  # the same seed, the same numbers


def test_interrupting_it_ends_with_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "train", interrupt)
    answer = rung("quickstart")
    assert answer.code == 130
    assert "interrupted" in answer.err
    assert "Traceback" not in answer.err
