"""`rung eval`: a model on held-out problems, alone or beside another."""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Annotated, Any

import typer


def evaluate(
    model: Annotated[
        str,
        typer.Argument(help="A Hugging Face folder, a run's folder (its newest checkpoint), or a hub id."),
    ],
    task: Annotated[str, typer.Argument(help="addition or extraction.")],
    problems: Annotated[
        int, typer.Option(help="Test problems, evenly spread over the split; all where it has fewer.", min=1)
    ] = 200,
    samples: Annotated[int, typer.Option(help="Samples of each problem; pass@k for k up to it.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Of the sampling.", min=0)] = 0,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            help="The length cap: the run's own; without a run 64, or what the model has room for.",
            min=1,
            show_default=False,
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="The run's own; without a run 1.", show_default=False)
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="OTHER",
            help="Another model: its mean too, and MODEL minus OTHER on the same problems.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON, each reward too.")
    ] = False,
) -> None:
    """Mean reward on held-out problems, pass@k, and the difference to another model, with 95 % intervals.

    Prompts are the task's: plain text (addition), or messages through the model's chat template (extraction).
    A sample passes with a reward of 1. OTHER gets the length cap of MODEL, and its own temperature.
    """
    from rung import api
    from rung.models.loading import check_name
    from rung.training.session import resolve_model

    names = [model] if against is None else [model, against]
    for name in names:
        check_name(resolve_model(name))  # before anything is sampled
    found: list[Any] = []
    for name in names:
        cap = found[0].max_new_tokens if found else max_new_tokens
        common: dict[str, Any] = {
            "problems": problems,
            "samples": samples,
            "seed": seed,
            "temperature": temperature,
        }
        found.append(_watched(lambda watch: api.evaluate(name, task, max_new_tokens=cap, **common, **watch)))  # noqa: B023
    if as_json:
        print(json.dumps(_as_data(found), indent=1))
    else:
        _show(found)


def _watched(run: Any) -> Any:
    """Run with progress on standard error, so that standard output has the result alone."""
    from rich.console import Console

    from rung.cli.terminal import Terminal

    with Terminal("eval", Console(stderr=True, highlight=False)) as terminal:
        return run({"observer": terminal})


def _numbers(estimate: Sequence[float]) -> dict[str, float | None]:
    """An estimate as JSON has it: what is not known is null."""
    names = ("mean", "low", "high")
    return {name: None if math.isnan(value) else value for name, value in zip(names, estimate, strict=True)}


def _as_data(found: Sequence[Any]) -> dict[str, Any]:
    models = [
        dataclasses.asdict(one)
        | {"reward": _numbers(one.reward()), "reward_errors": one.reward_errors}
        | {"pass_at_k": {k: _numbers(one.pass_at(k)) for k in range(1, one.samples + 1)}}
        for one in found
    ]
    return {"models": models} | ({"difference": _numbers(found[0].minus(found[1]))} if found[1:] else {})


def _percent(estimate: Sequence[float]) -> str:
    if math.isnan(estimate[0]):
        return "unknown, as no completion could be judged"
    ends = "no interval" if math.isnan(estimate[1]) else f"[{estimate[1]:.1%}, {estimate[2]:.1%}]"
    return f"{estimate[0]:.1%} {ends}"


def _points(estimate: Sequence[float]) -> str:
    if math.isnan(estimate[0]):
        return "unknown, as no problem was judged for both"
    mean, low, high = (100 * x for x in estimate)
    ends = "no interval" if math.isnan(low) else f"[{low:+.1f}, {high:+.1f}]"
    return f"{mean:+.1f} points {ends}"


def _show(found: Sequence[Any]) -> None:
    """Each model's numbers, then the difference."""
    first = found[0]
    print(
        f"{first.task}: {len(first.rows)} test problems, {first.samples} sample{'s' * (first.samples > 1)} of each, "
        f"at most {first.max_new_tokens} tokens, seed {first.seed}. Means with 95 % intervals over problems"
    )
    for one in found:
        print(f"\nmodel       {one.model}, temperature {one.temperature:g}")
        print(f"reward      {_percent(one.reward())}")
        if one.samples > 1:
            for k in range(1, one.samples + 1):
                print(f"{f'pass@{k}':<12}{_percent(one.pass_at(k))}")
        print(f"length      {one.length_mean:.2f} tokens, {one.stop_fraction:.1%} ended by themselves")
        if one.reward_errors:
            print(f"errors      {one.reward_errors} completions got no reward, and count nowhere")
    if found[1:]:
        print(
            f"\ndifference  {_points(first.minus(found[1]))}, the first minus the second, paired by problem"
        )
