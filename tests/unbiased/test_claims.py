"""Claims that circulate about estimators and are wrong: for each the right form and a counter-example in numbers.

Several have their tests elsewhere, beside what they are about; ELSEWHERE says where, and that these tests exist.
"""

import math

import numpy as np
import pytest
import torch

from rung import exact
from rung.aggregation import sequence_sum, token_mean
from rung.correction import importance
from rung.credit import gae, leave_one_out, minus_constant, reward_to_go
from rung.kl import k1, k2, k3, kl_divergence
from rung.methods import KLPenalty, Method
from rung.policy_losses import policy_gradient_loss
from tests.batches import annotated, close, f64, rollouts
from tests.enumeration import ONE_PROMPT, Problem, expected, next_token_logprobs
from tests.node_ids import exists
from tests.toys import (
    A_KL_POLICY_REFERENCE,
    B_FUTURE_FIRST_ROW,
    B_GRADIENT_KL_POLICY_REFERENCE,
    B_IMMEDIATE_KL_POLICY_REFERENCE,
    B_KL_POLICY_REFERENCE,
    B_KL_REFERENCE_POLICY,
    C_OBJECTIVE,
    C_OBJECTIVE_GRADIENT,
    C_TRACE_RETURN,
    TOY_A,
    TOY_B,
    TOY_C,
    assert_digits,
    rows,
)
from tests.unbiased.credited import moments
from tests.unbiased.on_sequences import ascent, chances, layout, log_ratios, penalty
from tests.unbiased.test_binary_rewards import coin

ELSEWHERE = {
    "1 outside the clip window the gradient is zero": [
        "tests/reductions/test_policy_losses.py::test_the_six_regions_of_the_clip",
        "tests/reductions/test_policy_losses.py::test_the_clip_does_not_bound_the_ratio",
    ],
    "2 all choices of Ψ are unbiased": [
        "tests/unbiased/test_credit_family.py::test_an_error_that_does_not_depend_on_the_action_does_not_bias",
        "tests/unbiased/test_catalogue.py::test_the_bias_of_a2c_by_a_wrong_critic",
        "tests/unbiased/test_methods.py::test_the_bias_of_a_missing_discount_weight_on_toy_c",
    ],
    "3 the advantage has the lowest variance": [
        "tests/unbiased/test_credit_family.py::test_recorded_variances_of_every_choice_of_credit",
    ],
    "4 k3 is just a lower-variance k1": [
        "tests/unbiased/test_kl_gradients.py::test_published_digits_of_the_loss",
        "tests/unbiased/test_kl_gradients.py::test_published_digits_of_the_reward",
        "tests/unbiased/test_kl_cells.py::test_on_policy_detaching_the_weight_is_what_decides",
    ],
    "9 averaging per sequence, per token or by a constant is a detail": [
        "tests/unbiased/test_methods.py::test_a_mean_over_each_sequence_follows_reward_per_token",
        "tests/unbiased/test_methods.py::test_a_mean_over_all_tokens_is_a_ratio_estimator",
        "tests/unbiased/test_methods.py::test_a_constant_length_is_a_matter_of_scale",
    ],
    "10 dividing by the group's standard deviation only rescales": [
        "tests/unbiased/test_methods.py::test_standardized_credit_turns_the_gradient_of_toy_c",
        "tests/unbiased/test_binary_rewards.py::test_each_prompt_gets_its_own_factor",
        "tests/unbiased/test_binary_rewards.py::test_pairs_and_threes_have_the_same_factor_everywhere",
    ],
    "11 truncation is termination": [
        "tests/unbiased/test_credit_family.py::test_a_truncated_sequence_bootstraps_and_is_unbiased",
    ],
    "17 only the terminal reward is non-zero, so G_t = R": [
        "tests/methods/test_slots.py::test_the_kl_in_the_reward_reaches_the_credit_of_earlier_tokens",
    ],
    "19 token ratios make the update off-policy correct": [
        "tests/unbiased/test_off_policy.py::test_a_ratio_per_token_is_not_the_gradient_but_its_published_digits",
        "tests/unbiased/test_corrections.py::test_sequence_weights_are_exact",
        "tests/unbiased/test_corrections.py::test_token_weights_correct_tokens_at_the_samplers_prefixes",
    ],
}

A, B = Problem.of(TOY_A), Problem.of(TOY_B)


