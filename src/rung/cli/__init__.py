"""The command line: one file a command. Nothing here loads torch until a command needs it."""

import io
import sys

import typer

from rung.cli import evaluate, explain, importing, quickstart, report, sample, tasks, train, verify
from rung.errors import RungError, UsageError

app = typer.Typer(
    name="rung",
    help="Post-train language models by reinforcement learning, every number checked against an exact answer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("quickstart")(quickstart.quickstart)
app.command("train")(train.train)
app.command("resume")(train.resume)
app.command("sample")(sample.sample)
app.command("eval")(evaluate.evaluate)
app.command("report")(report.report)
app.add_typer(tasks.app, name="task")
app.command("verify")(verify.verify)
app.command("explain")(explain.explain)
app.command("import")(importing.import_checkpoint)


def main() -> None:
    """Run a command. A user's mistake gets a message and no traceback: exit code 2 for usage, 1 for the rest."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no "→" shows "?", and nothing stops
    try:
        app()
    except RungError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that may not be written
        print(
            f"error: {error.strerror or error}" + (f": {error.filename}" if error.filename else ""),
            file=sys.stderr,
        )
        sys.exit(1)
