"""Sequences under a policy: probabilities, scores, and how often each prefix is reached."""

from collections.abc import Callable

import numpy as np

from rung.exact.policies import Policy, evaluate
from rung.exact.token_mdp import FloatArray, Prefix, TokenMDP, Trajectory


def distribution(mdp: TokenMDP, policy: Policy) -> list[tuple[Trajectory, float]]:
    """Every sequence that the policy can produce, with its probability.

        p(τ) = Π_t π(a_t|s_t)

    Source: Sutton and Barto, 2nd edition, section 5.5 (d0 and the transitions are 1 here).

    Returns:
        (τ, p(τ)) in token order; the probabilities sum to 1 and are all positive. A sequence with an impossible
        token is left out, so that no estimator is asked about log 0.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=1, max_length=2, reward=lambda tokens: 0.0)
    >>> fair = SoftmaxTable([(), (0,)], np.zeros((2, 2)))
    >>> [(tau.tokens, round(probability, 2)) for tau, probability in distribution(mdp, fair)]
    [((0, 0), 0.25), ((0, 1), 0.25), ((1,), 0.5)]
    """
    found: list[tuple[Trajectory, float]] = []

    def descend(prefix: Prefix, probability: float) -> None:
        end = mdp.end_of(prefix)
        if end is not None:
            found.append((Trajectory(prefix, end), probability))
            return
        for token, chance in enumerate(np.exp(evaluate(policy, prefix, mdp.vocabulary_size)[0])):
            if chance > 0.0:
                descend((*prefix, token), probability * float(chance))

    descend((), 1.0)
    return found


def sequence_logprob(policy: Policy, trajectory: Trajectory) -> float:
    """Sum of log π(a_t|s_t) over a sequence: log p(τ), nats; −∞ when a token is impossible.

    >>> from rung.exact import SoftmaxTable
    >>> fair = SoftmaxTable([(), (0,)], np.zeros((2, 2)))
    >>> round(sequence_logprob(fair, Trajectory((0, 1), "stop")), 6)  # log ¼
    -1.386294
    """
    return float(sum(evaluate(policy, prefix)[0][token] for prefix, token in trajectory.steps))


def token_scores(policy: Policy, trajectory: Trajectory) -> FloatArray:
    """∇ log π(a_t|s_t) for every token of a sequence, [L, n].

    >>> from rung.exact import SoftmaxTable
    >>> token_scores(SoftmaxTable([()], [[0.0, 0.0]]), Trajectory((1,), "stop"))
    array([[-0.5,  0.5]])
    """
    return np.array([evaluate(policy, prefix)[1][token] for prefix, token in trajectory.steps])


def sequence_score(policy: Policy, trajectory: Trajectory) -> FloatArray:
    """∇ log p(τ) = Σ_t ∇ log π(a_t|s_t), [n]: d0 and the transitions do not depend on θ and drop out.

    Source: Williams 1992, "Simple statistical gradient-following algorithms" (episodic eligibility).
    """
    total: FloatArray = token_scores(policy, trajectory).sum(axis=0)
    return total


def occupancy(mdp: TokenMDP, policy: Policy, *, gamma: float = 1.0) -> dict[Prefix, float]:
    """How often each prefix is reached, discounted by when.

        d_γ(s) = Σ_t γ^t Pr(s_t = s) = γ^|s| Π_{t<|s|} π(s_t|s_<t)

    Not normalised. A prefix can be reached at one time only, its length, so the sum over t has one term. With
    γ = 1 the values add up to the expected length.

    Source: Sutton and Barto, 2nd edition, section 9.2, equation 9.2 (η(s), the expected number of visits).

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=1, max_length=2, reward=lambda tokens: 0.0)
    >>> occupancy(mdp, SoftmaxTable([(), (0,)], np.zeros((2, 2))), gamma=0.5)
    {(): 1.0, (0,): 0.25}
    """
    found: dict[Prefix, float] = {}
    for prefix in mdp.prefixes():
        if not prefix:
            found[prefix] = 1.0
            continue
        before = found.get(prefix[:-1], 0.0)
        if before > 0.0:
            chance = float(np.exp(evaluate(policy, prefix[:-1], mdp.vocabulary_size)[0][prefix[-1]]))
            found[prefix] = gamma * before * chance
        else:
            found[prefix] = 0.0
    return found


def expected_over_prefixes(
    mdp: TokenMDP, sampler: Policy, function: Callable[[Prefix], FloatArray], *, gamma: float = 1.0
) -> FloatArray:
    """Σ_s d_γ(s) f(s): the expected sum of a per-prefix quantity along a sequence of the sampler.

    This is what a loss gets that is computed in full at each visited prefix, prefixes held constant.

    Args:
        mdp: which prefixes there are.
        sampler: the policy whose sequences visit the prefixes.
        function: prefix → number or array, for instance the gradient of a divergence. Asked only at prefixes
            that the sampler reaches.
        gamma: discount γ of the occupancy.

    Returns:
        An array of the shape that `function` returns.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=1, max_length=2, reward=lambda tokens: 0.0)
    >>> fair = SoftmaxTable([(), (0,)], np.zeros((2, 2)))
    >>> float(expected_over_prefixes(mdp, fair, lambda prefix: np.array(1.0)))  # the expected length
    1.5
    """
    visits = occupancy(mdp, sampler, gamma=gamma).items()
    terms = [weight * np.asarray(function(prefix)) for prefix, weight in visits if weight > 0.0]
    total: FloatArray = np.sum(terms, axis=0)
    return total
