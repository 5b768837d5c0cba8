"""Models and tokenizers: from a folder, from a hub id, or small ones from nothing."""

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from jinja2.exceptions import TemplateError
from safetensors import SafetensorError
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from rung.errors import InvalidInput, ModelError, UsageError
from rung.models.attention import NAME, register

END_TOKEN = "<end>"


@dataclass(frozen=True)
class LanguageModel:
    """A causal language model with its tokenizer and every token that ends an answer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    end_ids: frozenset[int]

    def encode(self, prompt: str | Sequence[dict[str, str]]) -> tuple[int, ...]:
        """The prompt's ids: plain text as the tokenizer does it, messages through the chat template.

        A chat prompt ends with the generation prompt, and the template writes its own begin token: none is added.

        Raises:
            InvalidInput: the text has characters that the tokenizer has no token for.
            ModelError: messages, and the tokenizer has no chat template, or one that refuses them.
        """
        text = prompt if isinstance(prompt, str) else self._chat(prompt)
        try:
            return tuple(self.tokenizer(text, add_special_tokens=isinstance(prompt, str))["input_ids"])
        except Exception as error:  # tokenizers raises nothing more precise
            raise InvalidInput(f"the tokenizer cannot encode {text[:80]!r}: {error}") from error

    def _chat(self, messages: Sequence[dict[str, str]]) -> str:
        if self.tokenizer.chat_template is None:
            raise ModelError(
                "the tokenizer has no chat template: give prompts as plain text, not as messages"
            )
        try:
            return self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ModelError(f"the model's chat template refuses messages of the roles {roles}: {error}") from error

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a completion, without the end token. For people and for rewards only."""
        ids = list(token_ids)
        if ids and ids[-1] in self.end_ids:
            ids = ids[:-1]
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder that `load` and transformers read."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def quiet_transformers() -> None:
    """Keep transformers' own progress bars and notices out of rung's output."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def _end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    found: set[int] = set()
    for holder in (model.generation_config, model.config):
        value = getattr(holder, "eos_token_id", None)
        found.update([value] if isinstance(value, int) else value or [])
    if tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    if not found:
        raise ModelError(
            "the model declares no end token: neither its configuration nor its tokenizer has one"
        )
    return frozenset(found)


def check_name(name: str) -> None:
    """Whether a model of that name can be there at all.

    Raises:
        UsageError: it is neither a Hugging Face folder nor a hub id.
    """
    if Path(name).is_dir():
        if not (Path(name) / "config.json").is_file():
            raise UsageError(
                f'model "{name}": the folder has no config.json, so it is not a Hugging Face model'
            )
        return
    if name.startswith("runs/") and len(Path(name).parts) > 1:
        raise UsageError(
            f'model "{name}": there is no such run yet. A recipe of that name makes it: rung train '
            f"{Path(name).parts[1]}. `ls runs` shows the runs that are there"
        )
    if name.startswith("models/"):
        raise UsageError(
            f'model "{name}": no such folder yet. `make smollm2`, or `rung import FILE.gguf {name}`, makes one'
        )
    hub_id = name.count("/") == 1 and not name.startswith((".", "/", "~"))
    if not hub_id:
        raise UsageError(
            f'model "{name}": no such folder. Give the path of a Hugging Face folder (config.json, *.safetensors, '
            "tokenizer files), of a run, or a hub id such as org/name"
        )


def tokenizer_only(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, without its weights."""
    check_name(name)
    quiet_transformers()
    return AutoTokenizer.from_pretrained(name)


def load(name: str, *, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """A causal language model from a local Hugging Face folder, or by hub id where there is a network.

    Raises:
        UsageError: nothing of that name.
        ModelError: it is there but cannot be read, or lacks some of its weights.
    """
    register()
    quiet_transformers()
    check_name(name)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, output_loading_info=True)
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f'model "{name}" could not be loaded: {reason}') from error
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise ModelError(
            f'model "{name}" lacks {len(missing)} of its weights ({", ".join(missing[:3])}, …): '
            "transformers would fill them with random numbers"
        )
    # Ours stands in for SDPA alone: models for which transformers chooses otherwise (score capping, attention sinks,
    # ALiBi, recurrent layers) keep what it chose, and run padded.
    if model.config._attn_implementation == "sdpa" and model._supports_attention_backend:
        model.set_attn_implementation(NAME)
    model.eval()
    return LanguageModel(model, tokenizer, _end_ids(model, tokenizer))


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy that never changes: the reference that a penalty is measured against."""
    twin = copy.deepcopy(model)
    twin.requires_grad_(False)
    return twin.eval()


def character_tokenizer(characters: str) -> PreTrainedTokenizerFast:
    """A tokenizer with one token a character, and an end token that also pads. Other characters are an error."""
    vocabulary = {character: i for i, character in enumerate(characters)} | {END_TOKEN: len(characters)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_TOKEN, pad_token=END_TOKEN)


def scratch(characters: str, *, seed: int, **sizes: Any) -> LanguageModel:
    """A small Llama with random weights over a character vocabulary.

    Args:
        characters: the alphabet.
        seed: of the weights.
        **sizes: fields of `LlamaConfig`: hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, ….
    """
    register()
    quiet_transformers()
    tokenizer = character_tokenizer(characters)
    end = tokenizer.eos_token_id
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
        tie_word_embeddings=True,
        **sizes,
    )
    config._attn_implementation = NAME
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return LanguageModel(model.eval(), tokenizer, _end_ids(model, tokenizer))
