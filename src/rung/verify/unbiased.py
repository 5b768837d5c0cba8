"""Anybody's loss, against the exact gradient of the objective: a number for a person, an assertion for a test.

    def my_loss(policy_logprobs, rewards, mask, groups):
        baseline = …
        return -((rewards - baseline).unsqueeze(1) * policy_logprobs * mask).sum() / len(rewards)

    rung.verify.assert_unbiased(my_loss)

A loss is a function that names what it needs, of:

    policy_logprobs     [B, T] float64, differentiable: log π(a_t|s_t) of the sampled tokens, 0 off the mask
    old_logprobs        [B, T] the policy's at the start of the update
    behaviour_logprobs  [B, T] the sampler's
    reference_logprobs  [B, T] a frozen reference's
    rewards             [B] one for each completion
    mask                [B, T] bool, True counts
    groups              [B] int64: the same id, the same prompt
    values              [B, T] an imperfect critic's V(s_t)
    entropy             [B, T] of the policy at each token, differentiable

and returns one number to minimise. It imports nothing of rung, and may be any library's own.
"""

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from rung.errors import InvalidInput
from rung.exact import regularized_objective
from rung.exact.token_mdp import FloatArray
from rung.methods import Method
from rung.verify.enumeration import (
    Batch,
    Estimator,
    Moments,
    Setting,
    Situation,
    estimator_of,
    gradient_of,
    moments,
)
from rung.verify.problems import Problem, one_prompt, two_prompts

Loss = Callable[..., torch.Tensor]
PROBLEMS = {"one prompt": one_prompt, "two prompts": two_prompts}
OFFERED = (
    "policy_logprobs",
    "old_logprobs",
    "behaviour_logprobs",
    "reference_logprobs",
    "rewards",
    "mask",
    "groups",
    "values",
    "entropy",
)
# Below this a bias is rounding in float64; up to the second it is what float32 rounds to.
EXACT, ROUNDED = 1e-8, 1e-5


@dataclass(frozen=True)
class Bias:
    """An estimator beside the gradient that it is compared with.

    Attributes:
        problem: which one.
        setting: what was sampled.
        moments: of the estimator.
        target: [n] the exact gradient of the objective.
    """

    problem: str
    setting: Setting
    moments: Moments
    target: FloatArray

    @property
    def relative(self) -> float:
        """|E[ĝ] − ∇J| / |∇J|: 0 for an unbiased estimator."""
        return float(np.linalg.norm(self.moments.ascent - self.target) / np.linalg.norm(self.target))

    @property
    def cosine(self) -> float:
        """Of the angle between E[ĝ] and ∇J; 0 where E[ĝ] vanishes."""
        size = np.linalg.norm(self.moments.ascent) * np.linalg.norm(self.target)
        return float(self.moments.ascent @ self.target / size) if size > 0 else 0.0

    @property
    def scale(self) -> float:
        """The multiple of ∇J that is nearest to E[ĝ]."""
        return float(self.moments.ascent @ self.target / (self.target @ self.target))

    @property
    def relative_beside_scale(self) -> float:
        """|E[ĝ] − scale · ∇J| / |E[ĝ]|: 0 where only the length is off, or the sign."""
        size = np.linalg.norm(self.moments.ascent)
        off = np.linalg.norm(self.moments.ascent - self.scale * self.target)
        return float(off / size) if size > 0 else 0.0


@cache
def _problem(name: str) -> Problem:
    return PROBLEMS[name]()


