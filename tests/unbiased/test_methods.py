"""Σ over everything that could be sampled of p · ĝ, against ∇J of the oracle and the bias that each method states.

Lengths vary and rewards have more than two values; with two prompts all parameters are shared. The KL stands where the
catalogue puts it: in the reward of all but GRPO.
"""

import math
from functools import partial

import numpy as np
import pytest

from rung import exact
from rung.aggregation import constant_length, sequence_mean, sequence_sum, token_mean
from rung.credit import (
    group_centered,
    group_standardized,
    leave_one_out,
    minus_batch_mean,
    reward_to_go,
    reward_to_go_minus_batch_mean,
    total_return,
)
from rung.methods import Method, grpo, reinforce, rloo, vpg
from rung.policy_losses import clipped_loss, importance_weighted_loss, policy_gradient_loss
from tests.enumeration import ONE_PROMPT, THREE_TOKENS, TWO_PROMPTS, expected
from tests.methods.helpers import build
from tests.toys import (
    C_BIAS_WITHOUT_DISCOUNT_WEIGHT,
    C_OBJECTIVE_GRADIENT,
    C_SEQUENCE_MEAN,
    C_SEQUENCE_MEAN_COSINE,
    C_STANDARDIZED,
    C_STANDARDIZED_COSINES,
    C_TOKEN_MEAN_COSINE,
    assert_digits,
)

ALL = [
    pytest.param(ONE_PROMPT, 2, id="C, G=2"),
    pytest.param(ONE_PROMPT, 3, id="C, G=3"),
    pytest.param(THREE_TOKENS, 2, id="LONG, G=2"),
    pytest.param(TWO_PROMPTS, 2, id="two prompts, G=2"),
]
PROBLEMS = pytest.mark.parametrize(("problem", "group_size"), ALL)
TWO_PROBLEMS = pytest.mark.parametrize(
    ("problem", "group_size"), [ALL[1], ALL[3]]
)  # for what one slot decides
BETAS = pytest.mark.parametrize("beta", [0.0, 0.3])
UNBIASED = [
    "vpg",
    "reinforce-constant",
    "reinforce-moving-average",
    "reinforce-learned",
    "rloo",
    "rloo-corrected",
    "remax",
    "impala",
    "ppo-loo",
    "dual-clip",
    "trpo",
]


def close(actual, wanted, atol=1e-12):
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=atol)


def cosine(a, b):
    return float(a @ b / math.sqrt((a @ a) * (b @ b)))


def regularized_gradient(problem, beta):
    """∇(J − β KL(π‖π_ref)) of whole sequences, averaged over prompts."""
    found = problem.mean_over_prompts(lambda *oracle: exact.regularized_objective(*oracle, beta).gradient)
    assert np.abs(found).max() > 1e-3  # so that equality with it means something
    return found


def method(credit, aggregation=sequence_sum, policy_loss=policy_gradient_loss):
    return Method("under test", credit, policy_loss, aggregation)


def enumerated(problem, group_size, sequence_credit, weight):
    """E[Σ_i w_i A_i Σ_t ∇log π] with plain numpy, for credits and weights that the test writes out itself.

    `sequence_credit`: rewards of a group [G] → A [G]; `weight`: lengths of a group [G] → w [G].
    """
    (mdp, policy, _), *others = problem.oracles()
    assert not others

    def estimator(group):
        credit = sequence_credit(np.array([mdp.total_return(tau.tokens) for tau in group]))
        weights = weight(np.array([tau.length for tau in group]))
        return sum(
            w * a * exact.sequence_score(policy, tau)
            for w, a, tau in zip(weights, credit, group, strict=True)
        )

    return exact.expectation(mdp, policy, group_size, estimator).mean


# --- the catalogue -------------------------------------------------------------------------------------------------


@BETAS
@PROBLEMS
@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_methods(name, problem, group_size, beta):
    """E[ĝ] = ∇(J − β KL): scale and direction, whatever the critic says. At ρ = 1, before a batch's first update."""
    close(
        expected(build(name, kl_coefficient=beta), problem, group_size).ascent,
        regularized_gradient(problem, beta),
    )


@BETAS
@PROBLEMS
def test_reinforce_is_short_by_its_own_share_of_the_baseline(problem, group_size, beta):
    """E[ĝ] = (1 − 1/B) ∇(J − β KL), B over all prompts together."""
    sequences = group_size * len(problem.prompts)
    found = expected(reinforce(kl_coefficient=beta), problem, group_size).ascent
    close(found, (1 - 1 / sequences) * regularized_gradient(problem, beta))


