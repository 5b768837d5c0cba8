"""V-trace against a published vector, hand computation, and its definition in plain Python."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.credit import vtrace, vtrace_credit
from rung.errors import InvalidInput
from tests.batches import INF, NAN, close, f64, flags
from tests.toys import assert_digits

# --- published: two rows of four steps, two actions, discounts that differ from step to step -------------------------

BEHAVIOUR = f64(
    [[[8.9, 0.7], [5.0, 1.0], [0.6, 0.1], [-0.9, -0.1]], [[0.3, -5.0], [1.0, -8.0], [0.3, 1.7], [4.7, 3.3]]]
)
TARGET = f64(
    [[[0.4, 0.5], [9.2, 8.8], [0.7, 4.4], [7.9, 1.4]], [[1.0, 0.9], [1.0, -1.0], [-4.3, 8.7], [0.8, 0.3]]]
)
ACTIONS = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 1]])
REWARDS = f64([[-1.3, -1.3, 2.3, 42.0], [1.3, 5.3, -3.3, -5.0]])
DISCOUNTS = f64([[0.0, 0.89, 0.85, 0.99], [0.88, 1.0, 0.83, 0.95]])
VALUES = f64([[2.1, 1.1, -3.1, 0.0], [3.1, 0.1, -1.1, 7.4]])
BOOTSTRAP = f64([8.4, -1.2])
ERRORS = [
    [-1.6155143475, -3.4973224266, 1.8670534533, 50.316],
    [1.4662434157, 3.6116402451, -8.336923632e-05, -13.54],
]


def chosen(logits):
    return logits.log_softmax(-1).gather(2, ACTIONS.unsqueeze(2)).squeeze(2)


def published():
    """The same as three rows with one discount: the first step, whose discount is 0, is a sequence of its own.

    Where discounts differ, what is earned or valued at t counts Π_{i<t} γ_i of itself, and γ is 1.
    """
    cuts = [(0, 0, 1, 0.0), (0, 1, 4, BOOTSTRAP[0]), (1, 0, 4, BOOTSTRAP[1])]
    weight = torch.zeros(3, 5, dtype=torch.float64)
    rewards, values, old, behaviour = (torch.zeros(3, 4, dtype=torch.float64) for _ in range(4))
    mask, end = torch.zeros(3, 4, dtype=torch.bool), torch.zeros(3, dtype=torch.float64)
    for row, (source, start, stop, last) in enumerate(cuts):
        n = stop - start
        weight[row, : n + 1] = torch.cat((f64([1.0]), DISCOUNTS[source, start:stop])).cumprod(0)
        rewards[row, :n] = REWARDS[source, start:stop] * weight[row, :n]
        values[row, :n] = VALUES[source, start:stop] * weight[row, :n]
        old[row, :n], behaviour[row, :n] = (
            chosen(TARGET)[source, start:stop],
            chosen(BEHAVIOUR)[source, start:stop],
        )
        mask[row, :n], end[row] = True, last * weight[row, n]
    return rewards, values, mask, old, behaviour, end, weight[:, :4]


def test_published_errors_and_credit():
    """Caps of 1 on ρ and c, λ = 1: there the credit equals the error of the target."""
    *arguments, end, weight = published()
    targets, credit = vtrace(*arguments, bootstrap=end)
    values, mask = arguments[1], arguments[2]
    expected = [x for row in ERRORS for x in row]
    errors = ((targets - values) / weight)[mask]
    assert_digits(errors[:6], expected[:6], 9)
    assert_digits(errors[6] * 1e5, expected[6] * 1e5, 7)
    assert_digits(errors[7], expected[7], 9)
    assert_digits((credit / weight)[mask][:6], expected[:6], 9)
    assert_digits((credit / weight)[mask][7], expected[7], 9)


# --- by hand -------------------------------------------------------------------------------------------------------


def test_by_hand():
    """w = (½, 3), ρ = (½, 2), c = (½, 1): δ_1 = 2(4 − 1) = 6, v_1 = 7;

    δ_0 = ½(1 + 1 − 2) = 0, v_0 = 2 + 0 + ½·6 = 5; Ψ_0 = ½(1 + 7 − 2) = 3, Ψ_1 = 2(4 − 1).
    """
    one = f64([[0.0, 0.0]])
    found = vtrace(
        f64([[1.0, 4.0]]),
        f64([[2.0, 1.0]]),
        flags([[1, 1]]),
        f64([[0.5, 3.0]]).log(),
        one,
        rho_cap=2.0,
        c_cap=1.0,
    )
    close(found.targets, [[5.0, 7.0]])
    close(found.credit, [[3.0, 6.0]])


def test_lambda_and_gamma_by_hand():
    """The same with λ = γ = ½: δ_0 = ½(1 + ½ − 2) = −¼; v_0 = 2 − ¼ + ½·½·½·6 = 2.5; Ψ_0 = ½(1 + ½·7 − 2) = 1.25."""
    found = vtrace(
        f64([[1.0, 4.0]]),
        f64([[2.0, 1.0]]),
        flags([[1, 1]]),
        f64([[0.5, 3.0]]).log(),
        f64([[0.0, 0.0]]),
        gamma=0.5,
        lam=0.5,
        rho_cap=2.0,
        c_cap=1.0,
    )
    close(found.targets, [[2.5, 7.0]])
    close(found.credit, [[1.25, 6.0]])


# --- properties ----------------------------------------------------------------------------------------------------


def by_definition(rewards, values, ratios, end, *, gamma, lam, rho_cap, c_cap):
    """v_t and Ψ_t as printed: a sum over k ≥ t of products over t ≤ i < k."""
    n = len(rewards)
    after = [*values[1:], end]
    rho = [min(rho_cap, w) for w in ratios]
    trace = [lam * min(c_cap, w) for w in ratios]
    targets = [
        values[t]
        + sum(
            gamma ** (k - t) * math.prod(trace[t:k]) * rho[k] * (rewards[k] + gamma * after[k] - values[k])
            for k in range(t, n)
        )
        for t in range(n)
    ]
    following = [*targets[1:], end]
    credit = [rho[t] * (rewards[t] + gamma * following[t] - values[t]) for t in range(n)]
    return targets, credit


NUMBERS = st.floats(-5, 5)
SETTINGS = st.fixed_dictionaries(
    {
        "gamma": st.sampled_from([1.0, 0.9, 0.0]),
        "lam": st.sampled_from([1.0, 0.5, 0.0]),
        "rho_cap": st.sampled_from([1.0, 2.5]),
        "c_cap": st.sampled_from([1.0, 0.4, 0.0]),
    }
)


@st.composite
def rows(draw):
    """One row: tokens (reward, value, log-ratio, counts), and the bootstrap."""
    token = st.tuples(NUMBERS, NUMBERS, st.floats(-3, 3), st.booleans())
    return draw(st.lists(token, min_size=1, max_size=8)), draw(NUMBERS)


@given(rows(), SETTINGS, st.sampled_from([NAN, INF, -INF, 1e300]))
def test_targets_and_credit_are_their_definition_on_the_counted_tokens(row, settings, junk):
    tokens, end = row
    kept = [token for token in tokens if token[3]]
    mask = torch.tensor([[token[3] for token in tokens]])

    def column(k):
        return f64([[token[k] if token[3] else junk for token in tokens]])

    old = column(2) - 0.5
    found = vtrace(
        column(0), column(1), mask, old, torch.full_like(old, -0.5), bootstrap=f64([end]), **settings
    )
    r, v, log_ratios = ([token[k] for token in kept] for k in range(3))
    targets, credit = by_definition(r, v, [math.exp(x) for x in log_ratios], end, **settings)
    close(found.targets[mask], targets if kept else f64([]), atol=1e-10)  # ratios up to e³, products of them
    close(found.credit[mask], credit if kept else f64([]), atol=1e-10)
    assert not found.targets[~mask].any()
    assert not found.credit[~mask].any()


def test_the_slot_is_the_credit_with_every_setting():
    generator = torch.Generator().manual_seed(3)
    rewards, values, old, behaviour = (
        torch.randn(2, 5, generator=generator, dtype=torch.float64) for _ in range(4)
    )
    mask, end = flags([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0]]), f64([0.3, -0.6])
    settings = {"gamma": 0.9, "lam": 0.7, "rho_cap": 1.5, "c_cap": 1.2}
    found = vtrace_credit(rewards, values, mask, old, behaviour, bootstrap=end, **settings)
    for i in range(2):
        on = mask[i]
        ratios = (old - behaviour)[i][on].exp().tolist()
        _, expected = by_definition(
            rewards[i][on].tolist(), values[i][on].tolist(), ratios, end[i].item(), **settings
        )
        close(found[i][on], expected)
        assert not found[i][~on].any()


def test_a_ratio_that_overflows_is_capped():
    found = vtrace_credit(f64([[1.0]]), f64([[0.0]]), flags([[1]]), f64([[0.0]]), f64([[-1e4]]))
    close(found, [[1.0]])


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_no_rows_or_no_tokens(shape):
    empty, mask = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.bool)
    for found in vtrace(empty, empty, mask, empty, empty, bootstrap=empty.new_zeros(shape[0])):
        assert found.shape == shape


# --- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("caps", [{"rho_cap": 0.5}, {"c_cap": -0.1}, {"rho_cap": 0.0, "c_cap": 0.0}])
def test_caps_that_need_not_converge_are_refused(caps):
    one = f64([[1.0]])
    with pytest.raises(InvalidInput, match="caps"):
        vtrace(one, one, flags([[1]]), one, one, **caps)


@pytest.mark.parametrize("value", [-0.1, 1.1])
@pytest.mark.parametrize("name", ["gamma", "lam"])
def test_a_discount_outside_the_unit_interval_is_refused(name, value):
    one = f64([[1.0]])
    with pytest.raises(InvalidInput, match=f"{name} must be between 0 and 1"):
        vtrace(one, one, flags([[1]]), one, one, **{name: value})


def test_case_H11_shapes_that_would_broadcast_are_refused():
    two, mask = f64([[1.0, 2.0]]), flags([[1, 1]])
    arguments = dict.fromkeys(["rewards", "values", "old_logprobs", "behaviour_logprobs"], two)
    arguments["mask"] = mask
    for odd, value in arguments.items():
        with pytest.raises(InvalidInput, match=rf"same shape.* {odd} \(1, 1\)"):
            vtrace(**{**arguments, odd: value[:, :1]})
    with pytest.raises(InvalidInput, match=r"bootstrap must be \[B\]"):
        vtrace(two, two, mask, two, two, bootstrap=f64([[1.0, 2.0]]))


def test_case_E9_only_a_boolean_mask():
    two = f64([[1.0, 2.0]])
    with pytest.raises(InvalidInput, match="boolean"):
        vtrace(two, two, f64([[1.0, 1.0]]), two, two)
