"""Recorded means and variances of estimates of KL(π‖π_ref) and of its gradient, toys A and B."""

import numpy as np
import pytest

from rung.exact import expectation, prefix_kl_policy_reference, sequence_kl_policy_reference, token_scores
from tests.toys import (
    A_KL_POLICY_REFERENCE,
    A_MEAN_K2,
    A_VARIANCE_K1,
    A_VARIANCE_K2,
    A_VARIANCE_K3,
    B_GRADIENT_KL_POLICY_REFERENCE,
    B_IMMEDIATE_KL_POLICY_REFERENCE,
    B_KL_POLICY_REFERENCE,
    B_MEAN_SEQUENCE_K2,
    B_MEAN_TOKEN_K2,
    B_TRACE_FULL_VOCABULARY,
    B_TRACE_K1_IMMEDIATE,
    B_TRACE_K1_IMMEDIATE_LESS_KL,
    B_TRACE_K1_TO_GO,
    B_TRACE_K1_TO_GO_LESS_KL_TO_GO,
    B_TRACE_K1_TOTAL,
    B_TRACE_RAO_BLACKWELL,
    B_VARIANCE_K1,
    B_VARIANCE_RAO_BLACKWELL,
    B_VARIANCE_SEQUENCE_K3,
    B_VARIANCE_TOKEN_K3,
    TOY_A,
    TOY_B,
    assert_digits,
)


def ratios(toy, tau):
    return np.array([toy.policy(s)[0][a] - toy.reference(s)[0][a] for s, a in tau.steps])


def k2(ell):
    return ell**2 / 2


def k3(ell):
    return np.exp(-ell) - 1 + ell


def divergences(tau):
    return np.array(
        [prefix_kl_policy_reference(TOY_B.policy, TOY_B.reference, s).value for s, _ in tau.steps]
    )


def to_go(x):
    return np.cumsum(x[::-1])[::-1]


@pytest.mark.parametrize(
    ("estimate", "mean", "variance"),
    [
        (lambda ell: ell, A_KL_POLICY_REFERENCE, A_VARIANCE_K1),
        (k2, A_MEAN_K2, A_VARIANCE_K2),
        (k3, A_KL_POLICY_REFERENCE, A_VARIANCE_K3),
    ],
    ids=["k1", "k2", "k3"],
)
def test_estimates_of_the_divergence_of_toy_a(estimate, mean, variance):
    moments = expectation(TOY_A.mdp, TOY_A.policy, 1, lambda group: estimate(ratios(TOY_A, group[0])))
    assert_digits(moments.mean, [mean], 13)
    assert_digits(moments.trace, variance, 13)


@pytest.mark.parametrize(
    ("estimate", "mean", "variance"),
    [
        (lambda tau: ratios(TOY_B, tau).sum(), B_KL_POLICY_REFERENCE, B_VARIANCE_K1),
        (lambda tau: k3(ratios(TOY_B, tau)).sum(), B_KL_POLICY_REFERENCE, B_VARIANCE_TOKEN_K3),
        (lambda tau: k3(ratios(TOY_B, tau).sum()), B_KL_POLICY_REFERENCE, B_VARIANCE_SEQUENCE_K3),
        (lambda tau: divergences(tau).sum(), B_KL_POLICY_REFERENCE, B_VARIANCE_RAO_BLACKWELL),
        (lambda tau: k2(ratios(TOY_B, tau)).sum(), B_MEAN_TOKEN_K2, None),
        (lambda tau: k2(ratios(TOY_B, tau).sum()), B_MEAN_SEQUENCE_K2, None),
    ],
    ids=["k1", "token-k3", "sequence-k3", "rao-blackwell", "token-k2", "sequence-k2"],
)
def test_estimates_of_the_divergence_of_toy_b(estimate, mean, variance):
    moments = expectation(TOY_B.mdp, TOY_B.policy, 1, lambda group: np.array([estimate(group[0])]))
    assert_digits(moments.mean, [mean], 12)
    if variance is not None:
        assert_digits(moments.trace, variance, 10)


def full_vocabulary(tau):
    return sum(prefix_kl_policy_reference(TOY_B.policy, TOY_B.reference, s).gradient for s, _ in tau.steps)


def scored(credit):
    return lambda tau: credit(tau) @ token_scores(TOY_B.policy, tau)


GRADIENTS = {
    "total": (scored(lambda tau: np.full(2, ratios(TOY_B, tau).sum())), B_TRACE_K1_TOTAL, True),
    "to go": (scored(lambda tau: to_go(ratios(TOY_B, tau))), B_TRACE_K1_TO_GO, True),
    "to go, less its mean": (
        scored(lambda tau: to_go(ratios(TOY_B, tau)) - kl_to_go(tau)),
        B_TRACE_K1_TO_GO_LESS_KL_TO_GO,
        True,
    ),
    "Rao-Blackwell": (
        lambda tau: (
            full_vocabulary(tau)
            + (to_go(divergences(tau)) - divergences(tau)) @ token_scores(TOY_B.policy, tau)
        ),
        B_TRACE_RAO_BLACKWELL,
        True,
    ),
    "immediate": (scored(lambda tau: ratios(TOY_B, tau)), B_TRACE_K1_IMMEDIATE, False),
    "immediate, less its mean": (
        scored(lambda tau: ratios(TOY_B, tau) - divergences(tau)),
        B_TRACE_K1_IMMEDIATE_LESS_KL,
        False,
    ),
    "full vocabulary": (full_vocabulary, B_TRACE_FULL_VOCABULARY, False),
}


def kl_to_go(tau):
    """E[Σ_{u≥t} KL_u | s_t] along a sequence of two tokens."""
    total = sequence_kl_policy_reference(TOY_B.mdp, TOY_B.policy, TOY_B.reference).value
    return np.array([total, divergences(tau)[1]])


@pytest.mark.parametrize("name", GRADIENTS)
def test_estimates_of_the_gradient_of_toy_b(name):
    estimate, trace, whole = GRADIENTS[name]
    moments = expectation(TOY_B.mdp, TOY_B.policy, 1, lambda group: estimate(group[0]))
    assert_digits(
        moments.mean, B_GRADIENT_KL_POLICY_REFERENCE if whole else B_IMMEDIATE_KL_POLICY_REFERENCE, 10
    )
    assert_digits(moments.trace, trace, 10)
