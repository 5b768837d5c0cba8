"""What is claimed of each method: complete, independent of the estimators, equal to published digits, and true."""

import ast
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rung.verify.claims
from rung import exact
from rung.exact import SoftmaxTable, TokenMDP
from rung.methods import CATALOGUE, grpo, gspo, rloo, rloo_corrected, vpg
from rung.verify.catalogue.check import AGREES, Case, build, measure
from rung.verify.catalogue.kl_part import kl_part
from rung.verify.catalogue.ladder import LADDERS, climb
from rung.verify.claims import CLAIMS, SOURCES
from rung.verify.claims import definitions as paper
from rung.verify.claims.objectives import overlong
from rung.verify.claims.reinforce import step_factor
from rung.verify.claims.scene import scene_of
from rung.verify.enumeration import SITUATIONS, Setting, estimator_of, moments
from rung.verify.problems import Problem, one_prompt, two_prompts
from tests.toys import (
    BINARY_STANDARDIZED_FACTORS,
    C_ALIVE_MEAN_FACTORS,
    C_OBJECTIVE_GRADIENT,
    C_SEQUENCE_MASKED,
    C_SEQUENCE_MEAN,
    C_SEQUENCE_MEAN_COSINE,
    C_SEQUENCE_TRUNCATED,
    C_STANDARDIZED,
    C_STANDARDIZED_COSINES,
    C_TOKEN_IMPORTANCE,
    C_TOKEN_MEAN_COSINE,
    C_WRONG_CRITIC_BIAS,
    assert_digits,
)

ONE, TWO = one_prompt(), two_prompts()
NAMES = pytest.mark.parametrize("name", CLAIMS)
CASES = (
    *(Case("one prompt", 2, situation) for situation in SITUATIONS),
    Case("one prompt", 3),
    Case("one prompt", 3, "stale"),
    Case("two prompts", 2),
    Case("two prompts", 2, "stale"),
)


def close(actual, wanted, atol=1e-12):
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=atol)


def cosine(a, b):
    return float(a @ b / math.sqrt((a @ a) * (b @ b)))


# --- complete, and independent --------------------------------------------------------------------------------------


def test_every_entry_of_the_catalogue_has_its_claim():
    assert list(CLAIMS) == list(CATALOGUE)
    for name, claim in CLAIMS.items():
        assert claim.name == name
        assert claim.meaning.endswith(".")
        assert build(claim).name == name


def test_every_bias_has_a_named_source_and_every_named_source_a_bias():
    used = set()
    for claim in CLAIMS.values():
        for situation in SITUATIONS:
            standing = claim.standing(situation)
            assert (standing.kind == "unbiased") == (standing.sources == ())
            assert (standing.kind == "scale") == (standing.scale is not None) == (standing.formula != "")
            used |= set(standing.sources)
    assert used == set(SOURCES)


