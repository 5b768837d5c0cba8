"""Credits that are special cases of one another, on groups of any size, with invalid rows."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.credit import (
    group_centered,
    group_standardized,
    leave_one_out,
    minus_batch_mean,
    reward_to_go,
    reward_to_go_minus_batch_mean,
    total_return,
)
from tests.batches import close, f64

VALUES = [-2.0, 0.0, 0.25, 1.0, 7.5]


EITHER = st.booleans()


@st.composite
def batches(draw, valid=EITHER):
    """(returns, groups, valid) of 2 to 12 rows."""
    size = draw(st.integers(2, 12))
    returns = draw(st.lists(st.sampled_from(VALUES), min_size=size, max_size=size))
    groups = draw(st.lists(st.integers(-1, 2), min_size=size, max_size=size))
    counts = draw(st.lists(valid, min_size=size, max_size=size))
    return f64(returns), torch.tensor(groups), torch.tensor(counts)


def sizes(groups, valid):
    """Of each row's group, valid rows only: counted by comparing every row with every other."""
    return ((groups.unsqueeze(0) == groups.unsqueeze(1)) & valid).sum(1).double()


@given(batches())
def test_centred_is_leave_one_out_times_one_less_over_size(batch):
    """(G − 1)/G, with each group's own G."""
    number = sizes(*batch[1:]).clamp(min=1)
    close(group_centered(*batch), leave_one_out(*batch) * (number - 1) / number)


@given(batches(), st.sampled_from([0, 1]), st.sampled_from([0.0, 1e-4, 0.5]))
def test_standardized_times_its_spread_is_centred(batch, correction, epsilon):
    returns, groups, valid = batch
    credit = group_standardized(*batch, correction=correction, epsilon=epsilon)
    for group in groups.unique():
        members = (groups == group) & valid
        if members.sum() >= 2:
            spread = returns[members].std(correction=correction) + epsilon
            close(credit[members] * spread, returns[members] - returns[members].mean())


@given(batches())
def test_standardized_in_pairs_is_the_sign_of_the_difference(batch):
    """(R_1 − R_2)/2 over |R_1 − R_2|/√2."""
    returns, groups, valid = batch
    credit = group_standardized(*batch)
    for group in groups.unique():
        members = (groups == group) & valid
        if members.sum() == 2:
            sign = (returns[members] - returns[members].flip(0)).sign()
            close(credit[members], sign / math.sqrt(2))


@given(batches(), st.floats(-50, 50), st.floats(0.1, 20))
def test_shifting_and_scaling_all_rewards(batch, shift, scale):
    """Comparisons do not see a shift and follow a scale; standardising sees neither."""
    returns, groups, valid = batch
    moved = returns * scale + shift
    for credit in (leave_one_out, group_centered):
        close(credit(moved, groups, valid), scale * credit(returns, groups, valid), atol=1e-11)
    close(group_standardized(moved, groups, valid), group_standardized(returns, groups, valid), atol=1e-11)


@given(batches())
def test_credits_by_comparison_add_up_to_zero_in_each_group(batch):
    _, groups, _ = batch
    for function in (leave_one_out, group_centered, group_standardized):
        credit = function(*batch)
        sums = [credit[groups == group].sum() for group in groups.unique()]
        close(torch.stack(sums), [0.0] * len(sums))


@given(batches(valid=st.just(True)))
def test_with_one_group_the_batch_mean_is_the_group_mean(batch):
    returns, groups, valid = batch
    close(minus_batch_mean(returns, valid), group_centered(returns, torch.zeros_like(groups)))


@st.composite
def token_rewards(draw):
    """(rewards [B, T], mask [B, T]) with holes and rows of every length."""
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    rewards = draw(st.lists(st.sampled_from(VALUES), min_size=rows * length, max_size=rows * length))
    mask = draw(st.lists(st.booleans(), min_size=rows * length, max_size=rows * length))
    return f64(rewards).reshape(rows, length), torch.tensor(mask).reshape(rows, length)


@given(token_rewards(), st.sampled_from([1.0, 0.9, 0.0]))
def test_the_return_from_the_first_token_on_is_the_total(batch, gamma):
    """G_0 = R."""
    rewards, mask = batch
    for to_go, total, row in zip(
        reward_to_go(rewards, mask, gamma=gamma), total_return(rewards, mask, gamma=gamma), mask, strict=True
    ):
        close(to_go[row][:1], total[row][:1])


@given(token_rewards())
def test_with_a_reward_at_the_end_only_every_return_is_the_total(batch):
    """One number a sequence: G_t = R at γ = 1, and both baselines over the batch agree."""
    rewards, mask = batch
    positions = torch.arange(mask.shape[1]).expand_as(mask)
    last = mask & (positions == torch.where(mask, positions, -1).amax(1, keepdim=True))
    final = torch.where(last, rewards, 0.0)
    close(reward_to_go(final, mask), total_return(final, mask))
    per_sequence = minus_batch_mean(final.sum(1), mask.any(1))
    close(reward_to_go_minus_batch_mean(final, mask), per_sequence.unsqueeze(1) * mask)
