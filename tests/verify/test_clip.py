"""`rung verify clip`: every claim holds, the digits are the recorded ones, and a wrong number becomes a sentence."""

import numpy as np
import pytest
import torch

from rung.verify.clip import steps as clip_steps
from rung.verify.clip.cells import CLIPS, Clip
from rung.verify.clip.claims import LEAST_RATIO, OBJECTIVES, OLD_POLICY, Piece, clipped
from rung.verify.clip.steps import climb, climb_by_hand
from rung.verify.clip.tables import EDGES, REGIONS, _compared, survey
from rung.verify.clip.toy import corrections, family
from rung.verify.findings import Findings
from rung.verify.problems import one_prompt
from tests.toys import (
    C_CLIP_HIGHER_OBJECTIVE_NEGATED,
    C_CLIPPED_GRADIENT,
    C_CLIPPED_OBJECTIVE,
    C_CLIPPED_OBJECTIVE_NEGATED,
    C_DUAL_CLIPPED_OBJECTIVE,
    C_SEQUENCE_CLIPPED_OBJECTIVE,
    assert_digits,
)


@pytest.fixture(scope="module")
def findings():
    return survey()


def test_every_claim_holds(findings):
    assert isinstance(findings, Findings)
    assert findings.failures == ()


def test_tables_and_charts_are_regular(findings):
    for table in findings.tables:
        assert all(len(row) == len(table.columns) for row in table.rows), table.title
    for chart in findings.charts:
        assert all(len(line.x) == len(line.y) > 1 for line in chart.lines), chart.title


def test_the_slopes_are_those_of_the_six_regions(findings):
    """Window 0.8 to 1.2; ρ 0.5, 1, 1.5, 4: written out."""
    slopes = findings.tables[0]
    assert slopes.columns == ("region", "no clip", "clip 0.2", "dual clip 3", "CISPO 2", "GSPO 0.2")
    wanted = [
        (0.5, 0.5, 0.5, 0.5, 0.5),
        (1, 1, 1, 1, 1),
        (1.5, 0, 0, 1.5, 0),
        (4, 0, 0, 2, 0),
        (-0.5, 0, 0, -0.5, 0),
        (-1, -1, -1, -1, -1),
        (-1.5, -1.5, -1.5, -1.5, -1.5),
        (-4, -4, 0, -2, -4),
    ]
    np.testing.assert_allclose([row[1:] for row in slopes.rows], wanted, rtol=0, atol=1e-12)
    assert len(REGIONS) * 2 == len(wanted)


def test_the_losses_are_those_of_the_six_regions(findings):
    losses = findings.tables[1]
    assert losses.columns == ("region", "no clip", "clip 0.2", "dual clip 3", "GSPO 0.2")
    wanted = [
        (0.5, 0.5, 0.5, 0.5),
        (1, 1, 1, 1),
        (1.5, 1.2, 1.2, 1.2),
        (4, 1.2, 1.2, 1.2),
        (-0.5, -0.8, -0.8, -0.8),
        (-1, -1, -1, -1),
        (-1.5, -1.5, -1.5, -1.5),
        (-4, -4, -3, -4),
    ]
    np.testing.assert_allclose([row[1:] for row in losses.rows], wanted, rtol=0, atol=1e-12)


def test_ratios_stand_exactly_on_the_edges():
    """Otherwise "on the edge" would be beside it."""
    for edge in (0.5, 2.0, 4.0):
        assert torch.tensor(edge, dtype=torch.float64).log().exp().item() == edge


def test_on_the_edge_the_gradient_is_kept_and_on_the_dual_clip_half_of_it():
    assert EDGES["clip"].measure(2.0, 1.0) == Piece(2.0, 2.0)
    assert EDGES["clip"].measure(0.5, -1.0) == Piece(-0.5, -0.5)
    assert EDGES["clip"].measure(2.0 + 1e-9, 1.0) == Piece(2.0, 0.0)
    assert EDGES["dual clip"].measure(4.0, -1.0) == Piece(-4.0, -2.0)
    assert EDGES["dual clip"].measure(4.0 + 1e-9, -1.0) == Piece(-4.0, 0.0)


def test_a_wrong_piece_becomes_a_sentence():
    failures = []
    wrong = Clip(CLIPS["clip 0.2"].loss, clipped(0.8, 1.3))
    _compared("clip", wrong, 1.5, 1.0, failures)
    assert failures == ["clip, Ψ = 1, ρ = 1.5: the objective is 1.2, by hand 1.3"]
    _compared("clip", wrong, 1.25, 2.0, failures)
    assert failures[1:] == [
        "clip, Ψ = 2, ρ = 1.25: the objective is 2.4, by hand 2.5",
        "clip, Ψ = 2, ρ = 1.25: the slope is 0, by hand 2.5",
    ]


def test_recorded_objectives_of_toy_c():
    recorded = {
        "clip 0.2": C_CLIPPED_OBJECTIVE,
        "dual clip 1.5": C_DUAL_CLIPPED_OBJECTIVE,
        "negated, clip 0.2": C_CLIPPED_OBJECTIVE_NEGATED,
        "negated, clip 0.2/0.28": C_CLIP_HIGHER_OBJECTIVE_NEGATED,
        "sequence clip 0.2": C_SEQUENCE_CLIPPED_OBJECTIVE,
    }
    assert recorded == OBJECTIVES
    found = family(one_prompt())
    for name, value in recorded.items():
        assert_digits(found[name].value, value, 12)
    assert_digits(found["clip 0.2"].gradient, C_CLIPPED_GRADIENT, 10)


def test_the_clip_does_not_bound_the_ratio():
    """Arm 1 ends below 0.8; the others share at least 0.28, each had 0.05."""
    ratios = climb(CLIPS["clip 0.2"]).ratios()[-1]
    assert ratios[1] < 0.8
    assert ratios[0] + ratios[2] >= 5.6
    assert ratios.max() > LEAST_RATIO > 2 * 1.2
    free = climb(CLIPS["no clip"]).ratios()[-1]
    assert free[0] == pytest.approx(20.0, abs=0.05)  # all of the probability


def test_the_path_is_the_one_by_hand_and_the_mean_ratio_is_one():
    for name in clip_steps.COMPARED:
        path, by_hand = climb(CLIPS[name], steps=50), climb_by_hand(CLIPS[name], steps=50)
        np.testing.assert_allclose(path.logits, by_hand.logits, rtol=0, atol=1e-10)
        np.testing.assert_allclose(path.ratios() @ np.array(OLD_POLICY), 1.0, rtol=0, atol=1e-12)


def test_the_first_step_by_hand():
    """Logits move by rate · π_old A: A = (.95, −.05, −.05)."""
    path = climb(CLIPS["clip 0.2"], steps=1, rate=10.0)
    moved = np.array([0.05 * 0.95, -0.9 * 0.05, -0.05 * 0.05]) * 10.0
    np.testing.assert_allclose(path.logits[1] - path.logits[0], moved, rtol=0, atol=1e-12)


def test_only_the_ratio_of_the_sequence_is_exact():
    table, chart, failures = corrections()
    assert failures == []
    bias = {row[0]: row[1] for row in table.rows}
    assert bias["the sequence's ratio"] == 0.0
    assert 0.0 < bias["token ratios"] < bias["no ratio"]
    token_ratios = next(line for line in chart.lines if line.name == "token ratios")
    assert list(token_ratios.y) == sorted(token_ratios.y)  # the farther, the worse
