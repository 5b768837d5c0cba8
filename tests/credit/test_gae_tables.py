"""GAE against tables that others have published, termination and truncation side by side."""

import pytest
import torch

from rung.credit import gae, reward_to_go
from tests.batches import close, f64, flags
from tests.toys import assert_digits


def full(rewards):
    return torch.ones(rewards.shape, dtype=torch.bool)


MICRO_REWARDS, MICRO_VALUES = f64([[0.0, 0.0, 1.0]]), f64([[0.2, 0.4, 0.6]])


def test_the_worked_example_terminated():
    found = gae(MICRO_REWARDS, MICRO_VALUES, full(MICRO_REWARDS), gamma=0.9, lam=0.8)
    close(found, [[0.46816, 0.428, 0.4]])
    close(found + MICRO_VALUES, [[0.66816, 0.828, 1.0]])


def test_the_worked_example_truncated():
    end = f64([0.5])
    found = gae(MICRO_REWARDS, MICRO_VALUES, full(MICRO_REWARDS), gamma=0.9, lam=0.8, bootstrap=end)
    close(found, [[0.70144, 0.752, 0.85]])
    close(found + MICRO_VALUES, [[0.90144, 1.152, 1.45]])


# Rewards of three episodes of four steps, and V(s') of each; V(s) is the previous V(s'), before the first the last.
TABLE_REWARDS = f64([[101.0, 102, 103, 200], [104.0, 105, 106, 201], [107.0, 108, 109, 202]])
TABLE_NEXT_VALUES = f64([[2.0, 3, 4, -1], [5.0, 6, 7, -2], [8.0, 9, 10, -3]])
TABLE_VALUES = TABLE_NEXT_VALUES.flatten().roll(1).reshape(3, 4)
TERMINATED = [
    [454.8345, 376.1143, 291.298, 200],  # 454.83447 exactly; the table itself cuts it to 454.8344
    [464.5610, 383.1085, 295.387, 201],
    [474.2876, 390.1027, 299.476, 202],
]
TRUNCATED = [
    [454.0109, 375.2386, 290.3669, 199.01],
    [462.9138, 381.3571, 293.5248, 199.02],
    [474.2876, 390.1027, 299.476, 202],
]


def test_three_terminated_episodes_of_the_published_table():
    found = gae(TABLE_REWARDS, TABLE_VALUES, full(TABLE_REWARDS), gamma=0.99, lam=0.95) + TABLE_VALUES
    assert_digits(found, TERMINATED, 4)


def test_two_of_them_truncated():
    """The bootstrap is V(s') of the truncated rows and 0 for the terminated one: −1 makes 200 into 199.01."""
    end = f64([-1.0, -2.0, 0.0])
    found = gae(TABLE_REWARDS, TABLE_VALUES, full(TABLE_REWARDS), gamma=0.99, lam=0.95, bootstrap=end)
    assert_digits(found + TABLE_VALUES, TRUNCATED, 4)


def test_episodes_of_the_published_table_without_values():
    """γ = 0.1, λ = 1; eight steps cut into episodes of 1, 3, 2 and 2, the third one truncated where V is 0."""
    rewards = f64([[0.0, 0, 0], [1.0, 2, 3], [4.0, 5, 0], [6.0, 7, 0]])
    mask = flags([[1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 1, 0]])
    nothing = torch.zeros_like(rewards)
    found = gae(rewards, nothing, mask, gamma=0.1, lam=1.0, bootstrap=nothing[:, 0])
    close(found[mask], [0.0, 1.23, 2.3, 3.0, 4.5, 5.0, 6.7, 7.0])
    close(reward_to_go(rewards, mask, gamma=0.1)[mask], [0.0, 1.23, 2.3, 3.0, 4.5, 5.0, 6.7, 7.0])


@pytest.mark.parametrize(
    ("lam", "expected"),
    [
        (1.0, [-1.45118805, -4.45574551, 2.539651, 0.5249, -0.49]),
        (0.7, [-0.67697950, -5.24816666, 2.48460799, 0.67043, -0.49]),
        (0.4, [0.56731873, -6.04212442, 2.34312016, 0.81596, -0.49]),
    ],
)
def test_a_published_vector_with_values_after_the_last_step(lam, expected):
    rewards, values = f64([[0.0, 0, 1, 0, -0.5]]), f64([[1.0, 4, -3, -2, -1]])
    found = gae(rewards, values, full(rewards), gamma=0.99, lam=lam, bootstrap=f64([-1.0]))
    assert_digits(found[0], expected, 8)


@pytest.mark.parametrize(
    ("lam", "expected"),
    [(1.0, [3.0, 2, 1, 0, -4.9]), (0.7, [2.2899, 1.73, 1, 0, -4.9]), (0.4, [1.7256, 1.46, 1, 0, -4.9])],
)
def test_a_published_vector_with_an_end_inside(lam, expected):
    """Discounts 0.9, 0.9, 0.9, 0, 0.9: four steps that terminate, then one that goes on to V = −1."""
    rewards, values = f64([[0.0, 0, 0, 0], [1.0, 0, 0, 0]]), f64([[-3.0, -2, -1, 0], [5.0, 0, 0, 0]])
    mask = flags([[1, 1, 1, 1], [1, 0, 0, 0]])
    found = gae(rewards, values, mask, gamma=0.9, lam=lam, bootstrap=f64([0.0, -1.0]))
    assert_digits(found[mask], expected, 8)


@pytest.mark.parametrize(
    ("lam", "expected"),
    [(0.75, [1.6460546875, 0.7228125, 0.7375, 0.65, 3.4]), (1.0, [1.315, 0.63, 0.7, 1.7, 3.4])],
)
def test_published_lambda_returns(lam, expected):
    """A + V, for discounts that differ from step to step: what is earned or valued at t counts Π_{i<t} γ_i of itself.

    A_t + V_t does not depend on V_t itself, so that the first value, which is not given, may be anything.
    """
    rewards, next_values = f64([[1.0, 0, -1, 0, 1]]), f64([[3.0, 1, 5, -5, 3]])
    weight = f64([[1.0, 0.5, 0.9, 1.0, 0.5, 0.8]]).cumprod(1)
    values = torch.cat((f64([[-40.0]]), next_values), 1) * weight
    found = gae(rewards * weight[:, :-1], values[:, :-1], full(rewards), lam=lam, bootstrap=values[:, -1])
    assert_digits(((found + values[:, :-1]) / weight[:, :-1])[0], expected, 10)
