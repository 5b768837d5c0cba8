"""The oracle's side of `rung verify kl`: every gradient that a cell might have, and every cell's value.

Numpy and sums over sequences only; no estimator of rung's is used here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rung.exact import (
    Group,
    MeanAndVariance,
    Moments,
    Policy,
    TokenMDP,
    Trajectory,
    evaluate,
    expectation,
    expected_over_prefixes,
    kl_cell,
    kl_estimate,
    policy_gradient,
    prefix_kl_policy_reference,
    prefix_kl_reference_policy,
    sequence_kl_policy_reference,
    sequence_kl_reference_policy,
    token_scores,
)
from rung.exact.token_mdp import FloatArray, Prefix
from rung.verify.kl import claims as name
from rung.verify.kl.claims import Estimator, Level, Placement, Weight

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

    def value(self, estimator: Estimator, level: Level, weight: Weight) -> MeanAndVariance:
        """Of Σ_t weight · k over the sampler's sequences."""
        return kl_estimate(
            self.mdp,
            self.policy,
            self.reference,
            estimator=estimator,
            level="sequence" if level == "sequence" else "token",
            ratio=None if weight is None else "token" if level == "token" else "sequence",
            sampler=self.sampler,
        )

    def gradient(self, estimator: Estimator, placement: Placement, level: Level, weight: Weight) -> Moments:
        """[n] mean and covariance of one sequence's gradient of the penalty."""
        if placement == "reward" and level == "token" and weight is not None:
            return self._corrected(estimator)
        return kl_cell(
            self.mdp,
            self.policy,
            self.reference,
            estimator=estimator,
            placement=placement,
            level="sequence" if level == "sequence" else "token",
            weight="none" if weight is None else weight,
            ratio="token" if level == "token" else "sequence",
            sampler=self.sampler,
        )

    def _corrected(self, estimator: Estimator) -> Moments:
        """Σ_t w_t (Σ_{u≥t} k_u) ∇log π(a_t|s_t): each token's weight on its policy loss, and not on k."""

        def estimates(tau: Trajectory) -> FloatArray:
            if estimator == "full":
                full = [
                    prefix_kl_policy_reference(self.policy, self.reference, s).value for s, _ in tau.steps
                ]
                return np.array(full)
            return VALUES[estimator](self.log_ratios(tau, self.reference))

        def one(group: Group) -> FloatArray:
            (tau,) = group
            to_go = estimates(tau)[::-1].cumsum()[::-1]
            found: FloatArray = (np.exp(self.log_ratios(tau, self.sampler)) * to_go) @ token_scores(
                self.policy, tau
            )
            return found

        return expectation(self.mdp, self.sampler, 1, one)

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
