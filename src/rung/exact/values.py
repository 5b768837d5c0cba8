"""The objective, its gradient, and the values of prefixes and tokens, or of states and actions.

A token MDP is summed over its sequences and prefixes, a tabular MDP is solved as a linear system
(rung.exact.tabular_values); `tabulate` turns the one into the other.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, overload

import numpy as np

from rung.exact import tabular_values as tabular
from rung.exact.policies import Policy, State, evaluate
from rung.exact.sequences import (
    MDP,
    distribution,
    expected_over_prefixes,
    sequence_score,
    token_scores,
)
from rung.exact.tabular_mdp import TabularMDP
from rung.exact.token_mdp import FloatArray, Prefix, StepReward, TokenMDP, Trajectory


class ValueAndGradient(NamedTuple):
    """A number that depends on the policy's parameters, and its exact gradient [n]."""

    value: float
    gradient: FloatArray


def objective(mdp: MDP, policy: Policy, *, gamma: float = 1.0) -> float:
    """J(θ) = E_{τ~π}[R(τ)] = Σ_τ p(τ) Σ_t γ^t r_t = Σ_s d0(s) V(s), in reward units.

    Source: Sutton and Barto, 2nd edition, equation 13.4.

    Exactness:
        The sum over every sequence, or the solution of Bellman's equation. Checked by
        tests/exact/test_values.py::test_objective_of_toy_c and
        tests/exact/test_tabular_values.py::test_tables_of_a_token_mdp_have_its_values.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 3.0 * tokens[0])
    >>> objective(mdp, SoftmaxTable([()], [[0.0, 0.0]]))
    1.5
    """
    if isinstance(mdp, TabularMDP):
        return tabular.objective(mdp, policy, gamma)
    return float(sum(p * mdp.total_return(tau.tokens, gamma=gamma) for tau, p in distribution(mdp, policy)))


def objective_gradient(mdp: MDP, policy: Policy, *, gamma: float = 1.0) -> FloatArray:
    """∇J(θ) by the log-derivative trick over whole sequences, or by the policy gradient theorem over states.

        ∇J = Σ_τ p(τ) R(τ) ∇ log p(τ) = Σ_s d_γ(s) Σ_a ∇π(a|s) Q(s,a)

    Source: Williams 1992, "Simple statistical gradient-following algorithms" (REINFORCE, episodic case); Sutton and
    Barto, 2nd edition, section 13.2.

    Returns:
        [n], reward units per unit of θ: the direction in which J grows.

    Exactness:
        The derivative of `objective`, γ^t included. Checked by
        tests/exact/test_values.py::test_objective_gradient_is_the_finite_difference and
        tests/exact/test_tabular_values.py::test_the_gradient_is_the_finite_difference.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 3.0 * tokens[0])
    >>> objective_gradient(mdp, SoftmaxTable([()], [[0.0, 0.0]]))  # ¾ = p(1 − p)·3
    array([-0.75,  0.75])
    """
    if isinstance(mdp, TabularMDP):
        return tabular.objective_gradient(mdp, policy, gamma)
    terms = [
        probability * mdp.total_return(tau.tokens, gamma=gamma) * sequence_score(policy, tau)
        for tau, probability in distribution(mdp, policy)
    ]
    total: FloatArray = np.sum(terms, axis=0)
    return total


def gradient_without_time_discount(mdp: MDP, policy: Policy, *, gamma: float) -> FloatArray:
    """What most code estimates at γ < 1: discounted values, undiscounted visits.

        Σ_s d_1(s) Σ_a ∇π(a|s) Q_γ(s,a)   in place of   ∇J_γ = Σ_s d_γ(s) Σ_a ∇π(a|s) Q_γ(s,a)

    That is E[Σ_t G_t ∇ log π(a_t|s_t)] without the γ^t of its time. With γ = 1 the two are the same.

    Source: Nota and Thomas 2020, arXiv:1906.07073 ("Is the policy gradient a gradient?": of no function).

    Returns:
        [n], reward units per unit of θ.

    Exactness:
        Checked by tests/exact/test_values.py::test_discounted_returns_need_the_discount_of_their_time and
        tests/exact/test_tabular_values.py::test_toy_d_under_the_uniform_policy.
    """
    values = action_values(mdp, policy, gamma=gamma)

    def at(state: State) -> FloatArray:
        logprobs, jacobian = evaluate(policy, state)
        possible = logprobs > -np.inf
        gradient: FloatArray = (np.exp(logprobs) * values[state])[possible] @ jacobian[possible]
        return gradient

    return expected_over_prefixes(mdp, policy, at)


