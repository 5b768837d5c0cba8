"""Which groups train, what length costs, and what conditioning on mixed groups does to the gradient."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung import exact
from rung.credit import group_standardized, leave_one_out
from rung.errors import InvalidInput
from rung.exact import SoftmaxTable, TokenMDP
from rung.selection import mixed_groups, overlong_penalty
from tests.batches import INF, NAN, close, f64, flags
from tests.toys import BINARY_STANDARDIZED_FACTORS, TOY_C, assert_digits


def test_groups_whose_returns_differ_train():
    returns, groups = f64([1.0, 0.5, 0.0, 0.5, 1.0, 0.5]), torch.tensor([7, -3, 7, -3, 7, 40])
    assert mixed_groups(returns, groups).tolist() == [True, False, True, False, True, False]


def test_rows_without_a_valid_return_neither_train_nor_decide():
    """The first group differs only by its invalid row, the second is mixed without its own, the third has one left."""
    returns = f64([1.0, 1.0, NAN, 0.0, 2.0, INF, 3.0, 9.0])
    groups = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    valid = flags([1, 1, 0, 1, 1, 0, 1, 0])
    assert mixed_groups(returns, groups, valid).tolist() == [False] * 3 + [True, True, False] + [False] * 2


def test_nothing_is_mixed_in_an_empty_batch():
    empty = torch.zeros(0, dtype=torch.int64)
    assert mixed_groups(empty.double(), empty).tolist() == []
    assert mixed_groups(f64([1.0, 2.0]), torch.tensor([3, 3]), flags([0, 0])).tolist() == [False, False]


@pytest.mark.parametrize(
    ("returns", "mixed"),
    [
        ([0.3, 0.1 + 0.2], False),
        ([0.0, 0.99e-6], False),
        ([0.0, 1e-6], True),  # below it is rounding, at it a difference
        ([0.0, 1.5e-6], True),
        ([0.0, -1.5e-6], True),
        ([1e9, 1e9 + 1.0], False),
        ([-1e9, -1e9 + 1.0], False),  # measured against the returns' size, whatever their sign
        ([1e9, 1e9 + 2000.0], True),
    ],
)
def test_case_B3_rounding_is_no_difference(returns, mixed):
    assert mixed_groups(f64(returns), torch.tensor([0, 0])).tolist() == [mixed, mixed]


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 1.0, -2.0]), st.sampled_from([4, -1, 9]), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_a_row_trains_where_its_group_has_two_different_valid_returns(rows):
    """Plain Python, and the same as: somebody in the group has a credit by comparison."""
    returns, groups = f64([r for r, _, _ in rows]), torch.tensor([g for _, g, _ in rows])
    valid = torch.tensor([v for _, _, v in rows])
    kept = mixed_groups(returns, groups, valid)
    credit = leave_one_out(returns, groups, valid)
    for i, (_, group, on) in enumerate(rows):
        others = {r for r, g, v in rows if g == group and v}
        assert kept[i].item() == (on and len(others) > 1)
        assert kept[i].item() == (on and bool((credit[groups == group] != 0).any()))


def test_case_E9_ids_are_integers_and_validity_is_boolean():
    returns, groups = f64([1.0, 0.0]), torch.tensor([0, 0])
    for arguments in (
        (returns, groups.double()),
        (returns, groups, f64([1.0, 1.0])),
        (returns.unsqueeze(0), groups.unsqueeze(0)),
    ):
        with pytest.raises(InvalidInput, match="group ids integers and valid boolean"):
            mixed_groups(*arguments)


@pytest.mark.parametrize("odd", ["returns", "groups", "valid"])
def test_one_argument_of_another_length_is_named(odd):
    arguments = {"returns": f64([1.0, 0.0]), "groups": torch.tensor([0, 0]), "valid": flags([1, 1])}
    arguments[odd] = arguments[odd][:1]
    with pytest.raises(InvalidInput, match=rf"same shape.*{odd} \(1,\)"):
        mixed_groups(**arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_returns_of_any_type_are_compared_in_float64(dtype):
    returns = torch.tensor([3.0, 4.0, 5.0, 5.0]).to(dtype)
    assert mixed_groups(returns, torch.tensor([0, 0, 1, 1])).tolist() == [True, True, False, False]


def conditional(mdp, policy, group_size, credit):
    """(P(mixed), E[1/G Σ_i A_i ∇log π(τ_i) | mixed]) over every group that could be drawn."""
    groups = torch.zeros(group_size, dtype=torch.int64)

    def estimator(group):
        returns = f64([mdp.total_return(tau.tokens) for tau in group])
        kept = mixed_groups(returns, groups).double().numpy()
        scores = np.array([exact.sequence_score(policy, tau) for tau in group])
        return np.concatenate([kept[:1], (kept * credit(returns, groups).numpy()) @ scores / group_size])

    mean = exact.expectation(mdp, policy, group_size, estimator).mean
    return mean[0], mean[1:] / mean[0]


@pytest.mark.parametrize("group_size", [2, 3])
def test_dynamic_sampling_divides_the_gradient_by_the_chance_of_a_mixed_group(group_size):
    """Several reward values: E[ĝ | mixed] = ∇J / P(mixed) for leave-one-out, as the groups left out had no credit."""
    mdp, policy = TOY_C.mdp, TOY_C.policy
    same = {}
    for tau, p in exact.distribution(mdp, policy):
        same[mdp.total_return(tau.tokens)] = same.get(mdp.total_return(tau.tokens), 0.0) + p
    chance, found = conditional(mdp, policy, group_size, leave_one_out)
    assert chance == pytest.approx(1 - sum(p**group_size for p in same.values()), abs=1e-12)
    np.testing.assert_allclose(found * chance, exact.objective_gradient(mdp, policy), rtol=0, atol=1e-12)


def test_dynamic_sampling_reweights_a_prompt_by_how_seldom_it_is_mixed():
    """A coin of p = 0.1, G = 8: f_8(p) / (1 − p⁸ − (1−p)⁸) = 4.0870150654 times ∇p; P(mixed) = 0.56953278."""
    p = 0.1
    mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: float(tokens[0]))
    policy = SoftmaxTable([()], [[math.log(1 - p), math.log(p)]])
    chance, found = conditional(mdp, policy, 8, partial(group_standardized, correction=0))
    assert_digits(chance, 0.56953278, 8)
    factor = found / (p * (1 - p))
    assert_digits(factor, [-4.0870150654, 4.0870150654], 10)
    assert_digits(factor[1] * chance, BINARY_STANDARDIZED_FACTORS[8][0.1], 10)


def test_overlong_penalty_by_hand():
    """L_max 100, c 20: free up to 80, a twentieth a token from there, −1 from 100 on."""
    lengths = torch.tensor([0, 50, 80, 81, 90, 99, 100, 101, 5000])
    wanted = [0.0, 0.0, 0.0, -0.05, -0.5, -0.95, -1.0, -1.0, -1.0]
    found = overlong_penalty(lengths, max_length=100, buffer=20)
    close(found, wanted)
    assert found.dtype == torch.float64


def test_overlong_penalty_with_the_papers_settings():
    """L_max 20480, c 4096: free up to 16384, half the penalty at 18432."""
    lengths = torch.tensor([16384, 16385, 18432, 20480])
    close(overlong_penalty(lengths, max_length=20480, buffer=4096), [0.0, -1 / 4096, -0.5, -1.0])


@given(st.integers(0, 300), st.integers(1, 200), st.integers(1, 200))
def test_overlong_penalty_is_its_three_cases(length, max_length, buffer):
    if buffer > max_length:
        return
    free = max_length - buffer
    wanted = 0.0 if length <= free else (free - length) / buffer if length <= max_length else -1.0
    close(overlong_penalty(torch.tensor([length]), max_length=max_length, buffer=buffer), [wanted])


def test_lengths_and_buffers_that_make_no_sense_are_refused():
    for lengths in (f64([3.0]), torch.tensor([[3]]), flags([1, 0])):
        with pytest.raises(InvalidInput, match="integers"):
            overlong_penalty(lengths, max_length=10, buffer=2)
    for buffer in (0, -1, 11):
        with pytest.raises(InvalidInput, match="0 < buffer ≤ max_length"):
            overlong_penalty(torch.tensor([3]), max_length=10, buffer=buffer)
