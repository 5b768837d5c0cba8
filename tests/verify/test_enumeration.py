"""Every batch with its probability: what the enumeration lists, what it hands out, and what it refuses."""

import numpy as np
import pytest
import torch

from rung import exact
from rung.errors import InvalidInput
from rung.methods import rloo, vpg
from rung.verify.enumeration import Setting, estimator_of, moments
from rung.verify.problems import moved, one_prompt, two_prompts
from rung.verify.three_tokens import three_tokens
from rung.verify.unbiased import estimator_of_loss
from tests.toys import C_OBJECTIVE, C_TRACE_RETURN, C_VALUES, assert_digits

ONE, TWO = one_prompt(), two_prompts()
PROBLEMS = pytest.mark.parametrize("problem", [ONE, TWO], ids=["one prompt", "two prompts"])
SITUATIONS = pytest.mark.parametrize("situation", ["on-policy", "stale", "mismatch"])


def close(actual, wanted, atol=1e-12):
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=atol)


def objective_gradient(problem):
    return problem.mean_over_prompts(lambda mdp, policy, _: exact.objective_gradient(mdp, policy))


def first_alone(policy_logprobs, rewards):
    """Only the first sample of a batch trains: unbiased on one prompt, and nobody may change the order."""
    return -rewards[0] * policy_logprobs[0].sum()


# --- which batches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "group_size", "ordered", "number"),
    [(ONE, 2, True, 49), (ONE, 2, False, 28), (ONE, 3, False, 84), (TWO, 2, True, 784), (TWO, 2, False, 280)],
)
def test_every_batch_is_listed_once_and_their_probabilities_sum_to_one(problem, group_size, ordered, number):
    """7 sequences, then 4: 7² in order, 7·8/2 without; 7²·4², 28·10."""
    batches = list(Setting(problem, group_size, "stale").batches(ordered=ordered))
    assert len(batches) == number == len({numbers for numbers, _ in batches})
    assert sum(chance for _, chance in batches) == pytest.approx(1.0, abs=1e-12)


@SITUATIONS
@PROBLEMS
def test_order_is_nothing_to_a_method(problem, situation):
    setting = Setting(problem, 2, situation)
    ordered = moments(estimator_of(rloo()), setting, ordered=True)
    unordered = moments(estimator_of(rloo()), setting)
    close(ordered.ascent, unordered.ascent)
    close(ordered.covariance, unordered.covariance)
    assert ordered.loss == pytest.approx(unordered.loss, abs=1e-12)


def test_a_loss_that_tells_the_order_is_enumerated_in_order():
    setting = Setting(ONE, 2)
    close(moments(estimator_of_loss(first_alone), setting, ordered=True).ascent, objective_gradient(ONE))
    off = moments(estimator_of_loss(first_alone), setting).ascent - objective_gradient(ONE)
    assert np.linalg.norm(off) > 0.01


def test_the_covariance_is_that_of_independent_samples():
    """The mean of G single-sample estimates has 1/G of their variance; that one is published."""
    for group_size in (1, 2, 3):
        found = moments(estimator_of(vpg(kl_coefficient=0.0)), Setting(ONE, group_size))
        assert_digits(found.trace * group_size, C_TRACE_RETURN, 10)


def test_mean_covariance_and_loss_by_hand():
    """One batch a sequence: Σ p g, Σ p (g − ḡ)(g − ḡ)ᵀ and Σ p loss, from the oracle's sequences."""
    (mdp, policy, _) = ONE.oracles()[0]
    found = moments(estimator_of(vpg(kl_coefficient=0.0)), Setting(ONE, 1))
    sampled = exact.distribution(mdp, policy)
    chances = np.array([p for _, p in sampled])
    returns = np.array([mdp.total_return(tau.tokens) for tau, _ in sampled])
    gradients = returns[:, None] * np.array([exact.sequence_score(policy, tau) for tau, _ in sampled])
    close(found.ascent, chances @ gradients)
    close(found.covariance, np.cov(gradients.T, aweights=chances, ddof=0))
    losses = [-r * exact.sequence_logprob(policy, tau) for r, (tau, _) in zip(returns, sampled, strict=True)]
    assert found.loss == pytest.approx(chances @ losses, abs=1e-12)


