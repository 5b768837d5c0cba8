"""What is installed is what is here: the wheel is complete, and every dependency is pinned."""

import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
BUILD_INPUTS = ["pyproject.toml", "README.md", "LICENSE", "src"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel built from a copy, without the network and without a trace in the checkout."""
    tree = tmp_path_factory.mktemp("tree")
    for name in BUILD_INPUTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, tree / name)
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tree / "dist")]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", *options, str(tree)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = (tree / "dist").glob("rung-*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_every_file_of_the_package(wheel):
    files = {
        file.relative_to(ROOT / "src").as_posix()
        for file in (ROOT / "src" / "rung").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert files - set(wheel.namelist()) == set()


def test_the_wheel_brings_the_command_and_the_license(wheel):
    names = {Path(name).name: name for name in wheel.namelist() if ".dist-info/" in name}
    assert "rung = rung.cli:main" in wheel.read(names["entry_points.txt"]).decode()
    assert b"Apache License" in wheel.read(names["LICENSE"])


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
    return {canonicalize_name(name): version for name, version in (pin.split("==") for pin in pins)}


def test_every_dependency_is_pinned():
    """Walks the installed packages from rung with its extras, and asks for a pin of each."""
    seen: set[tuple[str, str]] = set()
    waiting = [("rung", ""), ("rung", "gguf"), ("rung", "dev")]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                child = canonicalize_name(requirement.name)
                waiting += [(child, wanted) for wanted in ("", *requirement.extras)]
    assert {name for name, _ in seen} - {"rung"} - set(pinned()) == set()
