"""Which gradient each placement of a KL estimate gives: derived by hand, and written down before it was measured.

    l_t = log π(a_t|s_t) − log π_ref(a_t|s_t)    L = Σ_t l_t            S_t = ∇log π(a_t|s_t)    S = Σ_t S_t
    w_t = π(a_t|s_t)/μ(a_t|s_t)                  W = Π_t w_t            D_t = KL(π‖π_ref) at s_t, whole vocabulary
    dk/dl:  k1 → 1    k2 → l    k3 → 1 − e^(−l)

In the loss a cell is E_μ[∇(w k)], in the reward E_μ[w k S] with k summed from the token on. Four facts give all:

    E_{a~π}[S_t] = 0 at every prefix             E_{a~π}[l S_t] = ∇KL(π‖π_ref) at the prefix
    ∇(w k) = w (k + dk/dl) S under a live weight, w dk/dl S under a constant one
    E_{a~π}[e^(−l) S_t] = E_{a~ref}[S_t] = −∇KL(π_ref‖π) at the prefix

and the same four with L, S and W hold for whole sequences. A weight w_t makes the token π's and leaves the prefix to
μ; W makes both π's. Of k + dk/dl, that of k1 is l + 1 and that of k3 is l: a live weight makes them one.
"""

from typing import Literal, TypeAlias

Estimator: TypeAlias = Literal["k1", "k2", "k3", "full"]
Placement: TypeAlias = Literal["loss", "reward"]
Level: TypeAlias = Literal["token", "sequence", "mixed"]
Weight: TypeAlias = Literal["detached", "live"] | None

ESTIMATORS: tuple[Estimator, ...] = ("k1", "k2", "k3", "full")

ZERO = "0"
NONE = "none of these"
REVERSE = "∇KL(π‖ref)"
REVERSE_AT_PI = "∇KL(π‖ref) at π"
REVERSE_AT_MU = "∇KL(π‖ref) at μ"
FUTURE = "future of KL(π‖ref)"
FORWARD = "∇KL(ref‖π)"
FORWARD_AT_PI = "∇KL(ref‖π) at π"
FORWARD_AT_MU = "∇KL(ref‖π) at μ"
DIFFERENCE = "∇KL(π‖ref) − ∇KL(ref‖π)"
DIFFERENCE_AT_PI = "∇KL(π‖ref) − ∇KL(ref‖π) at π"
K2_TOKENS = "∇E[Σ k2]"
K2_SEQUENCE = "∇E[k2(L)]"
K2_AT_PI = "∇E[k2] at π"
K2_AT_MU = "∇E[k2] at μ"
K2_TOKENS_LESS = "∇E[Σ k2] − ∇KL(π‖ref) at π"
K2_SEQUENCE_LESS = "∇E[k2(L)] − ∇KL(π‖ref)"
AWAY = "−∇KL(μ‖π)"
K2_FIT, K2_FIT_SEQUENCE = "∇E_μ[Σ k2]", "∇E_μ[k2(L)]"
K3_FIT, K3_FIT_SEQUENCE = "∇E_μ[Σ k3]", "∇E_μ[k3(L)]"

LEGEND = (
    "∇KL(p‖q): of whole sequences. at π, at μ: of the next token's divergence at each prefix that π or μ visits, "
    "prefixes held constant (the immediate part). future: what a token does to the divergence of later tokens; "
    "immediate + future = whole. L: a sequence's summed log-ratio; Σ k: the sum of its tokens' k. E_μ: μ's samples "
    "held fixed, a regression on them that is least at π = ref and no divergence. w: live weight; sg(w): detached."
)

Claims: TypeAlias = dict[tuple[Placement, Level, Weight], tuple[str, str, str, str]]

