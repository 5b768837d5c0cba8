"""Policies: probabilities and Jacobians against closed forms and finite differences."""

import numpy as np
import pytest

from rung.errors import InvalidInput
from rung.exact import FixedPolicy, LogLinear, SoftmaxTable, after, evaluate
from tests.exact.helpers import assert_is_derivative
from tests.toys import SHARED_POLICY, TOY_A, TOY_LONG


def test_softmax_probabilities_by_hand():
    # e^0.5, e^−0.3, e^1 = 1.6487212707, 0.7408182207, 2.7182818285; sum 5.1078213199
    probabilities = np.exp(TOY_A.policy(())[0])
    expected = np.array([1.6487212707, 0.7408182207, 2.7182818285]) / 5.1078213199
    np.testing.assert_allclose(probabilities, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("policy", [TOY_LONG.policy, SHARED_POLICY], ids=["table", "shared"])
@pytest.mark.parametrize("prefix", [(), (1,), (0, 1)])
def test_the_jacobian_is_the_finite_difference_of_the_log_probabilities(policy, prefix):
    jacobian = policy(prefix)[1]
    for token in range(3):
        assert_is_derivative(jacobian[token], lambda p, token=token: p(prefix)[0][token], policy)


@pytest.mark.parametrize("policy", [TOY_LONG.policy, SHARED_POLICY], ids=["table", "shared"])
def test_the_expected_score_is_zero(policy):
    logprobs, jacobian = policy((1, 0))
    np.testing.assert_allclose(np.exp(logprobs) @ jacobian, 0.0, rtol=0, atol=1e-15)


def test_a_table_is_the_log_linear_policy_of_its_indicator_features():
    indicator = LogLinear(
        lambda prefix: np.eye(21)[3 * TOY_LONG.policy.row_of(prefix) :][:3], TOY_LONG.policy.parameters
    )
    for prefix in TOY_LONG.mdp.prefixes():
        for ours, other in zip(TOY_LONG.policy(prefix), indicator(prefix), strict=True):
            np.testing.assert_allclose(ours, other, rtol=0, atol=1e-15)


def test_rows_stand_in_the_order_of_the_prefixes():
    table = SoftmaxTable([(1,), ()], [[0.0, 9.0], [9.0, 0.0]])
    assert table.row_of(()) == 1
    assert table(())[0][0] > table(())[0][1]
    np.testing.assert_array_equal(table.parameters, [0.0, 9.0, 9.0, 0.0])
    assert not table(())[1][:, :2].any()


def test_new_parameters_leave_the_old_table_alone():
    changed = TOY_A.policy.with_parameters([0.0, 0.0, 0.0])
    np.testing.assert_allclose(np.exp(changed(())[0]), [1 / 3] * 3, rtol=0, atol=1e-15)
    np.testing.assert_array_equal(TOY_A.policy.parameters, [0.5, -0.3, 1.0])


def test_large_logits_do_not_overflow():
    assert np.isfinite(SoftmaxTable([()], [[1e4, -1e4]])(())[0]).all()


def test_after_a_prompt_the_prompt_stands_before_every_prefix():
    table = SoftmaxTable([(8, 0), (0, 8)], [[0.0, 1.0], [5.0, 0.0]])
    for ours, other in zip(after(table, (8,))((0,)), table((8, 0)), strict=True):
        np.testing.assert_array_equal(ours, other)


def test_a_fixed_policy_has_no_parameters():
    logprobs, jacobian = FixedPolicy({(): np.log([0.25, 0.75])})(())
    np.testing.assert_allclose(np.exp(logprobs), [0.25, 0.75], rtol=0, atol=1e-15)
    assert jacobian.shape == (2, 0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((np.log([0.5, 0.4]), np.zeros((2, 1))), "sum to 0.9"),
        ((np.log([0.5, 0.5]), np.zeros((3, 1))), r"\[2\] and \[3, 1\]"),
        ((np.log([[0.5, 0.5]]), np.zeros((1, 1))), r"\[1, 2\]"),
        ((np.log([0.5, 0.5]), np.array([[np.nan], [0.0]])), "Jacobian"),
        ((np.array([np.nan, 0.0]), np.zeros((2, 1))), "sum to nan"),
        ((np.zeros(1), np.zeros((1, 1))), "has 2 tokens"),
    ],
)
def test_a_faulty_callable_is_named_where_it_is_wrong(answer, message):
    with pytest.raises(InvalidInput, match=message):
        evaluate(lambda prefix: answer, (), 2)


def test_a_derivative_of_an_impossible_token_does_not_count():
    evaluate(lambda prefix: (np.array([0.0, -np.inf]), np.array([[0.0], [np.nan]])), ())


@pytest.mark.parametrize(
    ("prefixes", "logits", "message"),
    [
        ([(), (0,)], [[0.0, 0.0]], "one row"),
        ([(), ()], [[0.0, 0.0]] * 2, "twice"),
        ([()], [[0.0, np.inf]], "finite"),
        ([()], [0.0, 0.0], "one row"),
    ],
)
def test_impossible_tables_are_refused(prefixes, logits, message):
    with pytest.raises(InvalidInput, match=message):
        SoftmaxTable(prefixes, logits)


def test_a_missing_prefix_is_named():
    with pytest.raises(InvalidInput, match=r"no row for prefix \(0, 0\)"):
        TOY_A.policy((0, 0))
    with pytest.raises(InvalidInput, match=r"no row for prefix \(0,\)"):
        FixedPolicy({})((0,))


def test_a_wrong_number_of_parameters_is_named():
    with pytest.raises(InvalidInput, match=r"3 parameters \[n\], not \[2\]"):
        TOY_A.policy.with_parameters([0.0, 0.0])
