"""`rung verify`: tables in a terminal, JSON for programs, a page for a browser; a loss of anybody's."""

import json
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rung.cli.verify import _found
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


def everything(**batch):
    return mine(*(batch[name] for name in ("policy_logprobs", "rewards", "mask", "groups")))


def with_defaults(policy_logprobs=None, rewards=None, mask=None, groups=None, scale=1.0):
    return scale * mine(policy_logprobs, rewards, mask, groups)


def method_by_default(beta=0.1):
    from rung.methods import rloo

    return rloo(kl_coefficient=beta)


def fails_in_a_helper(policy_logprobs, rewards):
    return multiplied(policy_logprobs, rewards)


def multiplied(policy_logprobs, rewards):
    return -(policy_logprobs * rewards[:, None, None].expand(-1, 3, 5)).sum()


def spoils_its_derivative(policy_logprobs, rewards):
    ratio = (policy_logprobs * 1.0).exp()
    loss = -(ratio.sum(1) * rewards).mean()
    ratio.mul_(2.0)
    return loss


class Scaled(torch.nn.Module):
    def forward(self, policy_logprobs, rewards, mask, groups):
        return 2 * mine(policy_logprobs, rewards, mask, groups)


module = Scaled()


def method_that_fails():
    from dataclasses import replace

    from rung.methods import rloo

    def credit(rewards, mask):
        raise KeyError("nobody")

    return replace(rloo(kl_coefficient=0.0), credit=credit)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
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
    answer, found = verified("method")  # its own β is its objective's
    assert answer.code == 0
    assert found["settings"]["β"] == 0.1
    assert found["settings"]["objective"] == "J − 0.1 · KL(policy‖reference)"
    assert verified("method", "--kl-coefficient", "0")[0].code == 1


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("mine.py:wants_more", "asks for 'logits'; there is behaviour_logprobs, entropy, groups, mask"),
        ("mine.py:missing", 'mine.py has no "missing"; it has Scaled, everything, fails_in_a_helper'),
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


@pytest.mark.parametrize("name", ["everything", "with_defaults", "method_by_default"])
def test_what_can_be_called_with_nothing_is_a_loss_where_it_names_what_there_is(name: str) -> None:
    assert verified(name)[0].code == 0


def test_a_module_is_asked_by_its_forward() -> None:
    answer, found = verified("module")
    assert answer.code == 1
    assert [row[5] for row in found["tables"][0]["rows"] if row[1] == "on-policy"] == pytest.approx([2.0] * 3)


@pytest.mark.parametrize(
    ("name", "function", "line", "error"),
    [
        (
            "fails_in_a_helper",
            "multiplied",
            "return -(policy_logprobs * rewards[:, None",
            "RuntimeError: The size",
        ),
        ("method_that_fails", "credit", 'raise KeyError("nobody")', "KeyError: 'nobody'"),
    ],
)
def test_a_loss_that_fails_is_told_where(name: str, function: str, line: str, error: str) -> None:
    (number,) = (i for i, text in enumerate(MINE.splitlines(), 1) if line in text)
    answer = rung("verify", "--loss", f"mine.py:{name}")
    assert answer.code == 2
    assert f"mine.py:{name} fails: " in answer.err
    assert f"mine.py:{number}, in {function}: {error}" in answer.err
    assert "Traceback" not in answer.err
    if name == "fails_in_a_helper":
        assert "it was given policy_logprobs [2, 2], rewards [2]" in answer.err


def test_a_derivative_that_fails_is_no_traceback_either() -> None:
    answer = rung("verify", "--loss", "mine.py:spoils_its_derivative")
    assert answer.code == 2
    assert "mine.py:spoils_its_derivative fails: RuntimeError: one of the variables needed" in answer.err
    assert "Traceback" not in answer.err


def test_a_file_is_imported_as_if_it_were_run() -> None:
    """Dataclasses look their module up, and a function may import its neighbours when it runs."""
    Path("neighbour.py").write_text("HALF = 0.5\n", encoding="utf-8")
    Path("other.py").write_text(
        "from __future__ import annotations\n"
        "import dataclasses\n"
        "@dataclasses.dataclass\n"
        "class Settings:\n"
        "    scale: float = 1.0\n"
        "def loss(policy_logprobs, rewards):\n"
        "    from neighbour import HALF\n"
        "    return -2 * HALF * (policy_logprobs.sum(1) * rewards).mean()\n",
        encoding="utf-8",
    )
    for place in ("other.py:loss", "other:loss"):
        answer = rung("verify", "--loss", place)
        assert answer.code == 0, answer.err
        for name in ("neighbour", "other"):
            sys.modules.pop(name, None)


def test_the_last_line_of_a_loss_speaks_of_its_objective() -> None:
    right, wrong = (rung("verify", "--loss", f"mine.py:{name}").out for name in ("mine", "upside_down"))
    assert right.splitlines()[-1] == "On policy it is the gradient of the objective."
    assert "On policy it is not the gradient of the objective:" in wrong
    assert "claim" not in right + wrong


def test_an_option_that_would_do_nothing_is_refused() -> None:
    answer = rung("verify", "rloo", "--kl-coefficient", "0.5")
    assert answer.code == 2
    assert "--kl-coefficient goes with --loss" in answer.err


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (".", "is a folder: name a file"),
        ("mine.py/page.html", 'no page can be written to "mine.py/page.html": '),
    ],
)
def test_a_page_that_cannot_be_written_is_said_before_the_work(
    place: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rung.cli.verify._found", lambda *_: pytest.fail("it was measured first"))
    answer = rung("verify", "--loss", "mine.py:mine", "--html", place)
    assert answer.code == 2
    assert message in answer.err


def test_names_are_compared_in_lower_case_and_the_nearest_of_all_is_suggested() -> None:
    assert rung("verify", "CLIP").out.startswith(rung("verify", "clip").out.splitlines()[0])
    answer = rung("verify", "Credits")
    assert answer.code == 2
    assert 'did you mean "credit"?' in answer.err


def test_who_waits_for_one_method_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    def examine(name: str, watch: Callable[[int, int], None]) -> Findings:
        watch(1, 2)
        return Findings(name, "")

    monkeypatch.setattr("rung.verify.catalogue.examine", examine)
    assert _found("rloo", None, None, lambda done, total: told.append((done, total))).title == "rloo"
    assert told == [(1, 2)]


def test_a_name_and_a_loss_at_once_are_refused() -> None:
    answer = rung("verify", "rloo", "--loss", "mine.py:mine")
    assert answer.code == 2
    assert "not both" in answer.err


def test_through_a_pipe_no_line_is_wider_than_a_terminal() -> None:
    answer = rung("verify", "--loss", "mine.py:mine")
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "On policy it is the gradient of the objective." in answer.out
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
