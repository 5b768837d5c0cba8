"""From one policy to the next: what a change of policy gains, the surrogates that promise it, and how far it goes.

All functions take a token MDP or a tabular MDP. μ is the policy before the change, π the one after it.
"""

from typing import NamedTuple

import numpy as np

from rung.errors import InvalidInput
from rung.exact.divergence import prefix_kl_reference_policy
from rung.exact.policies import Policy, State, evaluate
from rung.exact.sequences import MDP, expected_over_prefixes
from rung.exact.tabular_mdp import TabularMDP
from rung.exact.token_mdp import FloatArray
from rung.exact.values import ValueAndGradient, advantages, objective


def performance_difference(mdp: MDP, policy: Policy, behaviour: Policy, *, gamma: float = 1.0) -> float:
    """What π gains over μ, from π's visits and μ's advantages.

        J(π) − J(μ) = Σ_s d_γ^π(s) Σ_a π(a|s) A^μ(s,a)

    Source: Kakade and Langford 2002, "Approximately optimal approximate reinforcement learning", lemma 6.1.

    Exactness:
        An identity. Checked by tests/exact/test_improvement.py::test_performance_difference_lemma.

    >>> from rung.exact import SoftmaxTable, TokenMDP
    >>> mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 3.0 * tokens[0])
    >>> half, quarter = SoftmaxTable([()], [[0.0, 0.0]]), SoftmaxTable([()], np.log([[0.25, 0.75]]))
    >>> round(performance_difference(mdp, quarter, half), 6)  # 2.25 − 1.5
    0.75
    """
    gains = advantages(mdp, behaviour, gamma=gamma)

    def gain(state: State) -> FloatArray:
        return np.array(np.exp(evaluate(policy, state)[0]) @ gains[state])

    return float(expected_over_prefixes(mdp, policy, gain, gamma=gamma))


def surrogate_objective(
    mdp: MDP, policy: Policy, behaviour: Policy, *, gamma: float = 1.0
) -> ValueAndGradient:
    """What sampling from μ with token ratios estimates: prefix from μ, token from π, continuation from μ.

        L_μ(π)  = J(μ) + Σ_s d_γ^μ(s) Σ_a π(a|s) A^μ(s,a)
        ∇L_μ(π) = Σ_s d_γ^μ(s) Σ_a π(a|s) A^μ(s,a) ∇ log π(a|s)

    Source: Schulman et al. 2015, arXiv:1502.05477, equation 3; Kakade and Langford 2002.

    Returns:
        Reward units, and the gradient [n] with respect to the parameters of π.

    Exactness:
        L_μ(μ) = J(μ) and ∇L_μ(μ) = ∇J(μ); elsewhere it is neither J nor its gradient. Checked by
        tests/exact/test_improvement.py::test_the_surrogate_touches_the_objective_at_the_old_policy and
        ::test_the_surrogate_of_toy_c_is_the_token_ratio_gradient.
    """
    gains = advantages(mdp, behaviour, gamma=gamma)

    def gain(state: State) -> FloatArray:
        return np.array(np.exp(evaluate(policy, state)[0]) @ gains[state])

    def slope(state: State) -> FloatArray:
        logprobs, jacobian = evaluate(policy, state)
        possible = logprobs > -np.inf
        gradient: FloatArray = (np.exp(logprobs) * gains[state])[possible] @ jacobian[possible]
        return gradient

    value = objective(mdp, behaviour, gamma=gamma) + float(
        expected_over_prefixes(mdp, behaviour, gain, gamma=gamma)
    )
    return ValueAndGradient(value, expected_over_prefixes(mdp, behaviour, slope, gamma=gamma))


def fisher_information(policy: Policy, state: State) -> FloatArray:
    """The curvature of the divergence from a policy at one prefix or state.

        F(s) = Σ_a π(a|s) ∇ log π(a|s) ∇ log π(a|s)ᵀ

    Source: Amari 1998, "Natural gradient works efficiently in learning"; the Hessian of KL(π_old‖π) and of
    KL(π‖π_old) at π = π_old.

    Returns:
        [n, n], symmetric; for a softmax row diag(π) − ππᵀ, which is singular: logits may all be shifted alike.

    Exactness:
        Checked by tests/exact/test_improvement.py::test_the_fisher_information_is_the_curvature_of_both_divergences.

    >>> from rung.exact import SoftmaxTable
    >>> fisher_information(SoftmaxTable([()], [[0.0, 0.0]]), ())
    array([[ 0.25, -0.25],
           [-0.25,  0.25]])
    """
    logprobs, jacobian = evaluate(policy, state)
    found = np.zeros((jacobian.shape[1], jacobian.shape[1]))
    for action in np.flatnonzero(logprobs > -np.inf):
        found += float(np.exp(logprobs[action])) * np.outer(jacobian[action], jacobian[action])
    return found


