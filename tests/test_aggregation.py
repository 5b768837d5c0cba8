import itertools
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.aggregation import Totals, constant_length, count, sequence_mean, sequence_sum, token_mean
from rung.errors import InvalidInput
from rung.policy_losses import importance_weighted_loss
from tests.batches import close, f64, flags, gradient, leaf
from tests.toys import assert_digits

MASK = flags([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]])  # lengths 3, 0, 1: two sequences, four tokens
EVERY = [sequence_sum, sequence_mean, token_mean, partial(constant_length, length=8)]
NAMES = ["sequence_sum", "sequence_mean", "token_mean", "constant_length"]


def test_totals_count_sequences_with_a_token_and_tokens():
    assert count(MASK) == Totals(sequences=2, tokens=4)


def test_weights_by_hand():
    on = MASK.double()
    close(sequence_sum(MASK), on / 2)
    close(token_mean(MASK), on / 4)
    close(constant_length(MASK, 5), on / 10)
    close(sequence_mean(MASK), on * f64([[1 / 6], [0.0], [1 / 2]]))


def test_weights_with_the_totals_of_a_larger_batch():
    """Eight sequences of 20 tokens in all; the lengths of the rows stay their own."""
    on, totals = MASK.double(), Totals(sequences=8, tokens=20)
    close(sequence_sum(MASK, totals), on / 8)
    close(token_mean(MASK, totals), on / 20)
    close(constant_length(MASK, 5, totals), on / 40)
    close(sequence_mean(MASK, totals), on * f64([[1 / 24], [0.0], [1 / 8]]))


@pytest.mark.parametrize("aggregation", EVERY, ids=NAMES)
def test_weights_are_float64_and_zero_off_the_mask(aggregation):
    weights = aggregation(MASK)
    assert weights.dtype == torch.float64
    assert not weights[~MASK].any()


@pytest.mark.parametrize("aggregation", EVERY, ids=NAMES)
def test_case_C10_nothing_to_train_on_gives_zero_weights_not_nan(aggregation):
    for shape in ((2, 3), (2, 0), (0, 3)):
        close(aggregation(torch.zeros(shape, dtype=torch.bool)), torch.zeros(shape, dtype=torch.float64))


def test_case_C12_the_end_token_is_trained():
    """Completion −0.1, −0.2, then the end token at −1.5: the sequence's log-probability is −1.8, over three tokens."""
    mask = flags([[1, 1, 1]])
    assert count(mask).tokens == 3
    close((sequence_sum(mask) * f64([[-0.1, -0.2, -1.5]])).sum(), -1.8)


def split_loss(aggregation, mask, losses, pieces):
    """Weights once over the whole, then pieces that only add."""
    weights = aggregation(mask)
    return sum((weights[piece] * losses[piece]).sum() for piece in pieces)


def test_case_D1_no_split_or_order_changes_the_token_mean():
    """Two tokens of 1 and six of 4, in rows of two: 26/8 for every split. A mean of means would be 2.5."""
    mask = torch.ones(4, 2, dtype=torch.bool)
    losses = f64([[1.0, 1.0], [4.0, 4.0], [4.0, 4.0], [4.0, 4.0]])
    for order in itertools.permutations(range(4)):
        for cut in range(5):
            pieces = [
                torch.tensor(order[:cut], dtype=torch.int64),
                torch.tensor(order[cut:], dtype=torch.int64),
            ]
            close(split_loss(token_mean, mask, losses, pieces), 3.25)


def test_case_D2_ranks_that_know_the_totals_add_up_to_one_process():
    """Sums of 2 over 2 tokens and 24 over 6; each rank has its own rows only, and the counts of all."""
    totals = Totals(sequences=2, tokens=8)
    first = (token_mean(flags([[1, 1]]), totals) * 1.0).sum()
    second = (token_mean(torch.ones(1, 6, dtype=torch.bool), totals) * 4.0).sum()
    close(2 * first, 0.5)  # as reported: scaled by the number of ranks, then averaged
    close(2 * second, 6.0)
    close(first + second, 3.25)


@pytest.mark.parametrize("aggregation", EVERY, ids=NAMES)
def test_case_D2_every_aggregation_adds_up_over_ranks(aggregation):
    """Whatever the rank, its rows get the weights that they have in the whole."""
    whole = aggregation(MASK)
    for cut in range(4):
        parts = [aggregation(piece, totals=count(MASK)) for piece in (MASK[:cut], MASK[cut:])]
        close(torch.cat(parts), whole)