def test_claims_know_no_estimator():
    """Of the package they import the oracle, each other, and who is who in a setting."""
    allowed = ("rung.exact", "rung.verify.claims", "rung.verify.enumeration")
    for file in Path(rung.verify.claims.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            assert not isinstance(node, ast.Import) or {name.name for name in node.names} <= {"math", "numpy"}
            if isinstance(node, ast.ImportFrom) and node.module.startswith("rung"):
                assert node.module.startswith(allowed), f"{file.name} imports {node.module}"
                if node.module == "rung.verify.enumeration":
                    assert {name.name for name in node.names} <= {"Setting", "Situation"}


# --- true -----------------------------------------------------------------------------------------------------------


@NAMES
def test_a_claim_holds(name):
    """The enumerated mean of rung's method is the derived one, and stands to the gradient as was claimed."""
    for case in CASES:
        found = measure(CLAIMS[name], case)
        assert found.deviation <= AGREES, str(case)
        assert found.failures == ()


@NAMES
@pytest.mark.slow
def test_a_claim_holds_with_three_stale_samples_of_two_prompts(name):
    found = measure(CLAIMS[name], Case("two prompts", 3, "stale"))
    assert found.deviation <= AGREES
    assert found.failures == ()


@NAMES
def test_without_its_sources_of_bias_nothing_is_left(name):
    """Each change does something, the sources are those of the claim, and at the end the mean is the gradient."""
    claim = CLAIMS[name]
    rungs = LADDERS.get(name, ())
    assert {rung.source for rung in rungs} == set(claim.on_policy.sources)
    for problem in ("one prompt", "two prompts"):
        ladder = climb(claim, Case(problem, 2))
        assert ladder[-1][1].relative <= AGREES
        assert all(bias.relative > 1e-6 for _, bias in ladder[:-1])


@NAMES
def test_the_kl_does_what_was_derived(name):
    part = kl_part(CLAIMS[name])
    assert part.deviation <= AGREES
    assert np.linalg.norm(part.push) > 0.01


@pytest.mark.parametrize(
    ("name", "towards", "multiple"),
    [
        *((name, "kl_policy_other", 1.0) for name in ("vpg", "remax", "rloo", "rloo-corrected", "ppo-loo")),
        *((name, "kl_policy_other", 1.0) for name in ("dual-clip", "trpo", "impala", "reinforce-learned")),
        *((f"reinforce-{name}", "kl_policy_other", 1.0) for name in ("constant", "moving-average")),
        ("reinforce", "kl_policy_other", 0.5),  # 1 − 1/B
        ("dr-grpo", "kl_other_policy", 0.5),  # k3 at the policy's prefixes, over the constant length 2
        ("ppo-penalty", "kl_other_policy", 1.0),  # at the old policy's prefixes: whole sequences
    ],
)
def test_which_divergence_a_kl_descends(name, towards, multiple):
    """k1 in the reward: −∇KL(π‖ref) of whole sequences. k3 in the loss: the other direction, at sampled prefixes."""
    part = kl_part(CLAIMS[name])
    close(part.push, multiple * getattr(part, towards), atol=1e-10)


def test_the_step_penalty_is_the_divergence_of_whole_sequences():
    (mdp, policy, _) = ONE.oracles()[0]
    found = kl_part(CLAIMS["ppo-penalty"]).push
    close(found, -exact.sequence_kl_reference_policy(mdp, policy, ONE.behaviour).gradient)


# --- where the claims bend ------------------------------------------------------------------------------------------


def test_a_cap_that_no_ratio_reaches_makes_the_correction_exact():
    """Truncation is all that biases rloo-corrected with another sampler; the largest ratio is below 3 on toy C."""
    (prompt,) = scene_of(Setting(ONE, 2, "mismatch")).prompts
    largest = max(math.exp(tau.log_correction.sum()) for tau, _ in prompt.sampled)
    target = CLAIMS["rloo"].gradient(Setting(ONE, 2), 0.1)
    for cap, exactly in ((largest * 1.01, True), (largest * 0.9, False)):
        found = moments(
            estimator_of(rloo_corrected(kl_coefficient=0.1, cap=cap)), Setting(ONE, 2, "mismatch")
        ).ascent
        assert bool(np.linalg.norm(found - target) < 1e-10) is exactly


def test_with_the_exact_critic_only_the_entropy_biases_a2c():
    """Then λ does not matter: the same mean as at λ = 1."""
    claim = CLAIMS["a2c"]
    for problem in ("one prompt", "two prompts"):
        as_it_is = measure(claim, Case(problem, 2, "on-policy", "exact"))
        (_, whole_returns) = climb(claim, Case(problem, 2, "on-policy", "exact"))[1]
        assert as_it_is.failures == ()
        close(as_it_is.bias.moments.ascent, whole_returns.moments.ascent)


def test_gspo_without_a_kl_is_grpo_without_a_kl_on_policy():
    found = [moments(estimator_of(make(kl_coefficient=0.0)), Setting(ONE, 3)) for make in (grpo, gspo)]
    close(found[0].ascent, found[1].ascent)
    close(found[0].covariance, found[1].covariance)


def test_a_baseline_of_few_samples_is_noisier_than_none():
    """Up to four samples of toy C; J is near 0 there, so that there is little to subtract."""
    for group_size in (2, 3, 4):
        baseline, none = (
            moments(estimator_of(make(kl_coefficient=0.1)), Setting(ONE, group_size)).trace
            for make in (rloo, vpg)
        )
        assert baseline > none


def test_in_pairs_a_standardised_reward_climbs_the_chance_to_win():
    """G = 2: A = ±1/√2. Summed over tokens E[ĝ] is ∇ of (P(R > R') − P(R < R'))/√2, R' a frozen copy's: not of E[R]."""

    def coefficients(group):
        return [
            np.full(tau.length, a / 2)
            for tau, a in zip(group, paper.standardized(paper.rewards(group)), strict=True)
        ]

    for problem in (ONE, TWO):
        found = scene_of(Setting(problem, 2)).by_group(coefficients)

        def wins(mdp, policy, _):
            outcomes = [(mdp.total_return(tau.tokens), p) for tau, p in exact.distribution(mdp, policy)]

            def chance(tokens):
                return sum(p * np.sign(mdp.reward(tokens) - other) for other, p in outcomes) / math.sqrt(2)

            return exact.objective_gradient(replace(mdp, reward=chance), policy)

        close(found, problem.mean_over_prompts(wins))
        assert cosine(found, CLAIMS["gspo"].gradient(Setting(problem, 2), 0.0)) < 0.97


# --- published digits -----------------------------------------------------------------------------------------------


def grouped(credit, weight, group_size):
    """E of A_i w_i Σ_t ∇log π on toy C, by the parts that the claims are made of."""

    def coefficients(group):
        lengths = np.array([tau.length for tau in group])
        credits = credit(paper.rewards(group))
        return [np.full(tau.length, a * w) for tau, a, w in zip(group, credits, weight(lengths), strict=True)]

    return scene_of(Setting(ONE, group_size)).by_group(coefficients)


def by_population(returns):
    return paper.standardized(returns) * math.sqrt(len(returns) / (len(returns) - 1))


@pytest.mark.parametrize("group_size", [2, 3])
def test_standardised_rewards_of_toy_c(group_size):
    found = grouped(by_population, lambda lengths: np.full(len(lengths), 1 / len(lengths)), group_size)
    assert_digits(cosine(found, C_OBJECTIVE_GRADIENT), C_STANDARDIZED_COSINES[group_size], 8)
    if group_size == 2:
        assert_digits(found, C_STANDARDIZED, 10)


def test_means_of_toy_c():
    each = grouped(paper.less_others, lambda lengths: 1 / (len(lengths) * lengths), 2)
    assert_digits(each, C_SEQUENCE_MEAN, 10)
    assert_digits(cosine(each, C_OBJECTIVE_GRADIENT), C_SEQUENCE_MEAN_COSINE, 8)
    tokens = grouped(paper.less_others, lambda lengths: np.full(len(lengths), 1 / lengths.sum()), 2)
    assert_digits(cosine(tokens, C_OBJECTIVE_GRADIENT), C_TOKEN_MEAN_COSINE, 5)


@pytest.mark.parametrize("group_size", [2, 3])
def test_factors_of_a_mean_at_each_step_of_toy_c(group_size):
    scene = scene_of(Setting(ONE, group_size))
    found = [step_factor(scene, scene.prompts[0], t) for t in (0, 1)]
    assert_digits(found, C_ALIVE_MEAN_FACTORS[group_size], 10)


@pytest.mark.parametrize("lam", C_WRONG_CRITIC_BIAS)
def test_the_bias_of_a_wrong_critic_of_toy_c(lam):
    (prompt,) = scene_of(Setting(ONE, 1)).prompts
    found = prompt.gradient(lambda tau: paper.gae(tau, lam)) - CLAIMS["vpg"].gradient(Setting(ONE, 1), 0.0)
    assert_digits(np.abs(found).max(), C_WRONG_CRITIC_BIAS[lam], 10)


@pytest.mark.parametrize(
    ("weight", "digits"),
    [
        (lambda log_ratio: np.exp(log_ratio.sum()), C_OBJECTIVE_GRADIENT),
        (np.exp, C_TOKEN_IMPORTANCE),
        (lambda log_ratio: min(math.exp(log_ratio.sum()), 1.2), C_SEQUENCE_TRUNCATED),
        (lambda log_ratio: math.exp(log_ratio.sum()) * (log_ratio.sum() <= math.log(1.2)), C_SEQUENCE_MASKED),
    ],
    ids=["sequence", "token", "truncated", "masked"],
)
def test_corrections_of_toy_c(weight, digits):
    """Target π, sampled from μ, Ψ = R."""
    (prompt,) = scene_of(Setting(ONE, 1, "mismatch")).prompts
    assert_digits(prompt.gradient(lambda tau: weight(tau.log_correction) * tau.reward), digits, 10)


def binary(p):
    """One token, right with probability p; its logit is the parameter that counts."""
    mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: float(tokens[0]))
    table = SoftmaxTable([()], [[0.0, math.log(p / (1 - p))]])
    return Problem((((), mdp),), table, table, table, lambda prompt, prefix: 0.0)


