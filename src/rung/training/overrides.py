"""`section.key=value` words of a command line."""

import copy
import tomllib
from typing import Any

from rung.errors import UsageError


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
