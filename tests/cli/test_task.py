"""`rung task`: a task's problems and its reward, looked at before training."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from rung.batch import Completion, Outcome
from rung.tasks import TASKS, Problem, load_task
from rung.training.evaluation import judge
from tests.cli.test_startup import loaded
from tests.tiny import rung, sft_run


class Picky:
    """A judge with every kind of outcome, and prompts that are hard to print.

    Two rows:

        first    what the first row of this table says, which is so long that it does not fit into eighty columns
                 and goes on below
    """

    name = "picky"

    def problems(self, split: str) -> list[Problem]:
        return {
            "train": [Problem(3, "a\x1b[31m\nb", "é"), Problem(9, "twice", 1)],
            "validation": [Problem(4, "twice", 2)],
            "test": [Problem(5, ({"role": "user", "content": "chat"},), [1, 2])],
        }[split]

    def reward(self, problem: Problem, completion: str) -> Outcome:
        if completion == "slow":
            return Outcome("timeout", message="after 3 s")
        if completion == "pass":
            return Outcome("abstain")
        return Outcome("reward", 1 / int(completion))


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "picky", Picky)  # type: ignore[arg-type]


def parsed(*words: object) -> Any:
    answer = rung(*words, "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


@pytest.fixture
def two_begins(tmp_path: Path) -> Path:
    """A tokenizer that adds its begin token to plain text, with spaces as ▁ and a chat template with a begin token."""
    vocabulary = {"<s>": 0, "▁two": 1, "▁words": 2, "▁": 3, "▁chat": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="▁"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="<s>")
    fast.chat_template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    return tmp_path


def test_the_list_has_one_line_a_task() -> None:
    answer = rung("task", "show")
    assert [line.split()[0] for line in answer.out.splitlines()] == ["addition", "extraction"]
    assert '"7+58=" → "65"' in answer.out
    assert all(len(line) <= 80 for line in answer.out.splitlines())
    assert [found["problems"]["test"] for found in parsed("task", "show")] == [1018, 600]


def test_show_counts_every_split_and_spreads_its_sample() -> None:
    found = parsed("task", "show", "addition", "--split", "validation", "-n", 4)
    assert sum(found["problems"].values()) == 10_000
    problems = load_task("addition").problems("validation")
    assert len(problems) == found["problems"]["validation"]
    quarter = [problems[int(len(problems) * share)].row for share in (0, 0.25, 0.5, 0.75)]
    assert [sample["row"] for sample in found["samples"]] == quarter
    for sample in found["samples"]:
        a, b = divmod(sample["row"], 100)
        assert (sample["prompt"], sample["reference"]) == (f"{a}+{b}=", a + b)


@pytest.mark.parametrize("task", ["addition", "extraction", "picky"])
def test_show_fits_into_80_columns_and_is_plain(task: str, picky: None) -> None:
    answer = rung("task", "show", task, "-n", 7, "--split", "train")
    assert answer.code == 0
    assert all(len(line) <= 80 for line in answer.out.splitlines())
    assert "\x1b" not in answer.out
    if task == "picky":
        assert 'prompt     "a\\u001b[31m\\nb"' in answer.out
        lines = answer.out.splitlines()
        first = next(i for i, line in enumerate(lines) if line.startswith("  first    what the first row"))
        assert lines[first + 1].startswith(" " * 11)
        assert lines[first + 1].endswith("and goes on below")
        assert "shown      2 of train" in answer.out


def test_a_chat_is_shown_message_by_message() -> None:
    out = rung("task", "show", "extraction", "-n", 1).out
    lines = out.split("prompt     ")[1].split("reference")[0].splitlines()
    roles = [line.strip().split(":")[0] for line in lines]
    assert roles == ["system", "user", "assistant", "user"]
    assert lines[0] == 'system: "Copy name, age and city from the text into JSON."'
    assert 'reference  {"name": ' in out


def test_tokens_are_those_of_training() -> None:
    """A character tokenizer, by hand: the digits are 0 … 9, + is 10, = is 11."""
    for model in ("scratch", str(sft_run())):
        (sample,) = parsed("task", "show", "addition", "-n", 1, "--model", model)["samples"]
        assert sample["prompt"] == "0+0="
        assert [(t["id"], t["text"]) for t in sample["tokens"]] == [(0, "0"), (10, "+"), (0, "0"), (11, "=")]
        assert (sample["begin_tokens"], sample["tokens"][0]["special"]) == (0, False)
    out = rung("task", "show", "addition", "-n", 1, "--model", "scratch").out
    assert '0 "0"  10 "+"  0 "0"  11 "="' in out
    assert "no begin token" in out


def test_begin_tokens_are_counted(two_begins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain text gets one from the tokenizer, a chat one from its template, and text that has one gets a second."""
    prompts = ["two words", "<s>two", ({"role": "user", "content": "chat"},)]
    task = SimpleNamespace(
        name="begins", problems=lambda split: [Problem(i, prompt, None) for i, prompt in enumerate(prompts)]
    )
    monkeypatch.setitem(TASKS, "begins", lambda: task)  # type: ignore[arg-type]
    found = parsed("task", "show", "begins", "--model", two_begins)
    assert found["begin_token"] == "<s>"
    assert [sample["begin_tokens"] for sample in found["samples"]] == [1, 2, 1]
    assert found["samples"][0]["tokens"] == [
        {"id": 0, "text": "<s>", "special": True},
        {"id": 1, "text": " two", "special": False},
        {"id": 2, "text": " words", "special": False},
    ]
    out = rung("task", "show", "begins", "--model", two_begins).out
    assert '0 <s>  1 " two"  2 " words"' in out
    assert out.count("begin tokens 2 (twice") == 1


