"""Value and slope of each clipped loss, region by region: derived by hand, and written down before it was measured.

Of one token with credit Ψ; dρ/d log π = ρ. For GSPO of a sequence of L tokens, s = exp(1/L Σ log ρ) in place of ρ:

                          ρ < 1 − ε_low            inside              ρ > 1 + ε_high
    Ψ > 0    −loss        ρΨ                       ρΨ                  (1 + ε_high) Ψ
             slope        ρΨ  alive                ρΨ                  0   clipped
    Ψ < 0    −loss        (1 − ε_low) Ψ            ρΨ                  ρΨ; dual clip: cΨ where ρ > c
             slope        0   clipped              ρΨ                  ρΨ  alive; dual clip: 0 where ρ > c

where slope = d(−loss)/d log π. At the window's edges both arms of the minimum are ρΨ, so that the slope is ρΨ there:
a clamp lets the gradient of its bounds through, and a tie gives each arm one half. At ρ = c the other arm of the
maximum is the constant cΨ, so that a tie leaves one half of ρΨ.
"""

from collections.abc import Callable
from typing import NamedTuple


class Piece(NamedTuple):
    """−loss and its derivative in log π, of one token."""

    objective: float
    slope: float


def no_clip(ratio: float, credit: float) -> Piece:
    """ρΨ, alive everywhere."""
    return Piece(ratio * credit, ratio * credit)


def clipped(low: float, high: float, dual: float | None = None) -> Callable[[float, float], Piece]:
    """The six regions of a window [low, high], and a seventh beyond a dual clip.

    >>> piece = clipped(0.8, 1.2)
    >>> piece(1.5, 1.0), piece(1.5, -1.0)
    (Piece(objective=1.2, slope=0.0), Piece(objective=-1.5, slope=-1.5))
    """

    def piece(ratio: float, credit: float) -> Piece:
        if credit > 0 and ratio > high:
            return Piece(high * credit, 0.0)
        if credit < 0 and ratio < low:
            return Piece(low * credit, 0.0)
        if credit < 0 and dual is not None and ratio >= dual:
            return Piece(dual * credit, ratio * credit / 2.0 if ratio == dual else 0.0)
        return Piece(ratio * credit, ratio * credit)

    return piece


def capped_weight(cap: float) -> Callable[[float, float], Piece]:
    """CISPO: min(ρ, c) Ψ log π with a constant weight. Its value is no objective; here log π = 0 gives 0."""
    return lambda ratio, credit: Piece(0.0, min(ratio, cap) * credit)


# On toy C with the samples of μ and its exact advantages, clip 0.2: E_μ[Σ_t min(ρA, clip(ρ)A)], from a separate
# calculation. "negated": the rewards' signs turned, so that the other two arms of the minimum are met. The last one:
# whole sequences' ratios, credit R − J(μ), mean over each sequence.
OBJECTIVES = {
    "clip 0.2": -0.213407682346,
    "dual clip 1.5": -0.208470362788,
    "negated, clip 0.2": 0.085152954080,
    "negated, clip 0.2/0.28": 0.106031293967,
    "sequence clip 0.2": -0.128898923344,
}

# Repeated steps on one batch, a bandit of three arms: the old policy and the rewards. Clipped at 0.2, the usual arm 1
# (Ψ < 0) is pushed until its ρ is below 0.8. Then the other two have at least 1 − 0.8 · 0.9 = 0.28 between them and
# their ratios sum to 0.28/0.05 = 5.6 or more, so that one of them is at 2.8 or above: the window was 0.8 to 1.2.
# The first step starts at ρ = 1, where nothing is clipped: with and without a clip it is the same, as far as the
# learning rate likes. E_old[ρ] = 1 at every step, wherever the policy is.
OLD_POLICY = (0.05, 0.9, 0.05)
REWARDS = (1.0, 0.0, 0.0)
LEAST_RATIO = 2.8
