"""What is claimed of a method: against which objective, how it stands to it, and the exact vector that it gives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from rung.exact.token_mdp import FloatArray
from rung.verify.enumeration import Setting, Situation

Kind = Literal["unbiased", "scale", "biased"]
# (setting, β) → [n].
Prediction = Callable[[Setting, float], FloatArray]

# Where a bias comes from. Names are what tables print.
SOURCES: dict[str, str] = {
    "own sample in the mean": "a return stands in its own baseline, which shortens the gradient",
    "mean at each step": "the mean over those still alive shortens each step by another factor",
    "group std": "the spread that divides depends on the sample itself; only ranks and ties survive in a pair",
    "whitening": "mean and spread over the batch's tokens depend on the sample, and long sequences weigh more in both",
    "1/L": "a mean over each sequence follows reward per token, and a length term",
    "random token count": "the number of tokens that divides is drawn with the sample: a ratio estimator",
    "constant length": "a constant stands in place of 1, which shortens the gradient",
    "selection": "groups of one reward are left out, which re-weights prompts and changes the denominator",
    "critic": "the critic's error at later states, times 1 − λ",
    "entropy's future": "the entropy at the visited prefixes, without its effect on which ones are visited",
    "k3 in the loss": "the gradient of KL(π_ref‖π) at the policy's prefixes: the other direction",
    "k2 in the loss": "KL(π‖π_ref) at the visited prefixes, without its effect on which ones are visited",
    "old samples": "the policy has moved, the samples and their weights have not",
    "sampled prefixes": "a ratio of one token corrects that token; what stands before it is still as it was sampled",
    "clip": "beyond the clip a token has no gradient",
    "dual clip": "a bad token beyond the second clip has no gradient",
    "cap": "ratios are capped, so that it follows another policy",
    "root of the ratio": "the geometric mean of a sequence's ratios is no importance weight",
    "old KL": "the KL in the reward is that of the policy before the update",
    "other sampler": "the samples are another policy's, and nothing corrects for it",
    "truncated ratio": "the sequence's ratio is cut, so that it follows sequences of another policy",
}


@dataclass(frozen=True)
class Standing:
    """How an estimator's mean stands to the gradient of its objective.

    Attributes:
        kind: "unbiased"; "scale": a positive multiple of it; or "biased".
        sources: names of SOURCES. Of a scale, what shortens it.
        scale: the multiple, for a setting.
        formula: the same in symbols.
    """

    kind: Kind
    sources: tuple[str, ...] = ()
    scale: Callable[[Setting], float] | None = None
    formula: str = ""

    @property
    def brief(self) -> str:
        """In a word or two."""
        return f"up to {self.formula}" if self.kind == "scale" else self.kind

    @property
    def words(self) -> str:
        """With its sources, where there are any."""
        return self.brief + (f": {', '.join(self.sources)}" if self.sources else "")


def biased(*sources: str) -> Standing:
    """Another direction, and why."""
    return Standing("biased", sources)


UNBIASED = Standing("unbiased")


@dataclass(frozen=True, eq=False)
class Claim:
    """What is claimed of one entry of the catalogue, before it is measured.

    Attributes:
        name: the entry.
        objective: what its mean is compared with, in symbols.
        gradient: the exact gradient of that.
        predict: the exact mean of its ascent direction, derived from its definition.
        on_policy: how the two stand to each other when sampler, old policy and policy are one.
        stale: when the samples are the old policy's and the policy has moved.
        mismatch: when the sampler is another one than the trainer's policy.
        meaning: what this is to somebody who trains with it.
        beta: the KL coefficient of the survey; 0 where the paper has no KL.
        settings: what else the method is made with, so that each of its parts acts on problems this small.
    """

    name: str
    objective: str
    gradient: Prediction
    predict: Prediction
    on_policy: Standing
    stale: Standing
    mismatch: Standing
    meaning: str
    beta: float = 0.1
    settings: Mapping[str, float] = field(default_factory=dict)

    def standing(self, situation: Situation) -> Standing:
        """What is claimed in a situation."""
        return {"on-policy": self.on_policy, "stale": self.stale, "mismatch": self.mismatch}[situation]
