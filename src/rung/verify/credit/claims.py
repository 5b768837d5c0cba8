"""What each credit Ψ is an estimate of, at γ = 1: derived by hand, and written down before it was measured.

    ĝ = 1/B Σ_i Σ_t Ψ_it S_it        S_it = ∇log π(a_it|s_it)        e(s) = critic(s) − V(s), 0 after the end

E[S_t f] = 0 for every f that knows neither a_t nor what follows: past rewards, baselines, other samples.
Q and A are the means of G_t and G_t − V given (s_t, a_t): with them the mean stays, and noise goes. A is not the Ψ of
least variance: Q − b(s) with b(s) = E[Q |S_t|² | s] / E[|S_t|² | s] is at least as good.
GAE(λ) of a critic is GAE(λ) of V, − e(s_t), + (1 − λ) Σ_{l≥1} λ^(l−1) e(s_{t+l}), so that its

    bias = (1 − λ) Σ_{l≥1} λ^(l−1) E[Σ_t S_t e(s_{t+l})]

is 0 for λ = 1, and for every λ where e is 0 but at the start. Its mean squared error with B sequences is
|bias|² + variance/B: with an exact critic one λ is best for every B; with a wrong one the best λ does not fall as B
grows, and ends at 1.
A mean that holds the sample itself: each return is 1/B of its own baseline, the factor is 1 − 1/B. A mean over those
alive at step t: 1 − E[1/n_t | alive] = 1 − (1 − (1 − p_t)^B)/(B p_t), another factor at each step. A spread in the
denominator is the sample's own: no multiple of ∇J.
"""

from typing import Literal, TypeAlias

Claim: TypeAlias = Literal[
    "unbiased", "times 1 − 1/B", "times a factor a step", "biased by V's errors", "turned"
]

# One sequence at a time.
SINGLE: dict[str, Claim] = {
    "R(τ), total return": "unbiased",
    "G_t, reward-to-go": "unbiased",
    "R − constant 0.5": "unbiased",
    "R − J": "unbiased",
    "R − best constant": "unbiased",
    "R − R(greedy)": "unbiased",
    "G_t − moving average": "unbiased",
    "G_t − V": "unbiased",
    "Q": "unbiased",
    "A": "unbiased",
    "Q − best b(s)": "unbiased",
    "TD residual, exact V": "unbiased",
    "GAE(0.5), exact V": "unbiased",
    "GAE(0.95), exact V": "unbiased",
    "G_t − wrong V": "unbiased",
    "TD residual, wrong V": "biased by V's errors",
    "GAE(0.5), wrong V": "biased by V's errors",
    "GAE(0.95), wrong V": "biased by V's errors",
    "TD, V wrong at the start": "unbiased",
}

# A batch of B sequences of one prompt.
BATCH: dict[str, Claim] = {
    "R − batch mean": "times 1 − 1/B",
    "G_t − batch mean": "times 1 − 1/B",
    "G_t − step mean": "times a factor a step",
    "leave-one-out": "unbiased",
    "group-centered": "times 1 − 1/B",
    "group-standardized": "turned",
    "whitened G_t": "turned",
    "whitened group-centered": "turned",
}

# γ < 1, against ∇J_γ. "no time discount": Σ_s d_1(s) Σ_a ∇π Q_γ, the gradient of no function in general.
DISCOUNTED: dict[str, Literal["unbiased", "no time discount", "biased by V's errors"]] = {
    "R(τ), total return": "unbiased",
    "G_t": "no time discount",
    "γ^t G_t": "unbiased",
    "GAE(0.5), exact V": "no time discount",
    "γ^t GAE(0.5), exact V": "unbiased",
    "γ^t (G_t − wrong V)": "unbiased",
    "γ^t GAE(0.5), wrong V": "biased by V's errors",
}
