"""KL in both directions, at a prefix and over sequences, with the two parts of its gradient."""

import numpy as np
import pytest

from rung.errors import InvalidInput
from rung.exact import (
    FixedPolicy,
    TokenMDP,
    distribution,
    expected_over_prefixes,
    prefix_kl_policy_reference,
    prefix_kl_reference_policy,
    sequence_kl_policy_reference,
    sequence_kl_reference_policy,
    sequence_logprob,
)
from tests.exact.helpers import assert_is_derivative
from tests.toys import (
    A_GRADIENT_KL_POLICY_REFERENCE,
    A_GRADIENT_KL_REFERENCE_POLICY,
    A_KL_POLICY_REFERENCE,
    A_KL_REFERENCE_POLICY,
    B_FORWARD_KL_ON_POLICY_PREFIXES,
    B_FUTURE_FIRST_ROW,
    B_GRADIENT_KL_POLICY_REFERENCE,
    B_IMMEDIATE_KL_POLICY_REFERENCE,
    B_KL_POLICY_REFERENCE,
    B_KL_REFERENCE_POLICY,
    B_PREFIX_KL_POLICY_REFERENCE,
    B_REVERSE_KL_ON_BEHAVIOUR_PREFIXES,
    SHARED_POLICY,
    SHARED_REFERENCE,
    TOY_A,
    TOY_B,
    TOY_C,
    TOY_LONG,
    assert_digits,
)

PROBLEMS = [
    pytest.param(TOY_A.mdp, TOY_A.policy, TOY_A.reference, id="A"),
    pytest.param(TOY_B.mdp, TOY_B.policy, TOY_B.reference, id="B"),
    pytest.param(TOY_C.mdp, TOY_C.policy, TOY_C.reference, id="C"),
    pytest.param(TOY_LONG.mdp, TOY_LONG.policy, TOY_LONG.reference, id="LONG"),
    pytest.param(TOY_LONG.mdp, SHARED_POLICY, SHARED_REFERENCE, id="LONG-shared"),
]
AT_PREFIX = pytest.mark.parametrize("kl", [prefix_kl_policy_reference, prefix_kl_reference_policy])
OVER_SEQUENCES = pytest.mark.parametrize("kl", [sequence_kl_policy_reference, sequence_kl_reference_policy])


def test_divergences_of_toy_a():
    reverse = prefix_kl_policy_reference(TOY_A.policy, TOY_A.reference, ())
    forward = prefix_kl_reference_policy(TOY_A.policy, TOY_A.reference, ())
    assert_digits(reverse.value, A_KL_POLICY_REFERENCE, 13)
    assert_digits(forward.value, A_KL_REFERENCE_POLICY, 13)
    assert_digits(reverse.gradient, A_GRADIENT_KL_POLICY_REFERENCE, 12)
    assert_digits(forward.gradient, A_GRADIENT_KL_REFERENCE_POLICY, 12)


def test_divergences_of_toy_b():
    reverse = sequence_kl_policy_reference(TOY_B.mdp, TOY_B.policy, TOY_B.reference)
    assert_digits(reverse.value, B_KL_POLICY_REFERENCE, 12)
    assert_digits(reverse.gradient, B_GRADIENT_KL_POLICY_REFERENCE, 10)
    assert_digits(reverse.immediate, B_IMMEDIATE_KL_POLICY_REFERENCE, 10)
    assert_digits(reverse.future[:3], B_FUTURE_FIRST_ROW, 10)
    np.testing.assert_allclose(reverse.future[3:], 0.0, rtol=0, atol=1e-15)
    forward = sequence_kl_reference_policy(TOY_B.mdp, TOY_B.policy, TOY_B.reference)
    assert_digits(forward.value, B_KL_REFERENCE_POLICY, 12)


def test_divergences_at_each_prefix_of_toy_b():
    for prefix, recorded in B_PREFIX_KL_POLICY_REFERENCE.items():
        assert_digits(prefix_kl_policy_reference(TOY_B.policy, TOY_B.reference, prefix).value, recorded, 10)


