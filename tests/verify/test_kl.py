"""`rung verify kl`: every claim holds, the digits are the recorded ones, and a wrong number becomes a sentence."""

import numpy as np
import pytest

from rung.verify.findings import Findings
from rung.verify.kl import claims
from rung.verify.kl.cells import Cell, World
from rung.verify.kl.facts import both_placements
from rung.verify.kl.tables import cells, examine, oracle_of, recognize, survey
from rung.verify.problems import Problem, one_prompt
from rung.verify.three_tokens import three_tokens
from tests.toys import (
    A_GRADIENT_KL_POLICY_REFERENCE,
    A_GRADIENT_KL_REFERENCE_POLICY,
    A_GRADIENT_OF_MEAN_K2,
    A_K2_IN_REWARD,
    A_K3_IN_REWARD,
    A_KL_POLICY_REFERENCE,
    A_MEAN_K2,
    A_OFF_POLICY_K1_IN_LOSS,
    A_OFF_POLICY_K2_IN_LOSS,
    A_OFF_POLICY_K3_IN_LOSS,
    A_VARIANCE_K1,
    A_VARIANCE_K2,
    A_VARIANCE_K3,
    B_FORWARD_KL_ON_POLICY_PREFIXES,
    B_FUTURE_FIRST_ROW,
    B_GRADIENT_KL_POLICY_REFERENCE,
    B_IMMEDIATE_KL_POLICY_REFERENCE,
    B_KL_POLICY_REFERENCE,
    B_MEAN_SEQUENCE_K2,
    B_MEAN_TOKEN_K2,
    B_REVERSE_KL_ON_BEHAVIOUR_PREFIXES,
    B_TRACE_K1_TO_GO,
    B_TRACE_K1_TOTAL,
    B_TRACE_RAO_BLACKWELL,
    B_VARIANCE_K1,
    B_VARIANCE_RAO_BLACKWELL,
    B_VARIANCE_SEQUENCE_K3,
    B_VARIANCE_TOKEN_K3,
    TOY_A,
    TOY_B,
    TOY_LONG,
    assert_digits,
)

WEIGHTS = (None, "detached", "live")


def problem(toy):
    return Problem((((), toy.mdp),), toy.policy, toy.reference, toy.behaviour, lambda prompt, prefix: 0.0)


A, B = problem(TOY_A), problem(TOY_B)


def measure(where, name, *, on_policy=True):
    """A cell by its words: "k3 loss token live"."""
    estimator, placement, level, *weight = name.split()
    return World(where, on_policy).measure(Cell(estimator, placement, level, weight[0] if weight else None))


@pytest.fixture(scope="module")
def findings():
    return survey()


def test_every_claim_holds(findings):
    assert isinstance(findings, Findings)
    assert findings.failures == ()


def test_the_tables_hold_every_cell_once(findings):
    wanted = {
        "On policy: samples of π": claims.ON_POLICY,
        "Off policy: samples of μ": claims.OFF_POLICY,
        "Off policy: k at each token, under the weight W of the whole sequence": claims.MIXED,
    }
    tables = {table.title: table for table in findings.tables}
    for title, table in wanted.items():
        names = [str(cell) for cell, _ in cells(table)]
        assert len(set(names)) == len(names)
        assert [row[0] for row in tables[title].rows] == names
    combinations = {
        (p, level, w) for p in ("loss", "reward") for level in ("token", "sequence") for w in WEIGHTS
    }
    assert set(claims.ON_POLICY) == set(claims.OFF_POLICY) == combinations


def test_tables_are_regular_and_fit_a_terminal(findings):
    for table in findings.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
    for chart in findings.charts:
        assert all(len(line.x) == len(line.y) for line in chart.lines)
    for table in findings.tables[1:4]:
        longest = [max(len(str(row[i])) for row in table.rows) for i in (0, 3)]
        assert sum(longest) + 2 * 5 + 3 * 6 <= 82  # beside three numbers of three digits


