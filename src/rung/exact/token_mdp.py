"""Language generation as a Markov decision process small enough to list every sequence.

    state   s_t = the tokens so far (the *prefix*)      action      a_t = the next token
    d0      the empty prefix, with probability 1        transition  append, with probability 1

An episode ends by the end token (`stop`) or at the length cap (`length`). The cap is a true terminal here:
the value after it is 0, which is sound because the prefix says how long it is.

Between turns an *environment* (a tool, a user) may append tokens that the policy did not sample. They are part of
the transition: seen by the policy, never scored, never counted as steps.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rung.errors import InvalidInput

FloatArray: TypeAlias = NDArray[np.float64]
Prefix: TypeAlias = tuple[int, ...]
End: TypeAlias = Literal["stop", "length"]
SequenceReward: TypeAlias = Callable[[Prefix], float]
StepReward: TypeAlias = Callable[[Prefix, int], float]
Environment: TypeAlias = Callable[[Prefix], Mapping[Prefix, float]]

# The environment's probabilities may miss 1 by rounding, not by more.
SUM_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Trajectory:
    """One finished sequence τ: its tokens, the end token included, and why it ended.

    Attributes:
        tokens: all tokens, the environment's included.
        end: why it ended.
        sampled: True for each token that the policy sampled, False for the environment's; all True when left out.

    >>> Trajectory((0, 2), "stop").steps
    [((), 0), ((0,), 2)]
    >>> Trajectory((0, 7, 2), "stop", (True, False, True)).steps
    [((), 0), ((0, 7), 2)]
    """

    tokens: Prefix
    end: End
    sampled: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if not self.sampled:
            object.__setattr__(self, "sampled", (True,) * len(self.tokens))
        if len(self.sampled) != len(self.tokens):
            raise InvalidInput(f"{len(self.tokens)} tokens need as many marks `sampled`, not {self.sampled}")

    @property
    def length(self) -> int:
        """L, the number of sampled tokens; the end token counts, the environment's tokens do not."""
        return sum(self.sampled)

    @property
    def steps(self) -> list[tuple[Prefix, int]]:
        """The pairs (s_t, a_t) in order: what stood before each sampled token, and the token."""
        return [(self.tokens[:i], token) for i, token in enumerate(self.tokens) if self.sampled[i]]