# Samples of π itself: every weight is 1, but a live one has a gradient. In the reward all is constant.
ON_POLICY: Claims = {
    ("loss", "token", None): (ZERO, REVERSE_AT_PI, FORWARD_AT_PI, REVERSE_AT_PI),
    ("loss", "token", "detached"): (ZERO, REVERSE_AT_PI, FORWARD_AT_PI, REVERSE_AT_PI),
    ("loss", "token", "live"): (REVERSE_AT_PI, K2_AT_PI, REVERSE_AT_PI, REVERSE_AT_PI),
    ("loss", "sequence", None): (ZERO, REVERSE, FORWARD, REVERSE_AT_PI),
    ("loss", "sequence", "detached"): (ZERO, REVERSE, FORWARD, REVERSE_AT_PI),
    ("loss", "sequence", "live"): (REVERSE, K2_SEQUENCE, REVERSE, REVERSE),
    ("reward", "token", None): (REVERSE, K2_TOKENS_LESS, DIFFERENCE_AT_PI, FUTURE),
    ("reward", "token", "detached"): (REVERSE, K2_TOKENS_LESS, DIFFERENCE_AT_PI, FUTURE),
    ("reward", "token", "live"): (REVERSE, K2_TOKENS_LESS, DIFFERENCE_AT_PI, FUTURE),
    ("reward", "sequence", None): (REVERSE, K2_SEQUENCE_LESS, DIFFERENCE, FUTURE),
    ("reward", "sequence", "detached"): (REVERSE, K2_SEQUENCE_LESS, DIFFERENCE, FUTURE),
    ("reward", "sequence", "live"): (REVERSE, K2_SEQUENCE_LESS, DIFFERENCE, FUTURE),
}

# Samples of μ. Without a weight, what stands in the reward is no gradient of anything known, with one exception:
# E_μ[L S] = ∇E_μ[½L²]. With token weights the later tokens, whose k a token answers for, are still μ's.
OFF_POLICY: Claims = {
    ("loss", "token", None): (AWAY, K2_FIT, K3_FIT, REVERSE_AT_MU),
    ("loss", "token", "detached"): (ZERO, REVERSE_AT_MU, FORWARD_AT_MU, REVERSE_AT_MU),
    ("loss", "token", "live"): (REVERSE_AT_MU, K2_AT_MU, REVERSE_AT_MU, REVERSE_AT_MU),
    ("loss", "sequence", None): (AWAY, K2_FIT_SEQUENCE, K3_FIT_SEQUENCE, REVERSE_AT_MU),
    ("loss", "sequence", "detached"): (ZERO, REVERSE, FORWARD, REVERSE_AT_PI),
    ("loss", "sequence", "live"): (REVERSE, K2_SEQUENCE, REVERSE, REVERSE),
    ("reward", "token", None): (NONE, NONE, NONE, NONE),
    ("reward", "token", "detached"): (NONE, NONE, NONE, NONE),
    ("reward", "token", "live"): (NONE, NONE, NONE, NONE),
    ("reward", "sequence", None): (K2_FIT_SEQUENCE, NONE, NONE, NONE),
    ("reward", "sequence", "detached"): (REVERSE, K2_SEQUENCE_LESS, DIFFERENCE, FUTURE),
    ("reward", "sequence", "live"): (REVERSE, K2_SEQUENCE_LESS, DIFFERENCE, FUTURE),
}

# Samples of μ, k at each token, and the whole sequence's weight W on all of it: as on policy, token by token.
MIXED: Claims = {
    ("loss", "mixed", "detached"): (ZERO, REVERSE_AT_PI, FORWARD_AT_PI, REVERSE_AT_PI),
    ("loss", "mixed", "live"): (REVERSE, K2_TOKENS, REVERSE, REVERSE),
    ("reward", "mixed", "detached"): (REVERSE, K2_TOKENS_LESS, DIFFERENCE_AT_PI, FUTURE),
}


def value_is_unbiased(estimator: Estimator, level: Level, weight: Weight, *, on_policy: bool) -> bool:
    """Whether the cell's value has the mean KL(π‖π_ref) of whole sequences.

    k2 never has. E_π[k1] = E_π[k3] = KL at each prefix, and for whole sequences, so that samples of π will do, or
    samples of μ under the weight of the whole sequence. A token's weight leaves the prefixes to μ.

    >>> value_is_unbiased("k3", "token", "live", on_policy=False)
    False
    """
    return estimator != "k2" and (on_policy or (level != "token" and weight is not None))
