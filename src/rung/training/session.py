"""Everything one run holds: its recipe, folder, task, model, learner and engine."""

import hashlib
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from rung.batch import build_rollouts
from rung.errors import CheckpointError, UsageError
from rung.kl import k1
from rung.masked import masked_sum
from rung.methods import Method
from rung.models import loading
from rung.models.layout import Row
from rung.models.loading import LanguageModel
from rung.models.policy import Policy
from rung.rollout.local import LocalEngine
from rung.tasks import Task, load_task
from rung.tracking.run import Run
from rung.training import checkpoint
from rung.training.config import Recipe
from rung.training.evaluation import Sampled, evaluate_policy, interval, spread_over
from rung.training.learner import Learner
from rung.training.micro import logprobs_of


class Observer(Protocol):
    """Who watches a run: the terminal, a notebook, nobody."""

    def note(self, text: str) -> None:
        """Something worth a line."""
        ...

    def step(self, step: int, total: int, metrics: dict[str, Any], timing: dict[str, float]) -> None:
        """A training step was finished."""
        ...

    def evaluating(self, split: str, done: int, total: int) -> None:
        """Another held-out problem was answered, `done` of `total`."""
        ...

    def evaluated(self, step: int, split: str, metrics: dict[str, Any]) -> None:
        """Held-out problems were evaluated."""
        ...


class Silent:
    """Watches nothing."""

    def note(self, text: str) -> None:
        """Ignore."""

    def step(self, step: int, total: int, metrics: dict[str, Any], timing: dict[str, float]) -> None:
        """Ignore."""

    def evaluating(self, split: str, done: int, total: int) -> None:
        """Ignore."""

    def evaluated(self, step: int, split: str, metrics: dict[str, Any]) -> None:
        """Ignore."""


class Clock:
    """Seconds by phase of one step."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.phases: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time a phase; a phase entered twice adds up."""
        begin = time.perf_counter()
        yield
        self.phases[phase] = self.phases.get(phase, 0.0) + time.perf_counter() - begin

    def timing(self, step: int, tokens: float) -> dict[str, float]:
        """The line for timing.jsonl."""
        total = time.perf_counter() - self.start
        rounded = {phase: round(seconds, 4) for phase, seconds in self.phases.items()}
        return {
            "step": step,
            **rounded,
            "total": round(total, 4),
            "tokens_per_second": round(tokens / total, 1),
        }


def resolve_model(name: str) -> str:
    """A model's name made definite: a run's folder stands for its newest complete checkpoint.

    Folders become absolute, so that a run can be resumed from anywhere.
    """
    folder = Path(name)
    if (folder / "checkpoints").is_dir():
        folder = checkpoint.newest(folder / "checkpoints")[1] / "model"
    return str(folder.resolve()) if (folder / "config.json").is_file() else name


