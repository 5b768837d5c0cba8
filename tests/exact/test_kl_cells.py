"""The gradient of every cell {k1, k2, k3, full} × {reward, loss} × {token, sequence} × {no weight, detached, live}.

Finite differences of a mean whose frozen parts are frozen check all of them, and identities say which cell is the
gradient of which divergence. Recorded digits: test_kl_cell_digits.py.
"""

import itertools
from functools import cache

import numpy as np
import pytest

from rung.exact import (
    distribution,
    evaluate,
    expectation,
    expected_over_prefixes,
    kl_cell,
    kl_estimate,
    prefix_kl_policy_reference,
    prefix_kl_reference_policy,
    sequence_kl_policy_reference,
    sequence_kl_reference_policy,
    sequence_logprob,
)
from tests.exact.helpers import assert_is_derivative
from tests.exact.problems import TOOL_BEHAVIOUR, TOOL_MDP, TOOL_POLICY, TOOL_REFERENCE, TOOL_SHARED_POLICY
from tests.toys import SHARED_BEHAVIOUR, SHARED_POLICY, SHARED_REFERENCE, TOY_C, TOY_LONG

PROBLEMS = {
    "C": tuple(vars(TOY_C).values()),
    "LONG": tuple(vars(TOY_LONG).values()),
    "LONG-shared": (TOY_LONG.mdp, SHARED_POLICY, SHARED_REFERENCE, SHARED_BEHAVIOUR),
    "TOOL": (TOOL_MDP, TOOL_POLICY, TOOL_REFERENCE, TOOL_BEHAVIOUR),
    "TOOL-shared": (TOOL_MDP, TOOL_SHARED_POLICY, SHARED_REFERENCE, SHARED_BEHAVIOUR),
}
EACH = pytest.mark.parametrize("problem", PROBLEMS)
# Few parameters, and prefixes that share them: enough for differences, which ask for every parameter twice.
SMALL = pytest.mark.parametrize("problem", ["C", "TOOL-shared"])
# (level, ratio): the ratio of the weight, where there is one.
LEVELS = [("token", "token"), ("token", "sequence"), ("sequence", "sequence")]
CELLS = pytest.mark.parametrize(
    ("estimator", "level", "ratio", "weight"),
    [
        (estimator, level, ratio, weight)
        for estimator, (level, ratio), weight in itertools.product(
            ("k1", "k2", "k3", "full"), LEVELS, ("none", "detached", "live")
        )
        if not (weight == "none" and level != ratio)
    ],
)


def logratio(first, second, step):
    prefix, token = step
    return float(first(prefix)[0][token] - second(prefix)[0][token])


def value(estimator, policy, reference, steps):
    """k of one token, or of several as one action; the full divergence at each prefix, summed."""
    if estimator == "full":
        return sum(prefix_kl_policy_reference(policy, reference, prefix).value for prefix, _ in steps)
    ell = sum(logratio(policy, reference, step) for step in steps)
    return {"k1": ell, "k2": ell * ell / 2, "k3": np.exp(-ell) - 1 + ell}[estimator]


def summands(tau, level):
    return [[step] for step in tau.steps] if level == "token" else [tau.steps]


def ratio_of(policy, behaviour, tau, summand, ratio):
    steps = summand if ratio == "token" else tau.steps
    return np.exp(sum(logratio(policy, behaviour, step) for step in steps))


@SMALL
@CELLS
def test_a_penalty_in_the_loss_is_the_finite_difference(problem, estimator, level, ratio, weight):
    """Sequences as μ samples them whatever θ is; a detached weight stays at the present θ, a live one moves."""
    mdp, policy, reference, behaviour = PROBLEMS[problem]
    sampled, at_present = distribution(mdp, behaviour), cache(policy)
    reference, behaviour = cache(reference), cache(behaviour)

    def mean_loss(changed):
        changed, total = cache(changed), 0.0
        for tau, probability in sampled:
            for steps in summands(tau, level):
                w = 1.0
                if weight != "none":
                    w = ratio_of(changed if weight == "live" else at_present, behaviour, tau, steps, ratio)
                total += probability * w * value(estimator, changed, reference, steps)
        return total

    choice = {"estimator": estimator, "level": level, "weight": weight, "ratio": ratio}
    found = kl_cell(mdp, policy, reference, placement="loss", sampler=behaviour, **choice).mean
    assert_is_derivative(found, mean_loss, policy, 1e-8)


@SMALL
@CELLS
def test_a_penalty_in_the_reward_is_the_finite_difference(problem, estimator, level, ratio, weight):
    """Costs frozen, also their weights; only the log-probabilities that they multiply move."""
    mdp, policy, reference, behaviour = PROBLEMS[problem]
    frozen = []
    for tau, probability in distribution(mdp, behaviour):
        costs = []
        for steps in summands(tau, level):
            w = 1.0 if weight == "none" else ratio_of(policy, behaviour, tau, steps, ratio)
            costs.append(w * value(estimator, policy, reference, steps))
        frozen.append((tau, probability, costs))

    def surrogate(changed):
        changed, total = cache(changed), 0.0
        for tau, probability, costs in frozen:
            for i, steps in enumerate(summands(tau, level)):
                own = sum(changed(prefix)[0][token] for prefix, token in steps)
                total += probability * sum(costs[i:]) * own
        return total

    choice = {"estimator": estimator, "level": level, "weight": weight, "ratio": ratio}
    found = kl_cell(mdp, policy, reference, placement="reward", sampler=behaviour, **choice).mean
    assert_is_derivative(found, surrogate, policy, 1e-8)


