"""Returns: a sequence's own rewards, summed over the whole of it or from each token on."""

import torch
from torch.nn.functional import pad

from rung.credit.scan import Steps, discounted_suffix_sum, require_fractions
from rung.errors import InvalidInput
from rung.masked import masked_sum, select
from rung.notation import PerToken, TokenMask


def _steps(mask: TokenMask) -> torch.Tensor:
    """[B, T] the number of sampled tokens before each one: time as the policy sees it, holes skipped."""
    return mask.cumsum(1) - mask.long()


def counted_rows(mask: TokenMask, valid: torch.Tensor | None) -> torch.Tensor:
    """[B] bool: the rows with a counted token that are valid, all of them if `valid` is None.

    >>> counted_rows(torch.tensor([[True, True], [False, False]]), None)
    tensor([ True, False])
    """
    if valid is None:
        return mask.any(1)
    if valid.dtype != torch.bool or valid.shape != mask.shape[:1]:
        raise InvalidInput(
            f"valid must be boolean [B], got {valid.dtype} {tuple(valid.shape)} beside mask {tuple(mask.shape)}"
        )
    return mask.any(1) & valid


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
        Unbiased Ψ for ∇J (of the discounted J where γ < 1): rewards before t multiply the score at t with mean zero,
        and usually add to the noise. Checked by tests/unbiased/test_methods.py::test_unbiased_credits and
        ::test_discounted_returns.

    >>> total_return(torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[True, True, False]]))
    tensor([[3., 3., 0.]])
    """
    require_fractions(gamma=gamma)
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
    require_fractions(gamma=gamma)
    steps = Steps.of(mask)
    return steps.by_token(discounted_suffix_sum(steps.by_step(rewards), gamma))


def rewards_from_next(next_rewards: torch.Tensor) -> PerToken:
    """Rewards by the token that earned them, from rewards by the time at which they arrive.

        r_t = R_{t+1}

    In Sutton and Barto the reward for the action at t arrives with the next state and carries its index, so their
    arrays begin with an R_0 that does not exist.

    Source: Sutton and Barto, 2nd ed., section 3.1 (S_0, A_0, R_1, S_1, …).

    Args:
        next_rewards: [B, T + 1], R_0 … R_T; R_0 is 0 or NaN.

    Returns:
        [B, T], r_0 … r_{T−1}.

    Raises:
        InvalidInput: no column for R_0, or a reward in it: then the array is by token already, or shifted.

    >>> rewards_from_next(torch.tensor([[0.0, 5.0, 7.0]]))
    tensor([[5., 7.]])
    """
    if next_rewards.ndim != 2 or next_rewards.shape[1] < 1:
        raise InvalidInput(f"rewards R_0 … R_T must be [B, T + 1], got {tuple(next_rewards.shape)}")
    if bool(next_rewards[:, 0].nan_to_num().any()):
        raise InvalidInput("R_0 does not exist, but the first column has rewards: are these r_t already?")
    return next_rewards[:, 1:]


def rewards_to_next(rewards: PerToken) -> torch.Tensor:
    """Rewards by the time at which they arrive, from rewards by the token that earned them.

        R_{t+1} = r_t        R_0 = 0

    Source: Sutton and Barto, 2nd ed., section 3.1.

    Args:
        rewards: [B, T], r_0 … r_{T−1}.

    Returns:
        [B, T + 1], R_0 … R_T.

    Raises:
        InvalidInput: the rewards are not [B, T].

    >>> rewards_to_next(torch.tensor([[5.0, 7.0]]))
    tensor([[0., 5., 7.]])
    """
    if rewards.ndim != 2:
        raise InvalidInput(f"rewards must be [B, T], got {tuple(rewards.shape)}")
    return pad(rewards, (1, 0))
