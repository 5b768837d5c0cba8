"""The value of an estimate of KL(π‖π_ref): recorded means and variances, and which weight brings the mean back."""

import numpy as np
import pytest

from rung.errors import InvalidInput
from rung.exact import (
    FixedPolicy,
    SoftmaxTable,
    TokenMDP,
    distribution,
    expected_over_prefixes,
    kl_estimate,
    prefix_kl_policy_reference,
    sequence_kl_policy_reference,
)
from tests.exact.problems import TOOL_BEHAVIOUR, TOOL_MDP, TOOL_POLICY, TOOL_REFERENCE
from tests.toys import (
    A_KL_POLICY_REFERENCE,
    A_MEAN_K2,
    A_VARIANCE_K1,
    A_VARIANCE_K2,
    A_VARIANCE_K3,
    B_KL_POLICY_REFERENCE,
    B_MEAN_SEQUENCE_K2,
    B_MEAN_TOKEN_K2,
    B_VARIANCE_K1,
    B_VARIANCE_RAO_BLACKWELL,
    B_VARIANCE_SEQUENCE_K3,
    B_VARIANCE_TOKEN_K3,
    SHARED_BEHAVIOUR,
    SHARED_POLICY,
    SHARED_REFERENCE,
    TOY_A,
    TOY_B,
    TOY_C,
    TOY_LONG,
    assert_digits,
)

PROBLEMS = [
    pytest.param(*vars(TOY_C).values(), id="C"),
    pytest.param(*vars(TOY_LONG).values(), id="LONG"),
    pytest.param(TOY_LONG.mdp, SHARED_POLICY, SHARED_REFERENCE, SHARED_BEHAVIOUR, id="LONG-shared"),
    pytest.param(TOOL_MDP, TOOL_POLICY, TOOL_REFERENCE, TOOL_BEHAVIOUR, id="TOOL"),
]


@pytest.mark.parametrize(
    ("toy", "estimator", "level", "mean", "variance"),
    [
        (TOY_A, "k1", "token", A_KL_POLICY_REFERENCE, A_VARIANCE_K1),
        (TOY_A, "k2", "token", A_MEAN_K2, A_VARIANCE_K2),
        (TOY_A, "k3", "token", A_KL_POLICY_REFERENCE, A_VARIANCE_K3),
        (TOY_A, "full", "token", A_KL_POLICY_REFERENCE, 0.0),
        (TOY_B, "k1", "token", B_KL_POLICY_REFERENCE, B_VARIANCE_K1),
        (TOY_B, "k1", "sequence", B_KL_POLICY_REFERENCE, B_VARIANCE_K1),
        (TOY_B, "k2", "token", B_MEAN_TOKEN_K2, None),
        (TOY_B, "k2", "sequence", B_MEAN_SEQUENCE_K2, None),
        (TOY_B, "k3", "token", B_KL_POLICY_REFERENCE, B_VARIANCE_TOKEN_K3),
        (TOY_B, "k3", "sequence", B_KL_POLICY_REFERENCE, B_VARIANCE_SEQUENCE_K3),
        (TOY_B, "full", "token", B_KL_POLICY_REFERENCE, B_VARIANCE_RAO_BLACKWELL),
        (TOY_B, "full", "sequence", B_KL_POLICY_REFERENCE, B_VARIANCE_RAO_BLACKWELL),
    ],
)
def test_values_of_toys_a_and_b(toy, estimator, level, mean, variance):
    found = kl_estimate(toy.mdp, toy.policy, toy.reference, estimator=estimator, level=level)
    assert_digits(found.mean, mean, 13 if toy is TOY_A else 12)
    if variance is not None:
        assert_digits(found.variance, variance, 13 if toy is TOY_A else 10)


