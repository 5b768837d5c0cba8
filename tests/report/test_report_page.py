"""The page as a whole: it says what the files say, needs nothing else, and gets written whatever the run looks like."""

import json
import re
import subprocess
import sys
from statistics import fmean

import pytest

from rung.errors import UsageError
from rung.report import render, write_report
from rung.tracking.definitions import METRICS
from tests.report.fabricated import write_lines


def lines_of(run, name="metrics.jsonl"):
    return [json.loads(line) for line in (run / name).read_text(encoding="utf-8").splitlines()]


def values_of(run, kind, key, split=None):
    lines = [line for line in lines_of(run) if line["kind"] == kind and split in (None, line.get("split"))]
    return {float(line["step"]): line[key] for line in lines if key in line}


@pytest.mark.parametrize(
    ("series", "key", "kind", "split"),
    [
        ("training", "reward_mean", "train", None),
        ("validation (held out)", "reward_mean", "eval", "validation"),
        ("test (held out)", "reward_mean", "eval", "test"),
        (METRICS["kl_policy_reference_k1"].label, "kl_policy_reference_k1", "train", None),
        (METRICS["kl_policy_reference_k3"].label, "kl_policy_reference_k3", "train", None),
        ("validation (held out)", "kl_policy_reference", "eval", "validation"),
        ("training", "entropy", "train", None),
        ("training", "length_mean", "train", None),
        ("validation (held out)", "stop_fraction", "eval", "validation"),
        ("training", "loss", "train", None),
        ("training", "grad_norm", "train", None),
        (METRICS["sampler_logratio_max"].label, "sampler_logratio_max", "train", None),
    ],
)
def test_every_point_drawn_is_the_number_in_the_file(make_run, read_page, series, key, kind, split):
    run = make_run(steps=80)
    assert read_page(render(run)).marks(series, key) == values_of(run, kind, key, split)


def test_intervals_drawn_are_those_in_the_file(make_run, read_page):
    run = make_run(steps=40)
    page = read_page(render(run))
    drawn = {(float(a["data-low"]), float(a["data-high"])) for _, a in page.elements if "data-low" in a}
    lines = [line for line in lines_of(run) if line["kind"] == "eval"]
    for low, high in (("reward_low", "reward_high"), ("kl_policy_reference_low", "kl_policy_reference_high")):
        assert {(line[low], line[high]) for line in lines} <= drawn


def test_bars_are_the_times_in_the_file(make_run, read_page):
    run = make_run(steps=30)
    page = read_page(render(run))
    drawn = {
        (float(a["data-x"]), a["data-part"]): float(a["data-y"]) for a in page.all("rect") if "data-part" in a
    }
    for line in lines_of(run, "timing.jsonl"):
        for phase in ("collect", "reward", "annotate", "update", "record"):
            assert drawn[line["step"], phase] == line[phase]
        rest = line["total"] - sum(line[p] for p in ("collect", "reward", "annotate", "update", "record"))
        assert drawn[line["step"], "other"] == pytest.approx(rest, abs=1e-12)


def test_the_summary_says_before_and_after_with_intervals_and_cost(make_run, read_page):
    run = make_run(steps=40)
    text = read_page(render(run)).text
    evaluations = [line for line in lines_of(run) if line["kind"] == "eval" and line["split"] == "validation"]
    first, last = evaluations[0], evaluations[-1]
    assert f"{first['reward_mean']:.3f} → {last['reward_mean']:.3f}" in text
    assert f"before training: {first['reward_low']:.3f} to {first['reward_high']:.3f} (95 %, n = 500)" in text
    assert f"step 40: {last['reward_low']:.3f} to {last['reward_high']:.3f} (95 %, n = 500)" in text
    assert f"{first['length_mean']:.2f} → {last['length_mean']:.2f}" in text
    assert f"KL spent{last['kl_policy_reference']:.2f}nats per sequence" in text
    seconds = sum(line["total"] for line in lines_of(run, "timing.jsonl"))
    assert f"{int(seconds // 60)} min {round(seconds) % 60} s" in text
    tokens = sum(line["tokens"] for line in lines_of(run) if line["kind"] == "train")
    assert f"{tokens:,}" in text
    assert "Steps40of 40 planned" in text
    assert "finished at step 40 of 40" in text


def test_the_header_names_the_run(make_run, read_page):
    text = read_page(render(make_run())).text
    for fact in (
        "addition-rloo",
        "reinforcement learning",
        "rloo",
        "models/tiny-adder",
        "2026-03-04 05:06:07 UTC",
    ):
        assert fact in text


