"""Docstrings say which test shows what they claim: that test must exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A file of tests with an optional test, or "::test_…" of the file named before it.
REFERENCE = re.compile(r"(?P<file>tests/[\w/]+\.py)?(?:::(?P<test>\w+))?")


def references():
    """(source, file, test or None) for every test that a docstring of the package names."""
    for source in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                file = None
                for found in REFERENCE.finditer(ast.get_docstring(node) or ""):
                    if found["file"] or (file and found["test"]):
                        file = found["file"] or file
                        yield str(source.relative_to(ROOT)), file, found["test"]


def test_docstrings_name_tests():
    named = [reference for reference in references() if reference[2]]
    assert len(named) > 15


@pytest.mark.parametrize(("file", "test"), sorted({(f, t or "") for _, f, t in references()}))
def test_the_named_test_exists(file, test):
    path = ROOT / file
    assert path.is_file(), f"a docstring names {file}, which does not exist"
    functions = {
        node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
    }
    assert not test or test in functions, f"a docstring names {file}::{test}, which does not exist"
