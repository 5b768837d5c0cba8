"""What an estimate of KL(π‖π_ref) is worth: its value, and the gradient that it gives where it is placed.

    l_t = log π(a_t|s_t) − log π_ref(a_t|s_t)          l = Σ_t l_t          samples τ ~ μ
    k1 = l          k2 = l²/2          k3 = e^(−l) − 1 + l          full = KL(π(·|s_t)‖π_ref(·|s_t)), no sample of a_t
    dk/dl:  1              l                1 − e^(−l)              ∇full is the divergence's own gradient

A *cell* says five things: which estimator, of what (each token, or the sequence as one action), where it stands (in the
reward as a constant, or in the loss to be differentiated), its importance weight (none, held constant, or
differentiated too), and which ratio that weight is.

Source: Schulman, "Approximating KL divergence" (2020) for k1, k2, k3; Tang and Munos 2025, arXiv:2506.09477, and Liu et
al. 2025, arXiv:2510.01555, for what they give as a loss.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from rung.errors import InvalidInput
from rung.exact.divergence import prefix_kl_policy_reference
from rung.exact.expectation import Moments, expectation
from rung.exact.policies import Policy, evaluate
from rung.exact.sequences import token_scores
from rung.exact.token_mdp import FloatArray, TokenMDP, Trajectory

Estimator: TypeAlias = Literal["k1", "k2", "k3", "full"]
Level: TypeAlias = Literal["token", "sequence"]
Placement: TypeAlias = Literal["reward", "loss"]
Weight: TypeAlias = Literal["none", "detached", "live"]


class MeanAndVariance(NamedTuple):
    """The first two moments of one sequence's estimate, nats and nats²."""

    mean: float
    variance: float


def kl_estimate(
    mdp: TokenMDP,
    policy: Policy,
    reference: Policy,
    *,
    estimator: Estimator,
    level: Level = "token",
    ratio: Level | None = None,
    sampler: Policy | None = None,
) -> MeanAndVariance:
    """Mean and variance of one sequence's estimate of KL(p_π‖p_ref).

        token:     Σ_t w_t k(l_t)   or   Σ_t w_t KL(s_t)
        sequence:  w k(Σ_t l_t)     or   w Σ_t KL(s_t)

    Args:
        mdp: which sequences there are.
        policy: π.
        reference: π_ref.
        estimator: k1, k2, k3, or the whole divergence at each visited prefix (which is the Rao-Blackwellised k1).
        level: of each token, or of the whole sequence.
        ratio: the importance weight: "token" π(a_t|s_t)/μ(a_t|s_t) at its token, "sequence" the product of all of
            them, None for no weight. A token has no place in an estimate of the whole sequence.
        sampler: μ; None for π itself.

    Raises:
        InvalidInput: a token ratio for a whole sequence, or an estimate that is not finite.

    Exactness:
        On policy k1, k3 and full have the mean KL(p_π‖p_ref), and k2 has not. Off policy only the sequence ratio
        brings the mean back. Checked by tests/exact/test_kl_estimates.py::test_values_of_toys_a_and_b and
        ::test_only_the_sequence_ratio_undoes_the_sampler.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 0.0)
    >>> half, quarter = SoftmaxTable([()], [[0.0, 0.0]]), SoftmaxTable([()], np.log([[0.25, 0.75]]))
    >>> found = kl_estimate(mdp, half, quarter, estimator="k1")  # log 2 or log ⅔, each with probability ½
    >>> round(found.mean, 6), round(found.variance, 6)
    (0.143841, 0.301737)
    """
    behaviour = policy if sampler is None else sampler

    def estimate(group: tuple[Trajectory, ...]) -> FloatArray:
        terms = _terms(policy, reference, behaviour, group[0], estimator, level, ratio)
        return np.array([terms.weights @ terms.values])

    moments = expectation(mdp, behaviour, 1, estimate)
    return MeanAndVariance(float(moments.mean[0]), moments.trace)


