"""`rung verify` and `rung verify METHOD` as data: whole, true, and naming the method that is not what it claims."""

import dataclasses
import json
import math

import numpy as np
import pytest

from rung.errors import UsageError
from rung.methods import CATALOGUE
from rung.verify import catalogue
from rung.verify.catalogue.check import Case, build, measure
from rung.verify.claims import CLAIMS
from rung.verify.findings import Findings, Line, coinciding
from tests.mutants.runner import Mutant, planted
from tests.toys import C_OBJECTIVE_GRADIENT, C_STANDARDIZED_COSINES

# The others are examined with the slow tests.
EXAMINED = ("rloo", "gspo")


@pytest.fixture(scope="module")
def progress():
    return []


@pytest.fixture(scope="module")
def whole(progress) -> Findings:
    """The survey of all methods, once."""
    return catalogue.survey(watch=lambda done, total: progress.append((done, total)))


def complete(findings):
    """Every table is rectangular, every number finite, every curve as long as its axis, and all of it is JSON."""
    assert findings.title
    assert findings.summary
    for table in findings.tables:
        assert table.rows, table.title
        assert {len(row) for row in table.rows} == {len(table.columns)}, table.title
        numbers = [cell for row in table.rows for cell in row if isinstance(cell, float)]
        assert all(math.isfinite(number) for number in numbers), table.title
    for chart in findings.charts:
        assert chart.lines
        for line in chart.lines:
            assert len(line.x) == len(line.y) > 1
            assert list(line.x) == sorted(line.x)
            assert all(math.isfinite(y) for y in line.y)
    json.dumps(dataclasses.asdict(findings), allow_nan=False)


def by_method(table):
    return {row[0]: dict(zip(table.columns[1:], row[1:], strict=True)) for row in table.rows}


# --- all methods ----------------------------------------------------------------------------------------------------


def test_the_whole_catalogue_is_as_claimed(whole):
    assert whole.failures == ()
    complete(whole)


def test_every_method_has_its_row(whole):
    first = by_method(whole.tables[0])
    assert list(first) == list(CATALOGUE)
    for name, row in first.items():
        kind = CLAIMS[name].on_policy.kind
        assert row["holds"] is True
        assert (row["bias"] < 1e-9) is (kind == "unbiased"), name
        assert (row["cosine"] > 1 - 1e-12) is (kind != "biased"), name
        assert row["trace"] > 0
    assert whole.summary.startswith(
        "On policy 12 of 22 methods are the gradient of their objective, 2 a fixed multiple of it and 8 another"
    )


def test_the_numbers_are_the_published_ones(whole):
    """GSPO with one update is GRPO without a KL: a mean over each sequence of standardised rewards, G = 2.

    Its cosine is none of the published ones, which sum over tokens; that of Dr. GRPO is 1, and REINFORCE is short by
    half of ∇J.
    """
    first = by_method(whole.tables[0])
    assert first["gspo"]["cosine"] != pytest.approx(C_STANDARDIZED_COSINES[2], abs=1e-4)
    assert first["reinforce"]["bias"] == pytest.approx(0.5, abs=1e-12)  # 1/B
    assert first["dr-grpo"]["bias"] == pytest.approx(0.75, abs=1e-12)  # 1 − (G−1)/(G·length)
    found = measure(CLAIMS["dr-grpo"], Case("one prompt", 2)).bias.moments.ascent
    assert found == pytest.approx(C_OBJECTIVE_GRADIENT / 4, abs=1e-10)


def test_the_person_who_waits_is_told(whole, progress):
    assert progress == [(done, len(CATALOGUE)) for done in range(1, len(CATALOGUE) + 1)]


def test_settings_say_on_what_it_was_measured(whole):
    assert whole.settings["KL(sampler‖policy) off policy, one prompt, nats"] == pytest.approx(
        0.2386, abs=1e-4
    )
    assert (
        "dual-clip clip_low 0.2, clip_high 0.2, dual_clip 1.5; dr-grpo length 2"
        in whole.settings["made with"]
    )
    assert whole.settings["KL coefficient"] == "0.1; dr-grpo, dapo, gspo, cispo 0; ppo-penalty 1"
    note = whole.tables[0].note
    assert "J is J − β KL(π‖ref); J for dr-grpo, gspo, cispo" in note
    assert "J − β KL(old‖π) for ppo-penalty; J + E[overlong] for dapo" in note


def test_some_of_the_methods():
    found = catalogue.survey(["rloo", "grpo"])
    assert [row[0] for row in found.tables[0].rows] == ["rloo", "grpo"]
    assert found.failures == ()
    assert found.summary.startswith(
        "On policy 1 of 2 methods are the gradient of their objective and 1 another direction: in pairs grpo turns"
    )


def test_of_some_methods_nothing_is_said_of_others():
    found = catalogue.survey(["rloo"])
    assert found.summary.startswith(
        "On policy 1 of 1 methods are the gradient of their objective. Once the policy has moved, or with another"
    )
    assert found.settings["KL coefficient"] == "0.1"
    assert not {"made with", "critic"} & set(found.settings)
    assert found.tables[0].note.split("; J is ")[1].startswith("J − β KL(π‖ref). cosine:")


