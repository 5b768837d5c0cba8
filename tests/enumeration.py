"""Exact expectations of what rung computes: every batch that could be sampled, as `Rollouts`, with its probability.

Log-probabilities come from torch, differentiable in the same parameters that the oracle uses; probabilities of
sequences are their exponentials. So of the oracle only the list of sequences and their rewards is used here, and each
comparison with it is between two derivations.

Rows arrive in turns (first sample of each prompt, then the second of each) under group ids that are no positions.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from rung.batch import Completion, Rollouts, build_rollouts
from rung.exact import LogLinear, Policy, Prefix, SoftmaxTable, TokenMDP, after
from rung.methods import Method
from tests.batches import completion, outcomes
from tests.toys import TOY_C, TOY_LONG, Toy, shared_features

ParametricPolicy = SoftmaxTable | LogLinear
GROUP_IDS = (41, -3, 7)


def next_token_logprobs(policy: ParametricPolicy, parameters: torch.Tensor, prefix: Prefix) -> torch.Tensor:
    """log π(·|s) [V], differentiable in the parameters [n]."""
    if isinstance(policy, SoftmaxTable):
        return parameters.reshape(policy.logits.shape)[policy.row_of(prefix)].log_softmax(-1)
    return (torch.from_numpy(policy.features(prefix)) @ parameters).log_softmax(-1)


@dataclass(frozen=True)
class Problem:
    """One or more prompts whose sequences one parameter vector describes."""

    prompts: tuple[tuple[Prefix, TokenMDP], ...]
    policy: ParametricPolicy
    reference: ParametricPolicy
    behaviour: ParametricPolicy

    @classmethod
    def of(cls, toy: Toy) -> "Problem":
        """A toy, whose prefixes have no prompt before them."""
        return cls((((), toy.mdp),), toy.policy, toy.reference, toy.behaviour)

    def oracles(self) -> list[tuple[TokenMDP, Policy, Policy]]:
        """For each prompt its problem, policy and reference, as the oracle takes them."""
        return [(mdp, after(self.policy, p), after(self.reference, p)) for p, mdp in self.prompts]

    def mean_over_prompts(
        self, quantity: Callable[[TokenMDP, Policy, Policy], NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """The oracle's quantity(problem, policy, reference), averaged over prompts: what a batch mean estimates."""
        return np.mean([quantity(*oracle) for oracle in self.oracles()], axis=0)

    def without_rewards(self) -> "Problem":
        """The same sequences, each worth nothing."""
        free = [(p, replace(mdp, reward=lambda _: 0.0, step_reward=None)) for p, mdp in self.prompts]
        return replace(self, prompts=tuple(free))

    @cached_property
    def sequences(self) -> list[tuple[int, Prefix, float]]:
        """(prompt, tokens, R) of every sequence of every prompt. Step rewards have no place in a `Completion`."""
        assert all(mdp.step_reward is None for _, mdp in self.prompts)
        return [
            (k, tau.tokens, mdp.total_return(tau.tokens))
            for k, (_, mdp) in enumerate(self.prompts)
            for tau in mdp.trajectories()
        ]

    def logprobs(self, policy: ParametricPolicy, parameters: torch.Tensor) -> torch.Tensor:
        """[sequences, T], 0 after each end."""
        length = max(len(tokens) for _, tokens, _ in self.sequences)
        out = []
        for prompt, tokens, _ in self.sequences:
            before = self.prompts[prompt][0]
            row = [
                next_token_logprobs(policy, parameters, (*before, *tokens[:t]))[token]
                for t, token in enumerate(tokens)
            ]
            out.append(torch.nn.functional.pad(torch.stack(row), (0, length - len(row))))
        return torch.stack(out)

    def frozen(self, policy: ParametricPolicy) -> torch.Tensor:
        """[sequences, T] log-probabilities at the policy's own parameters."""
        return self.logprobs(policy, torch.tensor(policy.parameters))

    def batches(self, group_size: int) -> list[tuple[int, ...]]:
        """Every outcome of sampling G sequences for each prompt, as numbers of sequences, prompts in turns."""
        by_prompt = [
            [i for i, (k, _, _) in enumerate(self.sequences) if k == prompt]
            for prompt in range(len(self.prompts))
        ]
        return list(itertools.product(*(by_prompt * group_size)))

    def completion(self, sequence: int, sample: int) -> Completion:
        prompt, tokens, _ = self.sequences[sequence]
        return completion(
            tokens, group=GROUP_IDS[prompt], sample=sample, prompt=(*self.prompts[prompt][0], 9)
        )

    def rollouts(self, batch: Sequence[int], sampler: torch.Tensor, reference: torch.Tensor) -> Rollouts:
        """One sampled batch as the core gets it: the sampler's log-probs are both behaviour and old."""
        built = build_rollouts(
            [self.completion(sequence, sample) for sample, sequence in enumerate(batch)],
            outcomes([self.sequences[sequence][2] for sequence in batch]),
        )
        index, length = torch.tensor(batch), built.mask.shape[1]
        own = sampler[index, :length]
        return replace(
            built, behaviour_logprobs=own, old_logprobs=own, reference_logprobs=reference[index, :length]
        )


