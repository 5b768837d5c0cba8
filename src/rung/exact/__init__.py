"""The oracle: exact answers on problems small enough to list every outcome.

Float64, plain loops, no batching, numpy only: to be read beside a textbook, and an independent derivation of
every number that an estimator here claims to estimate. It imports no estimator, and no estimator imports it.

    TokenMDP, Trajectory                          which sequences exist, and what they are worth; turns of a tool
    TabularMDP, Episode, tabulate                 any states and actions; a token MDP as tables
    SoftmaxTable, LogLinear, FixedPolicy, after   policies: prefix or state → (log-probs [V], Jacobian [V, n])
    distribution, occupancy, visits, …            probabilities and scores of trajectories
    objective, objective_gradient, advantages, …  J, ∇J, V, Q, A; optimal_state_values, optimal_action_values
    policy_gradient, score_weighted               E[Σ Ψ_t ∇ log π(a_t|s_t)] for any Ψ
    best_constant_baseline, best_state_baseline   the baselines of least variance
    generalized_advantages, lambda_returns, …     credit over several steps, from its definition
    performance_difference, surrogate_objective   from one policy to the next: CPI, TRPO, Fisher information, bounds
    sequence_kl_policy_reference, …               KL in both directions, with the parts of its gradient
    kl_estimate, kl_cell                          what k1, k2, k3 and the full KL give, as a number and as a gradient
    regularized_objective, tilted_optimum         J − β KL, and where it is largest
    best_of_n, best_of_n_kl, …                    the best of N samples
    vtrace_target_policy                          what V-trace evaluates
    expectation                                   exact mean and covariance of any estimator

`objective`, `objective_gradient`, `state_values`, `action_values`, `advantages`, `occupancy`, `visits` and what is
built on them take a token MDP and a tabular MDP alike: the first answers by prefix, the second by state.
"""

from rung.exact.baselines import best_constant_baseline, best_state_baseline
from rung.exact.best_of_n import best_of_n, best_of_n_kl, best_of_n_kl_bound, best_of_n_win_rate
from rung.exact.divergence import (
    SequenceKL,
    prefix_kl_policy_reference,
    prefix_kl_reference_policy,
    sequence_kl_policy_reference,
    sequence_kl_reference_policy,
)
from rung.exact.expectation import Group, Moments, expectation, expectation_over_prompts, groups
from rung.exact.improvement import (
    TrustRegionBound,
    fisher_information,
    mean_fisher_information,
    natural_gradient,
    performance_difference,
    surrogate_objective,
    total_variation,
    trust_region_bound,
)
from rung.exact.kl_estimates import MeanAndVariance, kl_cell, kl_estimate
from rung.exact.multistep import generalized_advantages, k_step_returns, lambda_returns, vtrace_targets
from rung.exact.policies import FixedPolicy, LogLinear, Policy, SoftmaxTable, after, evaluate
from rung.exact.regularized import TiltedOptimum, regularized_objective, tilted_optimum
from rung.exact.sequences import (
    MDP,
    distribution,
    expected_over_prefixes,
    greedy_tokens,
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
from rung.exact.vtrace import vtrace_target_policy

__all__ = [
    "MDP",
    "Episode",
    "FixedPolicy",
    "Group",
    "LogLinear",
    "MeanAndVariance",
    "Moments",
    "Policy",
    "Prefix",
    "SequenceKL",
    "SoftmaxTable",
    "TabularMDP",
    "TiltedOptimum",
    "TokenMDP",
    "Trajectory",
    "TrustRegionBound",
    "ValueAndGradient",
    "action_values",
    "advantages",
    "after",
    "best_constant_baseline",
    "best_of_n",
    "best_of_n_kl",
    "best_of_n_kl_bound",
    "best_of_n_win_rate",
    "best_state_baseline",
    "distribution",
    "evaluate",
    "expectation",
    "expectation_over_prompts",
    "expected_over_prefixes",
    "fisher_information",
    "generalized_advantages",
    "gradient_without_time_discount",
    "greedy_tokens",
    "groups",
    "k_step_returns",
    "kl_cell",
    "kl_estimate",
    "lambda_returns",
    "mean_fisher_information",
    "natural_gradient",
    "objective",
    "objective_gradient",
    "occupancy",
    "optimal_action_values",
    "optimal_state_values",
    "performance_difference",
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
    "surrogate_objective",
    "tabulate",
    "tilted_optimum",
    "token_scores",
    "total_variation",
    "trust_region_bound",
    "visits",
    "vtrace_target_policy",
    "vtrace_targets",
]
