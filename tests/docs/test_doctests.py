"""Every example in a docstring gives what it says."""

import doctest
import importlib
import pkgutil

import pytest

import rung

MODULES = [
    info.name for info in pkgutil.walk_packages(rung.__path__, "rung.") if not info.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0
