"""TRL's losses through the oracle: the derivations, the recorded results, and, where TRL is built, TRL itself."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import peers
from benchmarks.peers_trl.expected import BETA, J, Row, derive
from benchmarks.peers_trl.table import sections
from rung.errors import InvalidInput, UsageError
from rung.verify.peers import trl_loss
from rung.verify.peers.trainer import table_model
from tests import toys

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "build" / "peers" / "bin" / "python"
RECORD = json.loads(peers.RESULTS.read_text(encoding="utf-8"))


def row(name: str, situation: str = "on-policy") -> Row:
    (found,) = [r for r in peers.ROWS if r.name == name and r.situation == situation]
    return found


# --- without TRL -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", [lambda: trl_loss("GRPOTrainer"), lambda: table_model(3, 2)])
def test_without_trl_the_message_names_the_command(monkeypatch, ask):
    monkeypatch.setattr("rung.verify.peers.trainer.find_spec", lambda name: None if name == "trl" else name)
    with pytest.raises(
        UsageError, match=r"needs trl: .*pip install trl==1\.16\.0.*python benchmarks/peers\.py"
    ):
        ask()


@pytest.mark.parametrize(
    ("trainer", "config", "reason"),
    [
        ("PPOTrainer", {}, "there is RLOOTrainer and GRPOTrainer, not 'PPOTrainer'"),
        (
            "GRPOTrainer",
            {"num_generations": 8},
            "num_generations cannot be set here: it is the size of the groups",
        ),
        ("RLOOTrainer", {"mask_truncated_completions": True}, "which completions were cut off"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_reason(monkeypatch, trainer, config, reason):
    monkeypatch.setattr("rung.verify.peers.trainer.find_spec", lambda name: name)
    with pytest.raises(UsageError, match=re.escape(reason)):
        trl_loss(trainer, **config)


@pytest.mark.parametrize(
    ("mask", "groups", "reason"),
    [
        ([[1, 0, 1], [1, 1, 1]], [5, 5], "no holes"),
        ([[0, 0, 0], [1, 1, 1]], [5, 5], "at least one token"),
        ([[1, 1, 0], [1, 1, 1], [1, 0, 0]], [5, 5, 2], r"groups of \[1, 2\]"),
        ([[1, 1, 0], [1, 1, 1]], [5, 2], r"groups of \[1, 1\]"),
    ],
)
def test_batches_that_trl_has_no_form_for_are_refused(monkeypatch, mask, groups, reason):
    monkeypatch.setattr("rung.verify.peers.trainer.find_spec", lambda name: name)
    mask = torch.tensor(mask, dtype=torch.bool)
    per_token = {
        name: torch.zeros(mask.shape, dtype=torch.float64)
        for name in ("policy_logprobs", "old_logprobs", "behaviour_logprobs", "reference_logprobs", "entropy")
    }
    with pytest.raises(InvalidInput, match=reason):
        trl_loss("RLOOTrainer")(
            **per_token, rewards=torch.zeros(len(mask)), mask=mask, groups=torch.tensor(groups)
        )


# --- the derivations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", [r for r in peers.ROWS if r.closed], ids=lambda r: f"{r.situation}-{r.name}".replace(" ", "-")
)
def test_a_closed_form_is_the_sum_over_all_batches(case):
    """Two derivations of the mean: an expectation over one sequence, and the sum over groups of two."""
    np.testing.assert_allclose(derive(case, 2).mean, case.closed(2), rtol=0, atol=1e-12)


def test_the_derivations_meet_the_recorded_digits():
    """∇J, the mean over each sequence's tokens, and the token ratio."""
    half_share = 1 / 2 / 2  # (G − 1)/G over two tokens
    dr_grpo = derive(row("GRPO loss_type=dr_grpo, scale_rewards=none"), 2).mean
    toys.assert_digits(dr_grpo / half_share, toys.C_OBJECTIVE_GRADIENT, 10)
    grpo = derive(row("GRPO loss_type=grpo, scale_rewards=none"), 2).mean
    toys.assert_digits(grpo * 2, toys.C_SEQUENCE_MEAN, 10)
    stale = row("GRPO loss_type=dr_grpo, num_iterations=2, scale_rewards=none, epsilon=10.0", "stale")
    toys.assert_digits(derive(stale, 2).mean / half_share, toys.C_TOKEN_IMPORTANCE, 9)


@pytest.mark.parametrize("size", [2, 3])
def test_standardized_rewards_meet_the_recorded_direction(monkeypatch, size):
    """TRL's epsilon in the denominator all but taken away, the direction is the recorded one."""
    monkeypatch.setattr("benchmarks.peers_trl.parts.EPSILON", 1e-10)
    mean = derive(row("GRPO loss_type=dr_grpo"), size).mean
    cosine = mean @ J / (np.linalg.norm(mean) * np.linalg.norm(J))
    toys.assert_digits(cosine, toys.C_STANDARDIZED_COSINES[size], 8)


