import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.errors import InvalidInput
from rung.masked import masked_mean, masked_sum, masked_var, require_same_shape, select, whiten
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
    close(whiten(f64([0.0, 1e-5]), flags([1, 1])), [-math.sqrt(0.5), math.sqrt(0.5)])


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


def test_case_H12_a_metric_does_not_see_sentinels_off_the_mask():
    logprobs, mask = f64([[-0.5, -0.7, 1.0, 1.0]]), flags([[1, 1, 0, 0]])
    close(-masked_sum(logprobs, mask), 1.2)
    close(-masked_mean(logprobs, mask), 0.6)
