"""pass@k: how often one of k samples passes, estimated from n of them."""

import math

from rung.errors import InvalidInput


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The share of the k-subsets of n samples in which at least one passes.

        pass@k = 1 − C(n − c, k) / C(n, k)

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code" (2107.03374), eq. 1.

    Args:
        samples: n, drawn independently for one problem.
        passed: c, those of them that pass.
        k: how many one would draw, 1 … n.

    Returns:
        A number in [0, 1]; its mean over problems is the pass@k of a model.

    Raises:
        InvalidInput: k < 1, k > n (n samples do not tell what more of them would do), or c outside 0 … n.

    Exactness:
        Unbiased: with c ~ Binomial(n, p) its expectation is 1 − (1 − p)^k. The plug-in 1 − (1 − c/n)^k is too small
        on average, for k > 1 and 0 < p < 1. Checked by
        tests/training/test_pass_at_k.py::test_it_is_the_share_of_subsets_with_a_pass and
        tests/training/test_pass_at_k.py::test_its_expectation_is_the_chance_of_a_pass.

    >>> pass_at_k(4, 1, 2)  # of the 6 pairs, 3 have the one that passes
    0.5
    """
    if not 0 <= passed <= samples:
        raise InvalidInput(f"{passed} of {samples} samples cannot pass")
    if not 1 <= k <= samples:
        raise InvalidInput(
            f"pass@{k} needs {max(k, 1)} samples or more and k ≥ 1; there are {samples} samples"
        )
    subsets = math.comb(samples, k)
    return (subsets - math.comb(samples - passed, k)) / subsets
