"""`rung quickstart`: the whole road in one command, on a model made from nothing."""

import json
import sqlite3
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from rung.cli.train import interrupted

NEXT = (
    ("the same with another method, one word changed", "{rung} train addition-rloo model={sft} method=grpo"),
    ("what a run would do and need, without doing it", "{rung} train smollm2-rloo --dry-run"),
    ("a real model: fetch it, then train it", "make smollm2 && {rung} train smollm2-rloo"),
)


def quickstart(
    seed: Annotated[int, typer.Option(help="Of weights, data order and sampling.", min=0)] = 0,
    runs: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    threads: Annotated[
        int | None, typer.Option(help="Processor threads; one is best for so small a model.", min=1)
    ] = None,
) -> None:
    """Train a small Llama from nothing: supervised until it is middling, then RLOO. About two minutes on two cores."""
    from rung.cli.terminal import Terminal

    begin = time.monotonic()
    print("Two-digit addition, by a Llama of 0.8 M parameters made from random weights.")
    print("The test problems are in neither stage.")
    print("loading torch and transformers …", flush=True)
    from rung import api

    begun: list[Path] = []

    def remember(session: Any) -> None:
        begun.append(session.run.folder)

    common = [f"seed={seed}"] + ([f"threads={threads}"] if threads else [])
    try:
        with Terminal("1 supervised", open_end=True) as terminal:
            first = api.train(
                "addition-sft", common, name="quickstart-sft", root=runs, observer=terminal, started=remember
            )
        words = [*common, f"model={json.dumps(str(first.folder))}"]
        with Terminal("2 rloo      ") as terminal:
            second = api.train(
                "addition-rloo", words, name="quickstart-rloo", root=runs, observer=terminal, started=remember
            )
    except KeyboardInterrupt:
        print(f"\n{interrupted(begun[-1] if begun else None)}", file=sys.stderr)
        raise typer.Exit(130) from None
    show(first, second, time.monotonic() - begin)


def show(first: Any, second: Any, seconds: float) -> None:
    """The table before → after, completions side by side, and where to go from here."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from rung.cli.terminal import percent

    console = Console(highlight=False)
    before, after = second.evaluations("test")[0], second.evaluations("test")[-1]
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{before['n']} held-out problems, sampled at temperature 1",
        title_justify="left",
    )
    for column in ("", "before RL", "after RL"):
        table.add_column(column)
    table.add_row("exact match [95 % interval]", percent(before), percent(after))
    table.add_row("tokens per answer", f"{before['length_mean']:.2f}", f"{after['length_mean']:.2f}")
    table.add_row("ended by itself", f"{before['stop_fraction']:.1%}", f"{after['stop_fraction']:.1%}")
    table.add_row("KL(policy‖reference), nats per answer", "0", f"{after['kl_policy_reference']:.2f}")
    console.print(table)
    samples = Table(box=box.SIMPLE_HEAD, title="the same problems before and after", title_justify="left")
    for column in ("prompt", "right", "before RL", "after RL"):
        samples.add_column(column)
    for prompt, right, old, new in pairs(second.folder, after["step"]):
        samples.add_row(prompt, right, mark(old, right), mark(new, right))
    console.print(samples)
    lift = 100 * (after["reward_mean"] - before["reward_mean"])
    print(f"RL changed exact match by {lift:+.1f} points. The whole took {seconds:.0f} s.\n")
    print(
        f"runs    {first.folder}\n        {second.folder}\nreport  {second.folder / 'report.html'}\n\nworth trying next"
    )
    program = (
        sys.argv[0] if sys.argv[0].startswith(".") else "rung"
    )  # as it was typed: make calls .venv/bin/rung
    for what, command in NEXT:
        print(f"  {command.format(sft=first.folder, rung=program)}\n      {what}")


def mark(answer: str, right: str) -> str:
    """An answer and whether it is right."""
    return f"{answer} {'✓' if answer == right else '✗'}"


def pairs(folder: Path, last_step: int, number: int = 6) -> list[tuple[str, str, str, str]]:
    """(prompt, right answer, before, after) of a few test problems, evenly spread over the test split."""
    database = sqlite3.connect(folder / "rollouts.sqlite")
    rows = database.execute(
        "SELECT a.prompt, a.reference, a.completion, b.completion FROM rollouts a JOIN rollouts b ON a.row = b.row"
        " WHERE a.split = 'test' AND b.split = 'test' AND a.step = 0 AND b.step = ? ORDER BY a.row",
        (last_step,),
    ).fetchall()
    database.close()
    return [rows[(2 * i + 1) * len(rows) // (2 * number)] for i in range(number)]
