"""One optimizer step: what is frozen stays frozen, steps are counted, and the logs are over all of it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch

from rung.aggregation import sequence_sum
from rung.batch import Rollouts, build_rollouts
from rung.credit import total_return
from rung.errors import SamplerMismatch
from rung.methods import Method, TrainingBatch
from rung.models.policy import Policy
from rung.policy_losses import cispo_loss, clipped_loss, sequence_clipped_loss
from rung.training.config import Optimizer
from rung.training.micro import SamplerComparison, rows_of
from rung.training.tally import Tally, tally_for
from tests.batches import close, completion, f64, flags, outcomes
from tests.decoders import exact_llama
from tests.learning import FOREVER, Table, batch, decoder, learner, recipe

# --- (b) what is frozen, what is counted ---------------------------------------------------------------------------


def table_rollouts(old: Sequence[float], rewards: Sequence[float | None]) -> Rollouts:
    """One token a row; row i is completion i of a prompt of its own."""
    rows = [completion([i], group=i, prompt=(9, i), behaviour=[x]) for i, x in enumerate(old)]
    made = build_rollouts(rows, outcomes(rewards))
    return replace(made, old_logprobs=f64([[x] for x in old]))


PPO = Method("ppo", total_return, partial(clipped_loss, clip_low=0.2, clip_high=0.2), sequence_sum)


def test_case_E6_old_log_probabilities_stay_frozen_over_epochs() -> None:
    """Case E6. A = 1, old −1: the gradient is −1, a rate of 0.3 moves log π to −0.7, the ratio to e^0.3 = 1.34985881.

    The second epoch's loss is then −1.2 with gradient 0: mean loss −1.1, mean norm 0.5, half of the tokens clipped.
    """
    policy = Table([[-1.0]])
    seen: list[tuple[float, float]] = []

    def recording(
        policy_logprobs: torch.Tensor, old_logprobs: torch.Tensor, credit: torch.Tensor
    ) -> torch.Tensor:
        loss = clipped_loss(policy_logprobs, old_logprobs, credit, clip_low=0.2, clip_high=0.2)
        seen.append((float((policy_logprobs - old_logprobs).exp().detach()), float(loss.detach())))
        return loss

    method = replace(PPO, policy_loss=recording)
    trained = learner(policy, recipe("ppo-loo", rate=0.3, epochs=2))
    metrics = trained.step(table_rollouts([-1.0], [1.0]), method, 1)
    assert seen == [(1.0, -1.0), (pytest.approx(1.34985881, abs=5e-9), -1.2)]
    assert float(policy.table[0].detach()) == pytest.approx(-0.7, abs=1e-12)
    assert metrics["loss"] == pytest.approx(-1.1, abs=1e-12)
    assert metrics["grad_norm"] == pytest.approx(0.5, abs=1e-12)
    policy = Table([[-1.0]])
    metrics = learner(policy, recipe("ppo-loo", rate=0.3, epochs=2)).step(
        table_rollouts([-1.0], [1.0]), PPO, 1
    )
    assert metrics["clip_fraction"] == 0.5


def test_the_lower_bound_clips_too_and_the_wrong_sides_do_not() -> None:
    """Ratio 0.5 with credit +, −, − and 1.5 with +, −: clipped are three of five, the others have gradients −Aρ/B."""
    half, more = math.log(0.5), math.log(1.5)
    policy = Table([[half], [half], [half], [more], [more]])
    rollouts = table_rollouts([0.0] * 5, [1.0, -1.0, -1.0, 1.0, -1.0])
    metrics = learner(policy, recipe("ppo-loo", rate=1e-30)).step(rollouts, PPO, 1)
    assert metrics["clip_fraction"] == 0.6
    # Losses −0.5, +0.8, +0.8, −1.2, +1.5; gradients −0.5/5, 0, 0, 0, 1.5/5.
    assert metrics["loss"] == pytest.approx(0.28, abs=1e-12)
    assert metrics["grad_norm"] == pytest.approx(math.hypot(0.1, 0.3), abs=1e-12)


def test_case_H8_the_schedule_is_counted_in_optimizer_steps() -> None:
    """Case H8: 10 rollouts × 4 mini-batches × 2 epochs are 80 steps; the rate of step u is 1 − u/80, never rising."""
    settings = recipe("ppo-loo", rate=1.0, epochs=2, mini_batches=4)
    settings = settings.model_copy(update={"optimizer": Optimizer(learning_rate=1.0, schedule="linear")})
    policy = Table([[-1.0]] * 8)
    trained = learner(policy, settings)
    rates: list[float] = []
    trained.optimizer.register_step_pre_hook(
        lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"])
    )
    logged = [
        trained.step(table_rollouts([-1.0] * 8, [0.0] * 8), PPO, step)["learning_rate"]
        for step in range(1, 11)
    ]
    assert rates == pytest.approx([1 - update / 80 for update in range(80)], abs=1e-15)
    assert logged == rates[7::8]
    assert trained.updates == 80


def test_every_epoch_trains_every_row_once_in_an_order_of_its_own() -> None:
    """Also where the mini-batches are unequal: 10 rows in 4."""
    trained = learner(Table([[-1.0]]), recipe("ppo-loo", epochs=3, mini_batches=4))
    parts = [part.tolist() for part in trained._updates(10, step=1)]
    assert [len(part) for part in parts] == [3, 3, 2, 2] * 3
    for epoch in range(3):
        assert sorted(i for part in parts[4 * epoch : 4 * epoch + 4] for i in part) == list(range(10))
    assert parts[:4] != parts[4:8]
    assert parts == [part.tolist() for part in trained._updates(10, step=1)]
    assert parts != [part.tolist() for part in trained._updates(10, step=2)]


def test_case_E3_the_ratio_is_one_in_all_epochs_while_nothing_is_learned() -> None:
    """Case E3: a model with dropout 0.1, and other micro-batches than those that gave the old log-probs."""
    policy = Policy(exact_llama(seed=4, attention_dropout=0.1).float(), path="grouped")
    widest: list[float] = []

    def recording(
        policy_logprobs: torch.Tensor, old_logprobs: torch.Tensor, credit: torch.Tensor
    ) -> torch.Tensor:
        widest.append(float((policy_logprobs.detach() - old_logprobs).abs().max()))
        return clipped_loss(policy_logprobs, old_logprobs, credit)

    annotated = learner(policy, recipe("ppo-loo", budget=14)).annotate(batch(), frozenset({"old"}))
    for budget in (1, 20, FOREVER):
        trained = learner(policy, recipe("ppo-loo", budget=budget, rate=1e-30, epochs=3, mini_batches=2))
        trained.step(annotated, replace(PPO, policy_loss=recording), 1)
        metrics = trained.step(annotated, PPO, 2)
        assert metrics["clip_fraction"] == 0.0
    assert len(widest) > 18
    assert max(widest) < 1e-5


def test_case_H12_clip_fraction_and_entropy_are_over_all_mini_batches() -> None:
    """Case H12: fractions 0.4, 0.2 and 0 make 0.2, not 0; what stands at padding enters no mean."""
    tally = Tally((0.8, 1.2))
    mask = flags([[1] * 5 + [0]])
    for clipped in (2, 1, 0):
        ratios = f64([[2.0] * clipped + [1.0] * (5 - clipped) + [9.0]]).log()
        part = TrainingBatch(mask, torch.ones(1, 6).double(), torch.zeros(1, 6).double())
        tally.tokens(ratios, f64([[0.5, 0.7, 0.6, 0.6, 0.6, -1e9]]), part)
        tally.update(loss=float(clipped), norm=2.0 * clipped, rate=0.1)
    metrics = tally.metrics()
    assert metrics["clip_fraction"] == pytest.approx(0.2, abs=1e-15)
    assert metrics["entropy"] == pytest.approx(0.6, abs=1e-15)
    assert (metrics["loss"], metrics["grad_norm"]) == (1.0, 2.0)


def test_clip_fraction_of_a_step_is_over_all_its_mini_batches() -> None:
    """3 of 15 tokens stand past the upper bound in every epoch; mini-batches of 5 are shuffled, and the rate is ~0."""
    ratios = [2.0] * 3 + [1.0] * 12
    policy = Table([[math.log(ratio)] for ratio in ratios])
    trained = learner(policy, recipe("ppo-loo", rate=1e-30, epochs=2, mini_batches=3))
    metrics = trained.step(table_rollouts([0.0] * 15, [1.0] * 15), PPO, 1)
    assert metrics["clip_fraction"] == pytest.approx(0.2, abs=1e-15)


def test_a_second_clip_counts_too_where_a_bad_token_stops_pulling() -> None:
    """Ratios 4, 2 and 4 with credit −, − and +: of the bad ones the dual clip at 3 stops the first, PPO's the last."""
    policy = Table([[math.log(4.0)], [math.log(2.0)], [math.log(4.0)]])
    rollouts = table_rollouts([0.0] * 3, [-1.0, -1.0, 1.0])
    dual = replace(PPO, policy_loss=partial(clipped_loss, clip_low=0.2, clip_high=0.2, dual_clip=3.0))
    for method, clipped in ((PPO, 1 / 3), (dual, 2 / 3)):
        found = learner(policy, recipe("ppo-loo", rate=1e-30)).step(rollouts, method, 1)
        assert found["clip_fraction"] == pytest.approx(clipped, abs=1e-15)


