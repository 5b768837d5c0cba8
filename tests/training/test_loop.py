"""The loop as a whole: resuming changes nothing, sampler and trainer agree or the run stops, and the logs are right."""

import copy
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rung import api
from rung.batch import Completion, Outcome, build_rollouts
from rung.errors import SamplerMismatch, TrainingDiverged
from rung.kl import AdaptiveKL
from rung.methods import rloo
from rung.rollout.engine import Request
from rung.rollout.local import LocalEngine
from rung.tasks import Problem
from rung.tasks.addition import Addition
from rung.training.checkpoint import newest
from rung.training.evaluation import Sampled
from rung.training.loop import describe, divergence, steering_divergence
from rung.training.session import Session, Silent, fingerprint
from tests.batches import completion, f64, outcomes
from tests.tiny import Stop, assert_same_run, checkpoint_of, metrics, rl_recipe, rollouts

FAST = ["evaluation.test_problems=0", "evaluation.every=0", "checkpoint.every=0"]
REUSE = ["method=ppo-loo", "training.epochs=2", "training.mini_batches=3", "optimizer.learning_rate=5e-3"]


# --- (c) resuming ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_data", "many_rewards")
@pytest.mark.parametrize("words", [[], REUSE], ids=["rloo", "ppo-loo"])
def test_case_H6_resuming_twice_across_epoch_edges_equals_the_straight_run(
    words: list[str], tmp_path: Path
) -> None:
    """Case H6: stopped in step 4, whose positions 24 to 31 cross the edge at 30, and in step 8."""
    recipe, words = rl_recipe(tmp_path), [*words, "checkpoint.every=2"]
    straight = api.train(recipe, words, name="straight", root=tmp_path).folder
    with pytest.raises(KeyboardInterrupt):
        api.train(recipe, words, name="cut", root=tmp_path, observer=Stop(4))
    cut = tmp_path / "cut"
    assert newest(cut / "checkpoints")[0] == 2
    with pytest.raises(KeyboardInterrupt):
        api.resume(cut, observer=Stop(8))
    assert newest(cut / "checkpoints")[0] == 6
    api.resume(cut)
    assert_same_run(cut, straight)
    with_signal = [line for line in metrics(straight) if line["groups_without_signal"] < 8]
    assert len(with_signal) >= 5  # else nothing but the penalty was trained
    visits = rollouts(straight, "row, step, sampling_key", "split = 'train' AND sample = 0")
    by_row = [[key for row, _, key in visits if row == chosen] for chosen, *_ in visits]
    assert max(map(len, by_row)) >= 2
    assert all(len(set(keys)) == len(keys) for keys in by_row)  # a second visit has a randomness of its own


# --- (d) sampler and trainer ----------------------------------------------------------------------------------------


def test_sampler_and_trainer_agree_to_rounding_and_all_three_numbers_are_logged(tmp_path: Path) -> None:
    lines = api.train(rl_recipe(tmp_path), [*FAST, "training.steps=3"], root=tmp_path).metrics
    assert len(lines) == 3
    for line in lines:
        assert 0 < line["sampler_logratio_max"] < 1e-5
        assert 0 <= line["sampler_logratio_p99"] <= line["sampler_logratio_max"]
        assert abs(line["sampler_logratio_mean"]) < 1e-6


def hotter(session: Session) -> None:
    """The sampler at temperature 1.01, the trainer at 1."""
    session.engine.temperature = 1.01


def shifted(session: Session) -> None:
    """Each token is paired with its neighbour's log-probability."""
    real = session.engine.generate

    def generate(requests: Sequence[Request]) -> Iterator[Completion]:
        for c in real(requests):
            moved = (*c.behaviour_logprobs[1:], c.behaviour_logprobs[0])
            object.__setattr__(c, "behaviour_logprobs", moved)
            yield c

    session.engine.generate = generate  # type: ignore[method-assign]


def stale(session: Session) -> None:
    """The sampler has a copy of the weights that differs in one matrix by a thousandth."""
    session.engine.model = copy.deepcopy(session.engine.model)
    with torch.no_grad():
        next(session.engine.model.parameters()).mul_(1.001)


