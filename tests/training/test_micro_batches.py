"""No split of an optimizer step changes its gradient, and rows that were not judged have none."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.aggregation import token_mean
from rung.batch import Completion, build_rollouts
from rung.credit import total_return
from rung.methods import CATALOGUE, Method, TrainingBatch
from rung.models.layout import Row
from rung.policy_losses import policy_gradient_loss
from rung.training.micro import micro_batches, rows_of
from rung.training.tally import Tally
from tests.batches import close, completion, flags, outcomes
from tests.learning import (
    AGGREGATIONS,
    FOREVER,
    PROMPTS,
    REWARDS,
    Table,
    accumulated,
    batch,
    decoder,
    fresh,
    gradient,
    learner,
    made,
    recipe,
)

# --- (a) micro-batches only add -----------------------------------------------------------------------------------


# Each method as it is, and some of each kind under every aggregation.
SPLITS = [(name, "") for name in CATALOGUE] + [
    (name, aggregation) for name in ("rloo", "ppo-loo", "grpo", "gspo", "a2c") for aggregation in AGGREGATIONS
]


@pytest.mark.parametrize(("name", "aggregation"), SPLITS, ids=lambda word: word or "its own")
def test_no_split_into_micro_batches_changes_a_gradient(name: str, aggregation: str) -> None:
    """Against loss and gradient of the whole batch at once, computed without the learner."""
    method = made(name, kl_coefficient=0.3)
    if aggregation:
        method = replace(method, aggregation=AGGREGATIONS[aggregation])
    rollouts, policy = batch(), decoder()
    whole = method.prepare(rollouts)
    output = policy(rows_of(rollouts), live_entropy=True)
    loss = method.loss(output.logprobs, whole, method.weights(whole.mask), entropy=output.entropy)
    loss.backward()
    expected = gradient(policy)
    assert float(expected.abs().max()) > 1e-3
    for budget in (1, 9, 14, FOREVER):
        value, measured, _ = accumulated(policy, rollouts, method, budget)
        assert value == pytest.approx(float(loss.detach()), abs=1e-10)
        close(measured, expected, atol=1e-10)


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_padded_path_gives_the_same_gradients(name: str) -> None:
    method, rollouts = made(name, kl_coefficient=0.3), batch()
    value, expected, _ = accumulated(decoder(), rollouts, method, FOREVER)
    for budget in (1, 14, FOREVER):
        other, measured, _ = accumulated(decoder("padded"), rollouts, method, budget)
        assert other == pytest.approx(value, abs=1e-10)
        close(measured, expected, atol=1e-10)


@pytest.mark.parametrize("name", CATALOGUE)
def test_no_split_changes_what_is_logged(name: str) -> None:
    method, rollouts = made(name), batch()
    _, _, expected = accumulated(decoder(), rollouts, method, FOREVER)
    assert 0 < expected["clip_fraction"] < 1
    for budget in (1, 9, 14):
        _, _, measured = accumulated(decoder(), rollouts, method, budget)
        assert measured == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["grpo", "ppo-loo", "ppo-penalty", "cispo", "dapo"])
def test_several_updates_on_one_batch_end_at_the_same_weights(name: str) -> None:
    """Three epochs of two mini-batches: weights of the loss are made per mini-batch, before it is split."""
    ends = []
    for budget in (1, 11, FOREVER):
        policy = fresh(decoder())
        settings = recipe(name, budget=budget, rate=0.05, epochs=3, mini_batches=2)
        trained = learner(policy, settings)
        trained.step(batch(), made(name, kl_coefficient=0.3), 1)
        assert trained.updates == 6
        ends.append(torch.cat([p.detach().flatten() for p in policy.parameters()]))
    start = torch.cat([p.detach().flatten() for p in decoder().parameters()])
    assert float((ends[-1] - start).abs().max()) > 1e-3
    for end in ends[:-1]:
        close(end, ends[-1], atol=1e-10)


def test_a_part_of_the_rows_is_normalised_over_that_part_alone() -> None:
    """A mini-batch of rows 2, 4, 5 and 8, the second not judged: token means over its 4 + 2 + 3 counted tokens."""
    method = replace(made("rloo", kl_coefficient=0.0), aggregation=token_mean)
    rollouts, policy = batch(), decoder()
    index = torch.tensor([2, 4, 5, 8])
    prepared = method.prepare(rollouts)
    counted = int(rollouts.mask[[2, 5, 8]].sum())
    assert counted == 4 + 2 + 3
    own = policy(rows_of(rollouts)).logprobs
    chosen = [(i, t) for i in (2, 5, 8) for t in range(6) if rollouts.mask[i, t]]
    loss = -sum(prepared.credit[i, t] * own[i, t] for i, t in chosen) / counted
    loss.backward()  # type: ignore[union-attr]
    expected = gradient(policy)
    for budget in (1, 14, FOREVER):
        value, measured, _ = accumulated(policy, rollouts, method, budget, index)
        assert value == pytest.approx(float(loss.detach()), abs=1e-10)  # type: ignore[union-attr]
        close(measured, expected, atol=1e-10)


@pytest.mark.parametrize("budget", [1, 2, 5, FOREVER])
def test_case_D1_token_means_are_over_the_step_and_not_over_micro_batches(budget: int) -> None:
    """Case D1: losses 1, 1 and six times 4 have mean 26/8 = 3.25, not (1 + 4)/2."""
    policy = Table([[-1.0, -1.0], [-4.0] * 6])
    rows = [Row((9,), (0, 0)), Row((8,), (1,) * 6)]
    mask = flags([[1, 1, 0, 0, 0, 0], [1] * 6])
    method = Method("d1", total_return, policy_gradient_loss, token_mean)
    loss = learner(policy, recipe(budget=budget))._accumulate(
        rows, TrainingBatch(mask, mask.double()), method, torch.arange(2), Tally(None)
    )
    assert loss == 3.25
    close(policy.table[0].grad, [-0.125] * 2)  # type: ignore[arg-type]
    close(policy.table[1].grad, [-0.125] * 6)  # type: ignore[arg-type]


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_sum", "sequence_mean"])
@pytest.mark.parametrize("budget", [1, FOREVER])
def test_case_D5_a_micro_batch_without_a_counted_token_enters_no_denominator(
    budget: int, aggregation: str
) -> None:
    """Case D5: losses 2, 4 and a masked one: 3, not 2."""
    policy = Table([[-2.0], [-4.0], [-100.0]])
    mask = flags([[1], [1], [0]])
    method = Method("d5", total_return, policy_gradient_loss, AGGREGATIONS[aggregation])
    rows = [Row((9 - i,), (i,)) for i in range(3)]
    loss = learner(policy, recipe(budget=budget))._accumulate(
        rows, TrainingBatch(mask, mask.double()), method, torch.arange(3), Tally(None)
    )
    assert loss == 3.0
    assert float(policy.table[2].grad) == 0.0  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=30),
    st.integers(1, 60),
)
def test_micro_batches_hold_every_row_once_and_keep_to_the_budget(
    drawn: list[tuple[int, int]], budget: int
) -> None:
    """A prompt is counted once in a micro-batch; only a single row may exceed the budget."""
    rows = [Row(tuple(range(prompt + 1)), (1,) * length) for prompt, length in drawn]
    pieces = list(micro_batches(rows, budget, shared=True))
    assert sorted(i for piece in pieces for i in piece) == list(range(len(rows)))
    for piece in pieces:
        prompts = {rows[i].prompt_ids for i in piece}
        size = sum(map(len, prompts)) + sum(len(rows[i].token_ids) for i in piece)
        assert size <= budget or len(piece) == 1
        together = [rows[i].prompt_ids for i in piece]
        assert together == sorted(together)


# --- outcomes that are no rewards ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CATALOGUE)
def test_case_B12_a_row_that_was_not_judged_trains_nothing(name: str) -> None:
    """Cases H10 and B12: other tokens in the failed row change no gradient; and it has none of its own."""
    method = made(name, kl_coefficient=0.3)
    _, expected, _ = accumulated(decoder(), batch(), method, 14)
    for tokens in (3, 7):
        changed = batch(invalid_tokens=tokens)
        assert changed.completions[4].token_ids != batch().completions[4].token_ids
        same = replace(batch(), completions=changed.completions)
        _, measured, _ = accumulated(decoder(), same, method, 14)
        close(measured, expected, atol=1e-12)
    assert float(method.prepare(batch()).credit[4].abs().max()) == 0.0


def test_case_H10_a_missing_reward_is_no_zero() -> None:
    """Rewards 1, missing, 1 in one group: both credits 0 and no gradient; a zero would have given +1/3 and −2/3."""
    policy = Table([[-1.0], [-1.0], [-1.0]])
    rows = [completion([i], prompt=(9,), sample=i) for i in range(3)]
    rollouts = build_rollouts(rows, outcomes([1.0, None, 1.0]))
    metrics = learner(policy, recipe()).step(rollouts, made("rloo", kl_coefficient=0.0), 1)
    assert metrics["grad_norm"] == 0.0
    assert [float(row.detach()) for row in policy.table] == [-1.0] * 3


@pytest.mark.parametrize("name", CATALOGUE)
def test_case_C10_a_batch_without_a_judged_row_changes_nothing_and_has_no_nan(name: str) -> None:
    """Case C10's last line: 0 trained tokens give loss 0, gradient 0, and no NaN."""
    empty = build_rollouts(batch().completions, outcomes([None] * 10))
    annotated = ("old_logprobs", "reference_logprobs", "values", "greedy_rewards")
    empty = replace(empty, **{part: getattr(batch(), part) for part in annotated})
    policy = fresh(decoder())
    before = [p.detach().clone() for p in policy.parameters()]
    metrics = learner(policy, recipe(budget=14)).step(empty, made(name), 1)
    assert metrics["loss"] == metrics["grad_norm"] == metrics["entropy"] == 0.0
    assert all(math.isfinite(value) for value in metrics.values())
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_empty_completions_are_carried_along() -> None:
    """A completion of no token at all trains nothing and breaks nothing."""
    rows: list[Completion] = [*batch().completions, completion([], group=0, sample=99, prompt=PROMPTS[0])]
    rollouts = build_rollouts(rows, outcomes([*REWARDS, 1000.0]))
    method = made("rloo", kl_coefficient=0.0)
    _, expected, _ = accumulated(
        decoder(), build_rollouts(batch().completions, outcomes(REWARDS)), method, 14
    )
    for budget in (1, 14, FOREVER):
        _, measured, _ = accumulated(decoder(), rollouts, method, budget)
        close(measured, expected, atol=1e-10)
