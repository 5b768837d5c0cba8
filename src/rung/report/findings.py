"""What `rung verify` found, as one HTML page that works offline."""

import os
from pathlib import Path
from string import Template
from typing import Any

from rung.errors import UsageError
from rung.report.figures import legend, table
from rung.report.page import section, template
from rung.report.scales import format_number
from rung.report.series import Point, Series
from rung.report.svg import line_chart
from rung.report.text import escape
from rung.verify.findings import Cell, Chart, Findings, Table

MARKERS = ("dot", "square", "diamond")
COLORS = 7


def cell_text(cell: Cell, digits: int = 4) -> str:
    """A cell as people read it. What is smaller than rounding is 0, and 1 is written only of what is 1.

    >>> [cell_text(cell) for cell in (0.123456, 3e-17, 0.99997, True, None, "k1", 7)]
    ['0.1235', '0', '0.99997', 'yes', '', 'k1', '7']
    """
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        while digits < 10 and abs(abs(cell) - 1.0) > 1e-9 and format_number(abs(cell), digits) == "1":
            digits += 1
        return format_number(0.0 if abs(cell) < 1e-12 else cell, digits)
    return str(cell)


def _note(text: str) -> str:
    return "".join(f'<p class="note">{escape(line)}</p>' for line in text.splitlines() if line.strip())


def _table(data: Table) -> str:
    first = data.rows[0] if data.rows else data.columns
    head = "".join(
        f'<th scope="col"{_words(cell)}>{escape(name)}</th>'
        for name, cell in zip(data.columns, first, strict=True)
    )
    body = "".join(
        f'<tr><th scope="row">{escape(cell_text(row[0]))}</th>'
        + "".join(f"<td{_words(cell)}>{escape(cell_text(cell))}</td>" for cell in row[1:])
        + "</tr>"
        for row in data.rows
    )
    return (
        f'<h3>{escape(data.title)}</h3><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{_note(data.note)}"
    )


def _words(cell: Cell) -> str:
    return ' class="words"' if isinstance(cell, str) else ""


def _figure(data: Chart) -> str:
    series = [
        Series(
            line.name,
            tuple(Point(x, y) for x, y in zip(line.x, line.y, strict=True)),
            color=i % COLORS + 1,
            marker=MARKERS[i % len(MARKERS)],
        )
        for i, line in enumerate(data.lines)
    ]
    xs = sorted({x for line in data.lines for x in line.x})
    chart = line_chart(
        series,
        title=data.title,
        y_label=data.y_label,
        x_label=data.x_label,
        logarithmic=data.log_y,
        x_name=data.x_label,
        whole=all(x == round(x) for x in xs),
    )
    values = [dict(zip(line.x, line.y, strict=True)) for line in data.lines]
    rows = [[format_number(x, 6), *(cell_text(column.get(x), 6) for column in values)] for x in xs]
    numbers = table([data.x_label, *(line.name for line in data.lines)], rows)
    return (
        f"<figure><figcaption>{escape(data.title)}</figcaption>{chart}{legend(series)}{_note(data.note)}"
        f"{numbers}</figure>"
    )


def _facts(settings: dict[str, Cell]) -> str:
    items = "".join(
        f"<div><dt>{escape(k)}</dt><dd>{escape(cell_text(v))}</dd></div>" for k, v in settings.items()
    )
    return f'<dl class="facts">{items}</dl>' if items else ""


def render_findings(findings: Findings) -> str:
    """One page, complete in itself: what was found, tables, charts, and where code and claims part."""
    ending = (
        f'bad">{escape(findings.conclusion)}.'
        if findings.failures
        else f'done">{escape(findings.conclusion)}'
    )
    verdict = f'<p class="status {ending}</p>'
    failures = "".join(f"<li>{escape(failure)}</li>" for failure in findings.failures)
    sections: dict[str, Any] = {
        "summary": ("Summary", "".join(f"<p>{escape(p)}</p>" for p in findings.summary.splitlines() if p)),
        "failures": ("What does not hold", f"<ul>{failures}</ul>" if failures else ""),
        "charts": ("Curves", "".join(map(_figure, findings.charts))),
        "tables": ("Tables", "".join(map(_table, findings.tables))),
    }
    if sections["charts"][1]:
        sections["charts"] = ("Curves", f'<div class="panels">{sections["charts"][1]}</div>')
    links = "".join(f'<a href="#{name}">{title}</a>' for name, (title, body) in sections.items() if body)
    return Template(template("page.html")).substitute(
        title=escape(findings.title),
        style=template("style.css"),
        header=f"<h1>{escape(findings.title)}</h1>{verdict}{_facts(findings.settings)}",
        links=links,
        notes="",
        sections="".join(section(name, title, body) for name, (title, body) in sections.items()),
        footer="Written by rung verify: every number is exact, by enumeration.",
    )


def check_place(file: Path) -> None:
    """See before the work that a page can be written there.

    Raises:
        UsageError: it is a folder, or cannot be written.
    """
    if file.is_dir():
        raise UsageError(f'"{file}" is a folder: name a file for the page')
    beside = file.parent / f".{file.name}.{os.getpid()}.tmp"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.touch()
        beside.unlink()
    except OSError as error:
        raise UsageError(f'no page can be written to "{file}": {error.strerror or error}') from error


def write_findings(findings: Findings, file: Path) -> Path:
    """Write the page, replacing an earlier one only once the new one is complete."""
    beside = file.parent / f".{file.name}.{os.getpid()}.tmp"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(render_findings(findings), encoding="utf-8", newline="\n")
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)
    return file