def fingerprint(model: PreTrainedModel) -> str:
    """A hash of all weights: whether a reference is still the one that training started from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@dataclass
class Session:
    """The parts of a run, put together.

    Attributes:
        start: steps that were finished before.
        reference_fingerprint: of the frozen reference's weights, "" without one.
        method: as it stands, None for supervised fine-tuning. What it learns from a batch holds from the next on.
        position: in the order of all training prompts, the one that is drawn next.
    """

    recipe: Recipe
    run: Run
    task: Task
    language: LanguageModel
    learner: Learner
    engine: LocalEngine
    observer: Observer
    start: int = 0
    reference_fingerprint: str = ""
    method: Method | None = None
    position: int = 0

    def evaluate(self, step: int, split: Any, number: int) -> dict[str, Any]:
        """Sample held-out problems, write them down, and return the metrics line."""
        problems = spread_over(self.task.problems(split), number)
        finished = itertools.count(1)
        sampled = evaluate_policy(
            self.engine,
            self.language,
            self.task,
            problems,
            seed=self.recipe.seed,
            max_new_tokens=self.recipe.rollout.max_new_tokens,
            on_completion=lambda _: self.observer.evaluating(split, next(finished), len(problems)),
        )
        mean, low, high = interval(sampled.rewards())
        line = {"step": step, "kind": "eval", "split": split, "n": len(sampled.rewards())}
        line |= {"reward_mean": mean, "reward_low": low, "reward_high": high} | sampled.summary()
        full = [float(r == 1.0) for r in sampled.rewards()]
        line |= dict(zip(("full_reward", "full_reward_low", "full_reward_high"), interval(full), strict=True))
        line |= self._divergence(sampled)
        self.run.write(self.run.metrics, line)
        self.run.write_rollouts(
            step, split, sampled.prompts(), sampled.completions, sampled.outcomes, sampled.texts
        )
        self.observer.evaluated(step, split, line)
        return line

    def _divergence(self, sampled: Sampled) -> dict[str, float]:
        """KL(policy‖reference) per sequence on evaluation samples, by k1: its mean and 95 % interval."""
        if self.learner.reference is None:
            return {}
        rows = [Row(c.prompt_ids, c.token_ids) for c in sampled.completions]
        rollouts = build_rollouts(sampled.completions, sampled.outcomes)
        reference = logprobs_of(self.learner.reference, rows, self.learner.budget)
        ratios = masked_sum(k1(rollouts.behaviour_logprobs, reference), rollouts.mask, dim=1).tolist()
        names = ("kl_policy_reference", "kl_policy_reference_low", "kl_policy_reference_high")
        return dict(zip(names, interval(ratios, binary=False), strict=True))

    def save(self, step: int) -> Path:
        """Write a checkpoint."""
        self.run.flush()
        return checkpoint.save(
            self.run.checkpoints,
            step,
            self.learner,
            self.language,
            self.recipe.checkpoint.keep,
            more={
                "reference": self.reference_fingerprint,
                "position": self.position,
                "method": self.method.state if self.method is not None else {},
            },
        )

    def checkpoint_due(self, step: int) -> bool:
        """Whether a checkpoint belongs after this step."""
        every = self.recipe.checkpoint.every
        return step == self.recipe.training.steps or (every > 0 and step % every == 0)

    def validation_due(self, step: int) -> bool:
        """Whether the validation split is evaluated after this step."""
        every = self.recipe.evaluation.every
        return every > 0 and step % every == 0 and self.recipe.evaluation.validation_problems > 0


def set_threads(recipe: Recipe) -> int:
    """The number of threads of the run: the recipe's, or one a core.

    Also asks torch for deterministic sums: with several threads it would add gradients of shared prompts in the order
    in which threads arrive, and no two runs would end in the same bits.
    """
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    return torch.get_num_threads()


def load_language(recipe: Recipe, task: Task) -> LanguageModel:
    """The model that the recipe starts from."""
    if recipe.scratch is None:
        return loading.load(recipe.model)
    if not hasattr(task, "characters"):
        raise UsageError(
            f'task "{task.name}" has no alphabet of its own: model = "scratch" needs one, give a model folder'
        )
    sizes = recipe.scratch
    return loading.scratch(
        task.characters,
        seed=recipe.seed,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.key_value_heads,
        max_position_embeddings=sizes.max_positions,
        initializer_range=sizes.initializer_range,
        rope_parameters={"rope_type": "default", "rope_theta": sizes.rope_theta},
    )


def open_session(recipe: Recipe, run: Run, observer: Observer, resume_from: Path | None = None) -> Session:
    """Load the models and put a session together, at its start or at a checkpoint.

    Raises:
        CheckpointError: the reference is no longer the model that the run started from.
    """
    set_threads(recipe)
    if resume_from is None:
        torch.manual_seed(
            recipe.seed
        )  # rung draws from its own keys, but a user's reward may draw from torch
    task = load_task(recipe.task)
    temperature = recipe.rollout.temperature
    method = None if recipe.method == "sft" else recipe.build_method()
    wants_reference = method is not None and "reference" in method.needs
    start_model = load_language(recipe, task) if resume_from is None or wants_reference else None
    language = loading.load(str(resume_from / "model")) if resume_from is not None else start_model
    assert language is not None
    policy = Policy(language.model, temperature=temperature)
    reference, mark = None, ""
    if wants_reference and start_model is not None:
        frozen = loading.frozen_copy(start_model.model) if resume_from is None else start_model.model
        frozen.requires_grad_(False)
        mark = fingerprint(frozen)
        reference = Policy(frozen, temperature=temperature, path=policy.path)
    learner = Learner(policy, reference, recipe)
    engine = LocalEngine(
        language.model, language.end_ids, temperature=temperature, max_rows=recipe.rollout.max_rows
    )
    session = Session(recipe, run, task, language, learner, engine, observer, 0, mark, method)
    if policy.path == "padded":
        observer.note(
            "this model computes shared prompts once per sample (its attention does not allow sharing)"
        )
    if (
        method is not None
        and method.update is not None
        and resume_from is None
        and recipe.optimizer.model_fields_set
    ):
        observer.note(
            f"method {method.name} reads nothing of [optimizer]: its step goes as far as max_kl allows"
        )
    for remark in recipe.remarks if resume_from is None else []:
        observer.note(remark)
    if resume_from is not None:
        state = checkpoint.restore(resume_from, learner)
        if state["reference"] != mark:
            raise CheckpointError(
                f'the reference model "{recipe.model}" is not the one this run started from; restore it, or start anew'
            )
        session.start = state["step"]
        # Runs of before methods had a state drew as many prompts in every step.
        session.position = state.get("position", session.start * recipe.rollout.prompts_per_step)
        if method is not None:
            session.method = method.with_state(state.get("method", {}))
        engine.load(learner.updates, [])
    return session