def test_more_samples_show_which_directions_heal(whole):
    """Dr. GRPO is short by its length and straight at every G; whitening heals, a spread for each prompt does not."""
    (table,) = (t for t in whole.tables if t.title.startswith("More samples"))
    cosines = {row[0]: row[1:4] for row in table.rows}
    assert cosines["dr-grpo"] == pytest.approx((1.0, 1.0, 1.0), abs=1e-12)
    assert cosines["reinforce++"][0] < cosines["reinforce++"][1] < cosines["reinforce++"][2] < 1 - 1e-3
    assert cosines["gspo"][2] < 0.96
    assert "its direction heals" in table.note


# --- a method that is not what it claims ----------------------------------------------------------------------------


def fault(target, find, replace):
    return Mutant("planted here", target, find, replace, "", "")


@pytest.mark.parametrize(
    ("name", "planted_fault", "message"),
    [
        (
            "rloo",
            fault(
                "rung.credit.leave_one_out",
                "return centered * sizes / (sizes - 1).clamp(min=1)",
                "return centered",
            ),
            "claimed to be unbiased, but its relative bias is 0.5",
        ),
        (
            "reinforce",
            fault(
                "rung.credit.reward_to_go_minus_batch_mean",
                "reward_to_go(rewards, mask) - baseline",
                "reward_to_go(rewards, mask)",
            ),
            "claimed to be 1 − 1/B = 0.5 of the gradient, but is off by",
        ),
        (
            "grpo",
            fault("rung.aggregation.sequence_mean", "* lengths)", ")"),
            "its mean is off the derived one by",
        ),
        (
            "grpo",
            fault(
                "rung.kl.k3",
                "k1(policy_logprobs, reference_logprobs)",
                "k1(reference_logprobs, policy_logprobs)",
            ),
            "the part of its k3 in the loss is off the derived one by",
        ),
        (
            "cispo",
            fault("rung.aggregation.sequence_sum", "1.0 / max(totals.sequences, 1)", "1.0"),
            "with its sources of bias taken out, a relative bias of 1 is left",
        ),
    ],
)
def test_a_wrong_method_is_named(name, planted_fault, message):
    with planted(planted_fault):
        failures = catalogue.survey([name]).failures
    assert any(text.startswith(name) and message in text for text in failures), failures


def test_a_bias_that_is_claimed_has_to_show():
    """RLOO under GRPO's claim: that it is biased is tested like any other claim."""
    claim = dataclasses.replace(CLAIMS["rloo"], on_policy=CLAIMS["grpo"].on_policy)
    failures = measure(claim, Case("one prompt", 2)).failures
    assert len(failures) == 1
    assert failures[0].startswith(
        "rloo (one prompt, G = 2, on-policy): claimed to be biased: own sample in the mean"
    )


# --- one method -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [name if name in EXAMINED else pytest.param(name, marks=pytest.mark.slow) for name in CATALOGUE]
)
def test_every_method_can_be_examined(name):
    found = catalogue.examine(name)
    assert found.failures == ()
    complete(found)
    assert [row[0] for row in found.tables[0].rows][:2] == ["credit", "policy loss"]
    assert found.summary.endswith(CLAIMS[name].meaning)
    assert len(found.charts) == 3


def test_an_unknown_method_is_refused_with_the_nearest():
    with pytest.raises(
        UsageError,
        match=r'"rlo" is not known; there is vpg, .*cispo, kl, credit, clip; did you mean "rloo"\?',
    ):
        catalogue.examine("rlo")
    for written, meant in (("Clipp", "clip"), ("PPO-Penalti", "ppo-penalty")):
        with pytest.raises(UsageError, match=f'did you mean "{meant}"'):
            catalogue.examine(written)


def test_a_name_may_be_written_in_capitals():
    assert catalogue.one_method._claim("RLOO") is CLAIMS["rloo"]


def test_curves_that_lie_on_each_other_are_named():
    """A loss without a ratio cannot tell an older policy's samples from another sampler's; one with a ratio can."""
    for name, same in (("rloo", True), ("cispo", False)):
        for chart in catalogue.one_method._curves(CLAIMS[name], build(CLAIMS[name])):
            stale, mismatch = (np.array(line.y) for line in chart.lines)
            assert bool(np.allclose(stale, mismatch, rtol=1e-9, atol=1e-12)) is same
            assert ("stale and mismatch coincide." in chart.note) is same


def test_coinciding_curves_of_many_are_listed_in_groups():
    x = (0.0, 1.0)
    ys = {
        "a": (1.0, 2.0),
        "b": (3.0, 4.0),
        "c": (1.0, 2.0),
        "d": (1.0, 2.0),
        "e": (3.0, 4.0),
        "f": (1.0, 2.1),
    }
    lines = tuple(Line(name, x, y) for name, y in ys.items())
    assert coinciding(lines) == "a, c and d coincide. b and e coincide."
    assert coinciding(lines[:2]) == ""


def test_the_parts_of_a_method_are_shown_with_what_is_fixed_of_them():
    slots = {
        row[0]: row[1:] for row in catalogue.one_method._slots(CATALOGUE["rloo-corrected"](cap=1.5)).rows
    }
    assert slots["correction"] == (
        "sequence_truncation(cap=1.5)",
        "The sequence's importance weight, truncated from above, on each of its tokens.",
    )
    assert slots["KL"][0] == "k1, in the reward, against reference, β = 0.05"
