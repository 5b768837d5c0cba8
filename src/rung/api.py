"""`rung.train`, `rung.resume`, `rung.sample`, `rung.evaluate`: what the command line does, as Python calls."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rung.errors import UsageError
from rung.report import write_report
from rung.tracking.run import Run
from rung.training import checkpoint
from rung.training.asking import Sample, evaluate, sample
from rung.training.config import Recipe, dump, load_recipe
from rung.training.held_out import Evaluation
from rung.training.loop import train_policy
from rung.training.session import Observer, Session, Silent, open_session, resolve_model, set_threads
from rung.training.supervised import train_supervised

__all__ = ["Evaluation", "Result", "Sample", "evaluate", "prepared", "resume", "sample", "train"]


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        folder: where everything lies.
        model: the trained model, a Hugging Face folder.
        metrics: all lines of metrics.jsonl.
    """

    folder: Path
    model: Path
    metrics: tuple[dict[str, Any], ...]

    def evaluations(self, split: str = "test") -> list[dict[str, Any]]:
        """Evaluation lines of a split, oldest first."""
        return [line for line in self.metrics if line["kind"] == "eval" and line["split"] == split]


def prepared(recipe: Recipe | str | Path, overrides: list[str] | None = None) -> Recipe:
    """A recipe with its model made definite."""
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(str(recipe), overrides)
    elif overrides:
        raise UsageError("overrides are for a recipe's name or file; change a Recipe itself with model_copy")
    return recipe.model_copy(update={"model": resolve_model(recipe.model)})


def train(
    recipe: Recipe | str | Path,
    overrides: list[str] | None = None,
    *,
    name: str | None = None,
    root: Path | str = "runs",
    observer: Observer | None = None,
    started: Callable[[Session], None] | None = None,
) -> Result:
    """Run a recipe from its beginning.

    Args:
        recipe: a recipe, a file, or the name of a shipped one.
        overrides: `section.key=value` words, for a file or name.
        name: of the run's folder; the recipe's own by default. A taken name gets a number.
        root: folder of all runs.
        observer: is told of every step.
        started: is called once with the session, before the first step.

    Raises:
        UsageError, ModelError, SamplerMismatch, TrainingDiverged: each message says what to do.
    """
    recipe = prepared(recipe, overrides)
    # Written down, so that resuming takes as many threads and the page carries the run's own name.
    recipe = recipe.model_copy(update={"threads": set_threads(recipe), "name": name or recipe.name})
    observer = observer or Silent()
    run = Run.create(Path(root), recipe.name, "", torch.get_num_threads())
    recipe = recipe.model_copy(update={"name": run.folder.name})
    run.config.write_text(dump(recipe), encoding="utf-8")
    try:
        run.lock()
        session = open_session(recipe, run, observer)
    except BaseException:
        run.discard()
        raise
    try:
        if started is not None:
            started(session)
        return _finish(session)
    finally:
        run.close()


def resume(
    run: Path | str, *, observer: Observer | None = None, started: Callable[[Session], None] | None = None
) -> Result:
    """Go on with an interrupted run from its newest complete checkpoint.

    Raises:
        UsageError: not a run, or finished already.
        CheckpointError: no complete checkpoint.
    """
    opened = Run.open(Path(run))
    opened.lock()
    try:
        session = _reopen(opened, observer or Silent())
        if started is not None:
            started(session)
        return _finish(session)
    finally:
        opened.close()


def _reopen(run: Run, observer: Observer) -> Session:
    """A session at the run's newest complete checkpoint, with what came after it forgotten."""
    recipe = load_recipe(str(run.config))
    step, folder = checkpoint.newest(run.checkpoints)
    if run.finished:
        raise UsageError(f"{run.folder} is finished (step {step}); its model is {folder / 'model'}")
    damaged = [path.name for at, path in checkpoint.all_checkpoints(run.checkpoints) if at > step]
    passed = f" ({', '.join(damaged)} passed over: damaged)" if damaged else ""
    observer.note(f"resuming {run.folder} after step {step}, from {folder.name}{passed}")
    session = open_session(recipe, run, observer, resume_from=folder)
    run.rewind(step)  # only now: what could not be resumed stays as it was
    return session


def _finish(session: Session) -> Result:
    (train_supervised if session.recipe.method == "sft" else train_policy)(session)
    session.run.finish()
    session.run.close()
    model = checkpoint.newest(session.run.checkpoints)[1] / "model"
    write_report(session.run.folder)
    return Result(session.run.folder, model, tuple(session.run.read(session.run.metrics)))
