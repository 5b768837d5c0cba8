"""A KL penalty: which estimator, against what, placed where, with which coefficient."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from rung.errors import InvalidInput
from rung.kl import AdaptiveKL, DoublingKL
from rung.masked import masked_sum, select
from rung.notation import MAX_LOG_RATIO, PerToken, TokenMask

Controller = AdaptiveKL | DoublingKL
Coefficient = float | Controller
CHOICES: dict[str, tuple[str | None, ...]] = {
    "placement": ("reward", "loss"),
    "against": ("reference", "old"),
    "level": ("token", "sequence"),
    "weight": (None, "detached", "live"),
}


@dataclass(frozen=True)
class KLPenalty:
    """A penalty on a divergence of the policy.

    Attributes:
        estimator: `k1`, `k2` or `k3`: (p log-probs, q log-probs) → nats, an estimate of KL(p‖q).
        placement: "reward": subtracted from the rewards before credit, a constant under ∇.
            "loss": added to the loss with the same weights, and differentiated.
        coefficient: β ≥ 0, reward units per nat; or a controller that steers it after each rollout batch.
        against: "reference", the frozen model that training started from: KL(policy‖reference).
            "old", the policy at the start of the update: KL(old‖policy), in the loss only.
        level: "token": the estimator at each token. "sequence": of the summed log-probabilities, one number a
            sequence, placed on the last token in the reward and spread evenly over the tokens in the loss (one number
            a sequence under `sequence_sum`; other aggregations weigh it by length as they weigh everything).
        weight: the importance ratio policy/old that multiplies the estimator in the loss, of the same level:
            None, "detached" or "live". Detaching changes which gradient it is.

    Raises:
        InvalidInput: a word that is none of these, or a combination that is a mistake: a negative coefficient (it would
            push the policy away), or a KL to the old policy, or an importance weight, in the reward.
    """

    estimator: Callable[[PerToken, PerToken], PerToken]
    placement: Literal["reward", "loss"]
    coefficient: Coefficient
    against: Literal["reference", "old"] = "reference"
    level: Literal["token", "sequence"] = "token"
    weight: Literal["detached", "live"] | None = None

    def __post_init__(self) -> None:
        """Refuse what could only be a mistake."""
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise InvalidInput(
                    f"the {name} of a KL penalty is one of {choices}, got {getattr(self, name)!r}"
                )
        if not 0 <= self.beta < math.inf:
            raise InvalidInput(f"the KL coefficient must be finite and ≥ 0 (a penalty), got {self.beta}")
        if self.placement == "reward" and (self.against == "old" or self.weight is not None):
            raise InvalidInput(
                "a KL in the reward is a constant under ∇: against the old policy, or under an importance weight of "
                'the update, it belongs in the loss; samples of another policy are what the slot "correction" is for'
            )

    @property
    def beta(self) -> float:
        """The coefficient as it stands."""
        return self.coefficient if isinstance(self.coefficient, float | int) else self.coefficient.coefficient

    def after(self, kl: float, sequences: int) -> "KLPenalty":
        """The penalty for the next rollout batch, after one with a mean divergence of `kl` nats."""
        if isinstance(self.coefficient, float | int):
            return self
        return replace(self, coefficient=self.coefficient.update(kl, sequences))

    def with_coefficient(self, beta: float) -> "KLPenalty":
        """The same penalty with β at this value, its controller kept."""
        if isinstance(self.coefficient, float | int):
            return replace(self, coefficient=beta)
        return replace(self, coefficient=replace(self.coefficient, coefficient=beta))

    def in_reward(self, sampled_by: PerToken, reference_logprobs: PerToken, mask: TokenMask) -> PerToken:
        """[B, T] nats to subtract (times β) from the rewards. Off-mask 0."""
        if self.level == "token":
            return select(self.estimator(select(sampled_by, mask), select(reference_logprobs, mask)), mask)
        whole = self._of_sequences(sampled_by, reference_logprobs, mask)
        remaining = mask.flip(1).cumsum(1).flip(1)
        return torch.where(mask & (remaining == 1), whole.unsqueeze(1), torch.zeros_like(whole).unsqueeze(1))

    def in_loss(
        self,
        policy_logprobs: PerToken,
        other_logprobs: PerToken,
        old_logprobs: PerToken | None,
        mask: TokenMask,
    ) -> PerToken:
        """[B, T] nats to add (times β) to the token losses; gradient flows through `policy_logprobs`.

        All log-probabilities are 0 off the mask. `old_logprobs` are read only under an importance weight.
        """
        pair = (policy_logprobs, other_logprobs)
        p, q = pair if self.against == "reference" else (pair[1], pair[0])
        if self.level == "token":
            return self._weight(policy_logprobs, old_logprobs, mask) * self.estimator(p, q)
        whole = self._of_sequences(p, q, mask).unsqueeze(1)
        lengths = mask.sum(1, keepdim=True).clamp(min=1)
        return self._weight(policy_logprobs, old_logprobs, mask) * (whole / lengths).expand(mask.shape)

    def _of_sequences(self, p: PerToken, q: PerToken, mask: TokenMask) -> torch.Tensor:
        return self.estimator(masked_sum(p, mask, dim=1), masked_sum(q, mask, dim=1))

    def _weight(self, policy: PerToken, old: PerToken | None, mask: TokenMask) -> PerToken:
        if self.weight is None:
            return torch.ones_like(policy)
        if old is None:
            raise InvalidInput("a KL under an importance weight needs old log-probs: annotate them first")
        log_ratio = policy - old
        if self.level == "sequence":
            log_ratio = masked_sum(log_ratio, mask, dim=1).unsqueeze(1).expand(mask.shape)
        ratio = log_ratio.clamp(max=MAX_LOG_RATIO).exp()
        return ratio if self.weight == "live" else ratio.detach()
