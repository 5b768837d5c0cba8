"""Credits that are special cases of one another, on groups of any size, with invalid rows."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.credit import (
    MovingAverage,
    gae,
    group_centered,
    group_standardized,
    leave_one_out,
    minus_batch_mean,
    minus_constant,
    minus_greedy,
    reward_to_go,
    reward_to_go_minus_batch_mean,
    reward_to_go_minus_step_mean,
    rewards_from_next,
    rewards_to_next,
    td_residual,
    total_return,
    vtrace,
    whitened_group_centered,
    whitened_to_go,
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


# --- critics -------------------------------------------------------------------------------------------------------


@st.composite
def with_values(draw):
    """(rewards, values, mask) with holes, and what comes after each row."""
    rewards, mask = draw(token_rewards())
    values = draw(st.lists(st.sampled_from(VALUES), min_size=mask.numel(), max_size=mask.numel()))
    end = draw(st.lists(st.sampled_from(VALUES), min_size=len(mask), max_size=len(mask)))
    return rewards, f64(values).reshape(mask.shape), mask, f64(end)


def ending_with(end, rewards, mask, gamma):
    """The bootstrap as if it were a reward, discounted once, at the last counted token."""
    positions = torch.arange(mask.shape[1]).expand_as(mask)
    last = mask & (positions == torch.where(mask, positions, -1).amax(1, keepdim=True))
    return rewards + gamma * end.unsqueeze(1) * last


def next_values(values, mask, end):
    """V of the next counted token of each row, or what comes after the row: plain Python."""
    out = torch.zeros_like(values)
    for i, row in enumerate(mask.tolist()):
        following = end[i].item()
        for t in reversed(range(len(row))):
            out[i, t] = following
            if row[t]:
                following = values[i, t].item()
    return out


@given(with_values(), st.sampled_from([1.0, 0.9, 0.0]))
def test_gae_at_lambda_one_is_the_return_minus_the_value(batch, gamma):
    """A learned baseline: G_t − V(s_t), the bootstrap being part of the return."""
    rewards, values, mask, end = batch
    found = gae(rewards, values, mask, gamma=gamma, lam=1.0, bootstrap=end)
    to_go = reward_to_go(ending_with(end, rewards, mask, gamma), mask, gamma=gamma)
    close(found, to_go - values * mask, atol=1e-11)


@given(with_values(), st.sampled_from([1.0, 0.9]))
def test_gae_at_lambda_zero_is_the_td_residual(batch, gamma):
    rewards, values, mask, end = batch
    found = gae(rewards, values, mask, gamma=gamma, lam=0.0, bootstrap=end)
    close(found, td_residual(rewards, values, mask, gamma=gamma, bootstrap=end))
    close(found, (rewards + gamma * next_values(values, mask, end) - values) * mask)


@given(with_values(), st.sampled_from([1.0, 0.9]), st.sampled_from([0.3, 0.95]))
def test_gae_is_the_weighted_mean_of_k_step_advantages(batch, gamma, lam):
    """(1 − λ) Σ_{k≥1} λ^(k−1) A^(k), where beyond the end every A^(k) is that of the whole rest of the row."""
    rewards, values, mask, end = batch
    found = gae(rewards, values, mask, gamma=gamma, lam=lam, bootstrap=end)
    for i, row in enumerate(mask):
        r, v = rewards[i][row].tolist(), [*values[i][row].tolist(), end[i].item()]
        n = len(r)

        def k_step(t, k, r=r, v=v, n=n):
            k = min(k, n - t)
            return sum(gamma**j * r[t + j] for j in range(k)) + gamma**k * v[t + k] - v[t]

        expected = [
            (1 - lam) * sum(lam ** (k - 1) * k_step(t, k) for k in range(1, n - t))
            + lam ** (n - t - 1) * k_step(t, n)
            for t in range(n)
        ]
        close(found[i][row], expected if n else f64([]), atol=1e-11)


@given(
    with_values(), st.sampled_from([1.0, 0.9]), st.sampled_from([1.0, 0.6, 0.0]), st.sampled_from([1.0, 3.0])
)
def test_vtrace_on_policy_is_the_lambda_return(batch, gamma, lam, rho_cap):
    """Targets A + V; credit r_t + γ v_{t+1} − V_t, which is A at λ = 1."""
    rewards, values, mask, end = batch
    same = torch.full_like(rewards, -0.7)
    found = vtrace(rewards, values, mask, same, same, gamma=gamma, lam=lam, rho_cap=rho_cap, bootstrap=end)
    advantages = gae(rewards, values, mask, gamma=gamma, lam=lam, bootstrap=end)
    close(found.targets, advantages + values * mask, atol=1e-11)
    following = next_values(found.targets, mask, end)
    close(found.credit, (rewards + gamma * following - values) * mask, atol=1e-11)
    if lam == 1.0:
        close(found.credit, advantages, atol=1e-11)


@given(with_values(), st.sampled_from([1.0, 0.9]))
def test_vtrace_without_a_trace_is_the_weighted_td_residual(batch, gamma):
    """c̄ = 0: one step, ρ δ, with ρ = min(1, w), w = 2 at even slots and ¼ at odd ones."""
    rewards, values, mask, end = batch
    ratio = torch.where(torch.arange(mask.shape[1]) % 2 == 0, 2.0, 0.25).double().expand_as(rewards)
    settings = {"gamma": gamma, "c_cap": 0.0, "bootstrap": end}
    found = vtrace(rewards, values, mask, ratio.log(), torch.zeros_like(rewards), **settings)
    residuals = ratio.clamp(max=1.0) * td_residual(rewards, values, mask, gamma=gamma, bootstrap=end)
    close(found.targets, values * mask + residuals, atol=1e-11)


# --- baselines -----------------------------------------------------------------------------------------------------


@given(token_rewards(), st.sampled_from(VALUES))
def test_a_moving_average_is_a_critic_that_always_says_the_same(batch, value):
    """G_t − b = GAE(1) with V = b."""
    rewards, mask = batch
    found = MovingAverage(value, 0.9)(rewards, mask)
    close(found, gae(rewards, torch.full_like(rewards, value), mask, lam=1.0), atol=1e-11)


@given(token_rewards())
def test_a_moving_average_without_momentum_holds_the_mean_of_the_batch(batch):
    """One batch behind itself; with its own mean it would be the batch-mean baseline."""
    rewards, mask = batch
    returns, rows = (rewards * mask).sum(1), mask.any(1)
    baseline = MovingAverage(123.0, 0.0).after(returns, rows)
    if rows.any():
        close(baseline(rewards, mask), reward_to_go_minus_batch_mean(rewards, mask))
    else:
        assert baseline.value == 123.0


@given(batches(valid=st.just(True)))
def test_a_constant_a_greedy_return_and_a_batch_mean_are_one_subtraction(batch):
    returns, _, valid = batch
    mean = returns.mean()
    close(minus_constant(returns, baseline=mean.item()), minus_batch_mean(returns, valid))
    close(minus_greedy(returns, mean.expand_as(returns), valid), minus_batch_mean(returns, valid))


@given(token_rewards())
def test_with_equal_lengths_the_mean_at_each_step_is_that_of_the_columns(batch):
    rewards, _ = batch
    every = torch.ones_like(rewards, dtype=torch.bool)
    to_go = reward_to_go(rewards, every)
    close(reward_to_go_minus_step_mean(rewards, every), to_go - to_go.mean(0))


@given(batches(), st.sampled_from([0, 1]))
def test_whitening_a_batch_of_one_group_and_one_token_is_standardizing(batch, correction):
    """One token a row, one group: the group's deviation is the batch's, and R is G."""
    returns, groups, valid = batch
    one = torch.zeros_like(groups)
    mask = torch.ones(len(returns), 1, dtype=torch.bool)
    standardized = group_standardized(returns, one, valid, correction=correction).unsqueeze(1)
    close(whitened_group_centered(returns, one, mask, valid, correction=correction), standardized)
    close(whitened_to_go(returns.unsqueeze(1), mask, valid, correction=correction), standardized)


@given(token_rewards())
def test_converting_rewards_there_and_back(batch):
    rewards, _ = batch
    close(rewards_from_next(rewards_to_next(rewards)), rewards)
