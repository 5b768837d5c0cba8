"""AdamW, the learning-rate schedule, and one guarded optimizer step."""

import math
from collections.abc import Iterable

import torch

from rung.errors import TrainingDiverged
from rung.training.config import Optimizer


def build_optimizer(parameters: Iterable[torch.nn.Parameter], settings: Optimizer) -> torch.optim.AdamW:
    """AdamW over the trained parameters."""
    return torch.optim.AdamW(
        [p for p in parameters if p.requires_grad],
        lr=settings.learning_rate,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
    )


def learning_rate(update: int, total: int, settings: Optimizer) -> float:
    """The rate for the update that follows `update` finished ones, of `total`.

    Warm-up rises linearly over the first `warmup_updates`; "linear" then falls to 0 right after the last update.

    >>> settings = Optimizer(learning_rate=1.0, schedule="linear")
    >>> [learning_rate(u, 4, settings) for u in range(5)]
    [1.0, 0.75, 0.5, 0.25, 0.0]
    """
    warm = min(1.0, (update + 1) / settings.warmup_updates) if settings.warmup_updates else 1.0
    if settings.schedule == "constant":
        return settings.learning_rate * warm
    left = (total - update) / max(total - settings.warmup_updates, 1)
    return settings.learning_rate * min(warm, max(left, 0.0))


def require_finite(loss: float, norm: float, update: int, remedy: str) -> None:
    """Refuse an update that would destroy the model.

    Raises:
        TrainingDiverged: loss or gradient is not finite.
    """
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise TrainingDiverged(
            f"update {update}: the loss is {loss} and the gradient's norm {norm}. The weights were not changed. "
            f"Start again with {remedy}; a checkpoint of this run can be its model"
        )


def guarded_step(
    optimizer: torch.optim.Optimizer, loss: float, max_grad_norm: float, rate: float, update: int
) -> float:
    """Clip the gradient, step, and return the gradient's norm before clipping.

    Raises:
        TrainingDiverged: loss or gradient is not finite; the weights are left as they were.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm))
    require_finite(loss, norm, update, "a lower optimizer.learning_rate")
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm
