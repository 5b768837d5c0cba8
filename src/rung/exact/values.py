"""The objective, its gradient, and the values of prefixes and tokens."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rung.exact.policies import Policy, evaluate
from rung.exact.sequences import distribution, sequence_score, token_scores
from rung.exact.token_mdp import FloatArray, Prefix, StepReward, TokenMDP, Trajectory


class ValueAndGradient(NamedTuple):
    """A number that depends on the policy's parameters, and its exact gradient [n]."""

    value: float
    gradient: FloatArray


def objective(mdp: TokenMDP, policy: Policy, *, gamma: float = 1.0) -> float:
    """J(θ) = E_{τ~π}[R(τ)] = Σ_τ p(τ) Σ_t γ^t r_t, in reward units.

    Source: Sutton and Barto, 2nd edition, equation 13.4.

    Exactness:
        The sum over every sequence. Checked by tests/exact/test_values.py::test_objective_of_toy_c.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 3.0 * tokens[0])
    >>> objective(mdp, SoftmaxTable([()], [[0.0, 0.0]]))
    1.5
    """
    return float(sum(p * mdp.total_return(tau.tokens, gamma=gamma) for tau, p in distribution(mdp, policy)))


def objective_gradient(mdp: TokenMDP, policy: Policy, *, gamma: float = 1.0) -> FloatArray:
    """∇J(θ) by the log-derivative trick over whole sequences.

        ∇J = Σ_τ p(τ) R(τ) ∇ log p(τ)

    Source: Williams 1992, "Simple statistical gradient-following algorithms" (REINFORCE, episodic case).

    Returns:
        [n], reward units per unit of θ: the direction in which J grows.

    Exactness:
        The derivative of `objective`, γ^t included. Checked by
        tests/exact/test_values.py::test_objective_gradient_is_the_finite_difference.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 3.0 * tokens[0])
    >>> objective_gradient(mdp, SoftmaxTable([()], [[0.0, 0.0]]))  # ¾ = p(1 − p)·3
    array([-0.75,  0.75])
    """
    terms = [
        probability * mdp.total_return(tau.tokens, gamma=gamma) * sequence_score(policy, tau)
        for tau, probability in distribution(mdp, policy)
    ]
    total: FloatArray = np.sum(terms, axis=0)
    return total


def state_values(mdp: TokenMDP, policy: Policy, *, gamma: float = 1.0) -> dict[Prefix, float]:
    """V(s) = E[G_t | s_t = s] at every prefix where a token is sampled.

        V(s) = Σ_a π(a|s) Q(s,a)

    Source: Sutton and Barto, 2nd edition, equation 3.14, by backward induction.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=1, max_length=2, reward=lambda tokens: float(sum(tokens)))
    >>> state_values(mdp, SoftmaxTable([(), (0,)], np.zeros((2, 2))))
    {(): 0.75, (0,): 0.5}
    """
    return {
        prefix: float(_expectation_at(mdp, policy, prefix, values))
        for prefix, values in action_values(mdp, policy, gamma=gamma).items()
    }


def action_values(mdp: TokenMDP, policy: Policy, *, gamma: float = 1.0) -> dict[Prefix, FloatArray]:
    """Q(s,·) = E[G_t | s_t = s, a_t = ·] at every prefix where a token is sampled, [V] each.

        Q(s,a) = r(s,a) + γ V(s·a),   V of an ended sequence = 0

    Source: Sutton and Barto, 2nd edition, exercises 3.12 and 3.13 with deterministic transitions.
    """
    found: dict[Prefix, FloatArray] = {}
    for prefix in reversed(mdp.prefixes()):
        values = np.zeros(mdp.vocabulary_size)
        for token in range(mdp.vocabulary_size):
            longer = (*prefix, token)
            values[token] = mdp.reward_of_step(prefix, token)
            if mdp.end_of(longer) is None:
                values[token] += gamma * _expectation_at(mdp, policy, longer, found[longer])
        found[prefix] = values
    return {prefix: found[prefix] for prefix in mdp.prefixes()}


def advantages(mdp: TokenMDP, policy: Policy, *, gamma: float = 1.0) -> dict[Prefix, FloatArray]:
    """A(s,·) = Q(s,·) − V(s), [V] at every prefix where a token is sampled; Σ_a π(a|s) A(s,a) = 0.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 3.0 * tokens[0])
    >>> advantages(mdp, SoftmaxTable([()], [[0.0, 0.0]]))
    {(): array([-1.5,  1.5])}
    """
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
