"""Supervised fine-tuning: the mean over answer tokens, the end token among them, until the band is reached."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rung import api
from rung.errors import UsageError
from rung.models import loading
from rung.models.layout import Row
from rung.models.policy import Policy
from rung.tasks import Problem
from rung.tasks.addition import Addition
from rung.training import supervised
from rung.training.checkpoint import all_checkpoints
from rung.training.config import Optimizer, Recipe, Training
from rung.training.learner import Learner
from rung.training.session import Session, Silent
from rung.training.supervised import example, supervised_step
from tests.batches import close
from tests.learning import Table, recipe
from tests.tiny import TINY_SIZES, assert_same_run, metrics, rollouts, sft_recipe

LANGUAGE = loading.scratch(
    Addition.characters, seed=2, max_position_embeddings=64, initializer_range=0.3, **TINY_SIZES
)
END = LANGUAGE.tokenizer.eos_token_id


def learner(budget: int = 10**9, rate: float = 1e-3) -> Learner:
    policy = Policy(loading.frozen_copy(LANGUAGE.model).requires_grad_(True), path="grouped")
    recipe = Recipe(
        name="t",
        method="sft",
        task="addition",
        model="m",
        optimizer=Optimizer(learning_rate=rate, max_grad_norm=1e9),
        training=Training(steps=4, micro_batch_tokens=budget),
    )
    return Learner(policy, None, recipe)


PROBLEMS = [Problem(0, "7+58=", 65), Problem(1, "99+99=", 198), Problem(2, "1+2=", 3)]


def examples() -> list[Row]:
    return [example(Addition(), LANGUAGE, problem) for problem in PROBLEMS]


def hand_computed(rows: list[Row]) -> list[list[float]]:
    """−log π of each answer token, one row at a time, straight from the model's logits."""
    found = []
    for row in rows:
        ids = torch.tensor([[*row.prompt_ids, *row.token_ids]])
        with torch.no_grad():
            table = LANGUAGE.model(input_ids=ids).logits[0].double().log_softmax(-1)
        first = len(row.prompt_ids)
        found.append([-float(table[first + t - 1, token]) for t, token in enumerate(row.token_ids)])
    return found


def test_an_answer_is_its_digits_and_one_end_token() -> None:
    """Case C4's other half: the end is appended as an id, whatever pads; the prompt ends with "=" and has none."""
    rows = examples()
    assert [LANGUAGE.decode(row.token_ids) for row in rows] == ["65", "198", "3"]
    assert [row.token_ids.count(END) for row in rows] == [1, 1, 1]
    assert all(row.token_ids[-1] == END for row in rows)
    assert all(END not in row.prompt_ids for row in rows)
    assert LANGUAGE.tokenizer.pad_token_id == END


@pytest.mark.parametrize("budget", [1, 9, 10**9])
def test_the_loss_is_the_mean_over_answer_tokens_with_the_end(budget: int) -> None:
    """Case C4: pad and end are one id, and the end is trained. (3 + 4 + 2) tokens; float32 model, hence 1e-5."""
    by_hand = [loss for row in hand_computed(examples()) for loss in row]
    assert len(by_hand) == 9
    metrics = supervised_step(learner(budget), examples())
    assert metrics["tokens"] == 9
    assert metrics["loss"] == pytest.approx(sum(by_hand) / 9, abs=1e-5)


def test_c4_digits() -> None:
    """Case C4: negative log-likelihoods 0.1, 0.2 and 1.5 (the end) have mean 0.6 over 3, and not 0.15 over 2."""
    policy = Table([[-0.1, -0.2, -1.5]])
    trained = Learner(policy, None, recipe("sft"))  # type: ignore[arg-type]
    trained.optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)  # type: ignore[assignment]
    result = supervised_step(trained, [Row((5, 6), (0, 2, 2))])
    assert result["loss"] == pytest.approx(0.6, abs=1e-12)
    assert result["tokens"] == 3
    close(policy.table[0], [-0.1 + 0.01 / 3, -0.2 + 0.01 / 3, -1.5 + 0.01 / 3])


