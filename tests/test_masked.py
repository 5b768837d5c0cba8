import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.errors import InvalidInput
from rung.masked import (
    Statistics,
    masked_mean,
    masked_sum,
    masked_var,
    merge,
    require_same_shape,
    select,
    statistics,
    whiten,
)
from tests.batches import INF, NAN, close, f64, flags, gradient, leaf

JUNK = [NAN, INF, -INF, 1e300, -7.0]


def test_select_keeps_what_counts_and_zeroes_the_rest():
    close(select(f64([[1.0, 2.0], [3.0, 4.0]]), flags([[1, 0], [0, 1]])), [[1.0, 0.0], [0.0, 4.0]])


@pytest.mark.parametrize("junk", JUNK)
def test_select_lets_no_junk_into_value_or_gradient(junk):
    x = leaf([2.0, junk])
    kept = select(x, flags([1, 0]))
    close(kept, [2.0, 0.0])
    close(gradient(kept.square(), x), [4.0, 0.0])


def test_sum_mean_and_variance_over_everything_and_along_an_axis():
    x, mask = f64([[1.0, 5.0, 9.0], [2.0, 4.0, -3.0]]), flags([[1, 1, 0], [1, 0, 0]])
    close(masked_sum(x, mask), 8.0)
    close(masked_sum(x, mask, dim=1), [6.0, 2.0])
    close(masked_sum(x, mask, dim=0), [3.0, 5.0, 0.0])
    close(masked_mean(x, mask), 8.0 / 3.0)
    close(masked_mean(x, mask, dim=1), [3.0, 2.0])
    close(masked_mean(x, mask, dim=0), [1.5, 5.0, 0.0])
    # About 8/3: deviations −5/3, 7/3, −2/3, squares 25/9 + 49/9 + 4/9 = 26/3.
    close(masked_var(x, mask), 13.0 / 3.0)
    close(masked_var(x, mask, correction=0), 26.0 / 9.0)
    close(masked_var(x, mask, dim=1), [8.0, 0.0])
    close(masked_var(x, mask, dim=1, correction=0), [4.0, 0.0])
    close(masked_var(x, mask, dim=0, correction=0), [0.25, 0.0, 0.0])


def test_an_empty_mask_gives_zero_not_nan():
    x, nothing = f64([[1.0, NAN], [INF, 2.0]]), flags([[0, 0], [0, 0]])
    for statistic in (masked_sum, masked_mean, masked_var):
        close(statistic(x, nothing), 0.0)
        close(statistic(x, nothing, dim=1), [0.0, 0.0])
    close(whiten(x, nothing), [[0.0, 0.0], [0.0, 0.0]])


@pytest.mark.parametrize("correction", [1, 2, 3])
def test_a_variance_of_no_more_entries_than_its_correction_is_zero(correction):
    x = f64([1.0, 4.0, 2.0])
    for n in range(correction + 1):
        mask = torch.arange(3) < n
        close(masked_var(x, mask, correction=correction), 0.0)
        close(masked_var(x.unsqueeze(0), mask.unsqueeze(0), dim=1, correction=correction), [0.0])


def test_gradient_of_the_mean_is_one_over_the_entries_that_count():
    x = leaf([1.0, NAN, 5.0, 7.0])
    close(gradient(masked_mean(x, flags([1, 0, 1, 1])), x), [1 / 3, 0.0, 1 / 3, 1 / 3])


@given(
    st.lists(st.tuples(st.floats(-100, 100), st.booleans()), min_size=1, max_size=12), st.sampled_from(JUNK)
)
def test_statistics_are_those_of_the_entries_that_count(entries, junk):
    """Written out with plain Python floats over the compacted list."""
    kept = [x for x, counts in entries if counts]
    x = f64([x if counts else junk for x, counts in entries])
    mask = torch.tensor([counts for _, counts in entries])
    mean = math.fsum(kept) / max(len(kept), 1)
    squares = math.fsum((value - mean) ** 2 for value in kept)
    close(masked_sum(x, mask), math.fsum(kept), atol=1e-10)
    close(masked_mean(x, mask), mean, atol=1e-10)
    close(masked_var(x, mask), squares / max(len(kept) - 1, 1), atol=1e-10)
    close(masked_var(x, mask, correction=0), squares / max(len(kept), 1), atol=1e-10)


def test_a_variance_that_is_not_defined_has_no_gradient_either():
    """Of one entry it is 0, and so is its slope: 0/0 in the branch that is not taken would make it NaN."""
    x = leaf([3.0, 5.0])
    close(gradient(masked_var(x, flags([1, 0])), x), [0.0, 0.0])
    close(gradient(masked_var(x, flags([1, 1])), x), [-2.0, 2.0])


def test_whiten_without_shifting_the_mean_restores_it():
    close(whiten(f64([1.0, 3.0, 2.0]), flags([1, 1, 1])), [-1.0, 1.0, 0.0])
    close(whiten(f64([1.0, 3.0, 2.0]), flags([1, 1, 1]), shift_mean=False), [1.0, 3.0, 2.0])
    close(whiten(f64([2.0, 6.0, 4.0]), flags([1, 1, 1]), shift_mean=False), [3.0, 5.0, 4.0])


