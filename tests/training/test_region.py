"""TRPO on decoders: products, evaluations and whole steps against a Fisher matrix written out from naive gradients."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rung import api
from rung.batch import Rollouts, build_rollouts
from rung.errors import TrainingDiverged
from rung.methods import Method, trpo
from rung.models import head as head_module
from rung.models.policy import Policy
from rung.training.micro import logprobs_of, rows_of
from rung.training.region import Region
from rung.training.session import Session, Silent
from rung.trust_region import TrustRegion
from tests.batches import close, completion, f64, outcomes
from tests.decoders import exact_llama, naive_table, plain
from tests.learning import FOREVER, Table, learner, recipe
from tests.tiny import metrics, rl_recipe

SMALL = {"hidden_size": 4, "intermediate_size": 5, "num_attention_heads": 2, "num_key_value_heads": 1}
TOKENS = [(0, [3, 9, 12]), (0, [5]), (0, [3, 1, 1, 4, 2]), (1, [7, 7, 0]), (1, [2, 12]), (1, [11, 6, 8, 0])]
REWARDS = [1.0, -0.5, 0.25, 2.0, None, 0.5]
PROMPTS = [(1, 10, 2), (7, 3, 11, 4, 4)]


def small(path: str = "grouped") -> Policy:
    return Policy(exact_llama(seed=2, num_hidden_layers=2, **SMALL), path=path)  # type: ignore[arg-type]


def sampled(policy: Policy) -> Rollouts:
    """Two groups, one failed judge, a token that the policy did not sample; old and behaviour are the policy's own."""
    rows = [
        completion(
            tokens, group=group, sample=i, prompt=PROMPTS[group], sampled=[1, 0, 1, 1, 1] if i == 2 else None
        )
        for i, (group, tokens) in enumerate(TOKENS)
    ]
    made = build_rollouts(rows, outcomes(REWARDS))
    own = logprobs_of(policy, rows_of(made), FOREVER)
    return replace(made, old_logprobs=own, behaviour_logprobs=own)


def flat(policy: Policy) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in policy.parameters()])


class ByHand:
    """The same batch without rung: one row at a time, whole logits, one gradient a token."""

    def __init__(self, policy: Policy, rollouts: Rollouts) -> None:
        self.model = plain(policy.model)
        self.rows = rows_of(rollouts)
        self.counted = [
            (i, t) for i, t in rollouts.mask.nonzero().tolist() if rollouts.outcomes[i].reward is not None
        ]
        rewards = [outcome.reward for outcome in rollouts.outcomes]
        self.credit: dict[int, float] = {}
        for i, reward in enumerate(rewards):
            others = [
                r for j, r in enumerate(rewards) if j != i and r is not None and TOKENS[j][0] == TOKENS[i][0]
            ]
            if reward is not None:
                self.credit[i] = reward - sum(others) / len(others)
        self.start = [p.detach().clone() for p in self.model.parameters()]
        self.old = self.table().detach()

    def table(self) -> torch.Tensor:
        return naive_table(self.model, self.rows)

    def scores(self) -> torch.Tensor:
        """[counted tokens, n] ∇log π of each."""
        table = self.table()
        return torch.stack(
            [
                torch.cat(
                    [
                        part.flatten()
                        for part in torch.autograd.grad(
                            table[i, t], list(self.model.parameters()), retain_graph=True
                        )
                    ]
                )
                for i, t in self.counted
            ]
        )

    def fisher(self) -> torch.Tensor:
        scores = self.scores()
        return scores.T @ scores / len(self.counted)

    def gradient(self) -> torch.Tensor:
        """Of −(1/B) Σ A ρ at ρ = 1, over the five judged sequences."""
        weights = f64([-self.credit[i] / 5 for i, _ in self.counted])
        return weights @ self.scores()

    def evaluate(self, step: torch.Tensor) -> tuple[float, float]:
        """Surrogate loss and mean of k3(old, new)."""
        offset = 0
        with torch.no_grad():
            for parameter, start in zip(self.model.parameters(), self.start, strict=True):
                parameter.copy_(start + step[offset : offset + start.numel()].view_as(start))
                offset += start.numel()
            new = self.table()
        loss = kl = 0.0
        for i, t in self.counted:
            ratio = math.exp(float(new[i, t] - self.old[i, t]))
            loss -= self.credit[i] * ratio / 5
            kl += (ratio - 1 - math.log(ratio)) / len(self.counted)
        return loss, kl


