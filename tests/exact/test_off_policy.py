"""Recorded numbers for sequences of μ and the policy π, toy C: importance weights, cut-offs, clipped objectives."""

import numpy as np
import pytest

from rung.exact import advantages, distribution, expectation, objective, objective_gradient, policy_gradient
from tests.toys import (
    C_CLIP_HIGHER_OBJECTIVE_NEGATED,
    C_CLIPPED_GRADIENT,
    C_CLIPPED_OBJECTIVE,
    C_CLIPPED_OBJECTIVE_NEGATED,
    C_DUAL_CLIPPED_OBJECTIVE,
    C_OBJECTIVE_GRADIENT,
    C_SEQUENCE_CLIPPED_OBJECTIVE,
    C_SEQUENCE_MASKED,
    C_SEQUENCE_TRUNCATED,
    C_TOKEN_ICEPOP,
    C_TOKEN_IMPORTANCE,
    TOY_C,
    assert_digits,
)

MDP, POLICY, BEHAVIOUR = TOY_C.mdp, TOY_C.policy, TOY_C.behaviour
TARGET, SAMPLED = (dict(distribution(MDP, policy)) for policy in (POLICY, BEHAVIOUR))
ADVANTAGE = advantages(MDP, BEHAVIOUR)


def token_ratios(tau):
    return np.array([np.exp(POLICY(s)[0][a] - BEHAVIOUR(s)[0][a]) for s, a in tau.steps])


def sequence_ratio(tau):
    return np.full(tau.length, TARGET[tau] / SAMPLED[tau])


def between(low, high):
    return lambda ratio: np.where((ratio >= low) & (ratio <= high), ratio, 0.0)


@pytest.mark.parametrize(
    ("ratios", "cut", "recorded"),
    [
        (sequence_ratio, lambda w: w, C_OBJECTIVE_GRADIENT),
        (token_ratios, lambda w: w, C_TOKEN_IMPORTANCE),
        (sequence_ratio, lambda w: np.minimum(w, 1.2), C_SEQUENCE_TRUNCATED),
        (sequence_ratio, between(0.0, 1.2), C_SEQUENCE_MASKED),
        (token_ratios, between(0.5, 1.2), C_TOKEN_ICEPOP),
    ],
    ids=["sequence", "token", "sequence-truncated", "sequence-masked", "token-icepop"],
)
def test_importance_weights(ratios, cut, recorded):
    def credit(tau):
        return cut(ratios(tau)) * MDP.total_return(tau.tokens)

    assert_digits(policy_gradient(MDP, POLICY, credit, sampler=BEHAVIOUR), recorded, 10)


def test_sequence_weights_are_exact():
    def credit(tau):
        return sequence_ratio(tau) * MDP.total_return(tau.tokens)

    found = policy_gradient(MDP, POLICY, credit, sampler=BEHAVIOUR)
    np.testing.assert_allclose(found, objective_gradient(MDP, POLICY), rtol=0, atol=1e-14)


def clipped(ratio, advantage, low, high, dual=None):
    value = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    return max(value, dual * advantage) if dual is not None and advantage < 0 else value


@pytest.mark.parametrize(
    ("sign", "low", "high", "dual", "recorded"),
    [
        (1.0, 0.2, 0.2, None, C_CLIPPED_OBJECTIVE),
        (1.0, 0.2, 0.2, 1.5, C_DUAL_CLIPPED_OBJECTIVE),
        (-1.0, 0.2, 0.2, None, C_CLIPPED_OBJECTIVE_NEGATED),
        (-1.0, 0.2, 0.28, None, C_CLIP_HIGHER_OBJECTIVE_NEGATED),
    ],
)
def test_clipped_objectives(sign, low, high, dual, recorded):
    def estimator(group):
        tau = group[0]
        terms = [
            clipped(ratio, sign * ADVANTAGE[s][a], low, high, dual)
            for ratio, (s, a) in zip(token_ratios(tau), tau.steps, strict=True)
        ]
        return np.array([sum(terms)])

    assert_digits(expectation(MDP, BEHAVIOUR, 1, estimator).mean, [recorded], 12)


def test_clipped_objective_of_whole_sequences():
    baseline = objective(MDP, BEHAVIOUR)

    def estimator(group):
        tau = group[0]
        ratio = float(np.exp(np.log(token_ratios(tau)).mean()))
        return np.array([clipped(ratio, MDP.total_return(tau.tokens) - baseline, 0.2, 0.2)])

    assert_digits(expectation(MDP, BEHAVIOUR, 1, estimator).mean, [C_SEQUENCE_CLIPPED_OBJECTIVE], 12)


def test_clipped_gradient():
    def credit(tau):
        found = []
        for ratio, (s, a) in zip(token_ratios(tau), tau.steps, strict=True):
            advantage = ADVANTAGE[s][a]
            cut = (advantage > 0 and ratio > 1.2) or (advantage < 0 and ratio < 0.8)
            found.append(0.0 if cut else ratio * advantage)
        return np.array(found)

    assert_digits(policy_gradient(MDP, POLICY, credit, sampler=BEHAVIOUR), C_CLIPPED_GRADIENT, 10)
