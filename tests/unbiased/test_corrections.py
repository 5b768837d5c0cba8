"""Sequences of a sampler μ, scored by a trainer π: what each weight makes of E_μ, against the oracle and its digits.

sequence weight      E_π                         min(w_i, C)          Z E_q, q ∝ min(C μ, π) over sequences
token weight         prefixes of μ, tokens of π  w_i where w_i ≤ C    E_π without the sequences above C
"""

from functools import partial

import numpy as np
import pytest
import torch

from rung import exact
from rung.correction import (
    icepop,
    importance,
    sequence_mask,
    sequence_truncation,
    token_mask,
    token_truncation,
)
from rung.policy_losses import cispo_loss, policy_gradient_loss
from tests.enumeration import ONE_PROMPT, THREE_TOKENS, TWO_PROMPTS
from tests.toys import (
    C_OBJECTIVE_GRADIENT,
    C_SEQUENCE_MASKED,
    C_SEQUENCE_TRUNCATED,
    C_TOKEN_ICEPOP,
    C_TOKEN_IMPORTANCE,
    assert_digits,
)

PROBLEMS = pytest.mark.parametrize(
    "problem", [ONE_PROMPT, THREE_TOKENS, TWO_PROMPTS], ids=["C", "LONG", "two prompts"]
)
token_importance = partial(importance, level="token")
sequence_importance = partial(importance, level="sequence")


def layout(problem):
    """(mask [S, T], returns [S], p_μ [S] with every prompt equally likely) over all sequences."""
    lengths = torch.tensor([len(tokens) for _, tokens, _ in problem.sequences])
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    returns = torch.tensor([reward for _, _, reward in problem.sequences], dtype=torch.float64)
    return mask, returns, problem.frozen(problem.behaviour).sum(1).exp() / len(problem.prompts)


def ascent(problem, correction, credit=None):
    """E_μ[Σ_t w_t Ψ_t ∇log π(a_t|s_t)], Ψ = R unless given."""
    mask, returns, chances = layout(problem)
    parameters = torch.tensor(problem.policy.parameters, requires_grad=True)
    live = problem.logprobs(problem.policy, parameters)
    weights = correction(problem.frozen(problem.policy), problem.frozen(problem.behaviour), mask)
    psi = returns.unsqueeze(1).expand(mask.shape) if credit is None else credit
    loss = (chances.unsqueeze(1) * weights * policy_gradient_loss(live, psi)).sum()
    (slope,) = torch.autograd.grad(loss, parameters)
    return -slope.numpy()


def oracle(problem, weight):
    """The same from the oracle. `weight`: (π's and μ's log-probabilities of the tokens of τ) → w_t [L]."""
    found = []
    for prompt, mdp in problem.prompts:
        policy, behaviour = exact.after(problem.policy, prompt), exact.after(problem.behaviour, prompt)

        def credit(tau, mdp=mdp, policy=policy, behaviour=behaviour):
            own, other = (
                np.array([exact.evaluate(p, s)[0][a] for s, a in tau.steps]) for p in (policy, behaviour)
            )
            return weight(own, other) * mdp.total_return(tau.tokens)

        found.append(exact.policy_gradient(mdp, policy, credit, sampler=behaviour))
    return np.mean(found, axis=0)


def of_tokens(cut):
    return lambda own, other: cut(np.exp(own - other))


def of_sequences(cut):
    return lambda own, other: np.full(len(own), cut(np.exp(own.sum() - other.sum())))


EVERY = [
    (token_importance, of_tokens(lambda w: w)),
    (sequence_importance, of_sequences(lambda w: w)),
    (partial(token_truncation, cap=1.2), of_tokens(lambda w: np.minimum(w, 1.2))),
    (partial(sequence_truncation, cap=1.2), of_sequences(lambda w: np.minimum(w, 1.2))),
    (partial(token_mask, cap=1.2), of_tokens(lambda w: np.where(w <= 1.2, w, 0.0))),
    (partial(sequence_mask, cap=1.2), of_sequences(lambda w: np.where(w <= 1.2, w, 0.0))),
    (partial(icepop, low=0.5, high=1.2), of_tokens(lambda w: np.where((w >= 0.5) & (w <= 1.2), w, 0.0))),
]
NAMES = ["token", "sequence", "token TIS", "sequence TIS", "token mask", "sequence mask", "icepop"]


