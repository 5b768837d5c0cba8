"""Claims about critics, clips, penalties and trust regions.

At π = π_old every ratio is 1 and no clip acts: each is then the policy gradient of its credit. After that a token's
ratio ρ_t corrects the token and not its prefix.
"""

import numpy as np

from rung.exact import evaluate, expected_over_prefixes
from rung.exact.token_mdp import FloatArray, Prefix
from rung.verify.claims.claim import UNBIASED, Claim, biased
from rung.verify.claims.definitions import clipped, gae, less_others, totals, vtrace
from rung.verify.claims.objectives import reward_less_kl, reward_less_kl_plus_entropy, reward_less_step_kl
from rung.verify.claims.reinforce import J_KL, OTHER
from rung.verify.claims.scene import Group, Prompt, scene_of
from rung.verify.enumeration import Setting

LAMBDA, ENTROPY = 0.95, 0.01
CLIP, DUAL_CLIP = 0.2, 1.5


def actor_critic(setting: Setting, beta: float) -> FloatArray:
    """E_μ[Σ_t GAE_t ∇log π_t] + c Σ_s d_μ(s) ∇H(π(·|s))."""

    def of_prompt(prompt: Prompt) -> FloatArray:
        def of_entropy(prefix: Prefix) -> FloatArray:
            own, slope = evaluate(prompt.policy, prefix)
            found: FloatArray = -(np.exp(own) * own) @ slope
            return found

        bonus = expected_over_prefixes(prompt.mdp, prompt.sampler, of_entropy)
        return prompt.gradient(lambda tau: gae(tau, LAMBDA)) + ENTROPY * bonus

    return scene_of(setting, beta=beta).over_prompts(of_prompt)


def impala(setting: Setting, beta: float) -> FloatArray:
    """E_μ[Σ_t Ψ_t ∇log π_t] with the credit of V-trace, both caps 1."""
    return scene_of(setting, beta=beta, scored_by="old").over_prompts(
        lambda prompt: prompt.gradient(lambda tau: vtrace(tau, rho_cap=1.0, c_cap=1.0))
    )


def surrogate(setting: Setting, beta: float) -> FloatArray:
    """E_μ[Σ_t ρ_t (R̂ − E_μ R̂) ∇log π_t]: without a clip the others' returns enter by their mean alone."""
    return scene_of(setting, beta=beta, scored_by="old").over_prompts(
        lambda prompt: prompt.gradient(lambda tau: np.exp(tau.log_ratio) * (tau.total - prompt.mean_total))
    )


def _clipped(setting: Setting, beta: float, dual: float) -> FloatArray:
    """The clip looks at the sign of each credit, which the group decides: enumerated. Where ρ = 1 it does not act."""
    if setting.situation != "stale":
        return surrogate(setting, beta)

    def coefficients(group: Group) -> list[FloatArray]:
        return [
            clipped(credit, tau.log_ratio, low=CLIP, high=CLIP, dual=dual) / len(group)
            for tau, credit in zip(group, less_others(totals(group)), strict=True)
        ]

    return scene_of(setting, beta=beta, scored_by="old").by_group(coefficients)


def ppo(setting: Setting, beta: float) -> FloatArray:
    """PPO's clip on the leave-one-out credit of R̂."""
    return _clipped(setting, beta, np.inf)


def dual(setting: Setting, beta: float) -> FloatArray:
    """The same, flat where Ψ < 0 and ρ > c as well."""
    return _clipped(setting, beta, DUAL_CLIP)


def penalty(setting: Setting, beta: float) -> FloatArray:
    """E_μ[Σ_t (ρ_t (R − E_μ R) − β (ρ_t − 1)) ∇log π_t], the second part from k3 = ρ − 1 − log ρ in the loss.

    On old samples it is −β ∇KL(π_old‖π) of whole sequences exactly: Σ_a π_old (ρ − 1) ∇log π = −Σ_a π_old ∇log π.
    """
    return scene_of(setting, scored_by="old").over_prompts(
        lambda prompt: prompt.gradient(
            lambda tau: (
                np.exp(tau.log_ratio) * (tau.reward - prompt.mean_reward) - beta * np.expm1(tau.log_ratio)
            )
        )
    )


CLAIMS = (
    Claim(
        "a2c",
        f"{J_KL} + c H(π)",
        reward_less_kl_plus_entropy(ENTROPY),
        actor_critic,
        biased("critic", "entropy's future"),
        biased("critic", "entropy's future", "old samples"),
        biased("critic", "entropy's future", "other sampler"),
        "Less noise at the price of the critic's errors, 1 − λ of them; the entropy bonus sees only this token.",
        settings={"lam": LAMBDA, "entropy_coefficient": ENTROPY},
    ),
    Claim(
        "impala",
        J_KL,
        reward_less_kl,
        impala,
        UNBIASED,
        biased("old samples"),
        biased("sampled prefixes", "cap", "critic"),
        "For a sampler that lags: corrects each token and what follows it, not what stood before, nor later updates.",
        settings={"rho_cap": 1.0, "c_cap": 1.0},
    ),
    Claim(
        "ppo-loo",
        J_KL,
        reward_less_kl,
        ppo,
        UNBIASED,
        biased("sampled prefixes", "clip", "old KL"),
        OTHER,
        "Exact for the first update on a batch, and a brake for the next ones; it says nothing about the sampler.",
        settings={"clip_low": CLIP, "clip_high": CLIP},
    ),
    Claim(
        "dual-clip",
        J_KL,
        reward_less_kl,
        dual,
        UNBIASED,
        biased("sampled prefixes", "clip", "dual clip", "old KL"),
        OTHER,
        "Differs from ppo-loo only for bad tokens whose ratio has run away; rarely seen unless a batch is used long.",
        settings={"clip_low": CLIP, "clip_high": CLIP, "dual_clip": DUAL_CLIP},
    ),
    Claim(
        "ppo-penalty",
        "J − β KL(old‖π)",
        reward_less_step_kl,
        penalty,
        UNBIASED,
        biased("sampled prefixes"),
        OTHER,
        "Its penalty on the step is exact on old samples, whole sequences included; the surrogate beside it is not.",
        beta=1.0,
    ),
    Claim(
        "trpo",
        J_KL,
        reward_less_kl,
        surrogate,
        UNBIASED,
        biased("sampled prefixes", "old KL"),
        OTHER,
        "The gradient that its step starts from, exact at the old policy; the step turns it by Fisher's information.",
    ),
)
