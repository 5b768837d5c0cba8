"""What a method learns from one batch and uses for the next, and how it is saved and restored."""

import math
from dataclasses import replace

import pytest

from rung.kl import AdaptiveKL, DoublingKL
from tests.batches import annotated, close, f64, gradient, leaf, rollouts
from tests.methods.helpers import build, four_rows, loss_of


def test_a_moving_baseline_is_that_of_earlier_batches():
    """b = 0, then 0.9 · 0 + 0.1 · 1.5 after the four returns 4, 1, 1, 0; the batch itself was credited with b = 0."""
    method = build("reinforce-moving-average", kl_coefficient=0.0)
    close(method.prepare(four_rows()).credit[1], [1.0, 0.0])
    later = method.after(four_rows())
    assert later.state == {"baseline": pytest.approx(0.15, abs=1e-12)}
    close(later.prepare(four_rows()).credit[1], [0.85, 0.0])
    assert method.state == {"baseline": 0.0}


def test_a_moving_baseline_is_that_of_the_returns_that_are_credited():
    """With β k1 = 0.1 a token subtracted, and a row that failed left out: returns 4 − 0.2, 1 − 0.1 and 0 − 0.1."""
    batch = annotated(rollouts([[1, 1], [1], [1, 1], [1]], [4.0, 1.0, None, 0.0], [1, 1, 2, 2]))
    batch = replace(batch, reference_logprobs=batch.old_logprobs - 0.2)
    later = build("reinforce-moving-average", kl_coefficient=0.5, momentum=0.0).after(batch)
    assert later.state["baseline"] == pytest.approx((3.8 + 0.9 - 0.1) / 3, abs=1e-12)


def test_the_state_of_a_method_is_restored():
    fresh = build("reinforce-moving-average", kl_coefficient=AdaptiveKL(0.2, target=6.0, horizon=1e4))
    old = fresh.after(annotated(four_rows()), kl=12.0)
    assert old.state == {
        "baseline": pytest.approx(0.15, abs=1e-12),
        "kl_coefficient": 0.2 * (1 + 0.2 * 4 / 1e4),
    }
    again = fresh.with_state(old.state)
    assert again.state == old.state
    assert again.kl.coefficient == AdaptiveKL(old.state["kl_coefficient"], target=6.0, horizon=1e4)
    close(again.prepare(four_rows()).credit, old.prepare(four_rows()).credit)
    assert build("rloo").state == {}
    assert build("rloo").with_state(old.state).state == {}
    assert build("grpo").after(four_rows(), kl=3.0).state == {}


def test_a_steered_coefficient_counts_the_rows_that_have_a_reward():
    """Ziegler's rule: 1 + clip(12/6 − 1, ±0.2) · n/horizon with three of four rows valid."""
    batch = annotated(rollouts([[1], [1], [1], [1]], [1.0, 0.0, None, 2.0]))
    method = build("rloo", kl_coefficient=AdaptiveKL(0.2, target=6.0, horizon=100))
    assert method.after(batch, kl=12.0).state == {"kl_coefficient": pytest.approx(0.2 * 1.006, abs=1e-12)}
    assert method.after(batch).state == method.state


def test_the_penalty_on_a_step_is_doubled_or_halved():
    """Above 1.5 times the target of 0.01 nats twice as much, below 1/1.5 half; a large β holds the step."""
    method = build("ppo-penalty")
    assert method.kl.coefficient == DoublingKL(1.0, target=0.01)
    betas = [method.after(four_rows(), kl=kl).state["kl_coefficient"] for kl in (0.02, 0.01, 0.005)]
    assert betas == [2.0, 1.0, 0.5]
    # KL(old‖policy) by k3 of the samples of old: ρ − 1 − log ρ, whose slope in log π is ρ − 1.
    batch = annotated(rollouts([[1], [1]], [1.0, 0.0]), old_logprobs=f64([[-1.0], [-1.0]]))
    policy = leaf([[-1.0 + math.log(2.0)], [-1.0]])
    twice = method.after(batch, kl=0.02)
    loss = loss_of(twice, policy, twice.prepare(batch))
    close(loss, (-2.0 + 1.0) / 2 + 2.0 * (2.0 - 1.0 - math.log(2.0)) / 2)
    close(gradient(loss, policy), [[(-2.0 + 2.0 * (2.0 - 1.0)) / 2], [0.5]])
