"""The data order is a function of seed and position: every epoch holds each row once, and resuming needs no state."""

import pytest

from rung.training.order import rows_at


def test_each_epoch_is_a_permutation_and_visits_count_them() -> None:
    rows, visits = rows_at(range(21), 7, seed=5)
    for epoch in range(3):
        assert sorted(rows[7 * epoch : 7 * epoch + 7]) == list(range(7))
    assert visits == [0] * 7 + [1] * 7 + [2] * 7


def test_epochs_and_seeds_are_in_orders_of_their_own() -> None:
    rows, _ = rows_at(range(200), 100, seed=5)
    other, _ = rows_at(range(100), 100, seed=6)
    assert rows[:100] != rows[100:]
    assert rows[:100] != other


@pytest.mark.parametrize("cut", [1, 6, 7, 8, 13, 20])
def test_a_range_is_the_same_whatever_was_asked_before(cut: int) -> None:
    """Case H6: also where the range begins in the middle of an epoch, or crosses its edge."""
    rows, visits = rows_at(range(21), 7, seed=5)
    assert rows_at(range(cut, 21), 7, seed=5) == (rows[cut:], visits[cut:])


def test_one_step_may_span_several_epochs() -> None:
    rows, visits = rows_at(range(2, 9), 3, seed=0)
    assert visits == [0, 1, 1, 1, 2, 2, 2]
    assert sorted(rows[1:4]) == sorted(rows[4:7]) == [0, 1, 2]
