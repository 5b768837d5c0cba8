"""Weights between sampler and trainer by hand: levels, cut-offs, and what must not enter."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.correction import (
    icepop,
    importance,
    sequence_mask,
    sequence_truncation,
    token_mask,
    token_truncation,
)
from rung.errors import InvalidInput
from rung.notation import MAX_LOG_RATIO
from rung.policy_losses import policy_gradient_loss
from tests.batches import INF, NAN, close, f64, flags, gradient

# Ratios old/behaviour; products 3, 0.75 and 5 over what counts.
MASK = flags([[1, 1, 0, 1], [0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
RATIOS = f64([[2.0, 0.5, 9.0, 3.0], [7.0, 3.0, 0.25, 7.0], [5.0, 9.0, 9.0, 9.0], [2.0, 2.0, 2.0, 2.0]])
BEHAVIOUR = f64([[-0.3, -1.1, -0.2, -2.0], [-0.4, -0.9, -3.0, -0.1], [-0.6] * 4, [-0.7] * 4])
OLD = BEHAVIOUR + RATIOS.log()

TOKENS = f64([[2.0, 0.5, 0.0, 3.0], [0.0, 3.0, 0.25, 0.0], [5.0, 0.0, 0.0, 0.0], [0.0] * 4])
SEQUENCES = f64([[3.0, 3.0, 0.0, 3.0], [0.0, 0.75, 0.75, 0.0], [5.0, 0.0, 0.0, 0.0], [0.0] * 4])

EVERY = {
    "token importance": (partial(importance, level="token"), TOKENS),
    "sequence importance": (partial(importance, level="sequence"), SEQUENCES),
    "token truncation": (partial(token_truncation, cap=2.5), TOKENS.clamp(max=2.5)),
    "sequence truncation": (partial(sequence_truncation, cap=4.0), SEQUENCES.clamp(max=4.0)),
    "token mask": (
        partial(token_mask, cap=2.5),
        f64([[2.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.25, 0.0], [0.0] * 4, [0.0] * 4]),
    ),
    "sequence mask": (
        partial(sequence_mask, cap=4.0),
        f64([[3.0, 3.0, 0.0, 3.0], [0.0, 0.75, 0.75, 0.0], [0.0] * 4, [0.0] * 4]),
    ),
    "icepop": (
        partial(icepop, low=0.4, high=2.5),
        f64([[2.0, 0.5, 0.0, 0.0], [0.0] * 4, [0.0] * 4, [0.0] * 4]),
    ),
}
ALL = pytest.mark.parametrize("correction", [c for c, _ in EVERY.values()], ids=EVERY)


@pytest.mark.parametrize(("correction", "expected"), EVERY.values(), ids=EVERY)
def test_weights_by_hand(correction, expected):
    close(correction(OLD, BEHAVIOUR, MASK), expected)


@ALL
def test_equal_models_give_weights_of_one(correction):
    close(correction(BEHAVIOUR, BEHAVIOUR.clone(), MASK), MASK.double())


@ALL
@pytest.mark.parametrize("junk", [NAN, INF, -INF, 700.0])
def test_what_stands_off_the_mask_changes_nothing(correction, junk):
    weights = correction(OLD, BEHAVIOUR, MASK)
    for old, behaviour in ((junk, 0.0), (0.0, junk), (junk, junk)):
        spoilt = (
            torch.where(MASK, logprobs, filler) for logprobs, filler in ((OLD, old), (BEHAVIOUR, behaviour))
        )
        close(correction(*spoilt, MASK), weights)


@ALL
def test_weights_are_constants_under_the_gradient(correction):
    """Also where the trainer's log-probs are those being differentiated: ∂(w log π) = w, without ∂w log π."""
    policy = OLD.clone().requires_grad_()
    loss = correction(policy, BEHAVIOUR, MASK) * policy_gradient_loss(policy, torch.full_like(OLD, 2.0))
    close(gradient(loss, policy), -2.0 * correction(OLD, BEHAVIOUR, MASK))
    assert not correction(policy, policy, MASK).requires_grad


@ALL
def test_weights_are_float64_whatever_the_model(correction):
    """Four thousand log-ratios of 2⁻¹² each: a product of e. Their sum in bfloat16 would be stuck at 2⁻⁴."""
    old = torch.full((1, 4096), -1.0, dtype=torch.bfloat16)
    weights = correction(old, old.float() - 2.0**-12, torch.ones(1, 4096, dtype=torch.bool))
    assert weights.dtype == torch.float64
    level = math.e if "sequence" in str(correction) else math.exp(2.0**-12)
    close(weights[0, :1], [level])


