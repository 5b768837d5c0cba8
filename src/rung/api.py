"""`rung.train`, `rung.resume`, `rung.sample`: what the command line does, as Python calls."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rung.errors import InvalidInput, UsageError
from rung.models import loading
from rung.models.loading import LanguageModel
from rung.report import write_report
from rung.rollout.collect import collect, requests_for
from rung.rollout.local import LocalEngine
from rung.tracking.run import Run
from rung.training import checkpoint
from rung.training.config import Recipe, dump, load_recipe
from rung.training.loop import train_policy
from rung.training.session import Observer, Session, Silent, open_session, resolve_model, set_threads
from rung.training.supervised import train_supervised


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


@dataclass(frozen=True)
class Sample:
    """One completion of a prompt.

    Attributes:
        prompt: which of the prompts, from 0.
        sample: which sample of it, from 0.
        text: without the end token.
        end_reason: "stop" (one of the model's end tokens) or "length" (the cap).
        logprob: of the whole completion under the distribution that was sampled, nats.
        token_ids: the tokens after the prompt, the end token included.
        logprobs: of each of them.
    """

    prompt: int
    sample: int
    text: str
    end_reason: str
    logprob: float
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def sample(
    model: str | Path,
    prompts: str | Sequence[str],
    *,
    n: int | None = None,
    max_new_tokens: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    greedy: bool = False,
    chat: bool = False,
) -> list[Sample]:
    """Completions of some prompts, by prompt and sample.

    The randomness of a sample depends on the seed, on the place of its prompt and on its own number alone: more
    prompts or more samples leave the first ones as they are.

    Args:
        model: a Hugging Face folder, a run's folder (its newest checkpoint), or a hub id.
        prompts: one, or several.
        n: samples of each prompt; None: 4, or 1 where `greedy`.
        max_new_tokens: the length cap; None: 64, or what the model has room for.
        temperature: the logits are divided by it.
        seed: of the sampling.
        greedy: take the most likely token in place of a drawn one.
        chat: send each prompt as a user's message through the model's chat template. False: the text as it stands.

    Raises:
        UsageError: no such model, a prompt that it cannot read, or a setting out of range.
        ModelError: the model is there but cannot be read or sampled.
    """
    prompts = [prompts] if isinstance(prompts, str) else list(prompts)
    n = n if n is not None else 1 if greedy else 4
    if not prompts:
        raise UsageError("there is no prompt: give at least one")
    if n < 1:
        raise UsageError(f"a prompt needs at least one sample, got {n}")
    if greedy and n > 1:
        raise UsageError(f"greedy completions of a prompt are all the same: ask for one, not {n}")
    _check_temperature(temperature)
    language = loading.load(resolve_model(str(model)))
    if chat and language.tokenizer.chat_template is None:
        raise UsageError(
            f'model "{model}" has no chat template: give the prompts as plain text, without chat'
        )
    with _told_to_the_user():
        encoded = [language.encode([{"role": "user", "content": p}] if chat else p) for p in prompts]
        if () in encoded:
            raise UsageError(f"prompt {encoded.index(()) + 1} has no token: give it some text")
        cap = max_new_tokens if max_new_tokens is not None else _room(language, encoded)
        rows = range(len(encoded))
        requests = requests_for(
            encoded,
            rows,
            [0] * len(rows),
            samples=n,
            max_new_tokens=cap,
            seed=seed,
            stream="library",
            greedy=greedy,
        )
        done = collect(LocalEngine(language.model, language.end_ids, temperature=temperature), requests)
    return [
        Sample(
            prompt=c.group,
            sample=c.sample,
            text=language.decode(c.token_ids),
            end_reason=c.end_reason,
            logprob=sum(c.behaviour_logprobs),
            token_ids=c.token_ids,
            logprobs=c.behaviour_logprobs,
        )
        for c in done
    ]


def _check_temperature(temperature: float) -> None:
    if not 0 < temperature < float("inf"):
        raise UsageError(
            f"the temperature must be positive, got {temperature}: for the most likely tokens use greedy"
        )


def _room(language: LanguageModel, prompts: Sequence[tuple[int, ...]], cap: int = 64) -> int:
    """`cap` new tokens, or as many as the model has positions for after the longest prompt."""
    positions = getattr(language.model.config.get_text_config(), "max_position_embeddings", None)
    return cap if positions is None else max(1, min(cap, positions - max(map(len, prompts))))


@contextmanager
def _told_to_the_user() -> Iterator[None]:
    """What a function refuses was the user's own input here."""
    try:
        yield
    except InvalidInput as error:
        raise UsageError(str(error)) from error
