"""`rung sample`: completions of a prompt, with why each ended and its log-probability."""

import io
import itertools
import json
import math
from pathlib import Path

import pytest
import torch

import rung as package
from rung import api
from rung.models import loading
from tests.tiny import checkpoint_of, rung, sft_run


def samples(*words: object) -> list[dict[str, object]]:
    answer = rung("sample", sft_run(), "--json", *words)
    assert (answer.code, answer.err) == (0, "")
    found: list[dict[str, object]] = json.loads(answer.out)
    return found


def by_transformers(prompt: str, token_ids: list[int], temperature: float) -> float:
    """The log-probability of a completion by one plain pass over prompt and completion."""
    language = loading.load(str(checkpoint_of(sft_run()) / "model"))
    ids = [language.tokenizer.convert_tokens_to_ids(c) for c in prompt]
    with torch.no_grad():
        logits = language.model(torch.tensor([ids + token_ids])).logits[0, len(ids) - 1 : -1]
    return float((logits.double() / temperature).log_softmax(-1)[range(len(token_ids)), token_ids].sum())


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_log_probability_is_that_of_the_distribution_sampled(temperature: float) -> None:
    found = samples("-p", "12+34=", "-n", "3", "--temperature", temperature)
    assert len(found) == 3
    for line in found:
        assert line["logprob"] == pytest.approx(sum(line["logprobs"]), abs=1e-12)
        assert line["logprob"] == pytest.approx(
            by_transformers("12+34=", line["token_ids"], temperature), abs=1e-4
        )


def test_greedy_takes_the_best_token_at_each_place() -> None:
    (line,) = samples("-p", "12+34=", "--greedy")
    language = loading.load(str(checkpoint_of(sft_run()) / "model"))
    ids = [language.tokenizer.convert_tokens_to_ids(c) for c in "12+34="]
    with torch.no_grad():
        logits = language.model(torch.tensor([ids + line["token_ids"]])).logits[0, len(ids) - 1 : -1]
    assert logits.argmax(-1).tolist() == line["token_ids"]


def test_it_says_why_a_completion_ended() -> None:
    found = samples("-p", "12+34=", "-p", "1+1=", "-n", "6", "--max-new-tokens", "2")
    assert {line["end_reason"] for line in found} == {"stop", "length"}
    end = loading.load(str(checkpoint_of(sft_run()) / "model")).tokenizer.eos_token_id
    for line in found:
        assert (line["end_reason"] == "stop") == (line["token_ids"][-1] == end)
        assert len(line["text"]) == len(line["token_ids"]) - (line["end_reason"] == "stop")


def test_the_seed_decides_and_more_prompts_or_samples_change_nothing() -> None:
    few = samples("-p", "12+34=", "-n", "2", "--seed", "5")
    many = samples("-p", "12+34=", "-p", "7+8=", "-n", "5", "--seed", "5")
    assert [line["token_ids"] for line in many[:2]] == [line["token_ids"] for line in few]
    texts = [[line["text"] for line in samples("-p", "12+34=", "-n", "8", "--seed", s)] for s in (5, 6)]
    assert texts[0] != texts[1]


def test_prompts_come_from_standard_input_one_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("12+34=\n\n7+8=\n"))
    piped = samples("-p", "-", "-n", "2")
    assert piped == samples("-p", "12+34=", "-p", "7+8=", "-n", "2")
    assert [(line["prompt"], line["sample"]) for line in piped] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_the_plain_form_shows_the_same() -> None:
    words = ("-p", "12+34=", "-p", "7+8=", "-n", "1")
    answer = rung("sample", sft_run(), *words)
    assert answer.code == 0
    lines = answer.out.splitlines()
    expected = [
        (
            f"prompt {i + 1}: {prompt}",
            f"[1] {line['end_reason']}, {len(line['token_ids'])} token{'s' * (len(line['token_ids']) > 1)}, "
            f"log-probability {line['logprob']:.4f}",
            line["text"],
        )
        for i, (prompt, line) in enumerate(zip(("12+34=", "7+8="), samples(*words), strict=True))
    ]
    assert lines == list(itertools.chain(*expected))
    assert "\x1b" not in answer.out


def test_four_samples_and_as_many_tokens_as_there_is_room_for_by_default() -> None:
    prompt = "+" * 62  # of 64 positions
    found = samples("-p", prompt)
    assert len(found) == 4
    assert max(len(line["token_ids"]) for line in found) <= 2


def test_a_chat_prompt_is_a_users_message_through_the_template(tmp_path: Path) -> None:
    language = loading.load(str(checkpoint_of(sft_run()) / "model"))
    language.tokenizer.chat_template = "{{ messages[0]['content'] }}="
    language.save(tmp_path / "chat")
    plain = samples("-p", "12+34=", "-n", "3")
    answer = rung("sample", tmp_path / "chat", "-p", "12+34", "-n", "3", "--chat", "--json")
    assert json.loads(answer.out) == plain
    assert "chat template" in " ".join(rung("sample", "--help").out.split())


def test_control_characters_do_not_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = api.Sample(0, 0, "a\x1b[2Jb\nc", "stop", -0.5, (1, 2), (-0.25, -0.25))
    monkeypatch.setattr(api, "sample", lambda *_, **__: [fake])
    assert rung("sample", "any", "-p", "x").out == (
        "[1] stop, 2 tokens, log-probability -0.5000\na\\x1b[2Jb\nc\n"
    )


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["-p", "12+34=", "--temperature", "0"], "use greedy"),
        (["-p", "12+34=", "--temperature", "nan"], "must be positive"),
        (["-p", "12+34=", "--greedy", "-n", "2"], "ask for one, not 2"),
        (["-p", ""], "prompt 1 has no token"),
        (["-p", "1+1=", "-p", "abc"], "cannot encode 'abc'"),
        (["-p", "1+1=", "--max-new-tokens", "61"], "lower max_new_tokens"),
        (["-p", "1+1=", "--chat"], "no chat template"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], what: str) -> None:
    answer = rung("sample", sft_run(), *words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert what in answer.err


def test_no_model_and_no_prompt_are_mistakes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = rung("sample", "./nowhere", "-p", "1+1=")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "no such folder" in answer.err
    assert rung("sample", sft_run()).code == 2
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "there is no prompt" in rung("sample", sft_run(), "-p", "-").err


def test_it_is_there_as_a_python_call() -> None:
    assert package.sample is api.sample
    (first, *_) = package.sample(sft_run(), "12+34=")
    assert math.isclose(first.logprob, math.fsum(first.logprobs), abs_tol=1e-12)
    with pytest.raises(package.errors.UsageError, match="at least one sample"):
        package.sample(sft_run(), "12+34=", n=0)
