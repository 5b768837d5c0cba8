"""Which sequences exist, why each ends, and what each is worth: compared with lists written by hand."""

from dataclasses import replace

import numpy as np
import pytest

from rung.errors import InvalidInput
from rung.exact import TokenMDP, Trajectory, distribution
from tests.exact.problems import TOOL_MDP, TOOL_SHARED_POLICY
from tests.toys import LONG_REWARDS, LONG_STEP_REWARDS, TOY_B, TOY_C, TOY_LONG


def test_sequences_of_toy_c():
    expected = [
        Trajectory((0, 0), "length"),
        Trajectory((0, 1), "length"),
        Trajectory((0, 2), "stop"),
        Trajectory((1, 0), "length"),
        Trajectory((1, 1), "length"),
        Trajectory((1, 2), "stop"),
        Trajectory((2,), "stop"),
    ]
    assert TOY_C.mdp.trajectories() == expected


def test_without_an_end_token_every_sequence_has_full_length():
    trajectories = TOY_B.mdp.trajectories()
    assert len(trajectories) == 9
    assert {(tau.length, tau.end) for tau in trajectories} == {(2, "length")}


def test_prefixes_are_the_places_where_a_token_is_sampled():
    assert TOY_C.mdp.prefixes() == [(), (0,), (1,)]
    assert TOY_LONG.mdp.prefixes() == [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]


def test_an_end_token_in_the_last_slot_is_a_stop():
    assert TOY_C.mdp.end_of((0, 2)) == "stop"
    assert TOY_C.mdp.end_of((0, 1)) == "length"
    assert TOY_C.mdp.end_of((0,)) is None
    assert TOY_C.mdp.end_of(()) is None


def test_the_reward_of_the_sequence_is_on_its_last_token():
    np.testing.assert_allclose(TOY_C.mdp.rewards((1, 1)), [0.0, 2.0], rtol=0, atol=0)
    np.testing.assert_allclose(TOY_C.mdp.rewards((2,)), [0.0], rtol=0, atol=0)


def test_step_rewards_come_on_top():
    # (1, 0, 0): token 1 first −0.2, token 0 second 0, token 0 third −0.15, and 2.1 for the whole.
    assert LONG_STEP_REWARDS[0][1] == -0.2
    assert LONG_REWARDS[1, 0, 0] == 2.1
    np.testing.assert_allclose(TOY_LONG.mdp.rewards((1, 0, 0)), [-0.2, 0.0, -0.15 + 2.1], rtol=0, atol=1e-15)


def test_the_return_is_discounted_from_the_first_token():
    # −0.2 + 0.9·0 + 0.81·1.95
    assert TOY_LONG.mdp.total_return((1, 0, 0), gamma=0.9) == pytest.approx(1.3795, abs=1e-14)
    assert TOY_LONG.mdp.total_return((1, 0, 0)) == pytest.approx(1.75, abs=1e-14)


def test_steps_pair_each_token_with_what_stood_before_it():
    assert Trajectory((1, 0, 2), "stop").steps == [((), 1), ((1,), 0), ((1, 0), 2)]


@pytest.mark.parametrize("tokens", [(), (0,), (2, 0), (0, 0, 0)])
def test_only_finished_sequences_have_rewards(tokens):
    with pytest.raises(InvalidInput, match="not a finished sequence"):
        TOY_C.mdp.rewards(tokens)


def test_a_reward_that_is_not_finite_is_named():
    mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: float("nan"))
    with pytest.raises(InvalidInput, match="token 1 after \\(\\) is nan"):
        mdp.rewards((1,))


@pytest.mark.parametrize(
    ("vocabulary_size", "end_token", "max_length", "message"),
    [
        (0, None, 1, "at least one token"),
        (2, None, 0, "at least one token"),
        (2, 2, 1, "end token 2"),
        (2, -1, 1, "-1"),
    ],
)
def test_impossible_problems_are_refused(vocabulary_size, end_token, max_length, message):
    with pytest.raises(InvalidInput, match=message):
        TokenMDP(vocabulary_size, end_token=end_token, max_length=max_length, reward=lambda tokens: 0.0)


def test_an_end_token_at_the_cap_is_a_stop_and_asks_nobody():
    mdp = TokenMDP(
        2, end_token=1, max_length=1, reward=lambda tokens: 0.0, environment=lambda prefix: {(0,): 1.0}
    )
    assert [(tau.tokens, tau.end) for tau in mdp.trajectories()] == [((0,), "length"), ((1,), "stop")]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({(0,): 0.5}, "no probabilities"),
        ({(0,): 1.5, (1,): -0.5}, "no probabilities"),
        ({(0,): 0.5, (0, 1): 0.5}, "begins with the other"),
        ({(): 0.5, (1,): 0.5}, "begins with the other"),
    ],
)
def test_answers_that_are_no_distribution_or_could_be_confused_are_refused(answers, message):
    mdp = replace(TOOL_MDP, environment=lambda prefix: answers)
    with pytest.raises(InvalidInput, match=message):
        distribution(mdp, TOOL_SHARED_POLICY)


def test_tokens_that_the_environment_would_not_write_are_refused():
    with pytest.raises(InvalidInput, match=r"would not go on like this after \(0,\)"):
        TOOL_MDP.rewards((0, 0, 1, 2))
    with pytest.raises(InvalidInput, match="not a finished sequence"):
        TOOL_MDP.rewards((1, 2, 0, 2))
    with pytest.raises(InvalidInput, match="as many marks"):
        Trajectory((0, 1), "stop", (True,))
