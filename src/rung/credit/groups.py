"""Credit by comparison: a sequence's return against those of the other samples of its prompt.

All functions take returns [B], group ids [B] (any ids, any order, any sizes) and which rows are valid (a reward that
failed, or a row without a token of the policy's own, is not). Invalid rows, and groups with fewer than two valid
rows, get credit 0 and touch nobody else's.
"""

import torch

from rung.credit.returns import counted_rows
from rung.errors import InvalidInput
from rung.masked import select, whiten
from rung.notation import GroupIds, PerSequence, PerToken, TokenMask


def _group_sums(values: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
    """[B] for each row the sum over its group; there are no more groups than rows."""
    return torch.zeros_like(values).index_add(0, members, values)[members]


def _centered(
    returns: PerSequence, groups: GroupIds, valid: torch.Tensor | None
) -> tuple[PerSequence, torch.Tensor, PerSequence, torch.Tensor]:
    """R − group mean, the group's size, its mean and index for each row; 0 where the row is not comparable."""
    if valid is None:
        valid = torch.ones_like(returns, dtype=torch.bool)
    if returns.ndim != 1 or groups.shape != returns.shape or valid.shape != returns.shape:
        raise InvalidInput(
            f"returns {tuple(returns.shape)}, groups {tuple(groups.shape)} and valid {tuple(valid.shape)} must be [B]"
        )
    if groups.is_floating_point() or valid.dtype != torch.bool:
        raise InvalidInput(
            f"group ids must be integers and valid boolean, got {groups.dtype} and {valid.dtype}"
        )
    _, members = torch.unique(groups, return_inverse=True)
    kept = select(returns, valid)
    sizes = _group_sums(valid.to(returns.dtype), members)
    means = _group_sums(kept, members) / sizes.clamp(min=1)
    comparable = valid & (sizes >= 2)
    return select(kept - means, comparable), sizes, means, members


def leave_one_out(returns: PerSequence, groups: GroupIds, valid: torch.Tensor | None = None) -> PerSequence:
    """Return minus the mean return of the group's other samples.

        A_i = R_i − 1/(G−1) Σ_{j≠i} R_j = G/(G−1) · (R_i − mean R)

    Source: Kool, van Hoof and Welling 2019 ("Buy 4 REINFORCE samples, get a baseline for free!"); Ahmadian et al.
    2024, 2402.14740 (RLOO).

    Args:
        returns: [B], R of each sequence, reward units.
        groups: [B] integer ids: the same id means the same prompt.
        valid: [B] bool, or None for all.

    Returns:
        [B], reward units; 0 for rows that cannot be compared.

    Exactness:
        An unbiased Ψ for ∇J for any G ≥ 2: the others' returns do not depend on this sequence's tokens. That is so
        with all rewards present; rows that cannot be compared get 0 and still count in the aggregation.
        Checked by tests/unbiased/test_methods.py::test_unbiased_credits.

    >>> leave_one_out(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([7, 7, 7]))
    tensor([ 1.0000, -0.5000, -0.5000])
    """
    centered, sizes, _, _ = _centered(returns, groups, valid)
    return centered * sizes / (sizes - 1).clamp(min=1)


def group_centered(returns: PerSequence, groups: GroupIds, valid: torch.Tensor | None = None) -> PerSequence:
    """Return minus the group's mean, its own included.

        A_i = R_i − mean R = (G−1)/G · leave-one-out

    Source: Liu et al. 2025, 2503.20783 (Dr. GRPO), eq. 3.

    Args:
        returns: [B], R of each sequence, reward units.
        groups: [B] integer ids.
        valid: [B] bool, or None for all.

    Returns:
        [B], reward units; 0 for rows that cannot be compared.

    Exactness:
        E[gradient] = (G−1)/G · ∇J: the right direction, shortened, because each return is in its own baseline.
        Checked by tests/unbiased/test_methods.py::test_centring_on_the_group_is_a_matter_of_scale.

    >>> group_centered(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]))
    tensor([ 0.5000, -0.5000])
    """
    return _centered(returns, groups, valid)[0]


def group_standardized(
    returns: PerSequence,
    groups: GroupIds,
    valid: torch.Tensor | None = None,
    *,
    correction: int = 1,
    epsilon: float = 0.0,
) -> PerSequence:
    """Return minus the group's mean, divided by the group's standard deviation.

        A_i = (R_i − mean R) / (std R + ε)

    Source: Shao et al. 2024, 2402.03300 (GRPO), section 4.1.2. The paper does not say which standard deviation;
    implementations use the sample one (`correction` 1).
    Differs from source: a spread below 1e-6·max(1, |mean|) is rounding, not signal, and gives 0.

    Args:
        returns: [B], R of each sequence, reward units.
        groups: [B] integer ids.
        valid: [B] bool, or None for all.
        correction: 1 for the sample standard deviation, 0 for the population one.
        epsilon: added to the standard deviation, reward units.

    Returns:
        [B], standard deviations; 0 for rows that cannot be compared.

    Exactness:
        Biased. With rewards of two values it re-weights prompts by their success rate; with three or more it changes
        the direction of the gradient. Checked by tests/unbiased/test_binary_rewards.py and by
        tests/unbiased/test_methods.py::test_standardized_credit_turns_the_gradient_of_toy_c.

    >>> group_standardized(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0, 0, 0]))
    tensor([ 1.1547, -0.5774, -0.5774])
    """
    centered, sizes, means, members = _centered(returns, groups, valid)
    squares = _group_sums(centered.square(), members)
    std = (squares / (sizes - correction).clamp(min=1)).sqrt()
    flat = std < 1e-6 * means.abs().clamp(min=1.0)
    return select(centered / (std + epsilon), ~flat)


def whitened_group_centered(
    returns: PerSequence,
    groups: GroupIds,
    mask: TokenMask,
    valid: torch.Tensor | None = None,
    *,
    correction: int = 0,
) -> PerToken:
    """Return minus the group's mean, on every token, whitened over all tokens of the batch.

        A_i = R_i − mean R of the group        Ψ_it = (A_i − mean A) / std A        over every counted token

    Source: Hu 2025, 2501.03262 (REINFORCE++, its form with a baseline); the population standard deviation, as the
    authors' code has it.

    Args:
        returns: [B], R of each sequence, reward units.
        groups: [B] integer ids.
        mask: [B, T] bool.
        valid: [B] bool, or None for all. Rows that cannot be compared get 0 and enter neither mean nor spread.
        correction: 0 for the population standard deviation, 1 for the sample one.

    Returns:
        [B, T], standard deviations, 0 off the mask.

    Exactness:
        Biased at every finite batch size: the spread depends on the sample itself, and the mean over tokens is not 0
        once lengths differ. One spread for the whole batch, so that prompts keep their weights relative to each other.
        Checked by tests/unbiased/test_credit_baselines.py::test_whitening_biases.

    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> whitened_group_centered(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), mask)
    tensor([[ 0.7071,  0.7071],
            [-1.4142,  0.0000]])
    """
    centered, sizes, _, _ = _centered(returns, groups, counted_rows(mask, valid))
    counted = mask & (counted_rows(mask, valid) & (sizes >= 2)).unsqueeze(1)
    return whiten(centered.unsqueeze(1).expand(mask.shape), counted, correction=correction)
