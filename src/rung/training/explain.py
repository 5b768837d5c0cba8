"""What is wrong with a recipe, in words: file, line and key, and what was probably meant."""

import difflib
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

# What other libraries call our keys, so that a wrong word gets the right suggestion.
ELSEWHERE = {
    "num_generations": "rollout.samples_per_prompt",
    "rloo_k": "rollout.samples_per_prompt",
    "group_size": "rollout.samples_per_prompt",
    "max_completion_length": "rollout.max_new_tokens",
    "response_length": "rollout.max_new_tokens",
    "beta": "kl_coefficient",
    "kl_coef": "kl_coefficient",
    "init_kl_coef": "kl_coefficient",
    "horizon": "kl_horizon",
    "gae_lambda": "lam",
    "clip_ratio_c": "dual_clip",
    "entropy_coeff": "entropy_coefficient",
    "overlong_buffer_len": "overlong_buffer",
    "max_num_gen_batches": "rollout.max_rounds",
    "lr": "optimizer.learning_rate",
    "max_norm": "optimizer.max_grad_norm",
    "max_steps": "training.steps",
    "num_iterations": "training.epochs",
    "ppo_epochs": "training.epochs",
    "num_ppo_epochs": "training.epochs",
    "num_mini_batches": "training.mini_batches",
    "per_device_train_batch_size": "training.batch_size",
    "cliprange": "clip_high",
    "epsilon": "clip_low",
    "epsilon_high": "clip_high",
    "save_steps": "checkpoint.every",
    "save_total_limit": "checkpoint.keep",
    "eval_steps": "evaluation.every",
    "model_name_or_path": "model",
    "loss_type": "method",
    "algorithm": "method",
    "adv_estimator": "method",
    "advantage_estimator": "method",
    "loss_agg_mode": "method",
    "importance_sampling_level": "method",
    "scale_rewards": "method",
    "kl_estimator": "method",
    "kl_loss_type": "method",
    "n_samples_per_prompt": "rollout.samples_per_prompt",
    "max_response_length": "rollout.max_new_tokens",
    "generate_max_len": "rollout.max_new_tokens",
    "max_tokens": "rollout.max_new_tokens",
    "kl_ctrl": "kl_coefficient",
    "kl_loss_coef": "kl_coefficient",
    "target_kl": "kl_target",
    "lambda": "lam",
    "lambd": "lam",
    "clip_ratio": "clip_high",
    "clip_ratio_low": "clip_low",
    "clip_ratio_high": "clip_high",
    "eps_clip": "clip_high",
    "clip_range": "clip_high",
    "delta": "dual_clip",
    "entropy_coef": "entropy_coefficient",
    "ent_coef": "entropy_coefficient",
    "vllm_importance_sampling_cap": "cap",
    "grad_clip": "optimizer.max_grad_norm",
    "actor_learning_rate": "optimizer.learning_rate",
    "lr_scheduler_type": "optimizer.schedule",
    "warmup_steps": "optimizer.warmup_updates",
    "lr_warmup_steps": "optimizer.warmup_updates",
    "total_training_steps": "training.steps",
    "save_freq": "checkpoint.every",
    "test_freq": "evaluation.every",
}
# What other libraries call our methods, and the numbers that come nearest to theirs.
METHODS_ELSEWHERE = {
    "drgrpo": "dr-grpo",
    "group_norm": "grpo",
    "reinforce_plus_plus": "reinforce++",
    "reinforce_plus_plus_baseline": "reinforce++-baseline",
    "reinforce_baseline": "reinforce++-baseline",
    "v-trace": "impala",
    "vtrace": "impala",
}
METRICS_ELSEWHERE = {
    "clipfrac": "clip_fraction",
    "pg_clipfrac": "clip_fraction",
    "approx_kl": "kl_old_policy",
    "approxkl": "kl_old_policy",
    "ppo_kl": "kl_old_policy",
    "kl": "kl_policy_reference_k1",
    "frac_reward_zero_std": "groups_without_signal",
    "mean_length": "length_mean",
}
_CUT = "cutting the distribution makes the sampler another policy than the one that is trained"
REFUSED = {
    "top_k": _CUT,
    "top_p": _CUT,
    "min_p": _CUT,
    "repetition_penalty": "it makes the sampler another policy than the one that is trained",
}


