"""Exact expectations of what rung computes: every batch that could be sampled, as `Rollouts`, with its probability.

Log-probabilities come from torch, differentiable in the same parameters that the oracle uses; probabilities of
sequences are their exponentials. So of the oracle only the list of sequences and their rewards is used here, and each
comparison with it is between two derivations. What can be annotated to a batch is made of the same numbers: the values
of a prefix are sums over the sequences that begin with it, and the greedy sequence follows the likeliest token.

Rows arrive in turns (first sample of each prompt, then the second of each) under group ids that are no positions.
"""

import itertools
import math
from collections import Counter
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
Critic = Callable[[int, Prefix], float]  # (number of the prompt, tokens after it) → V
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

    def by_token(
        self,
        policy: ParametricPolicy,
        parameters: torch.Tensor,
        of: Callable[[torch.Tensor, int], torch.Tensor],
    ) -> torch.Tensor:
        """[sequences, T] of (log-probs of all tokens [V], the token), 0 after each end; differentiable."""
        length = max(len(tokens) for _, tokens, _ in self.sequences)
        out = []
        for prompt, tokens, _ in self.sequences:
            before = self.prompts[prompt][0]
            row = [
                of(next_token_logprobs(policy, parameters, (*before, *tokens[:t])), token)
                for t, token in enumerate(tokens)
            ]
            out.append(torch.nn.functional.pad(torch.stack(row), (0, length - len(row))))
        return torch.stack(out)

    def logprobs(self, policy: ParametricPolicy, parameters: torch.Tensor) -> torch.Tensor:
        """[sequences, T] log π(a_t|s_t)."""
        return self.by_token(policy, parameters, lambda logprobs, token: logprobs[token])

    def entropies(self, policy: ParametricPolicy, parameters: torch.Tensor) -> torch.Tensor:
        """[sequences, T] H(π(·|s_t))."""
        return self.by_token(policy, parameters, lambda logprobs, _: -(logprobs.exp() * logprobs).sum())

    def frozen(self, policy: ParametricPolicy) -> torch.Tensor:
        """[sequences, T] log-probabilities at the policy's own parameters."""
        return self.logprobs(policy, torch.tensor(policy.parameters))

    def batches(self, group_size: int) -> list[tuple[tuple[int, ...], int]]:
        """Every G sequences of each prompt, prompts in turns, and how many orders these stand for.

        (That no order changes anything is shown in tests/invariance.)
        """
        by_prompt = [
            itertools.combinations_with_replacement(
                [i for i, (k, _, _) in enumerate(self.sequences) if k == prompt], group_size
            )
            for prompt in range(len(self.prompts))
        ]
        return [
            (tuple(i for turn in zip(*drawn, strict=True) for i in turn), math.prod(map(_orders, drawn)))
            for drawn in itertools.product(*by_prompt)
        ]

    def completion(self, sequence: int, sample: int) -> Completion:
        prompt, tokens, _ = self.sequences[sequence]
        return completion(
            tokens, group=GROUP_IDS[prompt], sample=sample, prompt=(*self.prompts[prompt][0], 9)
        )

    def rollouts(self, batch: Sequence[int], tables: "Tables") -> Rollouts:
        """One sampled batch with everything that can be annotated to it."""
        built = build_rollouts(
            [self.completion(sequence, sample) for sample, sequence in enumerate(batch)],
            outcomes([self.sequences[sequence][2] for sequence in batch]),
        )
        index, length = torch.tensor(batch), built.mask.shape[1]
        return replace(
            built,
            behaviour_logprobs=tables.behaviour[index, :length],
            old_logprobs=tables.old[index, :length],
            reference_logprobs=tables.reference[index, :length],
            values=tables.values[index, :length],
            greedy_rewards=tables.greedy[index],
        )


def _orders(drawn: Sequence[int]) -> int:
    return math.factorial(len(drawn)) // math.prod(map(math.factorial, Counter(drawn).values()))


@dataclass(frozen=True)
class Tables:
    """What is annotated to every sequence of a problem: [sequences, T] each, 0 after each end; greedy [sequences]."""

    behaviour: torch.Tensor
    old: torch.Tensor
    reference: torch.Tensor
    values: torch.Tensor
    greedy: torch.Tensor


