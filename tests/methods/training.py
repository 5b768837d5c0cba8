"""Training a table of logits to the end: by the mean update over everything that could be sampled, or by sampling."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from rung.batch import Rollouts
from rung.exact import Prefix, TokenMDP
from rung.methods import Method, TrainingBatch
from tests.enumeration import Problem

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

    def at_choices(self, values: Array) -> Array:
        """Σ of the values of the sequences that pass through (s, a): a table."""
        found = np.zeros(self.start.shape)
        for value, choices in zip(values, self.choices, strict=True):
            for choice in choices:
                found[choice] += value
        return found

    def logprobs(self, logits: torch.Tensor) -> torch.Tensor:
        """[sequences, T], in torch."""
        return self.problem.logprobs(self.problem.policy, logits)

    def slope(
        self,
        method: Method,
        logits: torch.Tensor,
        rows: torch.Tensor,
        batch: TrainingBatch,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        """∂ loss/∂θ, where row i of the batch is sequence rows[i]."""
        live = logits.detach().requires_grad_()
        policy_logprobs = self.logprobs(live)[rows, : batch.mask.shape[1]]
        return torch.autograd.grad(method.loss(policy_logprobs, batch, weights), live)[0]


class Pairs:
    """Every pair of sequences that could be sampled, with its probability.

    A pair is one batch. Where credit compares only within a group, all pairs can be prepared at once, each a group
    of its own; where it compares within the batch, `one_by_one`.
    """

    def __init__(self, tree: Tree, *, one_by_one: bool = False) -> None:
        self.tree = tree
        pairs = torch.tensor(tree.problem.batches(2))
        self.rows = pairs.flatten()
        self.reference = tree.problem.frozen(tree.problem.reference)
        self.chunks = [self._built(chunk) for chunk in (pairs.split(1) if one_by_one else [pairs])]

    def _built(self, pairs: torch.Tensor) -> tuple[torch.Tensor, Rollouts]:
        nothing = torch.zeros_like(self.reference)
        built = self.tree.problem.rollouts(pairs.flatten().tolist(), nothing, nothing)
        return pairs, replace(built, groups=torch.arange(len(pairs)).repeat_interleave(2))

    def prepared(self, method: Method, old: torch.Tensor) -> tuple[TrainingBatch, torch.Tensor]:
        """All pairs one below the other, at old log-probs [sequences, T]; a pair's weights times its probability."""
        parts = []
        for pairs, built in self.chunks:
            width = built.mask.shape[1]
            rows = pairs.flatten()
            own, reference = old[rows, :width], self.reference[rows, :width]
            batch = method.prepare(
                replace(built, behaviour_logprobs=own, old_logprobs=own, reference_logprobs=reference)
            )
            chances = old.sum(1).exp()[pairs].prod(1).repeat_interleave(2).unsqueeze(1)
            # Weights are a mean over pairs: times their number and each one's chance they are the expectation.
            weights = method.weights(batch.mask) * len(pairs) * chances
            columns = (batch.mask, batch.credit, own, reference, weights)
            parts.append([torch.nn.functional.pad(x, (0, old.shape[1] - width)) for x in columns])
        mask, credit, own, reference, weights = (torch.cat(column) for column in zip(*parts, strict=True))
        return TrainingBatch(mask, credit, own, reference), weights


@dataclass(frozen=True)
class End:
    """Where training arrived.

    Attributes:
        policy: a table.
        batches: how many it took.
        clipped: tokens, over all updates, that stood beyond 1 ± 0.2 on the side on which PPO lets go of them.
    """

    policy: Array
    batches: int
    clipped: int = 0


def train(method: Method, pairs: Pairs, step: float, *, most: int = 200, updates: int = 1) -> End:
    """Follow the mean update until it vanishes.

    A step divides ∂/∂θ(s,a) by p(s) π(a|s): the natural gradient of a table of logits. It changes no point at which
    the update vanishes, and prefixes that are seldom reached learn as fast as others.

    Args:
        method: any.
        pairs: everything that could be sampled.
        step: the step size of a batch, shared by its updates.
        most: batches at most.
        updates: steps with each batch; from the second on the policy is no longer the one that sampled.
    """
    tree = pairs.tree
    logits, clipped = torch.tensor(tree.problem.policy.parameters), 0
    for done in range(most):
        old = tree.logprobs(logits)
        batch, weights = pairs.prepared(method, old)
        policy = softmax(logits.numpy().reshape(tree.start.shape))
        visits = torch.from_numpy(tree.at_choices(tree.sequences(policy))).flatten()
        for update in range(updates):
            downhill = tree.slope(method, logits, pairs.rows, batch, weights)
            if update == 0 and downhill.abs().max() < 1e-14:
                return End(policy, done, clipped)
            logits = logits - step / updates * downhill / visits
            ratio = (tree.logprobs(logits) - old).exp()[pairs.rows]
            let_go = torch.where(batch.credit > 0, ratio > 1.2, ratio < 0.8) & (batch.credit != 0)
            clipped += int(let_go.sum()) if update + 1 < updates else 0
    return End(softmax(logits.numpy().reshape(tree.start.shape)), most, clipped)


def train_by_sampling(
    method: Method, tree: Tree, step: float, *, seed: int, batches: int, updates: int = 1
) -> Array:
    """Plain gradient descent on 64 sampled pairs a batch, with steps that shrink as 1/(1 + batch/100): the policy."""
    generator = np.random.default_rng(seed)
    logits = torch.tensor(tree.problem.policy.parameters)
    reference = tree.problem.frozen(tree.problem.reference)
    for done in range(batches):
        old = tree.logprobs(logits)
        chances = old.sum(1).exp().numpy()
        drawn = generator.choice(len(chances), size=128, p=chances / chances.sum())
        rollouts = tree.problem.rollouts(drawn.tolist(), old, reference)
        batch = method.prepare(replace(rollouts, groups=torch.arange(128) % 64))
        weights = method.weights(batch.mask)
        for _ in range(updates):
            downhill = tree.slope(method, logits, torch.from_numpy(drawn), batch, weights)
            logits = logits - step / (updates * (1 + done / 100)) * downhill
    return softmax(logits.numpy().reshape(tree.start.shape))