@overload
def state_values(mdp: TokenMDP, policy: Policy, *, gamma: float = 1.0) -> dict[Prefix, float]: ...
@overload
def state_values(mdp: TabularMDP, policy: Policy, *, gamma: float = 1.0) -> FloatArray: ...
def state_values(mdp: MDP, policy: Policy, *, gamma: float = 1.0) -> dict[Prefix, float] | FloatArray:
    """V(s) = E[G_t | s_t = s] wherever an action is chosen.

        V(s) = Σ_a π(a|s) Q(s,a)

    Source: Sutton and Barto, 2nd edition, equation 3.14, by backward induction over prefixes or a linear solve.

    Returns:
        {prefix: V} of a token MDP; [S] of a tabular MDP, 0 in terminal states.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=1, max_length=2, reward=lambda tokens: float(sum(tokens)))
    >>> state_values(mdp, SoftmaxTable([(), (0,)], np.zeros((2, 2))))
    {(): 0.75, (0,): 0.5}
    """
    if isinstance(mdp, TabularMDP):
        return tabular.state_values(mdp, policy, gamma)
    return {
        prefix: float(_expectation_at(mdp, policy, prefix, values))
        for prefix, values in action_values(mdp, policy, gamma=gamma).items()
    }


@overload
def action_values(mdp: TokenMDP, policy: Policy, *, gamma: float = 1.0) -> dict[Prefix, FloatArray]: ...
@overload
def action_values(mdp: TabularMDP, policy: Policy, *, gamma: float = 1.0) -> FloatArray: ...
def action_values(mdp: MDP, policy: Policy, *, gamma: float = 1.0) -> dict[Prefix, FloatArray] | FloatArray:
    """Q(s,·) = E[G_t | s_t = s, a_t = ·] wherever an action is chosen.

        Q(s,a) = r(s,a) + γ Σ_s' P(s'|s,a) V(s'),   V of an ended sequence or a terminal state = 0

    In a token MDP s' = s·a, followed by what an environment appends.

    Source: Sutton and Barto, 2nd edition, exercises 3.12 and 3.13.

    Returns:
        {prefix: Q [V]} of a token MDP; [S, A] of a tabular MDP.
    """
    if isinstance(mdp, TabularMDP):
        return tabular.action_values(mdp, policy, gamma)
    found: dict[Prefix, FloatArray] = {}
    for prefix in reversed(mdp.prefixes()):
        values = np.zeros(mdp.vocabulary_size)
        for token in range(mdp.vocabulary_size):
            values[token] = mdp.reward_of_step(prefix, token)
            for longer, answer in mdp.successors(prefix, token):
                values[token] += gamma * answer * _expectation_at(mdp, policy, longer, found[longer])
        found[prefix] = values
    return {prefix: found[prefix] for prefix in mdp.prefixes()}


