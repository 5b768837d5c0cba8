"""Tables: recorded digits of toy D, finite differences, and the same answers as the sums over sequences."""

import numpy as np
import pytest

from rung.errors import InvalidInput
from rung.exact import (
    FixedPolicy,
    LogLinear,
    SoftmaxTable,
    TabularMDP,
    action_values,
    advantages,
    distribution,
    evaluate,
    expected_over_prefixes,
    gradient_without_time_discount,
    objective,
    objective_gradient,
    occupancy,
    optimal_action_values,
    optimal_state_values,
    sequence_logprob,
    sequence_score,
    state_values,
    tabulate,
    visits,
)
from tests.exact.helpers import assert_is_derivative
from tests.exact.problems import (
    D_ACTION_VALUES,
    D_ACTOR_GRADIENT_OF_A_ZERO_CRITIC,
    D_GAMMA,
    D_GRADIENT,
    D_GRADIENT_WITHOUT_TIME_DISCOUNT,
    D_OBJECTIVE,
    D_OBJECTIVES,
    D_OPTIMAL_ACTION_VALUES,
    D_OPTIMAL_OBJECTIVE,
    D_OPTIMAL_VALUES,
    D_SOFT_OBJECTIVE,
    D_SOFT_VALUES,
    D_UNDISCOUNTED_VISITS,
    D_VALUES,
    D_VISITS,
    TOOL_MDP,
    TOOL_POLICY,
    TOY_D,
)
from tests.toys import SHARED_POLICY, TOY_A, TOY_B, TOY_C, TOY_LONG, assert_digits

UNIFORM = SoftmaxTable(range(3), np.zeros((3, 2)))
UNEVEN = SoftmaxTable(range(3), [[0.4, -0.3], [-1.1, 0.6], [0.2, 0.9]])
SHARED = LogLinear(lambda state: np.array([[0.5, state], [1.0, -0.3 * state]]), np.array([0.7, -0.4]))
GAMMAS = pytest.mark.parametrize("gamma", [1.0, 0.9, 0.3])
TOKEN_PROBLEMS = [
    pytest.param(TOY_A.mdp, TOY_A.policy, id="A"),
    pytest.param(TOY_B.mdp, TOY_B.policy, id="B"),
    pytest.param(TOY_C.mdp, TOY_C.policy, id="C"),
    pytest.param(TOY_LONG.mdp, TOY_LONG.policy, id="LONG"),
    pytest.param(TOY_LONG.mdp, SHARED_POLICY, id="LONG-shared"),
    pytest.param(TOOL_MDP, TOOL_POLICY, id="TOOL"),
]


def random_problem(seed, terminal=True):
    """Loops, random transitions and rewards that depend on where one arrives; not every state is a start."""
    generator = np.random.default_rng(seed)
    transitions = generator.dirichlet(np.ones(5), size=(5, 3))
    ends = [False, False, False, False, terminal]
    mdp = TabularMDP(transitions, generator.normal(size=(5, 3, 5)), [0.6, 0.4, 0, 0, 0], ends)
    return mdp, SoftmaxTable(range(5), generator.normal(size=(5, 3)))


PROBLEMS = [
    pytest.param(TOY_D, UNIFORM, id="D-uniform"),
    pytest.param(TOY_D, UNEVEN, id="D"),
    pytest.param(TOY_D, SHARED, id="D-shared"),
    pytest.param(*random_problem(3), id="random"),
]


def test_toy_d_under_the_uniform_policy():
    arguments = TOY_D, UNIFORM
    assert_digits(objective(*arguments, gamma=D_GAMMA), D_OBJECTIVE, 12)
    assert_digits(state_values(*arguments, gamma=D_GAMMA), [*D_VALUES, 0.0], 8)
    assert_digits(action_values(*arguments, gamma=D_GAMMA)[:3].ravel(), D_ACTION_VALUES, 8)
    assert_digits(occupancy(*arguments, gamma=D_GAMMA), [*D_VISITS, 0.0], 8)
    assert_digits(occupancy(*arguments), [*D_UNDISCOUNTED_VISITS, 0.0], 12)
    assert_digits(objective_gradient(*arguments, gamma=D_GAMMA), D_GRADIENT, 8)
    without = gradient_without_time_discount(*arguments, gamma=D_GAMMA)
    assert_digits(without, D_GRADIENT_WITHOUT_TIME_DISCOUNT, 8)


