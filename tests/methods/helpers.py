"""Every entry of the catalogue with what it requires, a method of the plainest slots, and batches to check by hand."""

import inspect
from dataclasses import replace
from typing import Any

import torch

from rung.aggregation import sequence_sum
from rung.batch import Rollouts
from rung.credit import total_return
from rung.methods import CATALOGUE, KLPenalty, Method, TrainingBatch
from rung.policy_losses import policy_gradient_loss
from tests.batches import NAN, annotated, f64, rollouts

PLAIN = Method("plain", total_return, policy_gradient_loss, sequence_sum)
LENGTH = 6  # no row of the tests' batches is longer

# What an entry's credit compares a row with: nothing of the batch, the other rows of its group, or all rows.
COMPARES = {
    "vpg": "nothing",
    "reinforce-constant": "nothing",
    "reinforce": "batch",
    "reinforce-step-mean": "batch",
    "reinforce-moving-average": "nothing",
    "reinforce-learned": "nothing",
    "rloo": "group",
    "rloo-corrected": "group",
    "remax": "nothing",
    "reinforce++": "batch",
    "reinforce++-baseline": "batch",
    "a2c": "nothing",
    "impala": "nothing",
    "ppo-loo": "group",
    "dual-clip": "group",
    "ppo-penalty": "group",
    "trpo": "group",
    "grpo": "group",
    "dr-grpo": "group",
    "dapo": "group",
    "gspo": "group",
    "cispo": "group",
}
# Those whose weights are a share of all tokens of the batch, in place of a share of its sequences.
BY_TOKENS = {"reinforce++", "reinforce++-baseline", "dapo", "cispo"}
NAMES = list(CATALOGUE)


def takes(name: str, setting: str) -> bool:
    """Whether an entry has this setting."""
    return setting in inspect.signature(CATALOGUE[name]).parameters


def build(name: str, **settings: Any) -> Method:
    """An entry of the catalogue; those that require the length cap get one, the others are spared it."""
    if takes(name, "length"):
        settings = {"length": LENGTH} | settings
    else:
        settings.pop("length", None)
    return CATALOGUE[name](**settings)


def unpenalized(name: str, **settings: Any) -> Method:
    """An entry without its penalties on the policy's divergence, and without a bonus on its entropy."""
    if takes(name, "entropy_coefficient"):
        settings = {"entropy_coefficient": 0.0} | settings
    return build(name, kl_coefficient=0.0, **settings)


def loss_of(
    method: Method,
    policy_logprobs: torch.Tensor,
    prepared: TrainingBatch,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """The loss over all rows; where there is a bonus, of a policy whose entropy is 1 nat everywhere."""
    if weights is None:
        weights = method.weights(prepared.mask)
    entropy = torch.ones_like(policy_logprobs).detach()
    return method.loss(policy_logprobs, prepared, weights, entropy=entropy)


def penalized(estimator: Any, placement: Any, coefficient: float = 0.5, **slots: Any) -> Method:
    """The plain method with a KL penalty, and other slots where named."""
    return replace(PLAIN, kl=KLPenalty(estimator, placement=placement, coefficient=coefficient), **slots)


def two_rows() -> Rollouts:
    """Three tokens with reward 1, one token with reward −2; log-ratios to the reference 0.2, −0.4, 0.1 | 0.3."""
    batch = rollouts([[1, 1, 1], [1]], [1.0, -2.0])
    policy = f64([[-1.0, -1.0, -1.0], [-1.0, NAN, NAN]])
    ratio = f64([[0.2, -0.4, 0.1], [0.3, NAN, NAN]])
    return replace(batch, behaviour_logprobs=policy, old_logprobs=policy, reference_logprobs=policy - ratio)


def four_rows() -> Rollouts:
    """Two groups of two: R = 4 over two tokens and 1 over one; R = 1 over two and 0 over one. All annotated.

    V = 0.5 at each first token and 0.25 at each second; the greedy completions earn 2 and 0.5.
    """
    batch = rollouts([[1, 1], [1], [1, 1], [1]], [4.0, 1.0, 1.0, 0.0], [1, 1, 2, 2])
    return annotated(
        batch,
        values=f64([[0.5, 0.25], [0.5, 9.0], [0.5, 0.25], [0.5, 9.0]]),
        greedy_rewards=f64([2.0, 2.0, 0.5, 0.5]),
    )
