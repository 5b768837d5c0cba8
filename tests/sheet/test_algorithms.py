"""Recorded numbers of algorithms that had no test, or only one of the oracle: groups, baselines, clips, the tilt.

The other numbers of the algorithms are held by
    batch and step means
        tests/unbiased/test_methods.py::test_a_batch_mean_is_a_matter_of_scale
        tests/verify/test_claims.py::test_factors_of_a_mean_at_each_step_of_toy_c
    earlier batches, greedy
        tests/unbiased/test_credit_baselines.py::test_a_moving_average_of_earlier_batches_does_not_bias
        tests/unbiased/test_credit_baselines.py::test_the_greedy_return_never_biases_and_may_not_help
    RLOO
        tests/unbiased/test_methods.py::test_unbiased_methods
    1/L, all tokens, Dr. GRPO
        tests/unbiased/test_methods.py::test_a_mean_over_each_sequence_follows_reward_per_token
        tests/unbiased/test_methods.py::test_a_mean_over_all_tokens_is_a_ratio_estimator
        tests/unbiased/test_methods.py::test_centred_credit_with_a_constant_length
        tests/test_aggregation.py::test_case_D1_no_split_or_order_changes_the_token_mean
    GRPO on toy C
        tests/unbiased/test_methods.py::test_standardized_credit_turns_the_gradient_of_toy_c
    GRPO on binary rewards
        tests/unbiased/test_binary_rewards.py::test_published_factors
        tests/unbiased/test_binary_rewards.py::test_pairs_and_threes_have_the_same_factor_everywhere
    DAPO
        tests/test_selection.py::test_dynamic_sampling_reweights_a_prompt_by_how_seldom_it_is_mixed
        tests/test_selection.py::test_overlong_penalty_by_hand
        tests/test_selection.py::test_overlong_penalty_with_the_papers_settings
    the clips on toy C
        tests/unbiased/test_off_policy.py::test_published_values_and_gradient_of_the_clip
        tests/unbiased/test_off_policy.py::test_published_values_of_the_clip_with_rewards_negated
        tests/verify/test_clip.py::test_recorded_objectives_of_toy_c
    at the edge of a clip
        tests/verify/test_clip.py::test_on_the_edge_the_gradient_is_kept_and_on_the_dual_clip_half_of_it
    the clip of values
        tests/test_critic.py::test_the_gradient_is_zero_only_past_the_clip_on_the_way_to_the_target
    A2C's detached credit
        tests/methods/test_slots.py::test_credit_is_detached_whatever_the_slot_returns
    weights for a sampler
        tests/unbiased/test_corrections.py::test_published_digits
        tests/unbiased/test_corrections.py::test_a_truncated_sequence_weight_samples_another_policy
    V-trace
        tests/unbiased/test_credit_vtrace.py::test_recorded_fixed_point_on_toy_a
        tests/credit/test_vtrace.py::test_targets_and_credit_are_their_definition_on_the_counted_tokens
    controllers of β
        tests/kl/test_estimators.py::test_the_controller_follows_its_published_steps
        tests/kl/test_controllers.py::test_the_coefficient_is_halved_below_the_band_and_doubled_above_it
    the tilted optimum
        tests/exact/test_regularized.py::test_optimum_of_toy_a
    accepted samples
        tests/exact/test_selection.py::test_fitting_to_accepted_samples_is_the_gradient_of_the_log_of_success
"""

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from rung import exact
from rung.aggregation import sequence_sum
from rung.credit import group_standardized, minus_batch_mean, reward_to_go_minus_step_mean, total_return
from rung.exact import SoftmaxTable
from rung.kl import k1
from rung.methods import KLPenalty, Method, rloo
from rung.policy_losses import clipped_loss, policy_gradient_loss
from tests.batches import f64, gradient
from tests.enumeration import ONE_PROMPT, TWO_PROMPTS, Problem, expected, tables
from tests.toys import (
    A_REGULARIZED_OBJECTIVE,
    A_TILTED_OPTIMUM,
    A_TILTED_VALUE,
    BINARY_STANDARDIZED_FACTORS,
    C_ALIVE_MEAN_FACTORS,
    C_OBJECTIVE_GRADIENT,
    C_STANDARDIZED_COSINES,
    TOY_A,
    TOY_C,
    assert_digits,
)
from tests.unbiased.credited import cosine, moments
from tests.unbiased.on_sequences import chances
from tests.unbiased.test_binary_rewards import coin

