import pytest
import torch

from rung.credit import minus_batch_mean, reward_to_go_minus_batch_mean
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
