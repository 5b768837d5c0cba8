"""Credit Ψ: what multiplies ∇log π(a_t|s_t) in g = E[Σ_t Ψ_t ∇log π(a_t|s_t)].

`returns` holds the credits made of a sequence's own rewards, [B, T]; `groups` those that compare it with others, [B].
"""

from rung.credit.baselines import minus_batch_mean, reward_to_go_minus_batch_mean
from rung.credit.groups import group_centered, group_standardized, leave_one_out
from rung.credit.returns import reward_to_go, total_return

__all__ = [
    "group_centered",
    "group_standardized",
    "leave_one_out",
    "minus_batch_mean",
    "reward_to_go",
    "reward_to_go_minus_batch_mean",
    "total_return",
]
