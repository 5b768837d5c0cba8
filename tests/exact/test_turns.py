"""Several turns: an environment appends tokens, and only what the policy sampled is scored, counted and paid."""

from dataclasses import replace

import numpy as np
import pytest

from rung.exact import (
    SoftmaxTable,
    Trajectory,
    action_values,
    advantages,
    distribution,
    evaluate,
    expectation,
    expected_over_prefixes,
    objective,
    objective_gradient,
    occupancy,
    policy_gradient,
    prefix_kl_policy_reference,
    regularized_objective,
    score_weighted,
    sequence_kl_policy_reference,
    sequence_kl_reference_policy,
    sequence_logprob,
    sequence_score,
    state_values,
    tilted_optimum,
    token_scores,
)
from tests.exact.helpers import assert_is_derivative
from tests.exact.problems import (
    TOOL_ANSWERS,
    TOOL_BEHAVIOUR,
    TOOL_MDP,
    TOOL_OTHERS,
    TOOL_POLICY,
    TOOL_PREFIXES,
    TOOL_REFERENCE,
    TOOL_SHARED_POLICY,
    TOOL_STARTS,
)
from tests.toys import SHARED_REFERENCE, TOY_C, TOY_LONG

POLICIES = pytest.mark.parametrize("policy", [TOOL_POLICY, TOOL_SHARED_POLICY], ids=["table", "shared"])
REFERENCES = pytest.mark.parametrize(
    ("policy", "reference"),
    [(TOOL_POLICY, TOOL_REFERENCE), (TOOL_SHARED_POLICY, SHARED_REFERENCE)],
    ids=["table", "shared"],
)
GAMMAS = pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])


def by_hand(policy, tokens, marks):
    """p(τ), factor by factor: the policy's tokens, and the tool's answers from the table."""
    probability = 1.0
    for i, token in enumerate(tokens):
        if marks[i]:
            probability *= np.exp(policy(tokens[:i])[0][token])
            later = tokens[i + 1 :]
            for answer, chance in TOOL_ANSWERS.get(tokens[: i + 1], {}).items():
                if later and later[: len(answer)] == answer:
                    probability *= chance
    return probability


def test_who_wrote_what_and_where_it_ends():
    found = TOOL_MDP.trajectories()
    assert found[:3] == TOOL_STARTS
    ends = {tau.tokens: tau.end for tau in found}
    assert {tokens: ends[tokens] for tokens in TOOL_OTHERS} == TOOL_OTHERS
    # Ended after 2; 0 and an answer; 1 and no answer, or 1 2 and an answer.
    assert len(found) == 1 + 2 * (1 + 2 * 3) + (2 * 3 + 3)
    assert {tau.tokens: tau.sampled for tau in found}[1, 2, 0, 2, 2] == (True, True, False, False, True)
    assert (1, 2) not in ends


def test_the_policy_is_asked_after_answers_only():
    assert [
        (),
        *[(0, 1), (0, 2, 1), (1,)],
        *[(0, 1, 0), (0, 1, 1), (0, 2, 1, 0), (0, 2, 1, 1), (1, 0), (1, 1), (1, 2, 0, 2)],
    ] == TOOL_PREFIXES
    assert TOOL_MDP.end_of((0,)) is None
    assert TOOL_MDP.end_of((1, 2)) is None
    assert TOOL_MDP.end_of((1, 2, 0, 2)) is None


def test_steps_rewards_and_lengths_are_those_of_the_sampled_tokens():
    tau = Trajectory((0, 2, 1, 1, 2), "stop", TOOL_MDP.sampled((0, 2, 1, 1, 2)))
    assert tau.length == 3
    assert tau.steps == [((), 0), ((0, 2, 1), 1), ((0, 2, 1, 1), 2)]
    # 0.1·token − 0.05·len(prefix), and 0.3·2 + 0.2·25/4 for the whole.
    expected = [0.0, 0.1 - 0.15, 0.2 - 0.2 + 0.6 + 1.25]
    np.testing.assert_allclose(TOOL_MDP.rewards(tau.tokens), expected, rtol=0, atol=1e-15)
    discounted = 0.9 * expected[1] + 0.81 * expected[2]
    assert TOOL_MDP.total_return(tau.tokens, gamma=0.9) == pytest.approx(discounted, abs=1e-14)
    assert token_scores(TOOL_POLICY, tau).shape == (3, 33)


