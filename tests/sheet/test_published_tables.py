"""Tables of others where what is printed is rounded, cut or a little wrong: what the exact numbers are.

The other published tables are held by
    Schulman's note, exact
        tests/kl/test_closed_forms.py::test_published_bias_and_spread_of_two_gaussians
        tests/kl/test_closed_forms.py::test_bias_and_spread_of_two_gaussians_in_closed_form
    GAE and λ-returns of rlax
        tests/credit/test_gae_tables.py::test_a_published_vector_with_values_after_the_last_step
        tests/credit/test_gae_tables.py::test_a_published_vector_with_an_end_inside
        tests/credit/test_gae_tables.py::test_published_lambda_returns
    V-trace of rlax, its credit too
        tests/credit/test_vtrace.py::test_published_errors_and_credit
        tests/exact/test_multistep.py::test_vtrace_of_rlax
    returns of tianshou
        tests/credit/test_gae_tables.py::test_three_terminated_episodes_of_the_published_table
        tests/credit/test_gae_tables.py::test_two_of_them_truncated
        tests/credit/test_gae_tables.py::test_episodes_of_the_published_table_without_values
    means over tokens of the rlhf-book
        tests/test_aggregation.py::test_published_values_of_two_rows_of_different_lengths
        tests/test_aggregation.py::test_published_gradients_by_the_ratio
    the best of N; rung samples none, the oracle has them
        tests/exact/test_best_of_n.py::test_recorded_bounds
        tests/exact/test_best_of_n.py::test_recorded_divergences
        tests/exact/test_best_of_n.py::test_win_rates_stay_below_their_bound
"""

import math
from fractions import Fraction

import pytest

from rung.credit import gae, vtrace
from rung.kl import k1, k2, k3
from rung.policy_losses import clipped_loss
from tests.batches import f64
from tests.credit.test_gae_tables import (
    TABLE_NEXT_VALUES,
    TABLE_REWARDS,
    TABLE_VALUES,
    TERMINATED,
    TRUNCATED,
    full,
)
from tests.credit.test_vtrace import ERRORS, published
from tests.kl.test_closed_forms import moments
from tests.toys import assert_digits

# --- two Gaussians ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("divergence", "printed"),
    [
        (0.005, {k1: (0.0, 20.0, 3, 0), k2: (0.002, 1.42, 3, 2), k3: (0.0, 1.42, 3, 2)}),
        (0.5, {k1: (0.0, 2.0, 3, 0), k2: (0.25, 1.73, 2, 2), k3: (0.0, 1.7, 3, 1)}),
    ],
)
def test_the_table_of_schulmans_note(divergence, printed):
    """Bias and deviation over the true value, N(0,1) against N(m,1), KL = m²/2: each to half of its last place.

    k2's bias at KL .005 is m²/4 = .0025, so that .002 stands right on the edge; .003 would be as near.
    """
    mean = math.sqrt(2 * divergence)
    square = mean**2
    closed = {
        k1: (0.0, 2 / mean),
        k2: (square / 4, math.sqrt(2 + square)),
        k3: (0.0, math.sqrt(math.expm1(square) - square) / divergence),
    }
    for estimator, (bias, spread, bias_places, spread_places) in printed.items():
        for found in (moments(estimator, mean), closed[estimator]):
            assert_digits(found[0], bias, bias_places)
            assert_digits(found[1], spread, spread_places)


# --- V-trace ---------------------------------------------------------------------------------------------------------


def test_vtrace_to_its_last_place():
    """Ten places, and the one of 8e-5 to its ten digits: errors of the targets, and the credit, which is equal here."""
    *arguments, end, weight = published()
    targets, credit = vtrace(*arguments, bootstrap=end)
    values, mask = arguments[1], arguments[2]
    recorded = [x for row in ERRORS for x in row]
    for found in (((targets - values) / weight)[mask], (credit / weight)[mask]):
        assert_digits(found, recorded, 10)
        assert_digits(found[6] * 1e5, recorded[6] * 1e5, 9)


# --- the clip --------------------------------------------------------------------------------------------------------


def test_a_printed_loss_that_is_good_to_five_places():
    """Ratios 1, 1 and e^−2, advantages .3, .2, .1: −(.5 + .1 e^−2)/3. rlax prints −.17117467, 3e-6 from it.

    Negated, the third is held at .8: (.3 + .2 + .08)/3.
    """
    policy, old = f64([-1.0, -1.0, -3.0]), f64([-1.0, -1.0, -1.0])
    gains = f64([0.3, 0.2, 0.1])
    found = clipped_loss(policy, old, gains).mean().item()
    assert found == pytest.approx(-(0.5 + 0.1 * math.exp(-2)) / 3, abs=1e-15)
    assert_digits(found, -0.1711778428, 10)
    assert 3e-6 < abs(found + 0.17117467) < 0.5e-5
    negated = clipped_loss(policy, old, -gains).mean().item()
    assert negated == pytest.approx(0.58 / 3, abs=1e-15)
    assert_digits(negated, 0.1933333333, 10)


# --- returns ---------------------------------------------------------------------------------------------------------


def exactly(rewards, next_values, values, *, cut_off):
    """λ-returns of one episode in fractions: r + γ ((1 − λ) V(s') + λ G')."""
    gamma, lam = Fraction(99, 100), Fraction(95, 100)
    tail = Fraction(next_values[-1]) if cut_off else Fraction(0)
    found = []
    for t in reversed(range(len(rewards))):
        after = values[t + 1] if t + 1 < len(rewards) else tail
        tail = rewards[t] + gamma * ((1 - lam) * after + lam * tail)
        found.append(tail)
    return found[::-1]


@pytest.mark.parametrize(("cut_off", "table"), [(False, TERMINATED), (True, TRUNCATED)])
def test_the_table_of_tianshou_in_fractions(cut_off, table):
    """Which of the printed numbers are cut rather than rounded: 454.8344(7) alone."""
    rewards, following, values = (
        [[int(x) for x in row] for row in numbers.tolist()]
        for numbers in (TABLE_REWARDS, TABLE_NEXT_VALUES, TABLE_VALUES)
    )
    exact = [
        exactly(rewards[i], following[i], values[i], cut_off=cut_off and i < 2) for i in range(len(rewards))
    ]
    end = TABLE_NEXT_VALUES[:, -1] * f64([1.0, 1.0, 0.0]) if cut_off else None
    found = gae(TABLE_REWARDS, TABLE_VALUES, full(TABLE_REWARDS), gamma=0.99, lam=0.95, bootstrap=end)
    for got, wanted, printed in zip(found + TABLE_VALUES, exact, table, strict=True):
        assert got.tolist() == pytest.approx([float(x) for x in wanted], abs=1e-10)
        assert_digits([float(x) for x in wanted], printed, 4)
    if not cut_off:
        first = exact[0][0]
        assert Fraction("454.8344") < first < Fraction("454.8345")
        assert first - Fraction("454.8344") > Fraction("454.8345") - first
        assert_digits(float(first), 454.83447, 5)
