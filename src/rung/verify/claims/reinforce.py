"""Claims about REINFORCE and its baselines.

k1 stands in the reward. With R̂ = R − β Σ_t k1_t and Ĝ_t the same from t on,
E_π[Σ_t Ĝ_t ∇log π] = ∇(J − β KL(π‖π_ref)): the score of k1 itself has mean 0. What remains is what is subtracted.
"""

import math

import numpy as np

from rung.exact import greedy_tokens
from rung.exact.token_mdp import FloatArray
from rung.verify.claims.claim import UNBIASED, Claim, Standing, biased
from rung.verify.claims.objectives import reward_less_kl
from rung.verify.claims.scene import Group, Numbers, Prompt, Scene, scene_of
from rung.verify.enumeration import Setting

BASELINE = 0.4
CAP = 1.2
J_KL = "J − β KL(π‖ref)"
OLD, OTHER = biased("old samples"), biased("other sampler")


def vpg(setting: Setting, beta: float) -> FloatArray:
    """E_μ[R̂ Σ_t ∇log π]."""
    return scene_of(setting, beta=beta).over_prompts(lambda prompt: prompt.gradient(lambda tau: tau.total))


def constant(setting: Setting, beta: float) -> FloatArray:
    """E_μ[(R̂ − b) Σ_t ∇log π]."""
    return scene_of(setting, beta=beta).over_prompts(
        lambda prompt: prompt.gradient(lambda tau: tau.total - BASELINE)
    )


def batch_mean(setting: Setting, beta: float) -> FloatArray:
    """E_μ[(Ĝ_t − R̂/B − m) ∇log π]: own share R̂/B, and m = (Σ_j E R̂_j − E R̂_i)/B of the others, who are independent."""
    scene = scene_of(setting, beta=beta)
    everybody = scene.group_size * sum(prompt.mean_total for prompt in scene.prompts)

    def of_prompt(prompt: Prompt) -> FloatArray:
        others = (everybody - prompt.mean_total) / scene.batch_size
        return prompt.gradient(lambda tau: tau.to_go - tau.total / scene.batch_size - others)

    return scene.over_prompts(of_prompt)


def alive(prompt: Prompt, t: int) -> float:
    """p_t = P(L > t)."""
    return prompt.mean(lambda tau: float(tau.length > t))


def step_factor(scene: Scene, prompt: Prompt, t: int) -> float:
    """1 − E[1/n_t | own sequence alive at t]: by how much step t is shortened.

    With one prompt n_t − 1 is Binomial(B − 1, p_t), and this is 1 − (1 − (1−p_t)^B)/(B p_t).
    """
    number = np.array([1.0])  # P(so many of the others are alive), one of them after the other
    for other in scene.prompts:
        p = alive(other, t)
        for _ in range(scene.group_size - (other is prompt)):
            number = np.convolve(number, [1 - p, p])
    return 1 - float(number @ (1 / np.arange(1, len(number) + 1)))


def step_mean(setting: Setting, beta: float) -> FloatArray:
    """On policy Σ_t factor_t E[Ĝ_t ∇log π_t]; elsewhere scores have no mean 0 and the batches are enumerated."""
    scene = scene_of(setting, beta=beta)
    if setting.situation != "on-policy":
        return scene.enumerated(_less_step_mean)
    longest = setting.problem.max_length

    def of_prompt(prompt: Prompt) -> FloatArray:
        factors = np.array([step_factor(scene, prompt, t) for t in range(longest)])
        return prompt.gradient(lambda tau: tau.to_go * factors[: tau.length])

    return scene.over_prompts(of_prompt)


def _less_step_mean(batch: tuple[Group, ...]) -> list[list[FloatArray]]:
    everybody = [tau for group in batch for tau in group]

    def mean(t: int) -> float:
        return float(np.mean([tau.to_go[t] for tau in everybody if tau.length > t]))

    return [
        [np.array([tau.to_go[t] - mean(t) for t in range(tau.length)]) / len(everybody) for tau in group]
        for group in batch
    ]


def moving_average(setting: Setting, beta: float) -> FloatArray:
    """E_μ[(Ĝ_t − b) ∇log π]."""
    return scene_of(setting, beta=beta).over_prompts(
        lambda prompt: prompt.gradient(lambda tau: tau.to_go - BASELINE)
    )


