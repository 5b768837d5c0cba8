"""Each mistake of core/verify.toml is caught, by the test that is named for it, by a number."""

from tests.mutants.runner import Mutant, of_topic, require_caught


@of_topic("verify")
def test_caught(mutant: Mutant) -> None:
    require_caught(mutant)