SEQUENCES = partial(sequence_clipped_loss, clip_low=0.2, clip_high=0.2)


@pytest.mark.parametrize("budget", [FOREVER, 1])
def test_the_clip_of_whole_sequences_counts_all_tokens_of_a_sequence_or_none(budget: int) -> None:
    """Five sequences of 1, 2, 3, 3 and 4 tokens, with bounds 0.8 and 1.2.

    Geometric means of their ratios: 1.5, 1, 0.5, 0.5 and 2; mean credit 1, 1, 1, −0.5 and −1. The first stands past
    the upper bound and the fourth past the lower one, the others on their free side: 1 + 3 of 13 tokens. Token by
    token it would be 3 of 13: the first, the second's 2 and the fifth's 0.5.
    """
    ratios = [[1.5], [2.0, 0.5], [0.5, 0.5, 0.5], [1.0, 0.25, 0.5], [2.0, 2.0, 0.5, 8.0]]
    credit = [[1.0], [1.0, 1.0], [1.0, 1.0, 1.0], [-1.5, 0.0, 0.0], [-1.0, -1.0, -1.0, -1.0]]
    width = 4
    mask = flags([[1] * len(row) + [0] * (width - len(row)) for row in ratios])
    padded = f64([row + [9.0] * (width - len(row)) for row in ratios])
    of_credit = f64([row + [-7.0] * (width - len(row)) for row in credit])
    part = TrainingBatch(mask, of_credit, torch.zeros(5, width).double())
    tally = tally_for(replace(PPO, policy_loss=SEQUENCES))
    for rows in [torch.arange(5)] if budget == FOREVER else [torch.tensor([i]) for i in range(5)]:
        tally.tokens(padded.log()[rows], torch.zeros(len(rows), width), part.rows(rows))
    assert tally.metrics()["clip_fraction"] == pytest.approx(4 / 13, abs=1e-15)


