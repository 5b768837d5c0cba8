"""A method is four choices: credit × policy loss × KL penalty × aggregation. `catalogue` names the known ones."""

from rung.methods.catalogue import CATALOGUE, grpo, ppo_loo, reinforce, rloo, vpg
from rung.methods.method import KLPenalty, Method, TrainingBatch

__all__ = ["CATALOGUE", "KLPenalty", "Method", "TrainingBatch", "grpo", "ppo_loo", "reinforce", "rloo", "vpg"]
