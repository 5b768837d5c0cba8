"""The page: its sections put together and written beside the run."""

import os
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

from rung.report.completions import completions
from rung.report.figures import definition_list, figure, time_figure
from rung.report.load import Run, load_run
from rung.report.panels import label_of, main_panels, more_panels, time_panel
from rung.report.rollouts import Rollouts, read_rollouts
from rung.report.scales import format_number
from rung.report.series import number
from rung.report.summary import header, run_name, summary
from rung.report.text import escape
from rung.tracking.definitions import METRICS

CONFIG_CHARACTERS = 30_000
MOST_MORE_PANELS = 16


def template(name: str) -> str:
    """A file that is shipped beside this module."""
    return (files("rung.report") / "templates" / name).read_text(encoding="utf-8")


def section(name: str, title: str, content: str) -> str:
    """A headed part of a page, or nothing."""
    return f'<section id="{name}"><h2>{title}</h2>{content}</section>' if content else ""


def _notes(notes: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return (
        f'<aside class="notes"><h2>Not everything could be read</h2><ul>{items}</ul></aside>' if items else ""
    )


def _plots(run: Run) -> str:
    main = main_panels(run)
    panels = [figure(panel) for panel in main]
    time = time_panel(run)
    if time is not None:
        panels.append(time_figure(time))
    if not panels:
        return '<p class="note">No step was recorded, so there is nothing to draw.</p>'
    more, constant = more_panels(run, main)
    folded = f'<div class="panels">{"".join(map(figure, more[:MOST_MORE_PANELS]))}</div>' if more else ""
    if len(more) > MOST_MORE_PANELS:
        titles = ", ".join(panel.title for panel in more[MOST_MORE_PANELS:])
        folded += f'<p class="note">Not drawn, to keep this page small: {escape(titles)}.</p>'
    if constant:
        said = "; ".join(f"{label_of(key)} {_values(values)}" for key, values in constant.items())
        folded += f'<p class="note">The same all along: {escape(said)}.</p>'
    if folded:
        folded = f"<details><summary>More plots</summary>{folded}</details>"
    return f'<div class="panels">{"".join(panels)}</div>{folded}'


def _values(by_series: Mapping[str, float]) -> str:
    if len(set(by_series.values())) == 1:
        return format_number(next(iter(by_series.values())), 4)
    return ", ".join(f"{format_number(value, 4)} {label}" for label, value in by_series.items())


def _recorded(run: Run) -> str:
    """Every recorded number: first, last and extremes, and its definition."""
    rows: list[str] = []
    seen: list[str] = []
    parts = [
        ("training", run.train),
        *((split, run.evaluations(split)) for split in run.splits),
        ("time", run.timing),
    ]
    for part, records in parts:
        keys = dict.fromkeys(key for record in records for key in record)
        seen += keys
        for key in keys:
            values = [value for record in records if (value := number(record.get(key))) is not None]
            if values and key != "step":
                cells = (values[0], values[-1], min(values), max(values))
                numbers = "".join(f"<td>{format_number(value, 4)}</td>" for value in cells)
                rows.append(
                    f'<tr><th scope="row"><code>{escape(key)}</code><br>{escape(part)}</th>{numbers}</tr>'
                )
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("metric", "first", "last", "least", "most"))
    known = [METRICS[key] for key in dict.fromkeys(seen) if key in METRICS]
    meanings = "".join(
        f"<p><b>{escape(m.label)}</b> <code>{m.name}</code>: {escape(m.one_line)}</p>" for m in known
    )
    return (
        f"<details><summary>Every recorded number</summary><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></details>"
        f'<details><summary>What each number means</summary><div class="defs">{meanings}</div>'
        f"<details><summary>How each is computed</summary>{definition_list(known)}</details></details>"
    )


def _setup(run: Run) -> str:
    parts: list[str] = []
    if run.config_text:
        text = run.config_text[:CONFIG_CHARACTERS]
        parts.append(f"<details><summary>Configuration</summary><pre>{escape(text)}</pre></details>")
    if run.environment:
        rows = "".join(
            f'<tr><th scope="row">{escape(key)}</th><td>{escape(value)}</td></tr>'
            for key, value in run.environment.items()
        )
        parts.append(
            "<details><summary>Environment</summary>"
            f'<table class="plain"><tbody>{rows}</tbody></table></details>'
        )
    return "".join(parts)


def _page(run: Run, rollouts: Rollouts) -> str:
    sections = {
        "summary": ("Summary", summary(run, rollouts.paired)),
        "plots": ("Plots", _plots(run)),
        "completions": ("Completions over time", completions(rollouts)),
        "numbers": ("Numbers", _recorded(run)),
        "setup": ("Setup", _setup(run)),
    }
    links = "".join(
        f'<a href="#{name}">{title}</a>' for name, (title, content) in sections.items() if content
    )
    body = "".join(section(name, title, content) for name, (title, content) in sections.items())
    return Template(template("page.html")).substitute(
        title=escape(run_name(run)),
        style=template("style.css"),
        header=header(run),
        links=links,
        notes=_notes(run.notes),
        sections=body,
        footer="Written by rung from this run's files.",
    )


def render(run_dir: Path) -> str:
    """A run folder as one HTML page, complete in itself.

    Args:
        run_dir: the folder of a run. Files that are missing or damaged are named on the page and skipped.

    Raises:
        UsageError: the folder does not exist.
    """
    run = load_run(run_dir)
    rollouts = read_rollouts(run_dir / "rollouts.sqlite", run.notes)
    return _page(run, rollouts)


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into a run folder, replacing an earlier one only once the new one is complete.

    Args:
        run_dir: the folder of a run, finished or not.

    Returns:
        Where the page is.

    Raises:
        UsageError: the folder does not exist.
    """
    run_dir = Path(run_dir)
    page = render(run_dir)
    target = run_dir / "report.html"
    beside = run_dir / f".report.{os.getpid()}.html"
    try:
        beside.write_text(page, encoding="utf-8", newline="\n")
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
    return target
