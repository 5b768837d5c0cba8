"""Critics for training a table: one that knows, and one that learns."""

from dataclasses import dataclass, replace

import torch

from rung.critic import value_loss
from rung.exact import SoftmaxTable
from rung.methods import TrainingBatch
from tests.enumeration import exact_critic, values
from tests.methods.trees import Tree


@dataclass(frozen=True)
class ExactCritic:
    """V of the policy, computed anew before each batch, with the KL to go where it is in the reward."""

    kl_coefficient: float

    def values(self, tree: Tree, policy: SoftmaxTable) -> torch.Tensor:
        return values(tree.problem, exact_critic(tree.problem, policy, kl_coefficient=self.kl_coefficient))

    def learned(
        self, tree: Tree, rows: torch.Tensor, batch: TrainingBatch, weights: torch.Tensor
    ) -> "ExactCritic":
        return self


@dataclass(frozen=True)
class LearnedCritic:
    """A number for each prefix, which follows the mean of credit + V by a step of `value_loss` with each batch.

    On policy that is the target of GAE, and of V-trace with λ = 1. The step of a prefix is divided by how often it is
    visited, as the policy's is.
    """

    table: torch.Tensor
    rate: float = 0.5

    def values(self, tree: Tree, policy: SoftmaxTable) -> torch.Tensor:
        del policy
        return tree.by_token(self.table)

    def learned(
        self, tree: Tree, rows: torch.Tensor, batch: TrainingBatch, weights: torch.Tensor
    ) -> "LearnedCritic":
        live = self.table.clone().requires_grad_()
        said = tree.by_token(live)[rows]
        (slope,) = torch.autograd.grad(value_loss(said, batch.credit + said.detach(), weights), live)
        visits = torch.zeros_like(live).index_put((tree.places[0][rows],), weights, accumulate=True)
        return replace(self, table=self.table - self.rate * slope / visits.clamp(min=1e-300))


Critic = ExactCritic | LearnedCritic