# --- standardised rewards --------------------------------------------------------------------------------------------


def standardized(correction):
    credit = partial(group_standardized, correction=correction)
    return Method("standardized", credit, policy_gradient_loss, sequence_sum)


@pytest.mark.parametrize("p", [0.05, 0.1, 0.25, 0.5])
def test_recorded_factors_of_groups_of_sixteen(p):
    """f_16(p) times ∇p = p(1 − p)(−1, 1); the same at 1 − p; √(15/16) of it with the sample deviation."""
    recorded = BINARY_STANDARDIZED_FACTORS[16][p]
    for chance in (p, 1 - p):
        slope = p * (1 - p) * np.array([-1.0, 1.0])
        found = expected(standardized(0), coin(chance), 16).ascent
        assert_digits(found / slope, recorded, 10)
        sample = expected(standardized(1), coin(chance), 16).ascent
        np.testing.assert_allclose(sample, math.sqrt(15 / 16) * found, rtol=0, atol=1e-13)


def factor(size, p):
    """f_G(p) through the credit of the k winners and the G − k others, for each k."""
    total = 0.0
    for k in range(size + 1):
        returns = (torch.arange(size) < k).double()
        credit = group_standardized(returns, torch.zeros(size, dtype=torch.int64), correction=0)
        total += math.comb(size, k) * p**k * (1 - p) ** (size - k) * float(credit @ (returns - p)) / size
    return total / (p * (1 - p))


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5])
def test_in_large_groups_the_factor_is_the_slope_of_an_angle(p):
    """Davis and Recht 2025, 2510.13651: f_G(p) → 1/σ = d/dp 2 arcsin √p, with σ² = p(1 − p).

    What is missing is 1/(8σ³G) and less: the curvature of √(k(1 − k)) at p, −1/(4σ³), times half the variance σ²/G.
    """
    probability = f64(p).requires_grad_()
    limit = gradient(2 * torch.asin(torch.sqrt(probability)), probability).item()
    assert limit == pytest.approx(1 / math.sqrt(p * (1 - p)), abs=1e-12)
    missing = {size: limit - factor(size, p) for size in (8, 32, 512)}
    assert_digits(limit - missing[8], BINARY_STANDARDIZED_FACTORS[8][p], 10)
    curvature = {size: 8 * (p * (1 - p)) ** 1.5 * size * gap - 1 for size, gap in missing.items()}
    assert abs(curvature[512]) < 0.01
    assert abs(curvature[512]) < abs(curvature[32]) / 10


def test_the_other_recorded_cosine_of_threes_is_rounding():
    """For G = 3 on toy C .91831514 is also in circulation: three rewards of .2, or of .4, that do not quite equal

    their mean. In floating point their deviation is 3e-17 or 6e-17, and dividing by it gives each the credit −1. Real
    numbers give 0, and .91824721. So the mean gradient is off by −p³ ∇log π of those two sequences.
    """
    found = expected(standardized(0), ONE_PROMPT, 3).ascent
    assert_digits(cosine(found, C_OBJECTIVE_GRADIENT), C_STANDARDIZED_COSINES[3], 8)
    spurious = np.zeros(9)
    for tau, p in exact.distribution(TOY_C.mdp, TOY_C.policy):
        three = np.full(3, TOY_C.mdp.total_return(tau.tokens))
        if three.std() > 0.0:
            np.testing.assert_array_equal((three - three.mean()) / three.std(), -1.0)
            assert tau.tokens in {(0, 0), (1, 2)}
            spurious -= p**3 * exact.sequence_score(TOY_C.policy, tau)
    assert_digits(cosine(found + spurious, C_OBJECTIVE_GRADIENT), 0.91831514, 8)


# --- baselines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3])
def test_factors_of_a_mean_at_each_step_to_their_last_place(size):
    """The quotient of each entry, not the product: there an error of five units in the factor would not be seen.

    1 − (1 − (1 − p)^B)/(B p) with the chance p that there is a second token.
    """
    found = moments(
        TOY_C, lambda batch: reward_to_go_minus_step_mean(batch.rewards, batch.mask), group_size=size
    ).mean
    quotients = found / exact.objective_gradient(TOY_C.mdp, TOY_C.policy)
    first, second = C_ALIVE_MEAN_FACTORS[size]
    assert_digits(quotients[:3], first, 10)
    assert_digits(quotients[3:], second, 10)
    p = 1 - math.exp(exact.evaluate(TOY_C.policy, ())[0][2])
    assert_digits(1 - (1 - (1 - p) ** size) / (size * p), second, 10)


