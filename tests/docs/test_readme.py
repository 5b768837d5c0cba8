"""README says what is: its tree is the tree on disk, its commands exist, its links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rung.methods import CATALOGUE
from rung.training.config import load_recipe

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TREE = README.split("<!-- tree: begin -->")[1].split("<!-- tree: end -->")[0]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def entries(indented: bool) -> list[str]:
    pattern = r"^  (\S+)  " if indented else r"^(\S+)\s"
    return [m.rstrip("/") for m in re.findall(pattern, TREE, flags=re.MULTILINE) if "`" not in m]


def tracked(folder: str) -> set[str]:
    out = subprocess.run(
        ["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    depth = len(Path(folder).parts)
    return {Path(line).parts[depth] for line in out.splitlines()}


def test_the_packages_tree_is_the_one_on_disk() -> None:
    hidden = {"__init__.py", "__main__.py", "py.typed"}
    assert set(entries(indented=True)) == tracked("src/rung") - hidden


def test_the_top_folders_are_on_disk() -> None:
    for entry in entries(indented=False):
        assert (ROOT / entry).is_dir(), entry


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_methods_named_are_the_catalogue() -> None:
    assert sorted(re.findall(r"^\| `([a-z0-9+-]+)` \|", README, flags=re.MULTILINE)) == sorted(CATALOGUE)


def test_commands_are_accepted() -> None:
    """Each `rung …` line of README: its command exists, and each recipe with its settings is valid."""
    blocks = "".join(re.findall(r"^```[a-z]*\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL))
    commands = re.findall(r"^(?:make \S+ && )?rung ([^#\n]+)", blocks, flags=re.MULTILINE)
    assert len(commands) >= 6
    known = subprocess.run(
        [sys.executable, "-m", "rung", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for command in commands:
        verb, *words = command.split()
        assert re.search(rf"^  {verb} ", known, flags=re.MULTILINE), command
        if verb == "train":
            load_recipe(words[0], [w for w in words[1:] if "=" in w])


def test_make_targets_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([a-z0-9-]+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_recipe_shown_is_a_recipe(tmp_path: Path) -> None:
    """As README has it, in a file: its name is the file's, what it leaves out has a default."""
    (text,) = re.findall(r"^```toml\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    recipe = load_recipe(str(file))
    assert (recipe.name, recipe.method, recipe.rollout.samples_per_prompt) == ("mine", "rloo", 8)
