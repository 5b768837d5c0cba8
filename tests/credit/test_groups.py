import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.credit import group_centered, group_standardized, leave_one_out, whitened_group_centered
from rung.errors import InvalidInput
from tests.batches import INF, NAN, close, f64, flags

ALL = [leave_one_out, group_centered, group_standardized]
JUNK = [NAN, INF, -INF, 1000.0]


def ids(values):
    return torch.tensor(values, dtype=torch.int64)


def test_leave_one_out_by_hand():
    """Others' means: (2+6)/2 = 4, (1+6)/2 = 3.5, (1+2)/2 = 1.5."""
    close(leave_one_out(f64([1.0, 2.0, 6.0]), ids([5, 5, 5])), [-3.0, -1.5, 4.5])


def test_group_centered_by_hand():
    close(group_centered(f64([1.0, 2.0, 6.0]), ids([5, 5, 5])), [-2.0, -1.0, 3.0])


def test_group_standardized_by_hand():
    """Deviations −2, −1, 3; squares sum to 14."""
    returns, group = f64([1.0, 2.0, 6.0]), ids([5, 5, 5])
    for correction, std in ((1, math.sqrt(7)), (0, math.sqrt(14 / 3))):
        close(group_standardized(returns, group, correction=correction), [-2 / std, -1 / std, 3 / std])
        with_epsilon = group_standardized(returns, group, correction=correction, epsilon=0.5)
        close(with_epsilon, [-2 / (std + 0.5), -1 / (std + 0.5), 3 / (std + 0.5)])


def test_the_sample_standard_deviation_is_the_default():
    close(group_standardized(f64([1.0, 3.0]), ids([0, 0])), [-math.sqrt(0.5), math.sqrt(0.5)])


@st.composite
def batches(draw):
    """Returns with ties, group ids in any order and of any size, and which rows are valid."""
    size = draw(st.integers(1, 12))
    returns = draw(st.lists(st.sampled_from([-2.0, 0.0, 0.25, 1.0, 7.5]), min_size=size, max_size=size))
    groups = draw(st.lists(st.sampled_from([-3, 0, 4, 10**12]), min_size=size, max_size=size))
    valid = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return returns, groups, valid


def reference(rows, function):
    """For each valid row of a group of two or more: function(own return, the others' returns, all returns)."""
    expected = []
    for i, (own, group, valid) in enumerate(rows):
        others = [r for j, (r, g, v) in enumerate(rows) if j != i and g == group and v]
        expected.append(function(own, others, [own, *others]) if valid and others else 0.0)
    return expected


@given(batches(), st.sampled_from(JUNK))
def test_every_credit_is_its_definition_over_the_valid_rows_of_the_group(batch, junk):
    """Plain Python, row by row, by id. What stands in an invalid row changes nothing, NaN included."""
    returns, groups, valid = batch
    rows = list(zip(returns, groups, valid, strict=True))
    arguments = (f64([r if v else junk for r, _, v in rows]), ids(groups), torch.tensor(valid))

    def standardized(own, others, everyone):
        spread = statistics.stdev(everyone)
        return (own - statistics.fmean(everyone)) / spread if spread else 0.0

    close(leave_one_out(*arguments), reference(rows, lambda own, others, _: own - statistics.fmean(others)))
    close(
        group_centered(*arguments), reference(rows, lambda own, _, everyone: own - statistics.fmean(everyone))
    )
    close(group_standardized(*arguments), reference(rows, standardized))


def test_case_B1_groups_by_id_not_by_position():
    """Two prompts, three samples each, arriving in turns; then in every rotation."""
    returns, groups = f64([1.0, 5.0, 0.0, 4.0, 0.0, 6.0]), ids([1, 2, 1, 2, 1, 2])
    root = math.sqrt(1 / 3)
    expected = f64([2 * root, 0.0, -root, -1.0, -root, 1.0])
    close(group_standardized(returns, groups), expected)
    close(leave_one_out(returns, groups), [1.0, 0.0, -0.5, -1.5, -0.5, 1.5])
    for shift in range(6):
        rolled = group_standardized(returns.roll(shift), groups.roll(shift))
        close(rolled, expected.roll(shift))


@pytest.mark.parametrize("function", ALL)
def test_case_B3_groups_without_a_comparison_get_zero(function):
    """(i) one member, (ii) all equal, (iii) equal up to rounding: no signal, on every path."""
    close(function(f64([2.0]), ids([0])), [0.0])
    close(function(f64([1.0, 1.0, 1.0, 1.0]), ids([0, 0, 0, 0])), [0.0] * 4)
    assert function(f64([0.3, 0.1 + 0.2]), ids([0, 0])).abs().max().item() < 1e-15
    close(function(f64([5.0, 2.0, 7.0]), ids([0, 1, 2])), [0.0] * 3)


def test_case_B3_rounding_is_measured_against_the_mean():
    for mean in (1e9, -1e9):
        close(group_standardized(f64([mean, mean + 1e-6]), ids([0, 0])), [0.0, 0.0])
        close(group_standardized(f64([mean, mean + 1.0]), ids([0, 0])), [0.0, 0.0])  # 0.7, below 1e-6 · 1e9
    root = math.sqrt(0.5)
    close(group_standardized(f64([0.0, 2e-6]), ids([0, 0])), [-root, root])  # spread 1.4e-6
    close(group_standardized(f64([0.0, 1e-6]), ids([0, 0])), [0.0, 0.0])  # 0.7e-6
    close(group_standardized(f64([0.0, 2e-6]), ids([0, 0]), correction=0), [-1.0, 1.0])  # 1e-6 is not below
    close(group_standardized(f64([0.3, 0.1 + 0.2]), ids([0, 0]), correction=0), [0.0, 0.0])


