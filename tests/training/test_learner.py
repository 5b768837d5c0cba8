"""From annotated rollouts to new weights: no split changes a gradient, and what is frozen stays frozen.

The decoder is a Llama in float64 whose norms are in float64 too: 1e-10 holds. `Table` is the simplest policy that a
learner can train: its parameters are the log-probabilities themselves, so that every number can be checked by hand.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rung.aggregation import constant_length, sequence_mean, sequence_sum, token_mean
from rung.batch import Completion, Rollouts, build_rollouts
from rung.credit import total_return
from rung.errors import SamplerMismatch
from rung.methods import CATALOGUE, Method, TrainingBatch
from rung.models import loading
from rung.models.layout import Row
from rung.models.policy import Policy, PolicyOutput
from rung.policy_losses import clipped_loss, policy_gradient_loss
from rung.training.config import Optimizer, Recipe, Rollout, Training
from rung.training.learner import Learner, SamplerComparison, _Tally, logprobs_of, micro_batches, rows_of
from tests.batches import close, completion, f64, flags, outcomes
from tests.tiny import TINY_SIZES

FOREVER = 10**9
AGGREGATIONS = {
    "sequence_sum": sequence_sum,
    "sequence_mean": sequence_mean,
    "token_mean": token_mean,
    "constant_length": partial(constant_length, length=6),
}


class Norm64(nn.Module):
    """Root-mean-square norm without the cast to float32."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())
        self.epsilon = epsilon

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.weight * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.epsilon)


@cache
def decoder(path: str = "grouped", dropout: float = 0.0, double: bool = True) -> Policy:
    """A small decoder with weights large enough that its distributions are far from uniform."""
    sizes = TINY_SIZES | {"hidden_size": 16, "num_key_value_heads": 1}
    model = loading.scratch(
        "0123456789+=", seed=4, initializer_range=0.4, attention_dropout=dropout, **sizes
    ).model
    if double:
        model = model.double()
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if type(child).__name__ == "LlamaRMSNorm":
                    setattr(parent, name, Norm64(child.weight, child.variance_epsilon))
    return Policy(model, path=path)  # type: ignore[arg-type]


class Table(nn.Module):
    """log π of each token is a parameter: row i of the table belongs to the completion that starts with token i."""

    def __init__(self, logprobs: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.table = nn.ParameterList([nn.Parameter(f64(row)) for row in logprobs])

    def forward(self, rows: Sequence[Row]) -> PolicyOutput:
        width = max(len(row.token_ids) for row in rows)
        picked = [self.table[row.token_ids[0]][: len(row.token_ids)] for row in rows]
        out = torch.stack([nn.functional.pad(values, (0, width - len(values))) for values in picked])
        return PolicyOutput(out, -out.detach())


def recipe(method: str = "rloo", *, budget: int = FOREVER, rate: float = 1e-2, **training: Any) -> Recipe:
    training = {"steps": 10, "micro_batch_tokens": budget} | training
    return Recipe(
        name="t",
        method=method,
        task="addition",
        model="m",
        rollout=Rollout(prompts_per_step=32, samples_per_prompt=2),
        optimizer=Optimizer(learning_rate=rate, max_grad_norm=1e9),
        training=Training(**training),
    )


def learner(policy: nn.Module, settings: Recipe) -> Learner:
    """With plain gradient descent: a step is then as exact as a gradient, which Adam's division by |g| is not."""
    made = Learner(policy, None, settings)  # type: ignore[arg-type]
    made.optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)  # type: ignore[assignment]
    return made


LENGTHS = [3, 1, 6, 2, 4, 2, 5, 1, 3, 2]
GROUPS = [0, 0, 2, 1, 0, 1, 1, 1, 2, 3]
REWARDS = [1.0, -0.5, 0.25, 1.0, None, 0.0, 2.5, 0.5, -1.0, 3.0]
PROMPTS = [(1, 10, 2, 11), (7, 7, 10, 3, 11), (4, 11), (5, 10, 5, 11)]