def test_k3_may_vary_far_more_than_k1():
    """π = (.999, .001) against a fair coin: recorded variances .0477 of k1 and 242 of k3, and k2 is 62 % too low."""
    mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 0.0)
    skewed, fair = SoftmaxTable([()], [np.log([0.999, 0.001])]), SoftmaxTable([()], [[0.0, 0.0]])
    k1, k2, k3 = (kl_estimate(mdp, skewed, fair, estimator=k) for k in ("k1", "k2", "k3"))
    assert_digits([k1.mean, k3.mean], 0.6852399254, 10)
    assert_digits(k1.variance, 0.0476555583, 10)
    assert_digits(k3.variance, 242.4049645395, 10)
    assert_digits(k2.mean, 0.2586046569, 10)


@pytest.mark.parametrize(("mdp", "policy", "reference", "behaviour"), PROBLEMS)
def test_on_policy_all_but_k2_estimate_the_divergence(mdp, policy, reference, behaviour):
    exact = sequence_kl_policy_reference(mdp, policy, reference).value
    for level in ("token", "sequence"):
        for estimator in ("k1", "k3", "full"):
            found = kl_estimate(mdp, policy, reference, estimator=estimator, level=level)
            assert found.mean == pytest.approx(exact, abs=1e-13)
        assert abs(kl_estimate(mdp, policy, reference, estimator="k2", level=level).mean - exact) > 1e-3


@pytest.mark.parametrize(("mdp", "policy", "reference", "behaviour"), PROBLEMS)
def test_only_the_sequence_ratio_undoes_the_sampler(mdp, policy, reference, behaviour):
    def weighted(estimator, **cell):
        return kl_estimate(mdp, policy, reference, estimator=estimator, sampler=behaviour, **cell).mean

    exact = sequence_kl_policy_reference(mdp, policy, reference).value
    for level in ("token", "sequence"):
        for estimator in ("k1", "k3", "full"):
            assert weighted(estimator, level=level, ratio="sequence") == pytest.approx(exact, abs=1e-13)
    # A token's own ratio corrects the token and leaves its prefix to the sampler.
    on_their_prefixes = float(
        expected_over_prefixes(
            mdp, behaviour, lambda s: np.array(prefix_kl_policy_reference(policy, reference, s).value)
        )
    )
    for estimator in ("k1", "k3", "full"):
        assert weighted(estimator, ratio="token") == pytest.approx(on_their_prefixes, abs=1e-13)
    assert weighted("full") == pytest.approx(on_their_prefixes, abs=1e-13)
    assert abs(on_their_prefixes - exact) > 1e-3
    assert abs(weighted("k1") - on_their_prefixes) > 1e-3


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_moments_spelled_out(estimator):
    """From probabilities alone, off policy, weighted by each token's own ratio."""
    mdp, policy, reference, behaviour = vars(TOY_LONG).values()
    k = {"k1": np.log, "k2": lambda x: np.log(x) ** 2 / 2, "k3": lambda x: 1 / x - 1 + np.log(x)}[estimator]
    weights, values = [], []
    for tau, probability in distribution(mdp, behaviour):
        total = 0.0
        for prefix, token in tau.steps:
            p, q, m = (np.exp(chosen(prefix)[0][token]) for chosen in (policy, reference, behaviour))
            total += p / m * k(p / q)
        weights.append(probability)
        values.append(total)
    mean = np.dot(weights, values)
    variance = np.dot(weights, (np.array(values) - mean) ** 2)
    found = kl_estimate(mdp, policy, reference, estimator=estimator, ratio="token", sampler=behaviour)
    assert found == pytest.approx((mean, variance), abs=1e-13)


def test_what_has_no_ratio_is_refused():
    with pytest.raises(InvalidInput, match="no token ratio"):
        kl_estimate(TOY_C.mdp, TOY_C.policy, TOY_C.reference, estimator="k1", level="sequence", ratio="token")
    mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 0.0)
    full, part = FixedPolicy({(): np.log([0.5, 0.5])}), FixedPolicy({(): np.array([0.0, -np.inf])})
    with pytest.raises(InvalidInput, match="token 1 after \\(\\) is impossible for one of two"):
        kl_estimate(mdp, full, part, estimator="k1")