@POLICIES
def test_probabilities_are_the_policys_times_the_tools(policy):
    found = distribution(TOOL_MDP, policy)
    assert [tau for tau, _ in found] == TOOL_MDP.trajectories()
    assert sum(p for _, p in found) == pytest.approx(1.0, abs=1e-14)
    for tau, probability in found:
        assert probability == pytest.approx(by_hand(policy, tau.tokens, tau.sampled), abs=1e-15)


@GAMMAS
@POLICIES
def test_the_gradient_is_the_finite_difference(policy, gamma):
    """∇J on a two-turn token MDP: the tool's tokens are in the prefixes and in no score."""
    gradient = objective_gradient(TOOL_MDP, policy, gamma=gamma)
    assert np.abs(gradient).max() > 1e-2
    assert_is_derivative(gradient, lambda p: objective(TOOL_MDP, p, gamma=gamma), policy)


def test_scoring_the_tools_tokens_is_another_gradient():
    """What a loss without the mask gets. The shared features have a score where the tool speaks as well."""
    wrong = sum(
        p
        * TOOL_MDP.total_return(tau.tokens)
        * sequence_score(TOOL_SHARED_POLICY, Trajectory(tau.tokens, tau.end))
        for tau, p in distribution(TOOL_MDP, TOOL_SHARED_POLICY)
    )
    assert np.abs(wrong - objective_gradient(TOOL_MDP, TOOL_SHARED_POLICY)).max() > 0.05


@GAMMAS
@POLICIES
def test_values_are_mean_returns_of_the_sequences_that_go_on_from_there(policy, gamma):
    weight, total = {}, {}
    for tau, probability in distribution(TOOL_MDP, policy):
        rewards = TOOL_MDP.rewards(tau.tokens)
        for t, step in enumerate(tau.steps):
            to_go = sum(gamma ** (u - t) * rewards[u] for u in range(t, tau.length))
            weight[step] = weight.get(step, 0.0) + probability
            total[step] = total.get(step, 0.0) + probability * to_go
    found = action_values(TOOL_MDP, policy, gamma=gamma)
    assert list(found) == TOOL_PREFIXES
    for (prefix, token), sum_ in total.items():
        assert found[prefix][token] == pytest.approx(sum_ / weight[prefix, token], abs=1e-13)
    assert state_values(TOOL_MDP, policy, gamma=gamma)[()] == pytest.approx(
        objective(TOOL_MDP, policy, gamma=gamma), abs=1e-14
    )


@GAMMAS
@POLICIES
def test_visits_count_sampled_tokens(policy, gamma):
    counted = dict.fromkeys(TOOL_PREFIXES, 0.0)
    for tau, probability in distribution(TOOL_MDP, policy):
        for t, (prefix, _) in enumerate(tau.steps):
            counted[prefix] += gamma**t * probability
    assert occupancy(TOOL_MDP, policy, gamma=gamma) == pytest.approx(counted, abs=1e-14)


@GAMMAS
@POLICIES
def test_policy_gradient_theorem(policy, gamma):
    """∇J = Σ_s d_γ(s) Σ_a ∇π(a|s) A(s,a)."""
    credit = advantages(TOOL_MDP, policy, gamma=gamma)

    def at(prefix):
        logprobs, jacobian = evaluate(policy, prefix)
        return (np.exp(logprobs) * credit[prefix]) @ jacobian

    found = expected_over_prefixes(TOOL_MDP, policy, at, gamma=gamma)
    expected = objective_gradient(TOOL_MDP, policy, gamma=gamma)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


@REFERENCES
def test_divergences_of_both_directions(policy, reference):
    for kl in (sequence_kl_policy_reference, sequence_kl_reference_policy):
        found = kl(TOOL_MDP, policy, reference)
        assert_is_derivative(found.gradient, lambda p, kl=kl: kl(TOOL_MDP, p, reference).value, policy)
        np.testing.assert_allclose(found.immediate + found.future, found.gradient, rtol=0, atol=1e-14)


@REFERENCES
def test_the_divergence_of_sequences_sees_only_the_policys_part(policy, reference):
    """The tool's probabilities cancel in the ratio and stay in the average."""
    by_sequences = sum(
        p * np.log(p / by_hand(reference, tau.tokens, tau.sampled))
        for tau, p in distribution(TOOL_MDP, policy)
    )
    by_prefixes = expected_over_prefixes(
        TOOL_MDP, policy, lambda s: np.array(prefix_kl_policy_reference(policy, reference, s).value)
    )
    found = sequence_kl_policy_reference(TOOL_MDP, policy, reference).value
    assert found == pytest.approx(by_sequences, abs=1e-14)
    assert found == pytest.approx(float(by_prefixes), abs=1e-14)