def test_case_B3_one_odd_group_does_not_disturb_another():
    returns, groups = f64([1.0, 2.0, 3.0, 1.0, 9.0]), ids([0, 1, 1, 0, 2])
    close(leave_one_out(returns, groups), [0.0, -1.0, 1.0, 0.0, 0.0])
    root = math.sqrt(0.5)
    close(group_standardized(returns, groups), [0.0, -root, root, 0.0, 0.0])


@pytest.mark.parametrize("reward", [10.0, 1000.0, NAN, INF])
def test_case_B12_a_row_without_a_token_moves_no_baseline(reward):
    returns, groups, valid = f64([reward, 1.0, 0.0]), ids([0, 0, 0]), flags([0, 1, 1])
    close(group_centered(returns, groups, valid), [0.0, 0.5, -0.5])
    close(leave_one_out(returns, groups, valid), [0.0, 1.0, -1.0])
    root = math.sqrt(0.5)
    close(group_standardized(returns, groups, valid), [0.0, root, -root])


@pytest.mark.parametrize("function", ALL)
def test_case_H10_a_missing_reward_is_not_a_zero(function):
    """Rewards 1, missing, 1: nothing to learn. As a zero it would give +⅓, −⅔, +⅓."""
    close(function(f64([1.0, NAN, 1.0]), ids([0, 0, 0]), flags([1, 0, 1])), [0.0, 0.0, 0.0])


@pytest.mark.parametrize("function", ALL)
def test_an_empty_batch_has_empty_credit(function):
    close(function(f64([]), ids([])), f64([]))


@pytest.mark.parametrize("function", ALL)
def test_case_H11_arguments_that_would_broadcast_are_refused(function):
    with pytest.raises(InvalidInput, match=r"must be \[B\]"):
        function(f64([[0.5], [1.5]]), ids([0, 0]))
    with pytest.raises(InvalidInput, match=r"must be \[B\]"):
        function(f64([0.5, 1.5]), ids([0]))
    with pytest.raises(InvalidInput, match=r"must be \[B\]"):
        function(f64([0.5, 1.5]), ids([0, 0]), flags([[1], [1]]))


@pytest.mark.parametrize("function", ALL)
def test_case_E9_group_ids_are_integers_and_validity_is_boolean(function):
    with pytest.raises(InvalidInput, match="integers"):
        function(f64([0.5, 1.5]), f64([0.0, 0.0]))
    with pytest.raises(InvalidInput, match="boolean"):
        function(f64([0.5, 1.5]), ids([0, 0]), ids([1, 1]))


# --- whitened after centring -----------------------------------------------------------------------------------------


def test_whitened_group_centered_by_hand():
    """Groups (1, 3) and (5, 9): A = −1, 1, −2, 2 on 2, 1, 1, 1 tokens. Mean over tokens −1/5, variance 11/5 − 1/25."""
    returns, groups = f64([1.0, 5.0, 3.0, 9.0]), ids([7, -2, 7, -2])
    mask = flags([[1, 0, 1], [1, 0, 0], [0, 1, 0], [1, 0, 0]])
    std = math.sqrt(11 / 5 - 1 / 25)
    expected = f64([[-0.8, 0.0, -0.8], [-1.8, 0.0, 0.0], [0.0, 1.2, 0.0], [2.2, 0.0, 0.0]])
    close(whitened_group_centered(returns, groups, mask), expected / std)
    close(whitened_group_centered(returns, groups, mask, correction=1), expected / (std * math.sqrt(5 / 4)))


@pytest.mark.parametrize("junk", JUNK)
def test_case_B12_rows_that_cannot_be_compared_enter_no_whitening(junk):
    """An invalid row, one without a token, and one whose group has no other: 0, and nobody sees their tokens.

    A = ½, ½, −½ in group 0 and 0, 0 in group 8: mean 1/10, variance 3/20 − 1/100.
    """
    returns, groups = f64([1.0, junk, 5.0, 0.0, junk, 4.0, 4.0]), ids([0, 0, 3, 0, 0, 8, 8])
    mask = flags([[1, 1], [1, 1], [1, 1], [1, 0], [0, 0], [1, 0], [0, 1]])
    found = whitened_group_centered(returns, groups, mask, flags([1, 0, 1, 1, 1, 1, 1]))
    expected = f64([[0.4, 0.4], [0, 0], [0, 0], [-0.6, 0], [0, 0], [-0.1, 0], [0, -0.1]])
    close(found, expected / math.sqrt(0.14))


def test_case_B1_whitening_groups_by_id_not_by_position():
    """Two prompts in turns; centred (2/3, −1/3, −1/3) and (0, −1, 1), one token each; then in every rotation."""
    returns, groups = f64([1.0, 5.0, 0.0, 4.0, 0.0, 6.0]), ids([1, 2, 1, 2, 1, 2])
    mask = torch.ones(6, 1, dtype=torch.bool)
    std = math.sqrt((2 / 3 + 2) / 6)
    expected = f64([2 / 3, 0.0, -1 / 3, -1.0, -1 / 3, 1.0]).unsqueeze(1) / std
    for shift in range(6):
        found = whitened_group_centered(returns.roll(shift), groups.roll(shift), mask)
        close(found, expected.roll(shift, 0))


@pytest.mark.parametrize("correction", [0, 1])
def test_case_B3_whitening_groups_without_a_difference_gives_zero(correction):
    mask = flags([[1, 1], [1, 0]])
    for returns in ([2.0, 2.0], [0.3, 0.1 + 0.2]):
        found = whitened_group_centered(f64(returns), ids([0, 0]), mask, correction=correction)
        close(found, [[0.0, 0.0], [0.0, 0.0]])
    close(whitened_group_centered(f64([2.0]), ids([0]), flags([[1]]), correction=correction), [[0.0]])
