"""What the files beside this one say about numbers that are held elsewhere: those tests exist."""

import ast
import re
from pathlib import Path

import pytest

from tests.node_ids import exists

NODE_ID = re.compile(r"tests/\w[\w/]*\.py::\w+")
FILES = sorted(file for file in Path(__file__).parent.glob("test_*.py") if file.name != Path(__file__).name)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_tests_named_in_a_docstring_exist(file):
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    named = NODE_ID.findall(docstring)
    assert len(named) == docstring.count("tests/") > 5
    assert [node_id for node_id in named if not exists(node_id)] == []
