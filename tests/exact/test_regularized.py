"""The objective with a penalty, and the policy that is best for it."""

import numpy as np
import pytest

from rung.errors import InvalidInput
from rung.exact import (
    FixedPolicy,
    TokenMDP,
    distribution,
    objective,
    regularized_objective,
    sequence_kl_policy_reference,
    tilted_optimum,
)
from tests.exact.helpers import assert_is_derivative
from tests.toys import (
    A_REGULARIZED_OBJECTIVE,
    A_TILTED_OPTIMUM,
    A_TILTED_VALUE,
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
COEFFICIENTS = pytest.mark.parametrize("beta", [0.05, 0.5, 4.0])


def test_optimum_of_toy_a():
    optimum = tilted_optimum(TOY_A.mdp, TOY_A.reference, 0.5)
    assert_digits(np.exp(optimum.policy(())[0]), A_TILTED_OPTIMUM, 10)
    assert_digits(optimum.value, A_TILTED_VALUE, 12)
    found = regularized_objective(TOY_A.mdp, TOY_A.policy, TOY_A.reference, 0.5)
    assert_digits(found.value, A_REGULARIZED_OBJECTIVE, 12)
    divergence = sequence_kl_policy_reference(TOY_A.mdp, TOY_A.policy, optimum.policy).value
    assert_digits(optimum.value - 0.5 * divergence, A_REGULARIZED_OBJECTIVE, 12)


@COEFFICIENTS
@pytest.mark.parametrize(("mdp", "policy", "reference"), PROBLEMS)
def test_the_gradient_is_the_finite_difference(mdp, policy, reference, beta):
    gradient = regularized_objective(mdp, policy, reference, beta).gradient

    def function(p):
        return regularized_objective(mdp, p, reference, beta).value

    assert_is_derivative(gradient, function, policy, tolerance=2e-9 * max(1.0, beta))


@COEFFICIENTS
@pytest.mark.parametrize(("mdp", "policy", "reference"), PROBLEMS)
def test_every_policy_falls_short_by_its_divergence_from_the_optimum(mdp, policy, reference, beta):
    """J_β(π) = β log Z − β KL(p_π‖p*)."""
    optimum = tilted_optimum(mdp, reference, beta)
    shortfall = beta * sequence_kl_policy_reference(mdp, policy, optimum.policy).value
    assert shortfall > 1e-3
    found = regularized_objective(mdp, policy, reference, beta).value
    assert found == pytest.approx(optimum.value - shortfall, abs=1e-13)


@COEFFICIENTS
@pytest.mark.parametrize(("mdp", "policy", "reference"), PROBLEMS)
def test_the_value_is_the_log_normaliser_of_the_sequences(mdp, policy, reference, beta):
    """β log Σ_τ p_ref(τ) e^(R(τ)/β): the sum over sequences, where the oracle goes back over prefixes."""
    total = sum(p * np.exp(mdp.total_return(tau.tokens) / beta) for tau, p in distribution(mdp, reference))
    found = tilted_optimum(mdp, reference, beta).value
    assert found == pytest.approx(beta * np.log(total), abs=1e-13)


@COEFFICIENTS
@pytest.mark.parametrize(("mdp", "policy", "reference"), PROBLEMS)
def test_the_optimum_attains_its_value(mdp, policy, reference, beta):
    optimum = tilted_optimum(mdp, reference, beta)
    value = objective(mdp, optimum.policy)
    value -= beta * sequence_kl_policy_reference(mdp, optimum.policy, reference).value
    assert value == pytest.approx(optimum.value, abs=1e-13)


@COEFFICIENTS
@pytest.mark.parametrize("toy", [TOY_B, TOY_C, TOY_LONG], ids=["B", "C", "LONG"])
def test_at_the_optimum_the_gradient_of_a_table_vanishes(toy, beta):
    optimum = tilted_optimum(toy.mdp, toy.reference, beta)
    logits = np.concatenate([optimum.policy(prefix)[0] for prefix in toy.policy.prefixes])
    table = toy.policy.with_parameters(logits)
    found = regularized_objective(toy.mdp, table, toy.reference, beta)
    np.testing.assert_allclose(found.gradient, 0.0, rtol=0, atol=1e-13)
    assert found.value == pytest.approx(optimum.value, abs=1e-13)


@COEFFICIENTS
@pytest.mark.parametrize(("mdp", "policy", "reference"), PROBLEMS)
def test_the_tokens_of_the_optimum_multiply_to_the_tilted_sequences(mdp, policy, reference, beta):
    """p*(τ) ∝ p_ref(τ) e^(R/β), from the reference's probabilities and nothing else."""
    weights = {
        tau: p * np.exp(mdp.total_return(tau.tokens) / beta) for tau, p in distribution(mdp, reference)
    }
    total = sum(weights.values())
    found = distribution(mdp, tilted_optimum(mdp, reference, beta).policy)
    assert len(found) == len(weights)
    for tau, probability in found:
        assert probability == pytest.approx(weights[tau] / total, abs=1e-13)


def test_large_coefficients_stay_at_the_reference_and_small_ones_find_the_best_sequence():
    far = tilted_optimum(TOY_C.mdp, TOY_C.reference, 1e9)
    for prefix in TOY_C.mdp.prefixes():
        np.testing.assert_allclose(far.policy(prefix)[0], TOY_C.reference(prefix)[0], rtol=0, atol=1e-8)
    near = tilted_optimum(TOY_C.mdp, TOY_C.reference, 1e-3)
    assert near.value == pytest.approx(2.0, abs=5e-3)
    assert max(distribution(TOY_C.mdp, near.policy), key=lambda pair: pair[1])[0].tokens == (1, 1)


def test_the_optimum_stays_inside_the_support_of_the_reference():
    mdp = TokenMDP(3, end_token=None, max_length=1, reward=lambda tokens: 5.0 * tokens[0])
    reference = FixedPolicy({(): np.array([np.log(0.5), np.log(0.5), -np.inf])})
    optimum = tilted_optimum(mdp, reference, 5.0)
    np.testing.assert_allclose(
        np.exp(optimum.policy(())[0]), [1 / (1 + np.e), np.e / (1 + np.e), 0.0], atol=1e-15
    )


@pytest.mark.parametrize("beta", [0.0, -1.0, float("nan")])
def test_a_coefficient_that_is_not_positive_has_no_tilted_optimum(beta):
    with pytest.raises(InvalidInput, match="positive KL coefficient"):
        tilted_optimum(TOY_A.mdp, TOY_A.reference, beta)
