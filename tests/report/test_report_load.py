"""Damaged files are read as far as they go, and the page's notes name what was skipped."""

import json
import math
import sqlite3

import pytest

from rung.errors import UsageError
from rung.report.load import load_run, read_lines, setting
from rung.report.panels import main_panels, more_panels, time_panel
from rung.report.rollouts import read_rollouts


def test_a_line_cut_by_a_kill_is_skipped_and_named(make_run):
    run = make_run(steps=10, every=0)
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-25])
    loaded = load_run(run)
    assert [record["step"] for record in loaded.train] == [*range(1, 10)]
    assert "metrics.jsonl: the last line was cut short and was skipped." in loaded.notes


def test_garbage_between_good_lines_is_counted_by_line_number(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        b'{"step": 1}\n\xff\xfe{\n[1]\n{"kind": "train"}\n\n{"step": NaN}\n{"step": 2, "loss": NaN}\n'
    )
    notes = []
    records = read_lines(path, notes)
    assert [record["step"] for record in records] == [1, 2]
    assert math.isnan(records[1]["loss"])
    assert notes == ["metrics.jsonl: 4 unreadable line(s) skipped (line 2, 3, 4, 6)."]


def test_of_a_step_written_twice_the_later_line_counts(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [
        {"step": s, "kind": "train", "loss": v}
        for s, v in ((1, 0.1), (2, 0.2), (3, 0.3), (2, 20.0), (3, 30.0))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    notes = []
    assert [record["loss"] for record in read_lines(path, notes)] == [0.1, 20.0, 30.0]
    assert "2 step(s) written twice" in notes[0]


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe\x00", b"{", b"[1, 2]", b"[" * 100_000])
@pytest.mark.parametrize(
    "name", ["config.toml", "environment.json", "metrics.jsonl", "timing.jsonl", "rollouts.sqlite"]
)
def test_any_file_may_be_damaged_or_missing(make_run, name, damage):
    run = make_run(steps=3, every=0)
    (run / name).write_bytes(damage)
    loaded = load_run(run)
    read_rollouts(run / "rollouts.sqlite", loaded.notes)
    assert damage == b"" or any(note.startswith(name) for note in loaded.notes)
    (run / name).unlink()
    loaded = load_run(run)
    read_rollouts(run / "rollouts.sqlite", loaded.notes)
    assert any(note.startswith(f"{name} is missing") for note in loaded.notes)


def test_a_truncated_store_gives_what_can_be_read(make_run):
    run = make_run(steps=60)
    path = run / "rollouts.sqlite"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    notes = []
    read_rollouts(path, notes)
    assert len(notes) == 1
    assert notes[0].startswith("rollouts.sqlite could not be read to its end")


def test_a_store_that_a_killed_writer_left_open_is_read(make_run):
    """Write-ahead files beside the store are part of it."""
    run = make_run(steps=2, every=0)
    writer = sqlite3.connect(run / "rollouts.sqlite")
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("UPDATE rollouts SET completion = 'from the log'")
    writer.commit()
    notes = []
    stories = read_rollouts(run / "rollouts.sqlite", notes).training
    writer.close()
    assert notes == []
    assert stories[0].first.completion == "from the log"


def test_a_missing_folder_is_a_mistake_of_the_user(tmp_path):
    with pytest.raises(UsageError, match="no run folder at"):
        load_run(tmp_path / "absent")


def test_settings_may_be_words_or_tables():
    assert setting({"method": "rloo"}, "method") == "rloo"
    assert setting({"method": {"name": "grpo"}}, "method") == "grpo"
    assert setting({}, "method") == ""


def test_panels_are_drawn_only_for_numbers_that_exist(make_run):
    titles = [panel.title for panel in main_panels(load_run(make_run(stage="sft")))]
    assert titles == ["Loss", "Held-out exact match", "Gradient norm"]
    titles = [panel.title for panel in main_panels(load_run(make_run(name="rl")))]
    assert titles == [
        "Learning curve",
        "KL(policy‖reference)",
        "Entropy",
        "Completion length",
        "Stopped by itself",
        "Loss",
        "Gradient norm",
        "Sampler against trainer",
    ]


def test_every_recorded_number_is_drawn_or_named_as_constant(make_run):
    run = make_run()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line["my_own"] = line["step"] ** 2
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    loaded = load_run(run)
    more, constant = more_panels(loaded, main_panels(loaded))
    drawn = {series.key for panel in [*main_panels(loaded), *more] for series in panel.series}
    recorded = {key for line in lines for key in line}
    said = {
        "step",
        "kind",
        "split",
        "n",
        "updates",
        "full_reward",
        *(key for key in recorded if key.endswith(("_low", "_high"))),
    }
    assert recorded - drawn - constant.keys() == said
    assert "my_own" in drawn
    assert not drawn & constant.keys()
    assert constant["learning_rate"] == {"training": 3e-4}
    assert constant["completions"] == {
        "training": 256.0,
        "test (held out)": 500.0,
        "validation (held out)": 500.0,
    }


def test_bars_are_means_over_stretches_and_keep_the_unmeasured_rest(make_run):
    run = make_run(steps=100, every=0)
    records = [json.loads(line) for line in (run / "timing.jsonl").read_text(encoding="utf-8").splitlines()]
    panel = time_panel(load_run(run))
    assert panel.order == ("collect", "reward", "annotate", "update", "record", "other")
    assert panel.steps_per_bar == 3
    assert len(panel.bars) == 34
    first = records[:3]
    assert panel.bars[0].parts["collect"] == pytest.approx(sum(r["collect"] for r in first) / 3, rel=1e-12)
    assert sum(panel.bars[0].parts.values()) == pytest.approx(sum(r["total"] for r in first) / 3, rel=1e-12)


def test_a_series_without_a_finite_value_is_drawn_as_missing_and_not_named_constant(make_run):
    run = make_run(steps=5, every=0)
    lines = [{"step": s, "kind": "train", "odd": math.nan} for s in (1, 2)]
    lines += [{"step": 2, "kind": "eval", "split": "test", "odd": 1.0}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    more, constant = more_panels(load_run(run), [])
    assert constant == {}
    (odd,) = (panel for panel in more if panel.title == "odd")
    assert [point.y for series in odd.series for point in series.points] == [None, None, 1.0]
