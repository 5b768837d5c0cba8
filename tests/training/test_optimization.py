"""The schedule, counted in optimizer steps, and the one guarded step."""

import pytest
import torch

from rung.errors import TrainingDiverged
from rung.training.config import Optimizer, Recipe, Rollout, Training
from rung.training.optimization import build_optimizer, guarded_step, learning_rate

INF, NAN = float("inf"), float("nan")


def test_linear_decay_is_positive_before_the_last_update_and_zero_after_it() -> None:
    """Case H8: 10 rollouts × 4 mini-batches × 2 epochs are 80 updates; update u has the rate 1 − u/80."""
    recipe = Recipe(
        name="h8",
        method="ppo-loo",
        task="addition",
        model="m",
        rollout=Rollout(prompts_per_step=4, samples_per_prompt=2),
        optimizer=Optimizer(learning_rate=1.0, schedule="linear"),
        training=Training(steps=10, epochs=2, mini_batches=4),
    )
    assert recipe.updates == 80
    rates = [learning_rate(update, recipe.updates, recipe.optimizer) for update in range(81)]
    assert rates == pytest.approx([1 - update / 80 for update in range(81)], abs=1e-15)
    assert rates[79] > 0 == rates[80]


def test_warmup_rises_to_the_full_rate_then_falls() -> None:
    settings = Optimizer(learning_rate=0.8, warmup_updates=4, schedule="linear")
    rates = [learning_rate(update, 8, settings) for update in range(9)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.6, 0.4, 0.2, 0.0], abs=1e-15)


def test_a_constant_rate_stays_after_its_warmup() -> None:
    settings = Optimizer(learning_rate=0.6, warmup_updates=3)
    assert [learning_rate(u, 5, settings) for u in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.6, 0.6])


def test_a_warmup_as_long_as_the_run_still_ends_above_zero() -> None:
    settings = Optimizer(learning_rate=1.0, warmup_updates=4, schedule="linear")
    assert [learning_rate(u, 4, settings) for u in range(4)] == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_the_gradient_is_clipped_as_a_whole_and_its_norm_is_from_before() -> None:
    """Gradients 3 and 4 have norm 5; clipped to 1 they are 0.6 and 0.8, and SGD moves by the rate times that."""
    one, other = (torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))
    optimizer = torch.optim.SGD([one, other], lr=123.0)
    one.grad, other.grad = torch.tensor([3.0]).double(), torch.tensor([4.0]).double()
    assert guarded_step(optimizer, 0.0, 1.0, 0.5, 1) == pytest.approx(5.0)
    assert float(one.detach()) == pytest.approx(-0.3, abs=1e-6)
    assert float(other.detach()) == pytest.approx(-0.4, abs=1e-6)
    assert one.grad is None


def test_adamw_moves_by_the_rate_and_decays_the_weight() -> None:
    """First step of AdamW: θ (1 − lr·wd) − lr · g/(|g| + ε), so 1 · (1 − 0.1 · 0.5) − 0.1 = 0.85."""
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    optimizer = build_optimizer([weight, frozen], Optimizer(learning_rate=9.0, weight_decay=0.5))
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 1
    weight.grad = torch.full((1,), 0.25, dtype=torch.float64)
    guarded_step(optimizer, 0.0, 10.0, 0.1, 1)
    assert float(weight.detach()) == pytest.approx(0.85, abs=1e-7)


@pytest.mark.parametrize(("loss", "slope"), [(NAN, 1.0), (INF, 1.0), (0.0, NAN), (0.0, INF)])
def test_what_is_not_finite_stops_the_run_and_leaves_the_weights(loss: float, slope: float) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = build_optimizer([weight], Optimizer())
    weight.grad = torch.tensor([0.5, slope])
    with pytest.raises(TrainingDiverged, match=r"update 7.*not changed.*learning_rate"):
        guarded_step(optimizer, loss, 1.0, 0.1, 7)
    assert torch.equal(weight.detach(), torch.ones(2))
    assert not optimizer.state