def test_nothing_is_loaded_from_anywhere(make_run, read_page):
    """No address, no script, no import; and a policy that forbids the browser what the page does not use."""
    run = make_run()
    html = render(run)
    page = read_page(html)
    assert "//" not in re.sub(r"<!doctype html>", "", html)
    for tag, attributes in page.elements:
        assert tag not in {
            "script",
            "img",
            "iframe",
            "object",
            "embed",
            "audio",
            "video",
            "source",
            "base",
            "form",
            "use",
        }
        for name, value in attributes.items():
            assert name not in {"src", "srcset", "xlink:href", "action", "style"}
            if name == "href":
                assert str(value).startswith("#") or (tag == "link" and value == "data:,")
    assert "url(" not in page.style
    assert "@import" not in page.style
    (policy,) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert str(policy["content"]).startswith("default-src 'none'")


def test_the_page_fits_a_phone_and_follows_the_color_scheme(make_run, read_page):
    """The layout itself was looked at in a browser; this keeps the parts that make it hold."""
    page = read_page(render(make_run()))
    assert page.all("meta", name="viewport", content="width=device-width, initial-scale=1")
    assert "prefers-color-scheme: dark" in page.style
    assert not re.search(r"(?<!max-)(?<!-)width: *\d{3,}px", page.style)
    assert {a.get("viewbox") for a in page.all("svg", role="img")} == {"0 0 400 236"}


def test_it_works_by_keyboard_and_by_ear(make_run, read_page):
    """Only native controls; links reach sections that exist; each chart is described and has its numbers in a table."""
    page = read_page(render(make_run()))
    targets = {a["id"] for _, a in page.elements if "id" in a}
    assert {str(a["href"])[1:] for a in page.all("a")} <= targets
    charts = page.all("svg", role="img")
    assert len(charts) >= 9
    assert all(a["aria-label"] for a in charts)
    assert page.text.count("Numbers") >= len(charts)
    assert not any("tabindex" in a for _, a in page.elements)
    assert ":focus-visible" in page.style


def test_smoothing_is_named_and_every_metric_is_defined(make_run, read_page):
    run = make_run(steps=60)
    text = read_page(render(run)).text
    assert "centered moving mean over 5 steps" in text
    for key in {key for line in [*lines_of(run), *lines_of(run, "timing.jsonl")] for key in line}:
        assert " ".join(METRICS[key].one_line.split()) in text


@pytest.mark.parametrize("stage", ["rl", "sft"])
@pytest.mark.parametrize(("steps", "every"), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 1), (13, 5)])
def test_short_runs_and_runs_without_evaluation_are_reported(make_run, read_page, stage, steps, every):
    run = make_run(steps=steps, every=every, stage=stage)
    page = read_page(write_report(run).read_text(encoding="utf-8"))
    if steps and stage == "rl":
        assert len(page.marks("training", "reward_mean")) == steps
        assert ("No held-out evaluation was recorded" in page.text) == (every == 0)
    if steps and stage == "sft":
        assert len(page.marks("training", "loss")) == steps


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, 10**400, "text", True])
def test_numbers_that_are_none_are_crosses_and_the_page_says_so(make_run, read_page, value):
    run = make_run(steps=20, every=0)
    lines = lines_of(run)
    for key in lines[4]:
        if key not in ("step", "kind"):
            lines[4][key] = value
    lines[-1]["loss"] = value
    write_lines(run / "metrics.jsonl", lines)
    page = read_page(render(run))
    marks = page.marks("training", "loss")
    assert [step for step, y in marks.items() if y is None] == [5.0, 20.0]
    assert "training: 2 value(s) not finite, a cross at the bottom (step 5, 20)." in page.text
    assert "loss not finite at step 20" in page.text


def test_only_infinite_values_still_make_a_page(make_run, read_page):
    run = make_run(steps=3, every=0)
    write_lines(
        run / "metrics.jsonl", [{"step": s, "kind": "train", "loss": float("nan")} for s in (1, 2, 3)]
    )
    assert set(read_page(render(run)).marks("training", "loss").values()) == {None}


def test_an_empty_folder_gives_a_page_that_says_what_is_missing(tmp_path, read_page):
    page = read_page(write_report(tmp_path).read_text(encoding="utf-8"))
    for name in ("config.toml", "environment.json", "metrics.jsonl", "timing.jsonl", "rollouts.sqlite"):
        assert f"{name} is missing" in page.text
    assert "nothing recorded yet" in page.text