def test_the_gradient_is_that_of_the_mean_whatever_the_split() -> None:
    gradients = []
    for budget in (1, 9, 10**9):
        trained = learner(budget)
        kept: list[torch.Tensor] = []

        def keep(optimizer: torch.optim.Optimizer, *_: object, kept: list[torch.Tensor] = kept) -> None:
            kept.extend(p.grad.flatten().clone() for group in optimizer.param_groups for p in group["params"])

        trained.optimizer.register_step_pre_hook(keep)
        supervised_step(trained, examples())
        gradients.append(torch.cat(kept))
    model = loading.frozen_copy(LANGUAGE.model).requires_grad_(True)
    total = torch.zeros(())
    for row in examples():
        ids = torch.tensor([[*row.prompt_ids, *row.token_ids]])
        table = model(input_ids=ids).logits[0].log_softmax(-1)
        first = len(row.prompt_ids)
        total = total - sum(table[first + t - 1, token] for t, token in enumerate(row.token_ids))
    expected = torch.autograd.grad(total / 9, list(model.parameters()))
    flat = torch.cat([g.flatten() for g in expected])
    for gradient in gradients:
        torch.testing.assert_close(gradient, flat, rtol=0, atol=3e-6)  # float32, entries up to about 1
    assert float(flat.abs().max()) > 0.05


def test_training_on_one_answer_makes_it_and_its_end_likely() -> None:
    trained = learner(rate=1e-2)
    for _ in range(30):
        last = supervised_step(trained, examples()[:1])
    assert last["loss"] < 0.05
    with torch.no_grad():
        logprobs = trained.policy(examples()[:1]).logprobs[0]
    assert float(logprobs.min()) > -0.1  # each of "6", "5" and the end


def test_the_schedule_counts_a_step_as_an_update() -> None:
    """Case H8 for a supervised run."""
    trained = learner()
    trained.recipe = trained.recipe.model_copy(
        update={"optimizer": Optimizer(learning_rate=1.0, schedule="linear")}
    )
    rates = [supervised_step(trained, examples())["learning_rate"] for _ in range(4)]
    assert rates == [1.0, 0.75, 0.5, 0.25]
    assert trained.updates == 4


def test_a_task_without_answers_cannot_be_imitated() -> None:
    class Riddles(Addition):
        name = "riddles"

        def answer(self, problem: Problem) -> None:  # type: ignore[override]
            return None

    with pytest.raises(UsageError, match=r'"riddles" has no answers to imitate.*method = "sft"'):
        example(Riddles(), LANGUAGE, PROBLEMS[0])


# --- a run ----------------------------------------------------------------------------------------------------------