@dataclass(frozen=True)
class Expected:
    """Σ p(batch) · loss(batch), and −∇ of it: the direction in which an optimizer would step."""

    loss: float
    ascent: NDArray[np.float64]


def expected(
    method: Method, problem: Problem, group_size: int, sampler: ParametricPolicy | None = None
) -> Expected:
    """What a method does on average over everything that could be sampled.

    Args:
        method: as a training loop calls it: prepare, weights, loss.
        problem: the prompts, and the policy that is differentiated.
        group_size: G, sequences for each prompt.
        sampler: whose sequences they are; None for the policy itself.
    """
    parameters = torch.tensor(problem.policy.parameters, requires_grad=True)
    live = problem.logprobs(problem.policy, parameters)
    sampled = problem.frozen(sampler if sampler is not None else problem.policy)
    reference = problem.frozen(problem.reference)
    chances = sampled.sum(1).exp().tolist()
    total = torch.zeros((), dtype=torch.float64)
    mass = 0.0
    for batch in problem.batches(group_size):
        probability = float(np.prod([chances[i] for i in batch]))
        prepared = method.prepare(problem.rollouts(batch, sampled, reference))
        weights = method.weights(prepared.mask)
        policy_logprobs = live[torch.tensor(batch), : prepared.mask.shape[1]]
        total = total + probability * method.loss(policy_logprobs, prepared, weights)
        mass += probability
    assert abs(mass - 1.0) < 1e-12
    (slope,) = torch.autograd.grad(total, parameters)
    return Expected(float(total.detach()), -slope.numpy())


# Two prompts that share all parameters; the second has two tokens, and sequences of one or two. 7² · 3² batches, G = 2.
SHORT_REWARDS = {(1,): 0.7, (0, 0): -0.4, (0, 1): 2.2}


def _features(prefix: Prefix) -> NDArray[np.float64]:
    """Three tokens after prompt 7, two after prompt 8; a constant feature tells the prompts apart."""
    features = shared_features(prefix)
    features[:, 0] += [0.0, 0.4 if prefix[0] == 8 else -0.3, 0.2]
    return features if prefix[0] == 7 else features[:2]


TWO_PROMPTS = Problem(
    (
        ((7,), TOY_C.mdp),
        ((8,), TokenMDP(2, end_token=1, max_length=2, reward=SHORT_REWARDS.__getitem__)),
    ),
    LogLinear(_features, np.array([0.2, -0.4, 0.9, 0.5])),
    LogLinear(_features, np.array([-0.1, 0.3, 0.4, -0.6])),
    LogLinear(_features, np.array([0.1, 0.1, 0.5, 0.2])),
)
ONE_PROMPT = Problem.of(TOY_C)
THREE_TOKENS = Problem.of(replace(TOY_LONG, mdp=replace(TOY_LONG.mdp, step_reward=None)))
