"""A measured mean beside the gradient that it should be: in numbers, and in words."""

from dataclasses import dataclass

import numpy as np

from rung.exact.token_mdp import FloatArray
from rung.verify.enumeration import Moments, Setting

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

    @property
    def degrees(self) -> float:
        """The angle between E[ĝ] and ∇J, by its sine: a cosine does not tell small angles apart."""
        acute = float(np.degrees(np.arcsin(min(self.relative_beside_scale, 1.0))))
        return acute if self.cosine >= 0 else 180.0 - acute


def describe(bias: Bias) -> str:
    """What a bias means, in a sentence, with its numbers."""
    numbers = (
        f"relative bias {bias.relative:.3g}, cosine {bias.cosine:.6f}, scale {bias.scale:.6g}, "
        f"covariance trace {bias.moments.trace:.4g}"
    )
    return f"{numbers}\n{meaning(bias)}"


def meaning(bias: Bias) -> str:
    """The sentence alone."""
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
            f"; it is the length that comes of {' or '.join(reasons)}" if reasons else ""
        )
    if bias.cosine <= 0:
        return "it does not climb the objective at all"
    return f"another direction, {bias.degrees:.2g}° off the gradient of the objective: no learning rate mends that"


def _reasons_for_scale(bias: Bias) -> list[str]:
    """What is known to give just this multiple of the gradient: one cause, or else two together."""
    group, prompts = bias.setting.group_size, len(bias.setting.problem.prompts)
    baseline = {"a return in its group's own mean": 1 - 1 / group}
    total = {"a sum over each group in place of its mean": float(group)}
    length = {"a constant length as the divisor": 1 / bias.setting.problem.max_length}
    if prompts > 1:
        baseline["a return in its batch's own mean"] = 1 - 1 / (group * prompts)
        total["a sum over the batch in place of its mean"] = float(group * prompts)
    known = baseline | total | length
    pairs = {
        f"{one} and {other}": first[one] * second[other]
        for first, second in ((baseline, length), (baseline, total), (total, length))
        for one in first
        for other in second
    }
    for causes in (known, pairs):
        if found := [words for words, scale in causes.items() if abs(bias.scale - scale) < 1e-6 * scale]:
            return found
    return []
