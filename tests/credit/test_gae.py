"""TD residuals and GAE against published tables, hand computation, and their definitions in plain Python."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.credit import gae, reward_to_go, td_residual
from rung.errors import InvalidInput
from tests.batches import INF, NAN, close, f64, flags, leaf, rollouts
from tests.toys import assert_digits

JUNK = [NAN, INF, -INF, 1e300, 7.0]


def full(rewards):
    return torch.ones(rewards.shape, dtype=torch.bool)


def residuals_by_definition(rewards, values, end, gamma):
    following = [*values[1:], end] if values else []
    return [r + gamma * after - v for r, after, v in zip(rewards, following, values, strict=True)]


def gae_by_definition(rewards, values, end, gamma, lam):
    """Σ_l (γλ)^l δ_{t+l}, written out."""
    deltas = residuals_by_definition(rewards, values, end, gamma)
    return [
        math.fsum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[t:]))
        for t in range(len(deltas))
    ]


# --- published -----------------------------------------------------------------------------------------------------

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


# --- public cases --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", JUNK)
def test_case_B8_the_value_on_a_padded_slot_is_nobodys_next_value(junk):
    """δ_1 = 1 − 0.5; A_0 = (0.5 − 0.4) + 0.95 · 0.5."""
    rewards, values, mask = f64([[0.0, 1.0, 0.0]]), f64([[0.4, 0.5, junk]]), flags([[1, 1, 0]])
    close(gae(rewards, values, mask, lam=0.95), [[0.575, 0.5, 0.0]])
    close(td_residual(rewards, values, mask), [[0.1, 0.5, 0.0]])


def test_case_B9_the_advantage_is_the_return_to_go_minus_the_value():
    """Returns 0.7, 0.8, 1.0; the penalty on padding reaches nobody."""
    rewards, values = f64([[-0.1, -0.2, 1.0, -5.0]]), f64([[0.3, 0.4, 0.5, 9.0]])
    found = gae(rewards, values, flags([[1, 1, 1, 0]]), lam=1.0)
    close(found, [[0.4, 0.4, 0.5, 0.0]])


def test_case_C1_the_score_reaches_the_end_token_of_padded_and_full_rows():
    """Score 3, V = 0: 3 · 0.95^k back from the end token, whether or not the row is padded."""
    batch = rollouts([[1, 1, 1], [1, 1, 1, 1, 1]], [3.0, 3.0])
    nothing = torch.zeros_like(batch.rewards)
    found = gae(batch.rewards, nothing, batch.mask, lam=0.95)
    close(found, [[2.7075, 2.85, 3.0, 0.0, 0.0], [2.44351875, 2.572125, 2.7075, 2.85, 3.0]])


def test_case_B12_an_empty_row_has_no_credit():
    """Its bootstrap and its reward go nowhere."""
    rewards, values, mask = (
        f64([[10.0, 10.0], [1.0, 0.0]]),
        f64([[5.0, 5.0], [0.25, 9.0]]),
        flags([[0, 0], [1, 0]]),
    )
    close(gae(rewards, values, mask, bootstrap=f64([NAN, 0.0])), [[0.0, 0.0], [0.75, 0.0]])


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_case_N8_targets_are_advantages_plus_values(lam):
    """Before whitening A + V is the λ-return, G^λ_t = r_t + γ((1 − λ) V_{t+1} + λ G^λ_{t+1}); that is no mistake."""
    rewards, values = [0.3, -1.0, 2.0, 0.5], [0.1, 0.9, -0.4, 0.6]
    tail, expected = 0.0, []
    for t in reversed(range(4)):
        after = values[t + 1] if t < 3 else 0.0
        tail = rewards[t] + 0.9 * ((1 - lam) * after + lam * tail)
        expected.append(tail)
    found = gae(f64([rewards]), f64([values]), full(f64([rewards])), gamma=0.9, lam=lam)
    close(found + f64([values]), [expected[::-1]])


# --- properties ----------------------------------------------------------------------------------------------------

NUMBERS = st.floats(-5, 5)


@st.composite
def token_batches(draw):
    """(rewards, values, mask as nested lists; bootstrap) with holes and rows of every length; junk off the mask."""
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 8))

    def table(entries):
        return [[draw(entries) for _ in range(length)] for _ in range(rows)]

    mask = table(st.booleans())
    rewards, values = table(NUMBERS), table(NUMBERS)
    return rewards, values, mask, [draw(NUMBERS) for _ in range(rows)]


def dirty(table, mask, junk):
    return f64(
        [[x if on else junk for x, on in zip(*row, strict=True)] for row in zip(table, mask, strict=True)]
    )


def row_by_row(batch, function):
    """The function of plain lists on each row's counted tokens alone, put back into their slots."""
    rewards, values, mask, bootstrap = batch
    out = torch.zeros(len(mask), len(mask[0]), dtype=torch.float64)
    for i, (r, v, on, end) in enumerate(zip(rewards, values, mask, bootstrap, strict=True)):
        kept = [t for t, flag in enumerate(on) if flag]
        for t, found in zip(kept, function([r[t] for t in kept], [v[t] for t in kept], end), strict=True):
            out[i, t] = found
    return out


