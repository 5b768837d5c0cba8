"""What each entry of the catalogue is an estimate of that is not simply unbiased (those are in test_methods.py).

Scales, shared parameters, wrong critics, samplers that are another policy; and the mean update of those that claim no
objective, from their definitions in numpy.
"""

import math
from functools import partial

import numpy as np
import pytest

from rung import exact
from rung.aggregation import sequence_sum
from rung.credit import leave_one_out
from rung.kl import DoublingKL
from rung.methods import Method
from rung.policy_losses import policy_gradient_loss
from tests.enumeration import (
    ONE_PROMPT,
    THREE_TOKENS,
    TWO_PROMPTS,
    Problem,
    exact_critic,
    expected,
    wrong_critic,
)
from tests.methods.directions import (
    cispo_rule,
    dapo_rule,
    direction,
    dr_grpo_rule,
    grpo_rule,
    reinforce_pp_baseline_rule,
    reinforce_pp_rule,
)
from tests.methods.helpers import build, unpenalized
from tests.methods.trees import LONG, C
from tests.toys import SHARED_BEHAVIOUR, SHARED_POLICY, SHARED_REFERENCE, TOY_C

PROBLEMS = pytest.mark.parametrize(
    ("problem", "group_size"),
    [
        pytest.param(ONE_PROMPT, 3, id="C, G=3"),
        pytest.param(THREE_TOKENS, 2, id="LONG, G=2"),
        pytest.param(TWO_PROMPTS, 2, id="two prompts, G=2"),
    ],
)
BETAS = pytest.mark.parametrize("beta", [0.0, 0.3])


def close(actual, wanted, atol=1e-12):
    assert np.abs(wanted).max() > 1e-3  # so that equality with it means something
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=atol)


def cosine(a, b):
    return float(a @ b / math.sqrt((a @ a) * (b @ b)))


def regularized_gradient(problem, beta):
    """∇(J − β KL(π‖π_ref)) of whole sequences, averaged over prompts."""
    return problem.mean_over_prompts(lambda *oracle: exact.regularized_objective(*oracle, beta).gradient)


def on_prefixes(problem, quantity):
    """Σ_s p(s) quantity(policy, reference, s), averaged over prompts."""
    return problem.mean_over_prompts(
        lambda mdp, policy, reference: exact.expected_over_prefixes(
            mdp, policy, lambda s: quantity(policy, reference, s)
        )
    )


def entropy_gradient(policy, _, prefix):
    """∇H(π(·|s)) = −Σ_a π(a) log π(a) ∇log π(a)."""
    logprobs, jacobian = exact.evaluate(policy, prefix)
    return -(np.exp(logprobs) * logprobs) @ jacobian


def forward_gradient(policy, reference, prefix):
    return exact.prefix_kl_reference_policy(policy, reference, prefix).gradient


# --- on policy -----------------------------------------------------------------------------------------------------


@PROBLEMS
def test_a_penalty_on_the_step_is_nothing_before_the_first_update(problem, group_size):
    """PPO with a penalty is the policy gradient of J there, whatever its coefficient."""
    for coefficient in (0.0, 7.0, DoublingKL(3.0, target=0.01)):
        found = expected(build("ppo-penalty", kl_coefficient=coefficient), problem, group_size).ascent
        close(found, regularized_gradient(problem, 0.0))


@BETAS
@PROBLEMS
def test_dr_grpo_is_a_multiple_of_the_gradient_and_a_forward_kl(problem, group_size, beta):
    """(1 − 1/G)/L ∇J − β/L Σ p(s) ∇KL(π_ref‖π): the penalty is not shortened by 1 − 1/G, and is of the other kind."""
    found = expected(build("dr-grpo", kl_coefficient=beta, length=5), problem, group_size).ascent
    penalty = beta / 5 * on_prefixes(problem, forward_gradient)
    close(found, (1 - 1 / group_size) / 5 * regularized_gradient(problem, 0.0) - penalty)


@BETAS
@PROBLEMS
@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_a2c_with_the_true_critic_and_its_entropy_bonus(problem, group_size, beta, lam):
    """∇(J − β KL) + c Σ p(s) ∇H(π(·|s)), for every λ: V is that of the penalized reward."""
    critic = exact_critic(problem, problem.policy, kl_coefficient=beta)
    method = build("a2c", kl_coefficient=beta, lam=lam, entropy_coefficient=0.2)
    found = expected(method, problem, group_size, critic=critic).ascent
    bonus = on_prefixes(problem, entropy_gradient)
    assert np.abs(bonus).max() > 0.01
    close(found, regularized_gradient(problem, beta) + 0.2 * bonus)


