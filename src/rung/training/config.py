"""A recipe: everything a run depends on, in one TOML file, checked before anything starts."""

import json
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError, field_validator, model_validator

from rung.errors import UsageError
from rung.methods import CATALOGUE, Method
from rung.training.choice import (
    SETTINGS,
    build,
    compares_samples,
    defaults,
    has_ratio,
    penalizes_step,
    remarks,
)
from rung.training.explain import explain, nearest
from rung.training.overrides import apply_overrides
from rung.training.probe import vanishes_alone
from rung.training.sections import (
    Checkpoint,
    Evaluation,
    Keys,
    Optimizer,
    Rollout,
    Scratch,
    Training,
)

__all__ = [
    "Checkpoint",
    "Evaluation",
    "Optimizer",
    "Recipe",
    "Rollout",
    "Scratch",
    "Training",
    "dump",
    "find_recipe",
    "load_recipe",
    "shipped",
]


class Recipe(Keys):
    """One run: a method on a task, from a model. Its keys are in `sections`; here is what must hold between them."""

    @field_validator("method")
    @classmethod
    def _known(cls, method: str) -> str:
        known = ["sft", *CATALOGUE]
        if method not in known:
            if method == "ppo":
                raise ValueError(
                    '"ppo" is kept for the one with a critic, which is not there yet; there is "ppo-loo"'
                )
            raise ValueError(
                f'method "{method}" is not known; there is {", ".join(known)}{nearest(method, known)}'
            )
        return method

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        if (self.model == "scratch") != (self.scratch is not None):
            raise ValueError('a [scratch] section and model = "scratch" belong together')
        if self.method == "sft":
            self._check_supervised()
        else:
            method = self.build_method()
            for key, value in defaults(method).items():
                if getattr(self, key) is None:
                    object.__setattr__(
                        self, key, value
                    )  # frozen for everybody else: a run is what its recipe says
            self._check_sampled(method)
        return self

    def _check_supervised(self) -> None:
        for key in (*SETTINGS, "kl_target", "kl_horizon"):
            if getattr(self, key) is not None:
                raise ValueError(
                    f"method sft has no {key}: it imitates answers, and samples nothing to train on"
                )
        if self.training.epochs * self.training.mini_batches > 1:
            raise ValueError(
                "training.epochs and training.mini_batches split a batch of samples; with method sft a step is one "
                "update on training.batch_size examples: set training.steps"
            )
        if self.rollout.temperature != 1.0:
            raise ValueError(
                "rollout.temperature is part of a sampled policy; method sft trains at temperature 1"
            )
        band = self.training.stop_between
        if band is None:
            return
        if not band[0] <= band[1]:
            raise ValueError(
                f"training.stop_between = [{band[0]}, {band[1]}] is empty: the lower end comes first"
            )
        if not (self.evaluation.every and self.evaluation.validation_problems):
            raise ValueError(
                "training.stop_between needs validations: set evaluation.every and evaluation.validation_problems"
            )

    def _check_sampled(self, method: Method) -> None:
        completions = self.rollout.prompts_per_step * self.rollout.samples_per_prompt
        if compares_samples(method) and self.rollout.samples_per_prompt < 2:
            raise ValueError(
                f"method {self.method} compares samples of one prompt: rollout.samples_per_prompt must be ≥ 2"
            )
        self._check_size(method, completions)
        if method.select is None and self.rollout.max_rounds != Rollout.model_fields["max_rounds"].default:
            raise ValueError(
                f"rollout.max_rounds is for a method that leaves groups out and draws others; method {self.method} "
                "trains on all"
            )
        if completions < self.training.mini_batches:
            raise ValueError(
                f"training.mini_batches = {self.training.mini_batches} is larger than the {completions} completions "
                "of a step"
            )
        self._check_updates(method)
        if self.training.stop_between is not None:
            raise ValueError("training.stop_between is for method sft")
        if self.training.batch_size != Training.model_fields["batch_size"].default:
            raise ValueError(
                f"training.batch_size is for method sft; a step of {self.method} takes rollout.prompts_per_step × "
                f"rollout.samples_per_prompt = {completions} completions"
            )

    def _check_size(self, method: Method, completions: int) -> None:
        if completions == 1 and vanishes_alone(method):
            raise ValueError(
                f"method {self.method} subtracts a mean over the batch: with one completion a step that is its own "
                "return, and every credit is 0. Set rollout.prompts_per_step or rollout.samples_per_prompt above 1"
            )
        if self.kl_horizon is not None and not self.kl_horizon > 0.2 * completions:
            raise ValueError(
                f"kl_horizon = {self.kl_horizon:g} is too short: a step of {completions} completions may multiply the "
                f"KL coefficient by 1 − 0.2 · {completions}/kl_horizon, which is above 0 only for kl_horizon > "
                f"{completions / 5:g}"
            )

    def _check_updates(self, method: Method) -> None:
        if self.training.epochs * self.training.mini_batches == 1:
            if penalizes_step(method):
                raise ValueError(
                    f"method {self.method} penalizes KL(old‖policy) in the loss, and at one update per rollout batch "
                    "the policy still is the old one: the gradient of the penalty is 0, and nothing is penalized. Set "
                    "training.epochs or training.mini_batches to 2 or more"
                )
            return
        if method.update is not None:
            raise ValueError(
                f"method {self.method} takes one step per rollout batch, as far as its trust region goes: "
                "use training.epochs = 1 and mini_batches = 1"
            )
        if not has_ratio(method):
            raise ValueError(
                f"method {self.method} has no importance ratio: more than one update per rollout batch would train on "
                "samples of another policy. Use training.epochs = 1 and mini_batches = 1, or method ppo-loo or grpo"
            )

    def build_method(self) -> Method:
        """The method with this recipe's settings; a setting that the method does not have is refused."""
        given = {key: getattr(self, key) for key in SETTINGS if getattr(self, key) is not None}
        steered = None
        if self.kl_target is not None and self.kl_horizon is not None:
            steered = (self.kl_target, self.kl_horizon)
        elif self.kl_target is not None or self.kl_horizon is not None:
            raise ValueError(
                "kl_target and kl_horizon steer the KL coefficient together: set both or neither"
            )
        return build(self.method, given, length=self.rollout.max_new_tokens, steered=steered)

    @property
    def remarks(self) -> list[str]:
        """What this recipe makes of its method and its reader may not have meant."""
        if self.method == "sft":
            return []
        return remarks(self.build_method(), self.training.epochs * self.training.mini_batches)

    @property
    def updates(self) -> int:
        """Optimizer steps of the whole run: what the schedule is counted in."""
        per_step = 1 if self.method == "sft" else self.training.epochs * self.training.mini_batches
        return self.training.steps * per_step


