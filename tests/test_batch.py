import pytest
import torch

from rung.batch import Completion, Outcome, build_rollouts, pad
from rung.errors import InvalidInput
from tests.batches import INF, NAN, close, completion, f64, flags, outcomes, rollouts


def test_pad_by_hand():
    close(pad([[1.0, 2.0], [], [3.0]], torch.float64), [[1.0, 2.0], [0.0, 0.0], [3.0, 0.0]])
    assert pad([], torch.float64).shape == (0, 0)
    assert pad([[True], []], torch.bool).tolist() == [[True], [False]]


def test_rows_become_tensors():
    rows = [
        completion([4, 5, 6], sampled=[1, 0, 1], behaviour=[-0.1, 0.0, -0.3], group=9),
        completion([4], behaviour=[-0.7], group=-2),
    ]
    batch = build_rollouts(rows, [Outcome("reward", 2.0), Outcome("timeout")])
    assert batch.completions == tuple(rows)
    assert batch.mask.tolist() == [[True, False, True], [True, False, False]]
    assert batch.groups.tolist() == [9, -2]
    assert batch.groups.dtype == torch.int64
    assert batch.valid.tolist() == [True, False]
    close(batch.outcome_rewards, [2.0, 0.0])
    close(batch.behaviour_logprobs, [[-0.1, 0.0, -0.3], [-0.7, 0.0, 0.0]])
    assert batch.old_logprobs is None
    assert batch.reference_logprobs is None


def test_the_reward_stands_at_the_last_sampled_token():
    """No hole, a hole, a tool's output at the end, one token, and a token only after a hole."""
    masks = [[1, 1, 1], [1, 0, 1], [1, 1, 0, 0], [1], [0, 0, 1, 0]]
    batch = rollouts(masks, [1.0, 2.0, 3.0, 4.0, 5.0])
    expected = [
        [0.0, 0.0, 1.0, 0.0],
        [0.0, 0.0, 2.0, 0.0],
        [0.0, 3.0, 0.0, 0.0],
        [4.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 5.0, 0.0],
    ]
    close(batch.rewards, expected)


def test_rewards_of_a_batch_without_any_token():
    batch = rollouts([[], []], [1.0, 2.0])
    assert batch.rewards.shape == (2, 0)
    assert not batch.valid.any()


@pytest.mark.parametrize("reward", [10.0, 1000.0])
def test_case_B12_a_row_without_a_sampled_token_has_no_reward_anywhere(reward):
    batch = rollouts([[], [1, 1], [1, 1], [0, 0]], [reward, 1.0, 0.0, reward])
    assert batch.valid.tolist() == [False, True, True, False]
    close(batch.outcome_rewards, [0.0, 1.0, 0.0, 0.0])
    close(batch.rewards, [[0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])


def test_case_C1_the_score_is_on_the_end_token_with_and_without_padding():
    batch = build_rollouts([completion([11, 12, 2]), completion([11, 12, 13, 14, 2])], outcomes([3.0, 3.0]))
    close(batch.rewards, [[0.0, 0.0, 3.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 3.0]])
    for row, (item, rewards) in enumerate(zip(batch.completions, batch.rewards, strict=True)):
        assert item.token_ids[int(rewards.argmax())] == 2, row


def test_case_C12_the_end_token_is_one_of_the_sampled_tokens():
    batch = build_rollouts([completion([4, 5, 2], behaviour=[-0.1, -0.2, -1.5])], outcomes([1.0]))
    assert int(batch.mask.sum()) == 3
    close(batch.behaviour_logprobs[batch.mask].sum(), -1.8)


def test_case_H10_a_judge_that_failed_gives_no_number():
    for kind in ("error", "timeout", "abstain"):
        assert Outcome(kind).reward is None
        with pytest.raises(InvalidInput, match="only 'reward' carries a number"):
            Outcome(kind, 0.0)
    with pytest.raises(InvalidInput, match="only 'reward' carries a number"):
        Outcome("reward")
    batch = rollouts([[1], [1], [1]], [1.0, None, 1.0])
    assert batch.valid.tolist() == [True, False, True]


@pytest.mark.parametrize("reward", [NAN, INF, -INF])
def test_case_H10_a_reward_is_a_finite_number(reward):
    with pytest.raises(InvalidInput, match="finite"):
        Outcome("reward", reward)


def test_outcomes_and_completions_come_in_pairs():
    with pytest.raises(InvalidInput, match="1 completions with 2 outcomes"):
        build_rollouts([completion([1])], outcomes([1.0, 2.0]))
    with pytest.raises(InvalidInput, match="0 completions"):
        build_rollouts([], [])


def test_parts_of_a_completion_have_one_length_and_a_prompt():
    with pytest.raises(InvalidInput, match="differ in length"):
        Completion((7,), (1, 2), (True, True), (-0.1,), (0, 0), 0, 0, 0, "stop")
    with pytest.raises(InvalidInput, match="prompt"):
        completion([1], prompt=())


def test_helpers_of_these_tests():
    """The expected values above stand on them."""
    assert flags([1, 0]).dtype == torch.bool
    assert f64([1]).dtype == torch.float64
