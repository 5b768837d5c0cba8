"""A method is four choices: credit × policy loss × KL penalty × aggregation. `catalogue` names the known ones."""

from rung.methods.catalogue import CATALOGUE
from rung.methods.group import cispo, dapo, dr_grpo, grpo, gspo
from rung.methods.method import Method
from rung.methods.penalty import KLPenalty
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
from rung.methods.training_batch import TrainingBatch
from rung.methods.trust import a2c, dual_clip, impala, ppo_loo, ppo_penalty, trpo

__all__ = [
    "CATALOGUE",
    "KLPenalty",
    "Method",
    "TrainingBatch",
    "a2c",
    "cispo",
    "dapo",
    "dr_grpo",
    "dual_clip",
    "grpo",
    "gspo",
    "impala",
    "ppo_loo",
    "ppo_penalty",
    "reinforce",
    "reinforce_constant",
    "reinforce_learned",
    "reinforce_moving_average",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "reinforce_step_mean",
    "remax",
    "rloo",
    "rloo_corrected",
    "trpo",
    "vpg",
]
