"""The named methods, one word each. What each one estimates is derived in `rung.verify`, and measured there."""

from collections.abc import Callable

from rung.methods.group import cispo, dapo, dr_grpo, grpo, gspo
from rung.methods.method import Method
from rung.methods.reinforce import (
    reinforce,
    reinforce_constant,
    reinforce_learned,
    reinforce_moving_average,
    reinforce_pp,
    reinforce_pp_baseline,
    reinforce_step_mean,
    remax,
    rloo,
    rloo_corrected,
    vpg,
)
from rung.methods.trust import a2c, dual_clip, impala, ppo_loo, ppo_penalty, trpo

CATALOGUE: dict[str, Callable[..., Method]] = {
    "vpg": vpg,
    "reinforce-constant": reinforce_constant,
    "reinforce": reinforce,
    "reinforce-step-mean": reinforce_step_mean,
    "reinforce-moving-average": reinforce_moving_average,
    "reinforce-learned": reinforce_learned,
    "rloo": rloo,
    "rloo-corrected": rloo_corrected,
    "remax": remax,
    "reinforce++": reinforce_pp,
    "reinforce++-baseline": reinforce_pp_baseline,
    "a2c": a2c,
    "impala": impala,
    "ppo-loo": ppo_loo,
    "dual-clip": dual_clip,
    "ppo-penalty": ppo_penalty,
    "trpo": trpo,
    "grpo": grpo,
    "dr-grpo": dr_grpo,
    "dapo": dapo,
    "gspo": gspo,
    "cispo": cispo,
}
