"""A policy and a batch as `rung.trust_region` sees them: all parameters in one vector, everything in micro-batches."""

from collections.abc import Iterator, Sequence

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from rung.aggregation import token_mean
from rung.kl import k3
from rung.masked import masked_sum, select
from rung.methods.method import Method, TrainingBatch
from rung.models.layout import Row
from rung.models.policy import Policy
from rung.training.micro import micro_batches, place
from rung.trust_region import Vector


class Region:
    """The surroundings of the old policy, as functions of the change of its parameters.

        loss(x) = Σ weights · token loss            kl(x) = mean over tokens of k3(old, policy)

    The divergence is KL(old‖policy), estimated on the batch's own tokens. Its Hessian at the old policy is the
    empirical Fisher information, mean over tokens of ∇log π ∇log πᵀ.

    Args:
        policy: at its old weights.
        rows: what the batch was sampled as.
        batch: the same rows, with the old log-probabilities.
        method: whose loss it is.
        budget: tokens that one micro-batch may hold.
    """

    def __init__(
        self, policy: Policy, rows: Sequence[Row], batch: TrainingBatch, method: Method, budget: int
    ) -> None:
        self.policy, self.rows, self.batch, self.method, self.budget = policy, rows, batch, method, budget
        self.parameters = [p for p in policy.parameters() if p.requires_grad]
        self.sizes = [p.numel() for p in self.parameters]
        self.start = [p.detach().clone() for p in self.parameters]
        self.weights = method.weights(batch.mask)
        self.per_token = token_mean(batch.mask)

    def gradient(self) -> Vector:
        """What was accumulated in the parameters, [n]."""
        return torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in self.parameters]
        )

    def move(self, step: Vector | None) -> None:
        """The old weights plus a step; None puts them back, bit by bit."""
        pieces = [None] * len(self.sizes) if step is None else step.split(self.sizes)
        with torch.no_grad():
            for parameter, start, piece in zip(self.parameters, self.start, pieces, strict=True):
                parameter.copy_(start if piece is None else start + piece.view_as(start))

    def _pieces(self) -> Iterator[tuple[list[Row], torch.Tensor]]:
        for piece in micro_batches(self.rows, self.budget, shared=self.policy.path == "grouped"):
            where = torch.tensor(piece)
            if bool(self.batch.mask[where].any()):
                yield [self.rows[i] for i in piece], where

    def _divergence(self, old: torch.Tensor, new: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        mask = self.batch.mask[where]
        estimate = k3(select(old, mask), select(new, mask))
        return masked_sum(self.per_token[where].to(estimate.dtype) * estimate, mask)

    def evaluate(self, step: Vector) -> tuple[float, float]:
        """Loss and divergence after a step; the weights stay there."""
        self.move(step if bool(step.any()) else None)
        loss = divergence = 0.0
        with torch.no_grad():
            for rows, where in self._pieces():
                output, micro = self.policy(rows), self.batch.rows(where)
                logprobs, entropy = (place(x, micro.mask.shape[1]) for x in (output.logprobs, output.entropy))
                loss += float(self.method.loss(logprobs, micro, self.weights[where], entropy=entropy))
                assert micro.old_logprobs is not None
                divergence += float(self._divergence(micro.old_logprobs, logprobs, where))
        return loss, divergence

    def product(self, vector: Vector) -> Vector:
        """F v by differentiating the divergence twice, at the weights as they stand.

        The fused attentions have no second derivative; the plain one has.
        """
        total = torch.zeros_like(vector)
        direction = [
            piece.view_as(p) for piece, p in zip(vector.split(self.sizes), self.parameters, strict=True)
        ]
        with sdpa_kernel(SDPBackend.MATH):
            for rows, where in self._pieces():
                logprobs = place(self.policy(rows).logprobs, self.batch.mask.shape[1])
                divergence = self._divergence(logprobs.detach(), logprobs, where)
                slope = torch.autograd.grad(
                    divergence, self.parameters, create_graph=True, materialize_grads=True
                )
                along = torch.stack([(g * d).sum() for g, d in zip(slope, direction, strict=True)]).sum()
                bent = torch.autograd.grad(along, self.parameters, materialize_grads=True)
                total += torch.cat([piece.flatten() for piece in bent])
        return total