@BETAS
def test_one_sample_for_each_prompt(beta):
    """VPG needs no comparison; REINFORCE compares over prompts, and alone learns nothing; RLOO needs two."""
    gradient = regularized_gradient(TWO_PROMPTS, beta)
    close(expected(vpg(kl_coefficient=beta), TWO_PROMPTS, 1).ascent, gradient)
    close(expected(reinforce(kl_coefficient=beta), TWO_PROMPTS, 1).ascent, gradient / 2)
    close(expected(reinforce(kl_coefficient=beta), ONE_PROMPT, 1).ascent, np.zeros(9))
    close(expected(rloo(kl_coefficient=beta), TWO_PROMPTS, 1).ascent, np.zeros(4))


@BETAS
@pytest.mark.parametrize("problem", [ONE_PROMPT, THREE_TOKENS, TWO_PROMPTS], ids=["C", "LONG", "two prompts"])
def test_grpo_in_pairs_is_a_rank_a_mean_over_tokens_and_a_forward_kl(problem, beta):
    """G = 2, with d = R_1 − R_2: deviation d/2, sample deviation |d|/√2, so A_1 = sign(d)/√2 and

    E[ĝ] = Σ_τ p(τ) (P(R < R(τ)) − P(R > R(τ)))/√2 · 1/L Σ_t ∇log π  −  β Σ_τ p(τ) 1/L Σ_t (1 − π_ref/π) ∇log π
    """

    def stated(mdp, policy, reference):
        outcomes = [(p, mdp.total_return(tau.tokens)) for tau, p in exact.distribution(mdp, policy)]

        def credit(tau):
            own = mdp.total_return(tau.tokens)
            rank = sum(p * np.sign(own - other) for p, other in outcomes) / math.sqrt(2)
            excess = [
                1 - np.exp(exact.evaluate(reference, s)[0][a] - exact.evaluate(policy, s)[0][a])
                for s, a in tau.steps
            ]
            return (rank - beta * np.array(excess)) / tau.length

        return exact.policy_gradient(mdp, policy, credit)

    close(expected(grpo(kl_coefficient=beta), problem, 2).ascent, problem.mean_over_prompts(stated))


@pytest.mark.parametrize("correction", [0, 1])
def test_grpo_of_three_by_its_definition(correction):
    """Standardised over three, mean over each sequence's tokens: numpy, group by group."""

    def standardized(rewards):
        spread = rewards.std(ddof=correction)
        return (
            (rewards - rewards.mean()) / spread if spread > 1e-12 else np.zeros(3)
        )  # three 0.2 have one of 3e-17

    tested = method(partial(group_standardized, correction=correction), sequence_mean, clipped_loss)
    wanted = enumerated(ONE_PROMPT, 3, standardized, lambda lengths: 1 / (3 * lengths))
    close(expected(tested, ONE_PROMPT, 3).ascent, wanted)
    if correction == 1:
        close(expected(grpo(kl_coefficient=0.0), ONE_PROMPT, 3).ascent, wanted)


# --- credits -------------------------------------------------------------------------------------------------------


@TWO_PROBLEMS
@pytest.mark.parametrize("credit", [total_return, reward_to_go, leave_one_out])
def test_unbiased_credits(credit, problem, group_size):
    close(expected(method(credit), problem, group_size).ascent, regularized_gradient(problem, 0.0))


@TWO_PROBLEMS
@pytest.mark.parametrize("credit", [minus_batch_mean, reward_to_go_minus_batch_mean])
def test_a_batch_mean_is_a_matter_of_scale(credit, problem, group_size):
    sequences = group_size * len(problem.prompts)
    found = expected(method(credit), problem, group_size).ascent
    close(found, (1 - 1 / sequences) * regularized_gradient(problem, 0.0))


@TWO_PROBLEMS
def test_centring_on_the_group_is_a_matter_of_scale(problem, group_size):
    """(G − 1)/G, whatever the number of prompts."""
    found = expected(method(group_centered), problem, group_size).ascent
    close(found, (1 - 1 / group_size) * regularized_gradient(problem, 0.0))


def test_standardized_credit_turns_the_gradient_of_toy_c():
    """Published: direction and digits at G = 2 with the population deviation, the cosine at G = 3."""
    population = method(partial(group_standardized, correction=0))
    pairs = expected(population, ONE_PROMPT, 2).ascent
    assert_digits(pairs, C_STANDARDIZED, 10)
    assert_digits(cosine(pairs, C_OBJECTIVE_GRADIENT), C_STANDARDIZED_COSINES[2], 8)
    threes = expected(population, ONE_PROMPT, 3).ascent
    assert_digits(cosine(threes, C_OBJECTIVE_GRADIENT), C_STANDARDIZED_COSINES[3], 8)
    close(expected(method(group_standardized), ONE_PROMPT, 2).ascent, pairs / math.sqrt(2))