@pytest.mark.parametrize("size", [2, 3])
def test_a_batch_mean_over_prompts_drawn_at_random_is_a_matter_of_scale(size):
    """(1 − 1/n) ∇E[J], prompts drawn independently with .3 and .7: E[∇log π | prompt] = 0 whatever the others are."""
    tested = Method("batch mean", minus_batch_mean, policy_gradient_loss, sequence_sum)
    share, found = (0.3, 0.7), np.zeros(4)
    for drawn in itertools.product(range(2), repeat=size):
        batch = replace(TWO_PROMPTS, prompts=tuple(TWO_PROMPTS.prompts[k] for k in drawn))
        found += math.prod(share[k] for k in drawn) * expected(tested, batch, 1).ascent
    by_prompt = [exact.objective_gradient(mdp, policy) for mdp, policy, _ in TWO_PROMPTS.oracles()]
    wanted = (1 - 1 / size) * np.array(share) @ by_prompt
    assert np.abs(wanted).max() > 1e-2
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


# --- the clip --------------------------------------------------------------------------------------------------------


def test_the_clip_of_toy_c_stops_one_token():
    """ε = .2 with the advantages of μ: only E after b, whose ρ is .398 and whose advantage is negative."""
    gains = exact.advantages(TOY_C.mdp, TOY_C.behaviour)
    stopped = {}
    for prefix in TOY_C.mdp.prefixes():
        policy, old = (f64(exact.evaluate(p, prefix)[0]) for p in (TOY_C.policy, TOY_C.behaviour))
        policy.requires_grad_()
        slope = gradient(clipped_loss(policy, old, f64(gains[prefix])), policy)
        ratio = (policy - old).exp()
        for token in range(3):
            if slope[token] == 0.0:
                stopped[prefix, token] = ratio[token].item(), gains[prefix][token]
    ((place, (ratio, gain)),) = stopped.items()
    assert place == ((1,), 2)
    assert_digits(ratio, 0.398, 3)
    assert gain < 0.0


# --- the tilted optimum ----------------------------------------------------------------------------------------------


def penalized_returns(problem, beta):
    """R − β Σ_t k1 of every sequence, as a method credits it."""
    method = Method(
        "credited", total_return, policy_gradient_loss, sequence_sum, KLPenalty(k1, "reward", beta)
    )
    found = []
    for i, (_, tokens, reward) in enumerate(problem.sequences):
        batch = problem.rollouts((i,), tables(problem))
        credit = method.prepare(batch).credit[0, 0].item()
        ratio = problem.frozen(problem.policy)[i].sum() - problem.frozen(problem.reference)[i].sum()
        assert credit == pytest.approx(reward - beta * ratio.item(), abs=1e-14), tokens
        found.append(credit)
    return f64(found)


def test_recorded_tilt_of_toy_a():
    """β = .5. J − β KL as the mean of R − β k1; at π* ∝ π_ref e^(R/β) that is β log Z for each token and RLOO rests."""
    here = Problem.of(TOY_A)
    assert_digits(
        (chances(here, here.policy) * penalized_returns(here, 0.5)).sum(), A_REGULARIZED_OBJECTIVE, 12
    )
    assert np.abs(expected(rloo(kl_coefficient=0.5), here, 2).ascent).max() > 0.05
    best = replace(here, policy=SoftmaxTable([()], [np.log(A_TILTED_OPTIMUM)]))
    returns = penalized_returns(best, 0.5)
    assert_digits((chances(best, best.policy) * returns).sum(), A_TILTED_VALUE, 12)
    # π* is printed to ten places: β δπ/π is up to 2.2e-10.
    np.testing.assert_allclose(returns, A_TILTED_VALUE, rtol=0, atol=2.2e-10)
    resting = expected(rloo(kl_coefficient=0.5), best, 2).ascent
    np.testing.assert_allclose(resting, 0.0, rtol=0, atol=1e-10)