@pytest.mark.parametrize("aggregation", EVERY[:3], ids=NAMES[:3])
def test_case_D5_a_row_without_a_token_enters_no_denominator(aggregation):
    """Three rows of one token, losses 2, 4 and masked: 3, not 2."""
    mask, losses = flags([[1], [1], [0]]), f64([[2.0], [4.0], [50.0]])
    close((aggregation(mask) * losses).sum(), 3.0)


def test_case_D5_also_with_the_constant_length():
    mask, losses = flags([[1], [1], [0]]), f64([[2.0], [4.0], [50.0]])
    close((constant_length(mask, 2) * losses).sum(), 1.5)


def test_case_D7_each_aggregation_has_its_own_value_at_ratio_one():
    """Credit +1 over two tokens and −1 over six, losses −1 and +1; L = 8. Values 0, ½, ¼: all have a gradient."""
    mask = flags([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    losses = f64([[-1.0], [1.0]]).expand(2, 6)
    values = {
        sequence_mean: 0.0,  # (−1 + 1)/2
        token_mean: 0.5,  # (−2 + 6)/8
        sequence_sum: 2.0,  # (−2 + 6)/2
        partial(constant_length, length=8): 0.25,  # (−2 + 6)/(2·8)
    }
    for aggregation, value in values.items():
        weights = aggregation(mask)
        close((weights * losses).sum(), value)
        assert (weights[mask] > 0).all()


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=6))
def test_weights_are_their_definition_row_by_row(rows):
    """Plain Python: lengths, sequences and tokens counted in lists."""
    lengths = [sum(row) for row in rows]
    sequences, tokens = max(sum(n > 0 for n in lengths), 1), max(sum(lengths), 1)
    expected = {
        "sequence_sum": [[float(on) / sequences for on in row] for row in rows],
        "sequence_mean": [
            [float(on) / (sequences * n) if on else 0.0 for on in row]
            for row, n in zip(rows, lengths, strict=True)
        ],
        "token_mean": [[float(on) / tokens for on in row] for row in rows],
        "constant_length": [[float(on) / (sequences * 8) for on in row] for row in rows],
    }
    for name, aggregation in zip(NAMES, EVERY, strict=True):
        close(aggregation(torch.tensor(rows)), expected[name])


@pytest.mark.parametrize("aggregation", EVERY, ids=NAMES)
@pytest.mark.parametrize("totals", [None, Totals(sequences=4, tokens=9)], ids=["own counts", "given totals"])
def test_case_E9_advantages_are_not_a_mask(aggregation, totals):
    for wrong in (f64([[0.5, -1.5]]), f64([[1.0, 1.0]]), torch.tensor([[1, 1]]), flags([1, 1])):
        with pytest.raises(InvalidInput, match="boolean"):
            aggregation(wrong, totals=totals)


def test_the_constant_length_is_positive():
    close(constant_length(MASK, 1), sequence_sum(MASK))
    for length in (0, -3):
        with pytest.raises(InvalidInput, match="positive"):
            constant_length(MASK, length)


def test_published_values_of_two_rows_of_different_lengths():
    """Losses of 1 and one of 10 at the end, five tokens beside ten: 2.35, 2.2 and 1.65 (L = 10)."""
    mask = torch.arange(10) < f64([[5.0], [10.0]])
    losses = torch.ones(2, 10, dtype=torch.float64)
    losses[0, 4] = losses[1, 9] = 10.0
    for aggregation, value in (
        (sequence_mean, 2.35),
        (token_mean, 2.2),
        (partial(constant_length, length=10), 1.65),
    ):
        close((aggregation(mask) * losses).sum(), value)


def test_published_gradients_by_the_ratio():
    """Advantage 2 over four and seven tokens: how much of it reaches each token's ratio; 1/11 for an advantage of 1."""
    mask = torch.arange(7) < f64([[4.0], [7.0]])

    def by_ratio(aggregation, advantage):
        ratio = leaf([[1.0] * 7] * 2)
        loss = importance_weighted_loss(
            ratio.log(), torch.zeros_like(ratio), torch.full_like(ratio, advantage)
        )
        return -gradient((aggregation(mask) * loss).sum(), ratio)[:, 0].numpy()

    assert_digits(by_ratio(sequence_mean, 2.0), [0.25, 0.1429], 4)
    assert_digits(by_ratio(partial(constant_length, length=7), 2.0), [0.1429, 0.1429], 4)
    assert_digits(by_ratio(token_mean, 1.0), [0.0909, 0.0909], 4)
