"""Losses of another library, called as they are: TRL's trainers, driven by whatever `verify` gives a loss.

    loss = trl_loss("GRPOTrainer", loss_type="dr_grpo", scale_rewards="none", max_completion_length=2)
    bias_and_variance(loss)

`trl_loss` replaces what a trainer would get from a model (completions, their log-probs) and nothing else: rewards are
TRL's to gather, advantages and the loss TRL's to compute. benchmarks/peers.py runs every loss type of TRL this way, and
as whole trainers with a model; TRL is imported when a loss is asked for.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from rung.errors import InvalidInput, UsageError
from rung.verify.peers.trainer import PROMPT, require_trl, table_model, trl_trainer

# What `trl_loss` decides itself, or cannot know.
_REFUSED = {
    "num_generations": "it is the size of the groups that come in",
    "per_device_train_batch_size": "it is the number of rows that come in",
    "generation_batch_size": "a batch is trained on as it comes in",
    "steps_per_generation": "a batch is trained on as it comes in",
    "gradient_accumulation_steps": "a batch is trained on as it comes in",
    "mask_truncated_completions": "log-probs do not say which completions were cut off",
}


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
    require_trl(trainer_class)
    _refuse(config)

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


def _refuse(config: Mapping[str, Any]) -> None:
    for name in config:
        if name in _REFUSED:
            raise UsageError(f"{name} cannot be set here: {_REFUSED[name]}")


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
