"""The baseline that remembers earlier batches."""

import pytest
import torch

from rung.credit import MovingAverage, gae
from rung.errors import InvalidInput
from rung.methods import Method
from rung.methods.method import call_by_name
from tests.batches import INF, NAN, close, f64, flags


def test_the_value_is_subtracted_from_the_return_from_each_token_on():
    rewards, mask = f64([[1.0, NAN, 2.0], [4.0, 0.5, INF]]), flags([[1, 0, 1], [1, 1, 0]])
    close(MovingAverage(0.5, 0.9)(rewards, mask), [[2.5, 0.0, 1.5], [4.0, 0.0, 0.0]])


def test_invalid_rows_have_no_credit():
    rewards, mask = f64([[1.0, 2.0], [NAN, 5.0]]), flags([[1, 1], [1, 1]])
    close(MovingAverage(0.5, 0.9)(rewards, mask, flags([1, 0])), [[2.5, 1.5], [0.0, 0.0]])


def test_the_average_over_batches_by_hand():
    """m = ¾: b = 1; ¾ + ¼·3 = 1.5; 1.125 + ¼·(−1) = 0.875. The one before is left as it was."""
    start = MovingAverage(1.0, 0.75)
    second = start.after(f64([2.0, 4.0]))
    third = second.after(f64([-1.0, -1.0]))
    assert (start.value, second.value, third.value) == (1.0, 1.5, 0.875)
    assert third.momentum == 0.75


@pytest.mark.parametrize("junk", [NAN, INF, 1000.0])
def test_the_average_is_over_valid_rows(junk):
    """A judge that failed moves nothing; a batch without a reward leaves the baseline alone."""
    start = MovingAverage(1.0, 0.75)
    assert start.after(f64([2.0, junk, 4.0]), flags([1, 0, 1])).value == 1.5
    assert start.after(f64([junk, junk]), flags([0, 0])) == start


def test_a_batch_does_not_enter_its_own_baseline():
    """The credit of a batch is the same before and after its returns are known to `after`."""
    rewards, mask = f64([[4.0], [8.0]]), flags([[1], [1]])
    baseline = MovingAverage(1.0, 0.5)
    before = baseline(rewards, mask)
    baseline.after(rewards.sum(1))
    close(before, [[3.0], [7.0]])
    close(baseline(rewards, mask), before)


def test_the_extremes_of_momentum():
    assert MovingAverage(1.0, 1.0).after(f64([9.0])).value == 1.0
    assert MovingAverage(1.0, 0.0).after(f64([9.0])).value == 9.0
    for momentum in (-0.1, 1.1, NAN):
        with pytest.raises(InvalidInput, match="momentum must be between 0 and 1"):
            MovingAverage(0.0, momentum)


def test_it_is_a_slot_like_any_function():
    """A method asks for what the call names, and for no critic."""
    baseline = MovingAverage(0.5, 0.9)
    available = {"rewards": f64([[1.0]]), "mask": flags([[1]]), "valid": flags([1]), "returns": f64([1.0])}
    close(call_by_name(baseline, available), [[0.5]])
    method = Method("moving", baseline, lambda credit: credit, lambda mask: mask)
    assert method.needs == frozenset()


def test_a_baseline_of_zero_is_the_return_to_go():
    rewards = torch.arange(6.0).reshape(2, 3).double()
    mask = flags([[1, 0, 1], [1, 1, 1]])
    close(MovingAverage(0.0, 0.5)(rewards, mask), gae(rewards, torch.zeros_like(rewards), mask, lam=1.0))