@PROBLEMS
@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_the_bias_of_a2c_by_a_wrong_critic(problem, group_size, lam):
    """(1 − λ) Σ_t E[score_t Σ_{l≥0} λ^l e(s_{t+l+1})] with e = V̂ − V where a token follows: 0 at λ = 1 alone."""
    true = exact_critic(problem, problem.policy)
    prompts = iter(range(len(problem.prompts)))

    def stated(mdp, policy, _):
        prompt = next(prompts)

        def credit(tau):
            error = [
                wrong_critic(prompt, tau.tokens[:t]) - true(prompt, tau.tokens[:t])
                for t in range(1, tau.length)
            ]
            return np.array(
                [(1 - lam) * sum(lam**k * e for k, e in enumerate(error[t:])) for t in range(tau.length)]
            )

        return exact.policy_gradient(mdp, policy, credit)

    method = build("a2c", kl_coefficient=0.0, lam=lam, entropy_coefficient=0.0)
    bias = problem.mean_over_prompts(stated)
    found = expected(method, problem, group_size).ascent
    close(found, regularized_gradient(problem, 0.0) + bias)
    assert (np.abs(bias).max() > 1e-3) == (lam < 1)


def test_step_means_turn_the_gradient_where_steps_share_parameters():
    """Step t's part is multiplied by 1 − (1 − (1 − p_t)^B)/(B p_t), where p_t is the chance to be alive.

    A row of a table belongs to one step and is only scaled; four parameters for all steps turn by 23° in pairs.
    """
    shared = Problem((((), TOY_C.mdp),), SHARED_POLICY, SHARED_REFERENCE, SHARED_BEHAVIOUR)
    alive = 1.0 - math.exp(exact.evaluate(SHARED_POLICY, ())[0][2])
    cosines = {}
    for size in (2, 3):
        factors = [1 - 1 / size, 1 - (1 - (1 - alive) ** size) / (size * alive)]
        stated = exact.policy_gradient(
            TOY_C.mdp,
            SHARED_POLICY,
            lambda tau, factors=factors: TOY_C.mdp.total_return(tau.tokens) * np.array(factors[: tau.length]),
        )
        found = expected(unpenalized("reinforce-step-mean"), shared, size).ascent
        close(found, stated)
        cosines[size] = cosine(found, regularized_gradient(shared, 0.0))
    assert cosines[2] < 0.92 < cosines[3] < 0.96
    table = expected(unpenalized("reinforce-step-mean"), ONE_PROMPT, 2).ascent.reshape(3, 3)
    for row, own in zip(table, regularized_gradient(ONE_PROMPT, 0.0).reshape(3, 3), strict=True):
        assert cosine(row, own) == pytest.approx(1.0, abs=1e-12)


def charge(length):
    return -1.0 if length == 2 else 0.0


RULES = {
    "grpo": ("grpo", {}, grpo_rule(0.3)),
    "gspo": ("gspo", {}, grpo_rule(0.3)),
    "cispo": ("cispo", {}, cispo_rule(0.3)),
    "dapo": ("dapo", {"length": 20}, dapo_rule(0.3, lambda length: 0.0)),
    "dapo, charged": ("dapo", {"length": 2}, dapo_rule(0.3, charge)),
    "dr-grpo": ("dr-grpo", {"length": 2}, dr_grpo_rule(0.3, 2)),
    "reinforce++": ("reinforce++", {}, reinforce_pp_rule(0.3)),
    "reinforce++-baseline": ("reinforce++-baseline", {}, reinforce_pp_baseline_rule(0.3)),
}


@pytest.mark.parametrize("group_size", [2, 3])
@pytest.mark.parametrize(("name", "settings", "rule"), RULES.values(), ids=RULES)
def test_the_mean_update_is_that_of_the_definition(name, settings, rule, group_size):
    """Every batch in plain numpy: standardized or whitened credit, its charge, its weights, its penalty's slope."""
    found = expected(build(name, kl_coefficient=0.3, **settings), ONE_PROMPT, group_size).ascent
    close(found.reshape(3, 3), direction(C, C.start, rule, group_size))
    if name != "dr-grpo":
        penalized = regularized_gradient(ONE_PROMPT, 0.3)
        assert cosine(found, penalized) < 0.999


