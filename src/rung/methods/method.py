"""The slots, and how they join: rewards → credit Ψ → per-token loss → weights → one number."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, cast

import torch

from rung.aggregation import Totals
from rung.batch import Rollouts
from rung.errors import InvalidInput
from rung.masked import masked_sum, require_same_shape, select
from rung.methods.penalty import KLPenalty
from rung.methods.training_batch import TrainingBatch
from rung.notation import PerToken, Scalar, TokenMask
from rung.trust_region import TrustRegion

Slot = Callable[..., torch.Tensor]
# What a slot asks for by name, and what has to be annotated to the rollouts for it.
ANNOTATIONS = {"old_logprobs": "old", "values": "values", "greedy_returns": "greedy"}


_remembered = lru_cache(maxsize=256)(inspect.signature)


def _signature(slot: Slot) -> inspect.Signature:
    """What a slot names. It is asked once a batch, so the answer is kept for slots that can be looked up."""
    try:
        return _remembered(slot)
    except TypeError:  # an object of somebody's that has no hash
        return inspect.signature(slot)


def _parameters(slot: Slot) -> set[str]:
    return set(_signature(slot).parameters)


def call_by_name(slot: Slot, available: Mapping[str, Any]) -> torch.Tensor:
    """Call a slot with those of the available values that its parameters name.

    Raises:
        InvalidInput: the slot asks for something that is not there.

    >>> call_by_name(lambda mask: mask.sum(), {"mask": torch.tensor([True]), "credit": None})
    tensor(1)
    """
    arguments: dict[str, Any] = {}
    for name, parameter in _signature(slot).parameters.items():
        if name in available:
            arguments[name] = available[name]
        elif parameter.default is inspect.Parameter.empty:
            raise InvalidInput(f"a slot asks for {name!r}; there is {', '.join(sorted(available))}")
    return slot(**arguments)


@dataclass(frozen=True)
class Method:
    """g = E[Σ_t Ψ_t ∇log π(a_t|s_t)], by four choices and, where a paper has them, three more.

    Slots are plain functions that name what they need, and get no more than that:

        credit       rewards, mask [B, T] (the KL in the reward already subtracted); returns, groups, valid [B];
                     values, old_logprobs, behaviour_logprobs [B, T]; bootstrap, greedy_returns [B]
                     → Ψ, [B] or [B, T]
        policy_loss  policy_logprobs, old_logprobs, behaviour_logprobs, credit, mask [B, T] → [B, T], minimised
        aggregation  mask, totals → weights [B, T]
        select       returns (as judged, no KL in them), groups, valid [B] → [B] bool: the rows that train
        correction   old_logprobs, behaviour_logprobs, mask [B, T] → weights [B, T] of the policy loss. The
                     aggregation's denominators are those before it

    `update` replaces the first-order step by a trust region. `entropy_coefficient` c adds −c·H(π(·|s_t)) to each
    token's loss: the entropy at the visited prefixes, not its effect on later ones.

    >>> from rung.methods import rloo
    >>> sorted(rloo().needs)
    ['reference']
    """

    name: str
    credit: Slot
    policy_loss: Slot
    aggregation: Slot
    kl: KLPenalty | None = None
    select: Slot | None = None
    correction: Slot | None = None
    update: TrustRegion | None = None
    entropy_coefficient: float = 0.0

    @cached_property
    def needs(self) -> frozenset[str]:
        """What must be annotated to the rollouts: "old" or "reference" log-probs, "values", "greedy" samples.

        "entropy" is not annotated but asked of the policy, with its gradient, when the loss is computed.
        """
        slots = [slot for slot in (self.credit, self.policy_loss, self.correction) if slot is not None]
        asked = set[str]().union(*(_parameters(slot) for slot in slots))
        found = {need for name, need in ANNOTATIONS.items() if name in asked}
        if self.update is not None:
            found.add("old")
        if self.entropy_coefficient:
            found.add("entropy")
        if self.kl is not None and self.kl.beta > 0:
            found |= {self.kl.against} | ({"old"} if self.kl.weight is not None else set())
        return frozenset(found)

    def token_rewards(self, rollouts: Rollouts) -> PerToken:
        """[B, T] r̂_t: the outcome at the last sampled token, minus β · KL where it is placed in the reward."""
        rewards = rollouts.rewards
        if self.kl is None or self.kl.placement != "reward" or self.kl.beta == 0:
            return rewards
        if rollouts.reference_logprobs is None:
            raise InvalidInput(
                f"method {self.name!r} has a KL in the reward: annotate reference log-probs first"
            )
        sampled_by = rollouts.behaviour_logprobs if rollouts.old_logprobs is None else rollouts.old_logprobs
        penalty = self.kl.in_reward(sampled_by, rollouts.reference_logprobs, rollouts.mask)
        return rewards - self.kl.beta * penalty

    def prepare(self, rollouts: Rollouts) -> TrainingBatch:
        """Credit on the whole rollout batch, before rows are dealt to mini-batches. Detached here, once.

        Old and reference log-probabilities are detached as well: a live old one would cancel the ratio's gradient.
        """
        valid = rollouts.valid
        if self.select is not None:
            judged = {"returns": rollouts.outcome_rewards, "groups": rollouts.groups, "valid": valid}
            valid = valid & call_by_name(self.select, judged)
        mask = rollouts.mask & valid.unsqueeze(1)
        rewards = self.token_rewards(rollouts).detach()
        logprobs = {
            "old_logprobs": _masked(_detached(rollouts.old_logprobs), mask),
            "behaviour_logprobs": _masked(_detached(rollouts.behaviour_logprobs), mask),
        }
        available = {
            "rewards": rewards,
            "mask": mask,
            "returns": masked_sum(rewards, mask, dim=1),
            "groups": rollouts.groups,
            "valid": valid,
            "values": _masked(_detached(rollouts.values), mask),
            "bootstrap": rollouts.bootstrap,
            "greedy_returns": rollouts.greedy_rewards,
            **logprobs,
        }
        credit = self._call(self.credit, available)
        if credit.ndim == 1:
            credit = credit.unsqueeze(1).expand(mask.shape)
        correction = None
        if self.correction is not None:
            correction = select(self._call(self.correction, {"mask": mask, **logprobs}).detach(), mask)
        return TrainingBatch(
            mask,
            select(credit.detach(), mask),
            _detached(rollouts.old_logprobs),
            _detached(rollouts.reference_logprobs),
            _detached(rollouts.behaviour_logprobs),
            correction,
        )

    def _call(self, slot: Slot, available: Mapping[str, Any]) -> torch.Tensor:
        """Call a slot; what it needs and nobody annotated is named. `bootstrap` alone may be absent: then it is 0."""
        for name in sorted(_parameters(slot) & set(available)):
            if available[name] is None and name != "bootstrap":
                raise InvalidInput(
                    f"method {self.name!r} asks for {name}: annotate them to the rollouts first"
                )
        return call_by_name(slot, available)

    def weights(self, mask: TokenMask, totals: Totals | None = None) -> PerToken:
        """[B, T] aggregation weights over the rows of one optimizer step."""
        return call_by_name(self.aggregation, {"mask": mask, "totals": totals})

    def loss(
        self,
        policy_logprobs: PerToken,
        batch: TrainingBatch,
        weights: PerToken,
        *,
        entropy: PerToken | None = None,
    ) -> Scalar:
        """Σ weights · (correction · policy loss + β · KL in the loss − c · entropy). Adds up over micro-batches.

        What stands off the mask is selected away before any slot sees it: after exp() it would be too late for
        the gradient.

        Args:
            policy_logprobs: [B, T], nats. Gradient flows.
            batch: the same rows.
            weights: the same rows of `weights`, made over the whole optimizer step.
            entropy: [B, T] of the policy at each token, nats; gradient flows. Only where the method has a bonus.

        Returns:
            A scalar to minimise.

        Raises:
            InvalidInput: shapes differ, or something that the method needs was not annotated.
        """
        require_same_shape(mask=batch.mask, weights=weights)
        policy_logprobs = select(policy_logprobs, batch.mask)
        available = {
            "policy_logprobs": policy_logprobs,
            "credit": batch.credit,
            "mask": batch.mask,
            "old_logprobs": _masked(batch.old_logprobs, batch.mask),
            "behaviour_logprobs": _masked(batch.behaviour_logprobs, batch.mask),
        }
        token_loss = self._call(self.policy_loss, available)
        if self.correction is not None:
            if batch.correction is None:
                raise InvalidInput(f"method {self.name!r} has a correction: prepare the batch with it")
            token_loss = select(batch.correction, batch.mask) * token_loss
        if self.kl is not None and self.kl.placement == "loss" and self.kl.beta > 0:
            token_loss = token_loss + self.kl.beta * self._divergence(self.kl, policy_logprobs, batch)
        if self.entropy_coefficient:
            if entropy is None:
                raise InvalidInput(f"method {self.name!r} has an entropy bonus: give the policy's entropy")
            token_loss = token_loss - self.entropy_coefficient * select(entropy, batch.mask)
        return masked_sum(weights * select(token_loss, batch.mask), batch.mask)

    def _divergence(self, kl: KLPenalty, policy_logprobs: PerToken, batch: TrainingBatch) -> PerToken:
        other = batch.reference_logprobs if kl.against == "reference" else batch.old_logprobs
        if other is None:
            raise InvalidInput(
                f"method {self.name!r} has a KL in the loss: annotate {kl.against} log-probs first"
            )
        old = _masked(batch.old_logprobs, batch.mask)
        return kl.in_loss(policy_logprobs, select(other, batch.mask), old, batch.mask)

    def after(self, rollouts: Rollouts, kl: float | None = None) -> "Method":
        """The method for the next rollout batch: what a baseline or a KL coefficient learned from this one.

        Args:
            rollouts: the batch that was trained on, annotated.
            kl: its mean divergence in the direction that `self.kl` penalises, in the units of its controller's
                target (nats per sequence from the reference, per token from the old policy); None if unknown.
        """
        method = self
        if hasattr(self.credit, "after"):
            returns = masked_sum(self.token_rewards(rollouts), rollouts.mask, dim=1).detach()
            method = replace(method, credit=self.credit.after(returns, rollouts.valid))
        if self.kl is not None and kl is not None:
            method = replace(method, kl=self.kl.after(kl, int(rollouts.valid.sum())))
        return method

    @property
    def state(self) -> dict[str, float]:
        """What `after` changes, as numbers for a checkpoint; empty for most methods."""
        state: dict[str, float] = {}
        credit: Any = self.credit
        if hasattr(credit, "after"):
            state["baseline"] = credit.value
        if self.kl is not None and not isinstance(self.kl.coefficient, float | int):
            state["kl_coefficient"] = self.kl.beta
        return state

    def with_state(self, state: Mapping[str, float]) -> "Method":
        """The method as it was when `state` was taken."""
        method, credit = self, cast(Any, self.credit)
        if "baseline" in state and hasattr(credit, "after"):
            method = replace(method, credit=replace(credit, value=state["baseline"]))
        if "kl_coefficient" in state and self.kl is not None:
            method = replace(method, kl=self.kl.with_coefficient(state["kl_coefficient"]))
        return method


def _detached(values: PerToken | None) -> PerToken | None:
    return None if values is None else values.detach()


def _masked(values: PerToken | None, mask: TokenMask) -> PerToken | None:
    return None if values is None else select(values, mask)


def clip_bounds(method: Method) -> tuple[float, float] | None:
    """(1 − ε_low, 1 + ε_high) of a method whose policy loss clips token ratios, else None. For the clip fraction."""
    parameters = inspect.signature(method.policy_loss).parameters
    if not {"clip_low", "clip_high"} <= set(parameters) or "mask" in parameters:
        return None
    if inspect.Parameter.empty in (parameters["clip_low"].default, parameters["clip_high"].default):
        return None
    return 1.0 - parameters["clip_low"].default, 1.0 + parameters["clip_high"].default


__all__ = ["KLPenalty", "Method", "TrainingBatch", "call_by_name", "clip_bounds"]
