"""`rung report`, and what the system refuses."""

from pathlib import Path

import pytest

from tests.tiny import rung, sft_recipe


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_page_is_written_anew(tmp_path: Path) -> None:
    assert rung("train", sft_recipe(tmp_path), "training.steps=1").code == 0
    page = Path("runs/tiny-sft/report.html")
    page.unlink()
    answer = rung("report", "runs/tiny-sft")
    assert (answer.code, answer.out.strip()) == (0, str(page))
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_what_the_system_refuses_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    assert rung("train", sft_recipe(tmp_path), "training.steps=1").code == 0
    page = Path("runs/tiny-sft/report.html")
    page.unlink()
    page.mkdir()
    answer = rung("report", "runs/tiny-sft")
    assert answer.code == 1
    assert answer.err.startswith("error: ")
    assert "Traceback" not in answer.err
