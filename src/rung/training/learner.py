"""From annotated rollouts to new weights.

Weights of the loss are made once per optimizer step, over all of its rows, before rows are dealt to micro-batches;
micro-batches only add. So no split changes the gradient.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from rung.batch import Rollouts
from rung.kl import k3
from rung.masked import masked_mean, select
from rung.methods.method import Method, TrainingBatch
from rung.models.layout import Row
from rung.models.policy import Policy
from rung.training.config import Recipe
from rung.training.micro import SamplerComparison, logprobs_of, micro_batches, place, rows_of
from rung.training.optimization import build_optimizer, guarded_step, learning_rate, require_finite
from rung.training.region import Region
from rung.training.tally import Tally, tally_for
from rung.trust_region import TrustRegion, trust_region_step


class Learner:
    """A policy, its frozen reference if the method needs one, and the optimizer."""

    def __init__(self, policy: Policy, reference: Policy | None, recipe: Recipe) -> None:
        self.policy = policy
        self.reference = reference
        self.recipe = recipe
        self.optimizer = build_optimizer(policy.parameters(), recipe.optimizer)
        self.updates = 0

    @property
    def budget(self) -> int:
        """Tokens that one micro-batch may hold."""
        return self.recipe.training.micro_batch_tokens

    def annotate(self, rollouts: Rollouts, needs: frozenset[str]) -> Rollouts:
        """Add what a method needs: "old" and "reference" log-probabilities, both without gradient."""
        rows = rows_of(rollouts)
        if "old" in needs:
            rollouts = replace(rollouts, old_logprobs=logprobs_of(self.policy, rows, self.budget))
        if "reference" in needs and self.reference is not None:
            rollouts = replace(rollouts, reference_logprobs=logprobs_of(self.reference, rows, self.budget))
        return rollouts

    def compare_sampler(self, rollouts: Rollouts) -> SamplerComparison:
        """The trainer's own log-probabilities of what was just sampled, against the sampler's."""
        own = logprobs_of(self.policy, rows_of(rollouts), self.budget)
        return SamplerComparison.of(own, rollouts.behaviour_logprobs, rollouts.mask)

    def _updates(self, number: int, step: int) -> Iterator[torch.Tensor]:
        """Row numbers of each optimizer step of this rollout batch: shuffled per epoch, split into mini-batches."""
        settings = self.recipe.training
        for epoch in range(settings.epochs):
            if settings.mini_batches == 1:
                yield torch.arange(number)
                continue
            generator = np.random.Generator(
                np.random.Philox(key=[self.recipe.seed, step * 1_000_003 + epoch])
            )
            for part in np.array_split(generator.permutation(number), settings.mini_batches):
                yield torch.from_numpy(np.sort(part))

    def step(self, rollouts: Rollouts, method: Method, step: int) -> dict[str, float]:
        """All updates on one rollout batch; credit is made on the whole of it, old log-probs stay frozen."""
        batch, rows, tally = method.prepare(rollouts), rows_of(rollouts), tally_for(method)
        if rollouts.old_logprobs is not None:
            tally.compare(rollouts.old_logprobs, rollouts.behaviour_logprobs, batch.mask)
        if method.update is None:
            found = self._descend(rows, batch, method, step, tally)
        else:
            found = self._move_within(rows, batch, method, method.update, tally)
        return tally.metrics() | found | {"updates": self.updates}

    def _descend(
        self, rows: list[Row], batch: TrainingBatch, method: Method, step: int, tally: Tally
    ) -> dict[str, float]:
        """First-order updates, and afterwards how far they went, if a coefficient is steered by that."""
        before = self.updates
        for index in self._updates(len(rows), step):
            if not bool(batch.mask[index].any()):
                continue  # nothing to learn from: no update, so that momentum and weight decay move nothing either
            loss = self._accumulate(rows, batch, method, index, tally)
            rate = learning_rate(self.updates, self.recipe.updates, self.recipe.optimizer)
            norm = guarded_step(
                self.optimizer, loss, self.recipe.optimizer.max_grad_norm, rate, self.updates + 1
            )
            self.updates += 1
            tally.update(loss, norm, rate)
        steered = method.kl is not None and method.kl.against == "old" and "kl_coefficient" in method.state
        if not steered or self.updates == before or batch.old_logprobs is None:
            return {}
        own = logprobs_of(self.policy, rows, self.budget)
        moved = k3(select(batch.old_logprobs, batch.mask), select(own, batch.mask))
        return {"kl_old_policy": float(masked_mean(moved, batch.mask))}

    def _move_within(
        self, rows: list[Row], batch: TrainingBatch, method: Method, settings: TrustRegion, tally: Tally
    ) -> dict[str, float]:
        """The one update of a trust region. It is no update if no step was accepted: then the weights stay."""
        if not bool(batch.mask.any()):
            return {"kl_old_policy": 0.0, "backtracks": 0, "accepted": 0}
        loss = self._accumulate(rows, batch, method, torch.arange(len(rows)), tally)
        region = Region(self.policy, rows, batch, method, self.budget)
        gradient = region.gradient()
        self.optimizer.zero_grad(set_to_none=True)
        norm = float(gradient.norm())
        require_finite(loss, norm, self.updates + 1, "a lower max_kl")
        taken = trust_region_step(gradient, region.product, region.evaluate, settings)
        self.updates += taken.accepted
        tally.update(loss, norm, None)
        return {"kl_old_policy": taken.kl, "backtracks": taken.backtracks, "accepted": int(taken.accepted)}

    def _accumulate(
        self, rows: list[Row], batch: TrainingBatch, method: Method, index: torch.Tensor, tally: Tally
    ) -> float:
        """Add up the gradient of one optimizer step over its micro-batches; returns the loss."""
        part = batch.rows(index)
        weights = method.weights(part.mask)
        chosen = [rows[i] for i in index.tolist()]
        asked = {"live_entropy": True} if "entropy" in method.needs else {}
        total = 0.0
        for piece in micro_batches(chosen, self.budget, shared=self.policy.path == "grouped"):
            output = self.policy([chosen[i] for i in piece], **asked)
            where = torch.tensor(piece)
            micro = part.rows(where)
            logprobs, entropy = (place(x, micro.mask.shape[1]) for x in (output.logprobs, output.entropy))
            loss = method.loss(logprobs, micro, weights[where], entropy=entropy)
            loss.backward()
            total += float(loss.detach())
            tally.tokens(logprobs.detach().double(), entropy.detach(), micro)
        return total
