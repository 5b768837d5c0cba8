"""Losses of a critic. Weights come from `aggregation`, as for the policy: nothing is averaged here.

Returns are targets, so they are detached: through G = A + V a live one would drag the critic towards its own error.
"""

import torch

from rung.errors import InvalidInput
from rung.masked import masked_sum, require_same_shape, select
from rung.notation import PerToken, Scalar


def value_loss(values: PerToken, returns: PerToken, weights: PerToken) -> Scalar:
    """Half the squared error of the values.

        loss = Σ_t w_t ½ (V_t − R_t)²

    Source: Schulman et al. 2017, 1707.06347, eq. 9.
    Differs from source: the ½, so that the gradient is w (V − R). Implementations differ by this factor.

    Args:
        values: [B, T], reward units. Gradient flows.
        returns: [B, T], what V should predict (G_t, or A + V from the rollout), reward units. No gradient flows.
        weights: [B, T] of `aggregation`; where they are 0, nothing is read.

    Returns:
        A scalar, squared reward units.

    Raises:
        InvalidInput: shapes differ.

    >>> value_loss(torch.tensor([[1.0, 5.0]]), torch.tensor([[3.0, 0.0]]), torch.tensor([[0.5, 0.0]]))
    tensor(1.)
    """
    require_same_shape(values=values, returns=returns, weights=weights)
    counts = weights != 0
    error = select(values, counts) - select(returns.detach(), counts)
    return masked_sum(weights * error.square() / 2, counts)


def clipped_value_loss(
    values: PerToken, old_values: PerToken, returns: PerToken, weights: PerToken, *, clip: float
) -> Scalar:
    """Half the squared error, of the value or of the value held near the old one: whichever is larger.

        V' = V_old + clip(V − V_old, −ε, ε)        loss = Σ_t w_t ½ max((V_t − R_t)², (V'_t − R_t)²)

    Pessimistic, as the policy's clip is: the maximum is by design. The gradient is 0 only where |V − V_old| > ε and
    the error of V' is the larger one, that is where V has already moved far enough towards its target.

    Source: the public code of PPO; written down by Engstrom et al. 2020, 2005.12729, section 3.
    Differs from source: the ½.

    Args:
        values: [B, T], reward units. Gradient flows.
        old_values: [B, T], as at the rollout, reward units. No gradient flows. Read again from the current critic,
            they would make the clip dead.
        returns: [B, T], reward units. No gradient flows.
        weights: [B, T] of `aggregation`; where they are 0, nothing is read.
        clip: ε > 0, reward units. It is no ratio: its right size depends on the scale of the rewards.

    Returns:
        A scalar, squared reward units.

    Raises:
        InvalidInput: shapes differ, or clip ≤ 0.

    Exactness:
        Checked by tests/test_critic.py::test_the_gradient_is_zero_only_past_the_clip_on_the_way_to_the_target.

    >>> one = torch.ones(1, 1)
    >>> clipped_value_loss(1.2 * one, 0.5 * one, one, one, clip=0.2)  # held at 0.7: ½ max(0.2², 0.3²)
    tensor(0.0450)
    """
    if not clip > 0.0:
        raise InvalidInput(f"the clip of values must be positive, in reward units; got {clip}")
    require_same_shape(values=values, old_values=old_values, returns=returns, weights=weights)
    counts = weights != 0
    live, old, target = (select(x, counts) for x in (values, old_values.detach(), returns.detach()))
    error = (live - target).square()
    held = (old + (live - old).clamp(-clip, clip) - target).square()
    return masked_sum(weights * torch.where(held > error, held, error) / 2, counts)