# --- what a batch holds ---------------------------------------------------------------------------------------------


def test_who_is_who():
    for problem in (ONE, TWO):
        fresh, stale, other = (Setting(problem, 2, s) for s in ("on-policy", "stale", "mismatch"))
        assert fresh.sampler is fresh.old is problem.policy
        assert stale.sampler is stale.old is problem.behaviour
        assert other.sampler is problem.behaviour
        assert other.old is problem.policy


@SITUATIONS
@PROBLEMS
def test_a_batch_has_the_policies_own_numbers(problem, situation):
    """Sampled, old, reference and policy log-probs of each token, from the oracle; 0 after each end."""
    setting = Setting(problem, 2, situation)
    policies = {
        "policy": problem.policy,
        "old": setting.old,
        "behaviour": setting.sampler,
        "reference": problem.reference,
    }
    for numbers, _ in list(setting.batches(ordered=False))[::13]:
        batch = setting.batch(numbers)
        found = {
            name: getattr(batch.rollouts, f"{name}_logprobs", batch.policy_logprobs) for name in policies
        }
        for row, i in enumerate(numbers):
            sequence = problem.sequences[i]
            before = problem.prompts[sequence.prompt][0]
            assert batch.rollouts.mask[row].sum() == len(sequence.tokens)
            assert batch.rollouts.outcome_rewards[row] == sequence.reward
            for name, policy in policies.items():
                wanted = np.zeros(batch.rollouts.mask.shape[1])
                for t, token in enumerate(sequence.tokens):
                    wanted[t] = policy((*before, *sequence.tokens[:t]))[0][token]
                close(found[name][row].detach().numpy(), wanted)


def test_the_exact_critic_is_the_value_of_the_old_policy():
    """On toy C the published values; with a KL coefficient that of the return with the KL in it."""
    for numbers in ((1, 4), (0, 6)):
        rollouts = Setting(ONE, 2, critic="exact").batch(numbers).rollouts
        for row, i in enumerate(numbers):
            tokens = ONE.sequences[i].tokens
            wanted = [C_VALUES[tokens[:t]] for t in range(len(tokens))]
            assert_digits(rollouts.values[row, : len(tokens)].numpy(), wanted, 10)
    assert_digits(C_VALUES[()], C_OBJECTIVE, 10)
    for problem in (ONE, TWO):
        (mdp, policy, reference), *_ = problem.oracles()
        start = Setting(problem, 1, critic="exact", kl_coefficient=0.3).batch((0, 7)[: len(problem.prompts)])
        wanted = exact.regularized_objective(mdp, policy, reference, 0.3).value
        assert float(start.rollouts.values[0, 0]) == pytest.approx(wanted, abs=1e-12)


def test_the_exact_critic_knows_rewards_on_steps():
    problem = three_tokens()
    (mdp, policy, _) = problem.oracles()[0]
    values = Setting(problem, 1, critic="exact").batch((0,)).rollouts.values
    assert float(values[0, 0]) == pytest.approx(exact.objective(mdp, policy), abs=1e-12)


def test_the_greedy_rewards_are_those_of_the_samplers_likeliest_tokens():
    """π ends at once on the first prompt of toy C, for 0; μ says b, then a, for 0 as well; alone, prompt by prompt."""
    assert Setting(ONE, 1).batch((0,)).rollouts.greedy_rewards.tolist() == [0.0]
    rewards = Setting(TWO, 1, "stale").batch((0, 7)).rollouts.greedy_rewards.tolist()
    found = []
    for (before, mdp), _ in zip(TWO.prompts, rewards, strict=True):
        prefix = ()
        while mdp.end_of(prefix) is None:
            prefix = (*prefix, int(TWO.behaviour((*before, *prefix))[0].argmax()))
        found.append(mdp.total_return(prefix))
    assert rewards == found


