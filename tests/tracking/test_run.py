"""A run on disk: every text survives, every line is JSON, a kill costs nothing, no folder is written over."""

import json
import math
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.batch import Completion, Outcome
from rung.errors import UsageError
from rung.tracking.run import Run, environment, storable
from tests.batches import completion
from tests.tiny import rollouts

AWKWARD = [
    "ok \ud83d end",
    "line\u2028separator",
    "a\x00b",
    "\x00",
    "\udc80half of a character",
    "tab\tnew\nline",
    "é漢🙂",
    "",
]


def new(root: Path, name: str = "r") -> Run:
    return Run.create(root, name, 'name = "r"\n', threads=1)


def store(run: Run, texts: list[str], *, step: int = 1, outcomes: list[Outcome] | None = None) -> None:
    """Completions of one group with these texts, numbered by sample."""
    rows = [
        completion([5, 6, i], group=0, sample=i, behaviour=[-0.1, -1e-17, -math.pi])
        for i in range(len(texts))
    ]
    judged = outcomes or [Outcome("reward", 0.5)] * len(texts)
    run.write_rollouts(step, "train", [(7, "prompt " + texts[0], {"answer": texts[0]})], rows, judged, texts)


# --- texts ----------------------------------------------------------------------------------------------------------


def test_awkward_texts_are_stored_and_the_ids_are_untouched(tmp_path: Path) -> None:
    """Case H4: lone surrogates and NUL become visible escapes; everything else reads back as it was."""
    run = new(tmp_path)
    store(run, AWKWARD)
    run.close()
    rows = rollouts(run.folder, "completion, token_ids, behaviour_logprobs, sample")
    texts = [text for text, *_ in rows]
    assert texts == [
        "ok \\ud83d end", "line\u2028separator", "a\\x00b", "\\x00", "\\udc80half of a character", "tab\tnew\nline",
        "é漢🙂", "",
    ]  # fmt: skip
    for _, ids, logprobs, sample in rows:
        assert json.loads(ids) == [5, 6, sample]
        assert json.loads(logprobs) == [-0.1, -1e-17, -math.pi]  # to the last bit


def test_prompts_references_and_messages_take_any_text_too(tmp_path: Path) -> None:
    run = new(tmp_path)
    store(run, ["\ud83d\x00"], outcomes=[Outcome("error", message="judge: \ud83d\x00\u2028")])
    run.close()
    ((prompt, reference, message, outcome, reward),) = rollouts(
        run.folder, "prompt, reference, message, outcome, reward"
    )
    assert prompt == "prompt \\ud83d\\x00"
    assert json.loads(reference) == {"answer": "\ud83d\x00"}
    assert message == "judge: \\ud83d\\x00\u2028"
    assert (outcome, reward) == ("error", None)


@given(st.text(st.characters()))
def test_any_text_can_be_stored(text: str) -> None:
    stored = storable(text)
    assert "\x00" not in stored
    stored.encode("utf-8")
    assert storable(stored) == stored
    if "\x00" not in text and not any("\ud800" <= c <= "\udfff" for c in text):
        assert stored == text


def test_every_metrics_line_is_one_line_of_ascii_json(tmp_path: Path) -> None:
    run = new(tmp_path)
    for text in AWKWARD:
        run.write(run.metrics, {"step": 1, "text": text})
    lines = run.metrics.read_bytes().split(b"\n")
    assert len(lines) == len(AWKWARD) + 1
    assert lines[-1] == b""
    assert [json.loads(line)["text"] for line in lines[:-1]] == AWKWARD
    assert all(byte < 128 for line in lines for byte in line)
    assert [record["text"] for record in run.read(run.metrics)] == AWKWARD


def test_numbers_survive_and_what_is_not_finite_becomes_null(tmp_path: Path) -> None:
    run = new(tmp_path)
    record = {"step": 3, "a": 0.1 + 0.2, "b": 1e-320, "c": math.nan, "d": -math.inf, "e": 7}
    run.write(run.metrics, record)
    assert run.read(run.metrics) == [record | {"c": None, "d": None}]
    assert json.loads(run.metrics.read_text("utf-8"), parse_constant=pytest.fail)["c"] is None


def test_it_works_where_the_locale_knows_no_unicode(tmp_path: Path) -> None:
    """Case H4 in a process of its own: locale C, no UTF-8 mode."""
    script = f"""
import locale, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
assert locale.getpreferredencoding(False).lower() not in ("utf-8", "utf8"), locale.getpreferredencoding(False)
from pathlib import Path
from tests.tracking.test_run import AWKWARD, new, store
run = new(Path({str(tmp_path)!r}))
store(run, AWKWARD)
for text in AWKWARD:
    run.write(run.metrics, {{"step": 1, "text": text}})
run.close()
"""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | plain, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    run = Run.open(tmp_path / "r")
    assert [record["text"] for record in run.read(run.metrics)] == AWKWARD
    assert rollouts(tmp_path / "r", "completion")[6] == ("é漢🙂",)


# --- folders --------------------------------------------------------------------------------------------------------


