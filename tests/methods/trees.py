"""Problems of one prompt as tables: what training and the definitions of methods share."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from rung.exact import Prefix, SoftmaxTable, TokenMDP
from rung.methods import Method, TrainingBatch
from tests.enumeration import ONE_PROMPT, THREE_TOKENS, Problem

Array = NDArray[np.float64]


def softmax(logits: Array) -> Array:
    """Over the last axis."""
    weights = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@dataclass(frozen=True)
class Tree:
    """A problem of one prompt, in plain numpy: arrays in the order of its sequences, tables [prefixes, V]."""

    problem: Problem

    @property
    def mdp(self) -> TokenMDP:
        return self.problem.prompts[0][1]

    @cached_property
    def tokens(self) -> list[Prefix]:
        return [tokens for _, tokens, _ in self.problem.sequences]

    @cached_property
    def rewards(self) -> Array:
        return np.array([reward for _, _, reward in self.problem.sequences])

    @cached_property
    def lengths(self) -> Array:
        return np.array([float(len(tokens)) for tokens in self.tokens])

    @cached_property
    def choices(self) -> list[list[tuple[int, int]]]:
        """(row, token) of every token of every sequence."""
        rows = {prefix: row for row, prefix in enumerate(self.mdp.prefixes())}
        return [[(rows[tokens[:t]], token) for t, token in enumerate(tokens)] for tokens in self.tokens]

    @cached_property
    def start(self) -> Array:
        return softmax(np.array(self.problem.policy.logits))

    @cached_property
    def reference(self) -> Array:
        return softmax(np.array(self.problem.reference.logits))

    def sequences(self, policy: Array) -> Array:
        """p(τ) of every sequence."""
        return np.array([np.prod([policy[choice] for choice in choices]) for choices in self.choices])

    def objective(self, policy: Array) -> float:
        """J = E[R]."""
        return float(self.sequences(policy) @ self.rewards)

    def at_choices(self, values: Array) -> Array:
        """Σ of the values of the sequences that pass through (s, a): a table."""
        found = np.zeros(self.start.shape)
        for value, choices in zip(values, self.choices, strict=True):
            for choice in choices:
                found[choice] += value
        return found

    def table(self, logits: torch.Tensor) -> SoftmaxTable:
        """The policy of these logits, as the enumeration takes one."""
        return SoftmaxTable(self.mdp.prefixes(), logits.detach().numpy().reshape(self.start.shape))

    @cached_property
    def places(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(row, token, whether there is one), [sequences, T] each: where each token stands in a table."""
        width = max(map(len, self.choices))
        filled = [choices + [(0, 0)] * (width - len(choices)) for choices in self.choices]
        there = torch.arange(width) < torch.tensor(self.lengths).unsqueeze(1)
        rows, tokens = torch.tensor(filled).unbind(2)
        return rows, tokens, there

    def by_token(self, table: torch.Tensor) -> torch.Tensor:
        """[sequences, T] of a table [prefixes, V] at each token, or of [prefixes] at each token's prefix."""
        rows, tokens, there = self.places
        found = table[rows] if table.ndim == 1 else table[rows, tokens]
        return torch.where(there, found, torch.zeros_like(found))

    def logprobs(self, logits: torch.Tensor) -> torch.Tensor:
        """[sequences, T], in torch."""
        return self.by_token(logits.reshape(self.start.shape).log_softmax(1))

    def entropies(self, logits: torch.Tensor) -> torch.Tensor:
        """[sequences, T], in torch."""
        logprobs = logits.reshape(self.start.shape).log_softmax(1)
        return self.by_token(-(logprobs.exp() * logprobs).sum(1))

    def slope(
        self,
        method: Method,
        logits: torch.Tensor,
        rows: torch.Tensor,
        batch: TrainingBatch,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        """∂ loss/∂θ, where row i of the batch is sequence rows[i]."""
        live, width = logits.detach().requires_grad_(), batch.mask.shape[1]
        entropy = self.entropies(live)[rows, :width] if method.entropy_coefficient else None
        loss = method.loss(self.logprobs(live)[rows, :width], batch, weights, entropy=entropy)
        if not loss.requires_grad:  # nothing was selected
            return torch.zeros_like(live)
        return torch.autograd.grad(loss, live)[0]


C, LONG = Tree(ONE_PROMPT), Tree(THREE_TOKENS)
