"""Credit with a critic: TD residuals, and their exponentially weighted sum."""

import torch
from torch.nn.functional import pad

from rung.credit.scan import Steps, discounted_suffix_sum, require_fractions
from rung.errors import InvalidInput
from rung.masked import require_same_shape, select
from rung.notation import PerSequence, PerToken, TokenMask


def values_and_end(values: PerToken, steps: Steps, bootstrap: PerSequence | None) -> torch.Tensor:
    """[B, T + 1] V by step, the bootstrap after each row's last step, 0 elsewhere.

    >>> mask = torch.tensor([[True, True, False]])
    >>> values_and_end(torch.tensor([[0.2, 0.4, 7.0]]), Steps.of(mask), torch.tensor([0.5]))
    tensor([[0.2000, 0.4000, 0.5000, 0.0000]])
    """
    longer = pad(steps.by_step(values), (0, 1))
    if bootstrap is None:
        return longer
    if bootstrap.shape != values.shape[:1]:
        raise InvalidInput(
            f"bootstrap must be [B], got {tuple(bootstrap.shape)} beside values {tuple(values.shape)}"
        )
    end = select(bootstrap, steps.mask.any(1)).to(longer.dtype)
    return longer.scatter(1, steps.count.unsqueeze(1), end.unsqueeze(1))


def residuals_by_step(rewards: PerToken, values: torch.Tensor, steps: Steps, gamma: float) -> PerToken:
    """r_t + γ V_{t+1} − V_t by step, of values [B, T + 1] with their end; 0 beyond the last step."""
    found = steps.by_step(rewards) + gamma * values[:, 1:] - values[:, :-1]
    return select(found, steps.counts)


def td_residual(
    rewards: PerToken,
    values: PerToken,
    mask: TokenMask,
    *,
    gamma: float = 1.0,
    bootstrap: PerSequence | None = None,
) -> PerToken:
    """Reward plus the next value minus this one: how much better it went than the critic said.

        δ_t = r_t + γ V(s_{t+1}) − V(s_t)

    Source: Sutton and Barto, 2nd ed., eq. 6.5; Schulman et al. 2016, 1506.02438, section 3.

    Args:
        rewards: [B, T], r_t for the token at t, reward units.
        values: [B, T], V(s_t), what the critic said before the token at t. Off-mask entries are ignored.
        mask: [B, T] bool. Holes are skipped: s_{t+1} is where the next counted token stands.
        gamma: discount per sampled token.
        bootstrap: [B], V after the last token: 0 where the sequence terminated, V(s_T) where it was truncated by a
            limit that is not part of the objective. None for 0 everywhere.

    Returns:
        [B, T], reward units, 0 off the mask. Gradient flows to values unless they are detached.

    Raises:
        InvalidInput: shapes differ, the mask is not boolean, or γ is outside [0, 1].

    Exactness:
        With V = V^π the mean of δ_t given s_t and a_t is A(s_t, a_t), so that Ψ = δ is unbiased for ∇J at γ = 1. With
        another V it is biased, unless V's error at the next state does not depend on the action; the error of an
        ended sequence is 0, so a critic that is off by a constant is biased where sequences may end.
        Checked by tests/unbiased/test_credit_family.py::test_the_exact_critic_is_unbiased_at_every_lambda and
        ::test_an_error_that_does_not_depend_on_the_action_does_not_bias.

    >>> mask = torch.tensor([[True, True]])
    >>> td_residual(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.75]]), mask)
    tensor([[0.2500, 0.2500]])
    """
    require_fractions(gamma=gamma)
    require_same_shape(rewards=rewards, values=values, mask=mask)
    steps = Steps.of(mask)
    return steps.by_token(residuals_by_step(rewards, values_and_end(values, steps, bootstrap), steps, gamma))


def gae(
    rewards: PerToken,
    values: PerToken,
    mask: TokenMask,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    bootstrap: PerSequence | None = None,
) -> PerToken:
    """Generalized advantage estimation: TD residuals from each token on, weighted down by γλ a step.

        A_t = Σ_{l≥0} (γλ)^l δ_{t+l}        A_t = δ_t + γλ A_{t+1}

    λ = 0 is the TD residual, λ = 1 is G_t − V(s_t) (REINFORCE with a learned baseline); between them it is the mean of
    k-step advantages with weights (1 − λ) λ^(k−1). Targets for the critic are A_t + V(s_t), before any whitening.

    Source: Schulman et al. 2016, 1506.02438, eq. 16.

    Args:
        rewards: [B, T], r_t for the token at t, reward units.
        values: [B, T], V(s_t), what the critic said before the token at t. Off-mask entries are ignored.
        mask: [B, T] bool. Holes are skipped: the result equals that of the compacted sequence.
        gamma: discount per sampled token (1 for language models).
        lam: λ in [0, 1].
        bootstrap: [B], V after the last token: 0 where the sequence terminated, V(s_T) where it was truncated by a
            limit that is not part of the objective. None for 0 everywhere.

    Returns:
        [B, T] A, reward units, 0 off the mask. Gradient flows to values unless they are detached.

    Raises:
        InvalidInput: shapes differ, the mask is not boolean, or γ or λ is outside [0, 1].

    Exactness:
        At γ = 1 unbiased for ∇J with any V if λ = 1, and with any λ if V's error at the later states does not depend
        on the action (V = V^π suffices); otherwise biased, less so as λ → 1. With γ < 1 it is so only when the score
        at t is also weighted by γ^t.
        Checked by tests/unbiased/test_credit_family.py::test_the_bias_of_a_wrong_critic_on_toy_c and
        ::test_the_exact_critic_is_unbiased_at_every_lambda.

    >>> mask, values = torch.ones(1, 3, dtype=torch.bool), torch.tensor([[0.2, 0.4, 0.6]])
    >>> gae(torch.tensor([[0.0, 0.0, 1.0]]), values, mask, gamma=0.9, lam=0.8)
    tensor([[0.4682, 0.4280, 0.4000]])
    """
    require_fractions(gamma=gamma, lam=lam)
    require_same_shape(rewards=rewards, values=values, mask=mask)
    steps = Steps.of(mask)
    residuals = residuals_by_step(rewards, values_and_end(values, steps, bootstrap), steps, gamma)
    return steps.by_token(discounted_suffix_sum(residuals, gamma * lam))