def test_case_A4_the_mean_kl_is_over_the_tokens_of_the_policy():
    kl, mask = f64([[0.2, 0.4, 5.0], [0.1, 5.0, 5.0]]), flags([[1, 1, 0], [1, 0, 0]])
    close(masked_mean(kl, mask), 0.7 / 3.0)
    k1, actions = f64([[0.05, 0.03, -3.0, -4.0, 0.02]]), flags([[1, 1, 0, 0, 1]])
    close(masked_mean(k1, actions), 0.1 / 3.0)
    close(masked_sum(k1, actions), 0.1)
    close(masked_sum(k1, actions, dim=1), [0.1])


def test_case_B3_whitening_one_token_gives_zero():
    """The rule of every path: nothing to compare with is no signal. Not NaN, not the raw value."""
    x, one = f64([NAN, 5.0, INF]), flags([0, 1, 0])
    close(whiten(x, one), [0.0, 0.0, 0.0])
    close(whiten(x, one, correction=0), [0.0, 0.0, 0.0])
    close(whiten(x, one, shift_mean=False), [0.0, 5.0, 0.0])


def test_case_B3_whitening_rounding_gives_zero():
    close(whiten(f64([0.3, 0.1 + 0.2]), flags([1, 1])), [0.0, 0.0])
    close(whiten(f64([1e9, 1e9 + 1e-6]), flags([1, 1])), [0.0, 0.0])
    close(whiten(f64([1e9, 1e9 + 100.0]), flags([1, 1])), [0.0, 0.0])  # a deviation of 71, below 1e-6 · 1e9
    close(whiten(f64([0.0, 1e-6]), flags([1, 1])), [0.0, 0.0])  # 0.7e-6, below 1e-6 · 1
    for spread in (1e-5, 2.2e-6):
        close(whiten(f64([0.0, spread]), flags([1, 1])), [-math.sqrt(0.5), math.sqrt(0.5)])
    x, at_the_bound = (
        f64([1e6 - 1.0, 1e6 + 1.0]),
        Statistics(2, 1e6, 2.0),
    )  # a deviation of 1, 1e-6 of the mean
    close(whiten(x, flags([1, 1]), correction=0, statistics=at_the_bound), [-1.0, 1.0])


