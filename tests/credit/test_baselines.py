import math

import pytest
import torch

from rung.credit import (
    MovingAverage,
    minus_batch_mean,
    minus_constant,
    minus_greedy,
    reward_to_go_minus_batch_mean,
    reward_to_go_minus_step_mean,
    whitened_to_go,
)
from rung.errors import InvalidInput
from tests.batches import INF, NAN, close, f64, flags


def test_batch_mean_by_hand():
    close(minus_batch_mean(f64([3.0, 1.0, -1.0])), [2.0, 0.0, -2.0])


def test_batch_mean_leaves_invalid_rows_out_and_at_zero():
    for junk in (NAN, INF, 1000.0):
        close(minus_batch_mean(f64([3.0, junk, 1.0]), flags([1, 0, 1])), [1.0, 0.0, -1.0])
    close(minus_batch_mean(f64([3.0, 1.0]), flags([0, 0])), [0.0, 0.0])


def test_reward_to_go_minus_batch_mean_by_hand():
    """R = 3 and 1, mean 2; the returns from each token on are (3, 2) and (1)."""
    rewards, mask = f64([[1.0, 2.0], [1.0, NAN]]), flags([[1, 1], [1, 0]])
    close(reward_to_go_minus_batch_mean(rewards, mask), [[1.0, 0.0], [-1.0, 0.0]])


def test_the_baseline_is_a_mean_over_sequences_not_over_tokens():
    """R = 4 over three tokens and 0 over one: the mean is 2, where a mean over tokens would be 3."""
    rewards, mask = f64([[0.0, 0.0, 4.0], [0.0, NAN, NAN]]), flags([[1, 1, 1], [1, 0, 0]])
    close(reward_to_go_minus_batch_mean(rewards, mask), [[2.0, 2.0, 2.0], [-2.0, 0.0, 0.0]])