@pytest.mark.parametrize("gamma", [0.9, 0.5, 0.0])
def test_discounted_returns(gamma):
    """The discounted R(τ) on every score is ∇J_γ; G_t is so with γ^t at the score, and without it is not."""
    exact_gradient = THREE_TOKENS.mean_over_prompts(
        lambda mdp, policy, _: exact.objective_gradient(mdp, policy, gamma=gamma)
    )

    def discounted_sum(mask):
        return sequence_sum(mask) * gamma ** (mask.cumsum(1) - 1).double()

    close(expected(method(partial(total_return, gamma=gamma)), THREE_TOKENS, 1).ascent, exact_gradient)
    to_go = partial(reward_to_go, gamma=gamma)
    close(expected(method(to_go, discounted_sum), THREE_TOKENS, 1).ascent, exact_gradient)
    assert np.abs(expected(method(to_go), THREE_TOKENS, 1).ascent - exact_gradient).max() > 1e-3


def test_the_bias_of_a_missing_discount_weight_on_toy_c():
    exact_gradient = exact.objective_gradient(*ONE_PROMPT.oracles()[0][:2], gamma=0.9)
    found = expected(method(partial(reward_to_go, gamma=0.9)), ONE_PROMPT, 1).ascent
    assert_digits(np.abs(found - exact_gradient).max(), C_BIAS_WITHOUT_DISCOUNT_WEIGHT, 10)


# --- aggregations --------------------------------------------------------------------------------------------------


@TWO_PROBLEMS
def test_a_constant_length_is_a_matter_of_scale(problem, group_size):
    found = expected(method(leave_one_out, partial(constant_length, length=5)), problem, group_size).ascent
    close(found, regularized_gradient(problem, 0.0) / 5)


@TWO_PROBLEMS
def test_centred_credit_with_a_constant_length(problem, group_size):
    """Dr. GRPO: (G − 1)/(G L) ∇J, also with PPO's clip at ρ = 1."""
    tested = method(group_centered, partial(constant_length, length=5), clipped_loss)
    found = expected(tested, problem, group_size).ascent
    close(found, (1 - 1 / group_size) / 5 * regularized_gradient(problem, 0.0))


@pytest.mark.parametrize("group_size", [2, 3])
def test_a_mean_over_each_sequence_follows_reward_per_token(group_size):
    """∇E[R/L] − b ∇E[1/L] at b = J: published digits, the same for every G. A larger batch does not help."""
    found = expected(method(leave_one_out, sequence_mean), ONE_PROMPT, group_size).ascent
    assert_digits(found, C_SEQUENCE_MEAN, 10)
    assert_digits(cosine(found, C_OBJECTIVE_GRADIENT), C_SEQUENCE_MEAN_COSINE, 8)
    (mdp, policy, _) = ONE_PROMPT.oracles()[0]
    baseline = exact.objective(mdp, policy)
    close(
        found,
        exact.policy_gradient(
            mdp,
            policy,
            lambda tau: np.full(tau.length, (mdp.total_return(tau.tokens) - baseline) / tau.length),
        ),
    )


def test_a_mean_over_all_tokens_is_a_ratio_estimator():
    """Its denominator is drawn with the sample. Published cosine at G = 2; the error of direction shrinks with G."""

    def loo(rewards):
        return (rewards - rewards.mean()) * len(rewards) / (len(rewards) - 1)

    tested = method(leave_one_out, token_mean)
    off = {}
    for group_size in (2, 3):
        found = expected(tested, ONE_PROMPT, group_size).ascent
        close(found, enumerated(ONE_PROMPT, group_size, loo, lambda n: np.full(len(n), 1 / n.sum())))
        off[group_size] = 1 - cosine(found, C_OBJECTIVE_GRADIENT)
    assert_digits(1 - off[2], C_TOKEN_MEAN_COSINE, 5)
    assert off[3] < 0.7 * off[2]


# --- policy losses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy_loss", [policy_gradient_loss, importance_weighted_loss, clipped_loss])
@TWO_PROBLEMS
def test_every_policy_loss_is_the_policy_gradient_on_policy(policy_loss, problem, group_size):
    tested = method(leave_one_out, sequence_sum, policy_loss)
    close(expected(tested, problem, group_size).ascent, regularized_gradient(problem, 0.0))