@SMALL
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "full"])
def test_on_policy_reward_and_loss_add_up_to_the_gradient_of_the_mean(problem, estimator, level):
    """∇E_π[k] = E_π[k score] + E_π[∇k], whatever is estimated."""
    mdp, policy, reference, _ = PROBLEMS[problem]
    both = sum(
        kl_cell(mdp, policy, reference, estimator=estimator, level=level, placement=placement).mean
        for placement in ("reward", "loss")
    )
    assert_is_derivative(
        both, lambda p: kl_estimate(mdp, p, reference, estimator=estimator, level=level).mean, policy, 1e-8
    )


@EACH
def test_which_cell_is_which_gradient(problem):
    """On policy, for sequences of several lengths and for parameters that prefixes share."""
    mdp, policy, reference, _ = PROBLEMS[problem]
    reverse = sequence_kl_policy_reference(mdp, policy, reference)
    forward = sequence_kl_reference_policy(mdp, policy, reference)
    forward_on_our_prefixes = expected_over_prefixes(
        mdp, policy, lambda s: prefix_kl_reference_policy(policy, reference, s).gradient
    )
    expected = {
        ("k1", "loss", "token"): np.zeros_like(reverse.gradient),
        ("k1", "loss", "sequence"): np.zeros_like(reverse.gradient),
        ("k2", "loss", "token"): reverse.immediate,
        ("k2", "loss", "sequence"): reverse.gradient,
        ("k3", "loss", "token"): forward_on_our_prefixes,
        ("k3", "loss", "sequence"): forward.gradient,
        ("full", "loss", "token"): reverse.immediate,
        ("full", "loss", "sequence"): reverse.immediate,
        ("k1", "reward", "token"): reverse.gradient,
        ("k1", "reward", "sequence"): reverse.gradient,
        ("full", "reward", "token"): reverse.future,
        ("full", "reward", "sequence"): reverse.future,
        ("k3", "reward", "sequence"): reverse.gradient - forward.gradient,
    }
    for (estimator, placement, level), gradient in expected.items():
        found = kl_cell(mdp, policy, reference, estimator=estimator, placement=placement, level=level)
        np.testing.assert_allclose(found.mean, gradient, rtol=0, atol=1e-13)


@EACH
def test_which_cell_is_which_gradient_off_policy(problem):
    mdp, policy, reference, behaviour = PROBLEMS[problem]

    def found(**choice):
        return kl_cell(mdp, policy, reference, sampler=behaviour, **choice).mean

    def on_their_prefixes(kl):
        return expected_over_prefixes(mdp, behaviour, lambda s: kl(policy, reference, s).gradient)

    reverse = sequence_kl_policy_reference(mdp, policy, reference).gradient
    forward = sequence_kl_reference_policy(mdp, policy, reference).gradient
    away = -sequence_kl_reference_policy(mdp, policy, behaviour).gradient  # −∇KL(μ‖π)
    ours = {"atol": 1e-13, "rtol": 0}
    for estimator in ("k1", "k3"):
        for level in ("token", "sequence"):
            live = found(estimator=estimator, placement="loss", level=level, weight="live", ratio="sequence")
            np.testing.assert_allclose(live, reverse, **ours)
        live = found(estimator=estimator, placement="loss", weight="live")
        np.testing.assert_allclose(live, on_their_prefixes(prefix_kl_policy_reference), **ours)
    for level in ("token", "sequence"):
        np.testing.assert_allclose(found(estimator="k1", placement="loss", level=level), away, **ours)
        rewarded = found(estimator="k1", placement="reward", level=level, weight="detached", ratio="sequence")
        np.testing.assert_allclose(rewarded, reverse, **ours)
        same = found(estimator="k1", placement="reward", level=level, weight="live", ratio="sequence")
        np.testing.assert_array_equal(rewarded, same)
    detached = found(estimator="k3", placement="loss", level="sequence", weight="detached")
    np.testing.assert_allclose(detached, forward, **ours)
    detached = found(estimator="k2", placement="loss", level="sequence", weight="detached")
    np.testing.assert_allclose(detached, reverse, **ours)
    detached = found(estimator="k3", placement="loss", weight="detached")
    np.testing.assert_allclose(detached, on_their_prefixes(prefix_kl_reference_policy), **ours)
    # A divergence of the state does not depend on its token: that token's ratio is 1 on average, live or not.
    for weight in ("none", "detached", "live"):
        full = found(estimator="full", placement="loss", weight=weight)
        np.testing.assert_allclose(full, on_their_prefixes(prefix_kl_policy_reference), **ours)


def test_the_covariance_is_that_of_one_sequence():
    """Sequence k3 in the loss, spelled out: (1 − p_ref/p_π) ∇ log p_π."""
    mdp, policy, reference, behaviour = PROBLEMS["LONG"]

    def estimator(group):
        ell = sequence_logprob(policy, group[0]) - sequence_logprob(reference, group[0])
        scores = [evaluate(policy, prefix)[1][token] for prefix, token in group[0].steps]
        return (1 - np.exp(-ell)) * np.sum(scores, axis=0)

    expected = expectation(mdp, behaviour, 1, estimator)
    found = kl_cell(
        mdp, policy, reference, estimator="k3", placement="loss", level="sequence", sampler=behaviour
    )
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=0, atol=1e-13)