def test_the_optimum_of_toy_d():
    best = optimal_state_values(TOY_D, gamma=D_GAMMA)
    assert_digits(best, [*D_OPTIMAL_VALUES, 0.0], 8)
    assert_digits(TOY_D.start @ best, D_OPTIMAL_OBJECTIVE, 12)
    assert_digits(optimal_action_values(TOY_D, gamma=D_GAMMA)[:3].ravel(), D_OPTIMAL_ACTION_VALUES, 8)


@pytest.mark.parametrize(("letters", "recorded"), D_OBJECTIVES.items())
def test_policies_that_are_certain_on_toy_d(letters, recorded):
    chosen = FixedPolicy({s: np.log(np.eye(2) + 1e-300)["LR".index(x)] for s, x in enumerate(letters)})
    assert_digits(objective(TOY_D, chosen, gamma=D_GAMMA), recorded, 12)


def test_right_with_nineteen_chances_in_twenty_on_toy_d():
    soft = FixedPolicy({state: np.log([0.05, 0.95]) for state in range(3)})
    assert_digits(state_values(TOY_D, soft, gamma=D_GAMMA)[:3], D_SOFT_VALUES, 8)
    assert_digits(objective(TOY_D, soft, gamma=D_GAMMA), D_SOFT_OBJECTIVE, 12)


def test_a_critic_of_zeros_gives_an_actor_the_immediate_reward():
    """One-step advantage with V = 0: Σ_s d_γ(s) Σ_a ∇π(a|s) r(s,a), which misses state 1 entirely."""

    def at(state):
        logprobs, jacobian = evaluate(UNIFORM, state)
        return (np.exp(logprobs) * TOY_D.expected_rewards[state]) @ jacobian

    found = expected_over_prefixes(TOY_D, UNIFORM, at, gamma=D_GAMMA)
    assert_digits(found, D_ACTOR_GRADIENT_OF_A_ZERO_CRITIC, 8)


@GAMMAS
@pytest.mark.parametrize(("mdp", "policy"), PROBLEMS)
def test_the_gradient_is_the_finite_difference(mdp, policy, gamma):
    gradient = objective_gradient(mdp, policy, gamma=gamma)
    assert np.abs(gradient).max() > 1e-3
    assert_is_derivative(gradient, lambda p: objective(mdp, p, gamma=gamma), policy)


def test_without_an_end_the_gradient_is_still_the_finite_difference():
    mdp, policy = random_problem(4, terminal=False)
    gradient = objective_gradient(mdp, policy, gamma=0.8)
    assert_is_derivative(gradient, lambda p: objective(mdp, p, gamma=0.8), policy)


@GAMMAS
@pytest.mark.parametrize(("mdp", "policy"), TOKEN_PROBLEMS)
def test_tables_of_a_token_mdp_have_its_values(mdp, policy, gamma):
    """A linear solve against sums over sequences and recursion over prefixes."""
    tables, prefixes = tabulate(mdp)

    def same(state):
        return policy(prefixes[state])

    def rows(by_prefix):
        return [by_prefix[prefix] for prefix in prefixes]

    for function in (state_values, action_values, advantages, occupancy):
        found = function(tables, same, gamma=gamma)
        np.testing.assert_allclose(found[:-1], rows(function(mdp, policy, gamma=gamma)), rtol=0, atol=1e-13)
        np.testing.assert_allclose(found[-1], 0.0, rtol=0, atol=0)
    for function in (objective, objective_gradient, gradient_without_time_discount):
        found, expected = function(tables, same, gamma=gamma), function(mdp, policy, gamma=gamma)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