def test_the_tests_of_the_other_claims_exist():
    assert [test for tests in ELSEWHERE.values() for test in tests if not exists(test)] == []


# --- divergences ---------------------------------------------------------------------------------------------------


def test_claim_5_a_sampled_log_ratio_is_an_estimate_and_may_be_negative():
    """Wrong: "a sampled log-ratio is the KL". Toy A: three of them, two negative, none the KL, their mean is it."""
    shift = math.log(sum(map(math.exp, (0.5, -0.3, 1.0)))) - math.log(sum(map(math.exp, (0.0, 0.2, -0.4))))
    single = log_ratios(A).flatten()
    close(single, [0.5 - shift, -0.5 - shift, 1.4 - shift])
    assert_digits(single, [-0.06892, -1.06892, 0.83108], 5)
    assert_digits((chances(A, A.policy) * single).sum(), A_KL_POLICY_REFERENCE, 13)
    assert (single - A_KL_POLICY_REFERENCE).abs().min().item() > 0.2


def test_claim_6_who_samples_decides_the_direction():
    """Wrong: "log teacher − log student looks like the forward KL". It is −reverse from the student, +forward from it.

    Toy B, the reference as the teacher.
    """
    integrand = -log_ratios(B).sum(1)  # log teacher − log student, of sequences
    from_student = (chances(B, B.policy) * integrand).sum()
    from_teacher = (chances(B, B.reference) * integrand).sum()
    assert_digits(from_student, -B_KL_POLICY_REFERENCE, 12)
    assert_digits(from_teacher, B_KL_REFERENCE_POLICY, 12)
    # As a credit it descends the reverse divergence; with the sign turned round it ascends it.
    to_go = -reward_to_go(log_ratios(B), log_ratios(B) == log_ratios(B))
    assert_digits(ascent(B, to_go), -B_GRADIENT_KL_POLICY_REFERENCE, 10)
    assert_digits(ascent(B, -to_go), B_GRADIENT_KL_POLICY_REFERENCE, 10)


FORWARD_OF_SEQUENCES = rows(
    "-0.0230309501 -0.2773428726 0.3003738227 | -0.0778317688 0.1053145529 -0.0274827841"
    "| 0.2059461527 -0.1281931045 -0.0777530482 | 0.0060021830 -0.0835924961 0.0775903131"
)


def test_claim_7_summed_gradients_at_sampled_prefixes_miss_the_future():
    """Wrong: "summing per-token reverse-KL gradients gives the sequence KL's". Short by what a token's choice of the

    later prefixes costs: toy B's first row. The forward divergence on the reference's prefixes has no such term.
    """
    summed = penalty(B, k2, "loss")
    assert_digits(summed, B_IMMEDIATE_KL_POLICY_REFERENCE, 10)
    whole = penalty(B, k1, "reward")
    assert_digits(whole, B_GRADIENT_KL_POLICY_REFERENCE, 10)
    assert_digits(whole - summed, np.concatenate([B_FUTURE_FIRST_ROW, np.zeros(9)]), 10)
    ((mdp, policy, reference),) = B.oracles()
    at_prefixes = exact.expected_over_prefixes(
        mdp, reference, lambda s: exact.prefix_kl_reference_policy(policy, reference, s).gradient
    )
    assert_digits(at_prefixes, FORWARD_OF_SEQUENCES, 10)
    # The gradient of −log π on the reference's samples: that of the divergence of sequences.
    copied = -ascent(B, torch.ones(9, 2).double(), chances(B, B.reference))
    assert_digits(copied, FORWARD_OF_SEQUENCES, 10)
    np.testing.assert_allclose(
        copied, exact.sequence_kl_reference_policy(mdp, policy, reference).gradient, rtol=0, atol=1e-12
    )


