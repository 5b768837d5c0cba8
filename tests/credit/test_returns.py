import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.credit import reward_to_go, total_return
from rung.errors import InvalidInput
from tests.batches import INF, NAN, close, f64, flags, rollouts

REWARDS = [[1.0, 2.0, 4.0], [8.0, NAN, INF]]
MASK = [[1, 1, 1], [1, 0, 0]]


def test_total_return_is_on_every_token():
    close(total_return(f64(REWARDS), flags(MASK)), [[7.0, 7.0, 7.0], [8.0, 0.0, 0.0]])


def test_reward_to_go_sums_from_each_token_on():
    close(reward_to_go(f64(REWARDS), flags(MASK)), [[7.0, 6.0, 4.0], [8.0, 0.0, 0.0]])


def test_discount():
    """γ = ½: R = 1 + 1 + 1; G = (1 + ½·4, 2 + ½·4, 4)."""
    close(total_return(f64(REWARDS), flags(MASK), gamma=0.5), [[3.0, 3.0, 3.0], [8.0, 0.0, 0.0]])
    close(reward_to_go(f64(REWARDS), flags(MASK), gamma=0.5), [[3.0, 4.0, 4.0], [8.0, 0.0, 0.0]])
    close(reward_to_go(f64(REWARDS), flags(MASK), gamma=0.0), [[1.0, 2.0, 4.0], [8.0, 0.0, 0.0]])


def test_holes_are_skipped_and_take_no_time():
    """A tool's output between two of the policy's tokens: no reward of its own, no discount."""
    rewards, mask = f64([[NAN, 1.0, -50.0, NAN, 2.0, INF, 4.0, 3.0]]), flags([[0, 1, 0, 0, 1, 0, 1, 0]])
    close(total_return(rewards, mask), [[0.0, 7.0, 0.0, 0.0, 7.0, 0.0, 7.0, 0.0]])
    close(total_return(rewards, mask, gamma=0.5), [[0.0, 3.0, 0.0, 0.0, 3.0, 0.0, 3.0, 0.0]])
    close(reward_to_go(rewards, mask), [[0.0, 7.0, 0.0, 0.0, 6.0, 0.0, 4.0, 0.0]])
    close(reward_to_go(rewards, mask, gamma=0.5), [[0.0, 3.0, 0.0, 0.0, 4.0, 0.0, 4.0, 0.0]])


@given(
    st.lists(st.tuples(st.floats(-10, 10), st.booleans()), min_size=1, max_size=10),
    st.sampled_from([1.0, 0.9, 0.0]),
)
def test_both_returns_equal_those_of_the_compacted_sequence(tokens, gamma):
    """Written out with plain Python floats."""
    kept = [reward for reward, counts in tokens if counts]
    to_go = [sum(gamma**k * r for k, r in enumerate(kept[t:])) for t in range(len(kept))]
    rewards = f64([[reward if counts else NAN for reward, counts in tokens]])
    mask = torch.tensor([[counts for _, counts in tokens]])
    close(reward_to_go(rewards, mask, gamma=gamma)[mask], to_go)
    close(total_return(rewards, mask, gamma=gamma)[mask], [to_go[0]] * len(kept) if kept else [])
    assert not reward_to_go(rewards, mask, gamma=gamma)[~mask].any()
    assert not total_return(rewards, mask, gamma=gamma)[~mask].any()


def test_empty_batches_and_rows():
    close(
        reward_to_go(f64([[], []]), torch.zeros(2, 0, dtype=torch.bool)),
        torch.zeros(2, 0, dtype=torch.float64),
    )
    close(
        total_return(f64([[], []]), torch.zeros(2, 0, dtype=torch.bool)),
        torch.zeros(2, 0, dtype=torch.float64),
    )
    close(reward_to_go(f64([[NAN, 3.0]]), flags([[0, 0]])), [[0.0, 0.0]])
    close(total_return(f64([[NAN, 3.0]]), flags([[0, 0]])), [[0.0, 0.0]])


def test_case_B9_returns_add_later_rewards_and_nothing_from_padding():
    rewards, mask = f64([[-0.1, -0.2, 1.0, -5.0]]), flags([[1, 1, 1, 0]])
    close(reward_to_go(rewards, mask), [[0.7, 0.8, 1.0, 0.0]])


def test_case_C1_the_score_belongs_to_the_token_that_ended_the_sequence():
    """A padded row and one that fills the batch: 3 reaches the end token and every token before it."""
    batch = rollouts([[1, 1, 1], [1, 1, 1, 1, 1]], [3.0, 3.0])
    close(batch.rewards, [[0.0, 0.0, 3.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 3.0]])
    expected = [[3.0, 3.0, 3.0, 0.0, 0.0], [3.0] * 5]
    close(reward_to_go(batch.rewards, batch.mask), expected)
    close(total_return(batch.rewards, batch.mask), expected)


@pytest.mark.parametrize("function", [total_return, reward_to_go])
def test_case_E9_only_a_boolean_mask_of_the_same_shape(function):
    with pytest.raises(InvalidInput, match="boolean"):
        function(f64([[1.0, 2.0]]), f64([[1.0, 1.0]]))
    with pytest.raises(InvalidInput, match="same shape"):
        function(f64([[1.0, 2.0]]), flags([[1]]))