@GAMMAS
@pytest.mark.parametrize(("mdp", "policy"), PROBLEMS)
def test_bellman_and_the_tabular_softmax(mdp, policy, gamma):
    v, q, a = (function(mdp, policy, gamma=gamma) for function in (state_values, action_values, advantages))
    for state in np.flatnonzero(~mdp.terminal):
        probabilities = np.exp(evaluate(policy, state)[0])
        assert v[state] == pytest.approx(probabilities @ q[state], abs=1e-14)
        assert probabilities @ a[state] == pytest.approx(0.0, abs=1e-14)
    if isinstance(policy, SoftmaxTable):
        d = occupancy(mdp, policy, gamma=gamma)
        expected = [d[s] * np.exp(policy(s)[0]) * a[s] for s in policy.prefixes]
        found = objective_gradient(mdp, policy, gamma=gamma)
        np.testing.assert_allclose(found, np.concatenate(expected), rtol=0, atol=1e-14)


@pytest.mark.parametrize("horizon", [1, 2, 5])
@pytest.mark.parametrize(("mdp", "policy"), PROBLEMS)
def test_episodes_up_to_a_horizon(mdp, policy, horizon):
    """Their probabilities sum to 1; what was cut off is the tail, and the rest of the return is its value."""
    if mdp.actions * mdp.states > 8 and horizon > 3:
        horizon = 3
    found = distribution(mdp, policy, horizon=horizon)
    assert sum(p for _, p in found) == pytest.approx(1.0, abs=1e-13)
    assert all(episode.length <= horizon for episode, _ in found)
    value = state_values(mdp, policy, gamma=0.9)
    total = 0.0
    for episode, probability in found:
        assert mdp.terminal[episode.states[-1]] == (episode.end == "stop")
        assert episode.length == horizon or episode.end == "stop"
        total += probability * sum(0.9**t * r for t, r in enumerate(episode.rewards))
        total += probability * 0.9**episode.length * value[episode.states[-1]]
    assert total == pytest.approx(objective(mdp, policy, gamma=0.9), abs=1e-13)


def test_the_tail_of_toy_d_is_the_chance_of_not_having_left():
    """Uniform: left or right with ½ each, so that the middle is never left at once and the ends with ½."""
    still = [sum(p for e, p in distribution(TOY_D, UNIFORM, horizon=h) if e.end == "length") for h in (1, 2)]
    # From 0.5, 0.3, 0.2: after one step 0.15, 0.35, 0.15 are inside, after two 0.175, 0.15, 0.175.
    np.testing.assert_allclose(still, [0.65, 0.5], rtol=0, atol=1e-15)


def test_episodes_have_scores_and_log_probabilities_of_their_actions():
    start, moves = dict(enumerate(TOY_D.start)), TOY_D.transitions
    for episode, probability in distribution(TOY_D, UNEVEN, horizon=3):
        chances = start[episode.states[0]]
        for (state, action), target in zip(episode.steps, episode.states[1:], strict=True):
            chances *= moves[state, action, target]
        assert sequence_logprob(UNEVEN, episode) + np.log(chances) == pytest.approx(
            np.log(probability), abs=1e-13
        )
        assert_is_derivative(
            sequence_score(UNEVEN, episode), lambda p, tau=episode: sequence_logprob(p, tau), UNEVEN
        )


def test_reinforce_over_all_episodes_of_a_horizon():
    """Σ_τ p(τ) R(τ) ∇ log p(τ): start and transitions drop out of the score, here of four actions at most."""

    def mean_return(policy, factor):
        return sum(
            probability * sum(0.9**t * r for t, r in enumerate(episode.rewards)) * factor(episode)
            for episode, probability in distribution(TOY_D, policy, horizon=4)
        )

    gradient = mean_return(UNEVEN, lambda episode: sequence_score(UNEVEN, episode))
    assert_is_derivative(gradient, lambda p: mean_return(p, lambda episode: 1.0), UNEVEN)