def test_a_kl_term_in_the_reward_is_the_kl_of_whole_sequences():
    """J_β = J − β KL, its gradient by central differences of the objective itself."""
    policy, step = toys.TOY_C.policy, 1e-5

    def penalized(parameters):
        moved = policy.with_parameters(parameters)
        return sum(
            p * (toys.TOY_C.mdp.total_return(tau.tokens) - BETA * (np.log(p) - np.log(q)))
            for (tau, p), (_, q) in zip(
                peers.exact.distribution(toys.TOY_C.mdp, moved),
                peers.exact.distribution(toys.TOY_C.mdp, toys.TOY_C.reference),
                strict=True,
            )
        )

    units = np.eye(len(policy.parameters)) * step
    slope = [
        (penalized(policy.parameters + u) - penalized(policy.parameters - u)) / (2 * step) for u in units
    ]
    np.testing.assert_allclose(derive(row(f"RLOO beta={BETA}"), 2).mean, slope, rtol=0, atol=1e-9)


def test_a_derivation_that_is_wrong_is_found():
    """Without the own reward's share of the baseline the sum no longer is the closed form."""
    right = row("GRPO loss_type=dr_grpo, scale_rewards=none")
    wrong = replace(right, advantage=row("RLOO beta=0.0").advantage)
    assert np.abs(derive(wrong, 2).mean - right.closed(2)).max() > 0.01


# --- the record ------------------------------------------------------------------------------------------------------


def test_every_configuration_is_recorded_and_is_what_was_derived():
    assert set(RECORD["cases"]) == {peers.key(r, size) for r, size in peers.cases()}
    assert peers.off_bounds(RECORD["cases"]) == []
    for r, size in peers.cases((2,)):
        recorded = RECORD["cases"][peers.key(r, size)]
        mean, trace = peers.differences(recorded["derived"], peers.numbers(derive(r, size)))
        assert mean < 1e-10, r.name
        assert trace < 1e-9, r.name
        assert "measured" in recorded


def test_every_loss_type_of_trl_is_covered_on_policy_and_off():
    kinds = {"grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"}
    for situation in ("on-policy", "stale"):
        assert {r.config.get("loss_type") for r in peers.ROWS if r.situation == situation} == {*kinds, None}


def test_a_result_out_of_bounds_is_reported():
    case = {"derived": {"mean": [0.5], "trace": 1.0}, "measured": {"mean": [0.5 + 2e-6], "trace": 1.0}}
    (problem,) = peers.off_bounds({"a case": case})
    assert problem == "measured: mean off by 2.0e-06, trace by 0.0e+00: a case"


def test_the_page_shows_the_record():
    page = peers.PAGE.read_text(encoding="utf-8")
    for name, content in sections(RECORD, peers.ROWS).items():
        assert f"<!-- {name}: begin -->\n{content}\n<!-- {name}: end -->" in page, (
            "docs/peers.md is not what is recorded: python benchmarks/peers.py --table"
        )


# --- with TRL: collected where `python benchmarks/peers.py` has built its environment ---------------------------------

if PYTHON.exists():

    def inside(*arguments: str) -> subprocess.CompletedProcess[str]:
        settings = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [PYTHON, *arguments], env=settings, capture_output=True, text=True, check=False, cwd=ROOT
        )

    @pytest.mark.slow
    def test_every_loss_of_trl_is_what_was_derived():
        """Groups of two, through whole trainers and through log-probs; a minute or two."""
        result = inside("benchmarks/peers.py", "--check")
        assert result.returncode == 0, result.stdout + result.stderr[-2000:]
        assert "cases as derived and as recorded" in result.stdout

    @pytest.mark.slow
    def test_a_loss_of_trl_is_for_assert_unbiased():
        """Also on two prompts, whose rows arrive in turns and share all parameters."""
        code = (
            "from rung.verify.peers import trl_loss\n"
            "from rung.verify.unbiased import assert_unbiased\n"
            "assert_unbiased(trl_loss('RLOOTrainer', beta=0.0), tolerance=1e-6)\n"
            "assert_unbiased(trl_loss('RLOOTrainer', beta=0.3), kl_coefficient=0.3, tolerance=1e-6)\n"
            "scaled = trl_loss('GRPOTrainer', loss_type='dr_grpo', scale_rewards='none', max_completion_length=2)\n"
            "assert_unbiased(scaled, up_to_scale=True, tolerance=1e-6)\n"
            "try:\n"
            "    assert_unbiased(trl_loss('GRPOTrainer'), up_to_scale=True, tolerance=1e-6)\n"
            "except AssertionError as error:\n"
            "    print(error)\n"
        )
        result = inside("-c", code)
        assert result.returncode == 0, result.stderr[-2000:]
        assert "another direction" in result.stdout
