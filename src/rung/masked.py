"""Sums, means and variances over the entries that count.

Entries off the mask are *selected away*, never multiplied by zero: NaN × 0 is NaN. An empty mask gives 0, not NaN.

A batch that lies in several processes has one mean and one variance, not several: each process takes `statistics` of
its own part, three numbers are exchanged, and each merges all of them. No function here knows about processes.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from rung.errors import InvalidInput
from rung.notation import BOOKKEEPING, TokenMask


def require_same_shape(**tensors: torch.Tensor) -> None:
    """Refuse to broadcast: [B, 1] beside [B] would become [B, B], a number that looks right and is not.

    Raises:
        InvalidInput: two of the named tensors differ in shape.

    >>> require_same_shape(credit=torch.zeros(2, 3), policy_logprobs=torch.zeros(2, 3))
    """
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise InvalidInput(f"these must have the same shape: {shapes}")


def select(x: torch.Tensor, mask: TokenMask) -> torch.Tensor:
    """x where the mask counts, 0 elsewhere; neither NaN nor its gradient leaks from the other entries.

    Raises:
        InvalidInput: the mask is not boolean (advantages passed as a mask train silently) or has another shape.

    >>> select(torch.tensor([1.0, float("nan")]), torch.tensor([True, False]))
    tensor([1., 0.])
    """
    if mask.dtype != torch.bool:
        raise InvalidInput(f"the mask must be boolean (True counts), got {mask.dtype}")
    if mask.shape != x.shape:
        raise InvalidInput(f"mask {tuple(mask.shape)} and values {tuple(x.shape)} must have the same shape")
    return torch.where(mask, x, x.new_zeros(()))


def masked_sum(x: torch.Tensor, mask: TokenMask, dim: int | None = None) -> torch.Tensor:
    """Σ x over the entries that count.

    >>> masked_sum(torch.tensor([[1.0, 5.0], [2.0, 3.0]]), torch.tensor([[True, False], [True, True]]), dim=1)
    tensor([1., 5.])
    """
    kept = select(x, mask)
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(x: torch.Tensor, mask: TokenMask, dim: int | None = None) -> torch.Tensor:
    """Σ x / n over the n entries that count; 0 where n = 0.

    >>> masked_mean(torch.tensor([0.2, 0.4, 5.0]), torch.tensor([True, True, False]))
    tensor(0.3000)
    """
    count = mask.sum() if dim is None else mask.sum(dim)
    return masked_sum(x, mask, dim) / count.clamp(min=1)


def masked_var(
    x: torch.Tensor, mask: TokenMask, dim: int | None = None, *, correction: int = 1
) -> torch.Tensor:
    """Variance of the n entries that count, Σ (x − mean)² / (n − correction).

    `correction` 1 is the unbiased estimate (Bessel), 0 the population variance. Where n ≤ correction, 0.

    >>> masked_var(torch.tensor([1.0, 3.0, 9.0, 2.0]), torch.tensor([True, True, False, True]))
    tensor(1.)
    """
    count = mask.sum() if dim is None else mask.sum(dim)
    mean = masked_mean(x, mask, dim)
    deviation = select(x, mask) - (mean if dim is None else mean.unsqueeze(dim))
    variance = masked_sum(deviation.square(), mask, dim) / (count - correction).clamp(min=1)
    return torch.where(count > correction, variance, torch.zeros_like(variance))


@dataclass(frozen=True)
class Statistics:
    """What mean and variance of some entries are made of; parts of a batch can be merged.

    Attributes:
        count: n, how many entries.
        mean: of these; 0 where there are none.
        squares: Σ (x − mean)², not yet divided by anything.
    """

    count: int
    mean: float
    squares: float

    def variance(self, correction: int = 1) -> float:
        """Σ (x − mean)² / (n − correction); 0 where n ≤ correction, as `masked_var`."""
        return self.squares / (self.count - correction) if self.count > correction else 0.0


def statistics(x: torch.Tensor, mask: TokenMask) -> Statistics:
    """Count, mean and squared deviations of the entries that count, in float64. No gradient flows.

    >>> statistics(torch.tensor([1.0, 3.0, 9.0]), torch.tensor([True, True, False]))
    Statistics(count=2, mean=2.0, squares=2.0)
    """
    precise = x.detach().to(BOOKKEEPING)
    mean = masked_mean(precise, mask)
    return Statistics(int(mask.sum()), float(mean), float(masked_sum((precise - mean).square(), mask)))


def merge(parts: Iterable[Statistics]) -> Statistics:
    """The statistics of all entries together, from those of parts that do not overlap. A part without an entry adds 0.

        n = Σ n_k        mean = Σ n_k mean_k / n        squares = Σ squares_k + n_k (mean_k − mean)²

    Sums are exact, so that no order of the parts changes a bit: every process that merges gets the same numbers.

    Source: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".

    Exactness:
        Checked by tests/test_masked.py::test_merged_statistics_are_those_of_everything_together, and over real
        processes by tests/test_processes.py::test_case_B5_whitening_over_processes_is_that_of_one.

    >>> merge([Statistics(1, 1.0, 0.0), Statistics(1, 3.0, 0.0), Statistics(0, 0.0, 0.0)])
    Statistics(count=2, mean=2.0, squares=2.0)
    """
    kept = [part for part in parts if part.count > 0]
    count = sum(part.count for part in kept)
    mean = math.fsum(part.count * part.mean for part in kept) / max(count, 1)
    between = (part.count * (part.mean - mean) ** 2 for part in kept)
    return Statistics(count, mean, math.fsum((*(part.squares for part in kept), *between)))


def whiten(
    x: torch.Tensor,
    mask: TokenMask,
    *,
    shift_mean: bool = True,
    correction: int = 1,
    statistics: Statistics | None = None,
) -> torch.Tensor:
    """Scale the entries that count to standard deviation 1, mean 0; with `shift_mean=False` the old mean returns.

        shift_mean:      (x − mean) / std
        not shift_mean:  (x − mean) / std + mean      (centre, scale, restore: not the same as x / std)

    A spread below 1e-6·max(1, |mean|) is rounding, not signal: the result is then 0 (or the mean).
    Off-mask entries are 0. Over a batch this biases a policy gradient: the spread depends on the sample itself.

    Args:
        x: any shape. Mean and spread are constants under ∇.
        mask: the same shape, bool.
        shift_mean: whether the mean is removed.
        correction: 1 for the sample standard deviation, 0 for the population one.
        statistics: of a larger batch that x is a part of; None for those of x itself.

    >>> whiten(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([True, True, True]))
    tensor([-1.,  1.,  0.])
    """
    of = _own_statistics(x, mask) if statistics is None else statistics
    std = math.sqrt(of.variance(correction))
    centered = select(x, mask) - of.mean
    flat = std < 1e-6 * max(1.0, abs(of.mean))
    scaled = torch.zeros_like(centered) if flat else centered / std
    return select(scaled if shift_mean else scaled + of.mean, mask)


_own_statistics = statistics  # inside `whiten` the name is an argument