@pytest.mark.parametrize("name", ["grpo", "dr-grpo", "reinforce++", "dapo"])
def test_the_mean_update_on_three_tokens(name):
    settings, rule = RULES[name][1:]
    found = expected(build(name, kl_coefficient=0.3, **settings), THREE_TOKENS, 2).ascent
    if name == "dapo":  # its cap is far away: no sequence is charged
        assert settings == {"length": 20}
    close(found.reshape(LONG.start.shape), direction(LONG, LONG.start, rule))


# --- samples of another policy ---------------------------------------------------------------------------------------


@BETAS
@PROBLEMS
def test_the_correction_is_exact_where_it_is_not_cut_off(problem, group_size, beta):
    """Sequences of μ, weighted as wholes; the baseline is that of μ's samples and biases nothing."""
    wide = build("rloo-corrected", kl_coefficient=beta, cap=1e9)
    found = expected(wide, problem, group_size, problem.behaviour, old=problem.policy).ascent
    close(found, regularized_gradient(problem, beta))
    plain = expected(
        build("rloo", kl_coefficient=beta), problem, group_size, problem.behaviour, old=problem.policy
    )
    assert np.abs(plain.ascent - regularized_gradient(problem, beta)).max() > 0.01


def test_the_correction_cut_off_is_that_of_the_smaller_weights():
    """min(w, C) E_μ[…] by the oracle's probabilities, with the mean of μ as the baseline's expectation."""
    ((mdp, policy, _),) = ONE_PROMPT.oracles()
    sampled = [(tau, p) for tau, p in exact.distribution(mdp, ONE_PROMPT.behaviour)]
    mean = sum(p * mdp.total_return(tau.tokens) for tau, p in sampled)
    for cap in (1.2, 2.0):
        wanted = np.zeros(9)
        for tau, p in sampled:
            weight = min(math.exp(exact.sequence_logprob(policy, tau)) / p, cap)
            wanted += p * weight * (mdp.total_return(tau.tokens) - mean) * exact.sequence_score(policy, tau)
        method = build("rloo-corrected", kl_coefficient=0.0, cap=cap)
        found = expected(method, ONE_PROMPT, 2, ONE_PROMPT.behaviour, old=ONE_PROMPT.policy).ascent
        close(found, wanted)
    assert np.abs(wanted - regularized_gradient(ONE_PROMPT, 0.0)).max() < 1e-12  # no weight is above 2 here


@pytest.mark.parametrize("name", ["ppo-loo", "dual-clip", "ppo-penalty", "trpo"])
def test_stale_samples_give_the_surrogate_of_conservative_policy_iteration(name):
    """Clips that nothing reaches, no penalty: Σ_τ p_μ Σ_t ρ_t A_μ(τ) ∇log π with A = R − J(μ)."""
    wide = {"clip_low": 1.0, "clip_high": 1e9, "dual_clip": 1e9}
    made = unpenalized(name)
    taken = {key: value for key, value in wide.items() if key in getattr(made.policy_loss, "keywords", {})}
    found = expected(unpenalized(name, **taken), ONE_PROMPT, 2, ONE_PROMPT.behaviour).ascent
    ((mdp, policy, _),) = ONE_PROMPT.oracles()
    wanted = np.zeros(9)
    mean = exact.objective(mdp, ONE_PROMPT.behaviour)
    for tau, p in exact.distribution(mdp, ONE_PROMPT.behaviour):
        ratios = [
            np.exp(exact.evaluate(policy, s)[0][a] - exact.evaluate(ONE_PROMPT.behaviour, s)[0][a])
            for s, a in tau.steps
        ]
        weighted = np.array(ratios) * (mdp.total_return(tau.tokens) - mean)
        wanted += p * weighted @ exact.token_scores(policy, tau)
    close(found, wanted)
    assert cosine(found, regularized_gradient(ONE_PROMPT, 0.0)) < 0.99


def test_without_a_weight_stale_samples_follow_their_own_policy():
    """E_μ[(R − J(μ)) ∇log π]: that rloo's ratio to `old` is absent is no oversight, and no correction either."""
    found = expected(unpenalized("rloo"), TWO_PROMPTS, 2, TWO_PROMPTS.behaviour).ascent
    bare = Method("bare", partial(leave_one_out), policy_gradient_loss, sequence_sum)
    close(found, expected(bare, TWO_PROMPTS, 2, TWO_PROMPTS.behaviour).ascent)
    assert np.abs(found - regularized_gradient(TWO_PROMPTS, 0.0)).max() > 0.01
