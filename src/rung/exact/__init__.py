"""The oracle: exact answers on problems small enough to list every outcome.

Float64, plain loops, no batching, numpy only: to be read beside a textbook, and an independent derivation of
every number that an estimator here claims to estimate. It imports no estimator, and no estimator imports it.

    TokenMDP, Trajectory                          which sequences exist, and what they are worth
    SoftmaxTable, LogLinear, FixedPolicy, after   policies: prefix → (log-probs [V], Jacobian [V, n])
    distribution, occupancy, …                    probabilities and scores
    objective, objective_gradient, advantages, …  J, ∇J, V, Q, A
    policy_gradient, score_weighted               E[Σ Ψ_t ∇ log π(a_t|s_t)] for any Ψ
    sequence_kl_policy_reference, …               KL in both directions, with the parts of its gradient
    regularized_objective, tilted_optimum         J − β KL, and where it is largest
    expectation                                   exact mean and covariance of any estimator
"""

from rung.exact.divergence import (
    SequenceKL,
    prefix_kl_policy_reference,
    prefix_kl_reference_policy,
    sequence_kl_policy_reference,
    sequence_kl_reference_policy,
)
from rung.exact.expectation import Group, Moments, expectation, expectation_over_prompts, groups
from rung.exact.policies import FixedPolicy, LogLinear, Policy, SoftmaxTable, after, evaluate
from rung.exact.regularized import TiltedOptimum, regularized_objective, tilted_optimum
from rung.exact.sequences import (
    MDP,
    distribution,
    expected_over_prefixes,
    occupancy,
    sequence_logprob,
    sequence_score,
    token_scores,
    visits,
)
from rung.exact.tabular_mdp import Episode, TabularMDP, tabulate
from rung.exact.tabular_values import optimal_action_values, optimal_state_values
from rung.exact.token_mdp import Prefix, TokenMDP, Trajectory
from rung.exact.values import (
    ValueAndGradient,
    action_values,
    advantages,
    gradient_without_time_discount,
    objective,
    objective_gradient,
    policy_gradient,
    score_weighted,
    state_values,
)

__all__ = [
    "MDP",
    "Episode",
    "FixedPolicy",
    "Group",
    "LogLinear",
    "Moments",
    "Policy",
    "Prefix",
    "SequenceKL",
    "SoftmaxTable",
    "TabularMDP",
    "TiltedOptimum",
    "TokenMDP",
    "Trajectory",
    "ValueAndGradient",
    "action_values",
    "advantages",
    "after",
    "distribution",
    "evaluate",
    "expectation",
    "expectation_over_prompts",
    "expected_over_prefixes",
    "gradient_without_time_discount",
    "groups",
    "objective",
    "objective_gradient",
    "occupancy",
    "optimal_action_values",
    "optimal_state_values",
    "policy_gradient",
    "prefix_kl_policy_reference",
    "prefix_kl_reference_policy",
    "regularized_objective",
    "score_weighted",
    "sequence_kl_policy_reference",
    "sequence_kl_reference_policy",
    "sequence_logprob",
    "sequence_score",
    "state_values",
    "tabulate",
    "tilted_optimum",
    "token_scores",
    "visits",
]