def tables(
    problem: Problem,
    *,
    sampler: ParametricPolicy | None = None,
    old: ParametricPolicy | None = None,
    critic: Critic | None = None,
) -> Tables:
    """The annotations of a problem's sequences.

    Args:
        problem: whose.
        sampler: μ, who drew them; None for the problem's policy.
        old: the trainer's policy at the start of the update; None for the sampler, as with samples that are stale.
        critic: None for one that is wrong at every prefix.
    """
    behaviour = problem.policy if sampler is None else sampler
    start = behaviour if old is None else old
    return Tables(
        problem.frozen(behaviour),
        problem.frozen(start),
        problem.frozen(problem.reference),
        values(problem, wrong_critic if critic is None else critic),
        greedy_rewards(problem, start),
    )


def wrong_critic(prompt: int, prefix: Prefix) -> float:
    """Off by another amount at every prefix, and by an amount that depends on the last token."""
    return 0.3 - 0.5 * len(prefix) + 0.4 * sum(prefix) + 0.1 * prompt


def exact_critic(problem: Problem, policy: ParametricPolicy, *, kl_coefficient: float = 0.0) -> Critic:
    """V(s) = Σ p(τ|s) (R − β Σ_{t ≥ |s|} log π/π_ref) over the sequences τ that begin with s."""
    own, reference = problem.frozen(policy), problem.frozen(problem.reference)
    logs, costs = own.numpy(), kl_coefficient * (own - reference).numpy()
    known: dict[tuple[int, Prefix], float] = {}
    for prompt, prefix in {(k, tokens[:t]) for k, tokens, _ in problem.sequences for t in range(len(tokens))}:
        t, total, mass = len(prefix), 0.0, 0.0
        for i, (k, tokens, reward) in enumerate(problem.sequences):
            if k == prompt and tokens[:t] == prefix:
                chance = math.exp(logs[i, t:].sum())
                total, mass = total + chance * (reward - costs[i, t:].sum()), mass + chance
        assert abs(mass - 1.0) < 1e-12
        known[prompt, prefix] = total
    return lambda prompt, prefix: known[prompt, prefix]


def values(problem: Problem, critic: Critic) -> torch.Tensor:
    """[sequences, T], what a critic says before each token."""
    length = max(len(tokens) for _, tokens, _ in problem.sequences)
    found = torch.zeros(len(problem.sequences), length, dtype=torch.float64)
    for i, (prompt, tokens, _) in enumerate(problem.sequences):
        for t in range(len(tokens)):
            found[i, t] = critic(prompt, tokens[:t])
    return found


def greedy_rewards(problem: Problem, policy: ParametricPolicy) -> torch.Tensor:
    """[sequences], R of the greedy sequence of each one's prompt."""
    reward_of = {(prompt, tokens): reward for prompt, tokens, reward in problem.sequences}
    parameters, best = torch.tensor(policy.parameters), []
    for prompt, (before, _) in enumerate(problem.prompts):
        tokens: Prefix = ()
        while (prompt, tokens) not in reward_of:
            likeliest = next_token_logprobs(policy, parameters, (*before, *tokens)).argmax()
            tokens = (*tokens, int(likeliest))
        best.append(reward_of[prompt, tokens])
    return torch.tensor([best[prompt] for prompt, _, _ in problem.sequences], dtype=torch.float64)


@dataclass(frozen=True)
class Expected:
    """Σ p(batch) · loss(batch), and −∇ of it: the direction in which an optimizer would step."""

    loss: float
    ascent: NDArray[np.float64]


def expected(
    method: Method,
    problem: Problem,
    group_size: int,
    sampler: ParametricPolicy | None = None,
    *,
    old: ParametricPolicy | None = None,
    critic: Critic | None = None,
) -> Expected:
    """What a method does on average over everything that could be sampled.

    Args:
        method: as a training loop calls it: prepare, weights, loss.
        problem: the prompts, and the policy that is differentiated.
        group_size: G, sequences for each prompt.
        sampler: whose sequences they are; None for the policy itself.
        old: the policy at the start of the update; None for the sampler.
        critic: None for a wrong one.
    """
    parameters = torch.tensor(problem.policy.parameters, requires_grad=True)
    live = problem.logprobs(problem.policy, parameters)
    entropy = problem.entropies(problem.policy, parameters) if method.entropy_coefficient else None
    annotated = tables(problem, sampler=sampler, old=old, critic=critic)
    chances = annotated.behaviour.sum(1).exp().tolist()
    total = torch.zeros((), dtype=torch.float64)
    mass = 0.0
    for batch, orders in problem.batches(group_size):
        probability = orders * math.prod(chances[i] for i in batch)
        prepared = method.prepare(problem.rollouts(batch, annotated))
        weights = method.weights(prepared.mask)
        index, length = torch.tensor(batch), prepared.mask.shape[1]
        bonus = None if entropy is None else entropy[index, :length]
        total = total + probability * method.loss(live[index, :length], prepared, weights, entropy=bonus)
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
