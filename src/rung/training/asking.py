"""Sample a model's answers to prompts, or to a task's test problems, outside of any run."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rung.errors import InvalidInput, UsageError
from rung.models import loading
from rung.models.loading import LanguageModel
from rung.rollout.collect import collect, requests_for
from rung.rollout.local import LocalEngine
from rung.tasks import load_task
from rung.training.config import load_recipe
from rung.training.evaluation import evaluate_policy, spread_over
from rung.training.held_out import Evaluation, of_samples
from rung.training.sections import Rollout
from rung.training.session import Observer, Silent, resolve_model


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


def evaluate(
    model: str | Path,
    task: str,
    *,
    problems: int = 200,
    samples: int = 1,
    seed: int = 0,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    observer: Observer | None = None,
) -> Evaluation:
    """Rewards of a model on a task's test problems. `a.minus(b)` compares two models on the same problems.

    The randomness of a sample depends on the seed, the problem and the sample's number, as in a run: a finished run's
    model, with the run's seed and number of problems, gives the run's own last test evaluation.

    Args:
        model: a Hugging Face folder, a run's folder (its newest checkpoint), or a hub id.
        task: by name.
        problems: how many, evenly spread over the test split; all of it where it has fewer.
        samples: K, of each problem.
        seed: of the sampling.
        max_new_tokens: the length cap; None: the run's own, else 64, or what the model has room for.
        temperature: the logits are divided by it; None: the run's own, else 1.
        observer: is told of every completion.

    Raises:
        UsageError: no such model or task, a task that the model cannot read, or a setting out of range.
        ModelError: the model is there but cannot be read or sampled.
    """
    judged_by = load_task(task)
    chosen = spread_over(judged_by.problems("test"), problems) if problems > 0 else []
    if not chosen or samples < 1:
        raise UsageError(f"an evaluation needs a problem and a sample at least, got {problems} and {samples}")
    own = _rollout_of(Path(model))
    temperature = temperature if temperature is not None else own.temperature if own else 1.0
    _check_temperature(temperature)
    language = loading.load(resolve_model(str(model)))
    if language.tokenizer.chat_template is None and not all(isinstance(p.prompt, str) for p in chosen):
        raise UsageError(
            f'task "{task}" asks by chat messages, and model "{model}" has no chat template: take one that has'
        )
    finished, watch = itertools.count(1), observer or Silent()
    with _told_to_the_user():
        cap = max_new_tokens if max_new_tokens is not None else own.max_new_tokens if own else None
        cap = cap if cap is not None else _room(language, [language.encode(p.prompt) for p in chosen])
        sampled = evaluate_policy(
            LocalEngine(language.model, language.end_ids, temperature=temperature),
            language,
            judged_by,
            chosen,
            seed=seed,
            max_new_tokens=cap,
            samples=samples,
            on_completion=lambda _: watch.evaluating("test", next(finished), len(chosen) * samples),
        )
    summary = sampled.summary()
    return Evaluation(
        model=str(model),
        task=task,
        rows=tuple(problem.row for problem in chosen),
        rewards=of_samples(sampled, samples),
        length_mean=summary["length_mean"],
        stop_fraction=summary["stop_fraction"],
        max_new_tokens=cap,
        temperature=temperature,
        seed=seed,
    )


def _rollout_of(model: Path) -> Rollout | None:
    """How a run samples, where the model is a run's folder."""
    config = model / "config.toml"
    return load_recipe(str(config)).rollout if (model / "checkpoints").is_dir() and config.is_file() else None


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
