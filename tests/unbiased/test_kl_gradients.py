"""Which gradient a KL estimator gives, in every placement, through the slots as a training run uses them.

    in the reward   k1 → ∇KL(π‖ref) of whole sequences
    in the loss     k1 → 0    k2 → ∇KL(π‖ref) at each visited prefix    k3 → ∇KL(ref‖π) at each visited prefix

`expected` gives the direction of ascent; a penalty descends, so each cell is compared with minus its gradient.
"""

from functools import partial

import numpy as np
import pytest
import torch

from rung import exact
from rung.aggregation import sequence_sum
from rung.credit import reward_to_go, total_return
from rung.kl import k1, k2, k3, kl_divergence
from rung.methods import KLPenalty, Method
from rung.policy_losses import policy_gradient_loss
from tests.enumeration import ONE_PROMPT, THREE_TOKENS, TWO_PROMPTS, Problem, expected, next_token_logprobs
from tests.toys import (
    A_GRADIENT_KL_POLICY_REFERENCE,
    A_GRADIENT_KL_REFERENCE_POLICY,
    A_K2_IN_REWARD,
    A_K3_IN_REWARD,
    A_KL_POLICY_REFERENCE,
    A_MEAN_K2,
    A_OFF_POLICY_K1_IN_LOSS,
    A_OFF_POLICY_K2_IN_LOSS,
    A_OFF_POLICY_K3_IN_LOSS,
    B_FORWARD_KL_ON_POLICY_PREFIXES,
    B_FUTURE_FIRST_ROW,
    B_GRADIENT_KL_POLICY_REFERENCE,
    B_IMMEDIATE_KL_POLICY_REFERENCE,
    B_KL_POLICY_REFERENCE,
    B_MEAN_SEQUENCE_K2,
    B_MEAN_TOKEN_K2,
    TOY_A,
    TOY_B,
    assert_digits,
)

A, B = Problem.of(TOY_A), Problem.of(TOY_B)
PROBLEMS = pytest.mark.parametrize(
    "problem", [ONE_PROMPT, THREE_TOKENS, TWO_PROMPTS, B], ids=["C", "LONG", "two prompts", "B"]
)


def gradient(estimator, placement, problem, *, credit=total_return, coefficient=1.0, sampler=None):
    """The expected gradient of the penalty alone: all rewards are 0."""
    method = Method(
        "penalty",
        credit,
        policy_gradient_loss,
        sequence_sum,
        KLPenalty(estimator, placement=placement, coefficient=coefficient),
    )
    return -expected(method, problem.without_rewards(), 1, sampler).ascent / coefficient


def close(actual, wanted):
    assert np.abs(wanted).max() > 1e-3  # so that equality with it means something
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-12)


def log_ratio(policy, reference):
    """(prefix, token) → log π − log π_ref, the oracle's."""
    return lambda prefix, token: float(
        exact.evaluate(policy, prefix)[0][token] - exact.evaluate(reference, prefix)[0][token]
    )


# --- in the loss ---------------------------------------------------------------------------------------------------


@PROBLEMS
def test_k1_in_the_loss_is_noise(problem):
    np.testing.assert_allclose(gradient(k1, "loss", problem), 0.0, rtol=0, atol=1e-12)


@PROBLEMS
def test_k2_in_the_loss_is_the_reverse_kl_gradient(problem):
    """At each visited prefix, without the effect on later ones."""
    stated = problem.mean_over_prompts(lambda *oracle: exact.sequence_kl_policy_reference(*oracle).immediate)
    close(gradient(k2, "loss", problem), stated)


@PROBLEMS
def test_k3_in_the_loss_is_the_forward_kl_gradient(problem):
    """At each prefix that the *policy* visits: neither direction of a divergence of sequences."""

    def stated(mdp, policy, reference):
        return exact.expected_over_prefixes(
            mdp, policy, lambda s: exact.prefix_kl_reference_policy(policy, reference, s).gradient
        )

    close(gradient(k3, "loss", problem), problem.mean_over_prompts(stated))


