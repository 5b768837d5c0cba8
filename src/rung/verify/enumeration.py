"""The exact mean and covariance of an estimator's gradient: every batch that could be sampled, with its probability.

An estimator is whatever turns a batch into a loss that is differentiable in the policy's log-probabilities. Its
gradient in θ is the chain of two derivatives: torch gives d loss/d log π, and the oracle d log π/dθ.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import torch

from rung.batch import Completion, Outcome, Rollouts, build_rollouts
from rung.errors import InvalidInput
from rung.exact import greedy_tokens, state_values
from rung.exact.token_mdp import FloatArray
from rung.methods import Method
from rung.verify.penalized import less_k1
from rung.verify.problems import ParametricPolicy, Problem

Situation = Literal["on-policy", "stale", "mismatch"]
SITUATIONS: tuple[Situation, ...] = get_args(Situation)
Critic = Literal["exact", "wrong"]
# Ids that are no positions, so that an estimator that takes them for some is found out.
_GROUP_IDS = (41, -3, 7)


@dataclass(frozen=True)
class Batch:
    """One batch that could be sampled, with the policy's own numbers on it.

    Attributes:
        rollouts: completions, outcomes and everything that can be annotated to them.
        policy_logprobs: [B, T], a leaf; the estimator's loss is differentiated with regard to it.
        entropy: [B, T] of the policy at each token, a leaf.
    """

    rollouts: Rollouts
    policy_logprobs: torch.Tensor
    entropy: torch.Tensor


Estimator = Callable[[Batch], torch.Tensor]


@dataclass(frozen=True)
class Setting:
    """What is sampled, by whom, and how the estimator's policy stands to that.

    Attributes:
        problem: prompts and policies.
        group_size: G, sequences for each prompt.
        situation: "on-policy": sampler, old policy and policy are one. "stale": the samples are the old policy's, and
            the policy has moved since, as in a later update on the same batch. "mismatch": the sampler is another one
            than the trainer's policy, which has not moved.
        critic: "exact", V of the policy at the start of the update; or "wrong", the problem's imperfect one.
        kl_coefficient: β of the k1 that the exact critic's returns have in them, as a trained critic's would.

    Raises:
        InvalidInput: no such situation or critic, or a group of none.
    """

    problem: Problem
    group_size: int
    situation: Situation = "on-policy"
    critic: Critic = "wrong"
    kl_coefficient: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what would be taken for something else."""
        for name, allowed in (("situation", SITUATIONS), ("critic", get_args(Critic))):
            if (value := getattr(self, name)) not in allowed:
                raise InvalidInput(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
        if not isinstance(self.group_size, int) or self.group_size < 1:
            raise InvalidInput(f"group_size must be a whole number ≥ 1, got {self.group_size!r}")

    @property
    def sampler(self) -> ParametricPolicy:
        """μ: whose sequences they are."""
        return self.problem.policy if self.situation == "on-policy" else self.problem.behaviour

    @property
    def old(self) -> ParametricPolicy:
        """The trainer's policy at the start of the update."""
        return self.problem.behaviour if self.situation == "stale" else self.problem.policy

    def _logprobs(self, policy: ParametricPolicy) -> FloatArray:
        return self.problem.table(policy, lambda logprobs, _, token: logprobs[token])

    @cached_property
    def _tables(self) -> dict[str, torch.Tensor]:
        """[sequences, T] log-probabilities and values of every sequence."""
        exact = [state_values(less_k1(*o, self.kl_coefficient), o[1]) for o in self.problem.oracles(self.old)]
        critic = self.problem.critic if self.critic == "wrong" else lambda k, prefix: exact[k][prefix]
        values = np.zeros((len(self.problem.sequences), self.problem.max_length))
        for i, sequence in enumerate(self.problem.sequences):
            for t in range(len(sequence.tokens)):
                values[i, t] = critic(sequence.prompt, sequence.tokens[:t])
        tables = {
            "policy": self._logprobs(self.problem.policy),
            "old": self._logprobs(self.old),
            "behaviour": self._logprobs(self.sampler),
            "reference": self._logprobs(self.problem.reference),
            "values": values,
            "entropy": self.problem.table(
                self.problem.policy, lambda logprobs, _, token: -np.exp(logprobs) @ logprobs
            ),
        }
        return {name: torch.from_numpy(table) for name, table in tables.items()}

    @cached_property
    def scores(self) -> FloatArray:
        """[sequences, T, n] ∇log π of each token."""
        return self.problem.table(self.problem.policy, lambda _, jacobian, token: jacobian[token])

    @cached_property
    def entropy_slopes(self) -> FloatArray:
        """[sequences, T, n] ∇H(π(·|s_t)) = −Σ_a π(a) log π(a) ∇log π(a)."""
        return self.problem.table(
            self.problem.policy,
            lambda logprobs, jacobian, _: -(np.exp(logprobs) * logprobs) @ jacobian,
        )

    @cached_property
    def chances(self) -> list[float]:
        """p_μ of every sequence, given its prompt."""
        return [float(math.exp(row)) for row in self._logprobs(self.sampler).sum(1)]

    @cached_property
    def _greedy(self) -> list[float]:
        """For each prompt the reward of its sampler's greedy sequence."""
        oracles = self.problem.oracles(self.sampler)
        return [mdp.total_return(greedy_tokens(mdp, policy)) for mdp, policy, _ in oracles]

    @cached_property
    def _completions(self) -> list[Completion]:
        """Every sequence as it is sampled."""
        return [
            Completion(
                prompt_ids=self.problem.prompts[sequence.prompt][0] or (0,),
                token_ids=sequence.tokens,
                sampled=(True,) * len(sequence.tokens),
                behaviour_logprobs=tuple(logprobs[: len(sequence.tokens)]),
                policy_versions=(0,) * len(sequence.tokens),
                group=_GROUP_IDS[sequence.prompt],
                sample=0,
                sampling_key=0,
                end_reason="stop",
            )
            for sequence, logprobs in zip(
                self.problem.sequences, self._tables["behaviour"].tolist(), strict=True
            )
        ]

    def batches(self, *, ordered: bool) -> Iterator[tuple[tuple[int, ...], float]]:
        """Sequence numbers of every batch, a sample of each prompt in turn, and its probability.

        Args:
            ordered: whether orders of the same samples are different batches. Without, each batch stands for all its
                orders: much fewer, and the same to an estimator that does not care.
        """
        numbers = range(len(self.problem.sequences))
        prompts = range(len(self.problem.prompts))
        of = [[i for i in numbers if self.problem.sequences[i].prompt == k] for k in prompts]
        choices: list[list[tuple[int, ...]]] = [
            list(itertools.product(own, repeat=self.group_size))
            if ordered
            else list(itertools.combinations_with_replacement(own, self.group_size))
            for own in of
        ]
        for groups in itertools.product(*choices):
            batch = tuple(i for turn in zip(*groups, strict=True) for i in turn)
            orders = 1 if ordered else math.prod(_orders(group) for group in groups)
            yield batch, orders * math.prod(self.chances[i] for i in batch)

    def batch(self, numbers: tuple[int, ...]) -> Batch:
        """The batch of these sequences, as a training loop would see it."""
        problem, tables = self.problem, self._tables
        chosen = [problem.sequences[i] for i in numbers]
        index, length = torch.tensor(numbers), max(len(s.tokens) for s in chosen)

        def rows(name: str) -> torch.Tensor:
            return tables[name][index, :length].clone()

        rollouts = build_rollouts(
            [self._completions[i] for i in numbers], [Outcome("reward", s.reward) for s in chosen]
        )
        rollouts = replace(
            rollouts,
            old_logprobs=rows("old"),
            reference_logprobs=rows("reference"),
            values=rows("values"),
            greedy_rewards=torch.tensor([self._greedy[s.prompt] for s in chosen], dtype=torch.float64),
        )
        return Batch(rollouts, rows("policy").requires_grad_(), rows("entropy").requires_grad_())


def _orders(group: tuple[int, ...]) -> int:
    """In how many orders these samples can arrive."""
    return math.factorial(len(group)) // math.prod(map(math.factorial, Counter(group).values()))


@dataclass(frozen=True)
class Moments:
    """What an estimator does on average, and how much it scatters.

    Attributes:
        ascent: [n] −E[∇ loss]: the direction in which an optimizer steps, on average.
        covariance: [n, n] of one batch's gradient.
        loss: E[loss].
    """

    ascent: FloatArray
    covariance: FloatArray
    loss: float

    @property
    def trace(self) -> float:
        """The sum of the variances of all components."""
        return float(np.trace(self.covariance))


def moments(estimator: Estimator, setting: Setting, *, ordered: bool = False) -> Moments:
    """Exact mean and covariance of an estimator's gradient over everything that could be sampled.

    Args:
        estimator: batch → scalar loss, differentiable in the batch's `policy_logprobs` and `entropy`.
        setting: what is sampled, and by whom.
        ordered: True for an estimator that may tell the order of its samples (see `Setting.batches`).

    Raises:
        InvalidInput: the estimator returns no differentiable scalar, or a loss or gradient that is not finite.
    """
    chances, gradients, losses = [], [], []
    for numbers, chance in setting.batches(ordered=ordered):
        gradient, loss = gradient_of(estimator, setting, numbers)
        chances.append(chance)
        gradients.append(gradient)
        losses.append(loss)
    p, g = np.array(chances), np.array(gradients)
    if abs(p.sum() - 1.0) > 1e-9:
        raise InvalidInput(f"the probabilities of all batches sum to {p.sum()}")
    mean = p @ g
    deviation = g - mean
    return Moments(-mean, (p[:, None] * deviation).T @ deviation, float(p @ np.array(losses)))


def gradient_of(estimator: Estimator, setting: Setting, numbers: tuple[int, ...]) -> tuple[FloatArray, float]:
    """∇ loss [n] in θ, and the loss, of one batch given by the numbers of its sequences."""
    batch = setting.batch(numbers)
    loss = estimator(batch)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise InvalidInput(f"a loss is one number as a tensor, got {loss!r}")
    if not bool(torch.isfinite(loss.detach()).all()):
        raise InvalidInput(_not_finite("loss", setting, numbers))
    index, length = list(numbers), batch.policy_logprobs.shape[1]
    if not loss.requires_grad:  # nothing to learn from in this batch
        return np.zeros(setting.scores.shape[2]), float(loss.detach())
    slope, entropy_slope = torch.autograd.grad(
        loss.sum(), (batch.policy_logprobs, batch.entropy), allow_unused=True, materialize_grads=True
    )
    gradient = np.einsum("bt,btn->n", slope.numpy(), setting.scores[index, :length])
    if bool(entropy_slope.any()):
        gradient += np.einsum("bt,btn->n", entropy_slope.numpy(), setting.entropy_slopes[index, :length])
    if not np.isfinite(gradient).all():
        raise InvalidInput(_not_finite("gradient", setting, numbers))
    return gradient, float(loss.detach())


def _not_finite(what: str, setting: Setting, numbers: tuple[int, ...]) -> str:
    rewards = ", ".join(f"{setting.problem.sequences[i].reward:g}" for i in numbers)
    return (
        f"the {what} of a batch with the rewards {rewards} is not finite: are all rewards of a group equal, and "
        "divided by their standard deviation of 0?"
    )


def estimator_of(method: Method) -> Estimator:
    """A method as an estimator, as a training loop calls it: annotated with what it needs; prepare, weights, loss."""
    ratios = "old" in method.needs

    def estimate(batch: Batch) -> torch.Tensor:
        rollouts = batch.rollouts if ratios else replace(batch.rollouts, old_logprobs=None)
        prepared = method.prepare(rollouts)
        return method.loss(
            batch.policy_logprobs, prepared, method.weights(prepared.mask), entropy=batch.entropy
        )

    return estimate
