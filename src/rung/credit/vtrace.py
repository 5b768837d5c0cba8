"""V-trace: a critic's targets and a credit from sequences of another policy."""

from typing import NamedTuple

from torch.nn.functional import pad

from rung.credit.gae import residuals_by_step, values_and_end
from rung.credit.scan import Steps, require_fractions, suffix_sum
from rung.errors import InvalidInput
from rung.masked import require_same_shape, select
from rung.notation import PerSequence, PerToken, TokenMask


class VTrace(NamedTuple):
    """What the critic should have said, and the policy's credit; both [B, T], reward units, 0 off the mask."""

    targets: PerToken
    credit: PerToken


def vtrace(
    rewards: PerToken,
    values: PerToken,
    mask: TokenMask,
    old_logprobs: PerToken,
    behaviour_logprobs: PerToken,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    rho_cap: float = 1.0,
    c_cap: float = 1.0,
    bootstrap: PerSequence | None = None,
) -> VTrace:
    """Multi-step value targets and credit, corrected for the sampler by truncated importance weights.

        w_t = π_old(a_t|s_t) / μ(a_t|s_t)        ρ_t = min(ρ̄, w_t)        c_t = λ min(c̄, w_t)
        v_t = V(s_t) + Σ_{k≥t} γ^(k−t) (Π_{i=t}^{k−1} c_i) ρ_k (r_k + γ V(s_{k+1}) − V(s_k))
        Ψ_t = ρ_t (r_t + γ v_{t+1} − V(s_t))

    ρ̄ decides which policy's value the targets converge to, c̄ only how fast.

    Source: Espeholt et al. 2018, 1802.01561 (IMPALA), section 4.1, eq. 1, and section 4.2; λ: remark 2.

    Args:
        rewards: [B, T], r_t for the token at t, reward units.
        values: [B, T], V(s_t), detached. Off-mask entries are ignored.
        mask: [B, T] bool. Holes are skipped: the result equals that of the compacted sequence.
        old_logprobs: [B, T], log π_old of the sampled tokens, nats, detached.
        behaviour_logprobs: [B, T], log μ of the same tokens, as sampled, nats.
        gamma: discount per sampled token.
        lam: λ in [0, 1].
        rho_cap: ρ̄ > 0.
        c_cap: c̄ in [0, ρ̄].
        bootstrap: [B], V after the last token: 0 where the sequence terminated, V(s_T) where it was truncated.

    Returns:
        (targets, credit), [B, T] each, 0 off the mask.

    Raises:
        InvalidInput: shapes differ, the mask is not boolean, γ or λ is outside [0, 1], or the caps do not satisfy
            0 ≤ c̄ ≤ ρ̄ (the paper's assumption; with a larger c̄ the targets need not converge).

    Exactness:
        The targets' fixed point is the value of π_ρ̄ ∝ min(ρ̄ μ, π), not of π. As Ψ the credit is biased: the prefixes
        are those of μ, and the weights are capped. On policy with caps of at least 1 the targets are those of
        `gae`, A + V, and with λ = 1 the credit is G_t − V(s_t).
        Checked by tests/unbiased/test_credit_vtrace.py::test_vtrace_targets_settle_at_the_value_of_the_capped_policy
        and tests/reductions/test_credit.py::test_vtrace_on_policy_is_the_lambda_return.

    >>> import torch
    >>> one, half = torch.ones(1, 1), torch.full((1, 1), 0.5).log()
    >>> targets, credit = vtrace(one, 0 * one, one == 1, half, 0 * half)  # half as likely as when sampled: ρ = ½
    >>> targets, credit
    (tensor([[0.5000]]), tensor([[0.5000]]))
    """
    require_fractions(gamma=gamma, lam=lam)
    if not 0.0 <= c_cap <= rho_cap or rho_cap == 0.0:
        raise InvalidInput(
            f"the caps must satisfy 0 ≤ c_cap ≤ rho_cap and rho_cap > 0, got {c_cap}, {rho_cap}"
        )
    logprobs = {"old_logprobs": old_logprobs, "behaviour_logprobs": behaviour_logprobs}
    require_same_shape(rewards=rewards, values=values, mask=mask, **logprobs)
    steps = Steps.of(mask)
    ratio = steps.by_step(old_logprobs - behaviour_logprobs).exp()
    rho = ratio.clamp(max=rho_cap)
    trace = lam * ratio.clamp(max=c_cap)
    values = values_and_end(values, steps, bootstrap)
    residuals = rho * residuals_by_step(rewards, values, steps, gamma)
    errors = suffix_sum(residuals, gamma * trace)  # v_t − V(s_t)
    targets = select(values[:, :-1] + errors, steps.counts)
    credit = residuals + gamma * rho * pad(errors, (0, 1))[:, 1:]
    return VTrace(steps.by_token(targets), steps.by_token(credit))


def vtrace_credit(
    rewards: PerToken,
    values: PerToken,
    mask: TokenMask,
    old_logprobs: PerToken,
    behaviour_logprobs: PerToken,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    rho_cap: float = 1.0,
    c_cap: float = 1.0,
    bootstrap: PerSequence | None = None,
) -> PerToken:
    """The credit of `vtrace`, for a method's slot.

        Ψ_t = ρ_t (r_t + γ v_{t+1} − V(s_t))

    Source: Espeholt et al. 2018, 1802.01561 (IMPALA), section 4.2.

    Args:
        rewards: [B, T]; this and all others as in `vtrace`.
        values: [B, T].
        mask: [B, T] bool.
        old_logprobs: [B, T].
        behaviour_logprobs: [B, T].
        gamma: discount per sampled token.
        lam: λ in [0, 1].
        rho_cap: ρ̄ > 0.
        c_cap: c̄ in [0, ρ̄].
        bootstrap: [B] or None.

    Returns:
        [B, T], reward units, 0 off the mask. The weight is in it: no other correction belongs beside it.

    Exactness:
        Biased, as `vtrace` says. Checked by
        tests/unbiased/test_credit_vtrace.py::test_what_the_credit_of_vtrace_follows.

    >>> import torch
    >>> one, half = torch.ones(1, 1), torch.full((1, 1), 0.5).log()
    >>> vtrace_credit(one, 0 * one, one == 1, half, 0 * half)
    tensor([[0.5000]])
    """
    return vtrace(
        rewards,
        values,
        mask,
        old_logprobs,
        behaviour_logprobs,
        gamma=gamma,
        lam=lam,
        rho_cap=rho_cap,
        c_cap=c_cap,
        bootstrap=bootstrap,
    ).credit