def mean_fisher_information(
    mdp: MDP, policy: Policy, *, sampler: Policy | None = None, gamma: float = 1.0
) -> FloatArray:
    """The Fisher information of a visited prefix or state, on average over visits: TRPO's metric.

        F̄ = Σ_s d_γ(s) F(s) / Σ_s d_γ(s)

    Without the denominator it would be that of a trajectory: `expected_over_prefixes` of `fisher_information`.

    Source: Schulman et al. 2015, arXiv:1502.05477, section 6 and appendix C.

    Args:
        mdp: which prefixes or states there are.
        policy: π.
        sampler: whose visits; None for π itself.
        gamma: discount γ of the visits.

    Returns:
        [n, n], per visited prefix or state.

    Exactness:
        Checked by tests/exact/test_improvement.py::test_the_mean_information_is_per_visit.
    """
    visitor = policy if sampler is None else sampler
    total = expected_over_prefixes(mdp, visitor, lambda state: fisher_information(policy, state), gamma=gamma)
    count = expected_over_prefixes(mdp, visitor, lambda state: np.array(1.0), gamma=gamma)
    mean: FloatArray = total / count
    return mean


def natural_gradient(gradient: FloatArray, fisher: FloatArray) -> FloatArray:
    """The steepest direction per nat, F⁺ g, with the pseudo-inverse: F is singular for a softmax over logits.

    Source: Kakade 2001, "A natural policy gradient"; for a softmax bandit F⁺ ∇J = A − mean(A).

    Exactness:
        Checked by tests/exact/test_improvement.py::test_the_natural_gradient_of_toy_a_is_its_advantage.

    >>> natural_gradient(np.array([0.25, -0.25]), np.array([[0.25, -0.25], [-0.25, 0.25]])).round(12)
    array([ 0.5, -0.5])
    """
    found: FloatArray = np.linalg.pinv(fisher, hermitian=True) @ gradient
    return found


def total_variation(policy: Policy, other: Policy, state: State) -> float:
    """Half the sum of the absolute differences, ½ Σ_a |π(a|s) − μ(a|s)|: between 0 and 1.

    >>> from rung.exact import SoftmaxTable
    >>> half, quarter = SoftmaxTable([()], [[0.0, 0.0]]), SoftmaxTable([()], np.log([[0.25, 0.75]]))
    >>> round(total_variation(half, quarter, ()), 12)
    0.25
    """
    first, second = (np.exp(evaluate(chosen, state)[0]) for chosen in (policy, other))
    return float(np.abs(first - second).sum()) / 2


class TrustRegionBound(NamedTuple):
    """What a surrogate guarantees for the objective.

    Attributes:
        surrogate: L_μ(π), reward units.
        by_total_variation: L_μ(π) − C max_s TV², never above J(π).
        by_kl: L_μ(π) − C max_s KL(μ‖π), weaker: TV² ≤ KL (and even ≤ KL/2).
        constant: C = 4 ε γ / (1 − γ)², reward units.
        epsilon: ε = max |A^μ(s,a)|, reward units.
    """

    surrogate: float
    by_total_variation: float
    by_kl: float
    constant: float
    epsilon: float


def trust_region_bound(mdp: MDP, policy: Policy, behaviour: Policy, *, gamma: float) -> TrustRegionBound:
    """How far the surrogate may mislead.

        J(π) ≥ L_μ(π) − C max_s TV(μ, π)² ≥ L_μ(π) − C max_s KL(μ‖π),   C = 4 ε γ / (1 − γ)²

    Source: Schulman et al. 2015, arXiv:1502.05477, theorem 1 and equation 9. The maxima are over every prefix or
    state in which an action is chosen.

    Raises:
        InvalidInput: γ is not below 1, where C is infinite, or the divergence is.

    Exactness:
        Checked by tests/exact/test_improvement.py::test_the_bound_holds_and_is_not_empty.
    """
    if not 0.0 <= gamma < 1.0:
        raise InvalidInput(f"the bound needs a discount in [0, 1), not {gamma}: its constant is 4εγ/(1 − γ)²")
    states: list[State] = (
        np.flatnonzero(~mdp.terminal).tolist() if isinstance(mdp, TabularMDP) else mdp.prefixes()
    )
    gains = advantages(mdp, behaviour, gamma=gamma)
    epsilon = max(float(np.abs(gains[state]).max()) for state in states)
    constant = 4 * epsilon * gamma / (1 - gamma) ** 2
    surrogate = surrogate_objective(mdp, policy, behaviour, gamma=gamma).value
    variation = max(total_variation(policy, behaviour, state) for state in states)
    divergence = max(prefix_kl_reference_policy(policy, behaviour, state).value for state in states)
    return TrustRegionBound(
        surrogate, surrogate - constant * variation**2, surrogate - constant * divergence, constant, epsilon
    )
