"""`rung verify`: tables in a terminal, JSON for programs, a page for a browser; a loss of anybody's."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rung.verify.findings import Chart, Findings, Line, Table
from tests.tiny import Answer, rung

MINE = """
import torch


def mine(policy_logprobs, rewards, mask, groups):
    same = groups.unsqueeze(0) == groups.unsqueeze(1)
    others = ((same * rewards).sum(1) - rewards) / (same.sum(1) - 1)
    return -(((rewards - others).unsqueeze(1) * policy_logprobs) * mask).sum() / len(rewards)


def upside_down(policy_logprobs, rewards, mask, groups):
    return -mine(policy_logprobs, rewards, mask, groups)


def per_token(policy_logprobs, rewards, mask):
    return -(rewards.unsqueeze(1) * policy_logprobs * mask).sum() / mask.sum()


def wants_more(policy_logprobs, logits):
    return policy_logprobs.sum()


def method():
    from rung.methods import rloo

    return rloo(kl_coefficient=0.1)


def nothing():
    return 3
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE, encoding="utf-8")


def verified(name: str, *words: str) -> tuple[Answer, dict]:
    answer = rung("verify", "--loss", f"mine.py:{name}", "--json", *words)
    return answer, json.loads(answer.out)


def test_an_unbiased_loss_of_anybodys_passes() -> None:
    answer, found = verified("mine")
    assert answer.code == 0
    assert found["holds"] is True
    biases = [row[3] for row in found["tables"][0]["rows"] if row[1] == "on-policy"]
    assert len(biases) == 3
    assert max(biases) < 1e-12


@pytest.mark.parametrize(
    ("name", "words"),
    [("upside_down", "exactly the wrong sign"), ("per_token", "another direction")],
)
def test_a_wrong_loss_fails_and_is_told_how(name: str, words: str) -> None:
    answer, found = verified(name)
    assert answer.code == 1
    assert words in found["failures"][-1]
    cosine = found["tables"][0]["rows"][-3][4]  # two prompts, on policy
    assert cosine == pytest.approx(-1.0) if name == "upside_down" else 0.5 < cosine < 1 - 1e-6


def test_a_method_of_ones_own_goes_through_the_same_oracle() -> None:
    assert verified("method", "--kl-coefficient", "0.1")[0].code == 0
    assert verified("method")[0].code == 1  # its objective has a KL


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("mine.py:wants_more", "asks for 'logits'; there is behaviour_logprobs, entropy, groups, mask"),
        ("mine.py:missing", 'mine.py has no "missing"; it has method, mine, nothing, per_token'),
        ("mine.py", "names no function: write path/to/file.py:name"),
        ("absent.py:loss", "no such file"),
        ("absent.module:loss", "No module named 'absent'"),
        ("mine.py:nothing", "returns no method, but int"),
        ("mine.py:torch", "neither a function nor a method, but module"),
    ],
)
def test_what_cannot_be_verified_is_said_without_a_traceback(place: str, message: str) -> None:
    answer = rung("verify", "--loss", place)
    assert answer.code in (1, 2)
    assert message in answer.err
    assert "Traceback" not in answer.err


def test_a_file_that_cannot_be_run_is_named_with_the_reason() -> None:
    Path("broken.py").write_text("import torch\n1 / 0\n", encoding="utf-8")
    answer = rung("verify", "--loss", "broken.py:loss")
    assert answer.code == 2
    assert "broken.py cannot be run: ZeroDivisionError" in answer.err


def test_a_name_and_a_loss_at_once_are_refused() -> None:
    answer = rung("verify", "rloo", "--loss", "mine.py:mine")
    assert answer.code == 2
    assert "not both" in answer.err


def test_through_a_pipe_no_line_is_wider_than_a_terminal() -> None:
    answer = rung("verify", "--loss", "mine.py:mine")
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "The code does what is claimed of it." in answer.out
    assert "\x1b" not in answer.out


# --- the page ------------------------------------------------------------------------------------------------------


class Marks(HTMLParser):
    """Every number that a mark of a chart carries, and the text of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        y = dict(attrs).get("data-y")
        if y:
            self.values.append(float(y))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_holds_every_number_and_loads_nothing() -> None:
    from rung.report.findings import render_findings

    found = Findings(
        title="a <title>",
        summary="first\nsecond",
        settings={"β": 0.1},
        tables=(Table("rows", ("name", "bias"), (("k1 & co", 0.123456), ("zero", 3e-17)), "how to read it"),),
        charts=(Chart("curve", "λ", "bias²", (Line("exact", (0.0, 0.5, 1.0), (0.3, 0.2, 0.1)),)),),
        failures=("it <does> not",),
    )
    page = render_findings(found)
    marks = Marks()
    marks.feed(page)
    assert marks.values == [0.3, 0.2, 0.1]
    words = " ".join(marks.text)
    for said in (
        "a <title>",
        "k1 & co",
        "0.1235",
        "it <does> not",
        "1 claim(s) do not hold",
        "how to read it",
    ):
        assert said in words
    assert not re.search(r"<script|https?://", page)


def test_html_is_written_beside_the_table() -> None:
    answer = rung("verify", "--loss", "mine.py:mine", "--html", "out/page.html")
    assert answer.code == 0
    assert "page    out/page.html" in answer.out
    assert Path("out/page.html").read_text("utf-8").startswith("<!doctype html>")
    assert [path.name for path in Path("out").iterdir()] == ["page.html"]