@pytest.mark.parametrize("p", [0.05, 0.1, 0.25, 0.5])
def test_what_standardising_two_rewards_does(p):
    """f_G(p) times the gradient of p, at G = 4; with the sample deviation √((G−1)/G) of that."""

    def coefficients(group):
        return [np.full(1, a / len(group)) for a in paper.standardized(paper.rewards(group))]

    found = scene_of(Setting(binary(p), 4)).by_group(coefficients)
    factor = BINARY_STANDARDIZED_FACTORS[4][p] * math.sqrt(3 / 4)
    np.testing.assert_allclose(found, factor * p * (1 - p) * np.array([-1, 1]), atol=1e-10)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_leaving_out_unmixed_groups_reweights_by_how_many_are_left(p):
    """DAPO draws other prompts for them: then f_G(p) / P(mixed); here the batch is simply smaller."""
    problem, claim = binary(p), CLAIMS["dapo"]
    drawn = claim.predict(Setting(problem, 4), 0.0)
    mixed = 1 - p**4 - (1 - p) ** 4
    factor = BINARY_STANDARDIZED_FACTORS[4][p] * math.sqrt(3 / 4)
    close(drawn / mixed, factor / mixed * p * (1 - p) * np.array([-1, 1]), atol=1e-9)


def test_the_overlong_charge():
    """L_max 100, c 20: nothing to 80, halfway at 90, −1 from 100 on."""
    assert [overlong(n, max_length=100, buffer=20) for n in (80, 90, 100, 101)] == [0.0, -0.5, -1.0, -1.0]
