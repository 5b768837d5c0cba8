"""What a method learns from a batch: which number steers which, and that resuming finds it as it was."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rung import api
from rung.aggregation import token_mean
from rung.batch import Outcome, Rollouts, build_rollouts
from rung.credit import group_centered
from rung.kl import DoublingKL, k3
from rung.methods import KLPenalty, Method, ppo_penalty, rloo
from rung.policy_losses import policy_gradient_loss
from rung.tasks.addition import Addition
from rung.training import checkpoint
from rung.training.checkpoint import newest
from rung.training.loop import steering_divergence
from rung.training.session import Session
from tests.batches import completion, f64, outcomes
from tests.learning import Table, learner, recipe
from tests.tiny import Stop, assert_same_run, checkpoint_of, metrics, rl_recipe, rollouts

FAST = ["evaluation.test_problems=0", "evaluation.every=0", "checkpoint.every=2", "training.steps=5"]
ADAPTIVE = ["kl_target=0.05", "kl_horizon=100.0", "optimizer.learning_rate=5e-3"]
PENALTY = ["method=ppo-penalty", "optimizer.learning_rate=2e-2", "training.epochs=2"]
STATES: dict[str, tuple[list[str], set[str]]] = {
    "moving average": (["method=reinforce-moving-average", "momentum=0.7"], {"baseline"}),
    "adaptive KL": (["method=grpo", *ADAPTIVE], {"kl_coefficient"}),
    "both": (["method=reinforce-moving-average", *ADAPTIVE], {"baseline", "kl_coefficient"}),
    "penalty": (PENALTY, {"kl_coefficient"}),
    "dynamic sampling": (["method=dapo", "rollout.max_rounds=3"], set()),
    "greedy baseline": (["method=remax"], set()),
    "trust region": (["method=trpo", "max_kl=0.003"], set()),
}


def state_of(run: Path) -> dict[str, float]:
    state: dict[str, float] = json.loads((checkpoint_of(run) / "state.json").read_text("utf-8"))["method"]
    return state


@pytest.mark.usefixtures("small_data", "first_digit")
@pytest.mark.parametrize("name", STATES)
def test_case_H6_resuming_finds_the_state_of_the_method(name: str, tmp_path: Path) -> None:
    """Stopped in step 4, taken up after step 2: every number, sample, weight and the state itself bit by bit."""
    words, kept = STATES[name]
    straight = api.train(rl_recipe(tmp_path), [*words, *FAST], name="straight", root=tmp_path).folder
    with pytest.raises(KeyboardInterrupt):
        api.train(rl_recipe(tmp_path), [*words, *FAST], name="cut", root=tmp_path, observer=Stop(4))
    cut = tmp_path / "cut"
    assert newest(cut / "checkpoints")[0] == 2
    assert set(state_of(cut)) == kept
    middle = state_of(cut)
    api.resume(cut)
    assert_same_run(cut, straight)
    lines = metrics(cut)
    for key, value in middle.items():
        assert lines[2][key] == value  # the third step used what was saved after the second
        assert len({line[key] for line in lines}) == len(lines), (
            "a state that stays would hide a state that is lost"
        )
    assert lines[-1]["updates"] > 0
    assert name != "dynamic sampling" or max(line["groups_drawn"] for line in lines[:2]) > 8


def test_a_run_of_before_methods_had_a_state_is_resumed_where_its_data_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = api.train(rl_recipe(tmp_path), FAST, name="straight", root=tmp_path).folder
    save = checkpoint.save

    def before(*parts: Any, more: dict[str, Any]) -> Path:
        return save(*parts, more={"reference": more["reference"]})

    monkeypatch.setattr(checkpoint, "save", before)
    with pytest.raises(KeyboardInterrupt):
        api.train(rl_recipe(tmp_path), FAST, name="cut", root=tmp_path, observer=Stop(4))
    monkeypatch.setattr(checkpoint, "save", save)
    api.resume(tmp_path / "cut")
    assert_same_run(tmp_path / "cut", straight)


def test_a_run_of_before_settings_were_written_down_is_resumed_by_the_methods_own(tmp_path: Path) -> None:
    """Its config.toml has no line for them."""
    words = ["method=grpo", *FAST]
    straight = api.train(rl_recipe(tmp_path), words, name="straight", root=tmp_path).folder
    with pytest.raises(KeyboardInterrupt):
        api.train(rl_recipe(tmp_path), words, name="cut", root=tmp_path, observer=Stop(4))
    config = tmp_path / "cut" / "config.toml"
    text = config.read_text("utf-8")
    assert "\nclip_low = 0.2\nclip_high = 0.2\n" in text
    config.write_text(text.replace("clip_low = 0.2\nclip_high = 0.2\n", ""), "utf-8")
    api.resume(tmp_path / "cut")
    assert_same_run(tmp_path / "cut", straight)


# --- what steers what -------------------------------------------------------------------------------------------------


def test_a_divergence_from_the_reference_steers_by_k3_and_one_of_the_step_by_its_own() -> None:
    """Never by k1, which chance may make negative."""
    measured = {"kl_policy_reference_k1": -1.0, "kl_policy_reference_k3": 2.0, "kl_old_policy": 3.0}
    assert steering_divergence(rloo(), measured) == 2.0
    assert steering_divergence(ppo_penalty(), measured) == 3.0
    assert steering_divergence(ppo_penalty(), {}) is None
    assert steering_divergence(replace(rloo(), kl=None), measured) is None


@pytest.mark.usefixtures("many_rewards")
def test_an_adaptive_coefficient_follows_the_logged_k3(tmp_path: Path) -> None:
    """β ← β (1 + clip(KL/target − 1, ±0.2) · 48/100), from each line's own numbers to the next."""
    lines = api.train(rl_recipe(tmp_path), [*ADAPTIVE, *FAST], root=tmp_path).metrics
    beta, directions = 0.02, set()
    for line in lines:
        assert line["kl_coefficient"] == pytest.approx(beta, abs=1e-15)
        error = min(max(line["kl_policy_reference_k3"] / 0.05 - 1.0, -0.2), 0.2)
        beta *= 1.0 + error * 48 / 100
        directions.add(math.copysign(1.0, error))
    assert directions == {-1.0, 1.0}