def test_claim_13_a_full_divergence_in_the_reward_acts_through_the_future_alone():
    """Wrong: "the full-vocabulary KL in the reward is a better k1". It is the same for every token that could be drawn.

    Toy B: the immediate part is 0, what comes later is the future term, and the gradient at each prefix is missing.
    """
    parameters = (torch.tensor(B.policy.parameters), torch.tensor(B.reference.parameters))

    def at(prefix):
        p, q = (
            next_token_logprobs(B.policy, parameters[0], prefix),
            next_token_logprobs(B.reference, parameters[1], prefix),
        )
        return kl_divergence(p, q)

    full = torch.stack([torch.stack([at(tokens[:t]) for t in range(2)]) for _, tokens, _ in B.sequences])
    everywhere = full > 0
    assert bool(everywhere.all())
    assert np.abs(ascent(B, reward_to_go(full, everywhere, gamma=0.0))).max() < 1e-12
    future = np.concatenate([B_FUTURE_FIRST_ROW, np.zeros(9)])
    assert_digits(ascent(B, reward_to_go(full, everywhere)), future, 10)
    assert_digits(ascent(B, reward_to_go(log_ratios(B), everywhere)), B_GRADIENT_KL_POLICY_REFERENCE, 10)


def test_claim_15_the_mean_ratio_is_one_however_far_apart_the_policies_are():
    """Wrong: "the ratio measures divergence". E_old[ρ] = 1, of tokens and of sequences; its spread is what grows."""
    policy, old = ONE_PROMPT.frozen(ONE_PROMPT.policy), ONE_PROMPT.frozen(ONE_PROMPT.behaviour)
    mask, _ = layout(ONE_PROMPT)
    p = chances(ONE_PROMPT, ONE_PROMPT.behaviour)
    whole = importance(policy, old, mask, level="sequence")[:, 0]
    close((p * whole).sum(), 1.0)
    by_token = importance(policy, old, mask, level="token")
    close((p * by_token[:, 0]).sum(), 1.0)
    reached = p * mask[:, 1]
    close((reached * by_token[:, 1]).sum() / reached.sum(), 1.0)
    divergence = (p * k3(old, policy).sum(1)).sum().item()
    stated = exact.sequence_kl_policy_reference(TOY_C.mdp, TOY_C.behaviour, TOY_C.policy).value
    assert divergence == pytest.approx(stated, abs=1e-12)
    assert divergence > 0.2


def test_claim_16_a_divergence_from_the_reference_says_nothing_of_a_step():
    """Wrong: "KL to the reference bounds each step". From (.5, .3, .2) to (.2, .3, .5) at a uniform reference.

    The divergence from the reference is the same before and after, so that no penalty on it is paid for the step; the
    step itself is KL(old‖new) = 0.3 ln 2.5.
    """
    old, new = f64([0.5, 0.3, 0.2]).log().unsqueeze(1), f64([0.2, 0.3, 0.5]).log().unsqueeze(1)
    batch = annotated(
        rollouts([[1], [1], [1]], [0.0, 0.0, 0.0]),
        old_logprobs=old,
        reference_logprobs=torch.full_like(old, math.log(1 / 3)),
    )

    def mean(policy, by, **settings):
        """E[k3] under the policy that the estimator's samples belong to."""
        method = Method(
            "penalty",
            lambda mask: 0.0 * mask,
            policy_gradient_loss,
            sequence_sum,
            KLPenalty(k3, "loss", 1.0, **settings),
        )
        return method.loss(policy, method.prepare(batch), by.exp())

    distance = math.log(3) + 0.5 * math.log(0.5) + 0.3 * math.log(0.3) + 0.2 * math.log(0.2)
    close(mean(old, old), distance)
    close(mean(new, new), distance)
    close(mean(new, old, against="old"), 0.3 * math.log(2.5))
    assert_digits([distance, 0.3 * math.log(2.5)], [0.06896, 0.27489], 5)


# --- returns and baselines -----------------------------------------------------------------------------------------


def test_claim_9_a_token_mean_per_group_reweights_prompts():
    """Wrong: "how the loss is averaged is a detail". One prompt of one token, one of two, a token mean of each group:

    ∇J of the first, half of it of the second. (Of the whole batch it would be a third of both; and elsewhere.)
    """
    for problem, tokens in ((coin(0.3), 1), (B, 2)):
        ((mdp, policy, _),) = problem.oracles()
        gradient = exact.objective_gradient(mdp, policy)
        for aggregation, factor in ((token_mean, 1 / tokens), (sequence_sum, 1.0)):
            method = Method("per group", leave_one_out, policy_gradient_loss, aggregation)
            found = expected(method, problem, 2).ascent
            np.testing.assert_allclose(found, factor * gradient, rtol=0, atol=1e-12)
    mask = torch.tensor([[True, False], [True, False], [True, True], [True, True]])
    close(token_mean(mask)[:, 0], [1 / 6] * 4)
    close(token_mean(mask[2:])[:, 0], [1 / 4] * 2)
    close(token_mean(mask[:2])[:, 0], [1 / 2] * 2)


