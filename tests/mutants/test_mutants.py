"""What planting a mistake does, and that the data make sense; test_caught_*.py plant them all."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from rung.kl import k1
from tests.mutants.runner import Mutant, judge, load, mutated, planted, resolve, run, topics

MUTANTS = load()
CAUGHT = [mutant for mutant in MUTANTS if not mutant.survives]
SURVIVORS = [mutant for mutant in MUTANTS if mutant.survives]

SIGN = Mutant(
    name="k1 the wrong way round",
    target="rung.kl.k1",
    find="return policy_logprobs - reference_logprobs",
    replace="return reference_logprobs - policy_logprobs",
    test="tests/kl/test_estimators.py::test_estimators_by_hand",
    mistake="the example of the tests below",
)


def k1_of_two_and_one():
    return k1(torch.tensor([2.0]), torch.tensor([1.0])).item()


def test_every_topic_has_its_tests():
    """One file a topic, so that processes can share them: test_caught_<topic>.py."""
    here = Path(__file__).parent
    assert [
        path.stem.removeprefix("test_caught_") for path in sorted(here.glob("test_caught_*.py"))
    ] == topics()


def test_survivors_really_survive():
    """A survivor that is caught has become a mutant like any other."""
    assert [mutant.name for mutant in SURVIVORS if judge(mutant).caught] == []


def test_every_named_test_passes_without_a_mistake():
    """Otherwise a broken test would catch anything."""
    found = run(sorted({mutant.test for mutant in MUTANTS}))
    assert found
    assert {test: error for test, error in found.items() if error is not None} == {}


def test_mutants_are_many_and_named_once():
    assert len(CAUGHT) >= 30
    assert [name for name, number in Counter(mutant.name for mutant in MUTANTS).items() if number > 1] == []
    assert all(mutant.mistake and mutant.find != mutant.replace for mutant in MUTANTS)


def test_whoever_imported_the_function_runs_the_mistake_and_afterwards_does_not():
    assert k1_of_two_and_one() == 1.0
    with planted(SIGN):
        assert k1_of_two_and_one() == -1.0
    assert k1_of_two_and_one() == 1.0


def test_the_function_is_put_back_after_an_exception():
    with pytest.raises(KeyError), planted(SIGN):
        raise KeyError
    assert k1_of_two_and_one() == 1.0


def changed(**parts):
    return Mutant(**{**SIGN.__dict__, **parts})


def test_a_change_of_no_number_is_not_caught():
    verdict = judge(changed(replace="return -(reference_logprobs - policy_logprobs)"))
    assert not verdict.caught
    assert verdict.reason.startswith("survived")


def test_a_crash_is_not_caught():
    verdict = judge(changed(replace="return policy_logprobs - None"))
    assert not verdict.caught
    assert "TypeError, not by an assertion" in verdict.reason


def test_a_test_that_does_not_exist_catches_nothing():
    verdict = judge(changed(test="tests/kl/test_estimators.py::test_of_nothing"))
    assert not verdict.caught
    assert verdict.reason.startswith("no such test")


def test_a_piece_of_source_that_is_not_there_exactly_once_is_refused():
    for find in ("no such line", "policy_logprobs"):
        with pytest.raises(LookupError, match=r"occurs \d+ times in rung\.kl\.k1"):
            mutated(resolve("rung.kl.k1"), changed(find=find))


def test_targets_are_functions_methods_and_properties():
    for target in ("rung.kl.k1", "rung.methods.method.Method.loss", "rung.batch.Rollouts.rewards"):
        assert callable(resolve(target))
    for target in ("rung.notation.MAX_LOG_RATIO", "rung.kl.no_such_function", "no.such.module"):
        with pytest.raises((LookupError, AttributeError)):
            resolve(target)
