"""Per-token policy losses, to be minimised. Each takes [B, T] tensors and gives [B, T]; nothing here is averaged.

`credit` is Ψ, already detached. How tokens add up to a loss is decided in `aggregation`, and only there. No ratio
exceeds e^`MAX_LOG_RATIO`: in float32 it would soon be ∞, and its gradient NaN even where a clip makes it 0.
"""

import torch

from rung.errors import InvalidInput
from rung.masked import masked_mean, require_same_shape, select
from rung.notation import MAX_LOG_RATIO, PerToken, TokenMask


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


def _ratio(log_ratios: torch.Tensor) -> torch.Tensor:
    """e^x, for x up to `MAX_LOG_RATIO`: there the ratio stops growing, and has no gradient."""
    return log_ratios.clamp(max=MAX_LOG_RATIO).exp()


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
    return -_ratio(policy_logprobs - old_logprobs) * credit


def _require_bounds(clip_low: float, clip_high: float, dual_clip: float | None = None) -> None:
    """Refuse bounds that do not hold 1 between them, and a dual clip of 1 or less."""
    if not (0.0 <= clip_low <= 1.0 and clip_high >= 0.0 and (dual_clip is None or dual_clip > 1.0)):
        raise InvalidInput(
            f"clipping needs 0 ≤ clip_low ≤ 1, clip_high ≥ 0 and dual_clip > 1; "
            f"got {clip_low}, {clip_high}, {dual_clip}"
        )


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
    _require_bounds(clip_low, clip_high, dual_clip)
    require_same_shape(policy_logprobs=policy_logprobs, old_logprobs=old_logprobs, credit=credit)
    ratio = _ratio(policy_logprobs - old_logprobs)
    objective = torch.minimum(ratio * credit, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * credit)
    if dual_clip is not None:
        objective = torch.where(credit < 0, torch.maximum(objective, dual_clip * credit), objective)
    return -objective


def sequence_clipped_loss(
    policy_logprobs: PerToken,
    old_logprobs: PerToken,
    credit: PerToken,
    mask: TokenMask,
    *,
    clip_low: float,
    clip_high: float,
) -> PerToken:
    """The clipped surrogate with one ratio a sequence, the geometric mean of its tokens' ratios; GSPO's loss.

        s_i = (π(y_i)/π_old(y_i))^(1/L_i) = exp(1/L_i Σ_t log ρ_it)        A_i = 1/L_i Σ_t Ψ_it
        loss_it = −min(s_i A_i, clip(s_i, 1−ε_low, 1+ε_high) A_i)

    The same number on each token of the sequence, to be aggregated by `sequence_mean`. A sequence is clipped as a
    whole or not at all.

    Source: Zheng et al. 2025, 2507.18071, eqs. 5 and 7, where A_i is one number a sequence.
    Differs from source: where credit varies within a sequence, its mean over the sequence stands for A_i, since one
    ratio can weight only one number. Nothing is then followed token by token; a sequence of one credit is unchanged.

    Args:
        policy_logprobs: [B, T], nats. Gradient flows.
        old_logprobs: [B, T], the same tokens at the start of the update, nats. Detached.
        credit: [B, T], Ψ, detached.
        mask: [B, T] bool, the tokens that make up s_i and A_i.
        clip_low: ε_low in [0, 1]. No default: s_i stays much nearer to 1 than a token's ratio (the paper: 3e-4).
        clip_high: ε_high ≥ 0 (the paper: 4e-4).

    Returns:
        [B, T], 0 off the mask, and nothing off the mask has a gradient.

    Raises:
        InvalidInput: shapes differ, the mask is not boolean, or a bound is out of range.

    Exactness:
        s_i is no importance weight, but a root of one: away from π_old biased at any clip. At π = π_old, with
        `sequence_mean`, the gradient is 1/B Σ_i A_i 1/L_i Σ_t ∇log π, that of a plain mean over each sequence. Checked
        by tests/unbiased/test_sequence_clip.py::test_published_value_of_the_clip_of_whole_sequences and
        tests/reductions/test_policy_losses.py::test_at_the_old_policy_a_sequence_ratio_gives_the_sequence_mean.

    >>> ratios, mask = torch.tensor([[4.0, 0.25], [2.0, 2.0]]), torch.tensor([[True, True], [True, True]])
    >>> sequence_clipped_loss(ratios.log(), torch.zeros(2, 2), torch.ones(2, 2), mask, clip_low=0.2, clip_high=0.2)
    tensor([[-1.0000, -1.0000],
            [-1.2000, -1.2000]])
    """
    _require_bounds(clip_low, clip_high)
    require_same_shape(policy_logprobs=policy_logprobs, old_logprobs=old_logprobs, credit=credit, mask=mask)
    log_ratios = select(policy_logprobs, mask) - select(old_logprobs, mask)
    ratio = _ratio(masked_mean(log_ratios, mask, dim=1))
    sequence_credit = masked_mean(credit, mask, dim=1)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    objective = torch.minimum(ratio * sequence_credit, clipped * sequence_credit)
    return select(-objective.unsqueeze(1).expand(mask.shape), mask)


def cispo_loss(
    policy_logprobs: PerToken, old_logprobs: PerToken, credit: PerToken, *, cap: float
) -> PerToken:
    """Minus credit times log-probability, weighted by the importance ratio, which is capped and has no gradient.

        loss_t = −sg(min(ρ_t, c)) Ψ_t log π(a_t|s_t)        sg: constant under ∇

    What is cut is the weight and not the gradient: no token ever drops out.

    Source: MiniMax 2025, 2506.13585 (CISPO), without a lower bound, as it is used there; c is 1 + ε_high there.

    Args:
        policy_logprobs: [B, T], nats. Gradient flows.
        old_logprobs: [B, T], the same tokens at the start of the update, nats. Detached.
        credit: [B, T], Ψ, detached.
        cap: c ≥ 1, the largest ratio itself (5.0, say) and not a distance from 1. Below 1 it would scale down the
            policy gradient itself, which is what happens when an ε is given for it: refused.

    Returns:
        [B, T]. Its *value* means nothing, as that of `policy_gradient_loss`.

    Raises:
        InvalidInput: shapes differ, or cap < 1.

    Exactness:
        Where no ratio reaches the cap, its gradient is that of `importance_weighted_loss`; beyond, it is c/ρ_t of it.
        Checked by tests/reductions/test_policy_losses.py::test_under_the_cap_cispo_is_the_importance_weight and
        tests/unbiased/test_corrections.py::test_cispo_is_the_truncated_token_weight.

    >>> policy = torch.tensor([[3.0, 0.5]]).log().requires_grad_()
    >>> cispo_loss(policy, torch.zeros(1, 2), torch.ones(1, 2), cap=2.0).sum().backward()
    >>> policy.grad
    tensor([[-2.0000, -0.5000]])
    """
    if not cap >= 1.0:
        raise InvalidInput(f"the cap is the largest ratio itself, so at least 1 (5.0, say); got {cap}")
    require_same_shape(policy_logprobs=policy_logprobs, old_logprobs=old_logprobs, credit=credit)
    weight = _ratio(policy_logprobs.detach() - old_logprobs).clamp(max=cap)
    return -weight * credit * policy_logprobs