def test_the_distance_is_the_divergence_of_whole_sequences():
    """Σ μ log(μ/π), and 0 on policy; moving all the way there arrives."""
    (mdp, policy, _) = ONE.oracles()[0]
    wanted = sum(
        p * (exact.sequence_logprob(ONE.behaviour, tau) - exact.sequence_logprob(policy, tau))
        for tau, p in exact.distribution(mdp, ONE.behaviour)
    )
    assert ONE.distance() == pytest.approx(wanted, abs=1e-12)
    assert moved(ONE, 1.0).distance() == pytest.approx(0.0, abs=1e-12)
    assert 0 < moved(ONE, 0.5).distance() < ONE.distance()


# --- what a loss may be ---------------------------------------------------------------------------------------------


def test_a_loss_without_a_gradient_has_mean_zero_and_no_noise():
    found = moments(lambda batch: batch.rollouts.outcome_rewards.mean(), Setting(ONE, 2))
    close(found.ascent, np.zeros(9))
    assert found.trace == 0.0
    assert found.loss == pytest.approx(C_OBJECTIVE, abs=1e-10)


def test_the_entropy_is_differentiated():
    """E_π[Σ_t ∇H(s_t)] by the oracle, with the entropy as minus the mean log-probability."""
    found = moments(lambda batch: -batch.entropy.sum(), Setting(ONE, 1)).ascent

    def slope(prefix):
        logprobs, jacobian = ONE.policy(prefix)
        return -(np.exp(logprobs) * logprobs) @ jacobian

    (mdp, policy, _) = ONE.oracles()[0]
    close(found, exact.expected_over_prefixes(mdp, policy, slope))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda policy_logprobs: 1.0, "one number as a tensor"),
        (lambda policy_logprobs: policy_logprobs, "one number as a tensor"),
        (lambda policy_logprobs: (policy_logprobs * torch.nan).sum(), "not finite"),
    ],
)
def test_what_is_no_loss_is_refused(loss, message):
    with pytest.raises(InvalidInput, match=message):
        moments(estimator_of_loss(loss), Setting(ONE, 2))


@pytest.mark.parametrize(
    "loss",
    [
        lambda policy_logprobs, rewards: policy_logprobs.sum() + torch.nan,  # the gradient is finite
        lambda policy_logprobs, rewards: (
            (rewards - rewards.mean()).sum() / rewards.std(correction=0)
        ),  # it has none
        lambda policy_logprobs, rewards: (
            policy_logprobs.sum(1) * (rewards / rewards.std(correction=0))
        ).sum(),
    ],
)
def test_a_loss_that_is_not_finite_is_refused_with_the_usual_cause(loss):
    with pytest.raises(InvalidInput, match=r"with the rewards .* not finite: .*standard deviation of 0\?"):
        moments(estimator_of_loss(loss), Setting(ONE, 2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"situation": "stal"}, "situation must be one of 'on-policy', 'stale', 'mismatch', got 'stal'"),
        ({"critic": "x"}, "critic must be one of 'exact', 'wrong', got 'x'"),
        ({"group_size": 0}, "group_size must be a whole number ≥ 1, got 0"),
        ({"group_size": 1.5}, "group_size must be a whole number ≥ 1, got 1.5"),
    ],
)
def test_a_setting_that_there_is_not_is_refused(settings, message):
    with pytest.raises(InvalidInput, match=message):
        Setting(ONE, **({"group_size": 2} | settings))


def test_a_method_gets_no_more_than_it_needs():
    """As in training: old log-probs are annotated to methods that ask for them, and to no other."""
    setting = Setting(ONE, 1, "mismatch")
    without = moments(estimator_of(vpg(kl_coefficient=0.2)), setting).ascent
    (mdp, policy, reference) = ONE.oracles()[0]

    def scored_by_the_sampler(tau):
        k1 = exact.sequence_logprob(ONE.behaviour, tau) - exact.sequence_logprob(reference, tau)
        return np.full(tau.length, mdp.total_return(tau.tokens) - 0.2 * k1)

    close(without, exact.policy_gradient(mdp, policy, scored_by_the_sampler, sampler=ONE.behaviour))
