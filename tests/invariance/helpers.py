"""One optimizer step of a method on a batch, as numbers that may not depend on how the batch is written down."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import partial

import torch

from rung.aggregation import constant_length, sequence_mean, sequence_sum, token_mean
from rung.batch import Rollouts
from rung.credit import group_standardized, reward_to_go
from rung.kl import k1, k2, k3
from rung.methods import CATALOGUE, KLPenalty, Method
from rung.policy_losses import clipped_loss, importance_weighted_loss, policy_gradient_loss

PARAMETERS = 5
LOSSES = [policy_gradient_loss, importance_weighted_loss, clipped_loss]
AGGREGATIONS = {
    "sequence_sum": sequence_sum,
    "sequence_mean": sequence_mean,
    "token_mean": token_mean,
    "constant_length": partial(constant_length, length=6),
}
PENALTIES = [
    KLPenalty(k1, placement="reward", coefficient=0.3),
    KLPenalty(k2, placement="loss", coefficient=0.3),
    KLPenalty(k3, placement="loss", coefficient=0.3),
]

# Every entry of the catalogue, and every aggregation with every policy loss and another credit and penalty each.
METHODS = [make(kl_coefficient=0.3) for make in CATALOGUE.values()] + [
    Method(
        f"{loss.__name__} with {name}",
        (reward_to_go, partial(group_standardized, correction=0), group_standardized)[i],
        loss,
        aggregation,
        PENALTIES[(i + j) % 3],
    )
    for i, loss in enumerate(LOSSES)
    for j, (name, aggregation) in enumerate(AGGREGATIONS.items())
]
NAMES = [method.name for method in METHODS]

PER_TOKEN = ["mask", "behaviour_logprobs", "old_logprobs", "reference_logprobs"]


@dataclass(frozen=True)
class Sample:
    """A batch and what the model would compute of it: features [B, T, n] of each token."""

    rollouts: Rollouts
    features: torch.Tensor

    def rows(self, index: torch.Tensor) -> "Sample":
        """These rows, in this order."""
        batch = self.rollouts
        chosen = {
            field.name: getattr(batch, field.name)[index]
            for field in fields(batch)
            if isinstance(getattr(batch, field.name), torch.Tensor)
        }
        order = index.tolist()
        return Sample(
            replace(
                batch,
                completions=tuple(batch.completions[i] for i in order),
                outcomes=tuple(batch.outcomes[i] for i in order),
                **chosen,
            ),
            self.features[index],
        )

    def padded(self, columns: int, junk: float) -> "Sample":
        """The same rows in wider tensors, junk in the new columns."""
        wider = {
            name: torch.nn.functional.pad(
                getattr(self.rollouts, name), (0, columns), value=False if name == "mask" else junk
            )
            for name in PER_TOKEN
        }
        return Sample(
            replace(self.rollouts, **wider),
            torch.nn.functional.pad(self.features, (0, 0, 0, columns), value=junk),
        )


def sample(rollouts: Rollouts, seed: int = 1) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    shape = (*rollouts.mask.shape, PARAMETERS)
    return Sample(rollouts, torch.randn(shape, generator=generator, dtype=torch.float64))


def policy_logprobs(given: Sample, theta: torch.Tensor) -> torch.Tensor:
    """Some smooth function of shared parameters, negative as log-probabilities are, near the old ones."""
    return -torch.nn.functional.softplus(given.features @ theta + 0.5)


@dataclass(frozen=True)
class Step:
    """Credit [B, T], loss and the gradient of the shared parameters [n]."""

    credit: torch.Tensor
    loss: torch.Tensor
    gradient: torch.Tensor


def step(method: Method, given: Sample, pieces: Iterable[torch.Tensor] | None = None) -> Step:
    """Credit and weights on the whole; loss and backward piece by piece, gradients only added."""
    theta = torch.linspace(-0.4, 0.6, PARAMETERS, dtype=torch.float64).requires_grad_()
    batch = method.prepare(given.rollouts)
    weights = method.weights(batch.mask)
    everything = torch.arange(len(batch.mask))
    total = torch.zeros((), dtype=torch.float64)
    for piece in [everything] if pieces is None else pieces:
        loss = method.loss(policy_logprobs(given.rows(piece), theta), batch.rows(piece), weights[piece])
        loss.backward()
        total = total + loss.detach()
    assert theta.grad is not None
    assert theta.grad.abs().max().item() > 1e-3  # so that equality with it means something
    return Step(batch.credit, total, theta.grad)