@given(
    token_batches(),
    st.sampled_from([1.0, 0.9, 0.0]),
    st.sampled_from([1.0, 0.95, 0.3, 0.0]),
    st.sampled_from(JUNK),
)
def test_holes_are_skipped_and_nothing_off_the_mask_counts(batch, gamma, lam, junk):
    """Equal to the definition on the compacted sequence: the next value is that of the next counted token."""
    rewards, values, mask, bootstrap = batch
    arguments = dirty(rewards, mask, junk), dirty(values, mask, junk), torch.tensor(mask)
    close(
        gae(*arguments, gamma=gamma, lam=lam, bootstrap=f64(bootstrap)),
        row_by_row(batch, lambda r, v, end: gae_by_definition(r, v, end, gamma, lam)),
    )
    close(
        td_residual(*arguments, gamma=gamma, bootstrap=f64(bootstrap)),
        row_by_row(batch, lambda r, v, end: residuals_by_definition(r, v, end, gamma)),
    )


@given(token_batches(), st.sampled_from(JUNK[:3]))
def test_junk_off_the_mask_has_no_gradient_and_spoils_none(batch, junk):
    rewards, values, mask, bootstrap = batch
    flag = torch.tensor(mask)

    def slopes(filler):
        inputs = [dirty(rewards, mask, filler).requires_grad_(), dirty(values, mask, filler).requires_grad_()]
        end = torch.where(flag.any(1), f64(bootstrap), filler).requires_grad_()
        weights = torch.arange(1.0, flag.numel() + 1).reshape(flag.shape)
        loss = (weights * gae(*inputs, flag, gamma=0.9, lam=0.8, bootstrap=end)).sum()
        return torch.autograd.grad(loss, [*inputs, end])

    clean, found = slopes(0.0), slopes(junk)
    for expected, actual in zip(clean, found, strict=True):
        close(actual, expected)
    for slope in found[:2]:
        assert not slope[~flag].any()


def test_the_gradient_reaches_rewards_values_and_bootstrap():
    """A_0 = r_0 + γV_1 − V_0 + γλ(r_1 + γb − V_1): ∂/∂V_1 = γ(1 − λ), ∂/∂b = γ²λ."""
    rewards, values, end = leaf([[1.0, 2.0]]), leaf([[0.5, 0.25]]), leaf([3.0])
    first = gae(rewards, values, flags([[1, 1]]), gamma=0.5, lam=0.5, bootstrap=end)[0, 0]
    slopes = torch.autograd.grad(first, (rewards, values, end))
    for found, expected in zip(slopes, ([[1.0, 0.25]], [[-1.0, 0.25]], [0.125]), strict=True):
        close(found, expected)


@pytest.mark.parametrize("length", [64, 1000])
def test_long_sequences(length):
    """Past the blocks of the sum, with padded rows."""
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(3, length, generator=generator, dtype=torch.float64) for _ in range(2))
    lengths = [length, length - 17, 1]
    mask = torch.arange(length) < torch.tensor(lengths).unsqueeze(1)
    found = gae(rewards, values, mask, gamma=0.99, lam=0.95, bootstrap=f64([1.0, 2.0, 3.0]))
    for row, (n, end) in enumerate(zip(lengths, [1.0, 2.0, 3.0], strict=True)):
        expected = gae_by_definition(rewards[row, :n].tolist(), values[row, :n].tolist(), end, 0.99, 0.95)
        close(found[row, :n], expected)
        assert not found[row, n:].any()


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_no_rows_or_no_tokens(shape):
    empty, mask = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.bool)
    for found in (gae(empty, empty, mask), gae(empty, empty, mask, bootstrap=empty.new_zeros(shape[0]))):
        assert found.shape == shape
    assert td_residual(empty, empty, mask).shape == shape


# --- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [gae, td_residual])
def test_case_H11_shapes_that_would_broadcast_are_refused(function):
    two, one = f64([[1.0, 2.0]]), f64([[1.0]])
    with pytest.raises(InvalidInput, match="same shape"):
        function(two, one, flags([[1, 1]]))
    with pytest.raises(InvalidInput, match="same shape"):
        function(two, two, flags([[1]]))
    with pytest.raises(InvalidInput, match=r"bootstrap must be \[B\]"):
        function(two, two, flags([[1, 1]]), bootstrap=f64([[1.0]]))


@pytest.mark.parametrize("function", [gae, td_residual])
def test_case_E9_only_a_boolean_mask(function):
    two = f64([[1.0, 2.0]])
    with pytest.raises(InvalidInput, match="boolean"):
        function(two, two, f64([[1.0, 1.0]]))


def test_discounts_and_traces_outside_the_unit_interval_are_refused():
    two, mask = f64([[1.0, 2.0]]), flags([[1, 1]])
    with pytest.raises(InvalidInput, match="gamma"):
        gae(two, two, mask, gamma=1.01)
    with pytest.raises(InvalidInput, match="lam"):
        gae(two, two, mask, lam=-0.1)
    with pytest.raises(InvalidInput, match="gamma"):
        td_residual(two, two, mask, gamma=99.0)
