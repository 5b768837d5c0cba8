"""Losses in plain torch as people write them: a right one, and the usual mistakes."""

import torch


def others_mean(rewards, groups):
    """Mean reward of the other samples of each sample's group, by loops."""
    found = []
    for i in range(len(rewards)):
        same = [float(rewards[j]) for j in range(len(rewards)) if j != i and groups[j] == groups[i]]
        found.append(sum(same) / len(same))
    return torch.tensor(found, dtype=rewards.dtype)


def group_mean(rewards, groups):
    return torch.stack([rewards[groups == group].mean() for group in groups])


def group_std(rewards, groups):
    return torch.stack([rewards[groups == group].std() for group in groups])


def right(policy_logprobs, rewards, mask, groups):
    """RLOO in plain torch."""
    advantages = rewards - others_mean(rewards, groups)
    return -((advantages.unsqueeze(1) * policy_logprobs * mask).sum(1)).mean()


def wrong_sign(policy_logprobs, rewards, mask, groups):
    return -right(policy_logprobs, rewards, mask, groups)


def own_sample_in_the_mean(policy_logprobs, rewards, mask, groups):
    advantages = rewards - group_mean(rewards, groups)
    return -((advantages.unsqueeze(1) * policy_logprobs * mask).sum(1)).mean()


def divided_by_the_spread(policy_logprobs, rewards, mask, groups):
    advantages = (rewards - group_mean(rewards, groups)) / (group_std(rewards, groups) + 1e-6)
    return -((advantages.unsqueeze(1) * policy_logprobs * mask).sum(1)).mean()


def mean_over_each_sequence(policy_logprobs, rewards, mask, groups):
    advantages = rewards - others_mean(rewards, groups)
    return -((advantages.unsqueeze(1) * policy_logprobs * mask).sum(1) / mask.sum(1)).mean()


def mean_over_all_tokens(policy_logprobs, rewards, mask, groups):
    advantages = rewards - others_mean(rewards, groups)
    return -(advantages.unsqueeze(1) * policy_logprobs * mask).sum() / mask.sum()


def mean_over_padding_too(policy_logprobs, rewards, mask, groups):
    advantages = rewards - others_mean(rewards, groups)
    return -(advantages.unsqueeze(1) * policy_logprobs * mask).mean()


def end_token_left_out(policy_logprobs, rewards, mask, groups):
    last = mask.sum(1) - 1
    without = mask & (torch.arange(mask.shape[1]) != last.unsqueeze(1))
    return right(policy_logprobs, rewards, without, groups)


def advantages_for_a_mask(policy_logprobs, rewards, mask, groups):
    """masked_mean(x, mask) called with its arguments in another order."""

    def masked_sum(x, mask):
        return (x * (mask != 0)).sum(1)

    advantages = (rewards - others_mean(rewards, groups)).unsqueeze(1).expand(mask.shape)
    return -masked_sum(policy_logprobs * mask, advantages).mean()


def baseline_with_a_gradient(policy_logprobs, rewards, mask, groups):
    """The whole loss minus the mean loss: nothing is left."""
    whole = (rewards.unsqueeze(1) * policy_logprobs * mask).sum(1)
    return -(whole - whole.mean()).mean()


def summed_over_the_batch(policy_logprobs, rewards, mask, groups):
    return right(policy_logprobs, rewards, mask, groups) * len(rewards)


def shifted_by_a_token(policy_logprobs, rewards, mask, groups):
    """Each token gets its neighbour's log-probability."""
    return right(policy_logprobs.roll(1, 1), rewards, mask, groups)


def in_float32(policy_logprobs, rewards, mask, groups):
    return right(policy_logprobs.float(), rewards.float(), mask, groups)


def baseline_of_all_others(policy_logprobs, rewards, mask, groups):
    """Leave-one-out over the whole batch, whatever the prompt."""
    return right(policy_logprobs, rewards, mask, torch.zeros_like(groups))


def groups_cut_across_prompts(policy_logprobs, rewards, mask, groups):
    """Consecutive pairs of a batch that arrives in turns."""
    pairs = torch.arange(len(groups)) // 2
    return divided_by_the_spread(policy_logprobs, rewards, mask, pairs)
