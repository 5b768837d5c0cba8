"""What a prediction may know: the oracle's numbers for every sequence, and sums over them.

Nothing here, and nothing in the claims, knows an estimator. Of a `Setting` it is read who is who; the numbers come from
the oracle, sequence by sequence, in numpy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from rung.exact import (
    Policy,
    Prefix,
    TokenMDP,
    Trajectory,
    after,
    distribution,
    evaluate,
    expectation_over_prompts,
    policy_gradient,
    token_scores,
)
from rung.exact.token_mdp import FloatArray
from rung.verify.enumeration import Setting


@dataclass(frozen=True)
class Numbers:
    """One sequence of L tokens, in numbers.

    Attributes:
        reward: R, as judged.
        penalized: [L] r̂_t: R on the last token, less β · k1 of each token where the KL stands in the reward.
        log_ratio: [L] log π/π_old.
        log_correction: [L] log π_old/μ.
        log_reference: [L] log π/π_ref.
        values: [L] the critic's V(s_t).
        scores: [L, n] ∇log π(a_t|s_t).
    """

    reward: float
    penalized: FloatArray
    log_ratio: FloatArray
    log_correction: FloatArray
    log_reference: FloatArray
    values: FloatArray
    scores: FloatArray

    @property
    def length(self) -> int:
        """L."""
        return len(self.penalized)

    @property
    def total(self) -> float:
        """R̂ = Σ_t r̂_t."""
        return float(self.penalized.sum())

    @property
    def to_go(self) -> FloatArray:
        """[L] Ĝ_t = Σ_{u≥t} r̂_u."""
        return to_go(self.penalized)


Group = tuple[Numbers, ...]
Credit = FloatArray | float
# What multiplies the score of each token of a group's sequences: [L] each.
Coefficients = Sequence[FloatArray]


def to_go(values: FloatArray) -> FloatArray:
    """Σ_{u≥t} x_u."""
    return values[::-1].cumsum()[::-1]


def logprobs(policy: Policy, tau: Trajectory) -> FloatArray:
    """[L] log π(a_t|s_t)."""
    return np.array([evaluate(policy, prefix)[0][token] for prefix, token in tau.steps])


@dataclass(frozen=True)
class Prompt:
    """One prompt's problem, and who is who there."""

    mdp: TokenMDP
    policy: Policy
    old: Policy
    sampler: Policy
    reference: Policy
    numbers: dict[Prefix, Numbers]

    @cached_property
    def sampled(self) -> list[tuple[Numbers, float]]:
        """The sampler's sequences, with their probabilities."""
        return [(self.numbers[tau.tokens], p) for tau, p in distribution(self.mdp, self.sampler)]

    def mean(self, quantity: Callable[[Numbers], float]) -> float:
        """E_μ of a number of one sequence."""
        return sum(p * quantity(numbers) for numbers, p in self.sampled)

    @cached_property
    def mean_total(self) -> float:
        """E_μ[R̂]."""
        return self.mean(lambda numbers: numbers.total)

    @cached_property
    def mean_reward(self) -> float:
        """E_μ[R]."""
        return self.mean(lambda numbers: numbers.reward)

    def gradient(self, credit: Callable[[Numbers], Credit]) -> FloatArray:
        """E_μ[Σ_t Ψ_t ∇log π] for a credit that one sequence determines: [L], or one number for all its tokens."""

        def by_token(tau: Trajectory) -> FloatArray:
            return np.asarray(credit(self.numbers[tau.tokens])) * np.ones(tau.length)

        return policy_gradient(self.mdp, self.policy, by_token, sampler=self.sampler)


