"""Every Ψ of g = E[Σ_t Ψ_t ∇log π(a_t|s_t)], enumerated: its bias, and the trace of its covariance.

Expected numbers are recorded ones, those of the oracle, or derived in the test.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rung import exact
from rung.credit import (
    MovingAverage,
    gae,
    minus_constant,
    reward_to_go,
    td_residual,
    total_return,
)
from rung.exact import TokenMDP
from tests.batches import f64
from tests.toys import (
    B_REWARDS,
    C_BEST_CONSTANT_BASELINE,
    C_BEST_STATE_BASELINE,
    C_OBJECTIVE,
    C_OBJECTIVE_GRADIENT,
    C_TRACE_A,
    C_TRACE_BEST_CONSTANT_BASELINE,
    C_TRACE_GAE_HALF,
    C_TRACE_Q,
    C_TRACE_Q_LESS_BEST_STATE_BASELINE,
    C_TRACE_RETURN,
    C_TRACE_RETURN_LESS_J,
    C_TRACE_TO_GO_LESS_V,
    C_WRONG_CRITIC,
    C_WRONG_CRITIC_BIAS,
    TOY_B,
    TOY_C,
    TOY_LONG,
    assert_digits,
)
from tests.unbiased.credited import moments, near, off, with_critic, wrong_values

LAMBDAS = [0.0, 0.5, 0.95, 1.0]
TOYS = pytest.mark.parametrize("toy", [TOY_C, TOY_LONG], ids=["C", "LONG"])  # LONG has rewards on steps, too


# --- the family on toy C: recorded variances -------------------------------------------------------------------------


def test_recorded_variances_of_every_choice_of_credit():
    """All unbiased; A is not the one of least variance: Q minus the best baseline at each state has less."""
    values = exact.state_values(TOY_C.mdp, TOY_C.policy)

    def action_values(batch):
        residuals = td_residual(batch.rewards, batch.at_states(values), batch.mask)
        return torch.where(batch.mask, residuals + batch.at_states(values), 0.0)

    def less_best_baseline(batch):
        return torch.where(batch.mask, action_values(batch) - batch.at_states(C_BEST_STATE_BASELINE), 0.0)

    recorded = [
        (lambda batch: total_return(batch.rewards, batch.mask), C_TRACE_RETURN),
        (lambda batch: minus_constant(batch.returns, baseline=C_OBJECTIVE), C_TRACE_RETURN_LESS_J),
        (
            lambda batch: minus_constant(batch.returns, baseline=C_BEST_CONSTANT_BASELINE),
            C_TRACE_BEST_CONSTANT_BASELINE,
        ),
        (with_critic(values, 1.0), C_TRACE_TO_GO_LESS_V),
        (with_critic(values, 0.5), C_TRACE_GAE_HALF),
        (action_values, C_TRACE_Q),
        (lambda batch: td_residual(batch.rewards, batch.at_states(values), batch.mask), C_TRACE_A),
        (less_best_baseline, C_TRACE_Q_LESS_BEST_STATE_BASELINE),
    ]
    for credit, trace in recorded:
        found = moments(TOY_C, credit)
        assert_digits(found.mean, C_OBJECTIVE_GRADIENT, 10)
        assert_digits(found.trace, trace, 10)
    assert C_TRACE_Q_LESS_BEST_STATE_BASELINE < C_TRACE_A


@pytest.mark.parametrize("baseline", [-2.0, 0.0, 1.3])
@TOYS
def test_a_constant_never_biases_and_the_best_one_is_not_the_mean(toy, baseline):
    """b* = E[R |S|²]/E[|S|²] by the oracle: the least variance, and not at J."""
    exact_gradient = exact.objective_gradient(toy.mdp, toy.policy)

    def less(constant):
        return moments(toy, lambda batch: minus_constant(batch.returns, baseline=constant))

    near(less(baseline).mean, exact_gradient)
    weighed = [
        (p * float(s @ s), toy.mdp.total_return(tau.tokens))
        for tau, p in exact.distribution(toy.mdp, toy.policy)
        for s in [exact.sequence_score(toy.policy, tau)]
    ]
    best = sum(w * r for w, r in weighed) / sum(w for w, _ in weighed)
    mean = exact.objective(toy.mdp, toy.policy)
    assert abs(best - mean) > 1e-2
    for other in (mean, best - 0.05, best + 0.05):
        assert less(best).trace < less(other).trace


# --- critics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", LAMBDAS)
def test_the_bias_of_a_wrong_critic_on_toy_c(lam):
    """Recorded: proportional to 1 − λ on two steps, and none at λ = 1."""
    found = moments(TOY_C, with_critic(C_WRONG_CRITIC, lam)).mean
    assert_digits(off(found, exact.objective_gradient(TOY_C.mdp, TOY_C.policy)), C_WRONG_CRITIC_BIAS[lam], 10)


@pytest.mark.parametrize("spacing", [1, 2])
@pytest.mark.parametrize("lam", LAMBDAS)
@TOYS
def test_the_exact_critic_is_unbiased_at_every_lambda(toy, lam, spacing):
    values = exact.state_values(toy.mdp, toy.policy)
    found = moments(toy, with_critic(values, lam), spacing=spacing).mean
    near(found, exact.objective_gradient(toy.mdp, toy.policy))


@pytest.mark.parametrize("spacing", [1, 2])
@TOYS
def test_any_critic_is_unbiased_at_lambda_one(toy, spacing):
    """The TD residual with the same critic is far off."""
    values = wrong_values(toy.mdp)
    exact_gradient = exact.objective_gradient(toy.mdp, toy.policy)
    near(moments(toy, with_critic(values, 1.0), spacing=spacing).mean, exact_gradient)
    assert off(moments(toy, with_critic(values, 0.0)).mean, exact_gradient) > 1e-2


@pytest.mark.parametrize("gamma", [0.9, 0.5])
@TOYS
def test_with_a_discount_the_score_needs_one_too(toy, gamma):
    """γ^t Ψ_t is unbiased for the discounted J at every λ; Ψ_t alone is not."""
    values = exact.state_values(toy.mdp, toy.policy, gamma=gamma)
    exact_gradient = exact.objective_gradient(toy.mdp, toy.policy, gamma=gamma)
    for lam in LAMBDAS:
        credit = with_critic(values, lam, gamma=gamma)
        weighted = moments(
            toy, lambda batch, credit=credit: credit(batch) * gamma ** (batch.mask.cumsum(1) - 1).double()
        )
        near(weighted.mean, exact_gradient)
        assert off(moments(toy, credit).mean, exact_gradient) > 1e-3


@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_an_error_that_does_not_depend_on_the_action_does_not_bias(lam):
    """V = V^π + 0.8 t where all sequences are equally long. Where they may end, even V^π + 0.8 biases."""
    even = {
        prefix: value + 0.8 * len(prefix)
        for prefix, value in exact.state_values(TOY_B.mdp, TOY_B.policy).items()
    }
    near(moments(TOY_B, with_critic(even, lam)).mean, exact.objective_gradient(TOY_B.mdp, TOY_B.policy))
    shifted = {prefix: value + 0.8 for prefix, value in exact.state_values(TOY_C.mdp, TOY_C.policy).items()}
    biased = moments(TOY_C, with_critic(shifted, lam)).mean
    assert off(biased, exact.objective_gradient(TOY_C.mdp, TOY_C.policy)) > 1e-2


def test_one_step_ahead_is_enough_for_the_residual_but_not_for_a_trace():
    """Three tokens, V off by e = 2 a_0 after two of them: that is a constant where a_1 is chosen, not where a_0 is.

    A_0 = δ_0 + λ δ_1 + λ² δ_2 holds λ e from δ_1 and −λ² e from δ_2: at λ = ½ a quarter of e.
    """
    mdp = TokenMDP(
        2, end_token=None, max_length=3, reward=lambda tokens: float(tokens[0] - 2 * tokens[1] * tokens[2])
    )
    policy = exact.SoftmaxTable(mdp.prefixes(), np.sin(np.arange(14.0)).reshape(7, 2))
    toy = replace(TOY_B, mdp=mdp, policy=policy)
    values = {
        prefix: value + (2.0 * prefix[0] if len(prefix) == 2 else 0.0)
        for prefix, value in exact.state_values(mdp, policy).items()
    }
    exact_gradient = exact.objective_gradient(mdp, policy)
    near(moments(toy, with_critic(values, 0.0)).mean, exact_gradient)
    bias = exact.policy_gradient(mdp, policy, lambda tau: np.array([0.5 * tau.tokens[0], 0.0, 0.0]))
    assert np.abs(bias).max() > 1e-2
    near(moments(toy, with_critic(values, 0.5)).mean, exact_gradient + bias)


def test_a_truncated_sequence_bootstraps_and_is_unbiased():
    """Cut after one token, with V of what comes next as the bootstrap; without it the rest of the sequence is lost."""
    values = exact.state_values(TOY_B.mdp, TOY_B.policy)
    first = replace(TOY_B, mdp=TokenMDP(3, end_token=None, max_length=1, reward=lambda tokens: 0.0))

    def credit(batch, bootstrap=True):
        end = f64([values[tau.tokens] for tau in batch.group])
        return gae(
            batch.rewards, batch.at_states(values), batch.mask, lam=0.5, bootstrap=end if bootstrap else None
        )

    exact_gradient = exact.objective_gradient(TOY_B.mdp, TOY_B.policy)[:3]
    near(moments(first, credit).mean[:3], exact_gradient)
    assert off(moments(first, lambda batch: credit(batch, False)).mean[:3], exact_gradient) > 1e-2
    assert max(B_REWARDS.values()) > 1


# --- holes -----------------------------------------------------------------------------------------------------------


@TOYS
def test_a_tool_between_the_tokens_changes_no_expectation(toy):
    """Every Ψ of a sequence's own rewards, with a hole of NaN after each token."""
    exact_gradient = exact.objective_gradient(toy.mdp, toy.policy)
    credits = [
        lambda batch: total_return(batch.rewards, batch.mask),
        lambda batch: reward_to_go(batch.rewards, batch.mask),
        lambda batch: MovingAverage(0.4, 0.9)(batch.rewards, batch.mask),
    ]
    for credit in credits:
        near(moments(toy, credit, spacing=2).mean, exact_gradient)