def test_the_problem_is_the_toy_of_three_tokens():
    own, toy = three_tokens(), problem(TOY_LONG)
    assert [s.tokens for s in own.sequences] == [s.tokens for s in toy.sequences]
    assert [s.reward for s in own.sequences] == [s.reward for s in toy.sequences]
    for name in ("policy", "reference", "behaviour"):
        np.testing.assert_array_equal(getattr(own, name).parameters, getattr(toy, name).parameters)


@pytest.mark.parametrize("where", [three_tokens(), one_prompt()], ids=["LONG", "C"])
@pytest.mark.parametrize("on_policy", [True, False])
def test_no_two_candidates_are_alike(where, on_policy):
    """Otherwise a name would mean nothing. Nor is one a multiple of another."""
    candidates = oracle_of(where, on_policy=on_policy).candidates(on_policy=on_policy)
    directions = {name: g / np.linalg.norm(g) for name, g in candidates.items()}
    for name, g in directions.items():
        for other, h in directions.items():
            assert name == other or abs(g @ h) < 0.9999, (name, other)


def test_the_claims_hold_on_the_shorter_toy_too():
    for table, on_policy in ((claims.ON_POLICY, True), (claims.MIXED, False)):
        assert examine(one_prompt(), table, on_policy=on_policy)[1] == []


def test_two_tokens_are_too_few_to_tell_a_token_weight_from_a_whole_one():
    """What comes after the first token of two is its divergence, which needs no sampling: the full future part."""
    _, failures = examine(one_prompt(), claims.OFF_POLICY, on_policy=False)
    assert failures == [
        f"off policy, full reward token {weight}: its expected gradient is {claims.FUTURE}, not {claims.NONE}"
        for weight in ("sg(w)", "w")
    ]


def test_a_wrong_claim_becomes_a_sentence():
    wrong = {("loss", "token", None): (claims.REVERSE, claims.FORWARD_AT_PI, claims.REVERSE, claims.NONE)}
    _, failures = examine(one_prompt(), wrong, on_policy=True)
    assert len(failures) == 4
    assert failures[0] == "on policy, k1 loss token: its expected gradient is 0, not ∇KL(π‖ref)"
    assert "is ∇KL(π‖ref) at π, not none of these" in failures[3]


def test_gradients_are_named_by_number():
    candidates = {"one": np.array([1.0, 0.0]), "same": np.array([1.0, 1e-12]), "other": np.array([1.0, 1e-6])}
    assert recognize(np.array([1.0, 0.0]), candidates) == "one = same"
    assert recognize(np.array([1.0, 1e-6]), candidates) == "other"
    assert recognize(np.array([0.0, 1e-12]), candidates) == claims.ZERO
    assert recognize(np.array([-1.0, 0.0]), candidates) == claims.NONE


# --- recorded digits, toy A: one step ------------------------------------------------------------------------------


def test_digits_of_one_step_as_a_value():
    for name, mean, variance in (
        ("k1", A_KL_POLICY_REFERENCE, A_VARIANCE_K1),
        ("k2", A_MEAN_K2, A_VARIANCE_K2),
        ("k3", A_KL_POLICY_REFERENCE, A_VARIANCE_K3),
        ("full", A_KL_POLICY_REFERENCE, 0.0),
    ):
        found = measure(A, f"{name} loss token")
        assert_digits((found.mean, found.variance), (mean, variance), 13)


def test_digits_of_one_step_on_policy():
    for name, recorded in (
        ("k1 loss token", np.zeros(3)),
        ("k2 loss token", A_GRADIENT_KL_POLICY_REFERENCE),
        ("k3 loss token", A_GRADIENT_KL_REFERENCE_POLICY),
        ("k1 reward token", A_GRADIENT_KL_POLICY_REFERENCE),
        ("k2 reward token", A_K2_IN_REWARD),
        ("k3 reward token", A_K3_IN_REWARD),
        ("full loss token", A_GRADIENT_KL_POLICY_REFERENCE),
        ("full reward token", np.zeros(3)),
        ("k2 loss token live", A_GRADIENT_OF_MEAN_K2),
    ):
        assert_digits(measure(A, name).gradient, recorded, 12)


