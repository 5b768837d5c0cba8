"""KL divergences between two policies, at one prefix and over whole sequences, with exact gradients.

Every gradient is with respect to the parameters of `policy`; the reference is fixed. The order in a name is
the order in the divergence:

    kl_policy_reference = KL(π‖π_ref)   "reverse": averages over what the policy samples
    kl_reference_policy = KL(π_ref‖π)   "forward": averages over what the reference samples
"""

from typing import NamedTuple

import numpy as np

from rung.errors import InvalidInput
from rung.exact.policies import Policy, evaluate
from rung.exact.sequences import distribution, expected_over_prefixes, sequence_logprob, sequence_score
from rung.exact.token_mdp import FloatArray, Prefix, TokenMDP
from rung.exact.values import ValueAndGradient


class SequenceKL(NamedTuple):
    """A divergence between sequence distributions, and the two parts of its gradient.

    Attributes:
        value: nats per sequence.
        gradient: [n], the whole gradient.
        immediate: [n], the expected gradient of each prefix's own divergence, prefixes held constant.
        future: [n], the effect of each token on which later prefixes are reached.
            immediate + future = gradient.
    """

    value: float
    gradient: FloatArray
    immediate: FloatArray
    future: FloatArray


def prefix_kl_policy_reference(policy: Policy, reference: Policy, prefix: Prefix) -> ValueAndGradient:
    """The reverse divergence of the next token at one prefix.

        KL(π‖π_ref)(s) = Σ_a π(a|s) log(π(a|s)/π_ref(a|s))
        ∇KL(π‖π_ref)(s) = Σ_a π(a|s) log(π(a|s)/π_ref(a|s)) ∇ log π(a|s)

    Source: Kullback and Leibler 1951; the gradient by the product rule, with Σ_a π ∇ log π = 0.

    Returns:
        Nats per token, never negative, and the gradient [n] with respect to the parameters of `policy`.

    Raises:
        InvalidInput: the divergence is infinite: the policy can sample a token that the reference cannot.

    >>> from rung.exact import SoftmaxTable
    >>> half, quarter = SoftmaxTable([()], [[0.0, 0.0]]), SoftmaxTable([()], np.log([[0.25, 0.75]]))
    >>> round(prefix_kl_policy_reference(half, quarter, ()).value, 6)  # ½ log(4/3)
    0.143841
    """
    policy_logprobs, jacobian = evaluate(policy, prefix)
    reference_logprobs, _ = evaluate(reference, prefix, len(policy_logprobs))
    value, gradient = 0.0, np.zeros(jacobian.shape[1])
    for token in _support(policy_logprobs, reference_logprobs, prefix, "policy", "reference"):
        probability = float(np.exp(policy_logprobs[token]))
        log_ratio = float(policy_logprobs[token] - reference_logprobs[token])
        value += probability * log_ratio
        gradient += probability * log_ratio * jacobian[token]
    return ValueAndGradient(value, gradient)


def prefix_kl_reference_policy(policy: Policy, reference: Policy, prefix: Prefix) -> ValueAndGradient:
    """The forward divergence of the next token at one prefix.

        KL(π_ref‖π)(s) = Σ_a π_ref(a|s) log(π_ref(a|s)/π(a|s))
        ∇KL(π_ref‖π)(s) = −Σ_a π_ref(a|s) ∇ log π(a|s)

    Source: Kullback and Leibler 1951; this is the gradient of a cross-entropy.

    Returns:
        Nats per token, never negative, and the gradient [n] with respect to the parameters of `policy`.

    Raises:
        InvalidInput: the divergence is infinite: the reference can sample a token that the policy cannot.

    >>> from rung.exact import SoftmaxTable
    >>> half, quarter = SoftmaxTable([()], [[0.0, 0.0]]), SoftmaxTable([()], np.log([[0.25, 0.75]]))
    >>> prefix_kl_reference_policy(half, quarter, ()).gradient  # π − π_ref on a softmax row
    array([ 0.25, -0.25])
    """
    policy_logprobs, jacobian = evaluate(policy, prefix)
    reference_logprobs, _ = evaluate(reference, prefix, len(policy_logprobs))
    value, gradient = 0.0, np.zeros(jacobian.shape[1])
    for token in _support(reference_logprobs, policy_logprobs, prefix, "reference", "policy"):
        probability = float(np.exp(reference_logprobs[token]))
        value += probability * float(reference_logprobs[token] - policy_logprobs[token])
        gradient -= probability * jacobian[token]
    return ValueAndGradient(value, gradient)


