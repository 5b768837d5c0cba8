"""Whether a test that is named by its node id exists, without running or collecting it."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@cache
def names_of_tests(path: str) -> frozenset[str]:
    """The names of the test functions of a file, empty if there is none; of classes as Class::test."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)
            }
    return frozenset(name for name in found if name.split("::")[-1].startswith("test_"))


def exists(node_id: str) -> bool:
    """Of a function; parameters in brackets are not looked at."""
    path, _, name = node_id.partition("::")
    return name.partition("[")[0] in names_of_tests(path)
