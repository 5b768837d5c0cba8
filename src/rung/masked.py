"""Sums, means and variances over the entries that count.

Entries off the mask are *selected away*, never multiplied by zero: NaN × 0 is NaN. An empty mask gives 0, not NaN.
"""

import torch

from rung.errors import InvalidInput
from rung.notation import TokenMask


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
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


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


def whiten(x: torch.Tensor, mask: TokenMask, *, shift_mean: bool = True, correction: int = 1) -> torch.Tensor:
    """Scale the entries that count to standard deviation 1, mean 0; with `shift_mean=False` the old mean returns.

        shift_mean:      (x − mean) / std
        not shift_mean:  (x − mean) / std + mean      (centre, scale, restore: not the same as x / std)

    A spread below 1e-6·max(1, |mean|) is rounding, not signal: the result is then 0 (or the mean).
    Off-mask entries are 0. Over a batch this biases a policy gradient: the spread depends on the sample itself.

    >>> whiten(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([True, True, True]))
    tensor([-1.,  1.,  0.])
    """
    mean = masked_mean(x, mask)
    std = masked_var(x, mask, correction=correction).sqrt()
    flat = std < 1e-6 * mean.abs().clamp(min=1.0)
    scaled = torch.where(flat, torch.zeros_like(x), (select(x, mask) - mean) / torch.where(flat, 1.0, std))
    return select(scaled if shift_mean else scaled + mean, mask)
