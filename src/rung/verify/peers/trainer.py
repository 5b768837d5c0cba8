"""A trainer of TRL on a model that is a table, for measuring what the trainer does as a whole.

TRL and transformers are imported when they are asked for; importing this module needs only torch.
"""

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from rung.errors import UsageError

TRAINERS = ("RLOOTrainer", "GRPOTrainer")
PROMPT, PAD = "<prompt>", "<pad>"
# So low that the probability is 0 in float32, and finite, so that nothing becomes NaN.
_IMPOSSIBLE = -1e4


def require_trl(trainer_class: str = TRAINERS[0]) -> None:
    """Refuse what cannot be measured here, with what to do.

    Raises:
        UsageError: it is not one of `TRAINERS`, or TRL is not installed.
    """
    if trainer_class not in TRAINERS:
        raise UsageError(f"there is {' and '.join(TRAINERS)}, not {trainer_class!r}")
    missing = [name for name in ("trl", "transformers", "datasets") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"measuring TRL needs {' and '.join(missing)}: install TRL with: pip install trl==1.16.0, "
            f"or let `python benchmarks/peers.py` build an environment that has it"
        )


def trl_trainer(
    trainer_class: str,
    config: Mapping[str, Any],
    *,
    model: Any,
    reference: Any,
    batch_size: int,
    group_size: int,
    reward: Callable[..., Sequence[float]],
) -> Any:
    """A trainer of TRL on a table, at the state in which its own loop would call `training_step`.

    Args:
        trainer_class: "RLOOTrainer" or "GRPOTrainer".
        config: settings of its configuration class. With `use_vllm` the trainer treats its samples as an engine's;
            whoever replaces its sampling provides them.
        model: the policy, of `table_model`.
        reference: what TRL will load as the reference where there is a KL term.
        batch_size: completions in a batch.
        group_size: G.
        reward: TRL's reward function.

    Raises:
        UsageError: TRL is not installed.
    """
    require_trl(trainer_class)
    trl, datasets = import_module("trl"), import_module("datasets")
    settings = {name: value for name, value in config.items() if name != "use_vllm"}
    with _quiet(), TemporaryDirectory(prefix="rung-peer-") as folder:
        reference.save_pretrained(folder)
        model.config._name_or_path = folder
        arguments = getattr(trl, trainer_class.replace("Trainer", "Config"))(
            output_dir=folder,
            per_device_train_batch_size=batch_size,
            num_generations=group_size,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            **settings,
        )
        trainer = getattr(trl, trainer_class)(
            model=model,
            reward_funcs=reward,
            args=arguments,
            train_dataset=datasets.Dataset.from_dict({"prompt": [PROMPT]}),
            processing_class=_tokenizer(model.config.vocab_size - 2, model.config.eos_token_id),
        )
    trainer.use_vllm = bool(config.get("use_vllm", False))
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def table_model(vocabulary_size: int, end_token: int) -> Any:
    """A Llama without layers, whose next-token logits are a column of its head for each last token.

    The embedding is one-hot and frozen and the norm undoes its own scale, so that the head's weight [V, context] is
    the table of logits; for sequences of at most two tokens the last token says the whole prefix. Two ids come after
    the vocabulary, prompt and padding, and are never sampled.

    Returns:
        A `LlamaForCausalLM` in float32 with uniform logits; `set_table` changes them.

    Raises:
        UsageError: transformers is not installed.
    """
    require_trl()
    transformers = import_module("transformers")
    ids = vocabulary_size + 2
    width = 4
    while width < ids:
        width *= 4  # its square root is a power of two: the norm is exact in float32
    with _quiet():
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=ids,
                hidden_size=width,
                intermediate_size=1,
                num_hidden_layers=0,
                num_attention_heads=1,
                num_key_value_heads=1,
                rms_norm_eps=0.0,
                tie_word_embeddings=False,
                bos_token_id=None,
                eos_token_id=end_token,
                pad_token_id=ids - 1,
            )
        )
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(ids, width))
        model.model.norm.weight.fill_(width**-0.5)
        model.lm_head.weight.zero_()[vocabulary_size:] = _IMPOSSIBLE
    model.model.requires_grad_(False)
    return model


def set_table(model: Any, rows: Mapping[int, Sequence[float]]) -> None:
    """Give a table's contexts their logits: last token → [V]. The prompt's id is V."""
    with torch.no_grad():
        for context, logits in rows.items():
            model.lm_head.weight[: len(logits), context] = torch.tensor(logits)


def _tokenizer(vocabulary_size: int, end_token: int) -> Any:
    """Words for the ids of a table."""
    transformers, tokenizers = import_module("transformers"), import_module("tokenizers")
    words = [f"<{token}>" for token in range(vocabulary_size)] + [PROMPT, PAD]
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=PAD)
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=words[end_token], pad_token=PAD, padding_side="left"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Build a model or trainer without progress bars, deprecation notes, or a change to anybody's random state."""
    logging = import_module("transformers.utils.logging")
    bars = logging.is_progress_bar_enabled()
    state, numbers = random.getstate(), np.random.get_state()
    logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        random.setstate(state)
        np.random.set_state(numbers)
        if bars:
            logging.enable_progress_bar()
