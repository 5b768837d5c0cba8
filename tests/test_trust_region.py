"""Conjugate gradient, line search and the natural gradient: against direct solves and closed forms."""

import math
from collections.abc import Callable

import pytest
import torch

from rung.errors import InvalidInput
from rung.trust_region import TrustRegion, conjugate_gradient, trust_region_step
from tests.batches import close, f64

EXACT = TrustRegion(damping=0.0)


def times(matrix: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda vector: matrix @ vector


def positive(size: int, seed: int = 0) -> torch.Tensor:
    """A symmetric positive definite matrix with eigenvalues far apart."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return root @ root.T + 0.1 * torch.eye(size, dtype=torch.float64)


# --- conjugate gradient ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 7])
def test_conjugate_gradient_is_the_direct_solution_after_as_many_products(size: int) -> None:
    matrix, target = positive(size), torch.linspace(-1, 2, size, dtype=torch.float64)
    found = conjugate_gradient(times(matrix), target, iterations=size)
    close(found, torch.linalg.solve(matrix, target), atol=1e-10)


def test_fewer_products_give_the_best_of_what_they_span() -> None:
    """One product: x = (gᵀg / gᵀFg) g, here 5/9 of (1, 2) for F = diag(1, 2)."""
    found = conjugate_gradient(times(torch.diag(f64([1.0, 2.0]))), f64([1.0, 2.0]), iterations=1)
    close(found, [5 / 9, 10 / 9])


def test_it_stops_once_it_is_there_and_a_target_of_zero_needs_no_product() -> None:
    asked: list[int] = []

    def product(vector: torch.Tensor) -> torch.Tensor:
        asked.append(1)
        return 2.0 * vector

    close(conjugate_gradient(product, f64([4.0, -2.0]), iterations=10), [2.0, -1.0])
    assert len(asked) == 1
    close(conjugate_gradient(product, f64([0.0, 0.0]), iterations=10), [0.0, 0.0])
    assert len(asked) == 1


def test_how_near_is_near_enough_depends_on_the_target() -> None:
    """The same target a trillionth as long: the solution too, by its two products."""
    found = conjugate_gradient(times(torch.diag(f64([2.0, 4.0]))), f64([2e-12, 2e-12]), iterations=2)
    close(found, [1e-12, 0.5e-12], atol=1e-24)


# --- a bandit: softmax over three logits ------------------------------------------------------------------------------

LOGITS = f64([0.5, -0.3, 1.0])
REWARDS = f64([1.0, 0.0, 0.5])


def softmax(logits: torch.Tensor) -> torch.Tensor:
    weights = logits.exp()
    return weights / weights.sum()


def fisher(p: torch.Tensor) -> torch.Tensor:
    """E[∇log π ∇log πᵀ] of a softmax: diag(p) − ppᵀ."""
    return torch.diag(p) - torch.outer(p, p)


def bandit(step: torch.Tensor) -> tuple[float, float]:
    """−J and KL(old‖new) after a step, in closed form."""
    old, new = softmax(LOGITS), softmax(LOGITS + step)
    return -float(new @ REWARDS), float((old * (old / new).log()).sum())


def ascent() -> torch.Tensor:
    """∇J = p (r − J)."""
    p = softmax(LOGITS)
    return p * (REWARDS - p @ REWARDS)


def test_the_natural_gradient_of_a_bandit_is_its_advantage() -> None:
    """F⁺g = A − mean A, here r − mean r = (½, −½, 0); F itself has no inverse, as a constant moves no softmax."""
    close(ascent(), [0.1327048182, -0.0854079300, -0.0472968882], atol=5e-11)
    found = conjugate_gradient(times(fisher(softmax(LOGITS))), ascent(), iterations=3)
    close(found, [0.5, -0.5, 0.0], atol=1e-10)


def test_a_step_on_a_bandit_has_its_closed_form() -> None:
    """√(2δ / xᵀFx) for δ = 0.01 is 0.428242209120, and KL(old‖new) then 0.009888682047: short of δ, as δ is small."""
    taken = trust_region_step(-ascent(), times(fisher(softmax(LOGITS))), bandit, EXACT)
    close(taken.step, [0.42824220912 / 2, -0.42824220912 / 2, 0.0], atol=5e-12)
    assert taken.kl == pytest.approx(0.009888682047, abs=5e-13)
    assert (taken.accepted, taken.backtracks) == (True, 0)
    assert taken.improvement == pytest.approx(bandit(f64([0.0] * 3))[0] - bandit(taken.step)[0], abs=1e-15)
    assert taken.improvement > 0


def test_damping_shortens_the_step_and_stands_in_the_curvature_too() -> None:
    """x = (F + λ)⁻¹g by a direct solve; the full step is √(2δ / xᵀ(F + λ)x) along it."""
    settings = TrustRegion(damping=0.3)
    matrix = fisher(softmax(LOGITS)) + 0.3 * torch.eye(3, dtype=torch.float64)
    x = torch.linalg.solve(matrix, ascent())
    expected = math.sqrt(2 * 0.01 / float(x @ matrix @ x)) * x
    taken = trust_region_step(-ascent(), times(fisher(softmax(LOGITS))), bandit, settings)
    close(taken.step, expected, atol=1e-10)
    assert taken.kl < 0.0098


# --- line search ------------------------------------------------------------------------------------------------------


def line(
    loss: Callable[[float], float], kl: Callable[[float], float]
) -> Callable[[torch.Tensor], tuple[float, float]]:
    """An evaluation along the only coordinate, which a step moves downwards."""
    return lambda step: (loss(-float(step)), kl(-float(step)))


def test_a_step_that_goes_too_far_is_shortened_until_the_bound_holds() -> None:
    """F = 2, g = 1: the full step is √(2·0.01/½) · ½ = 0.1. With a KL of 2x² only x ≤ 0.0707 fits: 0.8² · 0.1."""
    asked: list[float] = []

    def kl(x: float) -> float:
        asked.append(x)
        return 2 * x * x

    taken = trust_region_step(f64([1.0]), times(f64([[2.0]])), line(lambda x: -x, kl), EXACT)
    assert asked == pytest.approx([0.0, 0.1, 0.08, 0.064], abs=1e-12)
    assert (taken.accepted, taken.backtracks) == (True, 2)
    close(taken.step, [-0.064])
    assert taken.kl == pytest.approx(2 * 0.064**2, abs=1e-12)
    assert taken.improvement == pytest.approx(0.064, abs=1e-12)


def test_a_step_that_does_not_lower_the_loss_is_shortened_too() -> None:
    """The loss (x − 0.03)² − 0.0009 is back at 0 at x = 0.06: 0.8³ · 0.1 = 0.0512 is the first below."""
    evaluate = line(lambda x: (x - 0.03) ** 2 - 0.0009, lambda x: x * x)
    taken = trust_region_step(f64([1.0]), times(f64([[2.0]])), evaluate, EXACT)
    assert (taken.accepted, taken.backtracks) == (True, 3)
    close(taken.step, [-0.0512])


@pytest.mark.parametrize(
    ("loss", "kl"),
    [(lambda x: x, lambda x: 0.0), (lambda x: -x, lambda x: float(x > 0)), (lambda x: 0.0, lambda x: 0.0)],
    ids=["the loss rises", "always too far", "nothing changes"],
)
def test_a_step_that_never_fits_is_none_and_the_old_parameters_are_evaluated_last(
    loss: Callable[[float], float], kl: Callable[[float], float]
) -> None:
    asked: list[float] = []

    def evaluate(step: torch.Tensor) -> tuple[float, float]:
        asked.append(float(step))
        return loss(-float(step)), kl(-float(step))

    settings = TrustRegion(damping=0.0, backtracks=3)
    taken = trust_region_step(f64([1.0]), times(f64([[2.0]])), evaluate, settings)
    assert (taken.accepted, taken.improvement, taken.kl, taken.backtracks) == (False, 0.0, 0.0, 3)
    assert taken.step.tolist() == [0.0]
    assert asked == pytest.approx([0.0, -0.1, -0.08, -0.064, -0.0512, 0.0], abs=1e-12)
    assert asked[-1] == 0.0


def test_a_step_of_exactly_the_bound_is_accepted() -> None:
    """F = 2, g = 1, δ = 1/4: the full step is √(2·¼/½) · ½ = ½, whose KL of x² is ¼."""
    settings = TrustRegion(max_kl=0.25, damping=0.0, iterations=1, backtracks=0)
    taken = trust_region_step(f64([1.0]), times(f64([[2.0]])), line(lambda x: -x, lambda x: x * x), settings)
    assert (taken.accepted, taken.kl) == (True, 0.25)
    close(taken.step, [-0.5])


@pytest.mark.parametrize("slope", [0.0, math.nan])
def test_a_gradient_of_nothing_moves_nothing(slope: float) -> None:
    taken = trust_region_step(f64([slope]), times(f64([[2.0]])), line(lambda x: -x, lambda x: x * x), EXACT)
    assert not taken.accepted
    assert taken.step.tolist() == [0.0]


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_kl": 0.0},
        {"damping": -0.1},
        {"shrink": 1.0},
        {"shrink": 0.0},
        {"iterations": 0},
        {"backtracks": -1},
    ],
    ids=str,
)
def test_a_region_without_extent_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=f"a trust region needs .*{next(iter(wrong))}"):
        TrustRegion(**wrong)  # type: ignore[arg-type]