def test_examples_are_training_problems_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every prompt that enters a step, over more than an epoch, and none of them held out."""
    seen: list[str] = []
    real = supervised.supervised_step

    def watching(trained: Learner, rows: list[Row]) -> dict[str, float]:
        seen.extend(LANGUAGE.decode(row.prompt_ids) for row in rows)
        return real(trained, rows)

    monkeypatch.setattr(supervised, "supervised_step", watching)
    words = [
        "training.steps=9",
        "training.batch_size=1000",
        "evaluation.every=3",
        "evaluation.test_problems=50",
    ]
    run = api.train(sft_recipe(tmp_path), words, root=tmp_path).folder
    train = {p.prompt for p in Addition().problems("train")}
    assert set(seen) == train
    assert seen[: len(train)] != sorted(seen[: len(train)])
    assert len(set(seen[: len(train)])) == len(train)
    sampled = {prompt for (prompt,) in rollouts(run, "prompt")}
    assert not sampled & train
    assert {split for (split,) in rollouts(run, "split")} == {"validation", "test"}


class Stop(Silent):
    def __init__(self, after: int) -> None:
        self.after = after

    def step(self, step: int, *_: object) -> None:
        if step == self.after:
            raise KeyboardInterrupt


BAND = ["training.steps=20", "evaluation.every=2", "evaluation.validation_problems=7", "checkpoint.every=4"]


def rewards(monkeypatch: pytest.MonkeyPatch, by_step: dict[int, float]) -> None:
    """Validation rewards as planted; everything else about the run is real."""
    real = Session.evaluate

    def evaluate(self: Session, step: int, split: Any, number: int) -> dict[str, Any]:
        write = self.run.write

        def planted(file: Path, record: dict[str, Any]) -> None:
            if record.get("split") == "validation":
                record["reward_mean"] = by_step.get(step, 0.0)
            write(file, record)

        self.run.write = planted  # type: ignore[method-assign]
        try:
            return real(self, step, split, number)
        finally:
            self.run.write = write  # type: ignore[method-assign]

    monkeypatch.setattr(Session, "evaluate", evaluate)


class Notes(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.parametrize(
    ("by_step", "last", "past"),
    [
        ({2: 0.1, 4: 0.29, 6: 0.3, 8: 0.9}, 6, False),
        ({2: 0.1, 4: 0.55}, 4, False),
        ({2: 0.1, 4: 0.7}, 4, True),
        ({}, 20, False),
    ],
)
def test_it_stops_at_the_first_validation_within_the_band(
    by_step: dict[int, float], last: int, past: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewards(monkeypatch, by_step)
    words = [*BAND, "training.stop_between=[0.30, 0.55]", "evaluation.test_problems=5"]
    notes = Notes()
    result = api.train(sft_recipe(tmp_path), words, root=tmp_path, observer=notes)
    assert metrics(result.folder)[-1]["step"] == last
    assert [line["step"] for line in metrics(result.folder, "eval") if line["split"] == "test"] == [last]
    assert result.model.parent.name == f"step-{last:06d}"
    said = "validation went past the band 30% to 55% between two evaluations: lower evaluation.every"
    assert notes.said == ([said] if past else [])


def test_a_run_killed_after_it_reached_the_band_does_not_train_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewards(monkeypatch, {6: 0.4})
    words = [*BAND, "training.stop_between=[0.30, 0.55]"]
    straight = api.train(sft_recipe(tmp_path), words, name="straight", root=tmp_path).folder
    cut = api.train(sft_recipe(tmp_path), words, name="cut", root=tmp_path).folder
    (cut / "finished").unlink()
    api.resume(cut)
    assert (cut / "finished").is_file()
    assert_same_run(cut, straight)


def test_resuming_across_the_edge_of_an_epoch_equals_the_straight_run(tmp_path: Path) -> None:
    """Case H6: of 8,457 training problems, step 9 of 1,000 each crosses the edge; stopped in steps 3 and 9."""
    words = ["training.steps=11", "training.batch_size=1000", "checkpoint.every=2", "evaluation.every=4"]
    straight = api.train(sft_recipe(tmp_path), words, name="straight", root=tmp_path).folder
    with pytest.raises(KeyboardInterrupt):
        api.train(sft_recipe(tmp_path), words, name="cut", root=tmp_path, observer=Stop(3))
    with pytest.raises(KeyboardInterrupt):
        api.resume(tmp_path / "cut", observer=Stop(9))
    assert [step for step, _ in all_checkpoints(tmp_path / "cut" / "checkpoints")] == [8, 6]
    api.resume(tmp_path / "cut")
    assert_same_run(tmp_path / "cut", straight)


def test_the_same_seed_gives_the_same_model_and_another_seed_another(tmp_path: Path) -> None:
    """Whatever the process drew before: the state of torch's generator is a part of the comparison."""
    folders = []
    for seed in (1, 1, 2):
        folders.append(
            api.train(sft_recipe(tmp_path), ["training.steps=3", f"seed={seed}"], root=tmp_path).folder
        )
        torch.rand(7)
    one, two, other = folders
    assert_same_run(one, two)
    with pytest.raises(AssertionError):
        assert_same_run(one, other)


def test_parts_of_a_problem_are_kept(tmp_path: Path) -> None:
    """A prompt is the same ids in both stages: RL starts from what supervised training saw."""
    problem = replace(PROBLEMS[0], row=758)
    assert example(Addition(), LANGUAGE, problem).prompt_ids == LANGUAGE.encode(problem.prompt)