def test_a_weight_is_finite_however_far_apart_the_models_are():
    """The exponent is held at MAX_LOG_RATIO, per token or after the sum; towards zero a weight may vanish."""
    mask = flags([[1, 1], [1, 1], [1, 1]])
    old, behaviour = (
        f64([[0.0, 0.0], [-2000.0, -1.0], [0.0, 0.0]]),
        f64([[-30.0, -30.0], [-1.0, -1.0], [-500.0, 0.0]]),
    )
    most = math.exp(MAX_LOG_RATIO)
    close(importance(old, behaviour, mask, level="sequence"), [[most] * 2, [0.0] * 2, [most] * 2])
    close(
        importance(old, behaviour, mask, level="token"),
        [[math.exp(30.0)] * 2, [0.0, 1.0], [most, 1.0]],
        atol=1e-2,  # e³⁰ = 1e13, to a bit of float64
    )
    assert math.isfinite(torch.tensor(most, dtype=torch.float32).item() * 1e20)
    close(token_truncation(old, behaviour, mask, cap=2.0), [[2.0, 2.0], [0.0, 1.0], [2.0, 1.0]])
    close(token_mask(old, behaviour, mask, cap=2.0), [[0.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    close(sequence_mask(old, behaviour, mask, cap=2.0), [[0.0] * 2] * 3)


def test_a_weight_at_its_bound_is_kept():
    old, behaviour, mask = f64([[0.0, 0.0]]), f64([[0.0, 0.0]]), flags([[1, 1]])
    for correction in (partial(token_mask, cap=1.0), partial(sequence_mask, cap=1.0)):
        close(correction(old, behaviour, mask), [[1.0, 1.0]])
    close(icepop(old, behaviour, mask, low=1.0, high=2.0), [[1.0, 1.0]])
    close(icepop(old, behaviour, mask, low=0.5, high=1.0), [[1.0, 1.0]])


@given(st.lists(st.floats(-3, 3), min_size=16, max_size=16), st.floats(0.3, 4.0))
def test_masking_tokens_is_icepop_from_zero(log_ratios, cap):
    old = f64(log_ratios).reshape(4, 4)
    behaviour = torch.zeros_like(old)
    close(token_mask(old, behaviour, MASK, cap=cap), icepop(old, behaviour, MASK, low=0.0, high=cap))


@given(st.lists(st.floats(-3, 3), min_size=16, max_size=16), st.floats(0.3, 4.0))
def test_every_correction_is_its_definition(log_ratios, cap):
    """Plain Python, token by token and row by row."""
    old = f64(log_ratios).reshape(4, 4)
    zero = torch.zeros_like(old)
    found = {
        "token": [token_truncation(old, zero, MASK, cap=cap), token_mask(old, zero, MASK, cap=cap)],
        "sequence": [sequence_truncation(old, zero, MASK, cap=cap), sequence_mask(old, zero, MASK, cap=cap)],
    }
    for row in range(4):
        on = [t for t in range(4) if MASK[row, t]]
        for level, (truncated, masked) in found.items():
            for t in range(4):
                counted = on if level == "sequence" else [t]
                weight = math.exp(math.fsum(old[row, u].item() for u in counted)) if t in on else 0.0
                if abs(weight - cap) < 1e-9:
                    continue
                close(truncated[row, t], min(weight, cap), atol=1e-9)
                close(masked[row, t], weight if weight <= cap else 0.0, atol=1e-9)


@ALL
def test_a_token_that_counts_has_finite_logprobs(correction):
    """A NaN that became 0 in silence would hide a broken sampler."""
    for broken in (NAN, INF, -INF):
        spoilt = OLD.clone()
        spoilt[0, 1] = broken
        for arguments in ((spoilt, BEHAVIOUR), (OLD, spoilt)):
            with pytest.raises(InvalidInput, match="not finite"):
                correction(*arguments, MASK)


@ALL
def test_case_E9_only_a_boolean_mask_of_the_same_shape(correction):
    for wrong in (MASK.double(), MASK.long()):
        with pytest.raises(InvalidInput, match="boolean"):
            correction(OLD, BEHAVIOUR, wrong)
    arguments = {"old_logprobs": OLD, "behaviour_logprobs": BEHAVIOUR, "mask": MASK}
    for odd, value in arguments.items():
        with pytest.raises(InvalidInput, match=rf"same shape.* {odd} \(4, 1\)"):
            correction(**{**arguments, odd: value[:, :1]})


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(InvalidInput, match='"token" or "sequence"'):
        importance(OLD, BEHAVIOUR, MASK, level="turn")
    for correction in (token_truncation, sequence_truncation, token_mask, sequence_mask):
        for cap in (0.0, -1.0, NAN):
            with pytest.raises(InvalidInput, match="must be positive"):
                correction(OLD, BEHAVIOUR, MASK, cap=cap)
    for low, high in ((-0.1, 2.0), (2.0, 2.0), (3.0, 2.0), (NAN, 2.0)):
        with pytest.raises(InvalidInput, match="0 ≤ low < high"):
            icepop(OLD, BEHAVIOUR, MASK, low=low, high=high)
