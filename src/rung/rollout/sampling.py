"""Randomness as a function: which token comes out depends on a key and the logits, on nothing else.

A key is made of (seed, stream, data row, visit, sample). At each position it gives one uniform number, and the token
is where that number falls in the cumulative distribution. Batch mates, ranks and resuming change nothing; logits that
differ by rounding give the same token unless the number falls within that rounding.
"""

import numpy as np
import torch

from rung.errors import ModelError

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
STREAMS = {"train": 1, "eval": 2, "library": 3}


def _mix(x: int) -> int:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014): every input bit reaches every output bit."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def sampling_key(seed: int, stream: str, row: int, visit: int, sample: int) -> int:
    """The 64-bit key of one sample.

    >>> sampling_key(0, "train", 0, 0, 0) == sampling_key(0, "train", 0, 0, 1)
    False
    """
    key = 0
    for part in (seed, STREAMS[stream], row, visit, sample):
        key = _mix((key + _STEP + (part & _MASK)) & _MASK)
    return key


def uniforms(keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """[R] one number in [0, 1) for each key at its position: 53 random bits each.

    Args:
        keys: [R] uint64.
        positions: [R] tokens sampled so far.
    """
    with np.errstate(over="ignore"):
        x = keys + np.uint64(_STEP) * (positions.astype(np.uint64) + np.uint64(1))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(11)).astype(np.float64) / float(1 << 53)


def draw(
    logits: torch.Tensor, uniform: np.ndarray, temperature: float, greedy: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token from each row, by inverting its cumulative distribution, or the most likely one.

    Args:
        logits: [R, V].
        uniform: [R] in [0, 1).
        temperature: the logits are divided by it.
        greedy: [R] bool: the rows that take their most likely token, the first of equals. None: no row does.

    Returns:
        tokens [R], and their log-probabilities [R] in nats under the distribution that was sampled. Those of a greedy
        row are under the same distribution, at the same temperature.

    Raises:
        ModelError: logits that are no distribution (NaN, or +∞).
    """
    scaled = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    logprobs = scaled.log_softmax(-1)
    cumulative = logprobs.double().exp().cumsum(-1)
    targets = torch.from_numpy(uniform).to(cumulative.device).unsqueeze(-1) * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, targets, right=True).clamp(max=logits.shape[-1] - 1)
    if greedy is not None:
        tokens = torch.where(greedy.unsqueeze(-1), logprobs.argmax(-1, keepdim=True), tokens)
    drawn = logprobs.gather(-1, tokens).squeeze(-1)
    if not bool(drawn.isfinite().all()):
        raise ModelError(
            "the model's logits are not finite numbers: its weights are damaged, or training diverged"
        )
    return tokens.squeeze(-1), drawn
