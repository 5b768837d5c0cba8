"""Values of a tabular MDP by linear algebra: each function solves one textbook equation.

`objective`, `objective_gradient`, `state_values`, `action_values`, `advantages` and `occupancy` of this package come
here when they are given a `TabularMDP`.
"""

import numpy as np

from rung.errors import InvalidInput
from rung.exact.policies import Policy, evaluate
from rung.exact.tabular_mdp import TabularMDP
from rung.exact.token_mdp import FloatArray

# γ = 0.999 comes to rest in about 35,000.
MAX_SWEEPS = 100_000


def state_values(mdp: TabularMDP, policy: Policy, gamma: float) -> FloatArray:
    """V = r_π + γ P_π V, solved: [S], 0 in terminal states.

    Source: Sutton and Barto, 2nd edition, equation 3.14.
    """
    probabilities = action_probabilities(mdp, policy)
    rewards = (probabilities * mdp.expected_rewards).sum(axis=1)
    return np.linalg.solve(np.eye(mdp.states) - gamma * _steps(mdp, probabilities, gamma), rewards)


def action_values(mdp: TabularMDP, policy: Policy, gamma: float) -> FloatArray:
    """Q(s,a) = r(s,a) + γ Σ_s' P(s'|s,a) V(s'), [S, A], 0 in terminal states.

    Source: Sutton and Barto, 2nd edition, exercise 3.13.
    """
    found: FloatArray = mdp.expected_rewards + gamma * mdp.transitions @ state_values(mdp, policy, gamma)
    return found


def advantages(mdp: TabularMDP, policy: Policy, gamma: float) -> FloatArray:
    """A(s,a) = Q(s,a) − V(s), [S, A]."""
    return action_values(mdp, policy, gamma) - state_values(mdp, policy, gamma)[:, None]


def occupancy(mdp: TabularMDP, policy: Policy, gamma: float) -> FloatArray:
    """d = d0 + γ P_πᵀ d, solved: [S], 0 in terminal states.

    Source: Sutton and Barto, 2nd edition, equation 9.2.
    """
    steps = _steps(mdp, action_probabilities(mdp, policy), gamma)
    visits = np.linalg.solve(np.eye(mdp.states) - gamma * steps.T, mdp.start)
    return np.where(mdp.terminal, 0.0, visits)


def objective(mdp: TabularMDP, policy: Policy, gamma: float) -> float:
    """J = Σ_s d0(s) V(s)."""
    return float(mdp.start @ state_values(mdp, policy, gamma))


def objective_gradient(mdp: TabularMDP, policy: Policy, gamma: float) -> FloatArray:
    """∇J = Σ_s d_γ(s) Σ_a ∇π(a|s) Q(s,a), the policy gradient theorem.

    Source: Sutton et al. 1999, "Policy gradient methods for reinforcement learning with function approximation",
    theorem 1; Sutton and Barto, 2nd edition, section 13.2.
    """
    values, visits = action_values(mdp, policy, gamma), occupancy(mdp, policy, gamma)
    terms = []
    for state in np.flatnonzero(~mdp.terminal):
        logprobs, jacobian = evaluate(policy, int(state), mdp.actions)
        possible = logprobs > -np.inf
        terms.append(visits[state] * (np.exp(logprobs) * values[state])[possible] @ jacobian[possible])
    total: FloatArray = np.sum(terms, axis=0)
    return total


def action_probabilities(mdp: TabularMDP, policy: Policy) -> FloatArray:
    """π(a|s) [S, A]; 0 in terminal states, where the policy is not asked."""
    found = np.zeros((mdp.states, mdp.actions))
    for state in np.flatnonzero(~mdp.terminal):
        found[state] = np.exp(evaluate(policy, int(state), mdp.actions)[0])
    return found


def _steps(mdp: TabularMDP, probabilities: FloatArray, gamma: float) -> FloatArray:
    """P_π(s'|s) = Σ_a π(a|s) P(s'|s,a), [S, S]; refuses episodes that would last forever undiscounted."""
    if not 0.0 <= gamma <= 1.0:
        raise InvalidInput(f"a discount lies in [0, 1], not at {gamma}")
    found: FloatArray = np.einsum("sa,sat->st", probabilities, mdp.transitions)
    if gamma == 1.0:
        ends = mdp.terminal.copy()
        for _ in range(mdp.states):
            ends |= (found[:, ends] > 0.0).any(axis=1)
        if not ends.all():
            raise InvalidInput(
                f"with γ = 1 every episode must end, but from states {np.flatnonzero(~ends).tolist()} "
                f"this policy reaches no terminal state; use γ < 1"
            )
    return found


def optimal_state_values(mdp: TabularMDP, *, gamma: float = 1.0) -> FloatArray:
    """The best values that any policy has, V*(s) = max_a Q*(s,a): [S], 0 in terminal states.

    J* is `mdp.start @ optimal_state_values(mdp)`.

    Source: Sutton and Barto, 2nd edition, equation 3.18.

    >>> stay_or_go = TabularMDP([[[1, 0], [0, 1]], [[0, 0], [0, 0]]], [[1, 5], [0, 0]], [1, 0], [False, True])
    >>> optimal_state_values(stay_or_go, gamma=0.5)  # go: 5; stay for good: 2
    array([5., 0.])
    """
    found: FloatArray = optimal_action_values(mdp, gamma=gamma).max(axis=1)
    return found


def optimal_action_values(mdp: TabularMDP, *, gamma: float = 1.0) -> FloatArray:
    """The fixed point Q* = r + γ P max_a Q*, iterated from 0 until it stands still: [S, A].

    Source: Sutton and Barto, 2nd edition, equation 3.20; the iteration as in equation 4.10 (value iteration).

    Raises:
        InvalidInput: it does not come to rest within `MAX_SWEEPS`: with γ = 1, rewards without end.

    Exactness:
        The last change is below 1e-15 of the largest value: the error is γ/(1 − γ) times that. Checked by
        tests/exact/test_textbook_mdps.py.
    """
    values: FloatArray = np.zeros((mdp.states, mdp.actions))
    for _ in range(MAX_SWEEPS):
        new = mdp.expected_rewards + gamma * mdp.transitions @ values.max(axis=1)
        change, values = float(np.abs(new - values).max()), new
        if change <= 1e-15 * float(np.abs(values).max()):
            return values
    raise InvalidInput(
        f"the optimal values still change after {MAX_SWEEPS} sweeps; with γ = 1 every episode must be able to end "
        f"and no loop may pay"
    )
