"""A loss or a method out of somebody's file, against the oracle."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from rung.errors import RungError, UsageError
from rung.methods import Method
from rung.verify.findings import Findings, Table
from rung.verify.unbiased import PROBLEMS, Bias, bias_and_variance, describe

SITUATIONS = ("on-policy", "stale", "mismatch")


def load(place: str) -> Any:
    """What `path/to/file.py:name` or `package.module:name` means.

    Raises:
        UsageError: there is no such file, module or name, or the file cannot be run; with the reason.
    """
    where, colon, name = place.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f'"{place}" names no function: write path/to/file.py:name or package.module:name')
    try:
        module = _module_of_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except ModuleNotFoundError as error:
        raise UsageError(f'"{place}": {error}') from error
    except RungError:
        raise
    except Exception as error:  # whatever the file does when it runs
        raise UsageError(f"{where} cannot be run: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        named = sorted(
            key for key, value in vars(module).items() if callable(value) and not key.startswith("_")
        )
        raise UsageError(f'{where} has no "{name}"; it has {", ".join(named) or "no function"}')
    return getattr(module, name)


def _module_of_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f'"{path}": no such file')
    spec = importlib.util.spec_from_file_location(f"rung_foreign_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f'"{path}" is no Python file')
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))  # as if it were run: it may import its neighbours
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def loss_or_method(place: str) -> Callable[..., torch.Tensor] | Method:
    """A loss as it stands; a method, or a function without arguments that returns one, as that method.

    Raises:
        UsageError: it is neither.
    """
    found = load(place)
    if isinstance(found, Method):
        return found
    if not callable(found):
        raise UsageError(f"{place} is neither a function nor a method, but {type(found).__name__}")
    if any(
        p.default is p.empty and p.kind != p.VAR_KEYWORD for p in inspect.signature(found).parameters.values()
    ):
        return cast(Callable[..., torch.Tensor], found)  # a loss: it wants log-probabilities
    made = found()
    if not isinstance(made, Method):
        raise UsageError(f"{place} takes no arguments and returns no method, but {type(made).__name__}")
    return made


def _row(bias: Bias) -> tuple[str, str, int, float, float, float, float]:
    return (
        bias.problem,
        bias.setting.situation,
        bias.setting.group_size,
        bias.relative,
        bias.cosine,
        bias.scale,
        bias.moments.trace,
    )


def survey(
    loss: Callable[..., torch.Tensor] | Method,
    name: str,
    *,
    kl_coefficient: float = 0.0,
    must_be_unbiased: bool = True,
    watch: Callable[[int, int], None] | None = None,
) -> Findings:
    """A loss's bias and variance in every situation, and in words.

    Args:
        loss: see `rung.verify.unbiased`.
        name: for the page.
        kl_coefficient: β of the objective J − β KL(policy‖reference) that it is compared with.
        must_be_unbiased: on policy anything but ∇J is a failure.
        watch: is told (done, total).
    """
    found: list[Bias] = []
    cases = [(p, g, s) for p in PROBLEMS for g in (2, 3) for s in SITUATIONS if (p, g) != ("two prompts", 3)]
    for done, (problem, group_size, situation) in enumerate(cases):
        if watch is not None:
            watch(done, len(cases))
        found.append(
            bias_and_variance(
                loss,
                problem=problem,
                group_size=group_size,
                situation=situation,  # type: ignore[arg-type]
                kl_coefficient=kl_coefficient,
            )
        )
    on_policy = [bias for bias in found if bias.setting.situation == "on-policy"]
    failures = tuple(
        f"{bias.problem}, G = {bias.setting.group_size}, on policy: {describe(bias)}".replace("\n", "; ")
        for bias in on_policy
        if must_be_unbiased and not bias.relative < 1e-8
    )
    columns = ("problem", "situation", "G", "rel. bias", "cosine", "scale", "cov. trace")
    wrong = np.array([bias.relative for bias in on_policy])
    return Findings(
        title=f"{name} against the exact gradient",
        summary="\n".join(
            f"{bias.problem}, G = {bias.setting.group_size}: {describe(bias).splitlines()[1]}."
            for bias in on_policy
        ),
        settings={
            "objective": "J" if not kl_coefficient else f"J − {kl_coefficient:g} · KL(policy‖reference)",
            "off policy by": f"{on_policy[0].setting.problem.distance():.3f} nats KL(sampler‖policy)",
            "largest relative bias on policy": float(wrong.max()),
        },
        tables=(
            Table(
                "What it does on average, and how much it scatters",
                columns,
                tuple(map(_row, found)),
                note="Relative bias: |E[ĝ] − ∇J| / |∇J|, where ĝ is minus the loss's gradient. Scale: the multiple of "
                "∇J that is nearest. Stale: the policy has moved since the batch was sampled (as in a second "
                "update). Mismatch: the sampler is another policy than the trainer's.",
            ),
        ),
        failures=failures,
    )
