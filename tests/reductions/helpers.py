"""Batches on which methods are compared, and the gradient that they are compared by."""

from dataclasses import replace

import pytest
import torch

from tests.batches import annotated, gradient, ragged, rollouts
from tests.methods.helpers import loss_of


def slope(method, batch, policy=None):
    """∂ loss/∂ log π, at the old policy unless given."""
    policy = (batch.old_logprobs if policy is None else policy).clone().requires_grad_()
    return gradient(loss_of(method, policy, method.prepare(batch)), policy)


def moved(batch):
    """A policy some updates after the old one: ratios between 0.4 and 2.7."""
    generator = torch.Generator().manual_seed(5)
    step = 2.0 * torch.rand(batch.mask.shape, generator=generator, dtype=torch.float64) - 1.0
    return torch.where(batch.mask, batch.old_logprobs + step, 0.0)


def equal_groups():
    """Three groups of three, lengths 1 to 3, and log-probs of the irregular batch; all annotated, sampler = old."""
    masks = [[1, 1, 1], [1], [1, 1], [1, 0, 1], [1, 1], [1], [1], [1, 1, 1], [0, 1]]
    batch = rollouts(masks, [1.0, 0.0, -0.5, 2.0, 2.0, 0.3, 0.0, 0.0, 4.0], [2, 0, 1, 0, 1, 2, 0, 2, 1])
    other = ragged()
    old = other.old_logprobs[:9, : batch.mask.shape[1]] - 0.1
    reference = other.reference_logprobs[:9, : batch.mask.shape[1]] - 0.2
    values = other.values[:9, : batch.mask.shape[1]]
    return annotated(
        replace(batch, behaviour_logprobs=old), old_logprobs=old, reference_logprobs=reference, values=values
    )


BATCHES = pytest.mark.parametrize("batch", [ragged(), equal_groups()], ids=["ragged", "equal groups"])