def batch(invalid_tokens: int = 0) -> Rollouts:
    """Four groups of 3, 4, 2 and 1, one failed judge, a tool's tokens in between, log-probs all different."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for i, (length, group) in enumerate(zip(LENGTHS, GROUPS, strict=True)):
        tokens = torch.randint(0, 12, (length,), generator=generator).tolist()
        if i == 4:
            tokens = [(token + invalid_tokens) % 12 for token in tokens]
        sampled = [1, 0, 0, 1, 1, 1] if i == 2 else [1] * length
        rows.append(completion(tokens, sampled=sampled, group=group, sample=i, prompt=PROMPTS[group]))
    made = build_rollouts(rows, outcomes(REWARDS))
    own = logprobs_of(decoder(), rows_of(made), FOREVER)

    def near(scale: float) -> torch.Tensor:
        noise = scale * torch.randn(own.shape, generator=generator, dtype=torch.float64)
        return torch.where(made.mask, own + noise, 0.0)

    return replace(made, behaviour_logprobs=near(0.0), old_logprobs=near(0.3), reference_logprobs=near(0.5))


def gradient(policy: Policy) -> torch.Tensor:
    """All of them in one line, and cleared."""
    pieces = [
        p.grad.flatten().clone() if p.grad is not None else torch.zeros(p.numel()).double()
        for p in policy.parameters()
    ]
    policy.zero_grad(set_to_none=True)
    return torch.cat(pieces)


def accumulated(
    policy: Policy, rollouts: Rollouts, method: Method, budget: int, index: torch.Tensor | None = None
) -> tuple[float, torch.Tensor, dict[str, float]]:
    """Loss, gradient and tally of one optimizer step in micro-batches of `budget` tokens."""
    tally = _Tally((0.8, 1.2))
    rows = rows_of(rollouts)
    if index is None:
        index = torch.arange(len(rows))
    loss = learner(policy, recipe(budget=budget))._accumulate(
        rows, method.prepare(rollouts), method, index, rollouts.behaviour_logprobs, tally
    )
    tally.update(loss, 0.0, 0.0)
    return loss, gradient(policy), tally.metrics()


# --- (a) micro-batches only add -----------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", CATALOGUE)
def test_no_split_into_micro_batches_changes_a_gradient(name: str, aggregation: str) -> None:
    """Against loss and gradient of the whole batch at once, computed without the learner."""
    method = replace(CATALOGUE[name](kl_coefficient=0.3), aggregation=AGGREGATIONS[aggregation])
    rollouts, policy = batch(), decoder()
    whole = method.prepare(rollouts)
    loss = method.loss(policy(rows_of(rollouts)).logprobs, whole, method.weights(whole.mask))
    loss.backward()
    expected = gradient(policy)
    assert float(expected.abs().max()) > 1e-3
    for budget in (1, 9, 14, FOREVER):
        value, measured, _ = accumulated(policy, rollouts, method, budget)
        assert value == pytest.approx(float(loss.detach()), abs=1e-10)
        close(measured, expected, atol=1e-10)


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_padded_path_gives_the_same_gradients(name: str) -> None:
    method, rollouts = CATALOGUE[name](kl_coefficient=0.3), batch()
    value, expected, _ = accumulated(decoder(), rollouts, method, FOREVER)
    for budget in (1, 14, FOREVER):
        other, measured, _ = accumulated(decoder("padded"), rollouts, method, budget)
        assert other == pytest.approx(value, abs=1e-10)
        close(measured, expected, atol=1e-10)


@pytest.mark.parametrize("name", CATALOGUE)
def test_no_split_changes_what_is_logged(name: str) -> None:
    method, rollouts = CATALOGUE[name](), batch()
    _, _, expected = accumulated(decoder(), rollouts, method, FOREVER)
    assert 0 < expected["clip_fraction"] < 1
    for budget in (1, 9, 14):
        _, _, measured = accumulated(decoder(), rollouts, method, budget)
        assert measured == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["grpo", "ppo-loo"])
def test_several_updates_on_one_batch_end_at_the_same_weights(name: str) -> None:
    """Three epochs of two mini-batches: weights of the loss are made per mini-batch, before it is split."""
    ends = []
    for budget in (1, 11, FOREVER):
        policy = fresh(decoder())
        settings = recipe(name, budget=budget, rate=0.05, epochs=3, mini_batches=2)
        trained = learner(policy, settings)
        trained.step(batch(), CATALOGUE[name](kl_coefficient=0.3), 1)
        assert trained.updates == 6
        ends.append(torch.cat([p.detach().flatten() for p in policy.parameters()]))
    start = torch.cat([p.detach().flatten() for p in decoder().parameters()])
    assert float((ends[-1] - start).abs().max()) > 1e-3
    for end in ends[:-1]:
        close(end, ends[-1], atol=1e-10)


def fresh(policy: Policy) -> Policy:
    twin = copy.deepcopy(policy)
    twin.zero_grad(set_to_none=True)
    return twin


def test_a_part_of_the_rows_is_normalised_over_that_part_alone() -> None:
    """A mini-batch of rows 2, 4, 5 and 8, the second not judged: token means over its 4 + 2 + 3 counted tokens."""
    method = replace(CATALOGUE["rloo"](kl_coefficient=0.0), aggregation=token_mean)
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
def test_token_means_are_over_the_step_and_not_over_micro_batches(budget: int) -> None:
    """Case D1: losses 1, 1 and six times 4 have mean 26/8 = 3.25, not (1 + 4)/2."""
    policy = Table([[-1.0, -1.0], [-4.0] * 6])
    rows = [Row((9,), (0, 0)), Row((8,), (1,) * 6)]
    mask = flags([[1, 1, 0, 0, 0, 0], [1] * 6])
    method = Method("d1", total_return, policy_gradient_loss, token_mean)
    loss = learner(policy, recipe(budget=budget))._accumulate(
        rows, TrainingBatch(mask, mask.double()), method, torch.arange(2), torch.zeros(2, 6), _Tally(None)
    )
    assert loss == 3.25
    close(policy.table[0].grad, [-0.125] * 2)  # type: ignore[arg-type]
    close(policy.table[1].grad, [-0.125] * 6)  # type: ignore[arg-type]


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_sum", "sequence_mean"])
@pytest.mark.parametrize("budget", [1, FOREVER])
def test_a_micro_batch_without_a_counted_token_enters_no_denominator(budget: int, aggregation: str) -> None:
    """Case D5: losses 2, 4 and a masked one: 3, not 2."""
    policy = Table([[-2.0], [-4.0], [-100.0]])
    mask = flags([[1], [1], [0]])
    method = Method("d5", total_return, policy_gradient_loss, AGGREGATIONS[aggregation])
    rows = [Row((9 - i,), (i,)) for i in range(3)]
    loss = learner(policy, recipe(budget=budget))._accumulate(
        rows, TrainingBatch(mask, mask.double()), method, torch.arange(3), torch.zeros(3, 1), _Tally(None)
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
    pieces = list(micro_batches(rows, budget))
    assert sorted(i for piece in pieces for i in piece) == list(range(len(rows)))
    for piece in pieces:
        prompts = {rows[i].prompt_ids for i in piece}
        size = sum(map(len, prompts)) + sum(len(rows[i].token_ids) for i in piece)
        assert size <= budget or len(piece) == 1
        together = [rows[i].prompt_ids for i in piece]
        assert together == sorted(together)


# --- (b) what is frozen, what is counted ---------------------------------------------------------------------------


def table_rollouts(old: Sequence[float], rewards: Sequence[float | None]) -> Rollouts:
    """One token a row; row i is completion i of a prompt of its own."""
    rows = [completion([i], group=i, prompt=(9, i), behaviour=[x]) for i, x in enumerate(old)]
    made = build_rollouts(rows, outcomes(rewards))
    return replace(made, old_logprobs=f64([[x] for x in old]))


PPO = Method("ppo", total_return, partial(clipped_loss, clip_low=0.2, clip_high=0.2), sequence_sum)


def test_old_log_probabilities_stay_frozen_over_epochs() -> None:
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
    """Ratios 0.5 and 1.5, credit +1 and −1: clipped are (1.5, +) and (0.5, −); the others have gradients −Aρ/B."""
    half, more = math.log(0.5), math.log(1.5)
    policy = Table([[half], [half], [more], [more]])
    rollouts = table_rollouts([0.0] * 4, [1.0, -1.0, 1.0, -1.0])
    trained = learner(policy, recipe("ppo-loo", rate=1e-30))
    metrics = trained.step(rollouts, PPO, 1)
    assert metrics["clip_fraction"] == 0.5
    # Losses −0.5, +0.8, −1.2, +1.5: mean 0.15. Gradients −0.5/4, 0, 0, 1.5/4.
    assert metrics["loss"] == pytest.approx(0.15, abs=1e-12)
    assert metrics["grad_norm"] == pytest.approx(math.hypot(0.125, 0.375), abs=1e-12)


def test_the_schedule_is_counted_in_optimizer_steps() -> None:
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


def test_the_ratio_is_one_in_all_epochs_while_nothing_is_learned() -> None:
    """Case E3: a model with dropout 0.1, and other micro-batches than those that gave the old log-probs."""
    policy = decoder("grouped", dropout=0.1, double=False)
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


def test_clip_fraction_and_entropy_are_over_all_mini_batches() -> None:
    """Case H12: fractions 0.4, 0.2 and 0 make 0.2, not 0; what stands at padding enters no mean."""
    tally = _Tally((0.8, 1.2))
    mask = flags([[1] * 5 + [0]])
    for clipped in (2, 1, 0):
        ratios = f64([[2.0] * clipped + [1.0] * (5 - clipped) + [9.0]]).log()
        part = TrainingBatch(mask, torch.ones(1, 6).double(), torch.zeros(1, 6).double())
        tally.tokens(ratios, f64([[0.5, 0.7, 0.6, 0.6, 0.6, -1e9]]), torch.zeros(1, 6), part)
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


# --- outcomes that are no rewards ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_row_that_was_not_judged_trains_nothing(name: str) -> None:
    """Cases H10 and B12: other tokens in the failed row change no gradient; and it has none of its own."""
    method = CATALOGUE[name](kl_coefficient=0.3)
    _, expected, _ = accumulated(decoder(), batch(), method, 14)
    for tokens in (3, 7):
        changed = batch(invalid_tokens=tokens)
        assert changed.completions[4].token_ids != batch().completions[4].token_ids
        same = replace(batch(), completions=changed.completions)
        _, measured, _ = accumulated(decoder(), same, method, 14)
        close(measured, expected, atol=1e-12)
    assert float(method.prepare(batch()).credit[4].abs().max()) == 0.0


def test_h10_digits_a_missing_reward_is_no_zero() -> None:
    """Rewards 1, missing, 1 in one group: both credits 0 and no gradient; a zero would have given +1/3 and −2/3."""
    policy = Table([[-1.0], [-1.0], [-1.0]])
    rows = [completion([i], prompt=(9,), sample=i) for i in range(3)]
    rollouts = build_rollouts(rows, outcomes([1.0, None, 1.0]))
    metrics = learner(policy, recipe()).step(rollouts, CATALOGUE["rloo"](kl_coefficient=0.0), 1)
    assert metrics["grad_norm"] == 0.0
    assert [float(row.detach()) for row in policy.table] == [-1.0] * 3


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_batch_without_a_judged_row_changes_nothing_and_has_no_nan(name: str) -> None:
    """Case C10's last line: 0 trained tokens give loss 0, gradient 0, and no NaN."""
    empty = build_rollouts(batch().completions, outcomes([None] * 10))
    empty = replace(empty, old_logprobs=batch().old_logprobs, reference_logprobs=batch().reference_logprobs)
    policy = fresh(decoder())
    before = [p.detach().clone() for p in policy.parameters()]
    metrics = learner(policy, recipe(name, budget=14)).step(empty, CATALOGUE[name](), 1)
    assert metrics["loss"] == metrics["grad_norm"] == metrics["entropy"] == 0.0
    assert all(math.isfinite(value) for value in metrics.values())
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_empty_completions_are_carried_along() -> None:
    """A completion of no token at all trains nothing and breaks nothing."""
    rows: list[Completion] = [*batch().completions, completion([], group=0, sample=99, prompt=PROMPTS[0])]
    rollouts = build_rollouts(rows, outcomes([*REWARDS, 1000.0]))
    method = CATALOGUE["rloo"](kl_coefficient=0.0)
    _, expected, _ = accumulated(
        decoder(), build_rollouts(batch().completions, outcomes(REWARDS)), method, 14
    )
    for budget in (1, 14, FOREVER):
        _, measured, _ = accumulated(decoder(), rollouts, method, budget)
        close(measured, expected, atol=1e-10)


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


@pytest.fixture(autouse=True)
def _no_gradient_is_left() -> Iterator[None]:
    yield
    for policy in (decoder(), decoder("padded")):
        policy.zero_grad(set_to_none=True)
