"""`rung resume` and `rung report`: of what is there, and of what is not."""

import shutil
from pathlib import Path

import pytest

from tests.tiny import checkpoint_of, folders, metrics, rl_recipe, rung, sft_run

WORDS = ["training.steps=3", "evaluation.test_problems=0", "evaluation.every=0"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that looks killed: its last checkpoint is of step 2, and it is not marked as finished."""
    assert rung("train", rl_recipe(tmp_path), *WORDS).code == 0
    folder = Path("runs/tiny-rl")
    (folder / "finished").unlink()
    (folder / "report.html").unlink()
    shutil.rmtree(folder / "checkpoints" / "step-000003")
    return folder


def test_resuming_says_from_where_and_where_everything_is(run: Path) -> None:
    answer = rung("resume", run)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines()[0] == f"resume: resuming {run} after step 2, from step-000002"
    assert answer.out.splitlines()[-1] == f"report  {run}/report.html"
    assert [line["step"] for line in metrics(run)] == [1, 2, 3]
    assert (run / "report.html").is_file()


@pytest.mark.parametrize("command", ["resume", "report"])
def test_a_folder_that_is_no_run_is_a_mistake_of_usage(command: str, tmp_path: Path) -> None:
    for folder in ("nowhere", "."):
        answer = rung(command, folder)
        assert (answer.code, answer.out) == (2, "")
        assert answer.message.startswith(f"error: {folder} is not a run")
    assert folders(tmp_path) == []


def test_a_finished_run_is_a_mistake_of_usage() -> None:
    before = folders(sft_run())
    answer = rung("resume", sft_run())
    assert answer.code == 2
    assert "is finished (step 60); its model is" in answer.message
    assert folders(sft_run()) == before


def test_without_a_complete_checkpoint_it_ends_with_code_1_and_loses_nothing(run: Path) -> None:
    for folder in (run / "checkpoints").iterdir():
        (folder / "manifest.json").unlink()
    lines = metrics(run)
    answer = rung("resume", run)
    assert (answer.code, answer.out) == (1, "")
    assert "no complete checkpoint in runs/tiny-rl/checkpoints (step-000002 do not match" in answer.message
    assert metrics(run) == lines


def test_a_damaged_config_is_told_like_any_recipe(run: Path) -> None:
    text = (run / "config.toml").read_text("utf-8").replace("seed = 3", 'seed = "3"')
    (run / "config.toml").write_text(text, "utf-8")
    answer = rung("resume", run)
    assert answer.code == 2
    number = text.splitlines().index('seed = "3"') + 1
    assert f"config.toml, line {number}: \"seed\" = '3': input should be a valid integer" in answer.message


def test_a_report_is_written_anew_and_named(run: Path) -> None:
    answer = rung("report", run)
    assert (answer.code, answer.out) == (0, f"{run}/report.html\n")
    assert (run / "report.html").is_file()
    assert checkpoint_of(run).name == "step-000002"