def test_published_digits_of_the_loss():
    np.testing.assert_allclose(gradient(k1, "loss", A), 0.0, rtol=0, atol=1e-12)
    assert_digits(gradient(k2, "loss", A), A_GRADIENT_KL_POLICY_REFERENCE, 12)
    assert_digits(gradient(k3, "loss", A), A_GRADIENT_KL_REFERENCE_POLICY, 12)
    assert_digits(gradient(k2, "loss", B), B_IMMEDIATE_KL_POLICY_REFERENCE, 10)
    assert_digits(gradient(k3, "loss", B), B_FORWARD_KL_ON_POLICY_PREFIXES, 10)


def test_published_digits_of_the_loss_on_samples_of_another_policy():
    """Without importance weights: k1 pushes the policy away from its own sampler, k2 and k3 are no KL at all."""
    for estimator, published in (
        (k1, A_OFF_POLICY_K1_IN_LOSS),
        (k2, A_OFF_POLICY_K2_IN_LOSS),
        (k3, A_OFF_POLICY_K3_IN_LOSS),
    ):
        assert_digits(gradient(estimator, "loss", A, sampler=A.behaviour), published, 12)


# --- in the reward -------------------------------------------------------------------------------------------------


@PROBLEMS
@pytest.mark.parametrize("credit", [total_return, reward_to_go])
def test_k1_in_the_reward_is_the_reverse_kl_gradient_of_whole_sequences(problem, credit):
    stated = problem.mean_over_prompts(lambda *oracle: exact.sequence_kl_policy_reference(*oracle).gradient)
    close(gradient(k1, "reward", problem, credit=credit), stated)


@PROBLEMS
@pytest.mark.parametrize(
    ("estimator", "of_log_ratio"),
    [(k2, lambda x: x * x / 2), (k3, lambda x: np.exp(-x) - 1 + x)],
    ids=["k2", "k3"],
)
def test_k2_and_k3_in_the_reward_are_costs_like_any_other(problem, estimator, of_log_ratio):
    """Score times the cost to go, constant under ∇. For k3 this is ∇KL(π‖ref) − ∇KL(ref‖π) at one prefix."""

    def stated(mdp, policy, reference):
        ratio = log_ratio(policy, reference)
        return exact.score_weighted(mdp, policy, lambda prefix, token: of_log_ratio(ratio(prefix, token)))

    close(gradient(estimator, "reward", problem), problem.mean_over_prompts(stated))


def test_published_digits_of_the_reward():
    assert_digits(gradient(k1, "reward", A), A_GRADIENT_KL_POLICY_REFERENCE, 12)
    assert_digits(gradient(k2, "reward", A), A_K2_IN_REWARD, 12)
    assert_digits(gradient(k3, "reward", A), A_K3_IN_REWARD, 12)
    assert_digits(gradient(k1, "reward", B), B_GRADIENT_KL_POLICY_REFERENCE, 10)
    assert_digits(gradient(k1, "reward", B, credit=reward_to_go), B_GRADIENT_KL_POLICY_REFERENCE, 10)


@pytest.mark.parametrize("gamma", [0.0, 0.6])
def test_discounting_the_kl_in_the_reward_drops_part_of_the_future(gamma):
    """Toy B: immediate + γ · future. γ = 0 leaves what k2 in the loss gives."""
    future = np.concatenate([B_FUTURE_FIRST_ROW, np.zeros(9)])
    found = gradient(k1, "reward", B, credit=partial(reward_to_go, gamma=gamma))
    assert_digits(found, B_IMMEDIATE_KL_POLICY_REFERENCE + gamma * future, 9)


@pytest.mark.parametrize("placement", ["reward", "loss"])
def test_the_coefficient_is_a_factor(placement):
    for estimator in (k2, k3):
        once, thrice = (gradient(estimator, placement, ONE_PROMPT, coefficient=b) for b in (1.0, 3.0))
        close(thrice, once)


