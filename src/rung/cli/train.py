"""`rung train` and `rung resume`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def train(
    recipe: Annotated[
        str, typer.Argument(help="A TOML file, or the name of a shipped recipe.", show_default=False)
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Settings over the recipe's: method=grpo training.steps=50"
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the resolved recipe, counts and a memory estimate; do nothing."
        ),
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Name of the run's folder; the recipe's own by default.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
) -> None:
    """Train a model by a recipe: supervised fine-tuning (sft), or any method of the catalogue that needs no critic."""
    from rung import api

    resolved = api.prepared(recipe, overrides or [])
    if dry_run:
        show_plan(resolved)
        return
    open_end = resolved.training.stop_between is not None
    follow(
        resolved.method, lambda **watch: api.train(resolved, name=name, root=runs, **watch), open_end=open_end
    )


def resume(run: Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)]) -> None:
    """Go on with an interrupted run from its newest complete checkpoint."""
    from rung import api

    follow("resume", lambda **watch: api.resume(run, **watch))


def follow(label: str, start: Any, *, open_end: bool = False) -> Any:
    """Run something with progress; an interruption says how to go on."""
    from rung.cli.terminal import Terminal, percent

    folder: list[Path] = []
    try:
        with Terminal(label, open_end=open_end) as terminal:
            result = start(observer=terminal, started=lambda session: folder.append(session.run.folder))
    except KeyboardInterrupt:
        print(f"\n{interrupted(folder[0] if folder else None)}", file=sys.stderr)
        raise typer.Exit(130) from None
    tests = result.evaluations("test")
    if len(tests) > 1:
        print(f"held-out reward  {percent(tests[0])}  →  {percent(tests[-1])}")
        if "kl_policy_reference" in tests[-1]:
            print(f"KL(policy‖reference)  {tests[-1]['kl_policy_reference']:.3f} nats per completion")
    print(f"run     {result.folder}\nmodel   {result.model}\nreport  {result.folder / 'report.html'}")
    return result


def interrupted(folder: Path | None) -> str:
    """How to go on with a run that was stopped by hand."""
    from rung.training.checkpoint import all_checkpoints

    if folder is None:
        return "interrupted before the run began"
    if not all_checkpoints(folder / "checkpoints"):
        return (
            f"interrupted before the first checkpoint of {folder}, so it cannot be resumed; "
            "checkpoint.every in the recipe says how soon there is one"
        )
    return f"interrupted. Go on with: rung resume {shlex.quote(str(folder))}"


def show_plan(recipe: Any) -> None:
    """The resolved recipe, then what it will do and need."""
    from rung.training.config import dump
    from rung.training.estimate import estimate

    plan = estimate(recipe)
    print(dump(recipe))
    for remark in recipe.remarks:
        print(f"# note          {remark}")
    gib = 1024**3
    print(f"# model         {plan.parameters:,} parameters")
    print(f"# steps         {plan.steps:,}, {plan.updates:,} optimizer updates")
    if plan.completions:
        print(f"# sampled       at most {plan.completions:,} completions, {plan.tokens:,} tokens")
    print(
        f"# prompts       {plan.prompt_tokens[0]:.1f} tokens on average, {plan.prompt_tokens[1]} at most (200 of them)"
    )
    total = sum(plan.memory.values()) / gib
    print(f"# memory        about {total:.2f} GiB at the peak of a step, beside Python and torch:")
    for part, size in plan.memory.items():
        print(f"#   {part:<30}{size / gib:8.3f} GiB")
