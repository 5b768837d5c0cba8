"""A loss or a method out of somebody's file, against the oracle."""

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from rung.errors import RungError, UsageError
from rung.methods import Method
from rung.verify.bias import EXACT, Bias, describe, meaning
from rung.verify.enumeration import SITUATIONS
from rung.verify.findings import Findings, Table
from rung.verify.unbiased import (
    OFFERED,
    POSITIONS,
    PROBLEMS,
    beta_of,
    bias_and_variance,
    names_asked_by,
    takes_positions_for_groups,
)

OURS = str(Path(__file__).parent)


def load(place: str) -> Any:
    """What `path/to/file.py:name` or `package.module:name` means.

    Raises:
        UsageError: there is no such file, module or name, or the file cannot be run; with the reason.
    """
    where, colon, name = place.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f'"{place}" names no function: write path/to/file.py:name or package.module:name')
    try:
        if where.endswith(".py"):
            module = _module_of_file(Path(where))
        else:
            _reachable(Path())
            module = importlib.import_module(where)
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


def _reachable(folder: Path) -> None:
    """Let imports find a folder's modules, now and when a function runs."""
    if (place := str(folder.resolve())) not in sys.path:
        sys.path.insert(0, place)


def _module_of_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f'"{path}": no such file')
    name = f"rung_foreign_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f'"{path}" is no Python file')
    module = importlib.util.module_from_spec(spec)
    _reachable(path.parent)  # as if it were run: it may import its neighbours
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
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
    if not _is_factory(found):
        return cast(Callable[..., torch.Tensor], found)
    try:
        made = found()
    except Exception as error:  # whatever it does
        raise UsageError(f"{place} returns no method: {_told(error)}") from error
    if not isinstance(made, Method):
        raise UsageError(
            f"{place} takes nothing that a loss is given and returns no method, but {type(made).__name__}"
        )
    return made


def _is_factory(found: Callable[..., Any]) -> bool:
    """Whether it can be called with nothing, and could be given nothing."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return not any(
        name in OFFERED or parameter.kind in variable or parameter.default is parameter.empty
        for name, parameter in names_asked_by(found).items()
    )


def _told(error: Exception) -> str:
    """An exception with the line that it comes from: the last one that is neither rung's nor a library's below it."""
    frames = traceback.extract_tb(error.__traceback__)
    below = tuple(str(Path(file).parent) + os.sep for file in (OURS, str(torch.__file__), str(np.__file__)))
    own = [frame for frame in frames if not frame.filename.startswith(below)]
    words = f"{type(error).__name__}: {error}"
    return f"{own[-1].filename}:{own[-1].lineno}, in {own[-1].name}: {words}" if own else words


def _guarded(loss: Callable[..., torch.Tensor], name: str) -> Callable[..., torch.Tensor]:
    """The same loss, which says where it fails and on what."""

    def guarded(**given: torch.Tensor) -> torch.Tensor:
        try:
            return loss(**given)
        except Exception as error:  # whatever it does
            shapes = ", ".join(f"{key} {list(rows.shape)}" for key, rows in given.items())
            raise UsageError(f"{name} fails: {_told(error)}\nit was given {shapes}") from error

    guarded.__signature__ = inspect.Signature(list(names_asked_by(loss).values()))  # type: ignore[attr-defined]
    return guarded


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
    kl_coefficient: float | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Findings:
    """A loss's bias and variance in every situation, and in words. On policy anything but the gradient is a failure.

    Args:
        loss: see `rung.verify.unbiased`.
        name: for the page.
        kl_coefficient: β of the objective J − β KL(policy‖reference) that it is compared with; see
            `rung.verify.bias_and_variance`.
        watch: is told (done, total).

    Raises:
        UsageError: the loss fails; with the line, and the shapes that it was given.
        InvalidInput: it is no loss; see `rung.verify.bias_and_variance`.
    """
    beta = beta_of(loss, kl_coefficient)
    guarded = loss if isinstance(loss, Method) else _guarded(loss, name)
    try:
        found = _measured(guarded, beta, watch)
        on_policy = [bias for bias in found if bias.setting.situation == "on-policy"]
        failures = _failures(guarded, on_policy, beta)
    except RungError:
        raise
    except Exception as error:  # in a method's own functions, or in the derivative
        raise UsageError(f"{name} fails: {_told(error)}") from error
    return Findings(
        title=f"{name} against the exact gradient",
        summary="\n".join(
            f"{bias.problem}, G = {bias.setting.group_size}: {meaning(bias)}." for bias in on_policy
        ),
        settings={
            "objective": f"J − {beta:g} · KL(policy‖reference)" if beta else "J",
            "β": beta,
            "off policy by": f"{on_policy[0].setting.problem.distance():.3f} nats KL(sampler‖policy)",
            "largest relative bias on policy": max(bias.relative for bias in on_policy),
        },
        tables=(_table(found),),
        failures=failures,
        verdict=(
            "On policy it is the gradient of the objective.",
            "On policy it is not the gradient of the objective",
        ),
    )


def _measured(
    loss: Callable[..., torch.Tensor] | Method, beta: float, watch: Callable[[int, int], None] | None
) -> list[Bias]:
    cases = [(p, g, s) for p in PROBLEMS for g in (2, 3) for s in SITUATIONS if (p, g) != ("two prompts", 3)]
    found: list[Bias] = []
    for problem, group_size, situation in cases:
        found.append(
            bias_and_variance(
                loss, problem=problem, group_size=group_size, situation=situation, kl_coefficient=beta
            )
        )
        if watch is not None:
            watch(len(found), len(cases))
    return found


def _failures(
    loss: Callable[..., torch.Tensor] | Method, on_policy: list[Bias], beta: float
) -> tuple[str, ...]:
    wrong = [bias for bias in on_policy if not bias.relative < EXACT]
    said = [
        f"{bias.problem}, G = {bias.setting.group_size}, on policy: {describe(bias)}".replace("\n", "; ")
        for bias in wrong
    ]
    if len(wrong) == 1 and takes_positions_for_groups(loss, wrong[0], beta):
        said.append(POSITIONS)
    return tuple(said)


def _table(found: list[Bias]) -> Table:
    return Table(
        "What it does on average, and how much it scatters",
        ("problem", "situation", "G", "rel. bias", "cosine", "scale", "cov. trace"),
        tuple(map(_row, found)),
        note="Relative bias: |E[ĝ] − ∇J| / |∇J|, where ĝ is minus the loss's gradient. Scale: the multiple of "
        "∇J that is nearest. Stale: the policy has moved since the batch was sampled (as in a second "
        "update). Mismatch: the sampler is another policy than the trainer's.",
    )
