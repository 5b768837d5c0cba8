"""Aggregations that agree where lengths do, and nowhere else."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.aggregation import Totals, constant_length, sequence_mean, sequence_sum, token_mean
from tests.batches import close, flags

masks = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=1, max_size=6)
)


@given(masks, st.integers(1, 9))
def test_the_constant_length_is_the_sum_over_a_constant(rows, length):
    mask = torch.tensor(rows)
    close(constant_length(mask, length), sequence_sum(mask) / length)
    totals = Totals(sequences=10, tokens=30)
    close(constant_length(mask, length, totals), sequence_sum(mask, totals) / length)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 3))
def test_with_equal_lengths_all_are_proportional(rows, length, empty_rows):
    """Rows without a token do not count as a length of their own."""
    mask = torch.zeros(rows + empty_rows, length + 2, dtype=torch.bool)
    mask[:rows, 1 : length + 1] = True
    close(sequence_mean(mask), token_mean(mask))
    close(sequence_sum(mask), length * token_mean(mask))
    close(constant_length(mask, length), token_mean(mask))


@given(masks)
def test_of_a_single_row_the_two_means_are_one(rows):
    mask = torch.tensor(rows[:1])
    close(sequence_mean(mask), token_mean(mask))


def test_with_unequal_lengths_no_two_are_proportional():
    mask = flags([[1, 1, 1], [1, 0, 0]])
    quotients = [w[0, 0] / w[1, 0] for w in (sequence_sum(mask), token_mean(mask), sequence_mean(mask))]
    close(torch.stack(quotients), [1.0, 1.0, 1 / 3])
    # The sum and the mean over tokens weigh tokens alike within a batch; between batches they do not.
    shorter = flags([[1, 0, 0], [1, 0, 0]])
    close(sequence_sum(shorter)[0, 0] / sequence_sum(mask)[0, 0], 1.0)
    close(token_mean(shorter)[0, 0] / token_mean(mask)[0, 0], 2.0)


@given(masks)
def test_total_weight(rows):
    """Means weigh 1 in all, the sum weighs the mean length."""
    mask = torch.tensor(rows)
    some = float(mask.any())
    close(token_mean(mask).sum(), some)
    close(sequence_mean(mask).sum(), some)
    close(sequence_sum(mask).sum(), mask.sum().double() / max(int(mask.any(1).sum()), 1))