@REFERENCES
def test_k1_in_the_reward_is_the_gradient_of_the_divergence(policy, reference):
    def cost(prefix, token):
        return float(policy(prefix)[0][token] - reference(prefix)[0][token])

    found = score_weighted(TOOL_MDP, policy, cost)
    expected = sequence_kl_policy_reference(TOOL_MDP, policy, reference).gradient
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("beta", [0.3, 2.0])
@REFERENCES
def test_every_policy_falls_short_of_the_optimum_by_its_divergence_from_it(policy, reference, beta):
    found = regularized_objective(TOOL_MDP, policy, reference, beta)
    assert_is_derivative(
        found.gradient, lambda p: regularized_objective(TOOL_MDP, p, reference, beta).value, policy
    )
    optimum = tilted_optimum(TOOL_MDP, reference, beta)
    shortfall = beta * sequence_kl_policy_reference(TOOL_MDP, policy, optimum.policy).value
    assert found.value == pytest.approx(optimum.value - shortfall, abs=1e-13)


def test_no_policy_tilts_what_the_tool_chooses():
    """β log Σ p_ref e^(R/β) would need the tool's help: above the optimum, and equal to it when answers are certain."""

    def log_normaliser(mdp, reference):
        sequences = distribution(mdp, reference)
        return 0.3 * np.log(sum(p * np.exp(mdp.total_return(tau.tokens) / 0.3) for tau, p in sequences))

    best = tilted_optimum(TOOL_MDP, TOOL_REFERENCE, 0.3).value
    assert log_normaliser(TOOL_MDP, TOOL_REFERENCE) - best > 1e-3
    certain = replace(TOOL_MDP, environment=lambda prefix: {(0,): {(2, 1): 1.0}}.get(prefix, {}))
    table = SoftmaxTable(certain.prefixes(), np.arange(3.0 * len(certain.prefixes())).reshape(-1, 3) % 1.3)
    best = tilted_optimum(certain, table, 0.3).value
    assert best == pytest.approx(log_normaliser(certain, table), abs=1e-13)


def test_whole_sequence_ratios_undo_the_sampler():
    def estimator(group):
        ratio = np.exp(sequence_logprob(TOOL_POLICY, group[0]) - sequence_logprob(TOOL_BEHAVIOUR, group[0]))
        return ratio * TOOL_MDP.total_return(group[0].tokens) * sequence_score(TOOL_POLICY, group[0])

    found = expectation(TOOL_MDP, TOOL_BEHAVIOUR, 1, estimator).mean
    np.testing.assert_allclose(found, objective_gradient(TOOL_MDP, TOOL_POLICY), rtol=0, atol=1e-13)


@POLICIES
def test_leave_one_out_stays_unbiased(policy):
    def estimator(group):
        first, second = (TOOL_MDP.total_return(tau.tokens) for tau in group)
        return (first - second) * (sequence_score(policy, group[0]) - sequence_score(policy, group[1])) / 2

    found = expectation(TOOL_MDP, policy, 2, estimator).mean
    np.testing.assert_allclose(found, objective_gradient(TOOL_MDP, policy), rtol=0, atol=1e-13)


@pytest.mark.parametrize("toy", [TOY_C, TOY_LONG], ids=["C", "LONG"])
@pytest.mark.parametrize("silence", [{}, {(): 1.0}, {(): 1.0, (0,): 0.0}], ids=["none", "empty", "never"])
def test_a_silent_environment_changes_nothing(toy, silence):
    mdp = replace(toy.mdp, environment=lambda prefix: silence)
    assert mdp.prefixes() == toy.mdp.prefixes()
    assert distribution(mdp, toy.policy) == distribution(toy.mdp, toy.policy)
    np.testing.assert_array_equal(
        objective_gradient(mdp, toy.policy), objective_gradient(toy.mdp, toy.policy)
    )


def test_credit_is_given_to_sampled_tokens():
    """G_t from the sampled rewards, one entry a sampled token: the same gradient as the whole return."""

    def to_go(tau):
        return np.cumsum(TOOL_MDP.rewards(tau.tokens)[::-1])[::-1]

    found = policy_gradient(TOOL_MDP, TOOL_POLICY, to_go)
    np.testing.assert_allclose(found, objective_gradient(TOOL_MDP, TOOL_POLICY), rtol=0, atol=1e-14)