def test_damage_is_named_on_the_page_and_the_rest_is_there(make_run, read_page):
    run = make_run(steps=30)
    (run / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes() + b'{"step": 31, "ki')
    (run / "rollouts.sqlite").write_bytes(b"SQLite format 3\x00 no more")
    page = read_page(render(run))
    assert "metrics.jsonl: the last line was cut short and was skipped." in page.text
    assert "rollouts.sqlite could not be read to its end" in page.text
    assert len(page.marks("training", "reward_mean")) == 30


def test_a_run_that_marks_its_end_is_finished_and_another_is_not(make_run, read_page):
    run = make_run(steps=30, every=0)
    text = (run / "config.toml").read_text(encoding="utf-8")
    (run / "config.toml").write_text(text.replace("steps = 30", "steps = 90"), encoding="utf-8")
    assert "at step 30 of 90: stopped, or still running" in read_page(render(run)).text
    (run / "finished").write_text("2026-03-04T06:00:00+00:00\n", encoding="utf-8")
    text = read_page(render(run)).text
    assert "finished at step 30 of 90" in text
    assert "ended2026-03-04 06:00:00 UTC" in text


def test_text_from_the_recipe_and_metric_names_cannot_act(make_run, read_page):
    run = make_run(steps=3)
    attack = "<script>alert('x')</script>"
    (run / "config.toml").write_text(
        f'name = "{attack}"\nmethod = "{attack}"\n# {attack}\n', encoding="utf-8"
    )
    (run / "environment.json").write_text(json.dumps({attack: attack, "started": attack}), encoding="utf-8")
    lines = [line | {attack: line["step"] * 1.5, '"': 2.0 * line["step"]} for line in lines_of(run)]
    lines += [{"step": s, "kind": "eval", "split": attack, "reward_mean": 0.1 * s} for s in (0, 1)]
    write_lines(run / "metrics.jsonl", lines)
    timing = [line | {attack: 0.5} for line in lines_of(run, "timing.jsonl")]
    write_lines(run / "timing.jsonl", timing)
    page = read_page(render(run))
    assert not page.all("script")
    assert page.text.count(attack) > 10


@pytest.mark.parametrize(("steps", "every"), [(200, 20), (5000, 100)])
def test_the_page_stays_below_a_megabyte(make_run, steps, every):
    html = render(make_run(steps=steps, every=every))
    assert len(html.encode()) < 1_000_000


def test_a_long_run_draws_the_extremes_and_says_how_many_points_it_left_out(make_run, read_page):
    run = make_run(steps=2000, every=0)
    lines = lines_of(run)
    lines[1234]["grad_norm"] = 55.5
    write_lines(run / "metrics.jsonl", lines)
    page = read_page(render(run))
    marks = page.marks("training", "grad_norm")
    assert len(marks) <= 220
    assert marks[1235.0] == 55.5
    assert set(marks.items()) <= set(values_of(run, "train", "grad_norm").items())
    assert re.search(r"\d+ of 2,000 dots drawn", page.text)


def test_without_evaluation_kl_spent_is_the_mean_of_the_last_training_steps(make_run, read_page):
    run = make_run(steps=48, every=0)
    values = [*values_of(run, "train", "kl_policy_reference_k1").values()][-5:]
    assert f"KL spent{fmean(values):.2f}nats per sequence" in read_page(render(run)).text


def test_the_same_files_give_the_same_page_and_an_old_one_is_replaced(make_run):
    run = make_run(steps=10)
    path = write_report(run)
    first = path.read_bytes()
    path.write_text("old", encoding="utf-8")
    assert write_report(run) == run / "report.html"
    assert path.read_bytes() == first
    assert not [name for name in run.iterdir() if name.name.startswith(".report")]


def test_a_missing_folder_is_a_mistake_of_the_user(tmp_path):
    with pytest.raises(UsageError, match="give the folder of a run"):
        write_report(tmp_path / "absent")


def test_reporting_loads_no_torch(make_run):
    script = (
        "import sys; from pathlib import Path; from rung.report import write_report; write_report(Path(sys.argv[1]));"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    run = make_run(steps=5)
    result = subprocess.run(
        [sys.executable, "-c", script, str(run)], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["False", "False"]


def test_a_model_beside_the_runs_is_named_by_its_short_path(make_run):
    """A page is made to be shown: the folders of the machine it was made on are nobody's business."""
    folder = make_run()
    config = folder / "config.toml"
    home = folder.resolve().parent.parent
    lines = [line for line in config.read_text().splitlines() if not line.startswith("model =")]
    config.write_text("\n".join([f'model = "{home}/runs/first/checkpoints/step-000190/model"', *lines]))
    assert "<dd>runs/first/checkpoints/step-000190/model</dd>" in render(folder)