@pytest.fixture
def policy() -> Policy:
    return small()


def region(policy: Policy, rollouts: Rollouts, method: Method, budget: int = FOREVER) -> Region:
    return Region(policy, rows_of(rollouts), method.prepare(rollouts), method, budget)


METHOD = trpo(kl_coefficient=0.0)


@pytest.mark.parametrize("chunk", [1, 1000], ids=["recomputed", "in one chunk"])
@pytest.mark.parametrize("path", ["grouped", "padded"])
@pytest.mark.parametrize("budget", [1, 14, FOREVER])
def test_products_are_those_of_the_fisher_matrix_of_the_sampled_tokens(
    budget: int, path: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice differentiated, also through layers and chunks that are computed again in backward."""
    monkeypatch.setattr(head_module, "CHUNK_ELEMENTS", 13 * chunk)
    policy = small(path)
    rollouts = sampled(policy)
    matrix = ByHand(policy, rollouts).fisher()
    generator = torch.Generator().manual_seed(1)
    vector = torch.randn(len(matrix), generator=generator, dtype=torch.float64)
    expected = matrix @ vector
    assert float(expected.abs().max()) > 0.1
    close(region(policy, rollouts, METHOD, budget).product(vector), expected, atol=1e-10)


@pytest.mark.parametrize("budget", [1, FOREVER])
def test_an_evaluation_moves_the_weights_and_gives_surrogate_and_divergence(
    policy: Policy, budget: int
) -> None:
    rollouts = sampled(policy)
    by_hand, before = ByHand(policy, rollouts), flat(policy)
    step = 0.02 * torch.sin(torch.arange(len(before), dtype=torch.float64))
    around = region(policy, rollouts, METHOD, budget)
    for scale in (0.0, 1.0, -3.0):
        loss, kl = around.evaluate(scale * step)
        assert (loss, kl) == pytest.approx(by_hand.evaluate(scale * step), abs=1e-10)
        close(flat(policy), before + scale * step, atol=1e-12)
    assert kl > 1e-3
    around.move(None)
    assert torch.equal(flat(policy), before)


@pytest.mark.parametrize(("max_kl", "budget"), [(0.01, 9), (0.01, FOREVER), (0.1, 14)])
def test_a_step_is_that_of_a_dense_fisher_matrix(policy: Policy, max_kl: float, budget: int) -> None:
    """(F + λ)x = g solved directly, √(2δ / xᵀ(F + λ)x) along it, shortened by 0.8 until it fits: all by hand.

    Of 15 tokens F has a rank of at most 15, so 40 products are more than enough. This decoder is so small that its
    divergence is far from a parabola: the first attempts do not fit.
    """
    settings = TrustRegion(max_kl=max_kl, damping=0.1, iterations=40)
    rollouts = sampled(policy)
    by_hand, before = ByHand(policy, rollouts), flat(policy)
    gradient = by_hand.gradient()
    damped = by_hand.fisher() + 0.1 * torch.eye(len(before), dtype=torch.float64)
    x = torch.linalg.solve(damped, gradient)
    full = -math.sqrt(2 * max_kl / float(x @ damped @ x)) * x
    start, _ = by_hand.evaluate(torch.zeros_like(before))
    tries = [by_hand.evaluate(0.8**n * full) for n in range(11)]
    first = next(n for n, (loss, kl) in enumerate(tries) if kl <= max_kl and loss < start)
    assert first >= 1
    trained = learner(policy, recipe("trpo", budget=budget))
    found = trained.step(rollouts, replace(METHOD, update=settings), 1)
    assert (found["accepted"], found["backtracks"], found["updates"]) == (1, first, 1)
    close(flat(policy), before + 0.8**first * full, atol=1e-9)
    assert found["kl_old_policy"] == pytest.approx(tries[first][1], abs=1e-9)
    assert found["loss"] == pytest.approx(start, abs=1e-10)
    assert found["grad_norm"] == pytest.approx(float(gradient.norm()), abs=1e-10)
    assert "learning_rate" not in found


def test_a_step_that_fails_leaves_every_bit_of_the_weights(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A negative zero among them: −0 + 0 would be +0. Every step is said to go too far."""
    with torch.no_grad():
        next(policy.parameters())[0, 0] = -0.0
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    whole = Region.evaluate

    def too_far(self: Region, step: torch.Tensor) -> tuple[float, float]:
        loss, kl = whole(self, step)
        return loss, kl + 1.0 * bool(step.any())

    monkeypatch.setattr(Region, "evaluate", too_far)
    method = replace(METHOD, update=TrustRegion(backtracks=2))
    found = learner(policy, recipe("trpo")).step(sampled(policy), method, 1)
    assert (found["accepted"], found["backtracks"], found["updates"]) == (0, 2, 0)
    assert found["kl_old_policy"] == pytest.approx(0.0, abs=1e-25)
    for name, parameter in policy.named_parameters():
        assert torch.equal(parameter, before[name])
        assert torch.equal(torch.signbit(parameter), torch.signbit(before[name]))
    assert all(p.grad is None for p in policy.parameters())


def test_a_gradient_that_is_no_number_stops_the_run_and_leaves_the_weights() -> None:
    policy = Table([[-1.0], [-2.0]])
    policy.table[0].register_hook(lambda gradient: gradient * math.nan)
    rows = [completion([i], group=0, sample=i, prompt=(9,), behaviour=[-1.0 - i]) for i in range(2)]
    made = build_rollouts(rows, outcomes([1.0, 0.0]))
    rollouts = replace(made, old_logprobs=f64([[-1.0], [-2.0]]))
    with pytest.raises(
        TrainingDiverged, match=r"update 1: .*nan\. The weights were not changed.*a lower max_kl"
    ):
        learner(policy, recipe("trpo")).step(rollouts, METHOD, 1)
    assert [float(row.detach()) for row in policy.table] == [-1.0, -2.0]


def test_equal_rewards_have_no_direction(policy: Policy) -> None:
    rollouts = sampled(policy)
    same = replace(rollouts, outcome_rewards=torch.full_like(rollouts.outcome_rewards, 0.5))
    before = flat(policy)
    found = learner(policy, recipe("trpo")).step(same, METHOD, 1)
    assert (found["accepted"], found["updates"], found["loss"]) == (0, 0, 0.0)
    assert torch.equal(flat(policy), before)


@pytest.mark.usefixtures("many_rewards")
def test_on_a_transformer_every_step_stays_within_its_bound_and_the_surrogate_improves(
    tmp_path: Path,
) -> None:
    """Float32, a real model: what is logged is measured again, from the weights before and after."""
    measured: list[tuple[float, float]] = []

    def watch(session: Session) -> None:
        step = session.learner.step

        def again(rollouts: Rollouts, method: Method, number: int) -> dict[str, float]:
            before = copy.deepcopy(session.learner.policy)
            found = step(rollouts, method, number)
            rows, batch = rows_of(rollouts), method.prepare(rollouts)
            old, new = (logprobs_of(policy, rows, 200) for policy in (before, session.learner.policy))
            log_ratio = torch.where(batch.mask, new - old, 0.0)
            gain = (log_ratio.expm1() * batch.credit).sum() / len(rows)
            kl = (log_ratio.expm1() - log_ratio).sum() / batch.mask.sum()
            measured.append((float(kl), float(gain)))
            return found

        session.learner.step = again  # type: ignore[method-assign]

    words = [
        "method=trpo",
        "training.steps=2",
        "evaluation.test_problems=0",
        "evaluation.every=0",
        "max_kl=0.003",
    ]
    said: list[str] = []

    class Notes(Silent):
        def note(self, text: str) -> None:
            said.append(text)

    run = api.train(rl_recipe(tmp_path), words, root=tmp_path, started=watch, observer=Notes()).folder
    assert said == ["method trpo reads nothing of [optimizer]: its step goes as far as max_kl allows"]
    assert len(measured) == 2
    for line, (kl, gain) in zip(metrics(run), measured, strict=True):
        assert line["accepted"] == 1
        assert 3e-4 < line["kl_old_policy"] <= 0.003
        assert line["kl_old_policy"] == pytest.approx(kl, rel=1e-3)
        assert gain > 0.01
        assert line["updates"] == line["step"]