def estimator_of_loss(loss: Loss) -> Estimator:
    """A loss of anybody's as an estimator: it is given what its parameters name.

    Raises:
        InvalidInput: it asks for something that there is not.
    """
    asked = inspect.signature(loss).parameters
    everything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in asked.values())
    for name, parameter in asked.items():
        variable = parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        if name not in OFFERED and parameter.default is inspect.Parameter.empty and not variable:
            close = difflib.get_close_matches(name, OFFERED, n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise InvalidInput(f"the loss asks for {name!r}; there is {', '.join(sorted(OFFERED))}{hint}")

    def estimate(batch: Batch) -> torch.Tensor:
        available = _offered(batch)
        return loss(**{name: available[name] for name in OFFERED if everything or name in asked})

    return estimate


def _offered(batch: Batch) -> dict[str, torch.Tensor | None]:
    rollouts = batch.rollouts
    return {
        "policy_logprobs": batch.policy_logprobs,
        "old_logprobs": rollouts.old_logprobs,
        "behaviour_logprobs": rollouts.behaviour_logprobs,
        "reference_logprobs": rollouts.reference_logprobs,
        "rewards": rollouts.outcome_rewards,
        "mask": rollouts.mask,
        "groups": rollouts.groups,
        "values": rollouts.values,
        "entropy": batch.entropy,
    }


def bias_and_variance(
    loss: Loss | Method,
    *,
    problem: str = "one prompt",
    group_size: int = 2,
    situation: Situation = "on-policy",
    kl_coefficient: float = 0.0,
) -> Bias:
    """What a loss does on average, and how much it scatters, over everything that could be sampled.

    Args:
        loss: a function as described above, or a method of rung's.
        problem: "one prompt" (seven sequences of one or two tokens, six reward values) or "two prompts" (which share
            all parameters).
        group_size: G, completions for each prompt.
        situation: "on-policy", "stale" (the policy has moved since sampling) or "mismatch" (another sampler).
        kl_coefficient: β of the objective J − β KL(policy‖reference) that it is compared with.

    Raises:
        InvalidInput: the loss asks for something that there is not, or returns no differentiable number.

    >>> def backwards(policy_logprobs, rewards):
    ...     return (rewards.unsqueeze(1) * policy_logprobs).sum() / len(rewards)
    >>> round(bias_and_variance(backwards).cosine, 6)
    -1.0
    """
    setting = Setting(_problem(problem), group_size, situation)
    estimator = estimator_of(loss) if isinstance(loss, Method) else estimator_of_loss(loss)
    target = setting.problem.mean_over_prompts(
        lambda mdp, policy, reference: regularized_objective(mdp, policy, reference, kl_coefficient).gradient
    )
    ordered = not (isinstance(loss, Method) or _knows_no_order(estimator, setting))
    return Bias(problem, setting, moments(estimator, setting, ordered=ordered), target)


def _knows_no_order(estimator: Estimator, setting: Setting) -> bool:
    """Whether some batches have the gradient that they have with their samples reversed, or moved on by one.

    Then each batch may stand for all its orders, which are many: a loss that tells a first sample from a second tells
    it on one of these, too.
    """
    batches = [numbers for numbers, _ in setting.batches(ordered=False)]
    prompts = len(setting.problem.prompts)
    for numbers in batches[:: max(1, len(batches) // 12)]:
        turns = [numbers[i : i + prompts] for i in range(0, len(numbers), prompts)]
        first = gradient_of(estimator, setting, numbers)[0]
        for other in (turns[::-1], turns[1:] + turns[:1]):
            again = gradient_of(estimator, setting, tuple(i for turn in other for i in turn))[0]
            if not np.allclose(first, again, rtol=0, atol=1e-12 + 1e-9 * np.abs(first).max()):
                return False
    return True


def assert_unbiased(
    loss: Loss | Method,
    *,
    group_size: int = 2,
    up_to_scale: bool = False,
    situation: Situation = "on-policy",
    kl_coefficient: float = 0.0,
    tolerance: float = 1e-8,
) -> None:
    """Assert that a loss's expected gradient is −∇J exactly, on one prompt and on two that share parameters.

    For anybody's tests: it imports torch and numpy only, and takes a second for pairs.

    Args:
        loss: see `bias_and_variance`.
        group_size: G, completions for each prompt.
        up_to_scale: accept a positive multiple of ∇J (a batch mean that includes its own sample, say).
        situation: what is sampled by whom.
        kl_coefficient: β of the objective J − β KL(policy‖reference).
        tolerance: of |E[ĝ] − ∇J| / |∇J|.

    Raises:
        AssertionError: it is not; with the bias, the cosine and what they mean.

    >>> from rung.methods import rloo
    >>> assert_unbiased(rloo(kl_coefficient=0.0))
    """
    failed: list[Bias] = []
    for problem in PROBLEMS:
        bias = bias_and_variance(
            loss,
            problem=problem,
            group_size=group_size,
            situation=situation,
            kl_coefficient=kl_coefficient,
        )
        error = bias.relative_beside_scale if up_to_scale else bias.relative
        if error > tolerance or (up_to_scale and bias.scale <= 0):
            failed.append(bias)
    if failed:  # the one that says most: on one problem a direction may be right by chance
        worst = max(failed, key=lambda bias: bias.relative_beside_scale)
        raise AssertionError(
            f"not {'a positive multiple of ' if up_to_scale else ''}the gradient of J on the problem "
            f'"{worst.problem}", G = {group_size}, {situation}:\n{describe(worst)}'
        )


def describe(bias: Bias) -> str:
    """What a bias means, in a sentence, with its numbers."""
    numbers = (
        f"relative bias {bias.relative:.3g}, cosine {bias.cosine:.6f}, scale {bias.scale:.6g}, "
        f"covariance trace {bias.moments.trace:.4g}"
    )
    return f"{numbers}\n{_meaning(bias)}"


def _meaning(bias: Bias) -> str:
    if bias.relative < EXACT:
        return "unbiased: on average it is the gradient of the objective"
    if bias.relative < ROUNDED:
        return "unbiased but for rounding: something in it is float32, where float64 was given"
    if np.linalg.norm(bias.moments.ascent) < 1e-10 * np.linalg.norm(bias.target):
        return "it does nothing: on average its gradient is 0"
    if bias.relative_beside_scale < EXACT:
        if bias.scale < 0:
            return "it descends: exactly the wrong sign, for something that is to be minimised"
        reasons = _reasons_for_scale(bias)
        return "the right direction, another length: a matter of the learning rate" + (
            f"; it is the length that {' or '.join(reasons)} gives" if reasons else ""
        )
    if bias.cosine <= 0:
        return "it does not climb the objective at all"
    angle = np.degrees(np.arccos(min(bias.cosine, 1.0)))
    return f"another direction, {angle:.1f}° off the gradient of the objective: no learning rate mends that"


def _reasons_for_scale(bias: Bias) -> list[str]:
    """What is known to give just this multiple of the gradient."""
    group, prompts = bias.setting.group_size, len(bias.setting.problem.prompts)
    known = {
        "a return in its group's own mean": 1 - 1 / group,
        "a sum over each group in place of its mean": float(group),
        "a constant length as the divisor": 1 / bias.setting.problem.max_length,
    }
    if prompts > 1:
        known["a return in its batch's own mean"] = 1 - 1 / (group * prompts)
        known["a sum over the batch in place of its mean"] = float(group * prompts)
    return [reason for reason, scale in known.items() if abs(bias.scale - scale) < 1e-6 * scale]