@pytest.mark.usefixtures("many_rewards")
def test_the_penalty_of_ppo_follows_the_logged_divergence_of_its_updates(tmp_path: Path) -> None:
    """KL(old‖policy) below 0.01/1.5 halves β, above 0.015 doubles it, in between leaves it."""
    lines = api.train(rl_recipe(tmp_path), [*PENALTY, *FAST], root=tmp_path).metrics
    beta, factors = 0.02, set()
    for line in lines:
        assert line["kl_coefficient"] == beta
        kl = line["kl_old_policy"]
        factors.add(0.5 if kl < 0.01 / 1.5 else 2.0 if kl > 0.015 else 1.0)
        beta *= 0.5 if kl < 0.01 / 1.5 else 2.0 if kl > 0.015 else 1.0
    assert len(factors) > 1


@pytest.mark.usefixtures("many_rewards")
def test_a_moving_average_is_of_the_returns_of_earlier_batches(tmp_path: Path) -> None:
    """b ← 0.7 b + 0.3 (mean reward − β mean KL), as the penalty stands in the reward; the first batch has b = 0.25."""
    words = [
        "method=reinforce-moving-average",
        "momentum=0.7",
        "baseline=0.25",
        "optimizer.learning_rate=1e-2",
    ]
    run = api.train(rl_recipe(tmp_path), [*words, *FAST], root=tmp_path).folder
    baseline = 0.25
    for line in metrics(run):
        assert line["baseline"] == pytest.approx(baseline, abs=1e-12)
        rewards = [r for (r,) in rollouts(run, "reward", f"split = 'train' AND step = {line['step']}")]
        mean = sum(rewards) / 48 - 0.02 * line["kl_policy_reference_k1"]
        baseline = 0.7 * baseline + 0.3 * mean
    assert line["kl_policy_reference_k1"] > 0.05
    assert state_of(run)["baseline"] == pytest.approx(baseline, abs=1e-12)


# --- the divergence of the updates, by hand ---------------------------------------------------------------------------


def one_token_each(old: Sequence[float], rewards: Sequence[float | None]) -> Rollouts:
    """Row i is the token i after one prompt that all share."""
    rows = [completion([i], group=0, sample=i, prompt=(9,), behaviour=[x]) for i, x in enumerate(old)]
    return replace(build_rollouts(rows, outcomes(rewards)), old_logprobs=f64([[x] for x in old]))


