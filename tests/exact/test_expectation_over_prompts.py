"""Estimators that see several prompts at once: which statistics stay sound, and who samples what."""

import numpy as np
import pytest

from rung.errors import InvalidInput
from rung.exact import (
    TokenMDP,
    after,
    expectation_over_prompts,
    objective,
    objective_gradient,
    sequence_score,
)
from tests.toys import SHARED_POLICY, TOY_C


def two_prompts():
    """Two problems with rewards of their own and one parameter vector."""
    other = TokenMDP(3, end_token=2, max_length=2, reward=lambda tokens: float(sum(tokens)) - 1.5)
    return [(TOY_C.mdp, after(SHARED_POLICY, (7,))), (other, after(SHARED_POLICY, (8,)))]


def test_each_prompt_is_sampled_from_its_own_problem():
    prompts = two_prompts()
    for i, (mdp, policy) in enumerate(prompts):
        for j in range(2):

            def pick(batch, i=i, j=j, mdp=mdp):
                return np.array([mdp.total_return(batch[i][j].tokens)])

            found = expectation_over_prompts(prompts, 2, pick).mean
            assert found[0] == pytest.approx(objective(mdp, policy), abs=1e-13)


def test_a_mean_over_prompts_rescales_and_leaves_the_direction():
    """n samples in all, own sample in the mean: (1 − 1/n) of the gradient, across prompts as within one."""
    prompts = two_prompts()
    exact = sum(objective_gradient(mdp, policy) for mdp, policy in prompts) / 2

    def estimator(batch):
        rows = [
            (mdp, policy, tau) for (mdp, policy), group in zip(prompts, batch, strict=True) for tau in group
        ]
        rewards = np.array([mdp.total_return(tau.tokens) for mdp, _, tau in rows])
        credit = rewards - rewards.mean()
        return sum(
            c * sequence_score(policy, tau) for c, (_, policy, tau) in zip(credit, rows, strict=True)
        ) / len(rows)

    for size, scale in [(1, 1 / 2), (2, 3 / 4)]:
        found = expectation_over_prompts(prompts, size, estimator).mean
        np.testing.assert_allclose(found, scale * exact, rtol=0, atol=1e-13)


def test_prompts_are_independent():
    prompts = two_prompts()

    def both(batch):
        return np.array([m.total_return(g[0].tokens) for (m, _), g in zip(prompts, batch, strict=True)])

    covariance = expectation_over_prompts(prompts, 1, both).covariance
    assert covariance[0, 1] == pytest.approx(0.0, abs=1e-14)
    assert (np.diag(covariance) > 0.01).all()


def test_no_prompt_is_refused():
    with pytest.raises(InvalidInput, match="0 prompts"):
        expectation_over_prompts([], 1, lambda batch: np.zeros(1))
