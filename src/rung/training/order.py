"""Which data row comes when: a function of the seed and a global position, so that resuming needs no state."""

import numpy as np


def rows_at(positions: range, number: int, seed: int) -> tuple[list[int], list[int]]:
    """Data rows and visits at global positions: each epoch is a permutation of all rows.

    Args:
        positions: of the run, counted over all ranks and steps.
        number: rows in the data.
        seed: of the run.

    Returns:
        row indices in [0, number), and for each how often it was visited before.

    >>> rows, visits = rows_at(range(0, 6), 3, seed=0)
    >>> sorted(rows[:3]), sorted(rows[3:]), visits
    ([0, 1, 2], [0, 1, 2], [0, 0, 0, 1, 1, 1])
    """
    permutations: dict[int, np.ndarray] = {}
    rows, visits = [], []
    for position in positions:
        epoch, offset = divmod(position, number)
        if epoch not in permutations:
            permutations[epoch] = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(number)
        rows.append(int(permutations[epoch][offset]))
        visits.append(epoch)
    return rows, visits
