"""Which sequences train, and what a sequence is charged for its length: the two rules of DAPO around its loss."""

import torch

from rung.errors import InvalidInput
from rung.masked import require_same_shape, select
from rung.notation import BOOKKEEPING, GroupIds, PerSequence


def mixed_groups(returns: PerSequence, groups: GroupIds, valid: torch.Tensor | None = None) -> torch.Tensor:
    """The rows of groups whose returns differ: elsewhere every comparison within the group gives credit 0.

        kept_i = valid_i and max_j R_j > min_j R_j over the valid rows j of i's group

    Source: Yu et al. 2025, 2503.14476 (DAPO), section 3.2 (dynamic sampling: other prompts are drawn in their place).
    Differs from source: rewards of any values, not of two. A range below 1e-6·max(1, |min R|) is rounding and counts
    as equal.

    Args:
        returns: [B], R of each sequence, reward units.
        groups: [B] integer ids: the same id means the same prompt.
        valid: [B] bool, or None for all.

    Returns:
        [B] bool. False for invalid rows, and for all rows of a group with fewer than two valid ones.

    Raises:
        InvalidInput: shapes differ, ids are no integers, or valid is not boolean.

    Exactness:
        Not neutral: what is kept is conditioned on being mixed. With rewards of two values and success rate p the
        gradient of a prompt grows by 1/(1 − p^G − (1−p)^G) over that of drawing it once, most where a prompt is almost
        always or almost never solved.
        Checked by tests/test_selection.py::test_dynamic_sampling_reweights_a_prompt_by_how_seldom_it_is_mixed.

    >>> mixed_groups(torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([7, 7, 3, 3]))
    tensor([ True,  True, False, False])
    """
    if valid is None:
        valid = torch.ones_like(returns, dtype=torch.bool)
    require_same_shape(returns=returns, groups=groups, valid=valid)
    if returns.ndim != 1 or groups.is_floating_point() or valid.dtype != torch.bool:
        raise InvalidInput(
            f"returns must be [B], group ids integers and valid boolean; "
            f"got {tuple(returns.shape)}, {groups.dtype} and {valid.dtype}"
        )
    ids, members = torch.unique(groups, return_inverse=True)
    kept = select(returns.to(BOOKKEEPING), valid)
    members_kept, returns_kept = members[valid], kept[valid]
    empty = torch.full((len(ids),), torch.inf, dtype=BOOKKEEPING, device=returns.device)
    least = empty.scatter_reduce(0, members_kept, returns_kept, "amin")
    most = (-empty).scatter_reduce(0, members_kept, returns_kept, "amax")
    tolerance = 1e-6 * least.abs().clamp(min=1.0)
    return valid & (most - least >= tolerance)[members]


def overlong_penalty(lengths: torch.Tensor, *, max_length: int, buffer: int) -> PerSequence:
    """What a sequence is charged for coming near the length cap: nothing up to a buffer before it, then linearly to −1.

        L ≤ L_max − c            0
        L_max − c < L ≤ L_max    ((L_max − c) − L)/c
        L_max < L                −1

    Source: Yu et al. 2025, 2503.14476 (DAPO), eq. 13 (soft overlong punishment; L_max 20480, c 4096).

    Args:
        lengths: [B] integers, tokens of each sequence, its end token included.
        max_length: L_max > 0.
        buffer: c, 0 < c ≤ L_max.

    Returns:
        [B] float64, reward units, in [−1, 0]: to be added to the reward.

    Raises:
        InvalidInput: lengths are no integers [B], or the buffer does not fit.

    >>> overlong_penalty(torch.tensor([80, 90, 100, 101]), max_length=100, buffer=20)
    tensor([ 0.0000, -0.5000, -1.0000, -1.0000], dtype=torch.float64)
    """
    if lengths.ndim != 1 or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise InvalidInput(f"lengths must be integers [B], got {lengths.dtype} {tuple(lengths.shape)}")
    if not 0 < buffer <= max_length:
        raise InvalidInput(f"the buffer needs 0 < buffer ≤ max_length, got {buffer} and {max_length}")
    free = max_length - buffer - lengths.to(BOOKKEEPING)
    return (free / buffer).clamp(-1.0, 0.0)
