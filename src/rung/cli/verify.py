"""`rung verify`: what an estimator estimates, exactly."""

import dataclasses
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

TOPICS = ("kl", "credit", "clip")


def verify(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A method of the catalogue, or kl, credit, clip; without, all methods.", show_default=False
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="FILE:NAME",
            help="A loss or a method of yours: path/to/file.py:function.",
            show_default=False,
        ),
    ] = None,
    kl_coefficient: Annotated[
        float | None,
        typer.Option(
            help="With --loss: β of the objective J − β KL(policy‖reference). Without: 0, or a method's own.",
            min=0.0,
            show_default=False,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Print every table, details too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with tables and plots.", show_default=False)
    ] = None,
) -> None:
    """Compare estimators with the exact gradient, by enumerating everything that could be sampled.

    Exits with 1 where the code does not do what is claimed of it.
    """
    from rung.errors import UsageError

    if what is not None and loss is not None:
        raise UsageError(f'give either a name ("{what}") or --loss ("{loss}"), not both')
    if kl_coefficient is not None and loss is None:
        raise UsageError(
            "--kl-coefficient goes with --loss: what rung ships is measured with the β of its claim"
        )
    if html is not None:
        from rung.report.findings import check_place

        check_place(html)
    findings = _watched(lambda watch: _found(what, loss, kl_coefficient, watch))
    if html is not None:
        from rung.report.findings import write_findings

        write_findings(findings, html)
    if as_json:
        print(json.dumps(dataclasses.asdict(findings) | {"holds": not findings.failures}, indent=1))
    else:
        from rung.cli.findings import show

        show(findings, everything=everything)
        if html is not None:
            print(f"page    {html}")
    if findings.failures:
        raise typer.Exit(1)


def _found(
    what: str | None, loss: str | None, kl_coefficient: float | None, watch: Callable[[int, int], None]
) -> Any:
    import torch

    torch.set_num_threads(1)  # many small tensors: threads would only wait for each other
    if loss is not None:
        from rung.verify import foreign

        return foreign.survey(foreign.loss_or_method(loss), loss, kl_coefficient=kl_coefficient, watch=watch)
    if what is not None and what.lower() in TOPICS:
        return importlib.import_module(f"rung.verify.{what.lower()}").survey()
    from rung.verify import catalogue

    return catalogue.survey(watch=watch) if what is None else catalogue.examine(what, watch=watch)


def _watched(find: Callable[[Callable[[int, int], None]], Any]) -> Any:
    """Run with a bar on standard error, where a person sees it and a pipe does not."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("enumerating"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        return find(lambda done, total: progress.update(task, completed=done, total=total))