def test_digits_of_one_step_off_policy():
    for name, recorded in (
        ("k1 loss token", A_OFF_POLICY_K1_IN_LOSS),
        ("k2 loss token", A_OFF_POLICY_K2_IN_LOSS),
        ("k1 reward token", A_OFF_POLICY_K2_IN_LOSS),
        ("k3 loss token", A_OFF_POLICY_K3_IN_LOSS),
        ("k1 loss token live", A_GRADIENT_KL_POLICY_REFERENCE),
        ("k3 loss token live", A_GRADIENT_KL_POLICY_REFERENCE),
        ("k2 loss token detached", A_GRADIENT_KL_POLICY_REFERENCE),
        ("k1 reward token detached", A_GRADIENT_KL_POLICY_REFERENCE),
        ("k3 loss token detached", A_GRADIENT_KL_REFERENCE_POLICY),
        ("k2 loss token live", A_GRADIENT_OF_MEAN_K2),
    ):
        assert_digits(measure(A, name, on_policy=False).gradient, recorded, 12)


# --- recorded digits, toy B: two steps -----------------------------------------------------------------------------

FUTURE = np.concatenate([B_FUTURE_FIRST_ROW, np.zeros(9)])


def test_digits_of_two_steps_as_a_value():
    for name, mean, variance in (
        ("k1 loss token", B_KL_POLICY_REFERENCE, B_VARIANCE_K1),
        ("k3 loss token", B_KL_POLICY_REFERENCE, B_VARIANCE_TOKEN_K3),
        ("k3 loss sequence", B_KL_POLICY_REFERENCE, B_VARIANCE_SEQUENCE_K3),
        ("full loss token", B_KL_POLICY_REFERENCE, B_VARIANCE_RAO_BLACKWELL),
    ):
        found = measure(B, name)
        assert_digits(found.mean, mean, 12)
        assert_digits(found.variance, variance, 10)
    assert_digits(measure(B, "k2 loss token").mean, B_MEAN_TOKEN_K2, 12)
    assert_digits(measure(B, "k2 reward sequence").mean, B_MEAN_SEQUENCE_K2, 12)


def test_digits_of_two_steps_on_policy():
    for name, recorded in (
        ("k2 loss token", B_IMMEDIATE_KL_POLICY_REFERENCE),
        ("k3 loss token", B_FORWARD_KL_ON_POLICY_PREFIXES),
        ("k2 loss sequence", B_GRADIENT_KL_POLICY_REFERENCE),
        ("k1 reward token", B_GRADIENT_KL_POLICY_REFERENCE),
        ("k1 reward sequence", B_GRADIENT_KL_POLICY_REFERENCE),
        ("full reward token", FUTURE),
        ("full loss token", B_IMMEDIATE_KL_POLICY_REFERENCE),
        ("full loss sequence live", B_GRADIENT_KL_POLICY_REFERENCE),
    ):
        assert_digits(measure(B, name).gradient, recorded, 10)


def test_digits_of_two_steps_off_policy():
    for name, recorded in (
        ("k3 loss token live", B_REVERSE_KL_ON_BEHAVIOUR_PREFIXES),
        ("k1 loss mixed live", B_GRADIENT_KL_POLICY_REFERENCE),
        ("k3 loss mixed live", B_GRADIENT_KL_POLICY_REFERENCE),
    ):
        assert_digits(measure(B, name, on_policy=False).gradient, recorded, 10)


def test_as_a_value_k3_scatters_less_on_tokens_and_more_on_sequences():
    where = three_tokens()
    k1, of_tokens, of_sequences = (
        measure(where, name).variance for name in ("k1 loss token", "k3 loss token", "k3 loss sequence")
    )
    assert of_tokens < k1 < of_sequences


def test_digits_of_the_noise_of_two_steps():
    assert_digits(measure(B, "k1 reward sequence").trace, B_TRACE_K1_TOTAL, 10)
    assert_digits(measure(B, "k2 loss sequence").trace, B_TRACE_K1_TOTAL, 10)
    assert_digits(measure(B, "k1 reward token").trace, B_TRACE_K1_TO_GO, 10)
    gradient, trace = both_placements(World(B, on_policy=True))
    assert_digits(gradient, B_GRADIENT_KL_POLICY_REFERENCE, 10)
    assert_digits(trace, B_TRACE_RAO_BLACKWELL, 10)
