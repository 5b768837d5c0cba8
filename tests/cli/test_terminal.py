"""Progress: plain lines through a pipe, a bar with a rate and a time left in a terminal."""

import io
import re

import pytest
from rich.console import Console

from rung.cli import terminal
from rung.cli.terminal import Terminal, describe, percent

RL = {"reward_mean": 0.25, "kl_policy_reference_k1": 0.5, "length_mean": 3.4, "loss": 0.1}
LINE = {"n": 40, "reward_mean": 0.5, "reward_low": 0.352, "reward_high": 0.648}


def test_numbers_that_a_person_follows() -> None:
    assert percent(LINE) == "50.0% [35.2%, 64.8%]"
    assert "no completion could be judged" in percent({"n": 0, "reward_mean": None})
    assert describe({"loss": 1.23456}) == "loss 1.235"
    assert describe(RL).startswith("reward 0.250  KL 0.50")
    assert "KL" not in describe({"reward_mean": 1.0, "length_mean": 2.0})


def watch(
    console: Console, steps: int, times: list[float], monkeypatch: pytest.MonkeyPatch, first: int = 1
) -> None:
    """A run of some steps, each ending at the given time; the first took one second."""
    clock = iter([0.0, *times])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    with Terminal("rloo", console) as watching:
        for step in range(first, first + len(times)):
            watching.step(step, steps, RL, {"total": 1.0})


def test_through_a_pipe_there_is_a_line_now_and_then_and_one_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps end at 100, 104, 109, 111 and 112 s: lines after the first, after ten more seconds, and at the end."""
    out = io.StringIO()
    watch(Console(file=out, highlight=False, width=40), 5, [100.0, 104.0, 109.0, 111.0, 112.0], monkeypatch)
    lines = out.getvalue().splitlines()
    assert [line.split()[2] for line in lines] == ["1/5", "4/5", "5/5"]
    assert lines[0].endswith("1.0 s/step, 4 s left")
    assert lines[1].endswith("3.0 s/step, 3 s left")  # (111 − 99) / 4
    assert lines[2].endswith("2.6 s/step, 0 s left")  # (112 − 99) / 5
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", out.getvalue())


def test_a_resumed_run_is_timed_from_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    watch(Console(file=out, highlight=False), 10, [100.0, 100.5], monkeypatch, first=9)
    assert out.getvalue().splitlines()[-1].endswith("1.3 steps/s, 0 s left")  # 2 steps in 1.5 s


def failing_run(console: Console) -> None:
    """A step, notes and evaluations, and then an error."""
    with Terminal("rloo", console) as watching:
        watching.step(1, 4, RL, {"total": 1.0})
        watching.note("a note [with brackets]")
        watching.evaluated(0, "test", LINE)
        watching.evaluated(0, "validation", LINE | {"n": 41})
        raise RuntimeError


def test_in_a_terminal_the_bar_is_put_away_whatever_happens() -> None:
    """The cursor that was hidden (ESC [?25l) is shown again (ESC [?25h)."""
    out = io.StringIO()
    with pytest.raises(RuntimeError):
        failing_run(Console(file=out, force_terminal=True, width=100, highlight=False))
    shown = out.getvalue()
    assert "a note [with brackets]" in shown
    assert "step 0, 40 test problems: reward 50.0% [35.2%, 64.8%]" in shown
    assert "41" not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert "1/4" in shown


def test_a_long_evaluation_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a pipe a line every ten seconds; in a terminal a bar that goes when the evaluation is over."""
    out = io.StringIO()
    clock = iter([0.0, 3.0, 11.0, 11.0, 14.0, 30.0])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    with Terminal("rloo", Console(file=out, highlight=False)) as watching:
        for done in range(1, 5):
            watching.evaluating("test", done, 4)
    assert out.getvalue().splitlines() == ["rloo: evaluating test 2/4"]
    monkeypatch.undo()
    live = io.StringIO()
    with Terminal("rloo", Console(file=live, force_terminal=True, width=100, highlight=False)) as watching:
        watching.evaluating("test", 1, 2)
        watching.progress.refresh()
        watching.evaluating("test", 2, 2)
        watching.step(3, 9, RL, {"total": 1.0})
    assert "rloo evaluating test" in live.getvalue()
    assert "3/3" in live.getvalue()  # the steps done, not the problems
