"""A recipe: everything a run depends on, in one TOML file, checked before anything starts."""

import difflib
import inspect
import json
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rung.errors import UsageError
from rung.methods import CATALOGUE, Method

# What other libraries call our keys, so that a wrong word gets the right suggestion.
ELSEWHERE = {
    "num_generations": "samples_per_prompt",
    "rloo_k": "samples_per_prompt",
    "group_size": "samples_per_prompt",
    "max_completion_length": "max_new_tokens",
    "response_length": "max_new_tokens",
    "beta": "kl_coefficient",
    "kl_coef": "kl_coefficient",
    "init_kl_coef": "kl_coefficient",
    "lr": "learning_rate",
    "max_steps": "steps",
    "num_iterations": "epochs",
    "ppo_epochs": "epochs",
    "num_ppo_epochs": "epochs",
    "cliprange": "clip_high",
    "epsilon": "clip_low",
    "epsilon_high": "clip_high",
    "max_norm": "max_grad_norm",
    "save_steps": "every",
    "eval_steps": "every",
    "model_name_or_path": "model",
    "loss_type": "method",
    "algorithm": "method",
}
REFUSED = {
    "top_k": "cutting the distribution makes the sampler another policy than the one that is trained",
    "top_p": "cutting the distribution makes the sampler another policy than the one that is trained",
    "min_p": "cutting the distribution makes the sampler another policy than the one that is trained",
    "repetition_penalty": "it makes the sampler another policy than the one that is trained",
}


class Section(BaseModel):
    """Unknown keys are refused; values are checked and not silently converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


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
    betas: tuple[float, float] = (0.9, 0.95)
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
    stop_between: tuple[float, float] | None = None


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
    seed: int = Field(0, ge=0)
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

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        known = ["sft", *CATALOGUE]
        if self.method not in known:
            raise ValueError(
                f'method "{self.method}" is not known; there is {", ".join(known)}'
                + nearest(self.method, known)
            )
        if (self.model == "scratch") != (self.scratch is not None):
            raise ValueError('a [scratch] section and model = "scratch" belong together')
        if self.method == "sft":
            return self
        groups = self.method in ("rloo", "grpo", "ppo-loo")
        if groups and self.rollout.samples_per_prompt < 2:
            raise ValueError(
                f"method {self.method} compares samples of one prompt: rollout.samples_per_prompt must be ≥ 2"
            )
        if self.rollout.prompts_per_step * self.rollout.samples_per_prompt < self.training.mini_batches:
            raise ValueError("training.mini_batches is larger than the number of completions a step")
        self.build_method()
        return self

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


def nearest(word: str, known: list[str]) -> str:
    """' — did you mean "…"?' where something is close, else nothing."""
    alias = ELSEWHERE.get(word)
    if alias in known:
        return f'\n       did you mean "{alias}"? (the same thing under another library\'s name)'
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f'\n       did you mean "{close[0]}"?' if close else ""


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
        return path.read_text(encoding="utf-8"), str(path)
    if recipe.removesuffix(".toml") in shipped():
        name = recipe.removesuffix(".toml") + ".toml"
        return resources.files("rung.recipes").joinpath(name).read_text(encoding="utf-8"), name
    raise UsageError(
        f'recipe "{recipe}": no such file, and no recipe of that name is shipped{nearest(recipe, shipped())}\n'
        f"       shipped recipes: {', '.join(shipped())}"
    )


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def apply_overrides(data: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """`section.key=value` words from the command line, put over a recipe's tables.

    >>> apply_overrides({"training": {"steps": 3}}, ["training.steps=5", "method=grpo"])
    {'training': {'steps': 5}, 'method': 'grpo'}
    """
    merged = json.loads(json.dumps(data))
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
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


def _line_of(text: str, location: tuple[str, ...]) -> int | None:
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[([^\]]+)\]", line)
        if header:
            section = header[1].strip()
        key = re.match(r"\s*([A-Za-z0-9_-]+)\s*=", line)
        if key and key[1] == location[-1] and section == ".".join(location[:-1]):
            return number
    return None


def _fields(location: tuple[str, ...]) -> list[str]:
    model: Any = Recipe
    for part in location:
        annotation = model.model_fields[part].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        model = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
        if model is None:
            return []
    return list(model.model_fields)


def _explain(error: ValidationError, text: str, source: str) -> str:
    lines = []
    for detail in error.errors():
        location = tuple(str(part) for part in detail["loc"])
        number = _line_of(text, location) if location else None
        place = f"recipe {source}" + (f", line {number}" if number else "")
        key, section = (location[-1], location[:-1]) if location else ("", ())
        inside = f" in [{'.'.join(section)}]" if section else ""
        if detail["type"] == "extra_forbidden":
            reason = (
                f"\n       rung refuses it: {REFUSED[key]}"
                if key in REFUSED
                else nearest(key, _fields(section))
            )
            lines.append(f'{place}: unknown key "{key}"{inside}{reason}')
        elif detail["type"] == "missing":
            lines.append(f'{place}: "{key}"{inside} is missing')
        elif not location:
            lines.append(f"{place}: {detail['msg'].removeprefix('Value error, ')}")
        else:
            lines.append(
                f'{place}: "{key}"{inside} = {detail["input"]!r}: {detail["msg"][0].lower()}{detail["msg"][1:]}'
            )
    return "\n".join(lines)


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
        return Recipe.model_validate(apply_overrides(data, overrides or []))
    except ValidationError as error:
        raise UsageError(_explain(error, text, source)) from error


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
    return json.dumps(value, ensure_ascii=False)