def test_a_capped_ratio_counts_whatever_its_credit() -> None:
    """Ratios 3, 3, 1.5, 0.1 and 3 with credit +, −, +, − and 0 under a cap of 2: three of five are capped."""
    policy = Table([[math.log(ratio)] for ratio in (3.0, 3.0, 1.5, 0.1, 3.0)])
    rollouts = table_rollouts([0.0] * 5, [1.0, -1.0, 1.0, -1.0, 0.0])
    capped = replace(PPO, policy_loss=partial(cispo_loss, cap=2.0))
    found = learner(policy, recipe("cispo", rate=1e-30)).step(rollouts, capped, 1)
    assert found["clip_fraction"] == pytest.approx(0.6, abs=1e-15)


@pytest.mark.parametrize("mini_batches", [1, 3])
def test_the_sampler_is_compared_on_all_tokens_whatever_the_mini_batches(mini_batches: int) -> None:
    """One of six tokens differs, by 0.25: max 0.25, mean 0.25/6; only the weights of before the step are compared."""
    policy = Table([[-1.0]] * 6)
    rollouts = table_rollouts([-1.0] * 5 + [-1.25], [1.0] * 6)
    rollouts = replace(rollouts, old_logprobs=f64([[-1.0]] * 6))
    trained = learner(policy, recipe("ppo-loo", rate=0.3, epochs=2, mini_batches=mini_batches))
    metrics = trained.step(rollouts, PPO, 1)
    assert metrics["sampler_logratio_max"] == 0.25
    assert metrics["sampler_logratio_mean"] == pytest.approx(0.25 / 6, abs=1e-15)


# --- annotation and the comparison with the sampler ----------------------------------------------------------------


def test_annotation_adds_what_is_needed_and_no_more() -> None:
    trained, plain = (
        learner(decoder(), recipe(budget=9)),
        replace(batch(), old_logprobs=None, reference_logprobs=None),
    )
    assert trained.annotate(plain, frozenset()) is plain
    annotated = trained.annotate(plain, frozenset({"old", "reference"}))
    assert annotated.reference_logprobs is None  # this learner has no reference
    whole = decoder()(rows_of(plain)).logprobs
    close(annotated.old_logprobs, whole.detach(), atol=1e-10)  # type: ignore[arg-type]
    assert not annotated.old_logprobs.requires_grad  # type: ignore[union-attr]


def test_the_comparison_has_a_maximum_a_percentile_and_a_sign() -> None:
    """Sizes 1, 0.5 and 98 zeros: the 99th percentile of 100 lies at place 98.01, between 0.5 and 1: 0.505."""
    trainer = torch.zeros(1, 101, dtype=torch.float64)
    trainer[0, :2] = f64([-1.0, 0.5])
    trainer[0, 100] = math.nan
    mask = torch.arange(101) < 100
    compared = SamplerComparison.of(trainer, torch.zeros(1, 101).double(), mask.unsqueeze(0))
    assert compared.largest == 1.0
    assert compared.p99 == pytest.approx(0.505, abs=1e-12)
    assert compared.mean == pytest.approx(-0.005, abs=1e-15)
    assert compared.mean_absolute == pytest.approx(0.015, abs=1e-15)
    with pytest.raises(SamplerMismatch, match=r"max 1,.*mean -0\.005 nats.*mismatch_tolerance"):
        compared.check(0.99)
    compared.check(1.0)


def test_a_comparison_that_is_not_a_number_is_refused() -> None:
    compared = SamplerComparison.of(f64([[math.nan]]), f64([[0.0]]), flags([[1]]))
    with pytest.raises(SamplerMismatch):
        compared.check(1e9)


def test_nothing_to_compare_is_no_mismatch() -> None:
    SamplerComparison.of(f64([[1.0]]), f64([[0.0]]), flags([[0]])).check(1e-9)
