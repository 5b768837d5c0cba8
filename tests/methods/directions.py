"""The mean update of methods that claim no objective, in numpy, from their definitions alone.

A rule says what one batch pulls with: for each of its sequences the factors of ∇log π(a_t|s_t). Everything that could
be sampled is listed, and where the expectation vanishes training has to end.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.methods.trees import Array, Tree, softmax


@dataclass(frozen=True)
class Seen:
    """A sampled sequence: R, how long it is, and log π/π_ref of each of its tokens."""

    reward: float
    length: int
    ratio: Array


Rule = Callable[[Sequence[Seen]], list[Array]]


def direction(tree: Tree, policy: Array, rule: Rule, size: int = 2) -> Array:
    """E[Σ_i Σ_t factor_it ∂log π/∂θ(s,a)] over all batches of this size: a table.

    The score of a table of logits is [a was chosen at s] − π(a|s).
    """
    chances = tree.sequences(policy)
    ratios = np.log(policy) - np.log(tree.reference)
    seen = [
        Seen(reward, len(choices), np.array([ratios[choice] for choice in choices]))
        for reward, choices in zip(tree.rewards, tree.choices, strict=True)
    ]
    pull = np.zeros(policy.shape)
    for batch in itertools.combinations_with_replacement(range(len(seen)), size):
        orders = math.factorial(size) / math.prod(math.factorial(batch.count(i)) for i in set(batch))
        chance = orders * float(np.prod(chances[list(batch)]))
        for i, factors in zip(batch, rule([seen[i] for i in batch]), strict=True):
            for choice, factor in zip(tree.choices[i], factors, strict=True):
                pull[choice] += chance * factor
    return pull - policy * pull.sum(1, keepdims=True)


def vanishes_at(tree: Tree, rule: Rule, step: float, *, most: int = 2000, enough: float = 1e-12) -> Array:
    """The policy at which the direction vanishes, found by following it from the reference."""
    logits = np.log(tree.reference)
    for _ in range(most):
        policy = softmax(logits)
        found = direction(tree, policy, rule)
        if np.abs(found).max() < enough:
            return policy
        logits = logits + step * found / tree.at_choices(tree.sequences(policy))
    raise AssertionError(f"still {np.abs(found).max()} after {most} steps")


# --- the parts of rules --------------------------------------------------------------------------------------------


def standardized(returns: Array) -> Array:
    """(R − mean)/std with Bessel's correction; 0 where all are equal."""
    if np.ptp(returns) < 1e-9:
        return np.zeros(len(returns))
    centered: Array = returns - returns.mean()
    return centered / math.sqrt((centered @ centered) / (len(returns) - 1))


def whitened(parts: list[Array]) -> list[Array]:
    """(x − mean)/std over the tokens of all sequences together, std of the population."""
    tokens = np.concatenate(parts)
    spread = math.sqrt(((tokens - tokens.mean()) ** 2).mean())
    return [(part - tokens.mean()) / spread if spread > 1e-9 else 0.0 * part for part in parts]


def returns_of(batch: Sequence[Seen]) -> Array:
    return np.array([seen.reward for seen in batch])


def tokens_of(batch: Sequence[Seen]) -> int:
    return sum(seen.length for seen in batch)


def k3_slope(seen: Seen) -> Array:
    """∂k3/∂log π = 1 − π_ref/π."""
    return 1.0 - np.exp(-seen.ratio)


def to_go(seen: Seen, beta: float) -> Array:
    """R − β Σ_{s ≥ t} log π/π_ref."""
    return seen.reward - beta * np.cumsum(seen.ratio[::-1])[::-1]


# --- rules ---------------------------------------------------------------------------------------------------------


def grpo_rule(beta: float) -> Rule:
    """A/L of the standardized return, k3 in the loss: GRPO, and on policy GSPO too."""

    def rule(batch: Sequence[Seen]) -> list[Array]:
        credits = standardized(returns_of(batch))
        return [
            (a - beta * k3_slope(seen)) / (len(batch) * seen.length)
            for a, seen in zip(credits, batch, strict=True)
        ]

    return rule


def cispo_rule(beta: float) -> Rule:
    """The same over all tokens of the batch."""

    def rule(batch: Sequence[Seen]) -> list[Array]:
        credits = standardized(returns_of(batch))
        return [
            (a - beta * k3_slope(seen)) / tokens_of(batch) for a, seen in zip(credits, batch, strict=True)
        ]

    return rule


def dapo_rule(beta: float, charge: Callable[[int], float]) -> Rule:
    """Nothing for a group of one reward; otherwise the charge for length is part of the return."""

    def rule(batch: Sequence[Seen]) -> list[Array]:
        if np.ptp(returns_of(batch)) < 1e-9:
            return [np.zeros(seen.length) for seen in batch]
        shaped = returns_of(batch) + np.array([charge(seen.length) for seen in batch])
        credits = standardized(shaped)
        return [
            (a - beta * k3_slope(seen)) / tokens_of(batch) for a, seen in zip(credits, batch, strict=True)
        ]

    return rule


def dr_grpo_rule(beta: float, length: int) -> Rule:
    """The centred return, everything over a constant."""

    def rule(batch: Sequence[Seen]) -> list[Array]:
        credits = returns_of(batch) - returns_of(batch).mean()
        return [
            (a - beta * k3_slope(seen)) / (len(batch) * length)
            for a, seen in zip(credits, batch, strict=True)
        ]

    return rule


def reinforce_pp_rule(beta: float) -> Rule:
    """Returns to go, k1 of each token subtracted, whitened over all tokens, mean over all tokens."""

    def rule(batch: Sequence[Seen]) -> list[Array]:
        credits = whitened([to_go(seen, beta) for seen in batch])
        return [credit / tokens_of(batch) for credit in credits]

    return rule


def reinforce_pp_baseline_rule(beta: float) -> Rule:
    """The centred return on each token, whitened over all tokens; k2 in the loss, whose slope is log π/π_ref."""

    def rule(batch: Sequence[Seen]) -> list[Array]:
        centered = returns_of(batch) - returns_of(batch).mean()
        credits = whitened([np.full(seen.length, a) for a, seen in zip(centered, batch, strict=True)])
        return [
            (credit - beta * seen.ratio) / tokens_of(batch)
            for credit, seen in zip(credits, batch, strict=True)
        ]

    return rule
