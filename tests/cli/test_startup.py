"""The command line answers at once: nothing that is slow to import is imported before it is needed."""

import json
import subprocess
import sys

import pytest

from tests.tiny import rung

SLOW = ["torch", "transformers", "numpy"]


def loaded(code: str) -> list[str]:
    """Which slow modules a fresh process has after some code."""
    report = f"import sys, json\n{code}\nprint(json.dumps([m for m in {SLOW!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_importing_rung_loads_nothing_slow() -> None:
    assert loaded("import rung; rung.__version__; dir(rung)") == []


@pytest.mark.parametrize(
    "words", [["--help"], ["train", "--help"], ["sample", "--help"], ["eval", "--help"], []]
)
def test_help_loads_nothing_slow(words: list[str]) -> None:
    code = f"sys.argv = ['rung', *{words!r}]\nfrom rung.cli import main\ntry: main()\nexcept SystemExit: pass"
    assert loaded(code) == []


def test_train_and_resume_are_there_as_python_calls() -> None:
    import rung as package
    from rung import api

    assert (package.train, package.resume) == (api.train, api.resume)
    with pytest.raises(AttributeError, match="'rung' has no attribute 'trian'"):
        package.trian  # noqa: B018


def test_help_names_every_command() -> None:
    answer = rung("--help")
    assert answer.code == 0
    for command in (
        "quickstart",
        "train",
        "resume",
        "report",
        "verify",
        "explain",
        "sample",
        "eval",
        "task",
        "import",
    ):
        assert command in answer.out
    assert rung().code in (0, 2)


def test_an_unknown_command_is_a_mistake_of_usage() -> None:
    answer = rung("trian", "x")
    assert answer.code == 2
    assert "No such command 'trian'" in answer.err
