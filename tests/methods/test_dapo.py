"""What DAPO does around its loss: which groups train, and what a long answer is charged."""

import math

from rung.methods import dapo
from tests.batches import annotated, close, rollouts
from tests.methods.helpers import build

ROOT = math.sqrt(0.5)


def test_groups_of_one_reward_are_left_out_of_every_denominator():
    """Rewards 1, 0 | 2, 2 over 1, 1 | 3, 3 tokens: the weights of two rows of one token, and nothing of the others."""
    batch = annotated(rollouts([[1], [1], [1, 1, 1], [1, 1, 1]], [1.0, 0.0, 2.0, 2.0], [0, 0, 5, 5]))
    method = build("dapo")
    prepared = method.prepare(batch)
    assert prepared.mask.tolist() == [[True, False, False], [True, False, False], [False] * 3, [False] * 3]
    close(method.weights(prepared.mask)[:2, 0], [0.5, 0.5])
    close(build("cispo").weights(build("cispo").prepare(batch).mask)[:2, 0], [1 / 8, 1 / 8])


def test_a_penalty_does_not_make_a_group_mixed():
    """The judge's rewards decide what trains; the penalty on length then enters the credit."""
    batch = annotated(rollouts([[1], [1, 1], [1], [1, 1]], [1.0, 1.0, 0.5, 1.0], [0, 0, 5, 5]))
    prepared = dapo(length=2, overlong_buffer=1).prepare(batch)
    assert prepared.mask.any(1).tolist() == [False, False, True, True]
    close(prepared.credit[2:, 0], [ROOT, -ROOT])  # 0.5 against 1 − 1


def test_the_charge_for_length_stands_in_the_return_that_is_standardized():
    """Cap 10, buffer 4: lengths 6, 8, 10 are charged 0, 1/2 and 1."""
    batch = annotated(rollouts([[1] * 6, [1] * 8, [1] * 10], [1.0, 2.0, 0.0]))
    credit = dapo(length=10, overlong_buffer=4).prepare(batch).credit[:, 0]
    shaped = [1.0, 1.5, -1.0]
    mean, spread = 0.5, math.sqrt((0.25 + 1.0 + 2.25) / 2)
    close(credit, [(x - mean) / spread for x in shaped])
    # By default a fifth of the cap: lengths up to 8 of 10 are free.
    by_default = dapo(length=10).prepare(batch).credit[:, 0]
    shaped, mean = [1.0, 2.0, -1.0], 2 / 3
    spread = math.sqrt(sum((x - mean) ** 2 for x in shaped) / 2)
    close(by_default, [(x - mean) / spread for x in shaped])