@pytest.mark.parametrize("plant", [hotter, shifted, stale])
def test_case_E7_a_planted_difference_stops_the_run_before_anything_is_trained(
    plant: Any, tmp_path: Path
) -> None:
    """The tolerance is 1e-5; each plant exceeds it more than tenfold, and the message says by how much."""
    with pytest.raises(
        SamplerMismatch, match=r"sampler and trainer disagree.*temperature.*neighbour"
    ) as caught:
        api.train(rl_recipe(tmp_path), FAST, root=tmp_path, started=plant)
    largest = float(str(caught.value).split("max ")[1].split(",")[0])
    assert largest > 1e-4
    assert not (tmp_path / "tiny-rl" / "metrics.jsonl").exists()
    assert not list((tmp_path / "tiny-rl" / "checkpoints").iterdir())


def test_a_difference_is_found_after_resuming_too(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        api.train(rl_recipe(tmp_path), observer=Stop(3), root=tmp_path)
    before = newest(tmp_path / "tiny-rl" / "checkpoints")
    with pytest.raises(SamplerMismatch):
        api.resume(tmp_path / "tiny-rl", started=hotter)
    assert newest(tmp_path / "tiny-rl" / "checkpoints") == before


def test_case_E1_a_sampling_temperature_is_part_of_the_policy_and_no_mismatch(tmp_path: Path) -> None:
    """Case E1: both at 0.7."""
    words = [*FAST, "training.steps=2", "rollout.temperature=0.7"]
    assert all(
        line["sampler_logratio_max"] < 1e-5
        for line in api.train(rl_recipe(tmp_path), words, root=tmp_path).metrics
    )


# --- (b) reference, ratio, counts -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("many_rewards")
@pytest.mark.parametrize("words", [[], ["method=grpo"]], ids=["rloo", "grpo"])
def test_case_A10_the_divergence_from_the_reference_begins_at_zero_and_the_reference_stays(
    words: list[str], tmp_path: Path
) -> None:
    """Case A10: starting from a fine-tuned model, |k1| < 1e-6 per token at first, later not; reference untouched."""
    marks: list[str] = []
    sessions: list[Session] = []

    def started(session: Session) -> None:
        assert session.learner.reference is not None
        marks.append(fingerprint(session.learner.reference.model))
        assert fingerprint(session.learner.policy.model) == marks[0]
        sessions.append(session)

    words = [*words, "training.steps=3", "evaluation.every=3", "optimizer.learning_rate=5e-3"]
    run = api.train(rl_recipe(tmp_path), words, root=tmp_path, started=started)
    first, *_, last = metrics(run.folder)
    for estimator in ("k1", "k3"):
        assert abs(first[f"kl_policy_reference_{estimator}"]) / first["length_mean"] < 1e-6
        assert last[f"kl_policy_reference_{estimator}"] > 1e-4
    before, *_, after = metrics(run.folder, "eval")
    assert (before["step"], after["step"]) == (0, 3)
    assert abs(before["kl_policy_reference"]) / before["length_mean"] < 1e-6
    assert after["kl_policy_reference"] > 1e-4
    assert after["kl_policy_reference_low"] < after["kl_policy_reference"] < after["kl_policy_reference_high"]
    assert fingerprint(sessions[0].learner.reference.model) == marks[0]  # type: ignore[union-attr]
    assert fingerprint(sessions[0].learner.policy.model) != marks[0]
    assert json.loads((checkpoint_of(run.folder) / "state.json").read_text("utf-8"))["reference"] == marks[0]


def test_divergences_are_sums_over_tokens_and_means_over_sequences() -> None:
    """Log-ratios 0.5, 0.5 | 0 | none: k1 = 1/2 over the two sequences that have a token; k3 = 2 (e^−0.5 − 0.5) / 2."""
    rows = [completion([1, 2], behaviour=[-1.0, -2.0]), completion([3], behaviour=[-0.5]), completion([])]
    judged = outcomes([1.0, 0.0, 2.0])
    batch = replace(
        build_rollouts(rows, judged), reference_logprobs=f64([[-1.5, -2.5], [-0.5, 9.0], [9.0, 9.0]])
    )
    described = describe(batch, Sampled((), tuple(rows), ("", "", ""), tuple(judged))) | divergence(batch)
    assert described["kl_policy_reference_k1"] == pytest.approx(0.5, abs=1e-15)
    assert described["kl_policy_reference_k3"] == pytest.approx(math.exp(-0.5) - 0.5, abs=1e-15)
    assert (described["reward_mean"], described["reward_std"]) == (1.0, 1.0)


def test_divergences_and_what_they_steer_are_of_the_rows_that_train() -> None:
    """Log-ratios 0.5, 0.5 | −0.25 | 4 of a completion whose judge failed: k1 = (1 − 0.25)/2, not (1 − 0.25 + 4)/3.

    k3 = (2 (e^−0.5 − 0.5) + (e^0.25 − 1.25))/2 = 0.1235433681; a coefficient of 1 with target 0.25 and horizon 10
    moves to 1 − 0.2 · 2/10: with the third row, k3 would be 0.839 and the coefficient would rise.
    """
    rows = [completion([1] * n, behaviour=[-1.0] * n, sample=i) for i, n in enumerate((2, 1, 2))]
    batch = replace(
        build_rollouts(rows, outcomes([1.0, 0.0, None])),
        reference_logprobs=f64([[-1.5, -1.5], [-0.75, 9.0], [-3.0, -3.0]]),
    )
    found = divergence(batch)
    assert found["kl_policy_reference_k1"] == pytest.approx(0.375, abs=1e-15)
    assert found["kl_policy_reference_k3"] == pytest.approx(0.1235433681, abs=1e-10)
    method = rloo(kl_coefficient=AdaptiveKL(1.0, target=0.25, horizon=10.0))
    after = method.after(batch, steering_divergence(method, found))
    assert after.state == {"kl_coefficient": pytest.approx(0.96, abs=1e-15)}


def test_of_a_batch_without_a_reward_no_divergence_steers() -> None:
    batch = build_rollouts([completion([1], behaviour=[-1.0])], outcomes([None]))
    batch = replace(batch, reference_logprobs=f64([[-3.0]]))
    found = divergence(batch)
    assert found == {"kl_policy_reference_k1": 0.0, "kl_policy_reference_k3": 0.0}
    method = rloo(kl_coefficient=AdaptiveKL(1.0, target=0.25, horizon=10.0))
    assert method.after(batch, steering_divergence(method, found)).state == {"kl_coefficient": 1.0}


@pytest.mark.usefixtures("many_rewards")
def test_new_weights_reach_a_sampler_that_holds_its_own(tmp_path: Path) -> None:
    """After an update the sampler samples what was trained, also where the two do not share their memory."""

    def apart(session: Session) -> None:
        session.engine.model = copy.deepcopy(session.engine.model)

    words = [*FAST, "training.steps=3", "optimizer.learning_rate=5e-3"]
    run = api.train(rl_recipe(tmp_path), words, root=tmp_path, started=apart).folder
    assert all(line["sampler_logratio_max"] < 1e-5 for line in metrics(run))
    assert [version for (version,) in rollouts(run, "DISTINCT policy_version")] == [0, 1, 2]


@pytest.mark.usefixtures("many_rewards")
def test_case_A10_without_learning_nothing_drifts(tmp_path: Path) -> None:
    """Cases A10 and E3 with a rate of 1e-30: the divergence stays 0, no ratio leaves 1, in all epochs and steps."""
    words = [
        *FAST,
        *REUSE,
        "training.steps=3",
        "optimizer.learning_rate=1e-30",
        "training.micro_batch_tokens=20",
    ]
    for line in api.train(rl_recipe(tmp_path), words, root=tmp_path).metrics:
        assert abs(line["kl_policy_reference_k1"]) / line["length_mean"] < 1e-6
        assert line["clip_fraction"] == 0.0
        assert line["sampler_logratio_max"] < 1e-5


@pytest.mark.usefixtures("many_rewards")
def test_case_E6_with_reuse_the_clip_acts_and_updates_are_counted(tmp_path: Path) -> None:
    """Cases E6 and H8: 2 epochs × 3 mini-batches a step; the rate falls over 6 · 4 = 24 updates."""
    words = [*FAST, *REUSE, "training.steps=4", "optimizer.learning_rate=2e-2"]
    lines = api.train(rl_recipe(tmp_path), words, root=tmp_path).metrics
    assert [line["updates"] for line in lines] == [6, 12, 18, 24]
    assert [line["learning_rate"] for line in lines] == pytest.approx(
        [2e-2 * (1 - (6 * step - 1) / 24) for step in range(1, 5)], abs=1e-15
    )
    assert max(line["clip_fraction"] for line in lines) > 0.02


def test_a_run_without_a_penalty_has_no_reference(tmp_path: Path) -> None:
    words = [*FAST, "training.steps=1", "kl_coefficient=0"]
    sessions: list[Session] = []
    (line,) = api.train(rl_recipe(tmp_path), words, root=tmp_path, started=sessions.append).metrics
    assert sessions[0].learner.reference is None
    assert not [key for key in line if key.startswith("kl_")]


OTHERS = [["method=remax"], ["method=dapo"], ["method=trpo"], ["method=ppo-penalty", "training.epochs=2"]]


@pytest.mark.usefixtures("many_rewards")
@pytest.mark.parametrize("words", [REUSE, *OTHERS], ids=lambda words: words[0])
def test_case_H15_metrics_are_plain_numbers(words: list[str], tmp_path: Path) -> None:
    """Case H15: a tensor kept alive keeps its graph; JSON would refuse it, an observer would not."""
    seen: list[dict[str, Any]] = []

    class Watch(Silent):
        def step(self, step: int, total: int, metrics: dict[str, Any], timing: dict[str, float]) -> None:
            seen.extend([metrics, timing])

        def evaluated(self, step: int, split: str, metrics: dict[str, Any]) -> None:
            seen.append(metrics)

    words = [*words, "training.steps=2", "evaluation.every=1", "checkpoint.every=0"]
    run = api.train(rl_recipe(tmp_path), words, root=tmp_path, observer=Watch())
    assert len(seen) == 2 * 2 + 4
    for record in itertools.chain(seen, run.metrics):
        for key, value in record.items():
            assert type(value) in ((str,) if key in ("kind", "split") else (int, float)), key
    counts = {"step", "completions", "tokens", "reward_errors", "groups_without_signal", "updates", "n"}
    counts |= {"greedy_errors", "greedy_tokens", "groups_drawn", "groups_dropped", "backtracks", "accepted"}
    counts |= {"kl_capped_tokens"}
    for record in run.metrics:
        assert {key for key, value in record.items() if isinstance(value, int)} == counts & set(record)


# --- what is written down -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("many_rewards")
def test_what_was_sampled_is_what_is_logged(tmp_path: Path) -> None:
    """The training lines' means, again from the database."""
    run = api.train(rl_recipe(tmp_path), ["training.steps=3"], root=tmp_path).folder
    for line in metrics(run):
        rows = rollouts(
            run, "reward, token_ids, end_reason, sampled_mask", f"split = 'train' AND step = {line['step']}"
        )
        rewards = [reward for reward, *_ in rows]
        lengths = [len(json.loads(ids)) for _, ids, *_ in rows]
        mean = sum(rewards) / 48
        assert len(rows) == line["completions"] == 48
        assert line["reward_mean"] == pytest.approx(mean, abs=1e-12)
        assert line["reward_std"] == pytest.approx(
            math.sqrt(sum((r - mean) ** 2 for r in rewards) / 47), abs=1e-12
        )
        assert line["tokens"] == sum(lengths) == sum(sum(json.loads(mask)) for *_, mask in rows)
        assert line["length_mean"] == pytest.approx(sum(lengths) / 48, abs=1e-12)
        assert line["stop_fraction"] == sum(end == "stop" for _, _, end, _ in rows) / 48
        groups = [rewards[6 * g : 6 * g + 6] for g in range(8)]
        assert line["groups_without_signal"] == sum(len(set(group)) == 1 for group in groups)


def test_every_evaluation_has_the_same_problems_and_the_same_randomness(tmp_path: Path) -> None:
    run = api.train(rl_recipe(tmp_path), ["optimizer.learning_rate=1e-30"], root=tmp_path).folder
    steps = {"test": (0, 10), "validation": (3, 6, 9)}
    for split, expected in steps.items():
        columns = "row, prompt, sampling_key, token_ids, reward"
        found = [rollouts(run, columns, f"split = '{split}' AND step = {step}") for step in expected]
        assert len(found[0]) == {"test": 12, "validation": 10}[split]
        assert all(rows == found[0] for rows in found)
    assert {(line["split"], line["step"]) for line in metrics(run, "eval")} == {
        (split, step) for split, expected in steps.items() for step in expected
    }


def test_no_held_out_prompt_is_ever_trained_on(tmp_path: Path) -> None:
    words = ["rollout.prompts_per_step=60", "rollout.samples_per_prompt=2", "rollout.max_new_tokens=1"]
    words += ["evaluation.test_problems=300", "evaluation.validation_problems=200"]
    run = api.train(rl_recipe(tmp_path), words, root=tmp_path).folder
    prompts = {
        split: {prompt for (prompt,) in rollouts(run, "prompt", f"split = '{split}'")}
        for split in ("train", "validation", "test")
    }
    assert [len(prompts[split]) for split in prompts] == [600, 200, 300]
    for one, other in itertools.combinations(prompts.values(), 2):
        assert not one & other
    held_out = {p.prompt for split in ("validation", "test") for p in Addition().problems(split)}  # type: ignore[arg-type]
    assert not prompts["train"] & held_out


def test_case_H10_outcomes_that_are_no_rewards_are_counted_and_train_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases H10 and B12: with no reward at all, weights move by the penalty alone; here there is none."""

    def reward(self: Addition, problem: Problem, completion: str) -> Outcome:
        return (
            Outcome("error", message="the judge fell over: \ud83d") if problem.row % 2 else Outcome("abstain")
        )

    monkeypatch.setattr(Addition, "reward", reward)
    words = [*FAST, "training.steps=2", "kl_coefficient=0", "evaluation.test_problems=4"]
    run = api.train(rl_recipe(tmp_path), words, root=tmp_path).folder
    for line in metrics(run):
        assert line["reward_errors"] == 48
        assert line["groups_without_signal"] == 8
        assert line["loss"] == line["grad_norm"] == line["updates"] == 0.0  # no update was made
        assert line["reward_mean"] is None  # unknown, which is not 0
    for line in metrics(run, "eval"):
        assert line["n"] == 0
        assert line["reward_errors"] == 4
        assert line["reward_mean"] is line["reward_low"] is line["reward_high"] is None  # JSON has no NaN
    kinds = {(outcome, reward) for outcome, reward in rollouts(run, "outcome, reward")}
    assert kinds <= {("error", None), ("abstain", None)}
    assert (run / "report.html").is_file()


@pytest.mark.usefixtures("many_rewards")
def test_some_failed_judgements_leave_the_others_their_credit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Addition.reward

    def reward(self: Addition, problem: Problem, completion: str) -> Outcome:
        return Outcome("timeout") if completion.startswith("1") else whole(self, problem, completion)

    monkeypatch.setattr(Addition, "reward", reward)
    run = api.train(rl_recipe(tmp_path), [*FAST, "training.steps=2"], root=tmp_path).folder
    for line in metrics(run):
        timeouts = rollouts(run, "id", f"step = {line['step']} AND outcome = 'timeout'")
        assert 0 < line["reward_errors"] == len(timeouts) < 48


# --- when it goes wrong ---------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_leaves_the_last_checkpoint_intact(tmp_path: Path) -> None:
    def poison(session: Session) -> None:
        """The gradient of one weight is NaN in the fourth update, between two checkpoints."""

        def spoil(gradient: torch.Tensor) -> torch.Tensor:
            return gradient * (math.nan if session.learner.updates == 3 else 1.0)

        next(session.learner.policy.parameters()).register_hook(spoil)

    words = [*FAST, "checkpoint.every=2", "training.steps=6"]
    with pytest.raises(TrainingDiverged) as caught:
        api.train(rl_recipe(tmp_path), words, root=tmp_path, started=poison)
    assert "update 4" in str(caught.value)
    assert newest(tmp_path / "tiny-rl" / "checkpoints")[0] == 2
    api.resume(tmp_path / "tiny-rl")
    straight = api.train(rl_recipe(tmp_path), words, name="straight", root=tmp_path).folder
    assert_same_run(tmp_path / "tiny-rl", straight)


def test_a_model_that_cannot_be_loaded_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}", "utf-8")
    with pytest.raises(Exception, match="broken"):
        api.train(rl_recipe(tmp_path), [f"model={tmp_path / 'broken'}"], root=tmp_path / "runs")
    assert not list((tmp_path / "runs").iterdir())


def test_interrupting_the_load_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: LocalEngine, *_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalEngine, "__init__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        api.train(rl_recipe(tmp_path), FAST, root=tmp_path / "runs")
    assert not list((tmp_path / "runs").iterdir())
