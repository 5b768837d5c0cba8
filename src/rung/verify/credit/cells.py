"""The estimators' side of `rung verify credit`: every Ψ by rung's own functions, on every batch that may be sampled."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, TypeAlias

import numpy as np
import torch

from rung.aggregation import sequence_sum
from rung.credit import (
    MovingAverage,
    gae,
    group_centered,
    group_standardized,
    leave_one_out,
    minus_batch_mean,
    minus_constant,
    minus_greedy,
    reward_to_go,
    reward_to_go_minus_batch_mean,
    reward_to_go_minus_step_mean,
    td_residual,
    total_return,
    whitened_group_centered,
    whitened_to_go,
)
from rung.exact import (
    advantages,
    best_constant_baseline,
    best_state_baseline,
    greedy_tokens,
    objective,
    state_values,
)
from rung.exact.token_mdp import FloatArray, Prefix
from rung.masked import masked_sum
from rung.policy_losses import policy_gradient_loss
from rung.verify.enumeration import Moments, Setting
from rung.verify.problems import Problem

Critic: TypeAlias = Literal["exact", "wrong", "start"]
CONSTANT = 0.5
EARLIER_RETURNS = (1.0, 0.5)  # of the batch before, for the moving average


@dataclass(frozen=True)
class Rows:
    """A batch as a credit sees it; [B, T] unless said otherwise.

    Attributes:
        rewards: r_t, 0 off the mask.
        mask: bool.
        groups: [B] ids; one prompt, one group.
        values: V(s_t) by critic: "exact", "wrong", or exact "but at the start".
        advantages: A(s_t, a_t).
        best_state: b(s_t) of least variance for Q.
        constants: numbers fixed beforehand: J, the best constant, the greedy return.
    """

    rewards: torch.Tensor
    mask: torch.Tensor
    groups: torch.Tensor
    values: dict[Critic, torch.Tensor]
    advantages: torch.Tensor
    best_state: torch.Tensor
    constants: dict[str, float]

    @property
    def returns(self) -> torch.Tensor:
        """[B] undiscounted R."""
        return masked_sum(self.rewards, self.mask, dim=1)

    @property
    def action_values(self) -> torch.Tensor:
        """[B, T] Q(s_t, a_t)."""
        return self.advantages + self.values["exact"]

    def gae(self, critic: Critic, lam: float, gamma: float = 1.0) -> torch.Tensor:
        """[B, T] GAE(γ, λ) with one of the critics."""
        return gae(self.rewards, self.values[critic], self.mask, gamma=gamma, lam=lam)

    def discounts(self, gamma: float) -> torch.Tensor:
        """[T] γ^t."""
        return gamma ** torch.arange(self.mask.shape[1], dtype=torch.float64)


Credit: TypeAlias = Callable[[Rows], torch.Tensor]

SINGLE: dict[str, Credit] = {
    "R(τ), total return": lambda x: total_return(x.rewards, x.mask),
    "G_t, reward-to-go": lambda x: reward_to_go(x.rewards, x.mask),
    "R − constant 0.5": lambda x: minus_constant(x.returns, baseline=CONSTANT),
    "R − J": lambda x: minus_constant(x.returns, baseline=x.constants["J"]),
    "R − best constant": lambda x: minus_constant(x.returns, baseline=x.constants["best"]),
    "R − R(greedy)": lambda x: minus_greedy(x.returns, torch.full_like(x.returns, x.constants["greedy"])),
    "G_t − moving average": lambda x: MovingAverage(0.0, 0.9).after(
        torch.tensor(EARLIER_RETURNS, dtype=torch.float64)
    )(x.rewards, x.mask),
    "G_t − V": lambda x: x.gae("exact", 1.0),
    "Q": lambda x: x.action_values,
    "A": lambda x: x.advantages,
    "Q − best b(s)": lambda x: x.action_values - x.best_state,
    "TD residual, exact V": lambda x: td_residual(x.rewards, x.values["exact"], x.mask),
    "GAE(0.5), exact V": lambda x: x.gae("exact", 0.5),
    "GAE(0.95), exact V": lambda x: x.gae("exact", 0.95),
    "G_t − wrong V": lambda x: x.gae("wrong", 1.0),
    "TD residual, wrong V": lambda x: td_residual(x.rewards, x.values["wrong"], x.mask),
    "GAE(0.5), wrong V": lambda x: x.gae("wrong", 0.5),
    "GAE(0.95), wrong V": lambda x: x.gae("wrong", 0.95),
    "TD, V wrong at the start": lambda x: td_residual(x.rewards, x.values["start"], x.mask),
}
BATCH: dict[str, Credit] = {
    "R − batch mean": lambda x: minus_batch_mean(x.returns),
    "G_t − batch mean": lambda x: reward_to_go_minus_batch_mean(x.rewards, x.mask),
    "G_t − step mean": lambda x: reward_to_go_minus_step_mean(x.rewards, x.mask),
    "leave-one-out": lambda x: leave_one_out(x.returns, x.groups),
    "group-centered": lambda x: group_centered(x.returns, x.groups),
    "group-standardized": lambda x: group_standardized(x.returns, x.groups),
    "whitened G_t": lambda x: whitened_to_go(x.rewards, x.mask),
    "whitened group-centered": lambda x: whitened_group_centered(x.returns, x.groups, x.mask),
}


def discounted(gamma: float) -> dict[str, Credit]:
    """The credits of γ < 1, by name."""

    def timed(credit: Credit) -> Credit:
        return lambda x: x.discounts(gamma) * credit(x)

    half: dict[Critic, Credit] = {
        critic: partial(Rows.gae, critic=critic, lam=0.5, gamma=gamma) for critic in ("exact", "wrong")
    }
    to_go: Credit = lambda x: reward_to_go(x.rewards, x.mask, gamma=gamma)  # noqa: E731
    return {
        "R(τ), total return": lambda x: total_return(x.rewards, x.mask, gamma=gamma),
        "G_t": to_go,
        "γ^t G_t": timed(to_go),
        "GAE(0.5), exact V": half["exact"],
        "γ^t GAE(0.5), exact V": timed(half["exact"]),
        "γ^t (G_t − wrong V)": timed(lambda x: x.gae("wrong", 1.0, gamma)),
        "γ^t GAE(0.5), wrong V": timed(half["wrong"]),
    }


@dataclass(frozen=True)
class Bench:
    """All sequences of a problem of one prompt, with everything that a credit may ask for.

    Attributes:
        problem: one prompt.
        gamma: of the values; rewards themselves are as they are.
    """

    problem: Problem
    gamma: float = 1.0

    @cached_property
    def tables(self) -> dict[Critic, dict[Prefix, float]]:
        """V by critic."""
        mdp, policy, _ = self.problem.oracles()[0]
        exact = state_values(mdp, policy, gamma=self.gamma)
        return {
            "exact": exact,
            "wrong": {prefix: self.problem.critic(0, prefix) for prefix in exact},
            "start": exact | {(): self.problem.critic(0, ())},
        }

    @cached_property
    def constants(self) -> dict[str, float]:
        """J, the constant baseline of least variance, and the return of the greedy sequence."""
        mdp, policy, _ = self.problem.oracles()[0]
        return {
            "J": objective(mdp, policy),
            "best": best_constant_baseline(mdp, policy),
            "greedy": mdp.total_return(greedy_tokens(mdp, policy)),
        }

    @cached_property
    def best_state(self) -> dict[Prefix, float]:
        """b(s) of least variance for Ψ = Q."""
        mdp, policy, _ = self.problem.oracles()[0]
        values, above = self.tables["exact"], advantages(mdp, policy, gamma=self.gamma)
        return best_state_baseline(
            mdp, policy, lambda tau: np.array([values[s] + above[s][a] for s, a in tau.steps])
        )

    @cached_property
    def rows(self) -> Rows:
        """All N sequences as one batch, of which `moments` takes parts."""
        mdp, policy, _ = self.problem.oracles()[0]
        above = advantages(mdp, policy, gamma=self.gamma)
        sequences = [s.tokens for s in self.problem.sequences]

        def table(function: Callable[[Prefix, int], float]) -> torch.Tensor:
            out = torch.zeros(len(sequences), self.problem.max_length, dtype=torch.float64)
            for i, tokens in enumerate(sequences):
                for t, token in enumerate(tokens):
                    out[i, t] = function(tokens[:t], token)
            return out

        rewards = torch.zeros(len(sequences), self.problem.max_length, dtype=torch.float64)
        for i, tokens in enumerate(sequences):
            rewards[i, : len(tokens)] = torch.tensor(mdp.rewards(tokens))
        critics = {name: table(lambda s, _, v=v: v[s]) for name, v in self.tables.items()}  # type: ignore[misc]
        return Rows(
            rewards,
            table(lambda s, a: 1.0).bool(),
            torch.full((len(sequences),), 41),
            critics,
            table(lambda s, a: above[s][a]),
            table(lambda s, a: self.best_state[s]),
            self.constants,
        )

    def batch(self, numbers: tuple[int, ...]) -> Rows:
        """The batch of these sequences."""
        index, whole = torch.tensor(numbers), self.rows
        return Rows(
            whole.rewards[index],
            whole.mask[index],
            whole.groups[index],
            {name: v[index] for name, v in whole.values.items()},
            whole.advantages[index],
            whole.best_state[index],
            whole.constants,
        )

    def moments(self, credit: Credit, size: int) -> Moments:
        """Exact mean and covariance of −∇ Σ weights · policy_gradient_loss, over all batches of B sequences."""
        setting = Setting(self.problem, size)
        chances, gradients = [], []
        for numbers, chance in setting.batches(ordered=False):
            rows = self.batch(numbers)
            psi = credit(rows)
            if psi.ndim == 1:
                psi = psi.unsqueeze(1).expand(rows.mask.shape)
            logprobs = torch.zeros(rows.mask.shape, dtype=torch.float64, requires_grad=True)
            loss = masked_sum(sequence_sum(rows.mask) * policy_gradient_loss(logprobs, psi), rows.mask)
            (slope,) = torch.autograd.grad(loss, logprobs)
            chances.append(chance)
            gradients.append(np.einsum("bt,btn->n", -slope.numpy(), setting.scores[list(numbers)]))
        p, g = np.array(chances), np.array(gradients)
        mean: FloatArray = p @ g
        return Moments(mean, (p[:, None] * (g - mean)).T @ (g - mean), 0.0)
