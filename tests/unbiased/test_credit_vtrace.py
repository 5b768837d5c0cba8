"""V-trace enumerated: where its targets settle, and what its credit follows."""

from dataclasses import replace

import numpy as np
import pytest

from rung import exact
from rung.credit import vtrace, vtrace_credit
from rung.exact import FixedPolicy
from tests.toys import A_REWARDS, TOY_A, TOY_C, TOY_LONG, assert_digits
from tests.unbiased.credited import Batch, moments, near, off, wrong_values

TOYS = pytest.mark.parametrize("toy", [TOY_C, TOY_LONG], ids=["C", "LONG"])  # LONG has rewards on steps, too


def capped(toy, rho_cap):
    """π_ρ̄ ∝ min(ρ̄ μ, π) at each prefix, and the sum that it is divided by."""
    logprobs, sums = {}, {}
    for prefix in toy.mdp.prefixes():
        mass = np.minimum(
            rho_cap * np.exp(exact.evaluate(toy.behaviour, prefix)[0]),
            np.exp(exact.evaluate(toy.policy, prefix)[0]),
        )
        sums[prefix] = mass.sum()
        logprobs[prefix] = np.log(mass / mass.sum())
    return FixedPolicy(logprobs), sums


def run_vtrace(toy, batch, values, **settings):
    return vtrace(
        batch.rewards,
        batch.at_states(values),
        batch.mask,
        batch.logprobs(toy.policy),
        batch.logprobs(toy.behaviour),
        **settings,
    )


def test_recorded_fixed_point_on_toy_a():
    """The mean update E_μ[v − V] is linear in V: where it is 0, V = Σ π_ρ̄ r. With r = 1 for one token that is π_ρ̄."""
    mdp, policy, behaviour = TOY_A.mdp, TOY_A.policy, TOY_A.behaviour
    found = []
    for wanted in A_REWARDS:
        one = replace(TOY_A, mdp=replace(mdp, reward=lambda tokens, wanted=wanted: float(tokens == wanted)))

        def update(value, one=one):
            def estimator(group):
                batch = Batch(one.mdp, group)
                targets, _ = run_vtrace(one, batch, {(): value}, rho_cap=1.1)
                return targets[0].numpy() - value

            return exact.expectation(one.mdp, behaviour, 1, estimator).mean[0]

        found.append(update(0.0) / (update(0.0) - update(1.0)))
    assert_digits(found, [0.3714328058, 0.1748981407, 0.4536690535], 10)
    assert np.abs(np.array(found) - np.exp(exact.evaluate(policy, ())[0])).max() > 1e-2


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize(
    "settings",
    [{"rho_cap": 1.1}, {"lam": 0.5}, {"rho_cap": 2.0, "c_cap": 0.4}, {"rho_cap": 1e9, "c_cap": 1e9}],
)
@TOYS
def test_vtrace_targets_settle_at_the_value_of_the_capped_policy(toy, gamma, settings):
    """At V = V^π_ρ̄ the mean of v_t − V(s_t) given s_t is 0, at every prefix, whatever λ and c̄ are."""
    policy, _ = capped(toy, settings.get("rho_cap", 1.0))
    values = exact.state_values(toy.mdp, policy, gamma=gamma)
    prefixes = toy.mdp.prefixes()

    def estimator(group):
        """One entry for each prefix: the error there, if the sequence passes it."""
        batch, (tau,) = Batch(toy.mdp, group), group
        errors = run_vtrace(toy, batch, values, gamma=gamma, **settings).targets - batch.at_states(values)
        out = np.zeros(len(prefixes))
        for t, (prefix, _) in enumerate(tau.steps):
            out[prefixes.index(prefix)] = errors[0, t]
        return out

    found = exact.expectation(toy.mdp, toy.behaviour, 1, estimator)
    near(found.mean, np.zeros(len(prefixes)))
    assert found.trace > 1e-2  # errors of single sequences are not 0


@TOYS
def test_what_the_credit_of_vtrace_follows(toy):
    """At its own fixed point: Σ_s d_μ(s) Z(s) Σ_a π_ρ̄(a|s) A^π_ρ̄(s,a) ∇log π, with Z what π_ρ̄ is divided by.

    Without caps, and with any critic: the same with π in place of π_ρ̄. The prefixes are those of μ either way.
    """

    def stated(policy, sums):
        advantage = exact.advantages(toy.mdp, policy)

        def at(prefix):
            weights = np.exp(exact.evaluate(policy, prefix)[0]) * advantage[prefix] * sums[prefix]
            return weights @ exact.evaluate(toy.policy, prefix)[1]

        return exact.expected_over_prefixes(toy.mdp, toy.behaviour, at)

    def found(values, **settings):
        def credit(batch):
            logprobs = batch.logprobs(toy.policy), batch.logprobs(toy.behaviour)
            return vtrace_credit(batch.rewards, batch.at_states(values), batch.mask, *logprobs, **settings)

        return moments(toy, credit, sampler=toy.behaviour).mean

    policy, sums = capped(toy, 1.1)
    near(found(exact.state_values(toy.mdp, policy), rho_cap=1.1), stated(policy, sums))
    whole = stated(toy.policy, dict.fromkeys(toy.mdp.prefixes(), 1.0))
    near(found(wrong_values(toy.mdp), rho_cap=1e9, c_cap=1e9), whole)
    assert off(whole, exact.objective_gradient(toy.mdp, toy.policy)) > 1e-2


@TOYS
def test_vtrace_on_policy_is_unbiased_with_any_critic(toy):
    values = wrong_values(toy.mdp)

    def credit(batch):
        logprobs = batch.logprobs(toy.policy)
        return vtrace_credit(batch.rewards, batch.at_states(values), batch.mask, logprobs, logprobs)

    near(moments(toy, credit).mean, exact.objective_gradient(toy.mdp, toy.policy))