# --- the functions alone -------------------------------------------------------------------------------------------


def on_sequences(problem, estimator):
    """Expected gradient of an estimator of the whole sequence's log-ratio, in the loss."""
    parameters = torch.tensor(problem.policy.parameters, requires_grad=True)
    live = problem.logprobs(problem.policy, parameters).sum(1)
    value = estimator(live, problem.frozen(problem.reference).sum(1))
    (slope,) = torch.autograd.grad((live.detach().exp() * value).sum(), parameters)
    return slope.numpy()


@pytest.mark.parametrize("problem", [ONE_PROMPT, THREE_TOKENS, B], ids=["C", "LONG", "B"])
def test_on_whole_sequences_the_loss_has_no_future_to_miss(problem):
    """k2 of the summed log-ratio is ∇KL(π‖ref), k3 of it ∇KL(ref‖π), both of sequences."""
    ((mdp, policy, reference),) = problem.oracles()
    np.testing.assert_allclose(on_sequences(problem, k1), 0.0, rtol=0, atol=1e-12)
    close(on_sequences(problem, k2), exact.sequence_kl_policy_reference(mdp, policy, reference).gradient)
    close(on_sequences(problem, k3), exact.sequence_kl_reference_policy(mdp, policy, reference).gradient)


@pytest.mark.parametrize("problem", [ONE_PROMPT, THREE_TOKENS, B], ids=["C", "LONG", "B"])
def test_full_divergence_at_every_prefix(problem):
    """Value and gradient in both directions, by autograd through the logits."""
    ((mdp, policy, reference),) = problem.oracles()
    for prefix in mdp.prefixes():
        parameters = torch.tensor(problem.policy.parameters, requires_grad=True)
        p = next_token_logprobs(problem.policy, parameters, prefix)
        q = next_token_logprobs(problem.reference, torch.tensor(problem.reference.parameters), prefix)
        for found, stated in (
            (kl_divergence(p, q), exact.prefix_kl_policy_reference(policy, reference, prefix)),
            (kl_divergence(q, p), exact.prefix_kl_reference_policy(policy, reference, prefix)),
        ):
            (slope,) = torch.autograd.grad(found, parameters, retain_graph=True)
            assert found.item() == pytest.approx(stated.value, abs=1e-12)
            close(slope.numpy(), stated.gradient)


def mean_value(problem, estimator):
    """E_π[Σ_t k(log π, log π_ref)], per token and of the whole sequence."""
    policy, reference = problem.frozen(problem.policy), problem.frozen(problem.reference)
    chances = policy.sum(1).exp()
    per_token = (
        (chances * estimator(policy, reference).sum(1)).sum().item()
    )  # ends are padded with 0 and 0: k = 0
    return per_token, (chances * estimator(policy.sum(1), reference.sum(1))).sum().item()


@pytest.mark.parametrize("problem", [A, B, ONE_PROMPT, THREE_TOKENS], ids=["A", "B", "C", "LONG"])
def test_case_N4_as_values_k1_and_k3_are_unbiased(problem):
    """Of one sampled token each, and still the KL over the whole vocabulary in expectation."""
    stated = exact.sequence_kl_policy_reference(*problem.oracles()[0]).value
    for estimator in (k1, k3):
        assert mean_value(problem, estimator) == pytest.approx((stated, stated), abs=1e-12)


def test_as_a_value_k2_is_biased_by_a_published_amount():
    assert_digits(mean_value(A, k2)[0], A_MEAN_K2, 13)
    assert_digits(mean_value(A, k1)[0], A_KL_POLICY_REFERENCE, 13)
    assert_digits(mean_value(B, k2), (B_MEAN_TOKEN_K2, B_MEAN_SEQUENCE_K2), 12)
    assert_digits(mean_value(B, k1)[0], B_KL_POLICY_REFERENCE, 12)
