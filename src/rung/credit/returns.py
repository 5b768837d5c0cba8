"""Returns: a sequence's own rewards, summed over the whole of it or from each token on."""

import torch

from rung.masked import masked_sum, select
from rung.notation import PerToken, TokenMask


def _steps(mask: TokenMask) -> torch.Tensor:
    """[B, T] the number of sampled tokens before each one: time as the policy sees it, holes skipped."""
    return mask.cumsum(1) - mask.long()


def total_return(rewards: PerToken, mask: TokenMask, *, gamma: float = 1.0) -> PerToken:
    """R(τ), repeated over the sequence's tokens.

        R(τ) = Σ_t γ^t r_t

    Source: Williams 1992 (REINFORCE, the episodic case); Sutton and Barto, 2nd ed., eq. 3.8.

    Args:
        rewards: [B, T], r_t for the token at t. Off-mask entries are ignored.
        mask: [B, T] bool.
        gamma: discount per sampled token (1 for language models).

    Returns:
        [B, T], reward units, 0 off the mask.

    Exactness:
        Unbiased Ψ for ∇J (of the discounted J where γ < 1), and the noisiest: rewards before t multiply the score at
        t with mean zero. Checked by tests/unbiased/test_methods.py::test_unbiased_credits and
        ::test_discounted_returns.

    >>> total_return(torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[True, True, False]]))
    tensor([[3., 3., 0.]])
    """
    discounted = rewards if gamma == 1.0 else rewards * gamma ** _steps(mask).to(rewards.dtype)
    return select(masked_sum(discounted, mask, dim=1).unsqueeze(1).expand_as(rewards), mask)


def reward_to_go(rewards: PerToken, mask: TokenMask, *, gamma: float = 1.0) -> PerToken:
    """G_t, the return from each token on.

        G_t = r_t + γ G_{t+1}

    Source: Sutton and Barto, 2nd ed., eq. 3.9, with r_t for the action at t (their R_{t+1}).

    Args:
        rewards: [B, T], r_t for the token at t. Off-mask entries are ignored.
        mask: [B, T] bool. Holes are skipped: the result equals that of the compacted sequence.
        gamma: discount per sampled token.

    Returns:
        [B, T], reward units, 0 off the mask.

    Exactness:
        Unbiased Ψ for ∇J at γ = 1. With γ < 1 it is so only when the score at t is also weighted by γ^t.
        Checked by tests/unbiased/test_methods.py::test_unbiased_credits and ::test_discounted_returns.

    >>> reward_to_go(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[True, True, True]]), gamma=0.5)
    tensor([[3., 4., 4.]])
    """
    kept = select(rewards, mask)
    running = torch.zeros_like(kept[:, 0]) if kept.shape[1] else kept.sum(1)
    out = []
    for t in range(kept.shape[1] - 1, -1, -1):
        running = torch.where(mask[:, t], kept[:, t] + gamma * running, running)
        out.append(running)
    return select(torch.stack(out[::-1], dim=1), mask) if out else kept