def shipped() -> list[str]:
    """Names of the recipes in the package."""
    folder = resources.files("rung.recipes")
    return sorted(Path(str(entry)).stem for entry in folder.iterdir() if str(entry).endswith(".toml"))


def find_recipe(recipe: str) -> tuple[str, str]:
    """The text of a recipe and where it came from: a file, or the name of a shipped one.

    Raises:
        UsageError: neither.
    """
    path = Path(recipe)
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"recipe {recipe} cannot be read: {error}") from error
    if recipe.removesuffix(".toml") in shipped():
        name = recipe.removesuffix(".toml") + ".toml"
        return resources.files("rung.recipes").joinpath(name).read_text(encoding="utf-8"), name
    raise UsageError(
        f'recipe "{recipe}": no such file, and no recipe of that name is shipped{nearest(recipe, shipped())}\n'
        f"       shipped recipes: {', '.join(shipped())}"
    )


def load_recipe(recipe: str, overrides: list[str] | None = None) -> Recipe:
    """Read, override and check a recipe.

    Args:
        recipe: a file, or the name of a shipped recipe.
        overrides: `section.key=value` words.

    Raises:
        UsageError: with file, line and key of everything that is wrong.
    """
    text, source = find_recipe(recipe)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"recipe {source} is not valid TOML: {error}") from error
    try:
        return Recipe.model_validate({"name": _named_after(source)} | apply_overrides(data, overrides or []))
    except ValidationError as error:
        raise UsageError(explain(error, Recipe, text, source, overrides or [])) from error


def _named_after(source: str) -> str:
    """The name of a recipe that has none: its file's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(source).stem).lstrip("._-") or "run"


def dump(recipe: Recipe) -> str:
    """The resolved recipe as TOML, every default written out. `load_recipe` reads it back."""
    data = recipe.model_dump(exclude_none=True)
    scalars = {key: value for key, value in data.items() if not isinstance(value, dict)}
    lines = [f"{key} = {_toml(value)}" for key, value in scalars.items()]
    for section, values in data.items():
        if isinstance(values, dict):
            lines += ["", f"[{section}]"] + [f"{key} = {_toml(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace(
        "\x7f", "\\u007f"
    )  # which JSON takes as it is, and TOML not
