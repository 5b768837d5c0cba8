"""Credit Ψ: what multiplies ∇log π(a_t|s_t) in g = E[Σ_t Ψ_t ∇log π(a_t|s_t)].

returns          a sequence's own rewards, [B, T]
baselines        the same, minus something that does not depend on the tokens (or hardly does), [B] or [B, T]
moving_average   minus what earlier batches were worth, [B, T]
groups           compared with the other samples of the prompt, [B]
gae              with a critic, [B, T]
vtrace           with a critic, on sequences of another policy, [B, T]
"""

from rung.credit.baselines import (
    minus_batch_mean,
    minus_constant,
    minus_greedy,
    reward_to_go_minus_batch_mean,
    reward_to_go_minus_step_mean,
    whitened_to_go,
)
from rung.credit.gae import gae, td_residual
from rung.credit.groups import (
    group_centered,
    group_standardized,
    leave_one_out,
    whitened_group_centered,
)
from rung.credit.moving_average import MovingAverage
from rung.credit.returns import reward_to_go, rewards_from_next, rewards_to_next, total_return
from rung.credit.vtrace import VTrace, vtrace, vtrace_credit

__all__ = [
    "MovingAverage",
    "VTrace",
    "gae",
    "group_centered",
    "group_standardized",
    "leave_one_out",
    "minus_batch_mean",
    "minus_constant",
    "minus_greedy",
    "reward_to_go",
    "reward_to_go_minus_batch_mean",
    "reward_to_go_minus_step_mean",
    "rewards_from_next",
    "rewards_to_next",
    "td_residual",
    "total_return",
    "vtrace",
    "vtrace_credit",
    "whitened_group_centered",
    "whitened_to_go",
]
