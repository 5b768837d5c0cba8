"""Critics, and ways not to go too far in one update: clips, a penalty, a trust region.

J is the expected reward of a completion, less β · KL(policy‖reference) where k1 stands in the reward.
"""

from functools import partial

from rung.aggregation import sequence_sum
from rung.credit import gae, leave_one_out, vtrace_credit
from rung.kl import DoublingKL, k1, k3
from rung.methods.method import Method
from rung.methods.penalty import Coefficient, KLPenalty
from rung.policy_losses import clipped_loss, importance_weighted_loss, policy_gradient_loss
from rung.trust_region import TrustRegion

# What Schulman et al. 2017 call d_targ; from where β starts is soon forgotten.
STEP_PENALTY = DoublingKL(1.0, target=0.01)


def a2c(
    *, kl_coefficient: Coefficient = 0.05, lam: float = 0.95, entropy_coefficient: float = 0.01
) -> Method:
    """Advantage actor-critic: GAE of a critic's values, and an entropy bonus.

    Biased by the critic's errors (λ < 1), and by the bonus's missing effect on later prefixes.
    """
    return Method(
        name="a2c",
        credit=partial(gae, lam=lam),
        policy_loss=policy_gradient_loss,
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
        entropy_coefficient=entropy_coefficient,
    )


def impala(*, kl_coefficient: Coefficient = 0.05, rho_cap: float = 1.0, c_cap: float = 1.0) -> Method:
    """V-trace: values and credit corrected for the sampler, ratios capped.

    Beyond the caps it follows another policy, and the prefixes stay the sampler's.
    """
    return Method(
        name="impala",
        credit=partial(vtrace_credit, rho_cap=rho_cap, c_cap=c_cap),
        policy_loss=policy_gradient_loss,
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
    )


def ppo_loo(*, kl_coefficient: Coefficient = 0.05, clip_low: float = 0.2, clip_high: float = 0.2) -> Method:
    """PPO's clipped ratio on leave-one-out credit, for several updates per batch. No critic, hence not `ppo`."""
    return Method(
        name="ppo-loo",
        credit=leave_one_out,
        policy_loss=partial(clipped_loss, clip_low=clip_low, clip_high=clip_high),
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
    )


def dual_clip(
    *,
    kl_coefficient: Coefficient = 0.05,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float = 3.0,
) -> Method:
    """`ppo-loo` with a second clip, so that a bad token of a large ratio stops pulling."""
    return Method(
        name="dual-clip",
        credit=leave_one_out,
        policy_loss=partial(clipped_loss, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip),
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
    )


def ppo_penalty(*, kl_coefficient: Coefficient = STEP_PENALTY) -> Method:
    """PPO with a penalty on KL(old‖policy) in place of a clip; its coefficient is doubled or halved by need."""
    return Method(
        name="ppo-penalty",
        credit=leave_one_out,
        policy_loss=importance_weighted_loss,
        kl=KLPenalty(k3, placement="loss", coefficient=kl_coefficient, against="old"),
        aggregation=sequence_sum,
    )


def trpo(*, kl_coefficient: Coefficient = 0.05, max_kl: float = 0.01) -> Method:
    """The natural gradient, as far as KL(old‖policy) allows: conjugate gradient and line search, no learning rate."""
    return Method(
        name="trpo",
        credit=leave_one_out,
        policy_loss=importance_weighted_loss,
        kl=KLPenalty(k1, placement="reward", coefficient=kl_coefficient),
        aggregation=sequence_sum,
        update=TrustRegion(max_kl=max_kl),
    )