@PROBLEMS
@pytest.mark.parametrize(("correction", "weight"), EVERY, ids=NAMES)
def test_every_correction_is_its_definition_in_expectation(problem, correction, weight):
    stated = oracle(problem, weight)
    assert np.abs(stated).max() > 1e-3
    np.testing.assert_allclose(ascent(problem, correction), stated, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("correction", "recorded"),
    [
        (sequence_importance, C_OBJECTIVE_GRADIENT),
        (token_importance, C_TOKEN_IMPORTANCE),
        (partial(sequence_truncation, cap=1.2), C_SEQUENCE_TRUNCATED),
        (partial(sequence_mask, cap=1.2), C_SEQUENCE_MASKED),
        (partial(icepop, low=0.5, high=1.2), C_TOKEN_ICEPOP),
    ],
    ids=["sequence", "token", "sequence TIS", "sequence mask", "icepop"],
)
def test_published_digits(correction, recorded):
    assert_digits(ascent(ONE_PROMPT, correction), recorded, 10)


@PROBLEMS
def test_sequence_weights_are_exact(problem):
    """∇J of π from sequences of μ."""
    stated = problem.mean_over_prompts(lambda mdp, policy, _: exact.objective_gradient(mdp, policy))
    np.testing.assert_allclose(ascent(problem, sequence_importance), stated, rtol=0, atol=1e-12)


@PROBLEMS
def test_token_ratios_do_not_make_an_update_off_policy_correct(problem):
    """The prefixes, and what follows, are still the sampler's: with token weights it is not ∇J, as without any."""
    stated = problem.mean_over_prompts(lambda mdp, policy, _: exact.objective_gradient(mdp, policy))
    for correction in (token_importance, partial(token_truncation, cap=1e9)):
        assert np.abs(ascent(problem, correction) - stated).max() > 0.01
    uncorrected = ascent(problem, lambda old, behaviour, mask: mask.double())
    assert np.abs(uncorrected - stated).max() > 0.01


def at_prefixes(problem, law):
    """Σ_s d_μ(s) Σ_a law(π(·|s), μ(·|s))[a] · ∇log π(a|s) Ψ(s, a), for the Ψ of `token_credit`; one prompt."""
    ((_, mdp),) = problem.prompts

    def at(prefix):
        logprobs, jacobian = exact.evaluate(problem.policy, prefix)
        mass = law(np.exp(logprobs), np.exp(exact.evaluate(problem.behaviour, prefix)[0]))
        return (mass * [psi(prefix, a) for a in range(len(mass))]) @ jacobian

    return exact.expected_over_prefixes(mdp, problem.behaviour, at)


def psi(prefix, token):
    """A credit that depends on the prefix and the token alone, of no two equal."""
    return 0.7 * token - 0.4 * len(prefix) + 0.3 * sum(prefix) * (token - 1) + 0.1


def token_credit(problem):
    mask, _, _ = layout(problem)
    credit = torch.zeros(mask.shape, dtype=torch.float64)
    for row, (_, tokens, _) in enumerate(problem.sequences):
        for t, token in enumerate(tokens):
            credit[row, t] = psi(tokens[:t], token)
    return credit


ONE = pytest.mark.parametrize("problem", [ONE_PROMPT, THREE_TOKENS], ids=["C", "LONG"])


@ONE
def test_token_weights_correct_tokens_at_the_samplers_prefixes(problem):
    """For a credit that is known at the token: prefixes of μ, tokens of π."""
    found = ascent(problem, token_importance, token_credit(problem))
    np.testing.assert_allclose(found, at_prefixes(problem, lambda pi, mu: pi), rtol=0, atol=1e-12)


@ONE
@pytest.mark.parametrize("cap", [0.8, 1.2, 2.0])
def test_a_truncated_token_weight_samples_another_policy(problem, cap):
    found = ascent(problem, partial(token_truncation, cap=cap), token_credit(problem))
    stated = at_prefixes(problem, lambda pi, mu: np.minimum(cap * mu, pi))
    np.testing.assert_allclose(found, stated, rtol=0, atol=1e-12)


@ONE
def test_icepop_is_exact_on_the_tokens_it_keeps(problem):
    found = ascent(problem, partial(icepop, low=0.5, high=1.2), token_credit(problem))
    stated = at_prefixes(problem, lambda pi, mu: np.where((pi / mu >= 0.5) & (pi / mu <= 1.2), pi, 0.0))
    np.testing.assert_allclose(found, stated, rtol=0, atol=1e-12)


