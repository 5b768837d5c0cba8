"""What a step samples: dynamic sampling, greedy baselines, and what is left out and counted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rung import api
from rung.batch import Outcome, Rollouts
from rung.methods import Method
from rung.models import loading
from rung.tasks import Problem
from rung.tasks.addition import Addition
from rung.training.order import rows_at
from rung.training.session import Session, Silent, fingerprint
from tests.tiny import checkpoint_of, metrics, rl_recipe, rollouts, sft_run

FAST = ["evaluation.test_problems=0", "evaluation.every=0", "training.steps=4", "checkpoint.every=0"]


class Trained:
    """Keeps what the learner was given in each step, and what is said."""

    def __init__(self) -> None:
        self.batches: list[Rollouts] = []
        self.credits: list[torch.Tensor] = []
        self.said: list[str] = []

    def __call__(self, session: Session) -> None:
        self.said.clear()  # what is said before the first step is of the recipe
        whole = session.learner.step

        def step(batch: Rollouts, method: Method, number: int) -> dict[str, float]:
            self.batches.append(batch)
            self.credits.append(method.prepare(batch).credit)
            return whole(batch, method, number)

        session.learner.step = step  # type: ignore[method-assign]


def train(tmp_path: Path, words: Sequence[str]) -> tuple[Path, Trained]:
    kept = Trained()

    class Notes(Silent):
        def note(self, text: str) -> None:
            kept.said.append(text)

    run = api.train(rl_recipe(tmp_path), [*words, *FAST], root=tmp_path, started=kept, observer=Notes())
    return run.folder, kept


def groups_of(run: Path, step: int, split: str = "train") -> list[tuple[int, list[float | None]]]:
    """(data row, rewards) of each group of a step, in the order of the groups."""
    found: dict[int, tuple[int, list[float | None]]] = {}
    where = f"split = '{split}' AND step = {step}"
    for group, row, reward in rollouts(run, "group_id, row, reward", where):
        found.setdefault(group, (row, []))[1].append(reward)
    assert sorted(found) == list(range(len(found)))
    return [found[group] for group in sorted(found)]


def mixed(rewards: Sequence[float | None]) -> bool:
    return len({r for r in rewards if r is not None}) > 1


# --- dynamic sampling -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_digits")
@pytest.mark.parametrize("rounds", [2, 12])
def test_a_step_goes_on_drawing_until_enough_groups_are_mixed(rounds: int, tmp_path: Path) -> None:
    """The next prompts in line, eight a round; the first eight mixed groups train; all are stored and counted."""
    run, kept = train(tmp_path, ["method=dapo", f"rollout.max_rounds={rounds}"])
    train_rows = [problem.row for problem in Addition().problems("train")]
    position, drawn_rounds, incomplete = 0, [], 0
    for line, batch in zip(metrics(run), kept.batches, strict=True):
        groups = groups_of(run, line["step"])
        number = len(groups)
        order, _ = rows_at(range(position, position + number), len(train_rows), 3)
        assert [row for row, _ in groups] == [train_rows[i] for i in order]
        position += number
        passed = [group for group, (_, rewards) in enumerate(groups) if mixed(rewards)]
        before = [group for group in passed if group < number - 8]
        assert number % 8 == 0
        assert len(before) < 8  # the last round was needed
        assert len(passed) >= 8 or number == 8 * rounds  # and no further one was
        assert (line["groups_drawn"], line["groups_dropped"]) == (number, number - len(passed))
        assert line["groups_without_signal"] == number - len(passed)
        assert line["completions"] == 6 * number
        trained = [c.group for c in batch.completions]
        assert trained == [group for group in passed[:8] for _ in range(6)]
        assert line["updates"] == line["step"]
        drawn_rounds.append(number // 8)
        incomplete += len(passed) < 8
    assert incomplete == (4 if rounds == 2 else 0)
    assert rounds == 2 or len(set(drawn_rounds)) > 1
    assert not kept.said


@pytest.mark.usefixtures("first_digit")
def test_one_round_is_what_every_other_method_draws(tmp_path: Path) -> None:
    """Prompts and samples of a step that finds enough at once, or may not go on, are those of GRPO."""
    dapo, _ = train(tmp_path, ["method=dapo", "rollout.max_rounds=1"])
    grpo, _ = train(tmp_path, ["method=grpo"])
    columns = "row, group_id, sample, sampling_key"
    assert rollouts(dapo, columns) == rollouts(grpo, columns)


def test_a_step_in_which_nothing_passes_has_no_update_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Addition, "reward", lambda self, problem, completion: Outcome("reward", 0.5))
    run, kept = train(tmp_path, ["method=dapo", "rollout.max_rounds=2"])
    assert kept.said == ["none of 16 groups passed the selection of dapo, so this step has no update"] * 4
    for line in metrics(run):
        assert (line["groups_drawn"], line["groups_dropped"], line["updates"]) == (16, 16, 0)
        assert line["loss"] == line["grad_norm"] == 0.0
        assert line["reward_mean"] == 0.5
    after, before = (loading.load(str(checkpoint_of(folder) / "model")).model for folder in (run, sft_run()))
    assert fingerprint(after) == fingerprint(before)


@pytest.mark.usefixtures("first_digit")
def test_failed_judgements_pass_no_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is mixed by its rewards alone, and a row without one trains nothing."""
    whole = Addition.reward

    def reward(self: Addition, problem: Problem, completion: str) -> Outcome:
        return Outcome("timeout") if completion[:1] == "1" else whole(self, problem, completion)

    monkeypatch.setattr(Addition, "reward", reward)
    run, kept = train(tmp_path, ["method=dapo"])
    failed = 0
    for line, batch, credit in zip(metrics(run), kept.batches, kept.credits, strict=True):
        groups = groups_of(run, line["step"])
        passed = [group for group, (_, rewards) in enumerate(groups) if mixed(rewards)]
        assert [c.group for c in batch.completions] == [g for g in passed[:8] for _ in range(6)]
        assert line["reward_errors"] == sum(r is None for _, rewards in groups for r in rewards)
        assert float(credit[~batch.valid].abs().sum()) == 0.0
        failed += int((~batch.valid).sum())
    assert failed > 0