def test_claim_11_a_limit_from_outside_is_bootstrapped_and_a_cap_of_the_objective_is_not():
    """Wrong: "truncation is termination". γ = 0.9, λ = 0.8, r = 0, 0, 1, V = .2, .4, .6, and V = .5 after a cut-off.

    On toy C, whose cap of two tokens belongs to J, a bootstrap of 0.5 there adds 0.5 ∇P(cap reached).
    """
    mask, settings = torch.ones(1, 3) == 1, {"gamma": 0.9, "lam": 0.8}
    rewards, values = f64([[0.0, 0.0, 1.0]]), f64([[0.2, 0.4, 0.6]])
    assert_digits(gae(rewards, values, mask, **settings), [[0.46816, 0.428, 0.4]], 5)
    cut_off = gae(rewards, values, mask, bootstrap=f64([0.5]), **settings)
    assert_digits(cut_off, [[0.70144, 0.752, 0.85]], 5)

    mask, rewards = layout(ONE_PROMPT)
    nothing = torch.zeros_like(rewards)
    capped = f64([float(len(tokens) == 2 and tokens[-1] != 2) for _, tokens, _ in ONE_PROMPT.sequences])
    right = ascent(ONE_PROMPT, gae(rewards, nothing, mask, lam=1.0))
    assert_digits(right, C_OBJECTIVE_GRADIENT, 10)
    wrong = ascent(ONE_PROMPT, gae(rewards, nothing, mask, lam=1.0, bootstrap=0.5 * capped))
    reaching = exact.objective_gradient(
        exact.TokenMDP(3, end_token=2, max_length=2, reward=lambda y: float(len(y) == 2 and y[-1] != 2)),
        TOY_C.policy,
    )
    np.testing.assert_allclose(wrong - right, 0.5 * reaching, rtol=0, atol=1e-12)
    assert np.abs(wrong - right).max() > 0.05


def test_claim_14_a_baseline_changes_the_mean_and_not_the_product_with_the_score():
    """Wrong: "E[G] = E[G − b]". Toy C, b = 5: E[G] = 0.078…, E[G − b] = −4.921…; both times the score are ∇J.

    The variance of G itself is that of G − b; the variance of the product is not.
    """
    returns = f64([reward for _, _, reward in ONE_PROMPT.sequences])
    p = chances(ONE_PROMPT, ONE_PROMPT.policy)
    less = minus_constant(returns, baseline=5.0)
    assert_digits([(p * returns).sum(), (p * less).sum()], [C_OBJECTIVE, C_OBJECTIVE - 5.0], 12)

    def spread(x):
        return (p * (x - (p * x).sum()).square()).sum()

    close(spread(less), spread(returns))
    for credit in (returns, less):
        assert_digits(ascent(ONE_PROMPT, credit.unsqueeze(1).expand(7, 2)), C_OBJECTIVE_GRADIENT, 10)
    noise = [
        moments(TOY_C, lambda batch, b=b: minus_constant(batch.returns, baseline=b)).trace for b in (0.0, 5.0)
    ]
    assert_digits(noise[0], C_TRACE_RETURN, 10)
    assert noise[1] > 40 * noise[0]


def test_claim_18_discounting_shrinks_the_early_tokens():
    """Wrong: "discounting miscredits the later tokens". A reward at the end, γ = 0.9: 0.81, 0.9, 1 along the sequence.

    Toy C: at every second token, which ends the sequence, the gradient is untouched; at the first it shrinks.
    """
    three = torch.ones(1, 3) == 1
    close(reward_to_go(f64([[0.0, 0.0, 1.0]]), three, gamma=0.9), [[0.81, 0.9, 1.0]])
    mask, rewards = layout(ONE_PROMPT)
    found = ascent(ONE_PROMPT, reward_to_go(rewards, mask, gamma=0.9))
    assert_digits(found[3:], C_OBJECTIVE_GRADIENT[3:], 10)
    # E ends at once and keeps its R = 0; what follows a and b counts 0.9 of itself.
    assert_digits(found[:3], 0.9 * C_OBJECTIVE_GRADIENT[:3], 10)
