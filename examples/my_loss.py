"""Two losses as anybody might write them, without an import from rung, and what the oracle says of them.

rung verify --loss examples/my_loss.py:leave_one_out
rung verify --loss examples/my_loss.py:normalised
pytest examples/my_loss.py
"""

import pytest
import torch


def leave_one_out(policy_logprobs, rewards, mask, groups):
    """Minus each reward, less the mean of the group's others, times the sequence's log-probability."""
    same = groups.unsqueeze(0) == groups.unsqueeze(1)
    others = ((same * rewards).sum(1) - rewards) / (same.sum(1) - 1)
    return -((rewards - others).unsqueeze(1) * policy_logprobs * mask).sum() / len(rewards)


def normalised(policy_logprobs, rewards, mask, groups):
    """The same with the group's own mean and standard deviation, and the mean over each sequence's tokens."""
    same = (groups.unsqueeze(0) == groups.unsqueeze(1)).double()
    mean = same @ rewards / same.sum(1)
    variance = (same * (rewards - mean.unsqueeze(1)).square()).sum(1) / (same.sum(1) - 1)
    credit = (rewards - mean) / (variance.sqrt() + 1e-4)
    return -((credit.unsqueeze(1) * policy_logprobs * mask).sum(1) / mask.sum(1)).mean()


def test_leave_one_out_is_the_policy_gradient():
    from rung.verify import assert_unbiased

    assert_unbiased(leave_one_out)
    assert_unbiased(leave_one_out, group_size=3)


def test_the_normalised_one_is_not():
    from rung.verify import assert_unbiased

    with pytest.raises(AssertionError, match=r"another direction|does not climb"):
        assert_unbiased(normalised)


def test_gradients_flow_to_the_policy_only():
    logprobs = torch.full((2, 1), -1.0, dtype=torch.float64, requires_grad=True)
    mask, groups = torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, dtype=torch.int64)
    leave_one_out(logprobs, torch.tensor([1.0, 0.0], dtype=torch.float64), mask, groups).backward()
    assert logprobs.grad.flatten().tolist() == [-0.5, 0.5]