@dataclass(frozen=True)
class Scene:
    """A setting as the oracle sees it."""

    group_size: int
    prompts: tuple[Prompt, ...]

    @property
    def batch_size(self) -> int:
        """B."""
        return self.group_size * len(self.prompts)

    def over_prompts(self, quantity: Callable[[Prompt], FloatArray]) -> FloatArray:
        """The mean over prompts."""
        found: FloatArray = np.mean([quantity(prompt) for prompt in self.prompts], axis=0)
        return found

    def enumerated(self, coefficients: Callable[[tuple[Group, ...]], Sequence[Coefficients]]) -> FloatArray:
        """E[Σ_i Σ_t c_it ∇log π(a_it|s_it)] over all batches, for coefficients that a whole batch determines."""

        def estimate(batch: tuple[tuple[Trajectory, ...], ...]) -> FloatArray:
            groups = tuple(
                tuple(prompt.numbers[tau.tokens] for tau in group)
                for prompt, group in zip(self.prompts, batch, strict=True)
            )
            total: FloatArray = np.sum(
                [
                    c @ numbers.scores
                    for group, found in zip(groups, coefficients(groups), strict=True)
                    for numbers, c in zip(group, found, strict=True)
                ],
                axis=0,
            )
            return total

        samplers = [(prompt.mdp, prompt.sampler) for prompt in self.prompts]
        return expectation_over_prompts(samplers, self.group_size, estimate).mean

    def by_group(self, coefficients: Callable[[Group], Coefficients]) -> FloatArray:
        """The same where each group is for itself and its coefficients carry 1/G: the mean over prompts."""
        return self.over_prompts(
            lambda prompt: Scene(self.group_size, (prompt,)).enumerated(
                lambda batch: [coefficients(batch[0])]
            )
        )


def scene_of(
    setting: Setting, *, beta: float = 0.0, scored_by: Literal["sampler", "old"] = "sampler"
) -> Scene:
    """Ask the oracle for everything about a setting.

    Args:
        setting: problem, group size, and who samples.
        beta: of the k1 that stands in the reward.
        scored_by: whose log-probabilities this k1 is taken of: the sampler's own, or the trainer's at the start of the
            update.
    """
    problem = setting.problem
    prompts = []
    for k, (before, mdp) in enumerate(problem.prompts):
        policy, old, sampler, reference = (
            after(p, before) for p in (problem.policy, setting.old, setting.sampler, problem.reference)
        )
        values = _values(setting, k, mdp, old, reference)
        scorer = sampler if scored_by == "sampler" else old
        numbers = {
            tau.tokens: Numbers(
                reward=mdp.total_return(tau.tokens),
                penalized=mdp.rewards(tau.tokens) - beta * (logprobs(scorer, tau) - logprobs(reference, tau)),
                log_ratio=logprobs(policy, tau) - logprobs(old, tau),
                log_correction=logprobs(old, tau) - logprobs(sampler, tau),
                log_reference=logprobs(policy, tau) - logprobs(reference, tau),
                values=np.array([values[prefix] for prefix, _ in tau.steps]),
                scores=token_scores(policy, tau),
            )
            for tau in mdp.trajectories()
        }
        prompts.append(Prompt(mdp, policy, old, sampler, reference, numbers))
    return Scene(setting.group_size, tuple(prompts))


def _values(setting: Setting, k: int, mdp: TokenMDP, old: Policy, reference: Policy) -> dict[Prefix, float]:
    """What the critic says; the exact one: Σ_τ p(τ) Ĝ_t(τ) / Σ_τ p(τ) over the old policy's sequences through s_t."""
    if setting.critic == "wrong":
        return {prefix: setting.problem.critic(k, prefix) for prefix in mdp.prefixes()}
    reached, worth = dict.fromkeys(mdp.prefixes(), 0.0), dict.fromkeys(mdp.prefixes(), 0.0)
    for tau, p in distribution(mdp, old):
        k1 = logprobs(old, tau) - logprobs(reference, tau)
        returns = to_go(mdp.rewards(tau.tokens) - setting.kl_coefficient * k1)
        for t, (prefix, _) in enumerate(tau.steps):
            reached[prefix] += p
            worth[prefix] += p * float(returns[t])
    return {prefix: worth[prefix] / reached[prefix] for prefix in reached}
