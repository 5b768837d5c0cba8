"""From annotated rollouts to new weights.

Weights of the loss are made once per optimizer step, over all of its rows, before rows are dealt to micro-batches;
micro-batches only add. So no split changes the gradient.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from rung.batch import Rollouts
from rung.errors import SamplerMismatch
from rung.masked import select
from rung.methods.method import Method, TrainingBatch, clip_bounds
from rung.models.layout import Row
from rung.models.policy import Policy
from rung.notation import PerToken
from rung.training.config import Recipe
from rung.training.optimization import build_optimizer, guarded_step, learning_rate


def rows_of(rollouts: Rollouts) -> list[Row]:
    """What the policy reads of a batch."""
    return [Row(c.prompt_ids, c.token_ids) for c in rollouts.completions]


def micro_batches(rows: Sequence[Row], budget: int, *, shared: bool) -> Iterator[list[int]]:
    """Row numbers in pieces of at most `budget` tokens, rows of one prompt together. A longer row stands alone.

    `shared` says that the rows of a piece compute a common prompt once, so that it counts once.
    """
    order = sorted(range(len(rows)), key=lambda i: (rows[i].prompt_ids, i))
    piece: list[int] = []
    size, prompt = 0, None
    for i in order:
        is_new = not shared or rows[i].prompt_ids != prompt
        cost = len(rows[i].token_ids) + (len(rows[i].prompt_ids) if is_new else 0)
        if piece and size + cost > budget:
            yield piece
            piece, size = [], 0
            cost = len(rows[i].token_ids) + len(rows[i].prompt_ids)
        piece.append(i)
        size += cost
        prompt = rows[i].prompt_ids
    if piece:
        yield piece


def place(values: PerToken, length: int) -> PerToken:
    """[b, t] widened with zeros to [b, length]: a micro-batch may be shorter than its batch."""
    return torch.nn.functional.pad(values, (0, length - values.shape[1]))


@torch.no_grad()
def logprobs_of(policy: Policy, rows: Sequence[Row], budget: int) -> PerToken:
    """[B, T] log-probabilities without gradient, float64, in micro-batches."""
    length = max(len(row.token_ids) for row in rows)
    out = torch.zeros(len(rows), length, dtype=torch.float64)
    for piece in micro_batches(rows, budget, shared=policy.path == "grouped"):
        out[piece] = place(policy([rows[i] for i in piece]).logprobs.double(), length)
    return out


@dataclass(frozen=True)
class SamplerComparison:
    """log π_trainer − log π_sampler of the sampled tokens, nats: what should be rounding alone."""

    largest: float
    p99: float
    mean: float
    mean_absolute: float

    @classmethod
    def of(cls, trainer: PerToken, sampler: PerToken, mask: torch.Tensor) -> "SamplerComparison":
        """Compare two [B, T] tensors over the mask."""
        difference = (trainer - sampler)[mask].double()
        if difference.numel() == 0:
            return cls(0.0, 0.0, 0.0, 0.0)
        size = difference.abs()
        return cls(
            float(size.max()), float(size.quantile(0.99)), float(difference.mean()), float(size.mean())
        )

    def check(self, tolerance: float) -> None:
        """Refuse to train on tokens whose probability the trainer sees otherwise.

        Raises:
            SamplerMismatch: the largest difference exceeds the tolerance.
        """
        if not self.largest <= tolerance:
            raise SamplerMismatch(
                f"sampler and trainer disagree on the log-probabilities of the same tokens: max {self.largest:.3g}, "
                f"99th percentile {self.p99:.3g}, mean {self.mean:+.3g} nats, where rollout.mismatch_tolerance allows "
                f"{tolerance:.3g}. Importance ratios and KL would be wrong from the first step. Usual causes: another "
                "temperature in one of the two, tokens paired with their neighbour's log-probability, weights that did "
                "not reach the sampler, another precision. If it is rounding (a large model), raise the tolerance"
            )


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
        batch = method.prepare(rollouts)
        rows = rows_of(rollouts)
        tally = _Tally(clip_bounds(method))
        if rollouts.old_logprobs is not None:
            tally.compare(rollouts.old_logprobs, rollouts.behaviour_logprobs, batch.mask)
        for index in self._updates(len(rows), step):
            if not bool(batch.mask[index].any()):
                continue  # nothing to learn from: no update, so that momentum and weight decay move nothing either
            loss = self._accumulate(rows, batch, method, index, rollouts.behaviour_logprobs, tally)
            rate = learning_rate(self.updates, self.recipe.updates, self.recipe.optimizer)
            norm = guarded_step(
                self.optimizer, loss, self.recipe.optimizer.max_grad_norm, rate, self.updates + 1
            )
            self.updates += 1
            tally.update(loss, norm, rate)
        return tally.metrics() | {"updates": self.updates}

    def _accumulate(
        self,
        rows: list[Row],
        batch: TrainingBatch,
        method: Method,
        index: torch.Tensor,
        behaviour: PerToken,
        tally: "_Tally",
    ) -> float:
        """Add up the gradient of one optimizer step over its micro-batches; returns the loss."""
        part = batch.rows(index)
        weights = method.weights(part.mask)
        chosen = [rows[i] for i in index.tolist()]
        total = 0.0
        for piece in micro_batches(chosen, self.budget, shared=self.policy.path == "grouped"):
            output = self.policy([chosen[i] for i in piece])
            where = torch.tensor(piece)
            micro = part.rows(where)
            logprobs = place(output.logprobs, micro.mask.shape[1])
            loss = method.loss(logprobs, micro, weights[where])
            loss.backward()
            total += float(loss.detach())
            tally.tokens(
                logprobs.detach().double(),
                place(output.entropy, micro.mask.shape[1]),
                behaviour[index[where]],
                micro,
            )
        return total


class _Tally:
    """What is logged of a step: sums over all mini-batches, masked, then divided once."""

    def __init__(self, bounds: tuple[float, float] | None) -> None:
        self.bounds = bounds
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.rate = 0.0
        self.counted = 0
        self.entropy = 0.0
        self.clipped = 0.0
        self.log_ratios: list[torch.Tensor] = []
        self.compared = False

    def compare(self, own: PerToken, behaviour: PerToken, mask: torch.Tensor) -> None:
        """Take the sampler's comparison from log-probs of the whole batch, where the first update sees but a part."""
        self.log_ratios = [(own - behaviour)[mask]]
        self.compared = True

    def tokens(
        self, logprobs: PerToken, entropy: PerToken, behaviour: PerToken, batch: TrainingBatch
    ) -> None:
        """One micro-batch."""
        self.counted += int(batch.mask.sum())
        self.entropy += float(select(entropy.double(), batch.mask).sum())
        if not self.compared:
            self.log_ratios.append((logprobs - behaviour)[batch.mask])
        if self.bounds is not None and batch.old_logprobs is not None:
            ratio = (logprobs - batch.old_logprobs).exp()
            up = (batch.credit > 0) & (ratio > self.bounds[1])
            down = (batch.credit < 0) & (ratio < self.bounds[0])
            self.clipped += float(((up | down) & batch.mask).sum())

    def update(self, loss: float, norm: float, rate: float) -> None:
        """One optimizer step. After it the trainer is no longer the policy that sampled."""
        self.compared = True
        self.losses.append(loss)
        self.norms.append(norm)
        self.rate = rate

    def metrics(self) -> dict[str, float]:
        """Numbers of the step."""
        ratios = torch.cat(self.log_ratios) if self.log_ratios else torch.zeros(0)
        compared = SamplerComparison.of(
            ratios, torch.zeros_like(ratios), torch.ones_like(ratios, dtype=torch.bool)
        )
        out = {
            "loss": sum(self.losses) / max(len(self.losses), 1),
            "grad_norm": sum(self.norms) / max(len(self.norms), 1),
            "learning_rate": self.rate,
            "entropy": self.entropy / max(self.counted, 1),
            "sampler_logratio_max": compared.largest,
            "sampler_logratio_p99": compared.p99,
            "sampler_logratio_mean": compared.mean,
        }
        if self.bounds is not None:
            out["clip_fraction"] = self.clipped / max(self.counted, 1)
        return out