def test_case_B4_mean_and_variance_are_over_the_same_tokens():
    x, mask = f64([[1.0, 3.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]]), flags([[1, 1, 0, 0], [1, 0, 0, 0]])
    root = math.sqrt(1.5)
    close(whiten(x, mask, correction=0), [[-root, root, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    close(whiten(x, mask), [[-1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])


def test_case_B5_statistics_of_ragged_rows_are_those_of_all_tokens_together():
    x, mask = (
        f64([[1.0, 2.0, 3.0, 4.0], [10.0, NAN, NAN, NAN], [NAN] * 4]),
        flags([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]]),
    )
    for correction, variance in ((0, 10.0), (1, 12.5)):
        s = math.sqrt(variance)
        expected = [[-3 / s, -2 / s, -1 / s, 0.0], [6 / s, 0.0, 0.0, 0.0], [0.0] * 4]
        close(whiten(x, mask, correction=correction), expected)


def test_case_B6_without_shift_is_centre_scale_restore():
    x, everything, s = f64([1.0, 2.0, 3.0, 6.0]), flags([1, 1, 1, 1]), math.sqrt(3.5)
    restored = whiten(x, everything, shift_mean=False, correction=0)
    close(restored, [3 - 2 / s, 3 - 1 / s, 3.0, 3 + 3 / s])
    close(whiten(x, everything, correction=0), [-2 / s, -1 / s, 0.0, 3 / s])
    assert restored.mean().item() == pytest.approx(3.0, abs=1e-12)


def test_case_E9_only_a_boolean_mask_is_a_mask():
    """Advantages, zeros and ones as floats, and integers are refused, by every function that takes a mask."""
    loss = f64([2.0, 3.0])
    close(masked_mean(loss, flags([1, 1])), 2.5)
    for wrong in (
        f64([0.5, -1.5]),
        f64([1.0, 1.0]),
        torch.tensor([1, 1]),
        torch.tensor([1, 1], dtype=torch.uint8),
    ):
        for function in (select, masked_sum, masked_mean, masked_var, whiten):
            with pytest.raises(InvalidInput, match="boolean"):
                function(loss, wrong)


def test_case_H11_a_metric_does_not_broadcast_against_its_mask():
    metric, mask = f64([[0.5], [1.5]]), flags([1, 1])
    for function in (select, masked_sum, masked_mean, masked_var, whiten):
        with pytest.raises(InvalidInput, match="same shape"):
            function(metric, mask)
    close(masked_mean(metric, mask.unsqueeze(1)), 1.0)
    with pytest.raises(InvalidInput, match=r"credit \(2, 1\), mask \(2,\)"):
        require_same_shape(credit=metric, mask=mask)
    require_same_shape(credit=metric, mask=mask.unsqueeze(1))
    require_same_shape()


def test_case_H12_a_metric_does_not_see_sentinels_off_the_mask():
    logprobs, mask = f64([[-0.5, -0.7, 1.0, 1.0]]), flags([[1, 1, 0, 0]])
    close(-masked_sum(logprobs, mask), 1.2)
    close(-masked_mean(logprobs, mask), 0.6)


# --- statistics of parts -------------------------------------------------------------------------------------------

# Case B5: four tokens, one, and none.
PARTS = [
    (f64([[1.0, 2.0, NAN], [3.0, 4.0, NAN]]), flags([[1, 1, 0], [1, 1, 0]])),
    (f64([[10.0, NAN, INF]]), flags([[1, 0, 0]])),
    (f64([[NAN, INF, 7.0]]), flags([[0, 0, 0]])),
]


def test_statistics_by_hand():
    found = [statistics(x, mask) for x, mask in PARTS]
    assert found == [Statistics(4, 2.5, 5.0), Statistics(1, 10.0, 0.0), Statistics(0, 0.0, 0.0)]
    assert Statistics(4, 2.5, 5.0).variance() == pytest.approx(5 / 3, abs=1e-15)
    assert Statistics(4, 2.5, 5.0).variance(0) == 1.25
    for correction in (1, 2):
        assert Statistics(1, 10.0, 0.0).variance(correction) == 0.0
        assert Statistics(0, 0.0, 0.0).variance(correction) == 0.0


def test_statistics_are_constants_in_float64():
    """Two neighbours in float32: it could not hold their mean."""
    found = statistics(torch.tensor([1.0, 1.0 + 2**-23], requires_grad=True), flags([1, 1]))
    assert found == Statistics(2, 1.0 + 2**-24, 2.0**-47)
    x = leaf([1.0, 3.0])
    close(gradient(whiten(x, flags([1, 1]), correction=0) * f64([1.0, 5.0]), x), [1.0, 5.0])


def test_case_B5_merged_by_hand():
    """Mean 4; squares 5 within the first part, 4 (2.5 − 4)² + (10 − 4)² = 45 between the parts."""
    assert merge([statistics(x, mask) for x, mask in PARTS]) == Statistics(5, 4.0, 50.0)
    assert merge([]) == Statistics(0, 0.0, 0.0)
    assert merge([Statistics(0, 0.0, 0.0)] * 3) == Statistics(0, 0.0, 0.0)
    assert merge([Statistics(0, NAN, NAN), Statistics(2, 3.0, 1.0)]) == Statistics(2, 3.0, 1.0)


def test_case_B5_a_part_is_whitened_by_the_statistics_of_all():
    merged = merge([statistics(x, mask) for x, mask in PARTS])
    for correction, variance in ((0, 10.0), (1, 12.5)):
        s = math.sqrt(variance)
        found = [whiten(x, mask, correction=correction, statistics=merged) for x, mask in PARTS]
        close(found[0], [[-3 / s, -2 / s, 0.0], [-1 / s, 0.0, 0.0]])
        close(found[1], [[6 / s, 0.0, 0.0]])
        close(found[2], [[0.0, 0.0, 0.0]])
    x, mask = PARTS[1]
    close(
        whiten(x, mask, shift_mean=False, correction=0, statistics=merged),
        [[6 / math.sqrt(10) + 4, 0.0, 0.0]],
    )
    close(whiten(x, mask, statistics=Statistics(5, 4.0, 0.0)), [[0.0, 0.0, 0.0]])  # a flat whole


@given(
    st.lists(st.lists(st.tuples(st.floats(-100, 100), st.booleans()), max_size=6), min_size=1, max_size=5),
    st.randoms(),
)
def test_merged_statistics_are_those_of_everything_together(parts, random):
    """Plain Python floats over all that counts; no order changes a bit of the result."""
    kept = [x for part in parts for x, on in part if on]
    found = [
        statistics(
            f64([x if on else NAN for x, on in part]), torch.tensor([on for _, on in part], dtype=torch.bool)
        )
        for part in parts
    ]
    mean = math.fsum(kept) / max(len(kept), 1)
    merged = merge(found)
    assert merged.count == len(kept)
    assert merged.mean == pytest.approx(mean, abs=1e-10)
    assert merged.squares == pytest.approx(math.fsum((x - mean) ** 2 for x in kept), abs=1e-8)
    random.shuffle(found)
    assert merge(iter(found)) == merged


def test_merging_keeps_the_digits_of_a_small_spread_around_a_large_mean():
    """1e8 and 1e8 + 1, each alone in its part: a sum of squares minus a square of sums would give noise of 1."""
    parts = [statistics(f64([1e8 + k]), flags([1])) for k in (0, 1)]
    assert merge(parts) == Statistics(2, 1e8 + 0.5, 0.5)


def test_case_E9_statistics_take_only_a_boolean_mask():
    for wrong in (f64([0.5, -1.5]), torch.tensor([1, 1])):
        with pytest.raises(InvalidInput, match="boolean"):
            statistics(f64([2.0, 3.0]), wrong)
    with pytest.raises(InvalidInput, match="same shape"):
        whiten(f64([2.0, 3.0]), flags([[1, 1]]), statistics=Statistics(2, 0.0, 1.0))