def test_a_taken_name_gets_a_number_and_nothing_is_written_over(tmp_path: Path) -> None:
    first = new(tmp_path)
    first.write(first.metrics, {"step": 1})
    second, third = new(tmp_path), new(tmp_path)
    assert [run.folder.name for run in (first, second, third)] == ["r", "r-2", "r-3"]
    assert first.read(first.metrics) == [{"step": 1}]
    assert not second.metrics.exists()
    (tmp_path / "file").write_text("mine", "utf-8")
    assert new(tmp_path, "file").folder.name == "file-2"
    assert (tmp_path / "file").read_text("utf-8") == "mine"


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "/abs", "-flag", "a b", "a\n", ".hidden"])
def test_a_name_that_is_no_folders_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no name for a run"):
        new(tmp_path / "runs", name)
    assert not list(tmp_path.iterdir())


def test_a_root_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "at" / "all")
    for root in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "dangling"):
        with pytest.raises(UsageError, match=f"no run can be made in {root}: "):
            new(root)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a run: it has no config\.toml"):
        Run.open(tmp_path)
    assert Run.open(new(tmp_path).folder).folder == tmp_path / "r"


def test_the_environment_says_what_the_numbers_were_made_on(tmp_path: Path) -> None:
    record = json.loads((new(tmp_path).folder / "environment.json").read_text("utf-8"))
    import torch
    import transformers

    assert record["threads"] == 1
    assert record["python"] == sys.version.split()[0]
    assert (record["torch"].split("+")[0], record["transformers"]) == (
        torch.__version__.split("+")[0],
        transformers.__version__,
    )
    assert set(record) >= {"rung", "numpy", "platform", "git_commit", "started"}
    assert environment(5)["threads"] == 5


# --- killed and taken up again --------------------------------------------------------------------------------------


def filled(root: Path) -> Run:
    """Three steps of metrics, timing and rollouts."""
    run = new(root)
    for step in (0, 1, 2, 3):
        run.write(run.metrics, {"step": step, "x": step / 3})
        run.write(run.timing, {"step": step})
        store(run, ["a", "b"], step=step)
    return run


def test_rewinding_forgets_what_came_after_a_step_and_keeps_the_rest_to_the_byte(tmp_path: Path) -> None:
    run = filled(tmp_path)
    lines = run.metrics.read_bytes().splitlines(keepends=True)
    before = rollouts(run.folder)
    run.rewind(2)
    assert run.metrics.read_bytes() == b"".join(lines[:3])
    assert [record["step"] for record in run.read(run.timing)] == [0, 1, 2]
    assert rollouts(run.folder) == before[:6]
    store(run, ["a", "b"], step=3)
    run.close()
    assert rollouts(run.folder) == before  # ids as well
    assert not list(run.folder.glob("*.tmp"))


@pytest.mark.parametrize("lost", [1, 2, 5, 12])
def test_a_last_line_that_was_cut_is_left_out(lost: int, tmp_path: Path) -> None:
    run = filled(tmp_path)
    content = run.metrics.read_bytes()
    run.metrics.write_bytes(content[:-lost])
    steps = [record["step"] for record in run.read(run.metrics)]
    assert steps == ([0, 1, 2, 3] if lost == 1 else [0, 1, 2])
    run.rewind(3)
    run.write(run.metrics, {"step": 4})
    assert [record["step"] for record in run.read(run.metrics)] == [*steps, 4]
    run.close()


def test_rewinding_a_run_that_wrote_nothing_yet_is_nothing(tmp_path: Path) -> None:
    run = new(tmp_path)
    run.rewind(0)
    assert run.read(run.metrics) == []
    run.close()


def test_rollouts_are_written_all_or_none(tmp_path: Path) -> None:
    """A reference that is no JSON value stops the write, and leaves no part of it."""
    run = filled(tmp_path)
    before = rollouts(run.folder)
    rows: list[Completion] = [completion([1], group=0, sample=i) for i in range(2)]
    reward: list[Outcome] = [Outcome("reward", 1.0)] * 2
    with pytest.raises((TypeError, sqlite3.Error)):
        run.write_rollouts(4, "train", [(1, "p", object())], rows, reward, ["x", "y"])
    with pytest.raises(ValueError, match="zip"):
        run.write_rollouts(4, "train", [(1, "p", 3)], rows, reward[:1], ["x", "y"])
    run.close()
    assert rollouts(run.folder) == before


def test_a_row_holds_what_was_sampled(tmp_path: Path) -> None:
    run = new(tmp_path)
    sampled = Completion(
        prompt_ids=(3, 4),
        token_ids=(5, 6, 7),
        sampled=(True, False, True),
        behaviour_logprobs=(-0.25, 0.0, -0.5),
        policy_versions=(2, 2, 3),
        group=1,
        sample=4,
        sampling_key=2**64 - 1,
        end_reason="length",
    )
    prompts: list[Any] = [(0, "no", None), (11, "1+1=", 2)]
    run.write_rollouts(9, "validation", prompts, [sampled], [Outcome("reward", 0.75)], ["two"])
    run.close()
    (row,) = rollouts(run.folder)
    assert row == (
        1, 9, "validation", 11, 1, 4, "f" * 16, "1+1=", "two", "[3, 4]", "[5, 6, 7]", "[1, 0, 1]",
        "[-0.25, 0.0, -0.5]", 3, "length", "reward", 0.75, "", "2",
    )  # fmt: skip


def test_the_end_is_marked_and_discarding_leaves_nothing(tmp_path: Path) -> None:
    run = filled(tmp_path)
    assert not run.finished
    run.finish()
    assert Run.open(run.folder).finished
    run.discard()
    assert not list(tmp_path.iterdir())
