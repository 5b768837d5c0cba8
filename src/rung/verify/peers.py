"""Losses of another library, called as they are: TRL's trainers, driven by whatever `verify` gives a loss.

    loss = trl_loss("GRPOTrainer", loss_type="dr_grpo", scale_rewards="none", max_completion_length=2)
    bias_and_variance(loss)

`trl_loss` replaces what a trainer would get from a model (completions, their log-probs) and nothing else: rewards are
TRL's to gather, advantages and the loss TRL's to compute. `table_model` and `trl_trainer` are for the whole way, model
included: benchmarks/peers.py runs every loss type of TRL both ways.

TRL and transformers are imported when they are asked for; importing this module needs only torch.
"""

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from rung.errors import InvalidInput, UsageError

TRAINERS = ("RLOOTrainer", "GRPOTrainer")
PROMPT, PAD = "<prompt>", "<pad>"
# What `trl_loss` decides itself, or cannot know.
_REFUSED = {
    "num_generations": "it is the size of the groups that come in",
    "per_device_train_batch_size": "it is the number of rows that come in",
    "generation_batch_size": "a batch is trained on as it comes in",
    "steps_per_generation": "a batch is trained on as it comes in",
    "gradient_accumulation_steps": "a batch is trained on as it comes in",
    "mask_truncated_completions": "log-probs do not say which completions were cut off",
}
# So low that the probability is 0 in float32, and finite, so that nothing becomes NaN.
_IMPOSSIBLE = -1e4


def trl_loss(trainer_class: str, **config: Any) -> Callable[..., torch.Tensor]:
    """A loss of TRL as a function of log-probs, rewards and groups: advantages and loss are TRL's own code.

    Old log-probs are held as TRL holds them: always by RLOO; by GRPO with `num_iterations` above 1, or with an engine.
    `use_vllm=True` stands for an engine without starting one: the behaviour log-probs are what it reported.

    Source: von Werra et al., TRL 1.16.0, `RLOOTrainer` and `GRPOTrainer`.

    Args:
        trainer_class: "RLOOTrainer" or "GRPOTrainer".
        config: settings of its configuration class, by TRL's names. What is not given has TRL's default; only
            precision is set here (no bfloat16), since an exact comparison needs it.

    Returns:
        loss(policy_logprobs, old_logprobs, behaviour_logprobs, reference_logprobs, rewards, mask, groups, entropy)
        → scalar, differentiable in `policy_logprobs` and `entropy`. TRL keeps rewards and advantages in float32.
        Its batches are groups of one size, and masks without holes; others raise `InvalidInput`.

    Raises:
        UsageError: TRL is not installed, or a setting is one that the arriving batch decides.

    Exactness:
        Equal to TRL's trainers run as a whole, model included, to 1e-6 in each component of the mean gradient, for
        every loss type. Checked by tests/verify/test_peers.py::test_every_loss_of_trl_is_what_was_derived.
    """
    _require(trainer_class, config)

    @cache
    def driven(rows: int, group_size: int) -> _Driven:
        return _Driven(trainer_class, config, rows, group_size)

    def loss(
        policy_logprobs: torch.Tensor,
        old_logprobs: torch.Tensor,
        behaviour_logprobs: torch.Tensor,
        reference_logprobs: torch.Tensor,
        rewards: torch.Tensor,
        mask: torch.Tensor,
        groups: torch.Tensor,
        entropy: torch.Tensor,
    ) -> torch.Tensor:
        order, group_size = _by_group(mask, groups)
        length = int(mask.sum(1).max())
        given = {
            "policy": policy_logprobs,
            "old": old_logprobs,
            "behaviour": behaviour_logprobs,
            "reference": reference_logprobs,
            "entropy": entropy,
        }
        counts = mask[order, :length]
        rows = {name: torch.where(counts, x[order, :length], 0.0) for name, x in given.items()}
        return driven(len(order), group_size)(rows, rewards[order].tolist(), counts.sum(1).tolist())

    return loss


def _by_group(mask: torch.Tensor, groups: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Rows in TRL's order, each group's next to each other, and the size of all groups.

    >>> _by_group(torch.tensor([[True], [True], [True], [True]]), torch.tensor([7, 3, 7, 3]))
    (tensor([1, 3, 0, 2]), 2)
    """
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()) or not bool(mask.any(1).all()):
        raise InvalidInput("TRL's batches have no holes in a mask and at least one token in each row")
    sizes = torch.unique(groups, return_counts=True)[1].tolist()
    if len(set(sizes)) > 1 or sizes[0] < 2:
        raise InvalidInput(f"TRL's groups are of one size, at least 2; here are groups of {sizes}")
    return torch.argsort(groups, stable=True), sizes[0]


def _require(trainer_class: str, config: Mapping[str, Any]) -> None:
    if trainer_class not in TRAINERS:
        raise UsageError(f"there is {' and '.join(TRAINERS)}, not {trainer_class!r}")
    for name in config:
        if name in _REFUSED:
            raise UsageError(f"{name} cannot be set here: {_REFUSED[name]}")
    missing = [name for name in ("trl", "transformers", "datasets") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"measuring TRL needs {' and '.join(missing)}: install TRL with: pip install trl==1.16.0, "
            f"or let `python benchmarks/peers.py` build an environment that has it"
        )


class _Driven:
    """One trainer for batches of one shape; between calls it holds nothing but TRL's empty metrics."""

    def __init__(self, trainer_class: str, config: Mapping[str, Any], rows: int, group_size: int) -> None:
        model = table_model(2, 1)
        self.trainer = trl_trainer(
            trainer_class,
            config,
            model=model,
            reference=model,
            batch_size=rows,
            group_size=group_size,
            reward=lambda **_: self.rewards,
        )
        self.trainer._generate_single_turn = self._generate
        self.trainer._get_per_token_logps_and_entropies = self._logprobs
        self.rewards: list[float] = []
        self.lengths: list[int] = []
        self.given: dict[str, torch.Tensor] = {}
        self.generating = False

    def __call__(
        self, given: dict[str, torch.Tensor], rewards: list[float], lengths: list[int]
    ) -> torch.Tensor:
        """The loss of one batch, its rows in TRL's order, 0 off the mask."""
        self.given, self.rewards, self.lengths = given, rewards, lengths
        trainer = self.trainer
        trainer.model.train()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self.generating = True
            batch = trainer._generate_and_score_completions([{"prompt": PROMPT}] * len(rewards))
            self.generating = False
            loss: torch.Tensor = trainer.compute_loss(trainer.model, batch)
        trainer._metrics["train"].clear()
        return loss

    def _generate(self, *_: Any, **__: Any) -> Any:
        """Completions of the right lengths; RLOO asks for no log-probs."""
        ids = [[0] * (length - 1) + [1] for length in self.lengths]
        if not hasattr(self.trainer, "loss_type"):
            return ids
        if not self.trainer.use_vllm:
            return ids, None
        reported = self.given["behaviour"].tolist()
        return ids, [row[:length] for row, length in zip(reported, self.lengths, strict=True)]

    def _logprobs(self, model: Any, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor, None]:
        """The log-probs that the trainer would have computed with this model, at this moment."""
        if model is self.trainer.ref_model:
            name = "reference"
        else:
            name = "old" if self.generating else "policy"
        return self.given[name], self.given["entropy"], None


# --- a trainer of TRL on a model that is a table ---------------------------------------------------------------------


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
    _require(trainer_class, {})
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
    _require(TRAINERS[0], {})
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
