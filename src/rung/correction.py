"""Weights between two models that should be one: the sampler, and the trainer that scores the sampler's tokens.

An inference engine and a training engine give the same tokens slightly different log-probabilities, and a rollout
that arrives late comes from older weights. Each function takes log π_old (the trainer's, at the start of the update)
and log μ (the sampler's, as drawn) and gives the weight of each token in the loss:

                        w_t = π_old(a_t|s_t) / μ(a_t|s_t)        w_i = Π_t w_t
    importance          w_t on its token, or w_i on each token of the sequence
    …_truncation        min(w, C): small bias, bounded variance
    …_mask              w where w ≤ C, otherwise 0: what is too far from the sampler does not train
    icepop              w_t where low ≤ w_t ≤ high, otherwise 0

Only w_i makes the expectation exact. A token's own ratio corrects the token and not what stands before it: the
prefixes are still the sampler's.

All are detached, float64, and 0 off the mask. They multiply the loss and enter no denominator: a masked token still
counts in `aggregation`. Weights that are normalised by their own sum would be another estimator.

Exponents are capped at `MAX_LOG_RATIO`, so that a weight is at most e⁴⁰ and its product with anything sensible is
finite, also in float32. Every useful cap C is far below that, so the cap changes only `importance`. Towards zero
nothing is capped: a weight may vanish.
"""

from typing import Literal

import torch

from rung.errors import InvalidInput
from rung.masked import masked_sum, require_same_shape, select
from rung.notation import BOOKKEEPING, MAX_LOG_RATIO, PerToken, TokenMask


def _log_ratios(old_logprobs: PerToken, behaviour_logprobs: PerToken, mask: TokenMask) -> PerToken:
    """log π_old − log μ, detached, 0 off the mask."""
    require_same_shape(old_logprobs=old_logprobs, behaviour_logprobs=behaviour_logprobs, mask=mask)
    old, behaviour = (select(x.detach().to(BOOKKEEPING), mask) for x in (old_logprobs, behaviour_logprobs))
    if not bool((torch.isfinite(old) & torch.isfinite(behaviour)).all()):
        raise InvalidInput(
            "a token that counts has a log-probability that is not finite, in old_logprobs or behaviour_logprobs: "
            "no weight of it makes sense, and 0 would hide it"
        )
    return old - behaviour


def _require_cap(cap: float) -> None:
    if not cap > 0.0:
        raise InvalidInput(f"the cap of an importance weight must be positive, got {cap}")


def importance(
    old_logprobs: PerToken,
    behaviour_logprobs: PerToken,
    mask: TokenMask,
    *,
    level: Literal["token", "sequence"],
) -> PerToken:
    """The importance weight, of each token or of its whole sequence.

        token:     w_t = π_old(a_t|s_t) / μ(a_t|s_t)
        sequence:  w_i = Π_t w_t, on each token of the sequence

    Args:
        old_logprobs: [B, T], the trainer's at the start of the update, nats. No gradient flows.
        behaviour_logprobs: [B, T], the sampler's, of the distribution that was sampled, nats. No gradient flows.
        mask: [B, T] bool.
        level: whose probability the weight is the ratio of.

    Returns:
        [B, T] float64, 0 off the mask; at most e^MAX_LOG_RATIO.

    Raises:
        InvalidInput: shapes differ, the mask is not boolean, the level is another one, or a token that counts has a
            log-probability that is not finite.

    Exactness:
        sequence: E_μ[w f] = E_π_old[f] for every f of a sequence. token: right for tokens at the prefixes of μ.
        Checked by tests/unbiased/test_corrections.py::test_sequence_weights_are_exact and
        ::test_token_weights_correct_tokens_at_the_samplers_prefixes.

    >>> old, mask = torch.tensor([[2.0, 0.5, 9.0]]).log(), torch.tensor([[True, True, False]])
    >>> importance(old, torch.zeros(1, 3), mask, level="token")
    tensor([[2.0000, 0.5000, 0.0000]], dtype=torch.float64)
    >>> importance(old, torch.zeros(1, 3), mask, level="sequence")
    tensor([[1., 1., 0.]], dtype=torch.float64)
    """
    log_ratios = _log_ratios(old_logprobs, behaviour_logprobs, mask)
    if level == "sequence":
        log_ratios = masked_sum(log_ratios, mask, dim=1).unsqueeze(1).expand(mask.shape)
    elif level != "token":
        raise InvalidInput(f'the level of an importance weight is "token" or "sequence", got {level!r}')
    return select(log_ratios.clamp(max=MAX_LOG_RATIO).exp(), mask)


def token_truncation(
    old_logprobs: PerToken, behaviour_logprobs: PerToken, mask: TokenMask, *, cap: float
) -> PerToken:
    """Each token's importance weight, truncated from above.

        min(w_t, C)

    Source: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training" (TIS); the
    truncation: Ionides 2008.

    Args:
        old_logprobs: [B, T], nats. No gradient flows.
        behaviour_logprobs: [B, T], nats. No gradient flows.
        mask: [B, T] bool.
        cap: C > 0; 2 is usual.

    Returns:
        [B, T] float64, 0 off the mask.

    Raises:
        InvalidInput: as `importance`, or cap ≤ 0.

    Exactness:
        Biased: at each prefix of μ it samples tokens from q(a) ∝ min(C μ(a), π_old(a)), not from π_old.
        Checked by tests/unbiased/test_corrections.py::test_a_truncated_token_weight_samples_another_policy.

    >>> token_truncation(torch.tensor([[3.0, 0.5]]).log(), torch.zeros(1, 2), torch.tensor([[True, True]]), cap=2.0)
    tensor([[2.0000, 0.5000]], dtype=torch.float64)
    """
    _require_cap(cap)
    return importance(old_logprobs, behaviour_logprobs, mask, level="token").clamp(max=cap)


