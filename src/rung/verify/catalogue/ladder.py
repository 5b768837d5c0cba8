"""Where a bias comes from, shown by taking its sources out one after the other until nothing is left of it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from rung.aggregation import sequence_sum
from rung.credit import gae, group_centered, leave_one_out, reward_to_go
from rung.kl import k1
from rung.methods import KLPenalty, Method
from rung.notation import GroupIds, PerSequence, TokenMask
from rung.selection import overlong_penalty
from rung.verify.catalogue.check import Case, build
from rung.verify.claims import Claim
from rung.verify.claims.claim import Prediction
from rung.verify.claims.objectives import reward_less_kl
from rung.verify.enumeration import estimator_of, moments
from rung.verify.unbiased import Bias

_OVERLONG = {"max_length": 2, "buffer": 1}  # as in DAPO's claim


@dataclass(frozen=True)
class Rung:
    """One change to a method.

    Attributes:
        source: of bias, that it takes out.
        what: was done.
        change: method → method.
        gradient: of the objective from here on, where the change is to the objective.
    """

    source: str
    what: str
    change: Callable[[Method], Method]
    gradient: Prediction | None = None


def _charged(compare: Callable[..., PerSequence]) -> Callable[..., PerSequence]:
    """DAPO's return, overlong penalty included, compared in another way than by standardising it."""

    def credit(returns: PerSequence, mask: TokenMask, groups: GroupIds, valid: PerSequence) -> PerSequence:
        return compare(returns + overlong_penalty(mask.sum(1), **_OVERLONG), groups, valid)

    return credit


def _credit(source: str, what: str, credit: Callable[..., PerSequence]) -> Rung:
    return Rung(source, what, lambda method: replace(method, credit=credit))


def _k1(source: str) -> Rung:
    def change(method: Method) -> Method:
        beta = 0.0 if method.kl is None else method.kl.beta
        return replace(method, kl=KLPenalty(k1, placement="reward", coefficient=beta))

    return Rung(source, "k1 in the reward", change)


def _sum(source: str) -> Rung:
    return Rung(source, "sum over each sequence", lambda method: replace(method, aggregation=sequence_sum))


_OTHERS = _credit("own sample in the mean", "mean of the others alone", leave_one_out)
_CENTERED = _credit("group std", "no division by the spread", group_centered)

LADDERS: dict[str, tuple[Rung, ...]] = {
    "reinforce": (_OTHERS,),
    "reinforce-step-mean": (
        _credit("mean at each step", "mean of the others' whole returns", leave_one_out),
    ),
    "reinforce++": (
        _sum("random token count"),
        _credit("whitening", "the return from each token on, as it is", reward_to_go),
    ),
    "reinforce++-baseline": (
        _k1("k2 in the loss"),
        _sum("random token count"),
        _credit("whitening", "minus the group's mean, as it is", group_centered),
        _OTHERS,
    ),
    "a2c": (
        _credit("critic", "λ = 1", partial(gae, lam=1.0)),
        Rung(
            "entropy's future",
            "no entropy bonus, in the objective neither",
            lambda method: replace(method, entropy_coefficient=0.0),
            reward_less_kl,
        ),
    ),
    "grpo": (_k1("k3 in the loss"), _CENTERED, _sum("1/L"), _OTHERS),
    "dr-grpo": (_OTHERS, _sum("constant length")),
    "dapo": (
        Rung("selection", "every group trains", lambda method: replace(method, select=None)),
        _credit("group std", "no division by the spread", _charged(group_centered)),
        _sum("random token count"),
        _credit(
            "own sample in the mean",
            "mean of the others alone",
            _charged(leave_one_out),
        ),
    ),
    "gspo": (_CENTERED, _sum("1/L"), _OTHERS),
    "cispo": (_CENTERED, _sum("random token count"), _OTHERS),
}


def climb(claim: Claim, case: Case) -> list[tuple[str, Bias]]:
    """The method as it is, and after each change, all earlier ones kept: on policy, until it is unbiased."""
    method, gradient = build(claim), claim.gradient
    setting = case.setting(claim.beta)
    found = []
    for rung in (None, *LADDERS.get(claim.name, ())):
        if rung is not None:
            method, gradient = rung.change(method), rung.gradient or gradient
        target = gradient(setting, claim.beta)
        bias = Bias(case.problem, setting, moments(estimator_of(method), setting), target)
        found.append(("as it is" if rung is None else rung.what, bias))
    return found