def learned(setting: Setting, beta: float) -> FloatArray:
    """E_μ[(Ĝ_t − V(s_t)) ∇log π]."""
    return scene_of(setting, beta=beta).over_prompts(
        lambda prompt: prompt.gradient(lambda tau: tau.to_go - tau.values)
    )


def leave_one_out(setting: Setting, beta: float) -> FloatArray:
    """E_μ[(R̂ − E_μ R̂) Σ_t ∇log π]: the others are independent of this sequence, only their mean remains."""
    return scene_of(setting, beta=beta).over_prompts(
        lambda prompt: prompt.gradient(lambda tau: tau.total - prompt.mean_total)
    )


def corrected(setting: Setting, beta: float) -> FloatArray:
    """E_μ[min(w, C) (R̂ − E_μ R̂) Σ_t ∇log π] with w = Π_t π_old/μ."""
    scene = scene_of(setting, beta=beta, scored_by="old")

    def of_prompt(prompt: Prompt) -> FloatArray:
        def credit(tau: Numbers) -> float:
            weight = min(math.exp(tau.log_correction.sum()), CAP)
            return weight * (tau.total - prompt.mean_total)

        return prompt.gradient(credit)

    return scene.over_prompts(of_prompt)


def greedy(setting: Setting, beta: float) -> FloatArray:
    """E_μ[(R̂ − R(greedy)) Σ_t ∇log π]; the greedy sequence is the sampler's, its reward has no KL in it."""

    def of_prompt(prompt: Prompt) -> FloatArray:
        baseline = prompt.numbers[greedy_tokens(prompt.mdp, prompt.sampler)].reward
        return prompt.gradient(lambda tau: tau.total - baseline)

    return scene_of(setting, beta=beta).over_prompts(of_prompt)


def of_batch(setting: Setting) -> float:
    """1 − 1/B."""
    return 1 - 1 / (setting.group_size * len(setting.problem.prompts))


CLAIMS = (
    Claim(
        "vpg",
        J_KL,
        reward_less_kl,
        vpg,
        UNBIASED,
        OLD,
        OTHER,
        "Right on average, with nothing taken off its noise: what every baseline has to beat, and not every one does.",
    ),
    Claim(
        "reinforce-constant",
        J_KL,
        reward_less_kl,
        constant,
        UNBIASED,
        OLD,
        OTHER,
        "No number can bias it, so choose the one that lowers the noise; the mean reward need not be it.",
        settings={"baseline": BASELINE},
    ),
    Claim(
        "reinforce",
        J_KL,
        reward_less_kl,
        batch_mean,
        Standing("scale", ("own sample in the mean",), of_batch, "1 − 1/B"),
        OLD,
        OTHER,
        "A matter of the learning rate: times B/(B − 1) it is exact, whatever prompts the batch holds.",
    ),
    Claim(
        "reinforce-step-mean",
        J_KL,
        reward_less_kl,
        step_mean,
        biased("mean at each step"),
        biased("mean at each step", "old samples"),
        biased("mean at each step", "other sampler"),
        "Late tokens of long answers learn slower than early ones; it vanishes once many answers reach every step.",
    ),
    Claim(
        "reinforce-moving-average",
        J_KL,
        reward_less_kl,
        moving_average,
        UNBIASED,
        OLD,
        OTHER,
        "A baseline from earlier batches costs nothing and biases nothing; one sample a prompt is enough.",
        settings={"baseline": BASELINE},
    ),
    Claim(
        "reinforce-learned",
        J_KL,
        reward_less_kl,
        learned,
        UNBIASED,
        OLD,
        OTHER,
        "A bad critic may cost variance and never the direction: the safe way to use one.",
    ),
    Claim(
        "rloo",
        J_KL,
        reward_less_kl,
        leave_one_out,
        UNBIASED,
        OLD,
        OTHER,
        "Exact from two samples a prompt on, and without a critic; in small groups its baseline is noisy itself.",
    ),
    Claim(
        "rloo-corrected",
        J_KL,
        reward_less_kl,
        corrected,
        UNBIASED,
        OLD,
        biased("truncated ratio"),
        "Repairs a sampler that differs from the trainer exactly, as long as no sequence's ratio reaches the cap.",
        settings={"cap": CAP},
    ),
    Claim(
        "remax",
        J_KL,
        reward_less_kl,
        greedy,
        UNBIASED,
        OLD,
        OTHER,
        "Exact with one sample a prompt and one greedy answer; where the greedy answer earns 0 it is plain REINFORCE.",
    ),
)