def sequence_truncation(
    old_logprobs: PerToken, behaviour_logprobs: PerToken, mask: TokenMask, *, cap: float
) -> PerToken:
    """The sequence's importance weight, truncated from above, on each of its tokens.

        min(w_i, C)

    Source: as `token_truncation`, at the level of sequences.

    Args:
        old_logprobs: [B, T], nats. No gradient flows.
        behaviour_logprobs: [B, T], nats. No gradient flows.
        mask: [B, T] bool.
        cap: C > 0.

    Returns:
        [B, T] float64, 0 off the mask.

    Raises:
        InvalidInput: as `importance`, or cap ≤ 0.

    Exactness:
        E_μ[min(w, C) f] = Z E_q[f] with q(τ) = min(C μ(τ), π_old(τ))/Z: the gradient of sequences of q, shortened.
        Checked by tests/unbiased/test_corrections.py::test_a_truncated_sequence_weight_samples_another_policy.

    >>> sequence_truncation(torch.tensor([[3.0, 2.0]]).log(), torch.zeros(1, 2), torch.tensor([[True, True]]), cap=4.0)
    tensor([[4., 4.]], dtype=torch.float64)
    """
    _require_cap(cap)
    return importance(old_logprobs, behaviour_logprobs, mask, level="sequence").clamp(max=cap)


def token_mask(
    old_logprobs: PerToken, behaviour_logprobs: PerToken, mask: TokenMask, *, cap: float
) -> PerToken:
    """Each token's importance weight, or 0 where it is above the cap.

        w_t if w_t ≤ C, otherwise 0

    Source: Liu et al. 2025, "When speed kills stability" (masked importance sampling).

    Args:
        old_logprobs: [B, T], nats. No gradient flows.
        behaviour_logprobs: [B, T], nats. No gradient flows.
        mask: [B, T] bool.
        cap: C > 0.

    Returns:
        [B, T] float64, 0 off the mask and above the cap. The token still counts in every denominator.

    Raises:
        InvalidInput: as `importance`, or cap ≤ 0.

    Exactness:
        `icepop` without a lower bound.
        Checked by tests/test_correction.py::test_masking_tokens_is_icepop_from_zero.

    >>> token_mask(torch.tensor([[3.0, 0.5]]).log(), torch.zeros(1, 2), torch.tensor([[True, True]]), cap=2.0)
    tensor([[0.0000, 0.5000]], dtype=torch.float64)
    """
    _require_cap(cap)
    weights = importance(old_logprobs, behaviour_logprobs, mask, level="token")
    return select(weights, weights <= cap)


def sequence_mask(
    old_logprobs: PerToken, behaviour_logprobs: PerToken, mask: TokenMask, *, cap: float
) -> PerToken:
    """The sequence's importance weight on each of its tokens, or 0 where it is above the cap.

        w_i if w_i ≤ C, otherwise 0

    Source: as `token_mask`, at the level of sequences.

    Args:
        old_logprobs: [B, T], nats. No gradient flows.
        behaviour_logprobs: [B, T], nats. No gradient flows.
        mask: [B, T] bool.
        cap: C > 0.

    Returns:
        [B, T] float64, 0 off the mask and above the cap. The sequence still counts in every denominator.

    Raises:
        InvalidInput: as `importance`, or cap ≤ 0.

    Exactness:
        E_μ[w 1{w ≤ C} f] = E_π_old[f 1{w ≤ C}]: exact on the sequences that are kept, blind to the others.
        Checked by tests/unbiased/test_corrections.py::test_masked_sequences_are_missing_and_the_others_exact.

    >>> sequence_mask(torch.tensor([[3.0, 2.0]]).log(), torch.zeros(1, 2), torch.tensor([[True, True]]), cap=4.0)
    tensor([[0., 0.]], dtype=torch.float64)
    """
    _require_cap(cap)
    weights = importance(old_logprobs, behaviour_logprobs, mask, level="sequence")
    return select(weights, weights <= cap)


def icepop(
    old_logprobs: PerToken, behaviour_logprobs: PerToken, mask: TokenMask, *, low: float, high: float
) -> PerToken:
    """Each token's importance weight, or 0 where it is outside an interval.

        w_t if α ≤ w_t ≤ β, otherwise 0

    Source: Ling team 2025, 2510.18855 (IcePop).

    Args:
        old_logprobs: [B, T], nats. No gradient flows.
        behaviour_logprobs: [B, T], nats. No gradient flows.
        mask: [B, T] bool.
        low: α ≥ 0.
        high: β > α.

    Returns:
        [B, T] float64, 0 off the mask and outside the interval. The token still counts in every denominator.

    Raises:
        InvalidInput: as `importance`, or not 0 ≤ low < high.

    Exactness:
        At each prefix of μ it is E_π_old over the tokens whose weight is inside.
        Checked by tests/unbiased/test_corrections.py::test_icepop_is_exact_on_the_tokens_it_keeps.

    >>> icepop(torch.tensor([[2.5, 0.5]]).log(), torch.zeros(1, 2), torch.tensor([[True, True]]), low=0.6, high=5.0)
    tensor([[2.5000, 0.0000]], dtype=torch.float64)
    """
    if not 0.0 <= low < high:
        raise InvalidInput(f"the interval needs 0 ≤ low < high, got {low} and {high}")
    weights = importance(old_logprobs, behaviour_logprobs, mask, level="token")
    return select(weights, (weights >= low) & (weights <= high))
