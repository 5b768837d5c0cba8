"""What a verification found, as data: a terminal, a page and a program show the same."""

import math
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
        verdict: what no failure means, and what failures mean, with {} for their number.
    """

    title: str
    summary: str
    settings: dict[str, Cell] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    failures: tuple[str, ...] = ()
    verdict: tuple[str, str] = ("The code does what is claimed of it.", "{} claim(s) do not hold")

    @property
    def conclusion(self) -> str:
        """The verdict that the failures give."""
        return self.verdict[1].format(len(self.failures)) if self.failures else self.verdict[0]


def coinciding(lines: tuple[Line, ...]) -> str:
    """Which curves lie on each other, as a sentence; empty where none do.

    >>> coinciding((Line("a", (0.0, 1.0), (1.0, 2.0)), Line("b", (0.0, 1.0), (1.0, 2.0))))
    'a and b coincide.'
    """
    groups: list[list[Line]] = []
    for line in lines:
        for group in groups:
            if group[0].x == line.x and all(map(_equal, group[0].y, line.y)):
                group.append(line)
                break
        else:
            groups.append([line])
    together = [[line.name for line in group] for group in groups if len(group) > 1]
    return " ".join(f"{', '.join(names[:-1])} and {names[-1]} coincide." for names in together)


def _equal(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-12)
