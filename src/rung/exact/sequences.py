"""Sequences under a policy: probabilities, scores, and how often each prefix or state is reached."""

from collections.abc import Callable
from typing import TypeAlias, overload

import numpy as np

from rung.errors import InvalidInput
from rung.exact import tabular_values as tabular
from rung.exact.policies import Policy, State, evaluate
from rung.exact.tabular_mdp import Episode, TabularMDP
from rung.exact.token_mdp import FloatArray, Prefix, TokenMDP, Trajectory

MDP: TypeAlias = TokenMDP | TabularMDP

# Above this many outcomes an enumeration is a mistake rather than a test.
MAX_OUTCOMES = 2_000_000


@overload
def distribution(mdp: TokenMDP, policy: Policy) -> list[tuple[Trajectory, float]]: ...
@overload
def distribution(mdp: TabularMDP, policy: Policy, *, horizon: int) -> list[tuple[Episode, float]]: ...
def distribution(
    mdp: MDP, policy: Policy, *, horizon: int | None = None
) -> list[tuple[Trajectory, float]] | list[tuple[Episode, float]]:
    """Every trajectory that the policy can produce, with its probability.

        p(τ) = d0(s_0) Π_t π(a_t|s_t) P(s_{t+1}|s_t,a_t)

    In a token MDP d0 is 1 and P is 1 but where an environment answers.

    Source: Sutton and Barto, 2nd edition, section 5.5.

    Args:
        mdp: which trajectories there are.
        policy: π.
        horizon: for a tabular MDP, after how many actions an episode is cut off; those that were then end by
            "length", and their probability is the tail that the horizon leaves out.

    Returns:
        (τ, p(τ)) in token order; the probabilities sum to 1 and are all positive. A sequence with an impossible
        token is left out, so that no estimator is asked about log 0.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=1, max_length=2, reward=lambda tokens: 0.0)
    >>> fair = SoftmaxTable([(), (0,)], np.zeros((2, 2)))
    >>> [(tau.tokens, round(probability, 2)) for tau, probability in distribution(mdp, fair)]
    [((0, 0), 0.25), ((0, 1), 0.25), ((1,), 0.5)]
    """
    if isinstance(mdp, TabularMDP):
        if horizon is None or horizon < 1:
            raise InvalidInput(f"the episodes of a tabular MDP need a horizon of at least 1, not {horizon}")
        return _episodes(mdp, policy, horizon)
    found: list[tuple[Trajectory, float]] = []

    def descend(prefix: Prefix, probability: float) -> None:
        for token, chance in enumerate(np.exp(evaluate(policy, prefix, mdp.vocabulary_size)[0])):
            if chance > 0.0:
                longer = (*prefix, token)
                end = mdp.end_of(longer)
                if end is not None:
                    found.append((Trajectory(longer, end, mdp.sampled(longer)), probability * float(chance)))
                for following, answer in mdp.successors(prefix, token):
                    descend(following, probability * float(chance) * answer)

    descend((), 1.0)
    return found


def _episodes(mdp: TabularMDP, policy: Policy, horizon: int) -> list[tuple[Episode, float]]:
    """Every episode of a tabular MDP up to a horizon, grown one action at a time."""
    joint = tabular.action_probabilities(mdp, policy)[:, :, None] * mdp.transitions
    _require_few((mdp.start > 0.0).astype(float), (joint > 0.0).sum(axis=1), horizon)
    going = [(Episode((s,), (), (), "length"), float(p)) for s, p in enumerate(mdp.start) if p > 0.0]
    found: list[tuple[Episode, float]] = []
    for _ in range(horizon):
        grown: list[tuple[Episode, float]] = []
        for episode, probability in going:
            state = episode.states[-1]
            for action, target in zip(*np.nonzero(joint[state]), strict=True):
                longer = Episode(
                    (*episode.states, int(target)),
                    (*episode.actions, int(action)),
                    (*episode.rewards, float(mdp.rewards[state, action, target])),
                    "stop" if mdp.terminal[target] else "length",
                )
                ended = found if mdp.terminal[target] else grown
                ended.append((longer, probability * float(joint[state, action, target])))
        going = grown
    return found + going


def _require_few(going: FloatArray, ways: FloatArray, horizon: int) -> None:
    """Refuse a horizon with too many episodes; `ways` [S, S] counts the actions that may lead from s to s'."""
    for _ in range(horizon):
        going = going @ ways  # terminal states have no way on, so that what they count is an end
        if going.sum() > MAX_OUTCOMES:
            raise InvalidInput(
                f"more than {MAX_OUTCOMES:,} episodes within {horizon} actions; use a shorter horizon"
            )


def greedy_tokens(mdp: TokenMDP, policy: Policy) -> Prefix:
    """The sequence that takes the most likely token at each prefix; the first of several.

    It need not be the most likely sequence. Without an environment that appends tokens.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=1, max_length=3, reward=lambda tokens: 0.0)
    >>> greedy_tokens(mdp, SoftmaxTable([(), (0,), (0, 0)], [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    (0, 1)
    """
    tokens: Prefix = ()
    while mdp.end_of(tokens) is None:
        tokens = (*tokens, int(evaluate(policy, tokens)[0].argmax()))
    return tokens


