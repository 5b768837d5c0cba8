"""The oracle's side of `rung verify kl`: every gradient that a cell might have, and every cell's value.

Numpy and sums over sequences only; no estimator of rung's is used here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rung.exact import (
    Policy,
    TokenMDP,
    Trajectory,
    distribution,
    evaluate,
    expected_over_prefixes,
    policy_gradient,
    prefix_kl_policy_reference,
    prefix_kl_reference_policy,
    sequence_kl_policy_reference,
    sequence_kl_reference_policy,
)
from rung.exact.token_mdp import FloatArray, Prefix
from rung.verify import kl_claims as name
from rung.verify.kl_claims import Level, Weight

# k(l) and dk/dl of l = log π − log π_ref.
VALUES: dict[str, Callable[[FloatArray], FloatArray]] = {
    "k1": lambda x: x,
    "k2": lambda x: x * x / 2,
    "k3": lambda x: np.exp(-x) - 1 + x,
}
SLOPES: dict[str, Callable[[FloatArray], FloatArray]] = {
    "k1": lambda x: np.ones_like(x),
    "k2": lambda x: x,
    "k3": lambda x: 1 - np.exp(-x),
}


@dataclass(frozen=True)
class Oracle:
    """Policy, reference and sampler over the sequences of one prompt."""

    mdp: TokenMDP
    policy: Policy
    reference: Policy
    sampler: Policy

    def log_ratios(self, tau: Trajectory, against: Policy) -> FloatArray:
        """[L] log π − log of another policy, at each token."""
        return np.array([evaluate(self.policy, s)[0][a] - evaluate(against, s)[0][a] for s, a in tau.steps])

    def estimates(self, estimator: str, level: Level, tau: Trajectory) -> FloatArray:
        """[L] the cell's k at each token; for whole sequences all of it at the last one."""
        if estimator == "full":
            found = np.array(
                [prefix_kl_policy_reference(self.policy, self.reference, s).value for s, _ in tau.steps]
            )
        else:
            log_ratios = self.log_ratios(tau, self.reference)
            if level == "sequence":
                log_ratios = log_ratios.sum(keepdims=True)
            found = VALUES[estimator](log_ratios)
        return found if level != "sequence" else np.array([0.0] * (tau.length - 1) + [found.sum()])

    def weights(self, level: Level, weight: Weight, tau: Trajectory) -> FloatArray:
        """[L] of π over the sampler: 1, each token's, or the sequence's."""
        log_ratios = self.log_ratios(tau, self.sampler)
        if weight is None:
            return np.ones(tau.length)
        return np.exp(log_ratios if level == "token" else np.full(tau.length, log_ratios.sum()))

    def value(self, estimator: str, level: Level, weight: Weight) -> tuple[float, float]:
        """Mean and variance of Σ_t weight · k over the sampler's sequences."""
        mean, square = 0.0, 0.0
        for tau, probability in distribution(self.mdp, self.sampler):
            value = float(self.weights(level, weight, tau) @ self.estimates(estimator, level, tau))
            mean += probability * value
            square += probability * value**2
        return mean, square - mean**2

    def in_reward(self, estimator: str, level: Level, weight: Weight) -> FloatArray:
        """[n] E_μ[Σ_t weight_t · (Σ_{u≥t} k_u) ∇log π(a_t|s_t)]: what any penalty in the reward gives."""
        return policy_gradient(
            self.mdp,
            self.policy,
            lambda tau: (
                self.weights(level, weight, tau) * self.estimates(estimator, level, tau)[::-1].cumsum()[::-1]
            ),
            sampler=self.sampler,
        )

    def _sum(self, sampler: Policy, function: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """[n] E_sampler[Σ_t f(l_t) ∇log π]."""
        return policy_gradient(
            self.mdp, self.policy, lambda tau: function(self.log_ratios(tau, self.reference)), sampler=sampler
        )

    def _whole(self, sampler: Policy, function: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """[n] E_sampler[f(L) ∇log p(τ)]."""

        def credit(tau: Trajectory) -> FloatArray:
            return np.full(tau.length, function(self.log_ratios(tau, self.reference).sum()))

        return policy_gradient(self.mdp, self.policy, credit, sampler=sampler)

    def _mean_k2(self, prefix: Prefix) -> FloatArray:
        """[n] ∇ Σ_a π(a|s) ½l²."""
        logprobs, jacobian = evaluate(self.policy, prefix)
        log_ratio = logprobs - evaluate(self.reference, prefix)[0]
        gradient: FloatArray = (np.exp(logprobs) * (log_ratio**2 / 2 + log_ratio)) @ jacobian
        return gradient

    def _at(self, sampler: Policy, forward: bool) -> FloatArray:
        one = prefix_kl_reference_policy if forward else prefix_kl_policy_reference
        return expected_over_prefixes(
            self.mdp, sampler, lambda prefix: one(self.policy, self.reference, prefix).gradient
        )

    def candidates(self, *, on_policy: bool) -> dict[str, FloatArray]:
        """[n] each, by name. On policy μ is π, and what μ visits is left out: it would be named twice."""
        mdp, policy, reference = self.mdp, self.policy, self.reference
        reverse = sequence_kl_policy_reference(mdp, policy, reference)
        forward = sequence_kl_reference_policy(mdp, policy, reference).gradient
        forward_at_pi = self._at(policy, forward=True)
        k2_tokens = policy_gradient(
            mdp,
            policy,
            lambda tau: VALUES["k2"](self.log_ratios(tau, reference)).sum() + self.log_ratios(tau, reference),
        )
        k2_whole = self._whole(policy, lambda x: VALUES["k2"](x) + x)
        found = {
            name.REVERSE: reverse.gradient,
            name.REVERSE_AT_PI: reverse.immediate,
            name.FUTURE: reverse.future,
            name.FORWARD: forward,
            name.FORWARD_AT_PI: forward_at_pi,
            name.DIFFERENCE: reverse.gradient - forward,
            name.DIFFERENCE_AT_PI: reverse.gradient - forward_at_pi,
            name.K2_TOKENS: k2_tokens,
            name.K2_SEQUENCE: k2_whole,
            name.K2_AT_PI: expected_over_prefixes(mdp, policy, self._mean_k2),
            name.K2_TOKENS_LESS: k2_tokens - reverse.immediate,
            name.K2_SEQUENCE_LESS: k2_whole - reverse.gradient,
        }
        return found if on_policy else found | self._seen_by_sampler()

    def _seen_by_sampler(self) -> dict[str, FloatArray]:
        return {
            name.REVERSE_AT_MU: self._at(self.sampler, forward=False),
            name.FORWARD_AT_MU: self._at(self.sampler, forward=True),
            name.K2_AT_MU: expected_over_prefixes(self.mdp, self.sampler, self._mean_k2),
            name.AWAY: -sequence_kl_reference_policy(self.mdp, self.policy, self.sampler).gradient,
            name.K2_FIT: self._sum(self.sampler, SLOPES["k2"]),
            name.K2_FIT_SEQUENCE: self._whole(self.sampler, SLOPES["k2"]),
            name.K3_FIT: self._sum(self.sampler, SLOPES["k3"]),
            name.K3_FIT_SEQUENCE: self._whole(self.sampler, SLOPES["k3"]),
        }