def test_visits_are_of_states_where_an_action_is_chosen():
    assert [state for state, _ in visits(TOY_D, UNIFORM)] == [0, 1, 2]
    assert sum(weight for _, weight in visits(TOY_D, UNIFORM)) == pytest.approx(3.3, abs=1e-13)


def test_rewards_may_depend_on_where_one_arrives():
    """0.8·0.3 − 0.2·0.05 for leaving left on purpose, 0.2·0.3 − 0.8·0.05 by accident."""
    np.testing.assert_allclose(TOY_D.expected_rewards[0], [0.23, 0.02], rtol=0, atol=1e-15)
    expected = TabularMDP(TOY_D.transitions, TOY_D.expected_rewards, TOY_D.start, TOY_D.terminal)
    assert objective(expected, UNEVEN, gamma=0.9) == pytest.approx(
        objective(TOY_D, UNEVEN, gamma=0.9), abs=1e-15
    )


def test_no_policy_beats_the_optimal_values():
    mdp, policy = random_problem(5, terminal=False)
    best = optimal_action_values(mdp, gamma=0.9)
    greedy = FixedPolicy({s: np.log(np.eye(3)[a] + 1e-300) for s, a in enumerate(best.argmax(axis=1))})
    np.testing.assert_allclose(action_values(mdp, greedy, gamma=0.9), best, rtol=0, atol=1e-13)
    assert (action_values(mdp, policy, gamma=0.9) < best).all()


def test_episodes_that_never_end_need_a_discount():
    mdp, policy = random_problem(4, terminal=False)
    with pytest.raises(InvalidInput, match="every episode must end"):
        state_values(mdp, policy)
    paying = TabularMDP([[[1.0]]], [[1.0]], [1.0])
    assert optimal_state_values(paying, gamma=0.5) == pytest.approx([2.0], abs=1e-14)
    trapped = FixedPolicy({0: np.array([0.0, -np.inf])})
    choice = TabularMDP([[[1, 0], [0, 1]], [[0, 0]] * 2], np.ones((2, 2)), [1, 0], [False, True])
    with pytest.raises(InvalidInput, match=r"from states \[0\]"):
        objective(choice, trapped)
    assert objective(choice, trapped, gamma=0.5) == pytest.approx(2.0, abs=1e-14)


@pytest.mark.parametrize("gamma", [-0.1, 1.1, float("nan")])
def test_a_discount_outside_its_range_is_refused(gamma):
    with pytest.raises(InvalidInput, match=r"lies in \[0, 1\]"):
        objective(TOY_D, UNIFORM, gamma=gamma)


def test_a_horizon_is_needed_for_tables_and_may_not_be_too_far():
    with pytest.raises(InvalidInput, match="horizon of at least 1"):
        distribution(TOY_D, UNIFORM, horizon=0)
    mdp, policy = random_problem(4, terminal=False)
    with pytest.raises(InvalidInput, match="shorter horizon"):
        distribution(mdp, policy, horizon=8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0]], [[0.0]], [1.0]), "transitions are"),
        (([[[0.5]]], [[0.0]], [1.0]), "transitions: each row"),
        (([[[1.5, -0.5]], [[0.0, 1.0]]], [[0.0]] * 2, [1.0, 0.0]), "transitions: each row"),
        (([[[1.0]]], [0.0], [1.0]), "rewards are"),
        (([[[1.0]]], [[np.nan]], [1.0]), "finite"),
        (([[[1.0]]], [[0.0]], [0.5]), "start: each row"),
        (([[[1.0]]], [[0.0]], [1.0], [True]), "terminal state"),
        (([[[1.0]]], [[0.0]], [1.0, 0.0]), "one entry for each of 1 states"),
    ],
)
def test_impossible_tables_are_refused(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        TabularMDP(*arguments)


def test_a_policy_with_too_few_actions_is_named():
    with pytest.raises(InvalidInput, match="2 tokens or actions, but after 0 the policy has 3"):
        objective(TOY_D, SoftmaxTable(range(3), np.zeros((3, 3))))