@overload
def advantages(mdp: TokenMDP, policy: Policy, *, gamma: float = 1.0) -> dict[Prefix, FloatArray]: ...
@overload
def advantages(mdp: TabularMDP, policy: Policy, *, gamma: float = 1.0) -> FloatArray: ...
def advantages(mdp: MDP, policy: Policy, *, gamma: float = 1.0) -> dict[Prefix, FloatArray] | FloatArray:
    """A(s,·) = Q(s,·) − V(s) wherever an action is chosen; Σ_a π(a|s) A(s,a) = 0.

    Returns:
        {prefix: A [V]} of a token MDP; [S, A] of a tabular MDP.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 3.0 * tokens[0])
    >>> advantages(mdp, SoftmaxTable([()], [[0.0, 0.0]]))
    {(): array([-1.5,  1.5])}
    """
    if isinstance(mdp, TabularMDP):
        return tabular.advantages(mdp, policy, gamma)
    return {
        prefix: values - _expectation_at(mdp, policy, prefix, values)
        for prefix, values in action_values(mdp, policy, gamma=gamma).items()
    }


def _expectation_at(mdp: TokenMDP, policy: Policy, prefix: Prefix, values: FloatArray) -> float:
    """Σ_a π(a|s) f(a)."""
    probabilities = np.exp(evaluate(policy, prefix, mdp.vocabulary_size)[0])
    return float(sum(p * value for p, value in zip(probabilities, values, strict=True)))


def policy_gradient(
    mdp: TokenMDP,
    policy: Policy,
    credit: Callable[[Trajectory], FloatArray],
    *,
    sampler: Policy | None = None,
) -> FloatArray:
    """The one formula of this library, enumerated: what any credit gives in expectation.

        g = E_{τ~μ}[Σ_t Ψ_t ∇ log π(a_t|s_t)]

    Ψ is a constant under ∇, and may be anything that a sequence determines: a return, an advantage, an
    importance weight times one of these, or dk/d log π for a penalty k that stands in the loss.

    Source: Schulman et al. 2015, arXiv:1506.02438, equation 1 (generalized advantage estimation).

    Args:
        mdp: which sequences there are.
        policy: π, whose scores are taken.
        credit: τ → Ψ [L].
        sampler: μ, the policy that the sequences come from; None for π itself.

    Returns:
        [n].

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 3.0 * tokens[0])
    >>> policy_gradient(mdp, SoftmaxTable([()], [[0.0, 0.0]]), lambda tau: mdp.rewards(tau.tokens))
    array([-0.75,  0.75])
    """
    terms = [
        probability * (np.asarray(credit(tau)) @ token_scores(policy, tau))
        for tau, probability in distribution(mdp, policy if sampler is None else sampler)
    ]
    total: FloatArray = np.sum(terms, axis=0)
    return total


def score_weighted(
    mdp: TokenMDP, policy: Policy, cost: StepReward, *, gamma: float = 1.0, sampler: Policy | None = None
) -> FloatArray:
    """The expected gradient of a per-token cost that is placed in the reward: constant, times the score.

        E_{τ~μ}[Σ_t (Σ_{u≥t} γ^(u−t) c(s_u, a_u)) ∇ log π(a_t|s_t)]

    On policy and with γ = 1 this is ∇E_π[Σ_t c] with c held constant. With γ = 0 it keeps the immediate part
    only, which is also what a penalty k *in the loss* gives when c = dk/d log π.

    Args:
        mdp: which sequences there are; its rewards play no part.
        policy: π, whose scores are taken.
        cost: (prefix, token) → c, for instance log π − log π_ref (k1).
        gamma: discount γ inside the sum to go, in [0, 1].
        sampler: μ, the policy that the sequences come from; None for π itself.

    Returns:
        [n], units of c per unit of θ: the direction in which the cost grows.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 0.0)
    >>> score_weighted(mdp, SoftmaxTable([()], [[0.0, 0.0]]), lambda prefix, token: 3.0 * token)
    array([-0.75,  0.75])
    """
    costs = replace(mdp, reward=lambda tokens: 0.0, step_reward=cost)

    def cost_to_go(trajectory: Trajectory) -> FloatArray:
        tail, found = 0.0, np.zeros(trajectory.length)
        for t, step in reversed(list(enumerate(costs.rewards(trajectory.tokens)))):
            tail = found[t] = step + gamma * tail
        return found

    return policy_gradient(costs, policy, cost_to_go, sampler=sampler)
