"""The clip of whole sequences by hand: one ratio, one credit, one decision for each."""

import math
from functools import partial

import pytest
import torch

from rung.errors import InvalidInput
from rung.policy_losses import sequence_clipped_loss
from tests.batches import INF, NAN, close, f64, flags, gradient

sequence_clip = partial(sequence_clipped_loss, clip_low=0.2, clip_high=0.2)
RATIOS = f64([[4.0, 0.5, NAN, 0.5], [3.0, NAN, INF, 3.0], [0.25, 7.0, 7.0, 7.0], [1.0, 1.0, 1.0, 1.0]])
SEQUENCES = flags([[1, 1, 0, 1], [1, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]])


def test_the_clip_of_sequences_by_hand():
    """Geometric means 1 (4 · ½ · ½), 3 and ¼ over lengths 3, 2 and 1; the last row counts nothing."""
    policy = RATIOS.log().requires_grad_()
    credit = f64([[2.0], [2.0], [2.0], [2.0]]).expand(4, 4)
    loss = sequence_clip(policy, torch.zeros(4, 4, dtype=torch.float64), credit, SEQUENCES)
    per_row = f64([[-2.0], [-2.4], [-0.5], [0.0]])
    close(loss, torch.where(SEQUENCES, per_row, 0.0))
    # −s A/L on each token, L times over: of the first row −2, of the third −½; the second is clipped.
    close(gradient(loss, policy), [[-2.0, -2.0, 0.0, -2.0], [0.0] * 4, [-0.5, 0.0, 0.0, 0.0], [0.0] * 4])


def test_a_sequence_of_bad_credit_is_clipped_from_below_and_unbounded_above():
    policy = RATIOS.log().requires_grad_()
    credit = torch.full((4, 4), -1.0, dtype=torch.float64)
    loss = sequence_clip(policy, torch.zeros(4, 4, dtype=torch.float64), credit, SEQUENCES)
    close(loss, torch.where(SEQUENCES, f64([[1.0], [3.0], [0.8], [0.0]]), 0.0))
    slope = gradient(loss, policy)
    close(slope[1], [3.0, 0.0, 0.0, 3.0])
    close(slope[2], [0.0] * 4)


def test_each_sequence_has_its_own_credit_and_old_logprobs():
    """Ratios e^(0.1, −0.3) and e^0.2: geometric means e^−0.1 and e^0.2, of which only the second is clipped."""
    old = f64([[-1.0, -2.0], [-3.0, -9.0]])
    policy, mask = old + f64([[0.1, -0.3], [0.2, 5.0]]), flags([[1, 1], [1, 0]])
    loss = sequence_clip(policy, old, f64([[2.0, 2.0], [7.0, 7.0]]), mask)
    close(loss, [[-2.0 * math.exp(-0.1)] * 2, [-7.0 * 1.2, 0.0]])


def test_the_bounds_of_a_sequence_are_separate():
    def at(ratio, credit):
        loss = sequence_clipped_loss(
            f64([[ratio]]).log(), f64([[0.0]]), f64([[credit]]), flags([[1]]), clip_low=0.1, clip_high=0.4
        )
        return loss.item()

    assert [at(1.3, 1.0), at(1.5, 1.0)] == pytest.approx([-1.3, -1.4], abs=1e-12)
    assert [at(0.95, -1.0), at(0.85, -1.0)] == pytest.approx([0.95, 0.9], abs=1e-12)


def test_a_sequence_has_one_credit_the_mean_of_its_tokens():
    """Ratios 2 and 2, credits 1 and 4 (and NaN off the mask): s A = 2 · 2.5, clipped to 1.2 · 2.5; 5 if not clipped."""
    policy = f64([[2.0, 2.0, 9.0]]).log()
    credit, mask, old = f64([[1.0, 4.0, NAN]]), flags([[1, 1, 0]]), torch.zeros(1, 3, dtype=torch.float64)
    close(sequence_clip(policy, old, credit, mask), [[-3.0, -3.0, 0.0]])
    wide = sequence_clipped_loss(policy, old, credit, mask, clip_low=0.2, clip_high=9.0)
    close(wide, [[-5.0, -5.0, 0.0]])


def test_the_clip_of_sequences_refuses_what_it_cannot_use():
    row = f64([[0.0, 0.0]])
    with pytest.raises(InvalidInput, match="boolean"):
        sequence_clip(row, row, row, f64([[1.0, 0.0]]))
    with pytest.raises(InvalidInput, match="clipping needs"):
        sequence_clipped_loss(row, row, row, flags([[1, 1]]), clip_low=NAN, clip_high=0.2)
    arguments = {"policy_logprobs": row, "old_logprobs": row, "credit": row, "mask": flags([[1, 1]])}
    for odd, value in arguments.items():
        with pytest.raises(InvalidInput, match=rf"same shape.* {odd} \(2, 1\)"):
            sequence_clip(**{**arguments, odd: value.T})
