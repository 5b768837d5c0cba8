"""Language generation as a Markov decision process small enough to list every sequence.

    state   s_t = the tokens so far (the *prefix*)      action      a_t = the next token
    d0      the empty prefix, with probability 1        transition  append, with probability 1

An episode ends by the end token (`stop`) or at the length cap (`length`). The cap is a true terminal here:
the value after it is 0, which is sound because the prefix says how long it is.
"""

import math
from collections.abc import Callable, Iterator
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


@dataclass(frozen=True)
class Trajectory:
    """One finished sequence τ: its tokens, the end token included, and why it ended.

    >>> Trajectory((0, 2), "stop").steps
    [((), 0), ((0,), 2)]
    """

    tokens: Prefix
    end: End

    @property
    def length(self) -> int:
        """L, the number of sampled tokens; the end token counts."""
        return len(self.tokens)

    @property
    def steps(self) -> list[tuple[Prefix, int]]:
        """The pairs (s_t, a_t) in order: what stood before each token, and the token."""
        return [(self.tokens[:t], token) for t, token in enumerate(self.tokens)]


@dataclass(frozen=True)
class TokenMDP:
    """One prompt's generation problem: which sequences exist, and what each is worth.

        r_t = step_reward(s_t, a_t) + [t is the last token] · reward(τ)

    Source: Ouyang et al. 2022, arXiv:2203.02155, section 3.5 (a bandit over sequences), written per token as in
    Ramamurthy et al. 2022, arXiv:2210.01241.

    Attributes:
        vocabulary_size: V; tokens are 0 … V−1.
        end_token: the token that ends a sequence, or None when only the cap does.
        max_length: the cap on sampled tokens; the end token counts.
        reward: the value of a finished sequence, reward units.
        step_reward: an additional reward for each token, or None.

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
        if prefix and prefix[-1] == self.end_token:
            return "stop"
        return "length" if len(prefix) >= self.max_length else None

    def prefixes(self) -> list[Prefix]:
        """Every prefix at which a token is sampled: shorter ones first, then in token order.

        >>> TokenMDP(3, end_token=2, max_length=2, reward=lambda tokens: 0.0).prefixes()
        [(), (0,), (1,)]
        """
        layer: list[Prefix] = [()]
        found: list[Prefix] = []
        while layer:
            found += layer
            grown = [(*prefix, token) for prefix in layer for token in range(self.vocabulary_size)]
            layer = [prefix for prefix in grown if self.end_of(prefix) is None]
        return found

    def trajectories(self) -> list[Trajectory]:
        """Every finished sequence, in token order, whatever its probability."""
        return list(self._finish(()))

    def _finish(self, prefix: Prefix) -> Iterator[Trajectory]:
        end = self.end_of(prefix)
        if end is not None:
            yield Trajectory(prefix, end)
            return
        for token in range(self.vocabulary_size):
            yield from self._finish((*prefix, token))

    def rewards(self, tokens: Prefix) -> FloatArray:
        """r_t for every token of a finished sequence, the sequence's reward on the last one.

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
        if self.end_of(tokens) is None or any(self.end_of(tokens[:t]) for t in range(1, len(tokens))):
            raise InvalidInput(f"{tokens} is not a finished sequence of this token MDP")
        rewards = [self.reward_of_step(tokens[:t], token) for t, token in enumerate(tokens)]
        return np.array(rewards, dtype=np.float64)

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
        """R(τ) = Σ_t γ^t r_t, the return of a finished sequence from its first token.

        >>> TokenMDP(2, end_token=1, max_length=2, reward=lambda tokens: 2.0).total_return((0, 1), gamma=0.5)
        1.0
        """
        return float(sum(gamma**t * reward for t, reward in enumerate(self.rewards(tokens))))
