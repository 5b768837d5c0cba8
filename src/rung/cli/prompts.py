"""Prompts, tokens and outcomes for people: in 80 columns, with what cannot be seen written out."""

import json
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rung.errors import ModelError, UsageError

if TYPE_CHECKING:
    from rung.tasks import Message, Task

WIDTH = 80
LABEL = 11  # columns before a value


class TokenViewer:
    """How a model's tokenizer writes the prompts of a task, as training encodes them. The weights are not loaded.

    Attributes:
        begin_token: the text of the token that begins a sequence, or None where the tokenizer has none.
    """

    def __init__(self, model: str, task: "Task") -> None:
        from rung.models.loading import LanguageModel, character_tokenizer, tokenizer_only
        from rung.training.session import resolve_model

        tokenizer: Any
        if model == "scratch":
            if not hasattr(task, "characters"):
                raise UsageError(
                    f'task "{task.name}" has no alphabet for --model scratch; give a model folder'
                )
            tokenizer = character_tokenizer(task.characters)
        else:
            try:
                tokenizer = tokenizer_only(resolve_model(model))
            except (OSError, ValueError, KeyError, ImportError) as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise ModelError(f'the tokenizer of model "{model}" could not be loaded: {reason}') from error
        self._tokenizer = tokenizer
        self._encode = LanguageModel(None, tokenizer, frozenset()).encode  # type: ignore[arg-type]
        added = self._tokenizer.added_tokens_decoder
        self._special = {
            *self._tokenizer.all_special_ids,
            *(i for i, token in added.items() if token.special),
        }
        self.begin_token: str | None = self._tokenizer.bos_token

    def tokens(self, prompt: "str | Sequence[Message]") -> dict[str, Any]:
        """A prompt's tokens, each with its text, and how many begin tokens it starts with: two are a mistake."""
        ids = self._encode(prompt)
        begin = 0
        while begin < len(ids) and ids[begin] == self._tokenizer.bos_token_id:
            begin += 1
        tokens = [{"id": i, "text": self._text(i), "special": i in self._special} for i in ids]
        return {"tokens": tokens, "begin_tokens": begin}

    def _text(self, token: int) -> str:
        """What a token stands for; of a token that is no whole character, the vocabulary's own name."""
        name = str(self._tokenizer.convert_ids_to_tokens(token))
        text: str = self._tokenizer.decode(
            [token], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        if not text or "\ufffd" in text:
            return name
        dropped = name.startswith("▁") and not text.startswith(" ")  # decoders drop a text's first space
        return f" {text}" if dropped else text


def print_task(found: dict[str, Any]) -> None:
    """A task, its splits and some of its problems."""
    print(found["task"])
    print(_reflowed(found["description"]))
    print()
    print("problems   " + "   ".join(f"{split} {size:,}" for split, size in found["problems"].items()))
    print(f"shown      {len(found['samples'])} of {found['split']}")
    if "model" in found:
        begin = found["begin_token"]
        print(f"model      {found['model']}")
        print(f"begin      {'the tokenizer has no begin token' if begin is None else begin}")
        print("tokens     each as: id and text; special tokens stand without quotes")
    for sample in found["samples"]:
        print()
        _print_problem(sample)
        if "tokens" in sample:
            _print_tokens(sample)


def print_score(found: dict[str, Any]) -> None:
    """A problem, and what was said of each completion."""
    print(f"{found['task']}, {found['split']}")
    _print_problem(found)
    for judgment in found["completions"]:
        print()
        _print_value("completion", quoted(judgment["completion"]))
        if judgment["kind"] == "reward":
            _print_value("reward", f"{judgment['reward']:.6g}")
        else:
            _print_value(judgment["kind"], _visible(judgment["message"]) or "(no message)")


def quoted(text: str) -> str:
    r"""A text in double quotes, on one line: line breaks and control characters are written out.

    >>> print(quoted("7\n"))
    "7\n"
    """
    return _visible(json.dumps(text, ensure_ascii=False))


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _print_problem(problem: dict[str, Any]) -> None:
    _print_value("row", str(problem["row"]))
    prompt = problem["prompt"]
    if isinstance(prompt, str):
        _print_value("prompt", quoted(prompt))
    else:
        for i, message in enumerate(prompt):
            _print_value("" if i else "prompt", f"{message['role']}: {quoted(message['content'])}")
    _print_value("reference", _visible(json.dumps(problem["reference"], ensure_ascii=False)))


def _print_value(label: str, text: str) -> None:
    lines = textwrap.wrap(text, WIDTH - LABEL, break_on_hyphens=False) or [""]
    for i, line in enumerate(lines):
        print(f"{'' if i else label:<{LABEL}}{line}")


def _print_tokens(sample: dict[str, Any]) -> None:
    tokens, begin = sample["tokens"], sample["begin_tokens"]
    note = " (twice: the text and the tokenizer both write it)" if begin > 1 else ""
    _print_value("tokens", f"{len(tokens)}, begin tokens {begin}{note}")
    line = ""
    for token in tokens:
        word = f"{token['id']} {_visible(token['text']) if token['special'] else quoted(token['text'])}"
        if line and len(line) + 2 + len(word) > WIDTH - LABEL:
            print(" " * LABEL + line)
            line = word
        else:
            line = f"{line}  {word}" if line else word
    print(" " * LABEL + line)


def _reflowed(text: str) -> str:
    """A docstring in 80 columns: paragraphs are filled, the rows of an indented table stay rows."""
    return "\n\n".join(_filled(paragraph) for paragraph in text.split("\n\n"))


def _filled(paragraph: str) -> str:
    if not paragraph.startswith(" "):
        return textwrap.fill(" ".join(paragraph.split()), WIDTH)
    indent = len(paragraph) - len(paragraph.lstrip())
    rows: list[str] = []
    for line in paragraph.splitlines():
        if line[indent : indent + 1] == " ":  # deeper: the row above goes on
            rows[-1] += " " + line.strip()
        else:
            rows.append(line[indent:])
    filled = []
    for row in rows:
        first, gap, rest = re.fullmatch(r"(.*?)(\s{2,}|$)(.*)", row).groups()  # type: ignore[union-attr]
        head = f"  {first}{gap}"
        filled.append(
            textwrap.fill(rest, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
            if rest
            else head
        )
    return "\n".join(filled)
