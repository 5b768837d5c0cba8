"""One optimizer step of a method on a batch, as numbers that may not depend on how the batch is written down."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import torch

from rung.aggregation import constant_length, sequence_mean, sequence_sum, token_mean
from rung.batch import Rollouts
from rung.credit import group_standardized, leave_one_out, reward_to_go
from rung.kl import k1, k2, k3
from rung.methods import CATALOGUE, KLPenalty, Method
from rung.policy_losses import clipped_loss, importance_weighted_loss, policy_gradient_loss
from tests.methods.helpers import build

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
# The other cells of a penalty: of whole sequences, against the old policy, under an importance weight.
OTHER_PENALTIES = {
    "sequence k1 in the reward": KLPenalty(k1, "reward", 0.3, level="sequence"),
    "sequence k2 in the loss": KLPenalty(k2, "loss", 0.3, level="sequence"),
    "k3 against old": KLPenalty(k3, "loss", 0.3, against="old"),
    "live k1": KLPenalty(k1, "loss", 0.3, weight="live"),
    "detached sequence k3": KLPenalty(k3, "loss", 0.3, level="sequence", weight="detached"),
}
# Wide enough that the sequences of a random policy are not all clipped.
SETTINGS = {"gspo": {"clip_low": 0.6, "clip_high": 2.0}}

# Every entry of the catalogue; every aggregation with every policy loss and another credit and penalty each.
ENTRIES = [build(name, kl_coefficient=0.3, **SETTINGS.get(name, {})) for name in CATALOGUE]
METHODS = [
    *ENTRIES,
    *(
        Method(
            f"{loss.__name__} with {name}",
            (reward_to_go, partial(group_standardized, correction=0), group_standardized)[i],
            loss,
            aggregation,
            PENALTIES[(i + j) % 3],
        )
        for i, loss in enumerate(LOSSES)
        for j, (name, aggregation) in enumerate(AGGREGATIONS.items())
    ),
    *(
        Method(name, leave_one_out, policy_gradient_loss, sequence_mean, penalty)
        for name, penalty in OTHER_PENALTIES.items()
    ),
]
NAMES = [method.name for method in METHODS]

PER_TOKEN = ["mask", "behaviour_logprobs", "old_logprobs", "reference_logprobs", "values"]


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

    def spread(self, columns: Sequence[Sequence[int]], width: int, junk: float) -> "Sample":
        """The counted tokens of each row in these columns, in order; junk and mask False in all others.

        One thing done to a row covers many: padding on either side, a tool's tokens in between, and their removal.
        """
        batch, index = self.rollouts, torch.zeros(len(columns), width, dtype=torch.int64)
        taken = torch.zeros(len(columns), width, dtype=torch.bool)
        for row, chosen in enumerate(columns):
            (counted,) = torch.where(batch.mask[row])
            assert len(chosen) == len(counted)
            index[row, list(chosen)] = counted
            taken[row, list(chosen)] = True

        def moved(values: torch.Tensor) -> torch.Tensor:
            return values.gather(1, index).masked_fill(~taken, junk)

        per_token = {name: moved(getattr(batch, name)) for name in PER_TOKEN if name != "mask"}
        wide = index.unsqueeze(2).expand(-1, -1, self.features.shape[2])
        features = self.features.gather(1, wide)
        # A model gives numbers off the mask too; here they are junk by themselves, without parameters behind them.
        filler = junk if abs(junk) < float("inf") else 1e3
        return Sample(
            replace(batch, mask=taken, **per_token), features.masked_fill(~taken.unsqueeze(2), filler)
        )

    def compact(self) -> "Sample":
        """Every counted token at the front of its row."""
        lengths = self.rollouts.mask.sum(1).tolist()
        return self.spread([range(length) for length in lengths], max(lengths), 0.0)


def sample(rollouts: Rollouts, seed: int = 1) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    shape = (*rollouts.mask.shape, PARAMETERS)
    return Sample(rollouts, torch.randn(shape, generator=generator, dtype=torch.float64))


def policy_logprobs(given: Sample, theta: torch.Tensor) -> torch.Tensor:
    """Some smooth function of shared parameters, negative as log-probabilities are, near the old ones."""
    return -torch.nn.functional.softplus(given.features @ theta + 0.5)


def entropies(given: Sample, theta: torch.Tensor) -> torch.Tensor:
    """Another one, positive as entropies are."""
    return torch.nn.functional.softplus(given.features @ theta.flip(0) - 0.3)


@dataclass(frozen=True)
class Step:
    """Credit [B, T], loss and the gradient of the shared parameters [n]."""

    credit: torch.Tensor
    loss: torch.Tensor
    gradient: torch.Tensor


def parameters() -> torch.Tensor:
    return torch.linspace(-0.4, 0.6, PARAMETERS, dtype=torch.float64).requires_grad_()


def piece_of_loss(
    method: Method, given: Sample, prepared: object, weights: torch.Tensor, theta: torch.Tensor
) -> torch.Tensor:
    """The loss of these rows, with the policy's log-probabilities and entropies at θ."""
    logprobs, entropy = policy_logprobs(given, theta), entropies(given, theta)
    return method.loss(logprobs, prepared, weights, entropy=entropy)  # type: ignore[arg-type]


def step(method: Method, given: Sample, pieces: Iterable[torch.Tensor] | None = None) -> Step:
    """Credit and weights on the whole; loss and backward piece by piece, gradients only added."""
    theta = parameters()
    batch = method.prepare(given.rollouts)
    weights = method.weights(batch.mask)
    everything = torch.arange(len(batch.mask))
    total = torch.zeros((), dtype=torch.float64)
    for piece in [everything] if pieces is None else pieces:
        loss = piece_of_loss(method, given.rows(piece), batch.rows(piece), weights[piece], theta)
        loss.backward()
        total = total + loss.detach()
    assert theta.grad is not None
    assert theta.grad.abs().max().item() > 1e-3  # so that equality with it means something
    return Step(batch.credit, total, theta.grad)