@dataclass(frozen=True)
class TokenMDP:
    """One prompt's generation problem: which sequences exist, and what each is worth.

        r_t = step_reward(s_t, a_t) + [t is the last sampled token] · reward(τ)

    After every sampled token short of the cap the environment is asked what it appends. When it appends something
    the policy goes on, after an end token too: a turn ended, and not the conversation. The tokens alone tell who
    wrote them, since no answer after one prefix begins with another one.

    Source: Ouyang et al. 2022, arXiv:2203.02155, section 3.5 (a bandit over sequences), written per token as in
    Ramamurthy et al. 2022, arXiv:2210.01241.

    Attributes:
        vocabulary_size: V; the policy samples tokens 0 … V−1.
        end_token: the token that ends a sequence, or None when only the cap does.
        max_length: the cap on sampled tokens; the end token counts, the environment's tokens do not.
        reward: the value of a finished sequence, reward units.
        step_reward: an additional reward for each sampled token, or None.
        environment: prefix → {tokens it appends: probability}, nothing for {} or {(): 1.0}; None when the policy is
            alone. Its tokens may lie outside the policy's vocabulary.

    Raises:
        InvalidInput: a size is below 1 or the end token is outside the vocabulary.

    >>> mdp = TokenMDP(2, end_token=1, max_length=2, reward=lambda tokens: float(len(tokens)))
    >>> [(tau.tokens, tau.end) for tau in mdp.trajectories()]
    [((0, 0), 'length'), ((0, 1), 'stop'), ((1,), 'stop')]
    """

    vocabulary_size: int
    end_token: int | None
    max_length: int
    reward: SequenceReward
    step_reward: StepReward | None = None
    environment: Environment | None = None

    def __post_init__(self) -> None:
        if self.vocabulary_size < 1 or self.max_length < 1:
            raise InvalidInput(
                f"a token MDP needs at least one token and one step, "
                f"not {self.vocabulary_size} tokens and a length cap of {self.max_length}"
            )
        if self.end_token is not None and not 0 <= self.end_token < self.vocabulary_size:
            raise InvalidInput(
                f"end token {self.end_token} is outside the vocabulary 0 … {self.vocabulary_size - 1}; "
                f"use None when only the length cap ends a sequence"
            )

    def end_of(self, prefix: Prefix) -> End | None:
        """Why a sequence with these tokens has ended, or None while it goes on.

        >>> mdp = TokenMDP(2, end_token=1, max_length=2, reward=lambda tokens: 0.0)
        >>> mdp.end_of((0,)), mdp.end_of((0, 1)), mdp.end_of((0, 0))
        (None, 'stop', 'length')
        """
        sampled = self.sampled(prefix)
        if not sampled or not sampled[-1]:
            return None  # the policy's turn
        at_cap = sum(sampled) >= self.max_length
        if prefix[-1] == self.end_token and (at_cap or () in self.answers(prefix)):
            return "stop"
        return "length" if at_cap else None

    def answers(self, prefix: Prefix) -> dict[Prefix, float]:
        """What the environment appends after a sampled token, with probabilities; {(): 1.0} when it is silent.

        Raises:
            InvalidInput: probabilities that are negative or do not sum to 1, or an answer that begins with another.
        """
        asked = self.environment(prefix) if self.environment is not None else {}
        if not asked:
            return {(): 1.0}
        found = {tuple(tokens): float(probability) for tokens, probability in asked.items()}
        if min(found.values()) < 0.0 or not abs(sum(found.values()) - 1.0) < SUM_TOLERANCE:
            raise InvalidInput(f"after {prefix} the environment's answers {found} have no probabilities")
        found = {tokens: probability for tokens, probability in found.items() if probability > 0.0}
        for first in found:
            for second in found:
                if first != second and second[: len(first)] == first:
                    raise InvalidInput(
                        f"after {prefix} the environment may answer {first} or {second}: one begins with the other, "
                        f"so that the tokens would not tell who wrote them"
                    )
        return found

    def sampled(self, tokens: Prefix) -> tuple[bool, ...]:
        """Who wrote each token of a prefix: True for the policy, False for the environment.

        Raises:
            InvalidInput: the environment does not answer like this.

        >>> mdp = TokenMDP(2, None, 2, reward=lambda tokens: 0.0, environment=lambda prefix: {(7, 8): 1.0})
        >>> mdp.sampled((0, 7, 8, 1))
        (True, False, False, True)
        """
        if self.environment is None:
            return (True,) * len(tokens)
        marks: list[bool] = []
        while len(marks) < len(tokens):
            marks.append(True)
            here = len(marks)
            if here == len(tokens) or sum(marks) >= self.max_length:
                continue
            fitting = [a for a in self.answers(tokens[:here]) if tokens[here : here + len(a)] == a]
            if not fitting:
                raise InvalidInput(
                    f"in {tokens} the environment would not go on like this after {tokens[:here]}"
                )
            marks += [False] * len(fitting[0])
        return tuple(marks)

    def successors(self, prefix: Prefix, token: int) -> list[tuple[Prefix, float]]:
        """P(s'|s,a): where the policy samples next once it has sampled this token; nowhere when that ends the sequence.

        >>> mdp = TokenMDP(2, end_token=1, max_length=2, reward=lambda tokens: 0.0)
        >>> mdp.successors((), 0), mdp.successors((), 1)
        ([((0,), 1.0)], [])
        """
        longer = (*prefix, token)
        if self.end_of(longer) is not None:
            return []
        return [((*longer, *answer), probability) for answer, probability in self.answers(longer).items()]

    def prefixes(self) -> list[Prefix]:
        """Every prefix at which a token is sampled: fewer sampled tokens first, then in token order.

        >>> TokenMDP(3, end_token=2, max_length=2, reward=lambda tokens: 0.0).prefixes()
        [(), (0,), (1,)]
        """
        layer: list[Prefix] = [()]
        found: list[Prefix] = []
        while layer:
            found += layer
            steps = [(prefix, token) for prefix in layer for token in range(self.vocabulary_size)]
            layer = [longer for prefix, token in steps for longer, _ in self.successors(prefix, token)]
        return found

    def trajectories(self) -> list[Trajectory]:
        """Every finished sequence, in token order, whatever its probability."""
        return list(self._finish(()))

    def _finish(self, prefix: Prefix) -> Iterator[Trajectory]:
        for token in range(self.vocabulary_size):
            longer = (*prefix, token)
            end = self.end_of(longer)
            if end is not None:
                yield Trajectory(longer, end, self.sampled(longer))
            for following, _ in self.successors(prefix, token):
                yield from self._finish(following)

    def rewards(self, tokens: Prefix) -> FloatArray:
        """r_t for every sampled token of a finished sequence, the sequence's reward on the last one.

        Args:
            tokens: a finished sequence.

        Returns:
            [L], reward units.

        Raises:
            InvalidInput: the sequence has not ended, goes on after its end, or its reward is not finite.

        >>> mdp = TokenMDP(2, end_token=1, max_length=2, reward=len, step_reward=lambda prefix, token: -0.5)
        >>> mdp.rewards((0, 1))
        array([-0.5,  1.5])
        """
        tokens = tuple(tokens)
        end = self.end_of(tokens)
        steps = Trajectory(tokens, end, self.sampled(tokens)).steps if end is not None else []
        if not steps or any(self.end_of((*prefix, token)) is not None for prefix, token in steps[:-1]):
            raise InvalidInput(f"{tokens} is not a finished sequence of this token MDP")
        return np.array([self.reward_of_step(prefix, token) for prefix, token in steps], dtype=np.float64)

    def reward_of_step(self, prefix: Prefix, token: int) -> float:
        """r_t for one token after one prefix, with the sequence's reward in it when this token ends it."""
        longer = (*prefix, token)
        reward = float(self.step_reward(prefix, token)) if self.step_reward is not None else 0.0
        if self.end_of(longer) is not None:
            reward += float(self.reward(longer))
        if not math.isfinite(reward):
            raise InvalidInput(f"the reward for token {token} after {prefix} is {reward}; it must be finite")
        return reward

    def total_return(self, tokens: Prefix, *, gamma: float = 1.0) -> float:
        """R(τ) = Σ_t γ^t r_t, the return of a finished sequence from its first token; t counts sampled tokens.

        >>> TokenMDP(2, end_token=1, max_length=2, reward=lambda tokens: 2.0).total_return((0, 1), gamma=0.5)
        1.0
        """
        return float(sum(gamma**t * reward for t, reward in enumerate(self.rewards(tokens))))
