"""Each mistake of core/first.toml is caught, by the test that is named for it, by a number."""

from tests.mutants.runner import Mutant, of_topic, require_caught


@of_topic("first")
def test_caught(mutant: Mutant) -> None:
    require_caught(mutant)
