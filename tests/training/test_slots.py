"""Parts of a method that reach the model through the learner: an entropy bonus, and weights against the sampler."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from rung import api
from rung.aggregation import token_mean
from rung.batch import Rollouts, build_rollouts
from rung.correction import importance
from rung.credit import group_centered, leave_one_out
from rung.methods import Method, rloo
from rung.models.layout import Row
from rung.models.policy import PolicyOutput
from rung.policy_losses import policy_gradient_loss
from rung.training.micro import rows_of
from rung.training.session import Session
from tests.batches import close, completion, f64, outcomes
from tests.decoders import naive_table, plain
from tests.learning import FOREVER, accumulated, batch, decoder, learner, recipe
from tests.tiny import rl_recipe

# --- the entropy bonus ------------------------------------------------------------------------------------------------


class Bandit(nn.Module):
    """One position, whose logits are the parameters."""

    path = "grouped"

    def __init__(self, logits: Sequence[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(f64(logits))

    def forward(self, rows: Sequence[Row], *, live_entropy: bool = False) -> PolicyOutput:
        logprobs = self.logits - self.logits.logsumexp(0)
        entropy = -(logprobs.exp() * logprobs).sum().expand(len(rows), 1)
        picked = logprobs[[row.token_ids[0] for row in rows]].unsqueeze(1)
        return PolicyOutput(picked, entropy if live_entropy else entropy.detach())


BONUS = Method("bonus", group_centered, policy_gradient_loss, token_mean, entropy_coefficient=0.01)


def test_case_A9_an_entropy_bonus_moves_the_weights_and_in_the_right_direction() -> None:
    """p = (0.5, 0.3, 0.2), policy gradient 0, loss −0.01 H with H = 1.02965301: recorded gradient, and H rises."""
    policy = Bandit([math.log(p) for p in (0.5, 0.3, 0.2)])
    rows = [completion([i], group=0, sample=i, prompt=(9,)) for i in range(3)]
    rollouts = build_rollouts(rows, outcomes([1.0, 1.0, 1.0]))
    start = policy.logits.detach().clone()
    found = learner(policy, recipe(rate=1.0)).step(rollouts, BONUS, 1)
    moved = policy.logits.detach() - start
    close(-moved, [0.00168253, -0.00052296, -0.00115957], atol=5e-9)
    assert found["entropy"] == pytest.approx(1.02965301, abs=5e-9)
    assert found["loss"] == pytest.approx(-0.0102965301, abs=5e-11)
    p = policy.logits.detach().softmax(0)
    assert -float((p * p.log()).sum()) > 1.02965301 + 1e-6


@pytest.mark.parametrize("budget", [1, 14, FOREVER])
def test_the_bonus_has_its_exact_gradient_on_a_decoder(budget: int) -> None:
    """Σ weights · (−A log π − c H) by autograd on whole logits, one row at a time; the failed row has no part in it."""
    method, rollouts, policy = replace(rloo(kl_coefficient=0.0), entropy_coefficient=0.3), batch(), decoder()
    value, measured, logged = accumulated(policy, rollouts, method, budget)
    twin, rows = plain(policy.model), rows_of(rollouts)
    credit = method.prepare(rollouts).credit
    total, entropies = f64(0.0), []
    for i, t in rollouts.mask.nonzero().tolist():
        if rollouts.outcomes[i].reward is None:
            continue
        text = torch.tensor([rows[i].prompt_ids + rows[i].token_ids])
        logits = twin(input_ids=text, use_cache=False).logits[0, len(rows[i].prompt_ids) + t - 1]
        logprobs = logits - logits.exp().sum().log()
        entropy = -(logprobs.exp() * logprobs).sum()
        entropies.append(float(entropy.detach()))
        total = total - (credit[i, t] * logprobs[rows[i].token_ids[t]] + 0.3 * entropy) / 9
    total.backward()
    expected = torch.cat([p.grad.flatten() for p in twin.parameters()])  # type: ignore[union-attr]
    assert value == pytest.approx(float(total.detach()), abs=1e-10)
    close(measured, expected, atol=1e-10)
    assert logged["entropy"] == pytest.approx(sum(entropies) / len(entropies), abs=1e-10)
    _, without, _ = accumulated(policy, rollouts, rloo(kl_coefficient=0.0), budget)
    assert float((without - expected).abs().max()) > 1e-2


def test_nobody_asks_for_a_live_entropy_without_a_bonus(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    forward = Bandit.forward

    def watched(self: Bandit, rows: Sequence[Row], *, live_entropy: bool = False) -> PolicyOutput:
        asked.append(live_entropy)
        return forward(self, rows, live_entropy=live_entropy)

    monkeypatch.setattr(Bandit, "forward", watched)
    rows = [completion([i], group=0, sample=i, prompt=(9,)) for i in range(3)]
    rollouts = build_rollouts(rows, outcomes([1.0, 0.0, 1.0]))
    for coefficient in (0.0, 0.01):
        learner(Bandit([0.0, 0.0, 0.0]), recipe()).step(
            rollouts, replace(BONUS, entropy_coefficient=coefficient), 1
        )
    assert asked == [False, True]


# --- weights against the sampler --------------------------------------------------------------------------------------


def leave_one_out_by_hand(rewards: Sequence[float], groups: Sequence[int]) -> list[float]:
    out = []
    for i, reward in enumerate(rewards):
        others = [r for j, r in enumerate(rewards) if groups[j] == groups[i] and j != i]
        out.append(reward - sum(others) / len(others))
    return out


@pytest.mark.usefixtures("many_rewards")
def test_a_sampler_of_another_temperature_is_corrected_by_truncated_sequence_weights(tmp_path: Path) -> None:
    """On the small model, its sampler at 1.4: ∇ of −(1/B) Σ_i min(w_i, 1.2) A_i Σ_t log π, row by row, in float64.

    w_i is the product of the ratios of the trainer's own probabilities to those that were sampled from. The model
    itself is float32, so equality is to its rounding; without the weights the gradient is another one.
    """
    kept: list[tuple[Rollouts, dict[str, torch.Tensor], torch.Tensor]] = []

    def started(session: Session) -> None:
        session.engine.temperature = 1.4
        whole, policy = session.learner.step, session.learner.policy

        def step(rollouts: Rollouts, method: Method, number: int) -> dict[str, float]:
            state = {name: value.detach().clone() for name, value in policy.model.state_dict().items()}
            gradients: list[torch.Tensor] = []
            hook = session.learner.optimizer.register_step_pre_hook(
                lambda *_: gradients.append(
                    torch.cat([p.grad.flatten().clone() for p in policy.parameters()])  # type: ignore[union-attr]
                )
            )
            found = whole(rollouts, method, number)
            hook.remove()
            kept.append((rollouts, state, gradients[0]))
            policy_of.append(policy.model)
            return found

        session.learner.step = step  # type: ignore[method-assign]

    policy_of: list[nn.Module] = []
    words = ["method=rloo-corrected", "cap=1.2", "kl_coefficient=0", "rollout.mismatch_tolerance=9"]
    words += [
        "training.steps=1",
        "evaluation.test_problems=0",
        "evaluation.every=0",
        "optimizer.max_grad_norm=1e9",
    ]
    (line,) = api.train(rl_recipe(tmp_path), words, root=tmp_path, started=started).metrics
    ((rollouts, state, measured),) = kept
    assert line["sampler_logratio_max"] > 0.1
    model = plain(policy_of[0])  # type: ignore[arg-type]
    model.load_state_dict(state)
    model.double()
    model.zero_grad(set_to_none=True)
    table = naive_table(model, rows_of(rollouts))
    credit = leave_one_out_by_hand(rollouts.outcome_rewards.tolist(), rollouts.groups.tolist())
    weights, total, plain_total = [], f64(0.0), f64(0.0)
    for i, c in enumerate(rollouts.completions):
        length = len(c.token_ids)
        log_weight = sum(float(table[i, t].detach()) - c.behaviour_logprobs[t] for t in range(length))
        weights.append(math.exp(log_weight))
        total = total - min(weights[-1], 1.2) * credit[i] * table[i, :length].sum() / 48
        plain_total = plain_total - credit[i] * table[i, :length].sum() / 48
    assert sum(w > 1.2 for w in weights) > 3
    assert sum(w < 0.9 for w in weights) > 3

    def of(loss: torch.Tensor) -> torch.Tensor:
        return torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)]
        )

    expected, uncorrected = of(total), of(plain_total)
    scale = float(expected.abs().max())
    close(measured.double(), expected, atol=1e-4 * scale)
    assert float((uncorrected - expected).abs().max()) > 0.05 * scale


def test_case_E7_a_shift_between_sampler_and_trainer_is_another_weight() -> None:
    """Sampler and trainer −0.5, −1.2, −0.3 are ratios 1, 1, 1; paired one off, 0.49658530 and 2.45960311."""
    logprobs = f64([[-0.5, -1.2, -0.3]])
    weigh = partial(importance, mask=torch.ones(1, 3, dtype=torch.bool), level="token")
    close(weigh(logprobs, logprobs), [[1.0, 1.0, 1.0]])
    close(
        weigh(logprobs[:, 1:], logprobs[:, :-1], mask=torch.ones(1, 2, dtype=torch.bool)),
        [[0.4965853, 2.45960311]],
        atol=5e-9,
    )
    rows = [
        completion([0, 1, 2], group=0, sample=i, prompt=(9, 9), behaviour=[-0.5, -1.2, -0.3])
        for i in range(2)
    ]
    rollouts = replace(build_rollouts(rows, outcomes([1.0, 0.0])), old_logprobs=logprobs.expand(2, 3))
    method = Method(
        "e7", leave_one_out, policy_gradient_loss, token_mean, correction=partial(importance, level="token")
    )
    close(method.prepare(rollouts).correction, [[1.0] * 3] * 2)  # type: ignore[arg-type]