# --- greedy baselines -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("many_rewards")
def test_the_reward_of_the_greedy_completion_is_subtracted(tmp_path: Path) -> None:
    """Ψ = R − R(greedy), both from the database, where the greedy completions are stored beside the samples."""
    run, kept = train(tmp_path, ["method=remax", "kl_coefficient=0"])
    for line, batch, credit in zip(metrics(run), kept.batches, kept.credits, strict=True):
        samples = groups_of(run, line["step"])
        greedy = groups_of(run, line["step"], "greedy")
        assert [row for row, _ in greedy] == [row for row, _ in samples]
        baselines = [rewards[0] for _, rewards in greedy]
        assert all(len(rewards) == 1 for _, rewards in greedy)
        assert len(set(baselines)) > 1
        expected = [r - baselines[g] for g, (_, rewards) in enumerate(samples) for r in rewards]  # type: ignore[operator]
        assert credit[:, 0].tolist() == pytest.approx(expected, abs=1e-12)
        assert (credit[batch.mask] != 0).any()
        assert line["greedy_reward_mean"] == pytest.approx(sum(baselines) / 8, abs=1e-12)  # type: ignore[arg-type]
        lengths = rollouts(run, "token_ids", f"split = 'greedy' AND step = {line['step']}")
        assert line["greedy_tokens"] == sum(ids.count(",") + 1 for (ids,) in lengths)
        assert line["greedy_errors"] == 0
        assert line["completions"] == 48


@pytest.mark.usefixtures("many_rewards")
def test_greedy_completions_are_those_of_the_policy_before_the_update(tmp_path: Path) -> None:
    """Their version is that of the samples beside them, and no sampled completion is more likely."""
    run, _ = train(tmp_path, ["method=remax", "optimizer.learning_rate=1e-2"])
    for step in range(1, 5):
        where = f"step = {step} AND split = "
        versions = rollouts(run, "DISTINCT policy_version", f"{where}'greedy'")
        assert versions == rollouts(run, "DISTINCT policy_version", f"{where}'train'") == [(step - 1,)]
        first = "row, MAX(json_extract(behaviour_logprobs, '$[0]'))"
        sampled = dict(rollouts(run, first, f"{where}'train' GROUP BY row"))
        greedy = dict(rollouts(run, first, f"{where}'greedy' GROUP BY row"))
        assert all(greedy[row] >= sampled[row] - 1e-6 for row in sampled)


@pytest.mark.usefixtures("many_rewards")
def test_without_a_greedy_reward_the_rows_of_a_prompt_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No 0 stands in for it: the batch is as if those prompts had not been drawn, and the others are as before."""
    whole, calls = Addition.reward, [0]

    def reward(self: Addition, problem: Problem, completion: str) -> Outcome:
        calls[0] += 1
        greedy = (calls[0] - 1) % 56 >= 48  # six samples of eight prompts, then their greedy completions
        return Outcome("error") if greedy and problem.row % 2 else whole(self, problem, completion)

    monkeypatch.setattr(Addition, "reward", reward)
    run, kept = train(tmp_path, ["method=remax", "kl_coefficient=0"])
    lost = 0
    for line, batch, credit in zip(metrics(run), kept.batches, kept.credits, strict=True):
        samples = groups_of(run, line["step"])
        greedy = groups_of(run, line["step"], "greedy")
        odd = torch.tensor([row % 2 == 1 for row, rewards in samples for _ in rewards])
        assert torch.equal(batch.valid, ~odd)
        assert line["greedy_errors"] == sum(row % 2 for row, _ in samples)
        assert line["reward_errors"] == 0
        for i, (group, reward) in enumerate(
            (g, r) for g, (_, rewards) in enumerate(samples) for r in rewards
        ):
            baseline = greedy[group][1][0]
            assert (baseline is None) == bool(odd[i])
            expected = 0.0 if baseline is None else reward - baseline  # type: ignore[operator]
            assert float(credit[i, 0]) == pytest.approx(expected, abs=1e-12)
        lost += line["greedy_errors"]
    assert lost > 4


def test_no_greedy_reward_at_all_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Addition, "reward", lambda self, problem, completion: Outcome("abstain"))
    run, kept = train(tmp_path, ["method=remax"])
    for line in metrics(run):
        assert line["greedy_reward_mean"] is None
        assert (line["greedy_errors"], line["updates"]) == (8, 0)
    assert not any(bool(batch.valid.any()) for batch in kept.batches)


@pytest.mark.usefixtures("many_rewards")
def test_tokens_of_greedy_completions_are_timed_with_the_others(tmp_path: Path) -> None:
    seen: list[tuple[dict[str, Any], dict[str, float]]] = []

    class Watch(Silent):
        def step(self, step: int, total: int, metrics: dict[str, Any], timing: dict[str, float]) -> None:
            seen.append((metrics, timing))

    api.train(rl_recipe(tmp_path), ["method=remax", *FAST], root=tmp_path, observer=Watch())
    for line, timing in seen:
        tokens = line["tokens"] + line["greedy_tokens"]
        assert timing["tokens_per_second"] * timing["total"] == pytest.approx(tokens, rel=5e-3)