def probabilities(problem):
    """p_π and p_μ of every sequence, from the oracle; one prompt."""
    ((_, mdp),) = problem.prompts
    found = []
    for policy in (problem.policy, problem.behaviour):
        by_tokens = {tau.tokens: p for tau, p in exact.distribution(mdp, policy)}
        found.append(np.array([by_tokens[tokens] for _, tokens, _ in problem.sequences]))
    return found


def scores(problem):
    """Σ_t ∇log π of every sequence, [S, n], from the oracle: f for the laws below."""
    ((_, mdp),) = problem.prompts
    by_tokens = {
        tau.tokens: exact.sequence_score(problem.policy, tau)
        for tau, _ in exact.distribution(mdp, problem.policy)
    }
    return np.array([by_tokens[tokens] * reward for _, tokens, reward in problem.sequences])


@ONE
@pytest.mark.parametrize("cap", [0.5, 1.2, 3.0])
def test_a_truncated_sequence_weight_samples_another_policy(problem, cap):
    """E_μ[min(w, C) f] = Z E_q[f] with q = min(C μ, π)/Z, for f = 1 and for f = R ∇log π."""
    target, sampled = probabilities(problem)
    mask, _, chances = layout(problem)
    weights = sequence_truncation(
        problem.frozen(problem.policy), problem.frozen(problem.behaviour), mask, cap=cap
    )
    z = np.minimum(cap * sampled, target).sum()
    q = np.minimum(cap * sampled, target) / z
    assert 0.3 < z < 1.0 + 1e-12
    assert (chances * weights[:, 0]).sum().item() == pytest.approx(z, abs=1e-12)
    found = ascent(problem, partial(sequence_truncation, cap=cap))
    np.testing.assert_allclose(found, z * (q @ scores(problem)), rtol=0, atol=1e-12)


@ONE
def test_masked_sequences_are_missing_and_the_others_exact(problem):
    """E_μ[w 1{w ≤ C} f] = E_π[f 1{w ≤ C}]."""
    target, sampled = probabilities(problem)
    kept = target <= 1.2 * sampled
    assert 0 < kept.sum() < len(kept)
    found = ascent(problem, partial(sequence_mask, cap=1.2))
    np.testing.assert_allclose(found, (target * kept) @ scores(problem), rtol=0, atol=1e-12)


@PROBLEMS
@pytest.mark.parametrize("cap", [1.05, 1.2])
def test_cispo_is_the_truncated_token_weight(problem, cap):
    """μ in the place of the old policy: the same expected gradient as a corrected policy gradient."""
    mask, returns, chances = layout(problem)
    parameters = torch.tensor(problem.policy.parameters, requires_grad=True)
    live, old = problem.logprobs(problem.policy, parameters), problem.frozen(problem.behaviour)
    loss = cispo_loss(live, old, returns.unsqueeze(1).expand(mask.shape), cap=cap)
    (slope,) = torch.autograd.grad((chances.unsqueeze(1) * loss * mask).sum(), parameters)
    np.testing.assert_allclose(
        -slope.numpy(), ascent(problem, partial(token_truncation, cap=cap)), rtol=0, atol=1e-12
    )
    assert np.abs(slope.numpy() + ascent(problem, token_importance)).max() > 1e-3  # the cap does act


@PROBLEMS
def test_the_mean_ratio_is_one_however_far_the_policies_are_apart(problem):
    """E_μ[ρ] = 1: at each token, so that Σ_t ρ_t has the mean length, and over sequences. It measures no divergence."""
    mask, _, chances = layout(problem)
    behaviour = problem.frozen(problem.behaviour)
    length = (chances * mask.sum(1)).sum().item()
    divergences = []
    for other in map(problem.frozen, (problem.behaviour, problem.policy, problem.reference)):
        tokens = (chances.unsqueeze(1) * token_importance(other, behaviour, mask)).sum().item()
        sequences = (chances * sequence_importance(other, behaviour, mask)[:, 0]).sum().item()
        assert tokens == pytest.approx(length, abs=1e-12)
        assert sequences == pytest.approx(1.0, abs=1e-12)
        divergences.append((chances * (behaviour - other).sum(1)).sum().item())
    assert divergences[0] == 0.0
    assert min(divergences[1:]) > 0.02
    assert abs(divergences[1] - divergences[2]) > 0.005
