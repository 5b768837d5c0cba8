"""TRL's trainers on every batch that toy C can give: their own training step, and the gradient that it leaves."""

import itertools
from typing import Any

import numpy as np
import torch

from benchmarks.peers_trl.expected import Row, moments
from benchmarks.peers_trl.parts import BEHAVIOUR, MDP, POLICY, REFERENCE, Array, Sample, samples
from rung import exact
from rung.verify.peers import trl_loss
from rung.verify.peers.trainer import PROMPT, set_table, table_model, trl_trainer
from rung.verify.unbiased import bias_and_variance

V = MDP.vocabulary_size
CONTEXTS = [V, *(prefix[-1] for prefix in MDP.prefixes() if prefix)]  # the prompt's id, then the last token


def _table(policy: exact.SoftmaxTable) -> dict[int, list[float]]:
    return {context: row.tolist() for context, row in zip(CONTEXTS, policy.logits, strict=True)}


def through_trainer(row: Row, size: int) -> exact.Moments:
    """Exact moments of −∇loss, each batch's gradient as `training_step` leaves it on the model's parameters."""
    torch.set_num_threads(1)
    torch.manual_seed(0)  # TRL shuffles the rows of a batch: the last digits of a float32 sum depend on it
    peer = _Whole(row, size)
    drawn = itertools.product(samples(row.situation), repeat=size * row.prompts)
    return moments(
        [(float(np.prod([p for _, p in draw])), peer.ascent([x for x, _ in draw])) for draw in drawn]
    )


class _Whole:
    """One trainer, its sampling replaced by a list of sequences."""

    def __init__(self, row: Row, size: int) -> None:
        self.row, self.batch = row, list[Sample]()
        self.model, reference = table_model(V, MDP.end_token or 0), table_model(V, MDP.end_token or 0)
        set_table(reference, _table(REFERENCE))
        set_table(self.model, _table(POLICY))
        self.trainer = trl_trainer(
            row.trainer,
            {"max_completion_length": MDP.max_length, **row.config},
            model=self.model,
            reference=reference,
            batch_size=size * row.prompts,
            group_size=size,
            reward=self._reward,
        )
        self.trainer._generate_single_turn = self._generate

    def _reward(self, completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [MDP.total_return(tuple(tokens)) for tokens in completion_ids]

    def _generate(self, *_: Any, **__: Any) -> Any:
        tokens = [list(x.tokens) for x in self.batch]
        if self.row.trainer == "RLOOTrainer":
            return tokens
        engine = [x.behaviour.tolist() for x in self.batch] if self.trainer.use_vllm else None
        return tokens, engine

    def ascent(self, batch: list[Sample]) -> Array:
        """−∇loss of one batch, in the order of the toy's parameters."""
        self.batch = batch
        inputs = [{"prompt": PROMPT}] * len(batch)
        if self.row.situation == "stale":  # a first pass at the weights that sample; its gradient is not used
            set_table(self.model, _table(BEHAVIOUR))
            self.trainer.training_step(self.model, inputs, None)
            set_table(self.model, _table(POLICY))
        self.model.zero_grad()
        self.trainer.training_step(self.model, inputs, None)
        self.trainer._metrics["train"].clear()
        gradient = self.model.lm_head.weight.grad
        return -gradient[:V, CONTEXTS].T.reshape(-1).double().numpy()


def through_logprobs(row: Row, size: int) -> exact.Moments | None:
    """The same by the adapter, which has no model; None for what log-probs cannot tell."""
    if "mask_truncated_completions" in row.config:
        return None
    loss = trl_loss(row.trainer, max_completion_length=MDP.max_length, **row.config)
    found = bias_and_variance(loss, group_size=size, situation=row.situation).moments
    return exact.Moments(found.ascent, found.covariance)
