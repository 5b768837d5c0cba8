"""The cells of a KL penalty that one token cannot tell apart: whole sequences, importance weights, the old policy.

level "sequence"    no future to miss: k2 in the loss and k1 in the reward are ∇KL(π‖ref) of sequences, k3 in the
                    loss is ∇KL(ref‖π) of sequences
weight, from μ      token ratios give what π's tokens would give at μ's prefixes, sequence ratios what π's
                    sequences would: live k1 and k3 ∇KL(π‖ref); detached k2 ∇KL(π‖ref), k3 ∇KL(ref‖π), k1 nothing
against old         k1 and k3 are ∇KL(old‖π) of whole sequences: the prefixes are old's, and do not move
"""

import numpy as np
import pytest
import torch

from rung import exact
from rung.aggregation import sequence_sum
from rung.credit import reward_to_go, total_return
from rung.kl import k1, k2, k3
from rung.methods import KLPenalty, Method
from rung.policy_losses import policy_gradient_loss
from tests.enumeration import ONE_PROMPT, THREE_TOKENS, TWO_PROMPTS, Problem, expected
from tests.toys import (
    B_GRADIENT_KL_POLICY_REFERENCE,
    B_REVERSE_KL_ON_BEHAVIOUR_PREFIXES,
    TOY_B,
    assert_digits,
)

B = Problem.of(TOY_B)
PROBLEMS = pytest.mark.parametrize(
    "problem", [ONE_PROMPT, THREE_TOKENS, TWO_PROMPTS, B], ids=["C", "LONG", "two prompts", "B"]
)


def gradient(problem, estimator, placement, *, credit=total_return, sampler=None, **settings):
    """The expected gradient of the penalty alone, β = 1: all rewards are 0."""
    penalty = KLPenalty(estimator, placement, 1.0, **settings)
    method = Method("penalty", credit, policy_gradient_loss, sequence_sum, penalty)
    return -expected(method, problem.without_rewards(), 1, sampler).ascent


def close(actual, wanted):
    assert np.abs(wanted).max() > 1e-3  # so that equality with it means something
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-12)


def nothing(actual):
    np.testing.assert_allclose(actual, 0.0, rtol=0, atol=1e-12)


def reverse_of_sequences(problem):
    return problem.mean_over_prompts(lambda *oracle: exact.sequence_kl_policy_reference(*oracle).gradient)


def forward_of_sequences(problem):
    return problem.mean_over_prompts(lambda *oracle: exact.sequence_kl_reference_policy(*oracle).gradient)


def on_prefixes_of(problem, visitor, divergence):
    """Σ_s p_visitor(s) ∇ divergence(π, π_ref) at s, averaged over prompts."""
    return np.mean(
        [
            exact.expected_over_prefixes(
                mdp,
                exact.after(visitor, prompt),
                lambda s, own=own, ref=ref: divergence(own, ref, s).gradient,
            )
            for (prompt, _), (mdp, own, ref) in zip(problem.prompts, problem.oracles(), strict=True)
        ],
        axis=0,
    )


# --- whole sequences -----------------------------------------------------------------------------------------------


@PROBLEMS
def test_of_sequences_no_placement_misses_the_future(problem):
    reverse, forward = reverse_of_sequences(problem), forward_of_sequences(problem)
    close(gradient(problem, k2, "loss", level="sequence"), reverse)
    close(gradient(problem, k3, "loss", level="sequence"), forward)
    nothing(gradient(problem, k1, "loss", level="sequence"))
    close(gradient(problem, k1, "reward", level="sequence"), reverse)
    close(gradient(problem, k1, "reward", level="sequence", credit=reward_to_go), reverse)
    # As a cost k3 of a sequence is the difference of the two directions.
    close(gradient(problem, k3, "reward", level="sequence"), reverse - forward)


def test_published_digits_of_whole_sequences():
    assert_digits(gradient(B, k2, "loss", level="sequence"), B_GRADIENT_KL_POLICY_REFERENCE, 10)
    assert_digits(gradient(B, k1, "reward", level="sequence"), B_GRADIENT_KL_POLICY_REFERENCE, 10)


# --- importance weights --------------------------------------------------------------------------------------------


