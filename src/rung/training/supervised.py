"""Supervised fine-tuning: maximise the log-likelihood of answers, their end token included."""

from collections.abc import Sequence

import torch

from rung.aggregation import token_mean
from rung.errors import UsageError
from rung.masked import masked_sum
from rung.models.layout import Row
from rung.models.loading import LanguageModel
from rung.tasks import Problem, Task
from rung.training.learner import Learner
from rung.training.micro import micro_batches, place
from rung.training.optimization import guarded_step, learning_rate
from rung.training.order import rows_at
from rung.training.session import Clock, Session


def example(task: Task, language: LanguageModel, problem: Problem) -> Row:
    """Prompt and answer as token ids. The answer ends with the tokenizer's end token, trained like any other."""
    answer = task.answer(problem)
    if answer is None:
        raise UsageError(
            f'task "{task.name}" has no answers to imitate: it cannot be used with method = "sft"'
        )
    ids = language.tokenizer(answer, add_special_tokens=False)["input_ids"]
    end = language.tokenizer.eos_token_id
    end = min(language.end_ids) if end is None else end
    return Row(language.encode(problem.prompt), (*ids, end))


def supervised_step(learner: Learner, rows: Sequence[Row]) -> dict[str, float]:
    """One optimizer step on the mean negative log-likelihood per answer token, prompts not counted."""
    lengths = torch.tensor([len(row.token_ids) for row in rows])
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    weights = token_mean(mask)
    total = 0.0
    for piece in micro_batches(rows, learner.budget, shared=learner.policy.path == "grouped"):
        logprobs = place(learner.policy([rows[i] for i in piece]).logprobs, mask.shape[1])
        loss = -masked_sum(weights[piece].to(logprobs.dtype) * logprobs, mask[piece])
        loss.backward()
        total += float(loss.detach())
    rate = learning_rate(learner.updates, learner.recipe.updates, learner.recipe.optimizer)
    norm = guarded_step(
        learner.optimizer, total, learner.recipe.optimizer.max_grad_norm, rate, learner.updates + 1
    )
    learner.updates += 1
    return {"loss": total, "tokens": int(mask.sum()), "grad_norm": norm, "learning_rate": rate}


def reached_before(session: Session) -> bool:
    """Whether the step that is resumed from had reached the band: the run was killed after its last checkpoint."""
    band = session.recipe.training.stop_between
    validations = [
        line
        for line in session.run.read(session.run.metrics)
        if line["kind"] == "eval" and line["split"] == "validation" and line["step"] == session.start
    ]
    rewards = [line["reward_mean"] for line in validations if line["reward_mean"] is not None]
    return band is not None and any(reward >= band[0] for reward in rewards)


def train_supervised(session: Session) -> None:
    """Fine-tune until the last step, or until validation reaches the band that the recipe asks for."""
    recipe = session.recipe
    problems = session.task.problems("train")
    examples = [example(session.task, session.language, problem) for problem in problems]
    size, band = recipe.training.batch_size, recipe.training.stop_between
    if reached_before(session):
        return
    for step in range(session.start + 1, recipe.training.steps + 1):
        clock = Clock()
        rows, _ = rows_at(range((step - 1) * size, step * size), len(examples), recipe.seed)
        with clock("update"):
            metrics = {"step": step, "kind": "train"} | supervised_step(
                session.learner, [examples[r] for r in rows]
            )
        session.engine.load(session.learner.updates, session.learner.policy.model.named_parameters())
        session.run.write(session.run.metrics, metrics)
        timing = clock.timing(step, metrics["tokens"])
        session.run.write(session.run.timing, timing)
        session.observer.step(step, recipe.training.steps, metrics, timing)
        reached = False
        if session.validation_due(step):
            line = session.evaluate(step, "validation", recipe.evaluation.validation_problems)
            reached = band is not None and line["reward_mean"] >= band[0]
            if reached and band is not None and line["reward_mean"] > band[1]:
                session.observer.note(
                    f"validation went past the band {band[0]:.0%} to {band[1]:.0%} between two evaluations: "
                    "lower evaluation.every"
                )
        last = reached or step == recipe.training.steps
        if last and recipe.evaluation.test_problems:
            session.evaluate(step, "test", recipe.evaluation.test_problems)
        if last or session.checkpoint_due(step):
            session.save(step)
        if reached:
            return
