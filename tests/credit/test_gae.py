"""TD residuals and GAE against hand computation and their definitions in plain Python. Published: test_gae_tables."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.credit import gae, td_residual
from rung.errors import InvalidInput
from tests.batches import INF, NAN, close, f64, flags, leaf, rollouts

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


@pytest.mark.parametrize("function", [gae, td_residual])
def test_the_bootstrap_takes_the_type_of_the_values(function):
    """Float32 values beside float64 ones: 1 + 2 − 0.5 at the only step."""
    found = function(f64([[1.0]]).float(), f64([[0.5]]).float(), flags([[1]]), bootstrap=f64([2.0]))
    assert found.dtype == torch.float32
    close(found.double(), [[2.5]])


# --- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [gae, td_residual])
def test_case_H11_shapes_that_would_broadcast_are_refused(function):
    two = f64([[1.0, 2.0]])
    arguments = {"rewards": two, "values": two, "mask": flags([[1, 1]])}
    for odd, value in arguments.items():
        with pytest.raises(InvalidInput, match=rf"same shape.* {odd} \(1, 1\)"):
            function(**{**arguments, odd: value[:, :1]})
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
