"""What standardising does to rewards of 0 and 1: it re-weights prompts by how often they are solved.

    E[ĝ] = f_G(p) ∇p,   f_G(p) = E[√(k(1 − k))] / (p(1 − p)),   k = Binomial(G, p)/G

with the population standard deviation; the sample one multiplies by √((G − 1)/G). The direction is right here, and
only here: with three reward values it is not (test_methods.py).
"""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from rung import exact
from rung.aggregation import sequence_sum
from rung.credit import group_standardized
from rung.exact import SoftmaxTable, TokenMDP
from rung.methods import Method
from rung.policy_losses import clipped_loss
from tests.enumeration import ONE_PROMPT, Problem, expected
from tests.toys import BINARY_STANDARDIZED_FACTORS, assert_digits


def factor(group_size, p):
    """f_G(p), summed over the number of successes."""
    spread = sum(
        math.comb(group_size, k)
        * p**k
        * (1 - p) ** (group_size - k)
        * math.sqrt(k * (group_size - k))
        / group_size
        for k in range(group_size + 1)
    )
    return spread / (p * (1 - p))


def standardized(correction):
    return Method(
        "standardized", partial(group_standardized, correction=correction), clipped_loss, sequence_sum
    )


def coin(p):
    """One token, 1 for the second of two."""
    mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: float(tokens[0]))
    policy = SoftmaxTable([()], [[math.log(1 - p), math.log(p)]])
    return Problem((((), mdp),), policy, policy, policy)


def solved(problem, *, threshold):
    """The same sequences, 1 where the reward was above the threshold."""
    prompts = [
        (prompt, replace(mdp, reward=lambda tokens, mdp=mdp: float(mdp.reward(tokens) > threshold)))
        for prompt, mdp in problem.prompts
    ]
    return replace(problem, prompts=tuple(prompts))


@pytest.mark.parametrize("p", [0.05, 0.1, 0.25, 0.5])
@pytest.mark.parametrize("group_size", [4, 8])
def test_published_factors(group_size, p):
    """∇p = p(1 − p)(−1, 1) for a coin."""
    found = expected(standardized(0), coin(p), group_size).ascent
    assert_digits(
        found / (p * (1 - p)), np.array([-1.0, 1.0]) * BINARY_STANDARDIZED_FACTORS[group_size][p], 10
    )
    assert_digits(factor(group_size, p), BINARY_STANDARDIZED_FACTORS[group_size][p], 10)


def test_pairs_and_threes_have_the_same_factor_everywhere():
    """f_2 = 1, f_3 = √2: at G = 2 alone GRPO would look unbiased."""
    for p in (0.05, 0.3, 0.9):
        slope = p * (1 - p) * np.array([-1.0, 1.0])
        for group_size, value in ((2, 1.0), (3, math.sqrt(2))):
            found = expected(standardized(0), coin(p), group_size).ascent
            np.testing.assert_allclose(found, value * slope, rtol=0, atol=1e-12)


@pytest.mark.parametrize("correction", [0, 1])
def test_sequences_of_several_lengths(correction):
    problem = solved(ONE_PROMPT, threshold=0.3)
    ((mdp, policy, _),) = problem.oracles()
    p = exact.objective(mdp, policy)
    scale = factor(3, p) * math.sqrt(2 / 3 if correction else 1.0)
    found = expected(standardized(correction), problem, 3).ascent
    np.testing.assert_allclose(found, scale * exact.objective_gradient(mdp, policy), rtol=0, atol=1e-12)


def test_each_prompt_gets_its_own_factor():
    """A rare and an even coin in one batch: f_4(0.1) and f_4(0.5) times half of each ∇p, so not a multiple of ∇J."""
    chances = (0.1, 0.5)
    ((_, mdp),) = coin(0.5).prompts
    policy = SoftmaxTable([(7,), (8,)], [[math.log(1 - p), math.log(p)] for p in chances])
    problem = Problem((((7,), mdp), ((8,), mdp)), policy, policy, policy)
    found = expected(standardized(0), problem, 4).ascent
    stated = [BINARY_STANDARDIZED_FACTORS[4][p] * p * (1 - p) / 2 * sign for p in chances for sign in (-1, 1)]
    assert_digits(found, stated, 10)