def test_divergences_of_toy_b_on_prefixes_of_another_direction_or_sampler():
    forward = expected_over_prefixes(
        TOY_B.mdp,
        TOY_B.policy,
        lambda s: prefix_kl_reference_policy(TOY_B.policy, TOY_B.reference, s).gradient,
    )
    assert_digits(forward, B_FORWARD_KL_ON_POLICY_PREFIXES, 10)
    reverse = expected_over_prefixes(
        TOY_B.mdp,
        TOY_B.behaviour,
        lambda s: prefix_kl_policy_reference(TOY_B.policy, TOY_B.reference, s).gradient,
    )
    assert_digits(reverse, B_REVERSE_KL_ON_BEHAVIOUR_PREFIXES, 10)


@pytest.mark.parametrize(
    ("kl", "sampler", "recorded"),
    [
        (prefix_kl_policy_reference, TOY_B.policy, B_KL_POLICY_REFERENCE),
        (prefix_kl_policy_reference, TOY_B.reference, 0.679626016149),
        (prefix_kl_reference_policy, TOY_B.policy, 0.673861989326),
        (prefix_kl_reference_policy, TOY_B.reference, B_KL_REFERENCE_POLICY),
    ],
)
def test_a_direction_and_a_prefix_distribution_make_four_different_numbers(kl, sampler, recorded):
    """Two of them are divergences of sequences, two are not."""
    found = expected_over_prefixes(
        TOY_B.mdp, sampler, lambda s: np.array(kl(TOY_B.policy, TOY_B.reference, s).value)
    )
    assert_digits(found, recorded, 12)


@AT_PREFIX
@pytest.mark.parametrize(("mdp", "policy", "reference"), PROBLEMS)
def test_the_gradient_at_a_prefix_is_the_finite_difference(mdp, policy, reference, kl):
    for prefix in mdp.prefixes():
        gradient = kl(policy, reference, prefix).gradient
        assert_is_derivative(gradient, lambda p, s=prefix: kl(p, reference, s).value, policy)


@OVER_SEQUENCES
@pytest.mark.parametrize(("mdp", "policy", "reference"), PROBLEMS)
def test_the_gradient_over_sequences_is_the_finite_difference(mdp, policy, reference, kl):
    gradient = kl(mdp, policy, reference).gradient
    assert_is_derivative(gradient, lambda p: kl(mdp, p, reference).value, policy)


@OVER_SEQUENCES
@pytest.mark.parametrize(("mdp", "policy", "reference"), PROBLEMS)
def test_immediate_and_future_add_up_to_the_gradient(mdp, policy, reference, kl):
    found = kl(mdp, policy, reference)
    np.testing.assert_allclose(found.immediate + found.future, found.gradient, rtol=0, atol=1e-14)


def test_the_future_part_matters_beyond_the_last_step():
    """Rows of prefixes that end next have no future; the others must have one, or the split is not tested."""
    future = sequence_kl_policy_reference(TOY_LONG.mdp, TOY_LONG.policy, TOY_LONG.reference).future
    sizes = np.abs(future.reshape(7, 3)).max(axis=1)
    assert (sizes[:3] > 1e-3).all()
    assert (sizes[3:] < 1e-15).all()


@pytest.mark.parametrize(("mdp", "policy", "reference"), PROBLEMS)
def test_the_immediate_part_holds_prefixes_constant(mdp, policy, reference):
    """Finite difference of Σ_s d(s) KL(s) with the visits d frozen at the policy's."""

    def frozen(changed):
        def at(s):
            return np.array(prefix_kl_policy_reference(changed, reference, s).value)

        return float(expected_over_prefixes(mdp, policy, at))

    assert_is_derivative(sequence_kl_policy_reference(mdp, policy, reference).immediate, frozen, policy)


@pytest.mark.parametrize(("mdp", "policy", "reference"), PROBLEMS)
def test_the_future_part_moves_only_the_prefixes(mdp, policy, reference):
    """Finite difference of Σ_s d(s) KL(s) with the divergences KL(s) frozen at the policy's."""
    fixed = {s: np.array(prefix_kl_policy_reference(policy, reference, s).value) for s in mdp.prefixes()}
    moved = sequence_kl_policy_reference(mdp, policy, reference).future
    assert_is_derivative(moved, lambda p: float(expected_over_prefixes(mdp, p, fixed.__getitem__)), policy)


