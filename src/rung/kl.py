"""Estimates of KL(policy‖reference) from the sampled token, the divergence itself, entropy, and steered coefficients.

With l = log π(a|s) − log π_ref(a|s) of a sampled token: k1 = l, k2 = ½l², k3 = e^(−l) − 1 + l. As *values* on policy
samples k1 and k3 are unbiased and k2 is not. *Which gradient they give* is another question, and depends on where
they are placed:

    in the reward (constant, multiplied by the score)    k1 → ∇KL(π‖ref)
    in the loss (differentiated)                         k1 → 0    k2 → ∇KL(π‖ref)    k3 → ∇KL(ref‖π), the other one

per token, at the prefixes that the policy visits. Source: Schulman, "Approximating KL divergence" (2020), for the
estimators; tests/unbiased/test_kl_gradients.py for every cell.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from rung.errors import InvalidInput
from rung.masked import require_same_shape
from rung.notation import MAX_LOG_RATIO, PerToken


def k1(policy_logprobs: PerToken, reference_logprobs: PerToken) -> PerToken:
    """The log-ratio at each sampled token.

        k1 = log π(a|s) − log π_ref(a|s)

    Source: Schulman, "Approximating KL divergence" (2020), estimator k1.

    Args:
        policy_logprobs: log π of the sampled tokens, nats. Gradient flows.
        reference_logprobs: log π_ref of the same tokens, nats. Detached by the caller.

    Returns:
        Nats per token. A single one may be negative, and that is no error.

    Exactness:
        As a value on policy samples, unbiased for KL(π‖π_ref). In the reward its expected gradient is ∇KL(π‖π_ref);
        as a loss its expected gradient is 0: pure noise. Checked by
        tests/unbiased/test_kl_gradients.py::test_k1_in_the_reward_is_the_reverse_kl_gradient_of_whole_sequences,
        ::test_k1_in_the_loss_is_noise and ::test_case_N4_as_values_k1_and_k3_are_unbiased.

    >>> k1(torch.tensor([[-1.0]]), torch.tensor([[-1.2]]))
    tensor([[0.2000]])
    """
    require_same_shape(policy_logprobs=policy_logprobs, reference_logprobs=reference_logprobs)
    return policy_logprobs - reference_logprobs


def k2(policy_logprobs: PerToken, reference_logprobs: PerToken) -> PerToken:
    """Half the squared log-ratio at each sampled token.

        k2 = ½ (log π(a|s) − log π_ref(a|s))²

    Source: Schulman, "Approximating KL divergence" (2020), estimator k2.

    Args:
        policy_logprobs: log π of the sampled tokens, nats. Gradient flows.
        reference_logprobs: log π_ref of the same tokens, nats. Detached by the caller.

    Returns:
        Nats per token, never negative.

    Exactness:
        As a value on policy samples it is biased: for N(0,1) against N(m,1) by m²/4 of the true value. As a loss on
        policy samples its expected gradient is exactly ∇KL(π‖π_ref) at each visited prefix, without the effect on
        later prefixes.
        Checked by tests/unbiased/test_kl_gradients.py::test_k2_in_the_loss_is_the_reverse_kl_gradient and
        tests/kl/test_estimators.py::test_k2_of_two_gaussians_is_biased_by_a_quarter_of_the_squared_distance.

    >>> k2(torch.tensor([[-1.0]]), torch.tensor([[-1.2]]))
    tensor([[0.0200]])
    """
    return k1(policy_logprobs, reference_logprobs).square() / 2


def k3(policy_logprobs: PerToken, reference_logprobs: PerToken) -> PerToken:
    """The log-ratio with a control variate, at each sampled token.

        k3 = π_ref(a|s)/π(a|s) − 1 + log π(a|s) − log π_ref(a|s)

    Source: Schulman, "Approximating KL divergence" (2020), estimator k3; the KL term of GRPO (Shao et al. 2024,
    2402.03300, eq. 4).
    Differs from source: the exponent is capped at `MAX_LOG_RATIO` nats (a token that the reference finds e⁴⁰ times
    likelier); there the value stops growing exponentially and only the linear part has a gradient. `capped` tells
    where.

    Args:
        policy_logprobs: log π of the sampled tokens, nats. Gradient flows.
        reference_logprobs: log π_ref of the same tokens, nats. Detached by the caller.

    Returns:
        Nats per token, never negative.

    Exactness:
        As a value on policy samples, unbiased for KL(π‖π_ref); its variance is not always below k1's. As a loss its
        expected gradient is that of the *other* direction, ∇KL(π_ref‖π), at each prefix that the policy visits.
        Checked by tests/unbiased/test_kl_gradients.py::test_k3_in_the_loss_is_the_forward_kl_gradient,
        ::test_case_N4_as_values_k1_and_k3_are_unbiased and
        tests/kl/test_estimators.py::test_k3_does_not_always_vary_less_than_k1.

    >>> k3(torch.tensor([[-1.0]]), torch.tensor([[-1.2]]))
    tensor([[0.0187]])
    """
    log_ratio = k1(policy_logprobs, reference_logprobs)
    return (-log_ratio).clamp(max=MAX_LOG_RATIO).expm1() + log_ratio


def capped(policy_logprobs: PerToken, reference_logprobs: PerToken) -> torch.Tensor:
    """Which tokens `k3` has capped, to be counted and shown: there it is no longer an estimate of KL.

        log π_ref(a|s) − log π(a|s) > MAX_LOG_RATIO

    Args:
        policy_logprobs: log π of the sampled tokens, nats.
        reference_logprobs: log π_ref of the same tokens, nats.

    Returns:
        [B, T] bool; False where either is NaN. Off the mask it means nothing: combine it with the mask.

    >>> capped(torch.tensor([[-120.0, -1.0]]), torch.tensor([[-0.5, -1.3]]))
    tensor([[ True, False]])
    """
    return -k1(policy_logprobs, reference_logprobs) > MAX_LOG_RATIO


def kl_divergence(p_logits: torch.Tensor, q_logits: torch.Tensor) -> torch.Tensor:
    """KL(p‖q) of two categorical distributions, over the last axis.

        KL(p‖q) = Σ_v p(v) (log p(v) − log q(v))

    Args:
        p_logits: [..., V], of the first distribution, up to an additive constant. Gradient flows.
        q_logits: [..., V], of the second, likewise. Gradient flows.

    Returns:
        [...], nats. Not symmetric: the order in the name is the order in the divergence.

    >>> kl_divergence(torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor([0.4, 0.4, 0.2]).log())
    tensor(0.1838)
    """
    require_same_shape(p_logits=p_logits, q_logits=q_logits)
    p = p_logits.log_softmax(-1)
    q = q_logits.log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """The entropy of a categorical distribution, over the last axis.

        H = −Σ_v p(v) log p(v)

    As a bonus it is *subtracted* from a loss: −c H, so that a step down the loss spreads the policy.

    Args:
        logits: [..., V], up to an additive constant. Gradient flows. −∞ excludes an entry, which then adds nothing.

    Returns:
        [...], nats, between 0 and log V.

    >>> entropy(torch.tensor([0.5, 0.25, 0.25]).log())  # 1.5 bits
    tensor(1.0397)
    """
    logprobs = logits.log_softmax(-1)
    finite = logprobs.clamp(min=torch.finfo(logprobs.dtype).min)  # 0 · log 0 is 0, and 0 · ∞ would be NaN
    return -(logprobs.exp() * finite).sum(-1)


def _require_measured(kl: float, sequences: int) -> None:
    """Refuse what no divergence can be: a coefficient steered by it would be NaN, or follow noise, to the end."""
    if not (0.0 <= kl < math.inf and sequences >= 0):
        raise InvalidInput(
            f"a KL coefficient is steered by a mean divergence that is finite and ≥ 0, got {kl} of {sequences} "
            f"sequences; measure it by k3 or by the full divergence: a mean of k1 may be negative by chance"
        )


@dataclass(frozen=True)
class AdaptiveKL:
    """A KL coefficient that is steered towards a target divergence.

        e = clip(KL/target − 1, −0.2, 0.2)        β ← β (1 + e · n/horizon)

    Source: Ziegler et al. 2019, 1909.08593, section 2.2. It steers the divergence from the *reference*, which is not
    a trust region: a step goes from the old policy to the new one, and the reference is somewhere else.
    Differs from source: the gain is n/horizon, as in the authors' code, where the text has a constant 0.1.

    >>> AdaptiveKL(coefficient=0.2, target=6.0, horizon=10_000).update(12.0, 256).coefficient
    0.201024
    """

    coefficient: float
    target: float
    horizon: float

    def __post_init__(self) -> None:
        """Refuse a controller that could not work."""
        if not (self.coefficient >= 0 and self.target > 0 and self.horizon > 0):
            raise InvalidInput("an adaptive KL needs coefficient ≥ 0, target > 0 and horizon > 0")

    def update(self, sequence_kl: float, sequences: int) -> "AdaptiveKL":
        """The next controller, after `sequences` sequences whose mean KL was `sequence_kl` nats.

        Raises:
            InvalidInput: the measured KL is NaN, infinite or negative, or the horizon is so short that one update
                could turn the penalty into a bonus.
        """
        _require_measured(sequence_kl, sequences)
        if not self.horizon > 0.2 * sequences:
            raise InvalidInput(
                f"a horizon of {self.horizon:g} sequences is too short for updates after {sequences} of them: the "
                f"coefficient may fall to 0 or below at once; use more than {0.2 * sequences:g}"
            )
        error = min(max(sequence_kl / self.target - 1.0, -0.2), 0.2)
        return replace(self, coefficient=self.coefficient * (1.0 + error * sequences / self.horizon))


@dataclass(frozen=True)
class DoublingKL:
    """A KL coefficient that is halved or doubled when a step's divergence leaves a band around its target.

        KL < target/1.5:  β ← β/2        KL > 1.5 · target:  β ← 2β        within [LEAST, MOST]

    Source: Schulman et al. 2017, 1707.06347, section 4 (the adaptive penalty of PPO). The divergence is that of the
    step, KL(π_old‖π), mean over states: a trust region, which the divergence from the reference is not.
    Differs from source: β is not steered out of [`LEAST`, `MOST`]. Where the divergence does not answer to it, because
    nothing is learned for a while, it would be halved or doubled for ever and never come back in time.

    >>> DoublingKL(coefficient=1.0, target=0.01).update(0.02, 256).coefficient
    2.0
    """

    coefficient: float
    target: float
    LEAST: ClassVar[float] = 1e-4
    MOST: ClassVar[float] = 1e4

    def __post_init__(self) -> None:
        """Refuse a controller that could not work."""
        if not (self.coefficient >= 0 and self.target > 0):
            raise InvalidInput("a doubling KL needs coefficient ≥ 0 and target > 0")

    def update(self, kl: float, sequences: int) -> "DoublingKL":
        """The next controller, after an update with mean KL `kl` nats; how many `sequences` does not matter here.

        Raises:
            InvalidInput: the measured KL is NaN, infinite or negative.
        """
        _require_measured(kl, sequences)
        if kl < self.target / 1.5:
            return replace(self, coefficient=max(self.coefficient / 2.0, min(self.LEAST, self.coefficient)))
        if kl > self.target * 1.5:
            return replace(self, coefficient=min(self.coefficient * 2.0, max(self.MOST, self.coefficient)))
        return self
