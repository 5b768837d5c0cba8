"""Claims about REINFORCE++, in both forms: what whitening over all tokens of a batch does."""

import numpy as np

from rung.exact.token_mdp import FloatArray
from rung.verify.claims.claim import Claim, biased
from rung.verify.claims.definitions import clipped, k2_slope, less_mean, rewards, whitened
from rung.verify.claims.objectives import reward_less_kl
from rung.verify.claims.reinforce import J_KL
from rung.verify.claims.scene import Group, scene_of
from rung.verify.enumeration import Setting


def plus_plus(setting: Setting, beta: float) -> FloatArray:
    """Ĝ_t whitened over all tokens of the batch, clipped, over the number of tokens."""

    def coefficients(batch: tuple[Group, ...]) -> list[list[FloatArray]]:
        everybody = [tau for group in batch for tau in group]
        tokens = sum(tau.length for tau in everybody)
        credit = iter(whitened([tau.to_go for tau in everybody]))
        return [[clipped(next(credit), tau.log_ratio) / tokens for tau in group] for group in batch]

    return scene_of(setting, beta=beta, scored_by="old").enumerated(coefficients)


def plus_plus_baseline(setting: Setting, beta: float) -> FloatArray:
    """R less the group's mean, whitened over all tokens, clipped; k2 in the loss; over the number of tokens."""

    def coefficients(batch: tuple[Group, ...]) -> list[list[FloatArray]]:
        tokens = sum(tau.length for group in batch for tau in group)
        centered = [
            np.full(tau.length, credit)
            for group in batch
            for tau, credit in zip(group, less_mean(rewards(group)), strict=True)
        ]
        credit = iter(whitened(centered))
        return [
            [(clipped(next(credit), tau.log_ratio) - beta * k2_slope(tau)) / tokens for tau in group]
            for group in batch
        ]

    return scene_of(setting).enumerated(coefficients)


_PLUS = ("whitening", "random token count")
_BASELINE = ("own sample in the mean", *_PLUS, "k2 in the loss")

CLAIMS = (
    Claim(
        "reinforce++",
        J_KL,
        reward_less_kl,
        plus_plus,
        biased(*_PLUS),
        biased(*_PLUS, "sampled prefixes", "clip", "old KL"),
        biased(*_PLUS, "other sampler"),
        "Needs no groups; in small batches it turns the gradient, in large ones it only rescales it.",
    ),
    Claim(
        "reinforce++-baseline",
        J_KL,
        reward_less_kl,
        plus_plus_baseline,
        biased(*_BASELINE),
        biased(*_BASELINE, "sampled prefixes", "clip"),
        biased(*_BASELINE, "other sampler"),
        "One spread for the whole batch keeps the prompts' weights; its KL is the right one, but short-sighted.",
    ),
)
