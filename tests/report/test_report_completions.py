"""Which completions are shown, what is said of them, and that no text can act."""

import math
import sqlite3
from statistics import mean, stdev

import pytest

from rung.report import render
from rung.report.rollouts import read_rollouts
from tests.report.fabricated import SCHEMA, add_rollout


@pytest.fixture
def store(tmp_path):
    """An empty completion store, open for writing."""
    connection = sqlite3.connect(tmp_path / "rollouts.sqlite")
    connection.execute(SCHEMA)
    yield connection
    connection.close()


def read(store, tmp_path):
    store.commit()
    notes = []
    found = read_rollouts(tmp_path / "rollouts.sqlite", notes)
    assert notes == []
    return found


def test_the_paired_change_is_the_mean_difference_over_prompts_with_both_rewards(store, tmp_path):
    """40 prompts with known rewards, two of them without one at an end; the interval by its formula."""
    before = [0.0, 0.5, 1.0, 0.25] * 10
    after = [1.0, 0.5, 0.0, 0.75, 1.0] * 8
    for row, (a, b) in enumerate(zip(before, after, strict=True)):
        add_rollout(
            store,
            step=0,
            row=row,
            reward=None if row == 3 else a,
            outcome="timeout" if row == 3 else "reward",
        )
        add_rollout(store, step=9, row=row, reward=None if row == 17 else b)
        add_rollout(store, step=5, row=row, reward=77.0)
    (change,) = read(store, tmp_path).paired
    differences = [b - a for row, (a, b) in enumerate(zip(before, after, strict=True)) if row not in (3, 17)]
    assert change.prompts == len(differences) == 38
    assert change.change == pytest.approx(mean(differences), abs=1e-12)
    assert change.half_width == pytest.approx(1.96 * stdev(differences) / math.sqrt(38), abs=1e-12)
    assert change.better == sum(d > 0 for d in differences)
    assert change.worse == sum(d < 0 for d in differences)


def test_few_prompts_or_equal_differences_get_no_interval(store, tmp_path):
    for row in range(29):
        add_rollout(store, step=0, row=row, reward=0.0)
        add_rollout(store, step=1, row=row, reward=float(row % 2))
        add_rollout(store, step=0, split="test", row=100 + row, reward=0.5)
        add_rollout(store, step=1, split="test", row=100 + row, reward=0.5)
    for row in range(29, 40):
        add_rollout(store, step=0, split="test", row=100 + row, reward=0.5)
        add_rollout(store, step=1, split="test", row=100 + row, reward=0.5)
    changes = {change.split: change for change in read(store, tmp_path).paired}
    assert changes["validation"].half_width is None
    assert changes["test"].prompts == 40
    assert changes["test"].half_width is None


def test_prompts_are_evenly_spaced_and_the_extremes_say_so(store, tmp_path):
    """Rewards are equal but for row 3 (rises most) and row 4 (falls most), which even spacing leaves out."""
    for row in range(51):
        add_rollout(store, step=0, row=row, reward=0.5, completion=f"before {row}.")
        after = {3: 1.0, 4: 0.0}.get(row, 0.5)
        add_rollout(store, step=20, row=row, reward=after, completion=f"after {row}.")
    stories = read(store, tmp_path).held_out
    why = {story.first.row: story.why for story in stories}
    assert list(why) == [0, 10, 20, 30, 40, 50, 3, 4]
    assert set(list(why.values())[:6]) == {"evenly spaced over the problems"}
    assert why[3] == "largest gain of all, chosen for that"
    assert why[4] == "largest loss of all, chosen for that"
    assert [[s.completion for s in samples] for samples in stories[0].by_step.values()] == [
        ["before 0."],
        ["after 0."],
    ]


def test_the_split_that_was_sampled_before_training_comes_first(store, tmp_path):
    for step in (10, 20):
        add_rollout(store, step=step, split="validation", row=1)
    for step in (0, 20):
        add_rollout(store, step=step, split="test", row=2)
    assert [(s.first.split, list(s.by_step)) for s in read(store, tmp_path).held_out] == [
        ("test", [0, 20]),
        ("validation", [10, 20]),
    ]


def test_training_prompts_seen_again_are_followed(store, tmp_path):
    for step in range(1, 9):
        for sample in range(2):
            add_rollout(store, split="train", step=step, row=step % 4, group_id=0, sample=sample)
    stories = read(store, tmp_path).training
    assert (stories[0].first.row, list(stories[0].by_step)) == (0, [4, 8])
    assert stories[0].why == "training prompt, seen at 2 steps"


def test_facts_of_a_sample(store, tmp_path):
    add_rollout(
        store,
        completion="x",
        sampled_mask="[1, 1, 0, 1]",
        behaviour_logprobs="[-0.5, -0.25, 0.0, -1.0]",
        end_reason="length",
        reward=0.5,
        reference='{"low": 1}',
    )
    sample = read(store, tmp_path).held_out[0].first
    assert (sample.tokens, sample.given, sample.logprob) == (4, 1, -1.75)
    assert sample.reference == '{"low": 1}'


def test_no_completion_can_act_on_the_page(make_run, read_page):
    """Script, broken tags, lone surrogates, NUL and separators in every text column add no element."""
    run = make_run(steps=20, every=10)
    clean = {tag for tag, _ in read_page(render(run)).elements}
    connection = sqlite3.connect(run / "rollouts.sqlite")
    attack = "</div><script>alert(1)</script><img src=http://x/y onerror=alert(1)>\u2028\x00 \t'\""
    connection.execute(
        "UPDATE rollouts SET completion = ?, prompt = ?, reference = ?", (attack, attack, '"\\ud800<b>"')
    )
    connection.execute("UPDATE rollouts SET end_reason = ?, outcome = ? WHERE id % 2", (attack, attack))
    connection.execute("UPDATE rollouts SET completion = CAST(X'EDA08041FF00' AS TEXT) WHERE id % 3 = 0")
    connection.commit()
    connection.close()
    page = read_page(render(run))
    assert {tag for tag, _ in page.elements} == clean
    assert not {"script", "img", "iframe", "object", "form"} & clean
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "<script>alert(1)</script>" in page.text
    assert "⟨U+2028⟩⟨U+0000⟩" in page.text.replace("⟨U+2028 U+0000⟩", "⟨U+2028⟩⟨U+0000⟩")
    assert "⟨U+D800⟩<b>" in page.text


def test_steps_between_first_and_last_can_be_opened_one_by_one(make_run, read_page):
    page = read_page(render(make_run(steps=60, every=10)))
    assert "before training (step 0)" in page.text
    summaries = page.text.count("step 30 reward")
    assert summaries >= 6


def test_many_long_completions_do_not_make_a_large_page(make_run):
    run = make_run(steps=60, every=10)
    connection = sqlite3.connect(run / "rollouts.sqlite")
    connection.execute("UPDATE rollouts SET completion = ?", ("\x00\x01 \n<" * 4000,))
    connection.commit()
    connection.close()
    html = render(run)
    assert len(html.encode()) < 1_000_000
    assert "left out to keep this page small" in html
    assert "more characters" in html
