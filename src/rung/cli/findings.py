"""Findings in a terminal: tables and curves that fit into 80 columns, and plain text through a pipe."""

import math
from collections.abc import Callable

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from rung.report.findings import cell_text
from rung.verify.findings import Cell, Chart, Findings, Table

BARS = "▁▂▃▄▅▆▇█"


def show(findings: Findings, console: Console | None = None, *, everything: bool = False) -> None:
    """Print what was found: summary, tables, curves as small bars, and what does not hold.

    Tables of detail are printed only with `everything`.
    """
    console = console or Console(highlight=False)
    console.print(Text(findings.title, style="bold"))
    for key, value in findings.settings.items():
        console.print(f"  {key}: {cell_text(value)}", markup=False)
    for paragraph in findings.summary.splitlines():
        console.print(paragraph, markup=False)
    shown = [data for data in findings.tables if everything or not data.detail]
    for data in shown:
        _print_table(data, console)
    for chart in findings.charts:
        _print_chart(chart, console)
    console.print()
    if hidden := len(findings.tables) - len(shown):
        console.print(f"{hidden} more tables: --all prints them, --html PAGE shows everything.", markup=False)
    if findings.failures:
        console.print(Text(f"{findings.conclusion}:", style="bold red"))
        for failure in findings.failures:
            console.print(f"  ✗ {failure}", markup=False)
    else:
        console.print(findings.conclusion, markup=False)


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _print_table(data: Table, console: Console) -> None:
    console.print()
    console.print(Text(data.title, style="bold"))
    grid = RichTable(box=None, padding=(0, 1), header_style="dim")
    for i, name in enumerate(data.columns):
        numeric = any(_is_number(row[i]) for row in data.rows)
        whole = numeric or i == 0  # numbers and names are not broken; sentences are
        grid.add_column(name, justify="right" if numeric else "left", no_wrap=whole, overflow="fold")
    for row in data.rows:
        grid.add_row(*(Text(cell_text(cell, 3)) for cell in row))
    console.print(grid)
    for line in data.note.splitlines():
        console.print(Text(line, style="dim"))


def _print_chart(chart: Chart, console: Console) -> None:
    """Each line as a row of bars, between the chart's least and largest value; the numbers are in --html and --json."""
    height = _decades(chart) if chart.log_y else float
    values = [height(y) for line in chart.lines for y in line.y]
    low, high = min(values), max(values)
    console.print()
    scale = ", logarithmic" if chart.log_y else ""
    console.print(Text(f"{chart.title}: {chart.y_label} over {chart.x_label}{scale}", style="bold"))
    width = max(len(line.name) for line in chart.lines)
    for line in chart.lines:
        bars = "".join(_bar(height(y), low, high) for y in line.y)
        ends = f"{cell_text(line.y[0], 3)} → {cell_text(line.y[-1], 3)}"
        console.print(f"  {line.name:<{width}}  {bars}  {ends}", markup=False)
    for text in chart.note.splitlines():
        console.print(Text(text, style="dim"))


def _decades(chart: Chart) -> Callable[[float], float]:
    """log₁₀, where what is not positive stands a decade below the least that is."""
    positive = [y for line in chart.lines for y in line.y if y > 0] or [1.0]
    return lambda y: math.log10(max(y, min(positive) / 10))


def _bar(value: float, low: float, high: float) -> str:
    share = 0.0 if high == low else (value - low) / (high - low)
    return BARS[min(int(share * len(BARS)), len(BARS) - 1)]
