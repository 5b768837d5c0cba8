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

and returns one number to minimise. It imports nothing of rung, and may be any library's own. Rows take turns over the
prompts: a prompt's samples are not adjacent in the batch, and `groups` alone says whose they are.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import torch

from rung.errors import InvalidInput
from rung.exact import regularized_objective
from rung.exact.token_mdp import FloatArray
from rung.methods import Method
from rung.verify.bias import EXACT, Bias, describe
from rung.verify.enumeration import (
    Batch,
    Estimator,
    Setting,
    Situation,
    estimator_of,
    gradient_of,
    moments,
)
from rung.verify.problems import Problem, one_prompt, two_prompts

__all__ = [
    "OFFERED",
    "PROBLEMS",
    "Bias",
    "assert_unbiased",
    "bias_and_variance",
    "describe",
    "estimator_of_loss",
]

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


@cache
def problem_named(name: str) -> Problem:
    """One of the problems by its name, made once."""
    if name not in PROBLEMS:
        raise InvalidInput(f"problem must be one of {', '.join(map(repr, PROBLEMS))}, got {name!r}")
    return PROBLEMS[name]()


def names_asked_by(loss: Loss) -> Mapping[str, inspect.Parameter]:
    """The parameters of a loss; of a torch module those of its `forward`.

    Raises:
        InvalidInput: it shows none, as some functions written in C.
    """
    try:
        return inspect.signature(loss.forward if isinstance(loss, torch.nn.Module) else loss).parameters
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"the loss {loss!r} does not show what it asks for: wrap it in a function that names it"
        ) from error


def estimator_of_loss(loss: Loss, *, adjacent: bool = False) -> Estimator:
    """A loss of anybody's as an estimator: it is given what its parameters name, everything where it takes `**`.

    Args:
        loss: a function, or a torch module.
        adjacent: hand it each prompt's samples one after the other, where rows take turns over the prompts.

    Raises:
        InvalidInput: it asks for something that there is not, or for nothing, or by position only.
    """
    asked = names_asked_by(loss)
    everything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in asked.values())
    for name, parameter in asked.items():
        variable = parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        required = parameter.default is inspect.Parameter.empty and not variable
        if name not in OFFERED and required:
            close = difflib.get_close_matches(name, OFFERED, n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise InvalidInput(f"the loss asks for {name!r}; there is {', '.join(sorted(OFFERED))}{hint}")
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY and name in OFFERED:
            raise InvalidInput(
                f'the loss takes {name!r} by position only, and is called by names: remove the "/" behind it'
            )
    given = [name for name in OFFERED if everything or name in asked]
    if not given:
        raise InvalidInput(f"the loss names nothing of what there is: {', '.join(sorted(OFFERED))}")

    def estimate(batch: Batch) -> torch.Tensor:
        available = _offered(batch)
        if adjacent:
            order = batch.rollouts.groups.argsort(stable=True)
            available = {name: None if rows is None else rows[order] for name, rows in available.items()}
        return loss(**{name: available[name] for name in given})

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
    kl_coefficient: float | None = None,
) -> Bias:
    """What a loss does on average, and how much it scatters, over everything that could be sampled.

    Args:
        loss: a function as described above, or a method of rung's.
        problem: "one prompt" (seven sequences of one or two tokens, six reward values) or "two prompts" (which share
            all parameters).
        group_size: G, completions for each prompt.
        situation: "on-policy", "stale" (the policy has moved since sampling) or "mismatch" (another sampler).
        kl_coefficient: β of the objective J − β KL(policy‖reference) that it is compared with. None: a method's own
            where it has a KL against the reference, else 0.

    Raises:
        InvalidInput: the loss asks for something that there is not, returns no differentiable number or one that is
            not finite, or is random; there is no such problem or situation.

    >>> def backwards(policy_logprobs, rewards):
    ...     return (rewards.unsqueeze(1) * policy_logprobs).sum() / len(rewards)
    >>> round(bias_and_variance(backwards).cosine, 6)
    -1.0
    """
    return _measured(loss, problem, group_size, situation, beta_of(loss, kl_coefficient))


def beta_of(loss: Loss | Method, kl_coefficient: float | None = None) -> float:
    """β of the objective J − β KL(policy‖reference): as given, or else the method's own, or else 0."""
    if kl_coefficient is not None:
        return kl_coefficient
    if isinstance(loss, Method) and loss.kl is not None and loss.kl.against == "reference":
        return loss.kl.beta
    return 0.0