def test_the_divergence_is_of_old_from_policy_after_the_updates_and_over_judged_tokens() -> None:
    """Rewards 2, −1, −1 and a failed judge: credits 3, −1.5, −1.5, over 3 sequences; a rate of 0.2 moves log π by d.

    k3(old, policy) = e^d − 1 − d at d = 0.2, −0.1 and −0.1: 0.0214027582 and 0.0048374180. The other way round it
    would be 0.0187307531 and 0.0051709181.
    """
    policy = Table([[-1.0], [-2.0], [-3.0], [-4.0]])
    trained = learner(policy, recipe(rate=0.2))
    found = trained.step(one_token_each([-1.0, -2.0, -3.0, -4.0], [2.0, -1.0, -1.0, None]), ppo_penalty(), 1)
    assert [float(row.detach()) for row in policy.table] == pytest.approx([-0.8, -2.1, -3.1, -4.0], abs=1e-12)
    assert found["kl_old_policy"] == pytest.approx((0.0214027582 + 2 * 0.0048374180) / 3, abs=1e-10)


def test_nobody_measures_it_where_nothing_is_steered_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more pass over the batch is for a controller alone, and only after an update."""
    passes: list[int] = []
    forward = Table.forward
    monkeypatch.setattr(
        Table,
        "forward",
        lambda self, rows, **kwargs: passes.append(len(rows)) or forward(self, rows, **kwargs),
    )

    def run(method: Method, rewards: Sequence[float | None]) -> dict[str, float]:
        passes.clear()
        trained = learner(Table([[-1.0], [-2.0]]), recipe(rate=0.1))
        return trained.step(one_token_each([-1.0, -2.0], rewards), method, 1)

    assert "kl_old_policy" in run(ppo_penalty(kl_coefficient=DoublingKL(0.5, 0.01)), [1.0, -1.0])
    assert passes == [2, 2]
    assert "kl_old_policy" not in run(ppo_penalty(kl_coefficient=0.5), [1.0, -1.0])
    assert passes == [2]
    assert "kl_old_policy" not in run(ppo_penalty(), [None, None])
    assert passes == []


def test_a_step_without_an_update_leaves_the_coefficient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A divergence of 0 would halve it, though nobody took a step that was too short."""
    monkeypatch.setattr(Addition, "reward", lambda self, problem, completion: Outcome("abstain"))
    lines = api.train(rl_recipe(tmp_path), [*PENALTY, *FAST], root=tmp_path).metrics
    assert [line["kl_coefficient"] for line in lines] == [0.02] * 5
    assert all("kl_old_policy" not in line for line in lines)


def test_case_A5_capped_tokens_are_counted_and_the_others_keep_their_gradient() -> None:
    """log π and log π_ref (−120, −0.5) and (−1, −1.3), β 0.05, token mean: the ordinary token has 0.00647954."""
    policy = Table([[-120.0], [-1.0]])
    rollouts = replace(one_token_each([-120.0, -1.0], [1.0, 1.0]), reference_logprobs=f64([[-0.5], [-1.3]]))
    penalty = KLPenalty(k3, placement="loss", coefficient=0.05)
    method = Method("a5", group_centered, policy_gradient_loss, token_mean, penalty)
    trained = learner(policy, recipe("grpo", rate=1.0))
    found = trained.step(rollouts, method, 1)
    assert found["kl_capped_tokens"] == 1
    assert math.isfinite(found["loss"])
    # One step down the gradient with rate 1 moves the ordinary token by it.
    assert -1.0 - float(policy.table[1].detach()) == pytest.approx(0.00647954, abs=5e-9)
    assert math.isfinite(float(policy.table[0].detach()))


def test_capped_tokens_are_counted_against_the_old_policy_too_and_over_all_updates() -> None:
    """KL(old‖policy) by k3 caps where log π − log π_old > 40, not where it is below −40. Two epochs count twice."""
    policy = Table([[-1.0], [-1.0], [-100.0]])
    rollouts = one_token_each([-100.0, -90.0, -1.0], [1.0, 1.0, 1.0])
    trained = learner(policy, recipe("ppo-penalty", rate=1e-30, epochs=2))
    assert trained.step(rollouts, ppo_penalty(), 1)["kl_capped_tokens"] == 4


def test_a_session_holds_the_method_as_it_stands(tmp_path: Path) -> None:
    """Not as the recipe says: its state moves on after each batch."""
    sessions: list[Session] = []
    words = [*STATES["moving average"][0], *FAST]
    run = api.train(rl_recipe(tmp_path), words, root=tmp_path, started=sessions.append).folder
    assert sessions[0].method is not None
    assert sessions[0].method.state == state_of(run) != sessions[0].recipe.build_method().state
    assert sessions[0].position == 40
