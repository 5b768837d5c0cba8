"""Policies, batches and learners for tests of an optimizer step.

`decoder` is a small Llama in float64, norms included, so that 1e-10 holds. `Table` is the simplest policy that a
learner can train: its parameters are the log-probabilities themselves, so that every number can be checked by hand.
"""

import copy
import inspect
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from rung.aggregation import constant_length, sequence_mean, sequence_sum, token_mean
from rung.batch import Rollouts, build_rollouts
from rung.methods import CATALOGUE, Method
from rung.models.layout import Row
from rung.models.policy import Policy, PolicyOutput
from rung.training.config import Optimizer, Recipe, Rollout, Training
from rung.training.learner import Learner
from rung.training.micro import logprobs_of, rows_of
from rung.training.tally import Tally
from tests.batches import completion, f64, outcomes
from tests.decoders import exact_llama

FOREVER = 10**9


def made(name: str, **settings: Any) -> Method:
    """A method of the catalogue, with a cap on the length where it needs one."""
    factory = CATALOGUE[name]
    return factory(**({"length": 6} if "length" in inspect.signature(factory).parameters else {}), **settings)


# What `rung train` can train: all but those that need a critic.
TRAINABLE = [name for name in CATALOGUE if "values" not in made(name).needs]
AGGREGATIONS = {
    "sequence_sum": sequence_sum,
    "sequence_mean": sequence_mean,
    "token_mean": token_mean,
    "constant_length": partial(constant_length, length=6),
}


@cache
def decoder(path: str = "grouped") -> Policy:
    """A decoder whose distributions are far from uniform. Shared: `fresh` copies it where it is to be trained."""
    return Policy(exact_llama(seed=4), path=path)  # type: ignore[arg-type]


def fresh(policy: Policy) -> Policy:
    """A copy that a test may train."""
    twin = copy.deepcopy(policy)
    twin.zero_grad(set_to_none=True)
    return twin


class Table(nn.Module):
    """log π of each token is a parameter: row i of the table belongs to the completion that starts with token i."""

    path = "grouped"

    def __init__(self, logprobs: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.table = nn.ParameterList([nn.Parameter(f64(row)) for row in logprobs])

    def forward(self, rows: Sequence[Row], *, live_entropy: bool = False) -> PolicyOutput:
        width = max(len(row.token_ids) for row in rows)
        picked = [self.table[row.token_ids[0]][: len(row.token_ids)] for row in rows]
        out = torch.stack([nn.functional.pad(values, (0, width - len(values))) for values in picked])
        return PolicyOutput(out, -out if live_entropy else -out.detach())


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
    trained = Learner(policy, None, settings)  # type: ignore[arg-type]
    trained.optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)  # type: ignore[assignment]
    return trained


LENGTHS = [3, 1, 6, 2, 4, 2, 5, 1, 3, 2]
GROUPS = [0, 0, 2, 1, 0, 1, 1, 1, 2, 3]
REWARDS = [1.0, -0.5, 0.25, 1.0, None, 0.0, 2.5, 0.5, -1.0, 3.0]
PROMPTS = [(1, 10, 2, 11), (7, 7, 10, 3, 11), (4, 11), (5, 10, 5, 11)]


def batch(invalid_tokens: int = 0) -> Rollouts:
    """Four groups of 3, 4, 2 and 1, one failed judge, a tool's tokens in between, log-probs all different.

    Also with a critic's values and the rewards of greedy completions.
    """
    generator = torch.Generator().manual_seed(0)
    rows = []
    for i, (length, group) in enumerate(zip(LENGTHS, GROUPS, strict=True)):
        tokens = torch.randint(0, 12, (length,), generator=generator).tolist()
        if i == 4:
            tokens = [(token + invalid_tokens) % 12 for token in tokens]
        sampled = [1, 0, 0, 1, 1, 1] if i == 2 else [1] * length
        rows.append(completion(tokens, sampled=sampled, group=group, sample=i, prompt=PROMPTS[group]))
    rollouts = build_rollouts(rows, outcomes(REWARDS))
    own = logprobs_of(decoder(), rows_of(rollouts), FOREVER)

    def near(scale: float) -> torch.Tensor:
        noise = scale * torch.randn(own.shape, generator=generator, dtype=torch.float64)
        return torch.where(rollouts.mask, own + noise, 0.0)

    return replace(
        rollouts,
        behaviour_logprobs=near(0.0),
        old_logprobs=near(0.3),
        reference_logprobs=near(0.5),
        values=near(0.2),
        greedy_rewards=f64([0.25, -0.5, 1.0, 0.0])[rollouts.groups],
    )


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
    policy.zero_grad(set_to_none=True)
    tally = Tally((0.8, 1.2))
    rows = rows_of(rollouts)
    if index is None:
        index = torch.arange(len(rows))
    loss = learner(policy, recipe(budget=budget))._accumulate(
        rows, method.prepare(rollouts), method, index, tally
    )
    tally.update(loss, 0.0, 0.0)
    return loss, gradient(policy), tally.metrics()
