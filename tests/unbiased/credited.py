"""Credits on everything that could be sampled: groups of the oracle's trajectories as rung's tensors, and back.

Credit comes from rung, on batches as they are trained on (padded, and with holes that hold NaN); sequences, values and
scores from the oracle.
"""

import math
from functools import cache

import numpy as np
import torch

from rung import exact
from rung.credit import gae
from tests.batches import NAN, f64


class Batch:
    """A group of the oracle's trajectories as tensors [B, T], a row each.

    Tokens stand at every `spacing`-th slot: 1 is a padded batch, 2 has a hole after each token. Off the mask is NaN.
    """

    def __init__(self, mdp, group, spacing=1):
        self.mdp, self.group, self.spacing = mdp, group, spacing
        self.width = spacing * max(tau.length for tau in group)
        self.mask = self.table(lambda tau: [True] * tau.length, torch.bool)
        self.rewards = self.table(lambda tau: mdp.rewards(tau.tokens))
        self.returns = f64([mdp.total_return(tau.tokens) for tau in group])

    def table(self, row, dtype=torch.float64):
        out = torch.full(
            (len(self.group), self.width), NAN if dtype.is_floating_point else False, dtype=dtype
        )
        for i, tau in enumerate(self.group):
            out[i, : self.spacing * tau.length : self.spacing] = torch.tensor(row(tau), dtype=dtype)
        return out

    def at_states(self, values):
        """[B, T] of a number for each prefix."""
        return self.table(lambda tau: [values[s] for s, _ in tau.steps])

    def logprobs(self, policy):
        return self.table(lambda tau: [exact.evaluate(policy, s)[0][a] for s, a in tau.steps])

    def gradient(self, credit, policy):
        """1/B Σ_i Σ_t Ψ_it ∇log π(a_it|s_it)."""
        if credit.ndim == 1:
            credit = torch.where(self.mask, credit.unsqueeze(1), 0.0)
        total = 0.0
        for i, tau in enumerate(self.group):
            own = credit[i, : self.spacing * tau.length : self.spacing]
            total = total + own.numpy() @ scores(policy, tau)
        return total / len(self.group)


@cache
def scores(policy, trajectory):
    return exact.token_scores(policy, trajectory)


def moments(toy, credit, *, group_size=1, sampler=None, spacing=1):
    """Mean and covariance of the gradient with this credit, a function of a Batch."""

    def estimator(group):
        batch = Batch(toy.mdp, group, spacing)
        return batch.gradient(credit(batch), toy.policy)

    return exact.expectation(toy.mdp, sampler or toy.policy, group_size, estimator)


def near(actual, expected, atol=1e-12):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


def off(actual, expected):
    return np.abs(actual - expected).max()


def cosine(a, b):
    return float(a @ b / math.sqrt((a @ a) * (b @ b)))


def with_critic(values, lam, **settings):
    return lambda batch: gae(batch.rewards, batch.at_states(values), batch.mask, lam=lam, **settings)


def wrong_values(mdp):
    """A critic with no relation to the policy: another number for each prefix."""
    return {prefix: 0.7 * math.sin(3.0 * i) + 0.2 for i, prefix in enumerate(mdp.prefixes())}
