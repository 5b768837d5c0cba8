"""From a recipe's words to a method: what a constructor names is passed on, what it does not have is refused."""

import inspect
from dataclasses import replace
from typing import Any

from rung.kl import AdaptiveKL, DoublingKL
from rung.methods import CATALOGUE, Method
from rung.training.probe import probe

# The keys of a recipe that constructors of methods name. `length` is not among them: it is rollout.max_new_tokens.
SETTINGS = (
    "kl_coefficient",
    "clip_low",
    "clip_high",
    "dual_clip",
    "cap",
    "baseline",
    "momentum",
    "lam",
    "max_kl",
    "overlong_buffer",
    "entropy_coefficient",
)


def build(
    name: str, given: dict[str, Any], *, length: int, steered: tuple[float, float] | None = None
) -> Method:
    """A method of the catalogue with the settings of a recipe.

    Args:
        name: in the catalogue.
        given: what the recipe sets, by the constructor's names.
        length: the cap on a completion's tokens.
        steered: target and horizon of a KL coefficient that is steered by the divergence from the reference, or None.

    Raises:
        ValueError: a setting that the method does not have, that makes no sense with it, or that a slot refuses.
    """
    factory = CATALOGUE[name]
    accepted = inspect.signature(factory).parameters
    surplus = sorted(set(given) - set(accepted))
    if surplus:
        taken = ", ".join(key for key in accepted if key != "length")
        raise ValueError(f"method {name} has no {' and no '.join(surplus)}; it takes {taken}")
    if given.get("overlong_buffer", 0) > length:
        raise ValueError(
            f"overlong_buffer = {given['overlong_buffer']} is more than rollout.max_new_tokens = {length}"
        )
    settings = dict(given)
    if "length" in accepted:
        settings["length"] = length
    settings["kl_coefficient"] = _coefficient(
        name, accepted["kl_coefficient"].default, given.get("kl_coefficient"), steered
    )
    method = factory(**settings)
    if "values" in method.needs:
        raise ValueError(
            f"method {name} needs the values of a critic, and rung train has no critic yet; "
            f"`rung verify {name}` shows what it estimates"
        )
    probe(method)
    return method


def defaults(method: Method) -> dict[str, float]:
    """Every setting of a recipe that a method's constructor has, as it is where the recipe says nothing."""
    found: dict[str, float] = {}
    for key, parameter in inspect.signature(CATALOGUE[method.name]).parameters.items():
        if key in SETTINGS:
            value = parameter.default
            found[key] = getattr(value, "coefficient", value)  # of a controller, where it starts
    if "overlong_buffer" in found:  # a share of the length, so that only the method as it was built knows it
        found["overlong_buffer"] = getattr(method.credit, "keywords", {})["buffer"]
    return found


def _coefficient(
    name: str,
    default: float | AdaptiveKL | DoublingKL,
    given: float | None,
    steered: tuple[float, float] | None,
) -> float | AdaptiveKL | DoublingKL:
    """The KL coefficient: a number, or a controller that starts at one."""
    if not isinstance(default, float) and steered is not None:
        raise ValueError(
            f"method {name} steers its KL coefficient by itself, by the divergence of a step; kl_target and "
            "kl_horizon are for a divergence from the reference"
        )
    own = default if isinstance(default, float) else default.coefficient
    start = own if given is None else given
    if isinstance(default, float) and steered is None:
        return start
    if start == 0:
        raise ValueError(
            f"method {name} with a KL coefficient that is steered by factors: one that starts at 0 stays there, "
            "so set kl_coefficient above 0"
        )
    return AdaptiveKL(start, *steered) if steered is not None else replace(default, coefficient=start)


def compares_samples(method: Method) -> bool:
    """Whether the credit or the selection looks at the other samples of a prompt."""
    slots = [slot for slot in (method.credit, method.select) if slot is not None]
    return any("groups" in inspect.signature(slot).parameters for slot in slots)


def has_ratio(method: Method) -> bool:
    """Whether the policy loss corrects for a policy that has moved on since the samples were drawn."""
    return "old_logprobs" in inspect.signature(method.policy_loss).parameters


def penalizes_step(method: Method) -> bool:
    """Whether a KL to the policy at the start of the update stands in the loss."""
    return method.kl is not None and method.kl.against == "old" and method.kl.beta > 0


def clips(method: Method) -> bool:
    """Whether the policy loss bounds its ratios."""
    return bool({"clip_low", "cap"} & set(inspect.signature(method.policy_loss).parameters))


def remarks(method: Method, updates: int) -> list[str]:
    """What a recipe makes of a method and its reader may not have meant.

    Args:
        method: as the recipe makes it.
        updates: optimizer steps for each rollout batch.
    """
    said = []
    own = inspect.signature(CATALOGUE[method.name]).parameters["kl_coefficient"].default
    if own == 0.0 and method.kl is not None and method.kl.beta > 0:
        said.append(
            f"method {method.name} has no KL of its own: kl_coefficient = {method.kl.beta:g} in the recipe adds one, "
            "and with it a reference model"
        )
    if updates == 1 and clips(method):
        said.append(f"one update per batch: every ratio is 1, so that the clip of {method.name} does not act")
    return said
