"""Each mistake of core/credit.toml is caught, by the test that is named for it, by a number."""

from tests.mutants.runner import Mutant, of_topic, require_caught


@of_topic("credit")
def test_caught(mutant: Mutant) -> None:
    require_caught(mutant)
