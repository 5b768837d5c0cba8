"""docs/verify.md shows what the commands print: every line of its output blocks, in order."""

import re
import shlex
from pathlib import Path

import pytest

from tests.tiny import rung

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "verify.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- output: rung (verify[^>]*?) -->\n```text\n(.*?)^```", PAGE, flags=re.S | re.M)


def printed(command: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    return [line.rstrip() for line in rung(*shlex.split(command)).out.splitlines()]


def in_order(shown: str, lines: list[str]) -> None:
    at = 0
    for line in shown.splitlines():
        if line != "…":
            assert line in lines[at:], line
            at = lines.index(line, at) + 1


@pytest.mark.parametrize(("command", "shown"), [b for b in BLOCKS if b[0] != "verify"], ids=lambda x: x[:30])
def test_what_is_shown_is_what_is_printed(command: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_order(shown, printed(command, monkeypatch))


@pytest.mark.slow
def test_the_survey_that_is_shown_is_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    ((command, shown),) = [block for block in BLOCKS if block[0] == "verify"]
    in_order(shown, printed(command, monkeypatch))


def test_the_page_shows_every_command() -> None:
    shown = {command.split()[1] if " " in command else "all" for command, _ in BLOCKS}
    assert shown == {"all", "kl", "credit", "clip", "--loss"}
