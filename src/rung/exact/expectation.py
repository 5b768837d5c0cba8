"""Exact mean and covariance of any estimator, by enumerating every group of samples it could be given."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np

from rung.errors import InvalidInput
from rung.exact.policies import Policy
from rung.exact.sequences import MAX_OUTCOMES, distribution
from rung.exact.token_mdp import FloatArray, TokenMDP, Trajectory

Group: TypeAlias = tuple[Trajectory, ...]


@dataclass(frozen=True)
class Moments:
    """The exact first two moments of an estimator.

    Attributes:
        mean: [n].
        covariance: [n, n], about the mean, of one draw of the estimator.
    """

    mean: FloatArray
    covariance: FloatArray

    @property
    def trace(self) -> float:
        """The sum of the variances of all components: the usual single number for the noise of a gradient."""
        return float(np.trace(self.covariance))


def groups(mdp: TokenMDP, sampler: Policy, group_size: int) -> Iterator[tuple[Group, float]]:
    """Every group of G independent sequences of the sampler, in order, with its probability.

        Pr(τ_1, …, τ_G) = Π_i p_μ(τ_i)

    Yields:
        (group, probability); the probabilities sum to 1. Orders count as different outcomes: an estimator
        need not be symmetric.

    Raises:
        InvalidInput: the group is empty, or there are more outcomes than `MAX_OUTCOMES`.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 0.0)
    >>> biased = SoftmaxTable([()], np.log([[0.25, 0.75]]))
    >>> [round(probability, 4) for group, probability in groups(mdp, biased, 2)]
    [0.0625, 0.1875, 0.1875, 0.5625]
    """
    for (group,), probability in _batches([(mdp, sampler)], group_size):
        yield group, probability


def expectation(
    mdp: TokenMDP, sampler: Policy, group_size: int, estimator: Callable[[Group], FloatArray]
) -> Moments:
    """Exact mean and covariance of an estimator that is given one group of samples.

        E[ĝ] = Σ p(τ_1)…p(τ_G) ĝ(τ_1, …, τ_G)        Cov[ĝ] = E[(ĝ − E[ĝ])(ĝ − E[ĝ])ᵀ]

    Args:
        mdp: which sequences there are.
        sampler: the policy that the group is sampled from; on policy, the one that the estimator
            differentiates.
        group_size: G, the number of sequences in a group.
        estimator: group → vector [n].

    Returns:
        The moments of one draw; nothing is sampled.

    Raises:
        InvalidInput: as `groups`, or an estimate is not a finite vector of one fixed length.

    Exactness:
        Checked by tests/exact/test_expectation.py against recorded means and variances.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 3.0 * tokens[0])
    >>> fair = SoftmaxTable([()], [[0.0, 0.0]])
    >>> moments = expectation(mdp, fair, 1, lambda group: mdp.rewards(group[0].tokens))
    >>> moments.mean, moments.trace  # 0 or 3, each with probability ½
    (array([1.5]), 2.25)
    """
    return expectation_over_prompts([(mdp, sampler)], group_size, lambda batch: estimator(batch[0]))


def expectation_over_prompts(
    prompts: Sequence[tuple[TokenMDP, Policy]],
    group_size: int,
    estimator: Callable[[tuple[Group, ...]], FloatArray],
) -> Moments:
    """Exact mean and covariance of an estimator that is given one group for each of several prompts.

    The groups are independent. It is for statistics that mix prompts: a batch mean, a token count.

    Args:
        prompts: for each prompt its problem and its sampler; `after` makes prompts share a parameter vector.
        group_size: G, the number of sequences for each prompt.
        estimator: (group of the first prompt, group of the second, …) → vector [n].

    Returns:
        The moments of one draw.

    Raises:
        InvalidInput: as `expectation`.
    """
    probabilities: list[float] = []
    estimates: list[FloatArray] = []
    for batch, probability in _batches(prompts, group_size):
        estimate = np.asarray(estimator(batch), dtype=np.float64)
        if estimate.ndim != 1 or not np.isfinite(estimate).all():
            raise InvalidInput(
                f"an estimator returns a finite vector [n]; for {batch} it returned {estimate}"
            )
        probabilities.append(probability)
        estimates.append(estimate)
    mean = np.sum([p * estimate for p, estimate in zip(probabilities, estimates, strict=True)], axis=0)
    covariance = np.zeros((len(mean), len(mean)))
    for p, estimate in zip(probabilities, estimates, strict=True):
        covariance += p * np.outer(estimate - mean, estimate - mean)
    return Moments(mean, covariance)


def _batches(
    prompts: Sequence[tuple[TokenMDP, Policy]], group_size: int
) -> Iterator[tuple[tuple[Group, ...], float]]:
    """Every outcome of sampling G sequences for each prompt, with its probability."""
    if group_size < 1 or not prompts:
        raise InvalidInput(f"there is nothing to enumerate: {len(prompts)} prompts, groups of {group_size}")
    slots = [distribution(mdp, sampler) for mdp, sampler in prompts for _ in range(group_size)]
    outcomes = math.prod(len(slot) for slot in slots)
    if outcomes > MAX_OUTCOMES:
        raise InvalidInput(
            f"{outcomes:,} outcomes are too many to enumerate (at most {MAX_OUTCOMES:,}); "
            f"use a smaller group, fewer prompts, a shorter length cap or a smaller vocabulary"
        )
    for draw in product(*slots):
        trajectories = [trajectory for trajectory, _ in draw]
        batch = tuple(
            tuple(trajectories[start : start + group_size])
            for start in range(0, len(trajectories), group_size)
        )
        yield batch, math.prod(probability for _, probability in draw)
