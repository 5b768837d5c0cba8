"""docs/mutation.md explains exactly the mutants that survived the run that docs/results/mutation.json recorded."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.mutation_rules import functions, mutants

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "mutation.md").read_text(encoding="utf-8")
RESULTS = json.loads((ROOT / "docs" / "results" / "mutation.json").read_text(encoding="utf-8"))
SURVIVORS = [
    tuple(s[key] for key in ("place", "before", "after")) for r in RESULTS.values() for s in r["survivors"]
]


def table(name: str) -> list[list[str]]:
    """The cells of a marked table, without the ticks of code and the strokes before | in it."""
    part = PAGE.split(f"<!-- {name}: begin -->")[1].split(f"<!-- {name}: end -->")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")][2:]
    split = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return [[cell.strip().strip("`").replace("\\|", "|") for cell in row] for row in split]


def test_every_survivor_is_explained_and_nothing_else_is():
    rows = table("survivors")
    assert sorted(tuple(row[:3]) for row in rows) == sorted(SURVIVORS)
    assert all(len(row) == 4 and len(row[3]) > 10 for row in rows)


def test_the_counts_are_those_of_the_run():
    counts = {m: [str(r["mutants"]), str(len(r["survivors"]))] for m, r in RESULTS.items()}
    total = [str(sum(int(c[i]) for c in counts.values())) for i in (0, 1)]
    assert {row[0].strip("*"): [cell.strip("*") for cell in row[1:3]] for row in table("modules")} == {
        **counts,
        "all": total,
    }


@pytest.mark.parametrize("module", [m for m, r in RESULTS.items() if r["survivors"]])
def test_what_survived_is_still_there_to_be_explained(module):
    """After a change of such a line: python benchmarks/mutation.py MODULE --json docs/results/mutation.json."""
    listed = {survivor for survivor in SURVIVORS if survivor[0].rpartition(".")[0].startswith(module)}
    names = {place for place, _, _ in listed}
    made = {
        (f"{module}.{change.function}", change.before, change.after)
        for function in functions(module)
        if f"{module}.{function.__qualname__}" in names
        for change, _ in mutants(module, function)
    }
    assert listed <= made