def nearest(word: str, known: Sequence[str]) -> str:
    """' — did you mean "…"?' where something is close, else nothing."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f'\n       did you mean "{close[0]}"?' if close else ""


def keys_by_section(recipe: type[BaseModel]) -> dict[str, list[str]]:
    """The keys of each section; "" is the top of the recipe."""
    keys = {"": list(recipe.model_fields)}
    for name, field in recipe.model_fields.items():
        for option in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(option, type) and issubclass(option, BaseModel):
                keys[name] = list(option.model_fields)
    return keys


def suggestion(key: str, section: str, recipe: type[BaseModel]) -> str:
    """What an unknown key was probably meant to be: another library's word, another section's, a slip."""
    keys = keys_by_section(recipe)
    home, _, name = ELSEWHERE.get(key, "").rpartition(".")
    why = " (the same thing under another library's name)"
    if not name:
        name, why = key, ""
        home = next((other for other, known in keys.items() if key in known), section)
    if home == section and name == key:
        return nearest(key, keys.get(section, []))
    place = "" if home == section else f" in [{home}]" if home else " at the top of the recipe"
    return f'\n       did you mean "{name}"{place}?{why}'


def line_of(text: str, location: tuple[str, ...]) -> int | None:
    """The line of a TOML text where a key, or else the section of that name, stands."""
    section, header_line = "", None
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[([^\]]+)\]", line)
        if header:
            section = header[1].strip()
            if section == ".".join(location):
                header_line = number
        key = re.match(r"\s*([A-Za-z0-9_.-]+)\s*=", line)
        if key and ".".join(filter(None, (section, key[1]))) == ".".join(location):
            return number
    return header_line


def _place(location: tuple[str, ...], text: str, source: str, overrides: Sequence[str]) -> str:
    """Where the mistake was made: on the command line, or in the recipe at some line."""
    for override in reversed(overrides):
        given = tuple(override.partition("=")[0].split("."))
        shared = min(len(given), len(location))
        if location and given[:shared] == location[:shared]:
            return f'command line, "{override}"'
    if not location:
        return f"recipe {source}" + (f" with {' '.join(overrides)}" if overrides else "")
    number = line_of(text, location)
    return f"recipe {source}" + (f", line {number}" if number else "")


def explain(
    error: ValidationError, recipe: type[BaseModel], text: str, source: str, overrides: Sequence[str]
) -> str:
    """One line or two for each mistake.

    Args:
        error: what pydantic found.
        recipe: the class that it was to become.
        text: the recipe's file.
        source: the file's name.
        overrides: `section.key=value` words that were put over it.
    """
    return "\n".join(_mistake(detail, recipe, text, source, overrides) for detail in error.errors())


def _mistake(detail: Any, recipe: type[BaseModel], text: str, source: str, overrides: Sequence[str]) -> str:
    location = tuple(part for part in detail["loc"] if isinstance(part, str))  # without places in a list
    place = _place(location, text, source, overrides)
    message = detail["msg"].removeprefix("Value error, ")
    if not location or detail["type"] == "value_error":
        return f"{place}: {message}"
    key, section = location[-1], ".".join(location[:-1])
    inside = f" in [{section}]" if section else ""
    if detail["type"] == "missing":
        if location != detail["loc"]:
            return f'{place}: "{key}"{inside} = {detail["input"]!r}: a value is missing'
        return f'recipe {source}: "{key}"{inside} is missing'
    if detail["type"] == "extra_forbidden" and key in REFUSED:
        return f'{place}: unknown key "{key}"{inside}\n       rung refuses it: {REFUSED[key]}'
    if detail["type"] == "extra_forbidden":
        return f'{place}: unknown key "{key}"{inside}{suggestion(key, section, recipe)}'
    return f'{place}: "{key}"{inside} = {detail["input"]!r}: {message[0].lower()}{message[1:]}'
