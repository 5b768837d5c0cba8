"""What methods are compared with: exact gradients, averaged over prompts."""

from dataclasses import replace

import numpy as np

from rung.exact import (
    Policy,
    Prefix,
    TokenMDP,
    after,
    evaluate,
    objective_gradient,
    regularized_objective,
    score_weighted,
    sequence_kl_reference_policy,
)
from rung.exact.token_mdp import FloatArray
from rung.verify.claims.claim import Prediction
from rung.verify.enumeration import Setting


def reward_less_kl(setting: Setting, beta: float) -> FloatArray:
    """∇(J − β KL(π‖π_ref)), of whole sequences."""
    return setting.problem.mean_over_prompts(
        lambda mdp, policy, reference: regularized_objective(mdp, policy, reference, beta).gradient
    )


def reward_less_kl_plus_entropy(coefficient: float) -> Prediction:
    """∇(J − β KL(π‖π_ref) + c E[Σ_t H(π(·|s_t))]), where E[Σ_t H] = −E[log p(τ)]."""

    def gradient(setting: Setting, beta: float) -> FloatArray:
        def of_logprob(mdp: TokenMDP, policy: Policy, reference: Policy) -> FloatArray:
            return score_weighted(
                mdp, policy, lambda prefix, token: float(evaluate(policy, prefix)[0][token])
            )

        return reward_less_kl(setting, beta) - coefficient * setting.problem.mean_over_prompts(of_logprob)

    return gradient


def reward_less_step_kl(setting: Setting, beta: float) -> FloatArray:
    """∇(J − β KL(π_old‖π))."""
    problem = setting.problem
    found: FloatArray = np.mean(
        [
            objective_gradient(mdp, after(problem.policy, before))
            - beta
            * sequence_kl_reference_policy(
                mdp, after(problem.policy, before), after(setting.old, before)
            ).gradient
            for before, mdp in problem.prompts
        ],
        axis=0,
    )
    return found


def overlong(length: int, *, max_length: int, buffer: int) -> float:
    """DAPO's charge: 0 up to L_max − c tokens, then linearly down to −1 at L_max, −1 beyond."""
    if length <= max_length - buffer:
        return 0.0
    return (max_length - buffer - length) / buffer if length <= max_length else -1.0


def reward_less_overlong(max_length: int, buffer: int) -> Prediction:
    """∇(J + E[overlong penalty] − β KL(π‖π_ref))."""

    def gradient(setting: Setting, beta: float) -> FloatArray:
        def of_charged(mdp: TokenMDP, policy: Policy, reference: Policy) -> FloatArray:
            def charged(tokens: Prefix) -> float:
                return mdp.reward(tokens) + overlong(len(tokens), max_length=max_length, buffer=buffer)

            return regularized_objective(replace(mdp, reward=charged), policy, reference, beta).gradient

        return setting.problem.mean_over_prompts(of_charged)

    return gradient