def _measured(
    loss: Loss | Method,
    problem: str,
    group_size: int,
    situation: Situation,
    beta: float,
    *,
    adjacent: bool = False,
) -> Bias:
    setting = Setting(problem_named(problem), group_size, situation)
    estimator = estimator_of(loss) if isinstance(loss, Method) else estimator_of_loss(loss, adjacent=adjacent)
    target = setting.problem.mean_over_prompts(
        lambda mdp, policy, reference: regularized_objective(mdp, policy, reference, beta).gradient
    )
    ordered = not (isinstance(loss, Method) or _knows_no_order(estimator, setting))
    return Bias(problem, setting, moments(estimator, setting, ordered=ordered), target)


def takes_positions_for_groups(
    loss: Loss | Method, bias: Bias, beta: float, tolerance: float = EXACT
) -> bool:
    """Whether a loss that is biased is unbiased once each prompt's samples are adjacent in the batch."""
    if isinstance(loss, Method) or len(bias.setting.problem.prompts) == 1:
        return False
    setting = bias.setting
    again = _measured(loss, bias.problem, setting.group_size, setting.situation, beta, adjacent=True)
    return bias.relative > tolerance >= again.relative


POSITIONS = (
    "with each prompt's samples adjacent in the batch it is unbiased: it takes positions for groups, and here rows "
    "take turns over the prompts; `groups` says whose they are"
)


def _knows_no_order(estimator: Estimator, setting: Setting) -> bool:
    """Whether some batches have the gradient that they have with their samples reversed, or moved on by one.

    Then each batch may stand for all its orders, which are many: a loss that tells a first sample from a second tells
    it on one of these, too.

    Raises:
        InvalidInput: one batch has two gradients, so that there is no mean to enumerate.
    """
    batches = [numbers for numbers, _ in setting.batches(ordered=False)]
    prompts, same = len(setting.problem.prompts), True
    for numbers in batches[:: max(1, len(batches) // 12)]:
        turns = [numbers[i : i + prompts] for i in range(0, len(numbers), prompts)]
        first = gradient_of(estimator, setting, numbers)[0]
        if not _close(first, gradient_of(estimator, setting, numbers)[0]):
            raise InvalidInput(
                "the loss gives two gradients for one batch: it is random (dropout?), or it remembers earlier batches"
            )
        for other in (turns[::-1], turns[1:] + turns[:1]):
            again = gradient_of(estimator, setting, tuple(i for turn in other for i in turn))[0]
            same = same and _close(first, again)
    return same


def _close(first: FloatArray, second: FloatArray) -> bool:
    return np.allclose(first, second, rtol=0, atol=1e-12 + 1e-9 * np.abs(first).max())


def assert_unbiased(
    loss: Loss | Method,
    *,
    group_size: int = 2,
    up_to_scale: bool = False,
    situation: Situation = "on-policy",
    kl_coefficient: float | None = None,
    tolerance: float = EXACT,
) -> None:
    """Assert that a loss's expected gradient is −∇J exactly, on one prompt and on two that share parameters.

    For anybody's tests: it imports torch and numpy only, and takes a second for pairs.

    Args:
        loss: see `bias_and_variance`.
        group_size: G, completions for each prompt.
        up_to_scale: accept a positive multiple of ∇J (a batch mean that includes its own sample, say).
        situation: what is sampled by whom.
        kl_coefficient: β of the objective J − β KL(policy‖reference); see `bias_and_variance`.
        tolerance: of |E[ĝ] − ∇J| / |∇J|.

    Raises:
        AssertionError: it is not; with the bias, the cosine and what they mean.

    >>> from rung.methods import rloo
    >>> assert_unbiased(rloo(kl_coefficient=0.1))
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
        beta, alone = beta_of(loss, kl_coefficient), len(failed) < len(PROBLEMS)
        by_position = alone and takes_positions_for_groups(loss, worst, beta, tolerance)
        raise AssertionError(
            f"not {'a positive multiple of ' if up_to_scale else ''}the gradient of J on the problem "
            f'"{worst.problem}", G = {group_size}, {situation}:\n{describe(worst)}'
            + (f"\n{POSITIONS}" if by_position else "")
        )
