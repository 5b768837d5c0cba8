"""A Markov decision process given by its tables: any states, any actions, loops allowed.

    s_0 ~ d0      a_t ~ π(·|s_t)      s_{t+1} ~ P(·|s_t, a_t)      r_t = r(s_t, a_t, s_{t+1})

An episode ends when it reaches a terminal state, whose value is 0. States are numbers 0 … S−1, and a policy is asked
for the number of a state as it is asked for a prefix of a `TokenMDP`: `SoftmaxTable(range(S), logits)`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rung.errors import InvalidInput
from rung.exact.token_mdp import SUM_TOLERANCE, End, FloatArray, Prefix, TokenMDP


@dataclass(frozen=True)
class Episode:
    """One trajectory τ of a tabular MDP, finished or cut off.

    Attributes:
        states: s_0 … s_L, the state after the last action included.
        actions: a_0 … a_{L−1}.
        rewards: r_0 … r_{L−1}, reward units.
        end: "stop" in a terminal state, "length" when the horizon cut it off.

    >>> Episode((0, 1, 3), (1, 1), (0.0, 1.0), "stop").steps
    [(0, 1), (1, 1)]
    """

    states: tuple[int, ...]
    actions: tuple[int, ...]
    rewards: tuple[float, ...]
    end: End

    @property
    def length(self) -> int:
        """L, the number of actions."""
        return len(self.actions)

    @property
    def steps(self) -> list[tuple[int, int]]:
        """The pairs (s_t, a_t) in order."""
        return list(zip(self.states, self.actions, strict=False))


class TabularMDP:
    """States, actions, transitions, rewards and a start, as arrays.

    Source: Sutton and Barto, 2nd edition, section 3.1, with p(s',r|s,a) given as P(s'|s,a) and r(s,a,s').

    Args:
        transitions: P [S, A, S]; each row of a state that is not terminal sums to 1.
        rewards: r(s,a) [S, A] or r(s,a,s') [S, A, S], reward units.
        start: d0 [S], sums to 1 over states that are not terminal.
        terminal: [S] boolean, True where an episode is over; the rows of these states play no part. None for none.

    Raises:
        InvalidInput: shapes do not fit, a row is no distribution, a reward is not finite, or the start is terminal.

    >>> walk = TabularMDP([[[0.0, 1.0]], [[0.0, 0.0]]], rewards=[[2.0], [0.0]], start=[1, 0], terminal=[False, True])
    >>> walk.states, walk.actions, walk.expected_rewards[0]
    (2, 1, array([2.]))
    """

    def __init__(
        self, transitions: ArrayLike, rewards: ArrayLike, start: ArrayLike, terminal: ArrayLike | None = None
    ) -> None:
        self.transitions: FloatArray = np.array(transitions, dtype=np.float64)
        if self.transitions.ndim != 3 or self.transitions.shape[0] != self.transitions.shape[2]:
            raise InvalidInput(f"transitions are [S, A, S], not {list(self.transitions.shape)}")
        self.states, self.actions, _ = self.transitions.shape
        given = np.array(rewards, dtype=np.float64)
        if given.shape not in {(self.states, self.actions), self.transitions.shape}:
            raise InvalidInput(
                f"rewards are [S, A] or [S, A, S] with S = {self.states}, A = {self.actions}, not {list(given.shape)}"
            )
        by_target = given if given.ndim == 3 else given[:, :, None]
        self.rewards: FloatArray = np.broadcast_to(by_target, self.transitions.shape).copy()
        self.start: FloatArray = np.array(start, dtype=np.float64)
        ends = np.zeros(self.states) if terminal is None else terminal
        self.terminal: NDArray[np.bool_] = np.array(ends, dtype=np.bool_)
        self._check()
        self.transitions[self.terminal] = 0.0
        for array in (self.transitions, self.rewards, self.start, self.terminal):
            array.flags.writeable = False

    def _check(self) -> None:
        if self.start.shape != (self.states,) or self.terminal.shape != (self.states,):
            raise InvalidInput(
                f"start and terminal have one entry for each of {self.states} states, "
                f"not {list(self.start.shape)} and {list(self.terminal.shape)}"
            )
        for name, rows in {
            "start": self.start[None],
            "transitions": self.transitions[~self.terminal],
        }.items():
            if not (np.abs(rows.sum(axis=-1) - 1.0) < SUM_TOLERANCE).all() or not (rows >= 0.0).all():
                raise InvalidInput(f"{name}: each row is a distribution, not negative, with sum 1")
        if self.start[self.terminal].any():
            raise InvalidInput("an episode cannot start in a terminal state")
        if not np.isfinite(self.rewards).all():
            raise InvalidInput("the rewards must be finite")

    @property
    def expected_rewards(self) -> FloatArray:
        """r(s,a) = Σ_s' P(s'|s,a) r(s,a,s'), [S, A]; 0 in terminal states."""
        found: FloatArray = (self.transitions * self.rewards).sum(axis=2)
        return found


def tabulate(mdp: TokenMDP) -> tuple[TabularMDP, list[Prefix]]:
    """The same problem as tables, so that a linear solve can be compared with the sums over sequences.

        P(s·a·answer|s,a) = probability of the environment's answer,   r(s,a) as in the token MDP

    Returns:
        The tables and the prefix of each state but the last, which is terminal. A policy π of the token MDP is the
        policy `lambda state: π(prefixes[state])` of the tables.

    Exactness:
        Checked by tests/exact/test_tabular_values.py::test_tables_of_a_token_mdp_have_its_values.

    >>> tables, prefixes = tabulate(TokenMDP(3, end_token=2, max_length=2, reward=lambda tokens: 1.0))
    >>> prefixes, tables.transitions[0]
    ([(), (0,), (1,)], array([[0., 1., 0., 0.],
           [0., 0., 1., 0.],
           [0., 0., 0., 1.]]))
    """
    prefixes = mdp.prefixes()
    number = {prefix: state for state, prefix in enumerate(prefixes)}
    end = len(prefixes)
    transitions = np.zeros((end + 1, mdp.vocabulary_size, end + 1))
    rewards = np.zeros((end + 1, mdp.vocabulary_size))
    for prefix, state in number.items():
        for token in range(mdp.vocabulary_size):
            rewards[state, token] = mdp.reward_of_step(prefix, token)
            following = mdp.successors(prefix, token)
            for longer, probability in following:
                transitions[state, token, number[longer]] = probability
            if not following:
                transitions[state, token, end] = 1.0
    start = np.eye(end + 1)[0]
    return TabularMDP(transitions, rewards, start, np.eye(end + 1)[end]), prefixes
