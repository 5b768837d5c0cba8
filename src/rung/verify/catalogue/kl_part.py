"""What the KL of a method does to its mean: that of the method, less that of the same without a KL."""

from dataclasses import dataclass

import numpy as np

from rung.exact import (
    Prefix,
    after,
    expected_over_prefixes,
    prefix_kl_reference_policy,
    sequence_kl_policy_reference,
)
from rung.exact.token_mdp import FloatArray
from rung.verify.catalogue.check import AGREES, Case, build, measure
from rung.verify.claims import Claim

BETA = 0.1


@dataclass(frozen=True)
class KLPart:
    """The difference that a KL makes, beside the gradients of both directions.

    Attributes:
        words: estimator, placement and what it is against.
        other: "ref" or "old", in short.
        case: on what.
        push: [n] what the KL adds to the ascent, for each unit of β.
        deviation: |measured − predicted| / |predicted|; of its absolute size where nothing is predicted.
        kl_policy_other: [n] −∇KL(π‖other) of whole sequences.
        kl_other_policy: [n] −∇KL(other‖π) at the prefixes that are sampled.
    """

    words: str
    other: str
    case: Case
    push: FloatArray
    deviation: float
    kl_policy_other: FloatArray
    kl_other_policy: FloatArray

    @property
    def holds(self) -> bool:
        """Whether it is as derived."""
        return self.deviation <= AGREES


def kl_part(claim: Claim) -> KLPart:
    """On policy for a KL to the reference, and on old samples for one to the old policy, which is 0 on policy."""
    kl = build(claim, BETA).kl
    if kl is None:
        raise AssertionError(f"every method of the catalogue has a slot for a KL; {claim.name} has none")
    case = Case("one prompt", 2, "on-policy" if kl.against == "reference" else "stale")
    beta = claim.beta or BETA
    with_kl, without = measure(claim, case, beta=beta), measure(claim, case, beta=0.0)
    push = (with_kl.bias.moments.ascent - without.bias.moments.ascent) / beta
    derived = (with_kl.predicted - without.predicted) / beta
    setting = with_kl.bias.setting
    against = setting.problem.reference if kl.against == "reference" else setting.old
    ((before, mdp),) = setting.problem.prompts
    policy, other, sampler = (after(p, before) for p in (setting.problem.policy, against, setting.sampler))

    def other_first(prefix: Prefix) -> FloatArray:
        return prefix_kl_reference_policy(policy, other, prefix).gradient

    estimator = getattr(kl.estimator, "__name__", "?")
    return KLPart(
        words=f"{estimator} in the {kl.placement}" + (", against old" if kl.against == "old" else ""),
        other="ref" if kl.against == "reference" else "old",
        case=case,
        push=push,
        deviation=float(np.linalg.norm(push - derived) / max(float(np.linalg.norm(derived)), 1e-3)),
        kl_policy_other=-sequence_kl_policy_reference(mdp, policy, other).gradient,
        kl_other_policy=-expected_over_prefixes(mdp, sampler, other_first),
    )


def cosine(a: FloatArray, b: FloatArray) -> float:
    """Of the angle between two vectors."""
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))
