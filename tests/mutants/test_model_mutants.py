"""Every mistake planted in models and rollout is caught, by the test that is named for it, by a number."""

import tomllib
from pathlib import Path

import pytest

from tests.mutants import runner

DATA = Path(__file__).with_name("models.toml")
MUTANTS = [runner.Mutant(**entry) for entry in tomllib.loads(DATA.read_text(encoding="utf-8"))["mutant"]]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_caught(mutant: runner.Mutant) -> None:
    verdict = runner.judge(mutant)
    assert verdict.caught, f"{mutant.mistake}: {verdict.reason}"


def test_every_named_test_passes_without_a_mistake() -> None:
    """Otherwise a broken test would catch anything."""
    found = runner.run(sorted({mutant.test for mutant in MUTANTS}))
    assert found
    assert {test: error for test, error in found.items() if error is not None} == {}


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30
