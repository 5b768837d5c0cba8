"""Findings in a terminal: tables and curves that fit into 80 columns, and plain text through a pipe."""

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from rung.report.findings import cell_text
from rung.verify.findings import Cell, Chart, Findings, Table

BARS = "▁▂▃▄▅▆▇█"


def show(findings: Findings, console: Console | None = None) -> None:
    """Print what was found: summary, tables, curves as small bars, and what does not hold."""
    console = console or Console(highlight=False)
    console.print(Text(findings.title, style="bold"))
    for key, value in findings.settings.items():
        console.print(f"  {key}: {cell_text(value)}", markup=False)
    for paragraph in findings.summary.splitlines():
        console.print(paragraph, markup=False)
    for data in findings.tables:
        _print_table(data, console)
    for chart in findings.charts:
        _print_chart(chart, console)
    console.print()
    if findings.failures:
        console.print(Text(f"{len(findings.failures)} claim(s) do not hold:", style="bold red"))
        for failure in findings.failures:
            console.print(f"  ✗ {failure}", markup=False)
    else:
        console.print("The code does what is claimed of it.", markup=False)


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _print_table(data: Table, console: Console) -> None:
    console.print()
    console.print(Text(data.title, style="bold"))
    grid = RichTable(box=None, padding=(0, 1), header_style="dim")
    for i, name in enumerate(data.columns):
        numeric = any(_is_number(row[i]) for row in data.rows)
        grid.add_column(name, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for row in data.rows:
        grid.add_row(*(Text(cell_text(cell, 3)) for cell in row))
    console.print(grid)
    for line in data.note.splitlines():
        console.print(Text(line, style="dim"))


def _print_chart(chart: Chart, console: Console) -> None:
    """Each line as a row of bars, between the chart's least and largest value; the numbers are in --html and --json."""
    values = [y for line in chart.lines for y in line.y]
    low, high = min(values), max(values)
    console.print()
    console.print(Text(f"{chart.title}: {chart.y_label} over {chart.x_label}", style="bold"))
    width = max(len(line.name) for line in chart.lines)
    for line in chart.lines:
        bars = "".join(_bar(y, low, high) for y in line.y)
        ends = f"{cell_text(line.y[0], 3)} → {cell_text(line.y[-1], 3)}"
        console.print(f"  {line.name:<{width}}  {bars}  {ends}", markup=False)
    for text in chart.note.splitlines():
        console.print(Text(text, style="dim"))


def _bar(value: float, low: float, high: float) -> str:
    share = 0.0 if high == low else (value - low) / (high - low)
    return BARS[min(int(share * len(BARS)), len(BARS) - 1)]