def sequence_logprob(policy: Policy, trajectory: Trajectory | Episode) -> float:
    """Sum of log π(a_t|s_t) over what the policy sampled, nats; −∞ when a token is impossible.

    That is log p(τ) where nothing else is random; an environment's or a transition's share is left out.

    >>> from rung.exact import SoftmaxTable
    >>> fair = SoftmaxTable([(), (0,)], np.zeros((2, 2)))
    >>> round(sequence_logprob(fair, Trajectory((0, 1), "stop")), 6)  # log ¼
    -1.386294
    """
    return float(sum(evaluate(policy, prefix)[0][token] for prefix, token in trajectory.steps))


def token_scores(policy: Policy, trajectory: Trajectory | Episode) -> FloatArray:
    """∇ log π(a_t|s_t) for every sampled token of a sequence, [L, n].

    >>> from rung.exact import SoftmaxTable
    >>> token_scores(SoftmaxTable([()], [[0.0, 0.0]]), Trajectory((1,), "stop"))
    array([[-0.5,  0.5]])
    """
    return np.array([evaluate(policy, prefix)[1][token] for prefix, token in trajectory.steps])


def sequence_score(policy: Policy, trajectory: Trajectory | Episode) -> FloatArray:
    """∇ log p(τ) = Σ_t ∇ log π(a_t|s_t), [n]: d0 and the transitions do not depend on θ and drop out.

    Source: Williams 1992, "Simple statistical gradient-following algorithms" (episodic eligibility).
    """
    total: FloatArray = token_scores(policy, trajectory).sum(axis=0)
    return total


@overload
def occupancy(mdp: TokenMDP, policy: Policy, *, gamma: float = 1.0) -> dict[Prefix, float]: ...
@overload
def occupancy(mdp: TabularMDP, policy: Policy, *, gamma: float = 1.0) -> FloatArray: ...
def occupancy(mdp: MDP, policy: Policy, *, gamma: float = 1.0) -> dict[Prefix, float] | FloatArray:
    """How often each prefix or state is reached with an action to choose, discounted by when.

        d_γ(s) = Σ_t γ^t Pr(s_t = s)

    Not normalised. With γ = 1 the values add up to the expected length. A prefix can be reached at one time only,
    the number of tokens sampled before it, so there the sum over t has one term.

    Source: Sutton and Barto, 2nd edition, section 9.2, equation 9.2 (η(s), the expected number of visits).

    Returns:
        {prefix: d} of a token MDP; [S] of a tabular MDP, 0 in terminal states.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=1, max_length=2, reward=lambda tokens: 0.0)
    >>> occupancy(mdp, SoftmaxTable([(), (0,)], np.zeros((2, 2))), gamma=0.5)
    {(): 1.0, (0,): 0.25}
    """
    if isinstance(mdp, TabularMDP):
        return tabular.occupancy(mdp, policy, gamma)
    found = dict.fromkeys(mdp.prefixes(), 0.0)
    found[()] = 1.0
    for prefix, before in found.items():
        if before > 0.0:
            for token, chance in enumerate(np.exp(evaluate(policy, prefix, mdp.vocabulary_size)[0])):
                for longer, answer in mdp.successors(prefix, token):
                    found[longer] += gamma * before * float(chance) * answer
    return found


def visits(mdp: MDP, policy: Policy, *, gamma: float = 1.0) -> list[tuple[State, float]]:
    """(s, d_γ(s)) for each prefix or state that the policy reaches with an action to choose.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=1, max_length=2, reward=lambda tokens: 0.0)
    >>> visits(mdp, SoftmaxTable([(), (0,)], np.zeros((2, 2))))
    [((), 1.0), ((0,), 0.5)]
    """
    reached = occupancy(mdp, policy, gamma=gamma)
    pairs = reached.items() if isinstance(reached, dict) else enumerate(reached.tolist())
    return [(state, weight) for state, weight in pairs if weight > 0.0]


def expected_over_prefixes(
    mdp: MDP, sampler: Policy, function: Callable[[State], FloatArray], *, gamma: float = 1.0
) -> FloatArray:
    """Σ_s d_γ(s) f(s): the expected sum of a per-prefix or per-state quantity along a trajectory of the sampler.

    This is what a loss gets that is computed in full at each visited prefix, prefixes held constant.

    Args:
        mdp: which prefixes or states there are.
        sampler: the policy whose trajectories visit them.
        function: prefix or state → number or array, for instance the gradient of a divergence. Asked only where
            the sampler comes.
        gamma: discount γ of the occupancy.

    Returns:
        An array of the shape that `function` returns.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=1, max_length=2, reward=lambda tokens: 0.0)
    >>> fair = SoftmaxTable([(), (0,)], np.zeros((2, 2)))
    >>> float(expected_over_prefixes(mdp, fair, lambda prefix: np.array(1.0)))  # the expected length
    1.5
    """
    terms = [weight * np.asarray(function(state)) for state, weight in visits(mdp, sampler, gamma=gamma)]
    total: FloatArray = np.sum(terms, axis=0)
    return total