def sequence_kl_policy_reference(mdp: TokenMDP, policy: Policy, reference: Policy) -> SequenceKL:
    """The reverse divergence between the distributions of whole sequences.

        KL(p_π‖p_ref)  = Σ_τ p_π(τ) log(p_π(τ)/p_ref(τ))
        ∇KL(p_π‖p_ref) = Σ_τ p_π(τ) log(p_π(τ)/p_ref(τ)) ∇ log p_π(τ)
        immediate = Σ_s d_π(s) ∇KL(s)
        future    = Σ_s d_π(s) Σ_a π(a|s) ∇ log π(a|s) K(s·a),   K(s) = KL(s) + Σ_a π(a|s) K(s·a)

    K(s) is the divergence still to come after prefix s. The four are computed from their own line. What an
    environment answers has the same probability under both policies and cancels in the ratio.

    Source: the chain rule of relative entropy, Cover and Thomas, 2nd edition, theorem 2.5.3; the split of the
    gradient as in Tang and Munos 2025, arXiv:2506.09477.

    Returns:
        Nats per sequence, and gradients [n] with respect to the parameters of `policy`.

    Raises:
        InvalidInput: the divergence is infinite.

    Exactness:
        gradient is the finite difference of value, and immediate + future = gradient. Checked by
        tests/exact/test_divergence.py.

    >>> from rung.exact import SoftmaxTable
    >>> mdp = TokenMDP(2, end_token=None, max_length=2, reward=lambda tokens: 0.0)
    >>> half = SoftmaxTable([(), (0,), (1,)], np.zeros((3, 2)))
    >>> quarter = SoftmaxTable([(), (0,), (1,)], np.log([[0.25, 0.75]] * 3))
    >>> round(sequence_kl_policy_reference(mdp, half, quarter).value, 6)  # twice ½ log(4/3)
    0.287682
    """
    immediate = expected_over_prefixes(
        mdp, policy, lambda prefix: prefix_kl_policy_reference(policy, reference, prefix).gradient
    )
    future = expected_over_prefixes(mdp, policy, lambda prefix: _future_at(mdp, policy, reference, prefix))
    value, gradient = 0.0, np.zeros(len(immediate))
    for tau, probability in distribution(mdp, policy):
        log_ratio = sequence_logprob(policy, tau) - sequence_logprob(reference, tau)
        value += probability * log_ratio
        gradient += probability * log_ratio * sequence_score(policy, tau)
    return SequenceKL(value, gradient, immediate, future)


def sequence_kl_reference_policy(mdp: TokenMDP, policy: Policy, reference: Policy) -> SequenceKL:
    """The forward divergence between the distributions of whole sequences.

        KL(p_ref‖p_π)  = Σ_τ p_ref(τ) log(p_ref(τ)/p_π(τ))
        ∇KL(p_ref‖p_π) = −Σ_τ p_ref(τ) ∇ log p_π(τ)
        immediate      = Σ_s d_ref(s) ∇KL(π_ref‖π)(s)

    The reference's prefixes do not depend on θ, so `future` is 0.

    Source: the chain rule of relative entropy, Cover and Thomas, 2nd edition, theorem 2.5.3.

    Returns:
        Nats per sequence, and gradients [n] with respect to the parameters of `policy`.

    Raises:
        InvalidInput: the divergence is infinite.
    """
    immediate = expected_over_prefixes(
        mdp, reference, lambda prefix: prefix_kl_reference_policy(policy, reference, prefix).gradient
    )
    value, gradient = 0.0, np.zeros(len(immediate))
    for tau, probability in distribution(mdp, reference):
        value += probability * (sequence_logprob(reference, tau) - sequence_logprob(policy, tau))
        gradient -= probability * sequence_score(policy, tau)
    return SequenceKL(value, gradient, immediate, np.zeros(len(immediate)))


def _future_at(mdp: TokenMDP, policy: Policy, reference: Policy, prefix: Prefix) -> FloatArray:
    """Σ_a π(a|s) ∇ log π(a|s) K(s·a): what this prefix's token does to the divergence still to come."""
    logprobs, jacobian = evaluate(policy, prefix, mdp.vocabulary_size)
    gradient = np.zeros(jacobian.shape[1])
    for token, chance in enumerate(np.exp(logprobs)):
        if chance > 0.0:
            gradient += chance * _kl_after(mdp, policy, reference, prefix, token) * jacobian[token]
    return gradient


def _kl_to_go(mdp: TokenMDP, policy: Policy, reference: Policy, prefix: Prefix) -> float:
    """K(s) = KL(s) + Σ_a π(a|s) K(s·a)."""
    later = 0.0
    for token, chance in enumerate(np.exp(evaluate(policy, prefix, mdp.vocabulary_size)[0])):
        if chance > 0.0:
            later += float(chance) * _kl_after(mdp, policy, reference, prefix, token)
    return prefix_kl_policy_reference(policy, reference, prefix).value + later


def _kl_after(mdp: TokenMDP, policy: Policy, reference: Policy, prefix: Prefix, token: int) -> float:
    """K(s·a), averaged over what an environment answers; 0 when the token ended the sequence."""
    following = mdp.successors(prefix, token)
    return sum(answer * _kl_to_go(mdp, policy, reference, longer) for longer, answer in following)


def _support(
    first: FloatArray, second: FloatArray, prefix: Prefix, first_name: str, second_name: str
) -> list[int]:
    """The tokens that the first distribution can sample; refuses one that the second cannot."""
    tokens = [token for token, logprob in enumerate(first) if logprob > -np.inf]
    for token in tokens:
        if second[token] == -np.inf:
            raise InvalidInput(
                f"KL({first_name}‖{second_name}) is infinite: after {prefix} "
                f"the {first_name} can sample token {token} and the {second_name} cannot"
            )
    return tokens
