"""The four slots, and how they join: rewards → credit Ψ → per-token loss → weights → one number."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch

from rung import aggregation as aggregation_module
from rung.batch import Rollouts
from rung.errors import InvalidInput
from rung.masked import masked_sum, require_same_shape, select
from rung.notation import PerToken, Scalar, TokenMask

Slot = Callable[..., torch.Tensor]


def _parameters(slot: Slot) -> set[str]:
    return set(inspect.signature(slot).parameters)


def _detached(values: PerToken | None) -> PerToken | None:
    return None if values is None else values.detach()


def call_by_name(slot: Slot, available: Mapping[str, Any]) -> torch.Tensor:
    """Call a slot with those of the available values that its parameters name.

    Raises:
        InvalidInput: the slot asks for something that is not there.

    >>> call_by_name(lambda mask: mask.sum(), {"mask": torch.tensor([True]), "credit": None})
    tensor(1)
    """
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(slot).parameters.items():
        if name in available:
            arguments[name] = available[name]
        elif parameter.default is inspect.Parameter.empty:
            raise InvalidInput(f"a slot asks for {name!r}; there is {', '.join(sorted(available))}")
    return slot(**arguments)


@dataclass(frozen=True)
class KLPenalty:
    """A penalty on KL(policy‖reference): which estimator, against what, placed where.

    Attributes:
        estimator: `k1`, `k2` or `k3`: (policy_logprobs, reference_logprobs) → nats per token.
        placement: "reward": subtracted from each token's reward before credit, a constant under ∇.
            "loss": added to the loss with the same weights, and differentiated.
        coefficient: β ≥ 0, reward units per nat.
        against: whose log-probabilities; "reference" is the frozen model that training started from.
    """

    estimator: Callable[[PerToken, PerToken], PerToken]
    placement: Literal["reward", "loss"]
    coefficient: float
    against: Literal["reference"] = "reference"

    def __post_init__(self) -> None:
        """A negative coefficient would push the policy away from the reference."""
        if self.coefficient < 0:
            raise InvalidInput(f"the KL coefficient must be ≥ 0 (a penalty), got {self.coefficient}")


@dataclass(frozen=True)
class TrainingBatch:
    """What the losses of one optimizer step read. [B, T] each; made once per rollout batch, indexed by row.

    Attributes:
        mask: the tokens that train: sampled by the policy, in valid rows.
        credit: Ψ, detached.
        old_logprobs: frozen at the start of the update, or None if the method does not need them.
        reference_logprobs: of the frozen reference, or None.
    """

    mask: TokenMask
    credit: PerToken
    old_logprobs: PerToken | None = None
    reference_logprobs: PerToken | None = None

    def rows(self, index: torch.Tensor) -> "TrainingBatch":
        """The same batch, restricted to some rows."""
        return TrainingBatch(
            self.mask[index],
            self.credit[index],
            None if self.old_logprobs is None else self.old_logprobs[index],
            None if self.reference_logprobs is None else self.reference_logprobs[index],
        )


@dataclass(frozen=True)
class Method:
    """g = E[Σ_t Ψ_t ∇log π(a_t|s_t)], by four choices.

    Slots are plain functions that name what they need: a credit may ask for `rewards` and `mask` ([B, T], the KL in
    the reward already subtracted), `returns` and `groups` ([B]), `valid` ([B]); a policy loss for `policy_logprobs`,
    `old_logprobs`, `credit`, `mask`; an aggregation for `mask`, `totals`.

    >>> from rung.methods import rloo
    >>> sorted(rloo().needs)
    ['reference']
    """

    name: str
    credit: Slot
    policy_loss: Slot
    aggregation: Slot
    kl: KLPenalty | None = None

    @cached_property
    def needs(self) -> frozenset[str]:
        """What must be annotated to the rollouts: "old" log-probs, "reference" log-probs."""
        old = {"old"} if "old_logprobs" in _parameters(self.policy_loss) else set()
        reference = {"reference"} if self.kl is not None and self.kl.coefficient > 0 else set()
        return frozenset(old | reference)

    def token_rewards(self, rollouts: Rollouts) -> PerToken:
        """[B, T] r̂_t: the outcome at the last sampled token, minus β · KL where it is placed in the reward."""
        rewards = rollouts.rewards
        if self.kl is None or self.kl.placement != "reward" or self.kl.coefficient == 0:
            return rewards
        if rollouts.reference_logprobs is None:
            raise InvalidInput(
                f"method {self.name!r} has a KL in the reward: annotate reference log-probs first"
            )
        sampled_by = rollouts.behaviour_logprobs if rollouts.old_logprobs is None else rollouts.old_logprobs
        penalty = self.kl.estimator(sampled_by, rollouts.reference_logprobs)
        return rewards - self.kl.coefficient * select(penalty, rollouts.mask)

    def prepare(self, rollouts: Rollouts) -> TrainingBatch:
        """Credit on the whole rollout batch, before rows are dealt to mini-batches. Detached here, once.

        Old and reference log-probabilities are detached as well: a live old one would cancel the ratio's gradient.
        """
        mask = rollouts.mask & rollouts.valid.unsqueeze(1)
        rewards = self.token_rewards(rollouts).detach()
        credit = call_by_name(
            self.credit,
            {
                "rewards": rewards,
                "mask": mask,
                "returns": masked_sum(rewards, mask, dim=1),
                "groups": rollouts.groups,
                "valid": rollouts.valid,
            },
        )
        if credit.ndim == 1:
            credit = credit.unsqueeze(1).expand(mask.shape)
        return TrainingBatch(
            mask,
            select(credit.detach(), mask),
            _detached(rollouts.old_logprobs),
            _detached(rollouts.reference_logprobs),
        )

    def weights(self, mask: TokenMask, totals: aggregation_module.Totals | None = None) -> PerToken:
        """[B, T] aggregation weights over the rows of one optimizer step."""
        return call_by_name(self.aggregation, {"mask": mask, "totals": totals})

    def loss(self, policy_logprobs: PerToken, batch: TrainingBatch, weights: PerToken) -> Scalar:
        """Σ weights · (policy loss + β · KL where it is placed in the loss). Adds up over micro-batches.

        What stands off the mask is selected away before any slot sees it: after exp() it would be too late for
        the gradient.

        Args:
            policy_logprobs: [B, T], nats. Gradient flows.
            batch: the same rows.
            weights: the same rows of `weights`, made over the whole optimizer step.

        Returns:
            A scalar to minimise.

        Raises:
            InvalidInput: shapes differ, or log-probabilities that the method needs were not annotated.
        """
        require_same_shape(mask=batch.mask, weights=weights)
        policy_logprobs = select(policy_logprobs, batch.mask)
        available = {"policy_logprobs": policy_logprobs, "credit": batch.credit, "mask": batch.mask}
        if batch.old_logprobs is not None:
            available["old_logprobs"] = select(batch.old_logprobs, batch.mask)
        elif "old" in self.needs:
            raise InvalidInput(f"method {self.name!r} has an importance ratio: annotate old log-probs first")
        token_loss = call_by_name(self.policy_loss, available)
        if self.kl is not None and self.kl.placement == "loss" and self.kl.coefficient > 0:
            if batch.reference_logprobs is None:
                raise InvalidInput(
                    f"method {self.name!r} has a KL in the loss: annotate reference log-probs first"
                )
            reference_logprobs = select(batch.reference_logprobs, batch.mask)
            token_loss = token_loss + self.kl.coefficient * self.kl.estimator(
                policy_logprobs, reference_logprobs
            )
        return masked_sum(weights.to(token_loss.dtype) * select(token_loss, batch.mask), batch.mask)


def clip_bounds(method: Method) -> tuple[float, float] | None:
    """(1 − ε_low, 1 + ε_high) of a method whose policy loss clips, else None. For the clip-fraction metric."""
    parameters = inspect.signature(method.policy_loss).parameters
    if "clip_low" not in parameters or "clip_high" not in parameters:
        return None
    if inspect.Parameter.empty in (parameters["clip_low"].default, parameters["clip_high"].default):
        return None
    return 1.0 - parameters["clip_low"].default, 1.0 + parameters["clip_high"].default


__all__ = ["KLPenalty", "Method", "TrainingBatch", "call_by_name", "clip_bounds"]