def test_invalid_rows_and_rows_without_a_token_do_not_enter_the_mean():
    rewards = f64([[0.0, 4.0], [1000.0, 1000.0], [2.0, NAN], [1000.0, NAN]])
    mask = flags([[1, 1], [0, 0], [1, 0], [1, 0]])
    expected = [[1.0, 1.0], [0.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]
    close(reward_to_go_minus_batch_mean(rewards, mask, flags([1, 1, 1, 0])), expected)


def test_case_H11_returns_and_validity_have_the_same_shape():
    with pytest.raises(InvalidInput, match="same shape"):
        minus_batch_mean(f64([[0.5], [1.5]]), flags([1, 1]))
    with pytest.raises(InvalidInput, match="boolean"):
        minus_batch_mean(f64([0.5, 1.5]), torch.tensor([1, 1]))


def test_minus_constant_by_hand():
    close(minus_constant(f64([3.0, 1.0]), baseline=0.25), [2.75, 0.75])


@pytest.mark.parametrize("junk", [NAN, INF, 1000.0])
def test_minus_greedy_by_hand(junk):
    """Each row has its own prompt's greedy return; a row without one is not valid."""
    found = minus_greedy(f64([3.0, junk, 1.0]), f64([1.0, junk, 2.5]), flags([1, 0, 1]))
    close(found, [2.0, 0.0, -1.5])
    close(minus_greedy(f64([3.0, 1.0]), f64([1.0, 2.5])), [2.0, -1.5])


def test_case_H11_greedy_returns_have_the_shape_of_the_returns():
    with pytest.raises(InvalidInput, match="same shape"):
        minus_greedy(f64([0.5, 1.5]), f64([1.0]))


STEP_REWARDS = [[1.0, 2.0, 3.0], [4.0, 0.0, NAN], [0.0, INF, NAN]]  # G = (6, 5, 3), (4, 0), (0)
STEP_MASK = [[1, 1, 1], [1, 1, 0], [1, 0, 0]]


def test_the_mean_at_each_step_is_over_those_that_have_it():
    """Means 10/3, 5/2 and 3; the last token is compared with itself alone."""
    found = reward_to_go_minus_step_mean(f64(STEP_REWARDS), flags(STEP_MASK))
    close(found, [[8 / 3, 2.5, 0.0], [2 / 3, -2.5, 0.0], [-10 / 3, 0.0, 0.0]])


def test_steps_are_the_tokens_of_the_policy_not_the_slots():
    """The same rows with tool output between their tokens, at other slots in each."""
    rewards = f64([[1.0, NAN, 2.0, NAN, 3.0], [NAN, 4.0, NAN, NAN, 0.0], [NAN, NAN, NAN, 0.0, NAN]])
    mask = flags([[1, 0, 1, 0, 1], [0, 1, 0, 0, 1], [0, 0, 0, 1, 0]])
    found = reward_to_go_minus_step_mean(rewards, mask)
    close(found, [[8 / 3, 0, 2.5, 0, 0.0], [0, 2 / 3, 0, 0, -2.5], [0, 0, 0, -10 / 3, 0]])


def test_case_B12_rows_without_a_token_or_reward_are_in_no_mean_at_a_step():
    rewards = f64(
        [[1.0, 2.0, 3.0], [4.0, 0.0, NAN], [1000.0, 1000.0, 1000.0], [1000.0, NAN, NAN], [0.0, INF, NAN]]
    )
    mask = flags([[1, 1, 1], [1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 0]])
    found = reward_to_go_minus_step_mean(rewards, mask, flags([1, 1, 0, 1, 1]))
    close(found, [[8 / 3, 2.5, 0.0], [2 / 3, -2.5, 0.0], [0.0] * 3, [0.0] * 3, [-10 / 3, 0.0, 0.0]])


def test_case_B4_whitening_is_over_the_tokens_of_the_policy():
    """G = 1, 3, 2 on three tokens: mean 2, population variance 2/3, sample variance 1. Padding takes no part."""
    rewards, mask = f64([[-2.0, 3.0, NAN], [2.0, 100.0, INF]]), flags([[1, 1, 0], [1, 0, 0]])
    root = math.sqrt(1.5)
    close(whitened_to_go(rewards, mask), [[-root, root, 0.0], [0.0, 0.0, 0.0]])
    close(whitened_to_go(rewards, mask, correction=1), [[-1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])


def test_whitening_weighs_tokens_not_sequences():
    """R = 2 on three tokens and 6 on one: mean 3, variance 3."""
    rewards, mask = f64([[0.0, 0.0, 2.0], [6.0, NAN, NAN]]), flags([[1, 1, 1], [1, 0, 0]])
    root = math.sqrt(3.0)
    close(whitened_to_go(rewards, mask), [[-1 / root] * 3, [root, 0.0, 0.0]])


def test_whitening_is_over_valid_rows():
    rewards, mask = (
        f64([[0.0, 0.0, 2.0], [6.0, NAN, NAN], [1000.0] * 3]),
        flags([[1, 1, 1], [1, 0, 0], [1, 1, 1]]),
    )
    root = math.sqrt(3.0)
    close(whitened_to_go(rewards, mask, flags([1, 1, 0])), [[-1 / root] * 3, [root, 0.0, 0.0], [0.0] * 3])


@pytest.mark.parametrize("correction", [0, 1])
def test_case_B3_whitening_one_token_or_equal_ones_gives_zero(correction):
    close(whitened_to_go(f64([[2.0, NAN]]), flags([[1, 0]]), correction=correction), [[0.0, 0.0]])
    same = f64([[0.0, 0.3], [0.0, 0.1 + 0.2]])
    close(whitened_to_go(same, flags([[1, 1], [1, 1]]), correction=correction), [[0.0, 0.0], [0.0, 0.0]])
    close(whitened_to_go(f64([[5.0]]), flags([[0]]), correction=correction), [[0.0]])


TOKEN_CREDITS = [
    reward_to_go_minus_batch_mean,
    reward_to_go_minus_step_mean,
    whitened_to_go,
    MovingAverage(0.5, 0.9),
]


@pytest.mark.parametrize("credit", TOKEN_CREDITS)
@pytest.mark.parametrize("junk", [NAN, INF, -INF])
def test_junk_off_the_mask_and_in_invalid_rows_has_no_gradient_and_spoils_none(credit, junk):
    mask, valid = flags([[1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]), flags([1, 1, 0, 1])
    counted = mask & valid.unsqueeze(1)
    weights = torch.arange(1.0, 17.0).reshape(4, 4).double()

    def slope(filler):
        rewards = (
            torch.arange(16.0).reshape(4, 4).double().sin().masked_fill(~counted, filler).requires_grad_()
        )
        value = credit(rewards, mask, valid)
        return value, torch.autograd.grad((weights * value).sum(), rewards)[0]

    (clean, expected), (found, gradient) = slope(0.0), slope(junk)
    close(found, clean.detach())
    close(gradient, expected)
    assert not gradient[~counted].any()
    assert not found[~counted].any()


@pytest.mark.parametrize("credit", TOKEN_CREDITS)
def test_no_rows_or_no_tokens_have_no_credit(credit):
    for shape in ((0, 3), (2, 0)):
        empty = torch.zeros(shape, dtype=torch.float64)
        assert credit(empty, torch.zeros(shape, dtype=torch.bool)).shape == shape


@pytest.mark.parametrize("credit", TOKEN_CREDITS)
def test_case_H11_validity_is_one_flag_a_row(credit):
    rewards, mask = f64([[0.5, 1.0], [1.5, 2.0]]), flags([[1, 1], [1, 1]])
    for valid in (flags([[1], [1]]), flags([1]), torch.tensor([1, 1])):
        with pytest.raises(InvalidInput, match=r"valid must be boolean \[B\]"):
            credit(rewards, mask, valid)
