"""`rung report`."""

from pathlib import Path
from typing import Annotated

import typer


def report(run: Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)]) -> None:
    """Write a run's page anew: report.html in its folder, one file that works offline. Also of a run in progress."""
    from rung.report import write_report
    from rung.tracking.run import Run

    print(write_report(Run.open(run).folder))