@PROBLEMS
def test_token_ratios_correct_the_token_and_leave_the_samplers_prefixes(problem):
    """From μ, which is also old: reverse at the prefixes of μ where the weight is live, forward for k3 detached."""
    sampler = problem.behaviour
    reverse = on_prefixes_of(problem, sampler, exact.prefix_kl_policy_reference)
    forward = on_prefixes_of(problem, sampler, exact.prefix_kl_reference_policy)
    for estimator in (k1, k3):
        close(gradient(problem, estimator, "loss", weight="live", sampler=sampler), reverse)
    close(gradient(problem, k2, "loss", weight="detached", sampler=sampler), reverse)
    close(gradient(problem, k3, "loss", weight="detached", sampler=sampler), forward)
    nothing(gradient(problem, k1, "loss", weight="detached", sampler=sampler))
    assert np.abs(reverse - forward).max() > 0.01
    # A live weight and k2: the gradient of a mean of k2, which is no divergence.
    assert np.abs(gradient(problem, k2, "loss", weight="live", sampler=sampler) - reverse).max() > 0.01


@PROBLEMS
def test_sequence_ratios_correct_the_prefixes_too(problem):
    """From samples of μ: what the policy's own sequences would give."""
    sampler, reverse = problem.behaviour, reverse_of_sequences(problem)
    settings = {"level": "sequence", "sampler": sampler}
    for estimator in (k1, k3):
        close(gradient(problem, estimator, "loss", weight="live", **settings), reverse)
    close(gradient(problem, k2, "loss", weight="detached", **settings), reverse)
    close(gradient(problem, k3, "loss", weight="detached", **settings), forward_of_sequences(problem))
    nothing(gradient(problem, k1, "loss", weight="detached", **settings))


def test_published_digits_of_the_live_token_ratio():
    for estimator in (k1, k3):
        found = gradient(B, estimator, "loss", weight="live", sampler=B.behaviour)
        assert_digits(found, B_REVERSE_KL_ON_BEHAVIOUR_PREFIXES, 10)


@PROBLEMS
def test_on_policy_detaching_the_weight_is_what_decides(problem):
    """ρ = 1 in value. Detached it is no weight at all; live, k1 and k3 turn from nothing and forward to reverse."""
    reverse = on_prefixes_of(problem, problem.policy, exact.prefix_kl_policy_reference)
    for estimator in (k1, k3):
        close(gradient(problem, estimator, "loss", weight="live"), reverse)
    for estimator in (k2, k3):
        close(gradient(problem, estimator, "loss", weight="detached"), gradient(problem, estimator, "loss"))


# --- against the old policy ------------------------------------------------------------------------------------------


@PROBLEMS
def test_a_penalty_on_the_step_is_the_divergence_of_old_from_the_policy(problem):
    """After some updates, on samples of old = μ: k1 and k3 both, of whole sequences, with nothing missed."""
    sampler = problem.behaviour

    def stated(mdp, policy, old):
        return exact.sequence_kl_reference_policy(mdp, policy, old).gradient

    wanted = np.mean(
        [
            stated(mdp, exact.after(problem.policy, prompt), exact.after(sampler, prompt))
            for prompt, mdp in problem.prompts
        ],
        axis=0,
    )
    for estimator in (k1, k3):
        close(gradient(problem, estimator, "loss", against="old", sampler=sampler), wanted)
    assert np.abs(gradient(problem, k2, "loss", against="old", sampler=sampler) - wanted).max() > 1e-3


def test_against_old_k3_varies_less_near_it():
    """The slope of k1 is the score itself however near the policies are; that of k3, ρ − 1, vanishes with the step."""
    policy, old = ONE_PROMPT.frozen(ONE_PROMPT.policy), ONE_PROMPT.frozen(ONE_PROMPT.policy) - 0.01
    live = policy.clone().requires_grad_()
    (slope,) = torch.autograd.grad(k3(old, live).sum(), live)
    torch.testing.assert_close(slope, torch.full_like(slope, 0.01).expm1(), rtol=0, atol=1e-12)
    (slope,) = torch.autograd.grad(k1(old, live).sum(), live)
    torch.testing.assert_close(slope, -torch.ones_like(slope), rtol=0, atol=1e-12)
