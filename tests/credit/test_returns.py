import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.credit import reward_to_go, rewards_from_next, rewards_to_next, total_return
from rung.credit.returns import counted_rows
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


@pytest.mark.parametrize("function", [total_return, reward_to_go])
def test_a_discount_outside_the_unit_interval_is_refused(function):
    for gamma in (-0.1, 1.5, NAN):
        with pytest.raises(InvalidInput, match="gamma must be between 0 and 1"):
            function(f64([[1.0, 2.0]]), flags([[1, 1]]), gamma=gamma)


@pytest.mark.parametrize("junk", [NAN, INF])
@pytest.mark.parametrize("function", [total_return, reward_to_go])
def test_junk_off_the_mask_has_no_gradient_and_spoils_none(function, junk):
    """With holes and without: Σ_t (t + 1) Ψ_t gives r_k the sum of the weights it reaches."""
    for mask, total, to_go in (
        ([[1, 1, 0]], [3.0, 3.0, 0.0], [1.0, 3.0, 0.0]),
        ([[1, 0, 1]], [4.0, 0.0, 4.0], [1.0, 0.0, 4.0]),
    ):
        rewards = f64([[1.0, 2.0, 3.0]]).masked_fill(~flags(mask), junk).requires_grad_()
        (slope,) = torch.autograd.grad(
            (f64([[1.0, 2.0, 3.0]]) * function(rewards, flags(mask))).sum(), rewards
        )
        close(slope, [total if function is total_return else to_go])


# --- rewards by the time at which they arrive ------------------------------------------------------------------------


def test_the_reward_for_the_action_at_t_arrives_at_the_next_time():
    """Three steps: R_1, R_2, R_3 are r_0, r_1, r_2, and returns by either index agree: G_1 = R_2 + γ R_3."""
    arriving = f64([[0.0, 1.0, 2.0, 4.0], [NAN, 8.0, 0.0, 0.0]])
    rewards = rewards_from_next(arriving)
    close(rewards, [[1.0, 2.0, 4.0], [8.0, 0.0, 0.0]])
    close(reward_to_go(rewards, flags([[1, 1, 1], [1, 1, 1]]), gamma=0.5)[0, 1:2], [2.0 + 0.5 * 4.0])
    close(rewards_to_next(rewards), [[0.0, 1.0, 2.0, 4.0], [0.0, 8.0, 0.0, 0.0]])


def test_rewards_that_are_by_token_already_are_refused():
    with pytest.raises(InvalidInput, match="R_0 does not exist"):
        rewards_from_next(f64([[0.0, 1.0], [3.0, 1.0]]))


def test_case_H11_rewards_of_another_shape_are_refused():
    for rewards in (f64([0.0, 1.0]), f64([[], []]), f64([[[0.0, 1.0]]])):
        with pytest.raises(InvalidInput, match="must be"):
            rewards_from_next(rewards)
    with pytest.raises(InvalidInput, match=r"must be \[B, T\]"):
        rewards_to_next(f64([1.0]))
    close(rewards_from_next(f64([[0.0], [0.0]])), torch.zeros(2, 0, dtype=torch.float64))


def test_the_rows_that_count_have_a_token_and_are_valid():
    mask = flags([[1, 1], [1, 0], [0, 1], [0, 0], [0, 0]])
    assert counted_rows(mask, None).tolist() == [True, True, True, False, False]
    assert counted_rows(mask, flags([1, 0, 1, 0, 1])).tolist() == [True, False, True, False, False]
    for wrong in (torch.ones(5, dtype=torch.int64), flags([1, 1]), flags([[1]] * 5)):
        with pytest.raises(InvalidInput, match=r"valid must be boolean \[B\]"):
            counted_rows(mask, wrong)
