"""The import rules hold, and the contracts in pyproject.toml catch each kind of breach."""

import ast
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "rung"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONTRACTS = {contract["id"]: contract for contract in PYPROJECT["tool"]["importlinter"]["contracts"]}
CORE = CONTRACTS["numeric-core-dependencies"]["source_modules"]


def lint_imports(source: Path, *contracts: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "lint-imports"
    chosen = [option for contract in contracts for option in ("--contract", contract)]
    command = [program, "--no-cache", "--no-logo", *chosen, ROOT / "pyproject.toml"]
    return subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)


def core_files() -> list[Path]:
    paths = [ROOT / "src" / Path(*module.split(".")) for module in CORE]
    return [
        file
        for path in paths
        for file in (path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")])
    ]


def imported_names(file: Path) -> set[str]:
    """Top-level names of the packages that a file imports, wherever the import stands."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    absolute = {
        node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level and node.module
    }
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name.partition(".")[0] for name in absolute | plain}


def test_every_module_keeps_to_its_layer():
    result = lint_imports(ROOT / "src")
    assert result.returncode == 0, result.stdout


def test_the_numeric_core_imports_only_torch_and_numpy():
    allowed = set(sys.stdlib_module_names) | {"rung", "torch", "numpy"}
    others = {str(file.relative_to(ROOT)): imported_names(file) - allowed for file in core_files()}
    assert {file: names for file, names in others.items() if names} == {}


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("masked.py", "from rung import kl", "layers"),
        ("credit/returns.py", "from rung import policy_losses", "layers"),
        ("kl.py", "from rung import exact", "estimators-do-not-know-the-oracle"),
        ("exact/values.py", "from rung import masked", "oracle-is-independent"),
        ("aggregation.py", "import transformers", "numeric-core-dependencies"),
        ("a_new_package.py", "", "layers"),
    ],
)
def test_a_planted_breach_is_named(tmp_path, module, line, contract):
    shutil.copytree(PACKAGE, tmp_path / "rung", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "rung" / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    output = lint_imports(tmp_path, contract).stdout
    assert f"{CONTRACTS[contract]['name']} BROKEN" in output
    assert f"rung.{module.removesuffix('.py').replace('/', '.')}" in output


@pytest.mark.parametrize(
    "statement",
    [
        "import rung",
        "import rung.errors",
        "from rung.cli import main; sys.argv[:] = ['rung', '--help']; main()",
    ],
)
def test_torch_is_not_loaded_before_it_is_needed(statement):
    """`import rung` and `rung --help` answer at once."""
    code = f"import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); {statement}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False"
