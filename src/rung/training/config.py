"""A recipe: everything a run depends on, in one TOML file, checked before anything starts."""

import copy
import inspect
import json
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rung.errors import UsageError
from rung.methods import CATALOGUE, Method
from rung.training.explain import explain, nearest

# TOML has lists, not tuples: that one conversion is allowed, their members are still checked.
Share = Annotated[float, Field(ge=0, lt=1)]
Betas = Annotated[tuple[Share, Share], Field(strict=False)]
Band = Annotated[tuple[float, float], Field(strict=False)]


class Section(BaseModel):
    """Unknown keys are refused; values are checked and not silently converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Scratch(Section):
    """Sizes of a Llama made from nothing, for `model = "scratch"`."""

    hidden_size: int = Field(128, gt=0)
    intermediate_size: int = Field(512, gt=0)
    layers: int = Field(3, gt=0)
    heads: int = Field(4, gt=0)
    key_value_heads: int = Field(4, gt=0)
    max_positions: int = Field(64, gt=0)
    initializer_range: float = Field(0.05, gt=0)
    rope_theta: float = Field(100.0, gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> "Scratch":
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"hidden_size {self.hidden_size} over {self.heads} heads is no even number of dimensions each"
            )
        if self.heads % self.key_value_heads:
            raise ValueError(f"{self.key_value_heads} key_value_heads do not divide {self.heads} heads")
        return self


class Rollout(Section):
    """How completions are sampled: P prompts a step, G samples each."""

    prompts_per_step: int = Field(32, gt=0)
    samples_per_prompt: int = Field(8, gt=0)
    max_new_tokens: int = Field(8, gt=0)
    temperature: float = Field(1.0, gt=0)
    max_rows: int = Field(256, gt=0)
    mismatch_tolerance: float = Field(2e-4, gt=0)


class Optimizer(Section):
    """AdamW, clipped gradients, and a learning-rate schedule counted in optimizer steps."""

    learning_rate: float = Field(1e-4, gt=0)
    betas: Betas = (0.9, 0.95)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    warmup_updates: int = Field(0, ge=0)
    schedule: Literal["constant", "linear"] = "constant"


class Training(Section):
    """Length of the run. A step is one rollout batch (or one batch of examples); an update one optimizer step."""

    steps: int = Field(..., gt=0)
    epochs: int = Field(1, gt=0)
    mini_batches: int = Field(1, gt=0)
    batch_size: int = Field(128, gt=0)
    micro_batch_tokens: int = Field(16_384, gt=0)
    stop_between: Band | None = None


class Evaluation(Section):
    """Held-out problems: the test split before and after, the validation split every so many steps (0: never)."""

    test_problems: int = Field(500, ge=0)
    validation_problems: int = Field(200, ge=0)
    every: int = Field(0, ge=0)


class Checkpoint(Section):
    """A checkpoint every so many steps (0: only the last one); the newest `keep` of them stay."""

    every: int = Field(0, ge=0)
    keep: int = Field(2, gt=0)


class Recipe(Section):
    """One run: a method on a task, from a model."""

    name: str = Field(..., pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    method: str
    task: str
    model: str
    seed: int = Field(0, ge=0, lt=2**63)
    threads: int | None = Field(None, gt=0)
    kl_coefficient: float | None = Field(None, ge=0)
    clip_low: float | None = Field(None, ge=0, le=1)
    clip_high: float | None = Field(None, ge=0)
    scratch: Scratch | None = None
    rollout: Rollout = Rollout()
    optimizer: Optimizer = Optimizer()
    training: Training
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()

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
            self._check_sampled()
            self.build_method()
        return self

    def _check_supervised(self) -> None:
        for key in ("kl_coefficient", "clip_low", "clip_high"):
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

    def _check_sampled(self) -> None:
        completions = self.rollout.prompts_per_step * self.rollout.samples_per_prompt
        by_group = "groups" in inspect.signature(CATALOGUE[self.method]().credit).parameters
        if by_group and self.rollout.samples_per_prompt < 2:
            raise ValueError(
                f"method {self.method} compares samples of one prompt: rollout.samples_per_prompt must be ≥ 2"
            )
        if completions < self.training.mini_batches:
            raise ValueError(
                f"training.mini_batches = {self.training.mini_batches} is larger than the {completions} completions "
                "of a step"
            )
        if self.training.stop_between is not None:
            raise ValueError("training.stop_between is for method sft")
        if self.training.batch_size != Training.model_fields["batch_size"].default:
            raise ValueError(
                f"training.batch_size is for method sft; a step of {self.method} takes rollout.prompts_per_step × "
                f"rollout.samples_per_prompt = {completions} completions"
            )

    def build_method(self) -> Method:
        """The method with this recipe's settings; a setting that the method does not have is refused."""
        factory = CATALOGUE[self.method]
        accepted = inspect.signature(factory).parameters
        given = {key: getattr(self, key) for key in ("kl_coefficient", "clip_low", "clip_high")}
        given = {key: value for key, value in given.items() if value is not None}
        surplus = sorted(set(given) - set(accepted))
        if surplus:
            raise ValueError(
                f"method {self.method} has no {' and no '.join(surplus)}; it takes {', '.join(accepted)}"
            )
        reuses = self.training.epochs * self.training.mini_batches > 1
        method = factory(**given)
        if reuses and "old" not in method.needs:
            raise ValueError(
                f"method {self.method} has no importance ratio: more than one update per rollout batch would train on "
                "samples of another policy. Use training.epochs = 1 and mini_batches = 1, or method ppo-loo or grpo"
            )
        return method

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


def _value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def apply_overrides(data: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """`section.key=value` words from the command line, put over a recipe's tables.

    >>> apply_overrides({"training": {"steps": 3}}, ["training.steps=5", "method=grpo"])
    {'training': {'steps': 5}, 'method': 'grpo'}
    """
    merged = copy.deepcopy(data)
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or "" in key.split("."):
            raise UsageError(
                f'"{override}" is not of the form key=value, such as training.steps=20 or method=grpo'
            )
        target = merged
        *parents, last = key.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                raise UsageError(f'"{override}": {parent} is a value, not a section')
        target[last] = _value(text)
    return merged


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
