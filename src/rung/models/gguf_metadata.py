"""What a GGUF file says about itself, read without its weights: architecture, end tokens, how it cuts text."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerBase

from rung.errors import ModelError, UsageError

_MAGIC = b"GGUF"
_CONTROL = 3  # token type of markers that never stand for text
_TOKENS = "tokenizer.ggml.tokens"
# Names of end tokens that families of chat models use. A model that writes one of them has finished.
_END_TEXTS = frozenset(
    {"<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>"}
    | {"<end_of_turn>", "<turn|>", "<eos>", "</s>", "<|eot|>", "<|END_OF_TURN_TOKEN|>"}
)
# Pre-tokenizers that cut off every digit before they cut as GPT-2 does. transformers cuts as GPT-2 alone, which
# gives other ids for several blanks before a number.
_DIGITS_ALONE = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
_GPT2 = frozenset({"default", "gpt-2", "gpt2"})


@dataclass(frozen=True)
class Header:
    """The metadata of a GGUF file: its keys as the format spells them."""

    values: dict[str, Any]

    @property
    def architecture(self) -> str:
        """The name that llama.cpp has for the architecture, such as llama or qwen2."""
        return str(self.values["general.architecture"])

    def describe(self) -> str:
        """The model's name and architecture, for people."""
        name = self.values.get("general.name") or "a model without a name"
        return f"{name} ({self.architecture})"

    def end_ids(self) -> list[int]:
        """Ids that end an answer: those declared, then control tokens whose text is known to end one."""
        declared = [self.values.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
        kinds = self.values.get("tokenizer.ggml.token_type") or []
        named = [
            index
            for index, (text, kind) in enumerate(zip(self.values.get(_TOKENS) or [], kinds, strict=False))
            if kind == _CONTROL and text in _END_TEXTS
        ]
        return list(dict.fromkeys([token for token in declared if token is not None] + named))

    def mend_pre_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Cut digits off one by one where the file says so."""
        if self._cut() in _DIGITS_ALONE:
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Digits(individual_digits=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
                ]
            )

    def tokenizer_note(self) -> str | None:
        """A warning where nobody knows how this file cuts text into words; None if all is well."""
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

        cut = self._cut()
        if cut is None or cut in _DIGITS_ALONE or cut in _GPT2 or cut in GGUF_PRE_TOKENIZER_SPLITS:
            return None
        return f'note: the way "{cut}" cuts text is not known; it is cut as GPT-2 does, some ids may differ'

    def _cut(self) -> str | None:
        """The name of the file's pre-tokenizer; None where the vocabulary is not byte-level."""
        if self.values.get("tokenizer.ggml.model") != "gpt2":
            return None
        return str(self.values.get("tokenizer.ggml.pre", "default"))


def read(source: Path) -> Header:
    """Read a GGUF file's metadata.

    Raises:
        UsageError: the file is missing, or is no GGUF file, or one part of several.
        ModelError: the file is damaged.
    """
    if not source.is_file():
        raise UsageError(f"{source}: {'is a folder, not a GGUF file' if source.is_dir() else 'no such file'}")
    with source.open("rb") as file:
        magic = file.read(len(_MAGIC))
    if magic != _MAGIC:
        raise UsageError(
            f"{source} is not a GGUF file: it starts with {magic!r} instead of {_MAGIC!r}. "
            "A folder with config.json and *.safetensors needs no import"
        )
    from transformers.integrations.gguf.reader import read_gguf_metadata

    try:
        values, _ = read_gguf_metadata(str(source), (_TOKENS,))
    except (ValueError, IndexError, KeyError, struct.error, OverflowError, MemoryError) as error:
        raise ModelError(f"{source} is damaged or was cut off ({error}): fetch it again") from error
    if int(values.get("split.count") or 1) > 1:
        raise UsageError(
            f"{source} is one part of {values['split.count']}: join them first with "
            "llama-gguf-split --merge FIRST_PART OUT"
        )
    return Header(values)