def test_score_says_what_each_completion_is_worth() -> None:
    found = parsed("task", "score", "addition", "--prompt", "7+58=", "-c", "65", "-c", "66", "-c", "65\n")
    assert (found["row"], found["reference"]) == (758, 65)
    assert [judgment["reward"] for judgment in found["completions"]] == [1.0, 0.0, 0.0]
    out = rung("task", "score", "addition", "--row", 758, "-c", "65").out
    assert "reference  65\n" in out
    assert out.endswith('completion "65"\nreward     1\n')


def test_score_of_a_record_with_two_values_right() -> None:
    problem = load_task("extraction").problems("test")[0]
    record = {**problem.reference, "age": str(problem.reference["age"])}
    words = ["task", "score", "extraction", "-c", json.dumps(record)]
    found = parsed(*words)  # without a row: the first test problem
    assert (found["split"], found["row"]) == ("test", problem.row)
    assert found["completions"][0]["reward"] == pytest.approx(1 / 3, abs=1e-15)
    by_prompt = parsed(*words, "--prompt", problem.prompt[-1]["content"])
    assert by_prompt == found


def test_every_outcome_is_the_one_of_training(picky: None) -> None:
    """By hand, and against the judge that training calls."""
    texts = ["4", "0", "x", "slow", "pass", "-2"]
    found = parsed("task", "score", "picky", *(word for text in texts for word in ("-c", text)))
    assert [(j["kind"], j["reward"]) for j in found["completions"]] == [
        ("reward", 0.25),
        ("error", None),
        ("error", None),
        ("timeout", None),
        ("abstain", None),
        ("reward", -0.5),
    ]
    assert found["completions"][1]["message"] == "ZeroDivisionError: division by zero"
    task = Picky()
    language = SimpleNamespace(decode=lambda ids: texts[ids[0]])
    sampled = [
        Completion((1,), (i,), (True,), (0.0,), (0,), group=0, sample=i, sampling_key=0, end_reason="stop")
        for i in range(len(texts))
    ]
    outcomes = judge(task, language, task.problems("test"), sampled).outcomes  # type: ignore[arg-type]
    assert [(o.kind, o.reward, o.message) for o in outcomes] == [
        (j["kind"], j["reward"], j["message"]) for j in found["completions"]
    ]
    out = rung("task", "score", "picky", "-c", "0", "-c", "slow", "-c", "pass").out
    assert "error      ZeroDivisionError: division by zero\n" in out
    assert "timeout    after 3 s\n" in out
    assert "abstain    (no message)\n" in out


def test_a_prompt_in_two_splits_is_looked_for_where_asked(picky: None) -> None:
    words = ["task", "score", "picky", "-c", "1", "--prompt", "twice"]
    assert (parsed(*words)["split"], parsed(*words, "--split", "validation")["row"]) == ("train", 4)


def test_standard_input_is_judged_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, reward in (("65", 1.0), ("65\n", 0.0)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        found = parsed("task", "score", "addition", "--row", 758, "-c", "66", "-c", "-")
        assert [j["completion"] for j in found["completions"]] == ["66", text]
        assert found["completions"][1]["reward"] == reward


def test_standard_input_that_is_no_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"6\xff"), encoding="utf-8"))
    answer = rung("task", "score", "addition", "-c", "-")
    assert (answer.code, answer.err) == (2, "error: standard input is no utf-8 text, at byte 1\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "show additon",
            'task "additon" is not known; there is addition, extraction; did you mean "addition"?',
        ),
        ("score Extract -c x", 'did you mean "extraction"?'),
        ("show zzz", 'task "zzz" is not known; there is addition, extraction\n'),
        ("show addition --split tset", 'split "tset" is not known; there is train, validation, test'),
        ("score addition -c 1 --row 10000", "no row 10000: it has 10000 problems, rows 0 to 9999"),
        ("score extraction -c 1 --row -1", "no row -1: it has 4800 problems, rows 0 to 4799"),
        ("score extraction -c 1 --row 7 --split test", "no row 7 in test: it is in train; say --split train"),
        ("score addition -c 1 --prompt 7+5", 'no problem with the prompt "7+5"'),
        ("score addition -c 1 --prompt 1+1= --row 1", "either --row or --prompt"),
        ("score addition -c - -c -", "can be read once"),
        ("show --model scratch", "name the task"),
        ("show extraction --model scratch", "no alphabet"),
        ("show addition --model models/not-there", "no such folder yet"),
    ],
)
def test_a_mistake_gets_one_line(words: str, said: str) -> None:
    answer = rung("task", *words.split())
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("words", [["task", "--help"], ["task", "show"], ["task", "show", "extraction"]])
def test_looking_at_a_task_loads_nothing_slow(words: list[str]) -> None:
    code = f"sys.argv = ['rung', *{words!r}]\nfrom rung.cli import main\ntry: main()\nexcept SystemExit: pass"
    assert loaded(code) == []


def test_scoring_loads_no_transformers() -> None:
    words = ["rung", "task", "score", "addition", "-c", "1"]
    code = f"sys.argv = {words!r}\nfrom rung.cli import main\ntry: main()\nexcept SystemExit: pass"
    assert "transformers" not in loaded(code)


def test_a_terminal_without_unicode_is_served() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rung", "task", "show"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert b'"7+58=" ? "65"' in done.stdout
