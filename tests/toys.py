"""Problems small enough to enumerate, shared by all tests, with numbers that were computed for them elsewhere.

    A     one step, V = 3
    B     V = 3, always two tokens: no end token. Fixed lengths hide faults, so B is never the only toy of a test
    C     V = 3, at most two tokens, token 2 ends: seven sequences of lengths 1 and 2, six reward values
    LONG  V = 3, at most three tokens, token 2 ends, rewards on steps too: three steps separate γ from T − 1, and an
          effect on the next token from one on the token after it

Parameters are the logits themselves, row by row in the order of the prefixes. The digits come from the
definitions, by enumeration or a linear solve in float64, recorded beforehand; none is output of this library.
Each is printed to as many places as it is known, and `assert_digits` compares to exactly that.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rung.exact import LogLinear, SoftmaxTable, TokenMDP


@dataclass(frozen=True)
class Toy:
    """A problem and three policies over the same prefixes: π, π_ref (or the teacher) and μ, the sampler."""

    mdp: TokenMDP
    policy: SoftmaxTable
    reference: SoftmaxTable
    behaviour: SoftmaxTable


def assert_digits(actual: ArrayLike, recorded: ArrayLike, places: int) -> None:
    """Equal to every printed decimal place: the printed number may be off by half of its last place."""
    np.testing.assert_allclose(actual, recorded, rtol=0, atol=0.5001 * 10.0**-places)


def rows(text: str) -> NDArray[np.float64]:
    """Numbers printed in rows, as one parameter vector; bars between rows are for the reader."""
    return np.array([float(number) for number in text.replace("|", " ").split()])


PI_ROWS = [[0.5, -0.3, 1.0], [-0.2, 0.8, 0.1], [1.2, 0.0, -0.5], [0.3, -0.9, 0.6]]
REFERENCE_ROWS = [[0.0, 0.2, -0.4], [0.5, -0.1, 0.3], [-0.3, 0.7, 0.2], [0.1, 0.4, -0.6]]
BEHAVIOUR_ROWS = [[0.1, 0.4, 0.3], [0.0, 0.2, -0.2], [0.6, -0.1, 0.2], [-0.3, 0.1, 0.5]]


def _toy(mdp: TokenMDP, policy: ArrayLike, reference: ArrayLike, behaviour: ArrayLike) -> Toy:
    prefixes = mdp.prefixes()
    return Toy(mdp, *(SoftmaxTable(prefixes, logits) for logits in (policy, reference, behaviour)))


# --- A -------------------------------------------------------------------------------------------------------------

A_REWARDS = {(0,): 1.0, (1,): 0.0, (2,): 0.5}
TOY_A = _toy(
    TokenMDP(3, end_token=None, max_length=1, reward=A_REWARDS.__getitem__),
    PI_ROWS[:1],
    REFERENCE_ROWS[:1],
    BEHAVIOUR_ROWS[:1],
)

A_OBJECTIVE_GRADIENT = rows("0.1327048182 -0.0854079300 -0.0472968882")
A_KL_POLICY_REFERENCE = 0.2650057054314
A_KL_REFERENCE_POLICY = 0.2826736076075
A_MEAN_K2 = 0.2674116959023
A_VARIANCE_K1, A_VARIANCE_K2, A_VARIANCE_K3 = 0.4645953678934, 0.0392995467123, 0.0707618578064
A_GRADIENT_KL_POLICY_REFERENCE = rows("-0.107785925564 -0.193467386782 0.301253312346")
A_GRADIENT_KL_REFERENCE_POLICY = rows("-0.023030950110 -0.277342872600 0.300373822710")
A_K2_IN_REWARD = rows("-0.085549509434 0.044074109730 0.041475399703")
A_K3_IN_REWARD = rows("-0.084754975454 0.083875485818 0.000879489636")
A_GRADIENT_OF_MEAN_K2 = rows("-0.193335434998 -0.149393277051 0.342728712049")
# Sampled from μ, without importance weights.
A_OFF_POLICY_K1_IN_LOSS = rows("-0.042770568188 0.232942092480 -0.190171524292")
A_OFF_POLICY_K2_IN_LOSS = rows("0.025597580242 -0.383855411876 0.358257831634")
A_OFF_POLICY_K3_IN_LOSS = rows("0.157462995451 -0.643052747653 0.485589752201")
# β = 0.5
A_TILTED_OPTIMUM = rows("0.7082675386 0.1170758367 0.1746566247")
A_TILTED_VALUE = 0.641540463364
A_REGULARIZED_OBJECTIVE = 0.456370954057

# --- B -------------------------------------------------------------------------------------------------------------

# Only divergences are recorded for B; these rewards are ours, nine different ones.
B_REWARDS = {
    (0, 0): 0.3,
    (0, 1): -1.1,
    (0, 2): 0.7,
    (1, 0): 1.6,
    (1, 1): -0.4,
    (1, 2): 0.0,
    (2, 0): 0.9,
    (2, 1): -2.0,
    (2, 2): 1.3,
}
TOY_B = _toy(
    TokenMDP(3, end_token=None, max_length=2, reward=B_REWARDS.__getitem__),
    PI_ROWS,
    REFERENCE_ROWS,
    BEHAVIOUR_ROWS,
)

B_KL_POLICY_REFERENCE = 0.639849337970
B_KL_REFERENCE_POLICY = 0.678875782671
B_PREFIX_KL_POLICY_REFERENCE = {
    (): 0.2650057054,
    (0,): 0.2302045857,
    (1,): 0.5682128507,
    (2,): 0.4098723893,
}
_B_LAST_ROWS = (
    "-0.0631363466 0.1053760742 -0.0422397275 | 0.0701193759 -0.0436464598 -0.0264729161"
    "| -0.0680034480 -0.1111761815 0.1791796295"
)
B_GRADIENT_KL_POLICY_REFERENCE = rows("-0.1544730468 -0.1654218795 0.3198949263 |" + _B_LAST_ROWS)
B_IMMEDIATE_KL_POLICY_REFERENCE = rows("-0.1077859256 -0.1934673868 0.3012533123 |" + _B_LAST_ROWS)
B_FUTURE_FIRST_ROW = rows("-0.0466871212 0.0280455073 0.0186416139")
# Forward divergence at each prefix, prefixes from π: what the sum of k3 over tokens gives in the loss.
B_FORWARD_KL_ON_POLICY_PREFIXES = rows(
    "-0.0230309501 -0.2773428726 0.3003738227 | -0.0726482412 0.0983006960 -0.0256524548"
    "| 0.0707175825 -0.0440188191 -0.0266987634 | 0.0137797859 -0.1919112930 0.1781315071"
)
# Reverse divergence at each prefix, prefixes from μ: k3 times the live token ratio.
B_REVERSE_KL_ON_BEHAVIOUR_PREFIXES = rows(
    "-0.1077859256 -0.1934673868 0.3012533123 | -0.0547704417 0.0914131786 -0.0366427369"
    "| 0.1827379582 -0.1137469472 -0.0689910109 | -0.0437028123 -0.0714480211 0.1151508334"
)
B_MEAN_TOKEN_K2, B_MEAN_SEQUENCE_K2 = 0.667924217714, 0.755991864211
# Variances of one sample's estimate of KL(π‖π_ref), and traces for its gradient.
B_VARIANCE_K1, B_VARIANCE_TOKEN_K3 = 1.1025765531, 0.2866568800
B_VARIANCE_SEQUENCE_K3, B_VARIANCE_RAO_BLACKWELL = 0.8033206836, 0.0128289111
B_TRACE_K1_TOTAL, B_TRACE_K1_TO_GO, B_TRACE_RAO_BLACKWELL = 1.3308425958, 0.9304419347, 0.2157687617
# Distillation: k1 to the teacher as the credit.
B_TRACE_K1_IMMEDIATE, B_TRACE_K1_IMMEDIATE_LESS_KL = 0.5240544459, 0.6971386737
B_TRACE_FULL_VOCABULARY, B_TRACE_K1_TO_GO_LESS_KL_TO_GO = 0.1229009466, 1.0462572090

# --- C -------------------------------------------------------------------------------------------------------------

C_REWARDS = {(2,): 0.0, (0, 0): 0.2, (0, 1): -0.5, (0, 2): 1.0, (1, 0): 0.0, (1, 1): 2.0, (1, 2): 0.4}
TOY_C = _toy(
    TokenMDP(3, end_token=2, max_length=2, reward=C_REWARDS.__getitem__),
    PI_ROWS[:3],
    REFERENCE_ROWS[:3],
    BEHAVIOUR_ROWS[:3],
)

C_OBJECTIVE = 0.078167065277
C_OBJECTIVE_BEHAVIOUR = 0.257592896848
C_VALUES = {(): 0.0781670653, (0,): 0.0376307421, (1,): 0.4552004637}
C_FIRST_ADVANTAGES = rows("-0.0405363231 0.3770333984 -0.0781670653")
C_OBJECTIVE_GRADIENT = rows(
    "-0.0130844628 0.0546834343 -0.0415989714 | 0.0103410989 -0.0930768041 0.0827357052"
    "| -0.0444918573 0.0454775010 -0.0009856437"
)
C_OBJECTIVE_DISCOUNTED = 0.070350358749  # γ = 0.9
C_BIAS_WITHOUT_DISCOUNT_WEIGHT = 0.0093076804  # largest, of G_t without γ^t at γ = 0.9
# Traces of the covariance of one sample's estimate Σ_t Ψ_t ∇log π.
C_TRACE_RETURN, C_TRACE_RETURN_LESS_J = 0.4355274819, 0.4069686209
C_TRACE_TO_GO_LESS_V, C_TRACE_Q, C_TRACE_A = 0.3692670330, 0.2340496445, 0.1677891956
C_TRACE_GAE_HALF = 0.2181586549
C_BEST_CONSTANT_BASELINE, C_TRACE_BEST_CONSTANT_BASELINE = 0.252239356451, 0.3809999832
C_BEST_STATE_BASELINE = {(): 0.1404787605, (0,): 0.3034375277, (1,): 1.0432521788}
C_TRACE_Q_LESS_BEST_STATE_BASELINE = 0.1272028395
# GAE with the wrong critic V = (0.3, 0, 1): the largest bias for each λ.
C_WRONG_CRITIC = {(): 0.3, (0,): 0.0, (1,): 1.0}
C_WRONG_CRITIC_BIAS = {0.0: 0.0693171589, 0.5: 0.0346585794, 0.95: 0.0034658579, 1.0: 0.0}
# The sum over tokens divided by the length, baseline J.
C_SEQUENCE_MEAN = rows(
    "0.0001715028 0.0303583923 -0.0305298951 | 0.0051705495 -0.0465384020 0.0413678526"
    "| -0.0222459287 0.0227387505 -0.0004928218"
)
C_SEQUENCE_MEAN_COSINE = 0.98965077
C_TOKEN_MEAN_COSINE = 0.99911  # leave-one-out, G = 2
# The batch mean over samples still alive at step t scales step t's gradient by these factors.
C_ALIVE_MEAN_FACTORS = {2: (0.5, 0.2339098553), 3: (0.6666666667, 0.3948679500)}
# Reward standardised by the population deviation, summed over tokens, G = 2.
C_STANDARDIZED = rows(
    "-0.0269765872 0.0396586558 -0.0126820687 | 0.0479802386 -0.1286832938 0.0807030551"
    "| -0.0290555763 0.0205226091 0.0085329672"
)
# With ∇J. Where all rewards of a group are equal the credit is 0; a deviation of 3e-17 left by rounding (three times
# 0.2, or 0.4) that is divided by as if it were one gives 0.91831514 for G = 3 instead, as
# tests/sheet/test_algorithms.py::test_the_other_recorded_cosine_of_threes_is_rounding derives.
C_STANDARDIZED_COSINES = {2: 0.91226840, 3: 0.91824721}
# Target π, sampled from μ, Ψ = R.
C_TOKEN_IMPORTANCE = rows(
    "0.0020885532 0.0658942067 -0.0679827599 | 0.0089708478 -0.0807436278 0.0717727800"
    "| -0.1159501358 0.1185188198 -0.0025686840"
)
C_SEQUENCE_TRUNCATED = rows(  # min(w, 1.2)
    "-0.0001745167 0.0519185754 -0.0517440587 | 0.0065797091 -0.0842380691 0.0776583600"
    "| -0.0444918573 0.0454775010 -0.0009856437"
)
C_SEQUENCE_MASKED = rows(  # w where w ≤ 1.2, otherwise 0
    "0.0455367501 0.0421288212 -0.0876655713 | -0.0067385412 -0.0529420613 0.0596806025"
    "| -0.0444918573 0.0454775010 -0.0009856437"
)
C_TOKEN_ICEPOP = rows(  # w where 0.5 ≤ w ≤ 1.2, otherwise 0
    "0.0293384891 -0.0062832780 -0.0230552111 | -0.0058456483 -0.0459269540 0.0517726023"
    "| -0.1034063157 0.1222969458 -0.0188906302"
)
# PPO family with the exact advantage of μ, clip 0.2.
C_CLIPPED_OBJECTIVE, C_DUAL_CLIPPED_OBJECTIVE = -0.213407682346, -0.208470362788  # dual clip c = 1.5
C_CLIPPED_OBJECTIVE_NEGATED, C_CLIP_HIGHER_OBJECTIVE_NEGATED = (
    0.085152954080,
    0.106031293967,
)  # 0.2/0.2, 0.2/0.28
C_SEQUENCE_CLIPPED_OBJECTIVE = -0.128898923344  # GSPO 0.2/0.2, credit R − J(μ)
C_CLIPPED_GRADIENT = rows(
    "0.0020885532 0.0658942067 -0.0679827599 | 0.0089708478 -0.0807436278 0.0717727800"
    "| -0.1216598854 0.1167990763 0.0048608091"
)

# E[√(k(1−k))] / (p(1−p)), k = Binomial(G, p)/G: what standardising binary rewards does to ∇p, by G and p.
BINARY_STANDARDIZED_FACTORS = {
    4: {0.05: 1.7100059808, 0.1: 1.6902816622, 0.25: 1.6450317547, 0.5: 1.6160254038},
    8: {0.05: 2.4730626362, 0.1: 2.3276890521, 0.25: 2.0261155898, 0.5: 1.8556559496},
    16: {0.05: 3.2670967461, 0.1: 2.8478123621, 0.25: 2.1979135989, 0.5: 1.9341226049},
}

# --- LONG ----------------------------------------------------------------------------------------------------------

LONG_REWARDS = {
    (2,): -0.6,
    (0, 2): 0.4,
    (1, 2): 1.1,
    (0, 0, 0): 0.0,
    (0, 0, 1): 1.7,
    (0, 0, 2): -0.9,
    (0, 1, 0): 0.8,
    (0, 1, 1): -1.3,
    (0, 1, 2): 0.4,
    (1, 0, 0): 2.1,
    (1, 0, 1): 0.0,
    (1, 0, 2): -0.2,
    (1, 1, 0): 0.5,
    (1, 1, 1): 1.1,
    (1, 1, 2): -1.8,
}
LONG_STEP_REWARDS = ((0.1, -0.2, 0.05), (0.0, 0.3, -0.1), (-0.15, 0.25, 0.2))  # [step][token]
_LONG_MDP = TokenMDP(
    3,
    end_token=2,
    max_length=3,
    reward=LONG_REWARDS.__getitem__,
    step_reward=lambda prefix, token: LONG_STEP_REWARDS[len(prefix)][token],
)
TOY_LONG = _toy(
    _LONG_MDP,
    [*PI_ROWS, [0.7, 0.2, -0.1], [-0.6, 0.1, 0.9], [0.0, 1.1, 0.4]],
    [*REFERENCE_ROWS, [0.2, -0.3, 0.6], [0.3, 0.3, -0.2], [0.8, -0.4, 0.1]],
    [*BEHAVIOUR_ROWS, [0.5, 0.0, -0.4], [-0.1, 0.6, 0.2], [0.3, 0.4, -0.5]],
)


def shared_features(prefix: tuple[int, ...]) -> NDArray[np.float64]:
    """Four features of a token and what stands before it, [3, 4]; the first token 7 or 8 of a prefix is a prompt."""
    bias = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    bias[:, 2] = [0.3 * sum(prefix), -0.2, 0.1 * len(prefix)]
    bias[:, 3] = [0.0, 0.5 if 0 in prefix else -0.4, 0.7]
    return bias


# The same problem with four parameters that all prefixes share: errors at different prefixes cannot hide in rows.
SHARED_POLICY = LogLinear(shared_features, np.array([0.2, -0.4, 0.9, 0.5]))
SHARED_REFERENCE = LogLinear(shared_features, np.array([-0.1, 0.3, 0.4, -0.6]))
SHARED_BEHAVIOUR = LogLinear(shared_features, np.array([0.1, 0.1, 0.5, 0.2]))
