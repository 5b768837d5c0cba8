"""A method of the catalogue, measured and held against its claim."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from rung.exact.token_mdp import FloatArray
from rung.methods import CATALOGUE, Method
from rung.verify.claims import Claim
from rung.verify.enumeration import Setting, Situation, estimator_of, moments
from rung.verify.unbiased import Bias, problem_named

# Relative to the length of what is compared with. Two derivations in float64 agree much better than the first; a bias
# that shows is much larger than the last.
AGREES, UNBIASED, SHOWS = 1e-9, 1e-9, 1e-6


@dataclass(frozen=True)
class Case:
    """On what a method is measured; see `Setting`."""

    problem: str
    group_size: int
    situation: Situation = "on-policy"
    critic: Literal["exact", "wrong"] = "wrong"

    def setting(self, beta: float) -> Setting:
        """The same with its problem, and a critic that knows the KL in the reward."""
        return Setting(problem_named(self.problem), self.group_size, self.situation, self.critic, beta)

    def __str__(self) -> str:
        """For a message."""
        critic = ", exact critic" if self.critic == "exact" else ""
        return f"{self.problem}, G = {self.group_size}, {self.situation}{critic}"


@dataclass(frozen=True)
class Measured:
    """What came out, beside what was claimed.

    Attributes:
        claim: of which method.
        case: on what.
        bias: the measured mean and covariance, and the exact gradient of the objective.
        predicted: [n] the mean as derived.
    """

    claim: Claim
    case: Case
    bias: Bias
    predicted: FloatArray

    @property
    def deviation(self) -> float:
        """|measured − predicted| / |predicted|."""
        off = np.linalg.norm(self.bias.moments.ascent - self.predicted)
        return float(off / max(float(np.linalg.norm(self.predicted)), 1e-12))

    @property
    def failures(self) -> tuple[str, ...]:
        """What does not hold, a sentence each."""
        found, standing = [], self.claim.standing(self.case.situation)
        if not self.deviation <= AGREES:
            found.append(f"its mean is off the derived one by {self.deviation:.2g} of that one's length")
        if standing.kind == "unbiased" and not self.bias.relative <= UNBIASED:
            found.append(f"claimed to be unbiased, but its relative bias is {self.bias.relative:.2g}")
        if standing.scale is not None:
            scale = standing.scale(self.bias.setting)
            off = np.linalg.norm(self.bias.moments.ascent - scale * self.bias.target)
            share = float(off / np.linalg.norm(scale * self.bias.target))
            if not share <= UNBIASED:
                found.append(
                    f"claimed to be {standing.formula} = {scale:.4g} of the gradient, but is off by {share:.2g}"
                )
        if standing.kind == "biased" and not self.bias.relative >= SHOWS:
            found.append(f"claimed to be {standing.words}, but its relative bias is {self.bias.relative:.2g}")
        return tuple(f"{self.claim.name} ({self.case}): {text}" for text in found)


def build(claim: Claim, beta: float | None = None) -> Method:
    """The method as its claim wants it, with the claim's KL coefficient unless another is given."""
    return CATALOGUE[claim.name](kl_coefficient=claim.beta if beta is None else beta, **claim.settings)


def measure(claim: Claim, case: Case, *, beta: float | None = None) -> Measured:
    """Enumerate one method on one case.

    Args:
        claim: of which method.
        case: on what.
        beta: another KL coefficient than the claim's.
    """
    kl_coefficient = claim.beta if beta is None else beta
    setting = case.setting(kl_coefficient)
    found = moments(estimator_of(build(claim, kl_coefficient)), setting)
    target = claim.gradient(setting, kl_coefficient)
    return Measured(
        claim, case, Bias(case.problem, setting, found, target), predicted(claim, case, kl_coefficient)
    )


@cache
def predicted(claim: Claim, case: Case, beta: float) -> FloatArray:
    """What the claim derives; it costs more than the measurement, and does not change."""
    return claim.predict(case.setting(beta), beta)
