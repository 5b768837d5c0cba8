"""Claims about GRPO and what came after it.

Groups decide their own credit; where the batch's tokens divide, all groups decide together.
"""

import numpy as np

from rung.exact.token_mdp import FloatArray
from rung.verify.claims.claim import Claim, Standing, biased
from rung.verify.claims.definitions import FLAT, clipped, k3_slope, less_mean, rewards, standardized
from rung.verify.claims.objectives import overlong, reward_less_kl, reward_less_overlong
from rung.verify.claims.reinforce import J_KL
from rung.verify.claims.scene import Group, scene_of
from rung.verify.enumeration import Setting

LENGTH, BUFFER = 2, 1
CISPO_CAP = 1.2
GSPO_LOW, GSPO_HIGH = 3e-4, 4e-4
DAPO_HIGH = 0.28
GROUP = ("own sample in the mean", "group std")


def grpo(setting: Setting, beta: float) -> FloatArray:
    """(R − mean)/std, clipped; k3 in the loss; over each sequence's length."""

    def coefficients(group: Group) -> list[FloatArray]:
        return [
            (clipped(credit, tau.log_ratio) - beta * k3_slope(tau)) / (len(group) * tau.length)
            for tau, credit in zip(group, standardized(rewards(group)), strict=True)
        ]

    return scene_of(setting).by_group(coefficients)


def dr_grpo(setting: Setting, beta: float) -> FloatArray:
    """(R − mean), clipped; k3 in the loss; over a constant L.

    Where no clip acts it is (G − 1)/(G L) E_μ[(R − E_μ R) Σ_t ∇log π], and the KL.
    """
    scene = scene_of(setting)
    if setting.situation != "stale":
        share = 1 - 1 / setting.group_size
        return scene.over_prompts(
            lambda prompt: prompt.gradient(
                lambda tau: (share * (tau.reward - prompt.mean_reward) - beta * k3_slope(tau)) / LENGTH
            )
        )

    def coefficients(group: Group) -> list[FloatArray]:
        return [
            (clipped(credit, tau.log_ratio) - beta * k3_slope(tau)) / (len(group) * LENGTH)
            for tau, credit in zip(group, less_mean(rewards(group)), strict=True)
        ]

    return scene.by_group(coefficients)


def dapo(setting: Setting, beta: float) -> FloatArray:
    """R + overlong penalty, standardised; a higher upper clip; over the tokens of groups whose rewards R differ."""

    def coefficients(batch: tuple[Group, ...]) -> list[list[FloatArray]]:
        mixed = [float(np.ptp(rewards(group))) > FLAT for group in batch]
        tokens = sum(tau.length for group, kept in zip(batch, mixed, strict=True) if kept for tau in group)
        return [
            _charged(group, tokens, beta) if kept else [np.zeros(tau.length) for tau in group]
            for group, kept in zip(batch, mixed, strict=True)
        ]

    return scene_of(setting).enumerated(coefficients)


def _charged(group: Group, tokens: int, beta: float) -> list[FloatArray]:
    charge = np.array([overlong(tau.length, max_length=LENGTH, buffer=BUFFER) for tau in group])
    return [
        (clipped(credit, tau.log_ratio, high=DAPO_HIGH) - beta * k3_slope(tau)) / tokens
        for tau, credit in zip(group, standardized(rewards(group) + charge), strict=True)
    ]


def gspo(setting: Setting, beta: float) -> FloatArray:
    """s = exp(mean_t log ρ_t), clipped as one number; its slope is s/L on each token; mean over sequences."""

    def coefficients(group: Group) -> list[FloatArray]:
        found = []
        for tau, credit in zip(group, standardized(rewards(group)), strict=True):
            mean_ratio = np.full(tau.length, tau.log_ratio.mean())
            pull = clipped(credit, mean_ratio, low=GSPO_LOW, high=GSPO_HIGH)
            found.append((pull - beta * k3_slope(tau)) / (len(group) * tau.length))
        return found

    return scene_of(setting).by_group(coefficients)


def cispo(setting: Setting, beta: float) -> FloatArray:
    """min(ρ, c) (R − mean)/std, never flat; over the number of tokens."""

    def coefficients(batch: tuple[Group, ...]) -> list[list[FloatArray]]:
        tokens = sum(tau.length for group in batch for tau in group)
        return [
            [
                (np.minimum(np.exp(tau.log_ratio), CISPO_CAP) * credit - beta * k3_slope(tau)) / tokens
                for tau, credit in zip(group, standardized(rewards(group)), strict=True)
            ]
            for group in batch
        ]

    return scene_of(setting).enumerated(coefficients)


def of_group_and_length(setting: Setting) -> float:
    """(G − 1)/(G L)."""
    return (setting.group_size - 1) / (setting.group_size * LENGTH)


def _off_policy(*sources: str, ratios: tuple[str, ...]) -> tuple[Standing, Standing]:
    return biased(*sources, *ratios), biased(*sources, "other sampler")


_GRPO = (*GROUP, "1/L", "k3 in the loss")
_DR_GRPO = ("own sample in the mean", "constant length")
_DAPO = (*GROUP, "random token count", "selection")
_GSPO = (*GROUP, "1/L")
_CISPO = (*GROUP, "random token count")

CLAIMS = (
    Claim(
        "grpo",
        J_KL,
        reward_less_kl,
        grpo,
        biased(*_GRPO),
        *_off_policy(*_GRPO, ratios=("sampled prefixes", "clip")),
        "Hard and easy prompts weigh more than others, short answers more than long ones, whatever the batch size.",
    ),
    Claim(
        "dr-grpo",
        "J",
        reward_less_kl,
        dr_grpo,
        Standing("scale", _DR_GRPO, of_group_and_length, "(G − 1)/(G · length)"),
        *_off_policy(*_DR_GRPO, ratios=("sampled prefixes", "clip")),
        "RLOO at another learning rate: what is left of GRPO when everything that biases it is taken out.",
        beta=0.0,
        settings={"length": LENGTH},
    ),
    Claim(
        "dapo",
        "J + E[overlong]",
        reward_less_overlong(LENGTH, BUFFER),
        dapo,
        biased(*_DAPO),
        *_off_policy(*_DAPO, ratios=("sampled prefixes", "clip")),
        "No length bias in large batches; prompts that are nearly always or never solved weigh even more than in GRPO.",
        beta=0.0,
        settings={"length": LENGTH, "overlong_buffer": BUFFER},
    ),
    Claim(
        "gspo",
        "J",
        reward_less_kl,
        gspo,
        biased(*_GSPO),
        *_off_policy(*_GSPO, ratios=("root of the ratio", "clip")),
        "GRPO's direction on policy, without its KL; off it nearly every sequence that has moved is clipped whole.",
        beta=0.0,
        settings={"clip_low": GSPO_LOW, "clip_high": GSPO_HIGH},
    ),
    Claim(
        "cispo",
        "J",
        reward_less_kl,
        cispo,
        biased(*_CISPO),
        *_off_policy(*_CISPO, ratios=("sampled prefixes", "cap")),
        "No token ever stops learning, so it may go further than under a clip; on policy it is DAPO without its rules.",
        beta=0.0,
        settings={"cap": CISPO_CAP},
    ),
)
