"""What a verification found, as data: a terminal, a page and a program show the same."""

from dataclasses import dataclass, field
from typing import TypeAlias

Cell: TypeAlias = str | float | int | bool | None


@dataclass(frozen=True)
class Table:
    """Rows under named columns.

    Attributes:
        title: what the rows are.
        columns: their names; the first one names the row.
        rows: each as long as `columns`.
        note: how to read it, in a sentence or a few.
        detail: a terminal shows it only on request; pages and programs always get it.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    detail: bool = False


@dataclass(frozen=True)
class Line:
    """One curve: y over x."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Chart:
    """Curves over one pair of axes."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    note: str = ""
    log_y: bool = False


@dataclass(frozen=True)
class Findings:
    """Everything one command shows.

    Attributes:
        title: of the page.
        summary: what was found, in a few sentences.
        settings: on what it was measured: problem, coefficients, distance from the sampler.
        tables: in the order in which a person reads them.
        charts: likewise.
        failures: where the code does not do what is claimed of it, one sentence each. Empty is what one wants.
    """

    title: str
    summary: str
    settings: dict[str, Cell] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    failures: tuple[str, ...] = ()
