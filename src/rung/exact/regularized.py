"""The objective with a KL penalty, and its closed-form optimum."""

from dataclasses import dataclass

import numpy as np

from rung.errors import InvalidInput
from rung.exact.divergence import sequence_kl_policy_reference
from rung.exact.policies import FixedPolicy, Policy, evaluate
from rung.exact.token_mdp import FloatArray, Prefix, TokenMDP
from rung.exact.values import ValueAndGradient, objective, objective_gradient


def regularized_objective(
    mdp: TokenMDP, policy: Policy, reference: Policy, kl_coefficient: float
) -> ValueAndGradient:
    """The objective of post-training: reward, less the divergence of whole sequences from the reference.

        J_β(θ) = E_{τ~π}[R(τ)] − β KL(p_π‖p_ref)

    Source: Ziegler et al. 2019, arXiv:1909.08593, section 2.1 (the penalized reward, in expectation).

    Args:
        mdp: the problem, undiscounted.
        policy: π.
        reference: π_ref, fixed.
        kl_coefficient: β ≥ 0, reward units per nat.

    Returns:
        Reward units per sequence, and the gradient [n] with respect to the parameters of `policy`.

    Exactness:
        Checked by tests/exact/test_regularized.py against finite differences and the tilted optimum.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 3.0 * tokens[0])
    >>> half, quarter = SoftmaxTable([()], [[0.0, 0.0]]), SoftmaxTable([()], np.log([[0.25, 0.75]]))
    >>> round(regularized_objective(mdp, half, quarter, 2.0).value, 6)  # 1.5 − 2·½ log(4/3)
    1.212318
    """
    kl = sequence_kl_policy_reference(mdp, policy, reference)
    return ValueAndGradient(
        objective(mdp, policy) - kl_coefficient * kl.value,
        objective_gradient(mdp, policy) - kl_coefficient * kl.gradient,
    )


@dataclass(frozen=True)
class TiltedOptimum:
    """The policy that no policy beats on the regularized objective.

    Attributes:
        policy: π*, token by token.
        value: max_π J_β(π) = W(), reward units; β log Z when all randomness is the policy's.
    """

    policy: FixedPolicy
    value: float


def tilted_optimum(mdp: TokenMDP, reference: Policy, kl_coefficient: float) -> TiltedOptimum:
    """The optimum of `regularized_objective` over all policies.

        π*(a|s) = π_ref(a|s) e^((r(s,a) + W(s·a) − W(s))/β)
        W(s)    = β log Σ_a π_ref(a|s) e^((r(s,a) + W(s·a))/β),   W of an ended sequence = 0
        J_β(π)  = W() − β KL(p_π‖p*)
        p*(τ)   = p_ref(τ) e^(R(τ)/β) / Z,   Z = Σ_τ p_ref(τ) e^(R(τ)/β),   W() = β log Z

    W(s·a) is averaged over what an environment answers. The last line holds without such an environment, or with one
    whose answers are certain: no policy can tilt what it does not choose.

    Source: Rafailov et al. 2023, arXiv:2305.18290, equation 4 and appendix A.1; the recursion as in Levine
    2018, arXiv:1805.00909.

    Args:
        mdp: the problem, undiscounted.
        reference: π_ref.
        kl_coefficient: β > 0, reward units per nat.

    Raises:
        InvalidInput: β is not positive.

    Exactness:
        J_β(π) = W() − β KL(p_π‖p*) for every π. Checked by
        tests/exact/test_regularized.py::test_every_policy_falls_short_by_its_divergence_from_the_optimum, and
        W() against the sum over sequences by ::test_the_value_is_the_log_normaliser_of_the_sequences.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: np.log(3.0) * tokens[0])
    >>> optimum = tilted_optimum(mdp, SoftmaxTable([()], [[0.0, 0.0]]), 1.0)
    >>> np.exp(optimum.policy(())[0])  # ½ · (1, 3), normalised by Z = 2
    array([0.25, 0.75])
    """
    if not kl_coefficient > 0.0:
        raise InvalidInput(
            f"the tilted optimum needs a positive KL coefficient, not {kl_coefficient}; "
            f"at 0 the best policy puts everything on the best sequence"
        )
    soft_values: dict[Prefix, float] = {}
    logprobs: dict[Prefix, FloatArray] = {}
    for prefix in reversed(mdp.prefixes()):
        tilted = evaluate(reference, prefix, mdp.vocabulary_size)[0].copy()
        for token in range(mdp.vocabulary_size):
            later = sum(answer * soft_values[longer] for longer, answer in mdp.successors(prefix, token))
            tilted[token] += (mdp.reward_of_step(prefix, token) + later) / kl_coefficient
        log_normalizer = _log_sum_exp(tilted)
        soft_values[prefix] = kl_coefficient * log_normalizer
        logprobs[prefix] = tilted - log_normalizer
    return TiltedOptimum(FixedPolicy(logprobs), soft_values[()])


def _log_sum_exp(exponents: FloatArray) -> float:
    largest = exponents.max()
    return float(largest + np.log(np.exp(exponents - largest).sum()))