@pytest.mark.parametrize(("mdp", "policy", "reference"), PROBLEMS)
def test_chain_rule(mdp, policy, reference):
    """A divergence of sequences is the sum over prefixes, visited as its first argument visits them."""
    reverse = expected_over_prefixes(
        mdp, policy, lambda s: np.array(prefix_kl_policy_reference(policy, reference, s).value)
    )
    forward = expected_over_prefixes(
        mdp, reference, lambda s: np.array(prefix_kl_reference_policy(policy, reference, s).value)
    )
    assert sequence_kl_policy_reference(mdp, policy, reference).value == pytest.approx(
        float(reverse), abs=1e-14
    )
    assert sequence_kl_reference_policy(mdp, policy, reference).value == pytest.approx(
        float(forward), abs=1e-14
    )


@pytest.mark.parametrize(("mdp", "policy", "reference"), PROBLEMS)
def test_the_two_directions_are_each_other_with_the_arguments_exchanged(mdp, policy, reference):
    reverse = sequence_kl_policy_reference(mdp, policy, reference).value
    assert reverse == pytest.approx(sequence_kl_reference_policy(mdp, reference, policy).value, abs=1e-14)
    assert abs(reverse - sequence_kl_policy_reference(mdp, reference, policy).value) > 1e-3


@OVER_SEQUENCES
def test_a_policy_does_not_diverge_from_itself(kl):
    found = kl(TOY_LONG.mdp, TOY_LONG.policy, TOY_LONG.policy)
    for part in found:
        np.testing.assert_allclose(part, 0.0, rtol=0, atol=1e-15)


def test_the_forward_gradient_of_a_softmax_row_is_policy_less_reference():
    for prefix in TOY_LONG.mdp.prefixes():
        row = TOY_LONG.policy.row_of(prefix)
        gradient = prefix_kl_reference_policy(TOY_LONG.policy, TOY_LONG.reference, prefix).gradient
        expected = np.exp(TOY_LONG.policy(prefix)[0]) - np.exp(TOY_LONG.reference(prefix)[0])
        np.testing.assert_allclose(gradient.reshape(-1, 3)[row], expected, rtol=0, atol=1e-15)


def test_a_token_that_neither_can_sample_is_left_out():
    mdp = TokenMDP(3, end_token=None, max_length=1, reward=lambda tokens: 0.0)
    half = FixedPolicy({(): np.array([np.log(0.5), np.log(0.5), -np.inf])})
    quarter = FixedPolicy({(): np.array([np.log(0.25), np.log(0.75), -np.inf])})
    expected = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    assert prefix_kl_policy_reference(half, quarter, ()).value == pytest.approx(expected, abs=1e-15)
    assert prefix_kl_reference_policy(quarter, half, ()).value == pytest.approx(expected, abs=1e-15)
    assert sequence_kl_policy_reference(mdp, half, quarter).value == pytest.approx(expected, abs=1e-15)


def test_an_infinite_divergence_is_refused_and_the_other_direction_is_not():
    full, part = FixedPolicy({(): np.log([0.5, 0.5])}), FixedPolicy({(): np.array([0.0, -np.inf])})
    mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 0.0)
    with pytest.raises(InvalidInput, match="the policy can sample token 1 and the reference cannot"):
        sequence_kl_policy_reference(mdp, full, part)
    with pytest.raises(InvalidInput, match="the reference can sample token 1 and the policy cannot"):
        sequence_kl_reference_policy(mdp, part, full)
    assert sequence_kl_policy_reference(mdp, part, full).value == pytest.approx(np.log(2.0), abs=1e-15)


def test_the_value_is_the_mean_log_ratio_of_sequences():
    """Spelled out once from probabilities, away from the log-probabilities that the oracle sums."""
    policy = {tau.tokens: p for tau, p in distribution(TOY_C.mdp, TOY_C.policy)}
    reference = {tau.tokens: p for tau, p in distribution(TOY_C.mdp, TOY_C.reference)}
    expected = sum(p * np.log(p / reference[tokens]) for tokens, p in policy.items())
    found = sequence_kl_policy_reference(TOY_C.mdp, TOY_C.policy, TOY_C.reference).value
    assert found == pytest.approx(expected, abs=1e-14)
    assert all(np.isfinite(sequence_logprob(TOY_C.reference, tau)) for tau in TOY_C.mdp.trajectories())
