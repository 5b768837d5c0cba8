"""A step of fixed divergence in place of one of fixed length: conjugate gradient, then a line search.

    maximise the surrogate  subject to  KL(π_old‖π) ≤ δ

To second order KL(π_old‖π) = ½ xᵀFx with Fisher's information F, so that the best step is along F⁻¹g. What is here
knows vectors only: gradients, products with F and evaluations come in as functions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch

from rung.errors import InvalidInput

Vector = Annotated[torch.Tensor, "n"]


@dataclass(frozen=True)
class TrustRegion:
    """How far a step may go, and how it is found.

    Source: Schulman et al. 2015, 1502.05477, appendix C; the values are those of common implementations.

    Attributes:
        max_kl: δ, nats per token, averaged over the sampled tokens.
        damping: added to F's diagonal, so that directions without information stay short.
        iterations: of the conjugate gradient.
        backtracks: how often a step that fails is shortened before it is given up.
        shrink: by which factor.
    """

    max_kl: float = 0.01
    damping: float = 0.1
    iterations: int = 10
    backtracks: int = 10
    shrink: float = 0.8

    def __post_init__(self) -> None:
        """Refuse a region without extent."""
        if not (self.max_kl > 0 and self.damping >= 0 and 0 < self.shrink < 1):
            raise InvalidInput(
                "a trust region needs max_kl > 0, damping ≥ 0 and 0 < shrink < 1; "
                f"got {self.max_kl}, {self.damping}, {self.shrink}"
            )
        if self.iterations < 1 or self.backtracks < 0:
            raise InvalidInput(
                f"a trust region needs iterations ≥ 1 and backtracks ≥ 0; got {self.iterations}, {self.backtracks}"
            )


@dataclass(frozen=True)
class TrustRegionStep:
    """What was done.

    Attributes:
        step: [n], the change of the parameters; 0 if every attempt failed.
        kl: KL(π_old‖π) after it, nats.
        improvement: how much the loss fell.
        backtracks: how often the step was shortened.
        accepted: whether there was a step at all.
    """

    step: Vector
    kl: float
    improvement: float
    backtracks: int
    accepted: bool


def conjugate_gradient(
    product: Callable[[Vector], Vector], target: Vector, *, iterations: int, tolerance: float = 1e-20
) -> Vector:
    """x with F x = target, for a symmetric positive semi-definite F that is known by its products.

    Source: Hestenes and Stiefel 1952; stops early once |F x − target|² ≤ tolerance · |target|².

    Args:
        product: v → F v.
        target: [n], in the range of F.
        iterations: at most so many products.
        tolerance: of the squared residual, relative.

    >>> conjugate_gradient(lambda v: torch.tensor([2.0, 4.0]) * v, torch.tensor([2.0, 2.0]), iterations=2)
    tensor([1.0000, 0.5000])
    """
    x = torch.zeros_like(target)
    residual = target.clone()
    direction = residual.clone()
    size = residual @ residual
    enough = tolerance * size
    for _ in range(iterations):
        if not size > enough:
            break
        along = product(direction)
        length = size / (direction @ along)
        x = x + length * direction
        residual = residual - length * along
        size, before = residual @ residual, size
        direction = residual + size / before * direction
    return x


def trust_region_step(
    gradient: Vector,
    product: Callable[[Vector], Vector],
    evaluate: Callable[[Vector], tuple[float, float]],
    settings: TrustRegion,
) -> TrustRegionStep:
    """One step of TRPO.

        x = (F + damping)⁻¹ g        full step = −√(2δ / xᵀFx) · x        then shorter ones, until
        KL(π_old‖π) ≤ δ and the loss is lower than before

    Source: Schulman et al. 2015, 1502.05477, section 6 and appendix C.
    Differs from source: the damped F is used in xᵀFx as well (as common implementations do), so that the full step is
    a little short of δ rather than beyond it.

    Args:
        gradient: [n], g, of the loss (to be minimised) at the old policy.
        product: v → F v, Fisher's information at the old policy, undamped.
        evaluate: step → (loss, KL(π_old‖π)) at old parameters + step; the zero step gives the loss before.
        settings: the region.

    Returns:
        The step that was accepted, or none. `evaluate` was called last with this step.

    Exactness:
        For a softmax over the logits of a bandit F⁺g is the advantage minus its mean over the actions. Checked by
        tests/test_trust_region.py::test_the_natural_gradient_of_a_bandit_is_its_advantage.
    """
    before, _ = evaluate(torch.zeros_like(gradient))

    def damped(v: Vector) -> Vector:
        return product(v) + settings.damping * v

    x = conjugate_gradient(damped, gradient, iterations=settings.iterations)
    curvature = float(x @ damped(x))
    if curvature > 0.0:
        full = -((2.0 * settings.max_kl / curvature) ** 0.5) * x
        for backtracks in range(settings.backtracks + 1):
            step = full * settings.shrink**backtracks
            loss, kl = evaluate(step)
            if kl <= settings.max_kl and loss < before:
                return TrustRegionStep(step, kl, before - loss, backtracks, True)
    nothing = torch.zeros_like(gradient)
    _, kl = evaluate(nothing)
    return TrustRegionStep(nothing, kl, 0.0, settings.backtracks, False)
