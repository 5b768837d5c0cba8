"""The baselines that leave the least variance: seldom the mean value."""

from collections.abc import Callable

import numpy as np

from rung.exact.policies import Policy
from rung.exact.sequences import distribution, token_scores
from rung.exact.token_mdp import FloatArray, Prefix, TokenMDP, Trajectory


def best_constant_baseline(mdp: TokenMDP, policy: Policy) -> float:
    """The constant b that leaves (R − b) Σ_t ∇ log π(a_t|s_t) the least total variance.

        b* = E[R |S|²] / E[|S|²],   S = Σ_t ∇ log π(a_t|s_t)

    Source: Williams 1992; Weaver and Tao 2001, "The optimal reward baseline for gradient-based reinforcement
    learning"; Greensmith et al. 2004, "Variance reduction techniques for gradient estimates".

    Exactness:
        No other constant has a smaller trace of the covariance. Checked by
        tests/exact/test_baselines.py::test_the_best_constant_of_toy_c and
        ::test_no_other_constant_is_better.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 3.0 * tokens[0])
    >>> quarter = SoftmaxTable([()], np.log([[0.25, 0.75]]))
    >>> round(best_constant_baseline(mdp, quarter), 12)  # the rarer token has the larger score; the mean is 2.25
    0.75
    """
    numerator = denominator = 0.0
    for tau, probability in distribution(mdp, policy):
        score = token_scores(policy, tau).sum(axis=0)
        numerator += probability * mdp.total_return(tau.tokens) * float(score @ score)
        denominator += probability * float(score @ score)
    return numerator / denominator


def best_state_baseline(
    mdp: TokenMDP, policy: Policy, credit: Callable[[Trajectory], FloatArray]
) -> dict[Prefix, float]:
    """The function b(s) that leaves Σ_t (Ψ_t − b(s_t)) ∇ log π(a_t|s_t) the least total variance.

        b*(s) = E[∇ log π(a_t|s_t) · ĝ | s_t = s] / E[|∇ log π(a_t|s_t)|² | s_t = s],   ĝ = Σ_u Ψ_u ∇ log π(a_u|s_u)

    The b's of several prefixes do not interact, since later scores have mean 0 given what came before. Where prefixes
    share no parameters and Ψ_t = Q(s_t,a_t), this is E[Q |∇ log π|²]/E[|∇ log π|²] at each of them.

    Source: Greensmith et al. 2004, "Variance reduction techniques for gradient estimates", generalised to any Ψ and to
    shared parameters by setting the derivative of the trace of the covariance to 0.

    Args:
        mdp: which sequences there are.
        policy: π.
        credit: τ → Ψ [L] before the baseline.

    Returns:
        {prefix: b*} for the prefixes that π reaches and where a score is not 0.

    Exactness:
        Checked by tests/exact/test_baselines.py::test_the_best_state_baseline_of_toy_c and
        ::test_no_other_state_baseline_is_better.
    """
    numerator: dict[Prefix, float] = {}
    denominator: dict[Prefix, float] = {}
    for tau, probability in distribution(mdp, policy):
        scores = token_scores(policy, tau)
        estimate = np.asarray(credit(tau)) @ scores
        for (prefix, _), score in zip(tau.steps, scores, strict=True):
            numerator[prefix] = numerator.get(prefix, 0.0) + probability * float(score @ estimate)
            denominator[prefix] = denominator.get(prefix, 0.0) + probability * float(score @ score)
    return {prefix: numerator[prefix] / total for prefix, total in denominator.items() if total > 0.0}