def kl_cell(
    mdp: TokenMDP,
    policy: Policy,
    reference: Policy,
    *,
    estimator: Estimator,
    placement: Placement,
    level: Level = "token",
    weight: Weight = "none",
    ratio: Level | None = None,
    sampler: Policy | None = None,
) -> Moments:
    """The gradient that one sequence gives for a penalty: its mean and covariance, by hand and by enumeration.

    Token level, with w_t and k_t at each sampled token, and score_t = ∇ log π(a_t|s_t):

        loss:    Σ_t (w_t ∇k_t + [live] k_t ∇w_t)
        reward:  Σ_t (Σ_{u≥t} w_u k_u) score_t

    ∇k_t = (dk/dl)(l_t) score_t, or ∇KL(s_t) for the full divergence. Prefixes are held constant in the loss. In the
    reward a cost counts for its own token and all before it, undiscounted, and nothing of w_u k_u is differentiated:
    a live weight is the same there as a detached one.

    Sequence level is the same with the sequence as the only action: k = k(Σ_t l_t), or Σ_t KL(s_t) for full;
    score = Σ_t score_t; so that in the reward the whole sequence pays.

        w = 1                          weight "none"
        w_t = π(a_t|s_t)/μ(a_t|s_t)    ratio "token",     ∇w_t = w_t score_t
        w   = Π_t of these             ratio "sequence",  ∇w = w Σ_t score_t

    Args:
        mdp: which sequences there are.
        policy: π, whose parameters the gradient is about.
        reference: π_ref, fixed.
        estimator: k1, k2, k3 or full.
        placement: in the reward or in the loss.
        level: of each token or of the sequence.
        weight: none, held constant, or differentiated.
        ratio: which ratio the weight is; None for the level's own. The sequence ratio may also weigh tokens.
        sampler: μ, where the sequences come from; None for π itself. Scores are those of π in any case.

    Returns:
        Moments [n] of one sequence's gradient of the penalty, nats per unit of θ: the direction in which it grows.
        A loss adds β times it, a reward subtracts the cost that is behind it; both descend.

    Raises:
        InvalidInput: a token ratio for a whole sequence, or a gradient that is not finite.

    Exactness:
        The derivative of a mean whose frozen parts are frozen. Checked for all cells by
        tests/exact/test_kl_cells.py::test_a_penalty_in_the_loss_is_the_finite_difference and
        ::test_a_penalty_in_the_reward_is_the_finite_difference, and against recorded digits.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 0.0)
    >>> half, quarter = SoftmaxTable([()], [[0.0, 0.0]]), SoftmaxTable([()], np.log([[0.25, 0.75]]))
    >>> kl_cell(mdp, half, quarter, estimator="k1", placement="loss").mean  # the mean score: nothing
    array([0., 0.])
    >>> kl_cell(mdp, half, quarter, estimator="k3", placement="loss").mean  # the other direction: π − π_ref
    array([ 0.25, -0.25])
    """
    behaviour = policy if sampler is None else sampler
    chosen = None if weight == "none" else (ratio or level)

    def gradient(group: tuple[Trajectory, ...]) -> FloatArray:
        terms = _terms(policy, reference, behaviour, group[0], estimator, level, chosen)
        costs = terms.weights * terms.values
        if placement == "reward":
            to_go = np.array([costs[t:].sum() for t in range(len(costs))])
            return np.asarray(to_go @ terms.scores)
        total = terms.weights @ terms.value_gradients
        if weight == "live":
            total = total + terms.values @ terms.weight_gradients
        return np.asarray(total)

    return expectation(mdp, behaviour, 1, gradient)


@dataclass(frozen=True)
class _Terms:
    """The summands of one sequence's estimate: L of them at token level, one at sequence level."""

    values: FloatArray  # k [M]
    value_gradients: FloatArray  # ∇k [M, n]
    weights: FloatArray  # w [M]
    weight_gradients: FloatArray  # ∇w [M, n]
    scores: FloatArray  # ∇ log π of the summand's action [M, n]


def _terms(
    policy: Policy,
    reference: Policy,
    behaviour: Policy,
    trajectory: Trajectory,
    estimator: Estimator,
    level: Level,
    ratio: Level | None,
) -> _Terms:
    if level == "sequence" and ratio == "token":
        raise InvalidInput("a whole sequence has no token ratio; its weight is the sequence ratio")
    scores = token_scores(policy, trajectory)
    log_ratios = _log_ratios(policy, reference, trajectory)
    log_weights = _log_ratios(policy, behaviour, trajectory)
    if estimator == "full":
        visited = [prefix_kl_policy_reference(policy, reference, prefix) for prefix, _ in trajectory.steps]
        values, slopes = np.array([kl.value for kl in visited]), np.array([kl.gradient for kl in visited])
    if level == "sequence":
        scores, log_ratios = scores.sum(axis=0, keepdims=True), log_ratios.sum(keepdims=True)
        if estimator == "full":
            values, slopes = values.sum(keepdims=True), slopes.sum(axis=0, keepdims=True)
    if estimator != "full":
        values = {"k1": log_ratios, "k2": log_ratios**2 / 2, "k3": np.exp(-log_ratios) - 1 + log_ratios}[
            estimator
        ]
        slope = {"k1": np.ones_like(log_ratios), "k2": log_ratios, "k3": 1 - np.exp(-log_ratios)}[estimator]
        slopes = slope[:, None] * scores
    if ratio is None:
        return _Terms(values, slopes, np.ones(len(values)), np.zeros_like(scores), scores)
    if ratio == "token":
        weights, in_ratio = np.exp(log_weights), scores
    else:
        weights = np.full(len(values), np.exp(log_weights.sum()))
        in_ratio = np.broadcast_to(scores.sum(axis=0), scores.shape)
    return _Terms(values, slopes, weights, weights[:, None] * in_ratio, scores)


def _log_ratios(first: Policy, second: Policy, trajectory: Trajectory) -> FloatArray:
    """Log-ratio log first(a_t|s_t) − log second(a_t|s_t) of every sampled token, [L]."""
    found = []
    for prefix, token in trajectory.steps:
        logprobs = [float(evaluate(policy, prefix)[0][token]) for policy in (first, second)]
        if not np.isfinite(logprobs).all():
            raise InvalidInput(
                f"token {token} after {prefix} is impossible for one of two policies: no ratio is finite"
            )
        found.append(logprobs[0] - logprobs[1])
    return np.array(found)
