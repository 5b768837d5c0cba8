"""Sums from each token on, against sums written out term by term; and tokens moved together and back."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.credit.scan import Steps, discounted_suffix_sum, require_fractions, suffix_sum
from rung.errors import InvalidInput
from tests.batches import INF, NAN, close, f64, flags

DECAYS = [1.0, 0.95, 0.5, 0.0]
LENGTHS = [1, 2, 31, 32, 33, 63, 64, 65, 97, 1024, 1025, 1100]  # around the block, its square, and beyond


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1


def term_by_term(x, decay):
    """Σ_k c^k x_{t+k} with exactly rounded sums; what is below 1e-20 is left out."""
    horizon = len(x) if decay == 1.0 else 1 if decay == 0.0 else math.ceil(-46 / math.log(decay))
    powers = [decay**k for k in range(min(horizon, len(x)))]
    return [math.fsum(p * v for p, v in zip(powers, x[t:], strict=False)) for t in range(len(x))]


def test_by_hand():
    """c = ½: 8; 4 + ½·8; 2 + ½·8; 1 + ½·6."""
    close(discounted_suffix_sum(f64([[1.0, 2.0, 4.0, 8.0]]), 0.5), [[4.0, 6.0, 8.0, 8.0]])
    close(discounted_suffix_sum(f64([[1.0, 2.0, 4.0, 8.0]]), 1.0), [[15.0, 14.0, 12.0, 8.0]])
    close(discounted_suffix_sum(f64([[1.0, 2.0, 4.0, 8.0]]), 0.0), [[1.0, 2.0, 4.0, 8.0]])


def test_decays_of_their_own_by_hand():
    """8; 4 + 3·8; 2 + 0·28; 1 + ½·2; the last decay meets nothing."""
    close(suffix_sum(f64([[1.0, 2.0, 4.0, 8.0]]), f64([[0.5, 0.0, 3.0, 7.0]])), [[2.0, 2.0, 28.0, 8.0]])


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("length", LENGTHS)
def test_a_constant_decay_term_by_term(length, decay):
    x = random(2, length, seed=length)
    close(discounted_suffix_sum(x, decay), [term_by_term(row, decay) for row in x.tolist()])


@pytest.mark.parametrize("length", [*LENGTHS[:9], 1025])
def test_decays_of_their_own_step_by_step(length):
    """Decays between −0.3 and 1.1, some of them 0."""
    x, decays = random(3, length, seed=1), 0.4 + 0.7 * random(3, length, seed=2)
    decays = torch.where(decays.abs() < 0.05, 0.0, decays)
    expected = []
    for row, factors in zip(x.tolist(), decays.tolist(), strict=True):
        found, tail = [], 0.0
        for value, factor in reversed(list(zip(row, factors, strict=True))):
            tail = value + factor * tail
            found.append(tail)
        expected.append(found[::-1])
    close(suffix_sum(x, decays), expected)


@pytest.mark.parametrize("length", LENGTHS)
def test_one_reward_at_the_end_reaches_every_token_exactly(length):
    """At c = 1 to the last bit, where 0.1 is no binary fraction."""
    x = torch.zeros(2, length, dtype=torch.float64)
    x[0, -1], x[1, length // 2] = 0.1, -0.7
    found = discounted_suffix_sum(x, 1.0)
    assert torch.equal(found[0], torch.full_like(found[0], 0.1))
    assert torch.equal(found[1], f64([-0.7 if t <= length // 2 else 0.0 for t in range(length)]))


@pytest.mark.parametrize("length", [5, 33, 1100])
def test_gradients_are_the_sums_the_other_way(length):
    """∂/∂x_k Σ_t w_t y_t = Σ_{t≤k} c^(k−t) w_t, a sum from each token back; own decays: Π_{t≤i<k} d_i."""
    x, weights, decays = random(1, length), random(1, length, seed=3), random(1, length, seed=4)
    backwards = term_by_term(weights[0].flip(0).tolist(), 0.95)[::-1]
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad((weights * discounted_suffix_sum(leaf, 0.95)).sum(), leaf)
    close(slope, [backwards])
    own, tail = [], 0.0
    for k in range(length):
        tail = weights[0, k].item() + (decays[0, k - 1].item() * tail if k else 0.0)
        own.append(tail)
    (slope,) = torch.autograd.grad((weights * suffix_sum(leaf, decays)).sum(), leaf)
    close(slope, [own])


@pytest.mark.parametrize("shape", [(0, 5), (0, 100), (3, 0), (0, 0)])
def test_no_rows_or_no_tokens(shape):
    x = torch.zeros(shape, dtype=torch.float64)
    assert discounted_suffix_sum(x, 0.9).shape == shape
    assert suffix_sum(x, x).shape == shape


def test_numbers_keep_their_type():
    x = random(2, 100).float()
    assert discounted_suffix_sum(x, 0.9).dtype == suffix_sum(x, x).dtype == torch.float32
    close(discounted_suffix_sum(x, 0.9).double(), discounted_suffix_sum(x.double(), 0.9), atol=1e-5)


def test_integers_are_refused():
    """A discount of 0.5 would be 0 among integers."""
    with pytest.raises(InvalidInput, match="floating-point"):
        discounted_suffix_sum(torch.tensor([[1, 2]]), 0.5)


def test_a_discount_may_be_0_and_may_be_1():
    require_fractions(gamma=1.0, lam=0.0, momentum=0.5)


@pytest.mark.parametrize("value", [-0.1, 1.0001, NAN])
def test_a_discount_outside_the_unit_interval_is_refused(value):
    with pytest.raises(InvalidInput, match="lam must be between 0 and 1"):
        require_fractions(gamma=1.0, lam=value)


def test_counted_tokens_are_moved_together_and_back():
    x, mask = f64([[NAN, 1.0, INF, 2.0], [3.0, 4.0, NAN, NAN]]), flags([[0, 1, 0, 1], [1, 1, 0, 0]])
    steps = Steps.of(mask)
    close(steps.by_step(x), [[1.0, 2.0, 0.0, 0.0], [3.0, 4.0, 0.0, 0.0]])
    close(
        steps.by_token(f64([[5.0, 6.0, 0.0, 0.0], [7.0, 8.0, 0.0, 0.0]])),
        [[0, 5.0, 0, 6.0], [7.0, 8.0, 0, 0]],
    )
    assert steps.counts.tolist() == [[True, True, False, False]] * 2
    assert steps.count.tolist() == [2, 2]


def test_without_a_hole_nothing_is_moved():
    """Rows that end early, or never begin, have no hole: tokens are steps already."""
    assert Steps.of(flags([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]])).step is None
    for row in ([0, 1, 1], [1, 0, 1]):
        assert Steps.of(flags([row])).step is not None


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4))
def test_there_and_back_is_the_mask(rows):
    """Against Python lists; gradients reach exactly the counted entries."""
    mask = torch.tensor(rows)
    x = (random(*mask.shape, seed=5) + 2).masked_fill(~mask, NAN).requires_grad_()
    steps = Steps.of(mask)
    together = steps.by_step(x)
    for row, kept, flag in zip(x.tolist(), together.tolist(), rows, strict=True):
        counted = [value for value, on in zip(row, flag, strict=True) if on]
        assert kept == counted + [0.0] * (6 - len(counted))
    back = steps.by_token(together)
    close(back, x.detach().nan_to_num(nan=0.0))
    (slope,) = torch.autograd.grad(back.sum(), x)
    close(slope, mask.double())


def test_case_E9_only_a_boolean_mask():
    with pytest.raises(InvalidInput, match="boolean"):
        Steps.of(f64([[1.0, 0.0]]))
    with pytest.raises(InvalidInput, match="boolean"):
        Steps.of(flags([1, 0]))
