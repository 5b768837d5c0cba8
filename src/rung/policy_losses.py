"""Per-token policy losses, to be minimised. Each takes [B, T] tensors and gives [B, T]; nothing here is averaged.

`credit` is Ψ, already detached. How tokens add up to a loss is decided in `aggregation`, and only there.
"""

import torch

from rung.errors import InvalidInput
from rung.masked import require_same_shape
from rung.notation import PerToken


def policy_gradient_loss(policy_logprobs: PerToken, credit: PerToken) -> PerToken:
    """Minus credit times log-probability: its gradient is the policy gradient.

        loss_t = −Ψ_t log π(a_t|s_t)

    Source: Williams 1992 (REINFORCE); the family of Ψ: Schulman et al. 2016, 1506.02438, section 2.

    Args:
        policy_logprobs: [B, T], nats. Gradient flows.
        credit: [B, T], Ψ, detached.

    Returns:
        [B, T]. Its *value* means nothing; with centred credit it starts near 0, and that is no error.

    Exactness:
        On policy, summed over each sequence, its expected gradient is −∇J for every unbiased Ψ.
        Checked by tests/unbiased/test_methods.py::test_every_policy_loss_is_the_policy_gradient_on_policy.

    >>> policy_gradient_loss(torch.tensor([[-0.5]]), torch.tensor([[2.0]]))
    tensor([[1.]])
    """
    require_same_shape(policy_logprobs=policy_logprobs, credit=credit)
    return -credit * policy_logprobs


def importance_weighted_loss(policy_logprobs: PerToken, old_logprobs: PerToken, credit: PerToken) -> PerToken:
    """Minus credit times the importance ratio of the token.

        ρ_t = π(a_t|s_t) / π_old(a_t|s_t)        loss_t = −ρ_t Ψ_t

    Source: Schulman et al. 2015, 1502.05477, eq. 3 (the surrogate of conservative policy iteration).

    Args:
        policy_logprobs: [B, T], nats. Gradient flows.
        old_logprobs: [B, T], the same tokens at the start of the update, nats. Detached.
        credit: [B, T], Ψ, detached.

    Returns:
        [B, T].

    Exactness:
        At π = π_old the gradient is the policy gradient. Away from it the prefixes are still the old policy's: the
        ratio corrects the token, not the state. Checked by
        tests/unbiased/test_off_policy.py::test_the_unclipped_surrogate_is_that_of_conservative_policy_iteration.

    >>> importance_weighted_loss(torch.tensor([[-1.0]]), torch.tensor([[-1.0]]), torch.tensor([[2.0]]))
    tensor([[-2.]])
    """
    require_same_shape(policy_logprobs=policy_logprobs, old_logprobs=old_logprobs, credit=credit)
    return -(policy_logprobs - old_logprobs).exp() * credit


def clipped_loss(
    policy_logprobs: PerToken,
    old_logprobs: PerToken,
    credit: PerToken,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> PerToken:
    """The clipped surrogate of PPO, as a loss.

        ρ_t = π(a_t|s_t) / π_old(a_t|s_t)
        loss_t = −min(ρ_t Ψ_t, clip(ρ_t, 1−ε_low, 1+ε_high) Ψ_t)
        dual clip, where Ψ_t < 0:  loss_t = −max(min(…), c Ψ_t)

    The gradient is zero only where Ψ > 0 and ρ > 1+ε_high, or Ψ < 0 and ρ < 1−ε_low. In the other two outer regions
    it is alive, so that clipping does not bound ρ.

    Source: Schulman et al. 2017, 1707.06347, eq. 7; separate bounds: Yu et al. 2025, 2503.14476 (DAPO); dual clip:
    Ye et al. 2020, 1912.09729, eq. 5.

    Args:
        policy_logprobs: [B, T], nats. Gradient flows.
        old_logprobs: [B, T], the same tokens at the start of the update, nats. Detached.
        credit: [B, T], Ψ, detached.
        clip_low: ε_low in [0, 1].
        clip_high: ε_high ≥ 0.
        dual_clip: c > 1, or None.

    Returns:
        [B, T].

    Exactness:
        At π = π_old the gradient is the policy gradient; after that it is biased on purpose. Checked by
        tests/reductions/test_policy_losses.py::test_at_the_old_policy_every_gradient_is_the_policy_gradient, and
        region by region by ::test_the_six_regions_of_the_clip.

    >>> ratio = torch.tensor([[1.5, 0.5]])
    >>> clipped_loss(ratio.log(), torch.zeros(1, 2), torch.tensor([[1.0, 1.0]]))
    tensor([[-1.2000, -0.5000]])
    """
    if not 0.0 <= clip_low <= 1.0 or clip_high < 0.0 or (dual_clip is not None and dual_clip <= 1.0):
        raise InvalidInput(
            f"clipping needs 0 ≤ clip_low ≤ 1, clip_high ≥ 0 and dual_clip > 1; "
            f"got {clip_low}, {clip_high}, {dual_clip}"
        )
    require_same_shape(policy_logprobs=policy_logprobs, old_logprobs=old_logprobs, credit=credit)
    ratio = (policy_logprobs - old_logprobs).exp()
    objective = torch.minimum(ratio * credit, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * credit)
    if dual_clip is not None:
        objective = torch.where(credit < 0, torch.maximum(objective, dual_clip * credit), objective)
    return -objective
