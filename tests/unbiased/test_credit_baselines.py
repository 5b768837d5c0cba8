"""Baselines that come from the batch, from earlier ones, or from a greedy sequence: which of them bias, and by what."""

import numpy as np
import pytest
import torch

from rung import exact
from rung.credit import (
    MovingAverage,
    minus_greedy,
    reward_to_go_minus_step_mean,
    whitened_group_centered,
    whitened_to_go,
)
from tests.toys import (
    C_ALIVE_MEAN_FACTORS,
    C_OBJECTIVE_GRADIENT,
    C_TRACE_RETURN,
    TOY_B,
    TOY_C,
    TOY_LONG,
    assert_digits,
)
from tests.unbiased.credited import Batch, cosine, moments, near

TOYS = pytest.mark.parametrize("toy", [TOY_C, TOY_LONG], ids=["C", "LONG"])  # LONG has rewards on steps, too


# --- baselines from batches ------------------------------------------------------------------------------------------


def steps_of_the_gradient(toy):
    """∇J step by step: E[G_t ∇log π(a_t|s_t)] for each t, and the chance p_t that there is a t-th token."""
    found, alive = [], []
    for t in range(toy.mdp.max_length):

        def at(tau, t=t):
            to_go = np.cumsum(toy.mdp.rewards(tau.tokens)[::-1])[::-1]
            return np.where(np.arange(tau.length) == t, to_go, 0.0)

        found.append(exact.policy_gradient(toy.mdp, toy.policy, at))
        alive.append(sum(p for tau, p in exact.distribution(toy.mdp, toy.policy) if tau.length > t))
    return found, alive


def step_mean(batch):
    return reward_to_go_minus_step_mean(batch.rewards, batch.mask)


@pytest.mark.parametrize("size", [2, 3])
def test_recorded_factors_of_a_mean_at_each_step(size):
    """Toy C: the first row of ∇J is the first step, the other two the second."""
    found = moments(TOY_C, step_mean, group_size=size).mean
    exact_gradient = exact.objective_gradient(TOY_C.mdp, TOY_C.policy)
    first, second = C_ALIVE_MEAN_FACTORS[size]
    assert_digits(found[:3], first * exact_gradient[:3], 10)
    assert_digits(found[3:], second * exact_gradient[3:], 10)


@pytest.mark.parametrize(("toy", "size"), [(TOY_C, 3), (TOY_LONG, 2)], ids=["C", "LONG"])
@pytest.mark.parametrize("spacing", [1, 2])
def test_a_mean_at_each_step_turns_the_gradient(toy, size, spacing):
    """Σ_t (1 − (1 − (1−p_t)^B)/(B p_t)) · the part of step t, with p_t and the parts from the oracle."""
    parts, alive = steps_of_the_gradient(toy)
    factors = [1 - (1 - (1 - p) ** size) / (size * p) for p in alive]
    found = moments(toy, step_mean, group_size=size, spacing=spacing).mean
    near(found, sum(factor * part for factor, part in zip(factors, parts, strict=True)))
    assert cosine(found, exact.objective_gradient(toy.mdp, toy.policy)) < 0.99


def test_a_mean_at_each_step_only_rescales_where_lengths_are_equal():
    found = moments(TOY_B, step_mean, group_size=2).mean
    near(found, exact.objective_gradient(TOY_B.mdp, TOY_B.policy) / 2)


@TOYS
def test_the_greedy_return_never_biases_and_may_not_help(toy):
    """On C the most likely first token ends the sequence with reward 0: the variance is that of plain REINFORCE."""
    tokens = ()
    while toy.mdp.end_of(tokens) is None:
        tokens = (*tokens, int(np.argmax(exact.evaluate(toy.policy, tokens)[0])))
    greedy = toy.mdp.total_return(tokens)

    def credit(batch):
        return minus_greedy(batch.returns, torch.full_like(batch.returns, greedy))

    found = moments(toy, credit)
    near(found.mean, exact.objective_gradient(toy.mdp, toy.policy))
    if toy is TOY_C:
        assert_digits(found.trace, C_TRACE_RETURN, 10)
    else:
        assert abs(greedy) > 0.1


def test_a_moving_average_of_earlier_batches_does_not_bias():
    """Two batches of two: the first sets the baseline of the second. With its own batch in it: 1 − (1 − m)/B."""
    exact_gradient = exact.objective_gradient(TOY_C.mdp, TOY_C.policy)
    start = MovingAverage(1.3, 0.8)

    def later(group):
        earlier, present = Batch(TOY_C.mdp, group[:2]), Batch(TOY_C.mdp, group[2:])
        baseline = start.after(earlier.returns)
        return present.gradient(baseline(present.rewards, present.mask), TOY_C.policy)

    def own(batch):
        return start.after(batch.returns)(batch.rewards, batch.mask)

    near(exact.expectation(TOY_C.mdp, TOY_C.policy, 4, later).mean, exact_gradient)
    near(moments(TOY_C, own, group_size=2).mean, (1 - 0.2 / 2) * exact_gradient)


# --- whitening -------------------------------------------------------------------------------------------------------


def whitened(values, counts):
    """Values repeated as often as they count, minus their mean, over their population deviation: plain numpy."""
    spread = np.repeat(values, counts)
    deviation = spread.std()
    return (values - spread.mean()) / deviation if deviation > 1e-9 else np.zeros(len(values))


@pytest.mark.parametrize("size", [2, 3])
def test_whitening_biases(size):
    """Against numpy, group by group. The direction is wrong, not the length alone."""

    def to_go(group):
        lengths = np.array([tau.length for tau in group])
        returns = np.array([TOY_C.mdp.total_return(tau.tokens) for tau in group])
        credit = whitened(returns, lengths)  # rewards of C come at the end: every G_t is R
        return (
            sum(a * exact.sequence_score(TOY_C.policy, tau) for a, tau in zip(credit, group, strict=True))
            / size
        )

    wanted = exact.expectation(TOY_C.mdp, TOY_C.policy, size, to_go).mean
    found = moments(TOY_C, lambda batch: whitened_to_go(batch.rewards, batch.mask), group_size=size).mean
    near(found, wanted)
    centred = moments(
        TOY_C,
        lambda batch: whitened_group_centered(
            batch.returns, torch.zeros(size, dtype=torch.int64), batch.mask
        ),
        group_size=size,
    ).mean
    near(centred, wanted)  # with one group the mean over tokens takes the group's mean away again
    assert cosine(found, C_OBJECTIVE_GRADIENT) < 0.95
