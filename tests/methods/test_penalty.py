"""Every cell of a KL penalty by hand: placement, level, direction, weight, coefficient.

Which gradient a cell is in expectation is tests/unbiased/test_kl_gradients.py; here are the numbers of one batch.
"""

import math
from dataclasses import replace

import pytest

from rung.errors import InvalidInput
from rung.kl import AdaptiveKL, DoublingKL, k1, k2, k3
from rung.methods import KLPenalty
from tests.batches import annotated, close, f64, gradient, leaf, rollouts
from tests.methods.helpers import PLAIN, two_rows

BETA = 0.5
RATIOS = [[0.2, -0.4, 0.1], [0.3]]  # log π/π_ref of `two_rows`; R = 1 and −2, so that Σ l = −0.1 and 0.3
VALUES = {k1: lambda x: x, k2: lambda x: x * x / 2, k3: lambda x: math.exp(-x) - 1 + x}
SLOPES = {k1: lambda x: 1.0, k2: lambda x: x, k3: lambda x: 1 - math.exp(-x)}
ESTIMATORS = pytest.mark.parametrize("estimator", [k1, k2, k3])


def penalized(estimator, placement, **settings):
    return replace(PLAIN, kl=KLPenalty(estimator, placement, BETA, **settings))


def value_and_slope(method, batch, policy, plain=PLAIN):
    """What the penalty adds to the loss of `plain` and to its gradient; weights are 1/2 on every token."""
    live = leaf(policy)

    def of(one):
        prepared = one.prepare(batch)
        loss = one.loss(live, prepared, one.weights(prepared.mask))
        return loss.detach(), gradient(loss, live)

    (loss, slope), (bare, bare_slope) = of(method), of(plain)
    return (loss - bare).item(), slope - bare_slope


# --- in the reward -------------------------------------------------------------------------------------------------


@ESTIMATORS
def test_of_a_sequence_in_the_reward_it_stands_on_the_last_token(estimator):
    """k of the summed log-ratio: −0.1 and 0.3. For k1 the sum over tokens is the same, for k2 and k3 it is not."""
    first, second = BETA * VALUES[estimator](-0.1), BETA * VALUES[estimator](0.3)
    wanted = [[0.0, 0.0, 1.0 - first], [-2.0 - second, 0.0, 0.0]]
    close(penalized(estimator, "reward", level="sequence").token_rewards(two_rows()), wanted)
    by_token = penalized(estimator, "reward").prepare(two_rows()).credit[0, 0].item()
    assert (abs(by_token - (1.0 - first)) < 1e-12) == (estimator is k1)


def test_of_a_sequence_in_the_reward_it_stands_on_the_last_token_that_was_sampled():
    """A tool's token in between and one at the end: 0.2 + 0.1 on the third of four."""
    batch = rollouts([[1, 0, 1, 0]], [1.0])
    own = batch.behaviour_logprobs
    batch = annotated(batch, reference_logprobs=own - f64([[0.2, 5.0, 0.1, 5.0]]))
    close(penalized(k1, "reward", level="sequence").token_rewards(batch), [[0.0, 0.0, 1.0 - BETA * 0.3, 0.0]])


# --- in the loss ---------------------------------------------------------------------------------------------------


@ESTIMATORS
def test_of_a_sequence_in_the_loss_it_counts_once_a_sequence(estimator):
    """½ (k(−0.1) + k(0.3)) β, whatever the lengths; every token of a sequence has the same slope."""
    batch = two_rows()
    value, slope = value_and_slope(
        penalized(estimator, "loss", level="sequence"), batch, batch.old_logprobs.tolist()
    )
    k, d = VALUES[estimator], SLOPES[estimator]
    assert value == pytest.approx(BETA * (k(-0.1) + k(0.3)) / 2, abs=1e-12)
    close(slope, [[BETA * d(-0.1) / 2] * 3, [BETA * d(0.3) / 2, 0.0, 0.0]])


MOVED = [[-0.8, -1.1, -1.0], [-1.3, 0.0, 0.0]]  # the policy after some updates: ρ = e^0.2, e^−0.1, 1 | e^−0.3
STEPS = [[0.2, -0.1, 0.0], [-0.3]]


@ESTIMATORS
def test_against_old_it_is_the_divergence_of_old_from_the_policy(estimator):
    """KL(old‖policy), sampled from old: l = log π_old/π = −log ρ, and its slope has the opposite sign."""
    method = penalized(estimator, "loss", against="old")
    value, slope = value_and_slope(method, two_rows(), MOVED)
    k, d = VALUES[estimator], SLOPES[estimator]
    assert value == pytest.approx(BETA * sum(k(-x) for row in STEPS for x in row) / 2, abs=1e-12)
    wanted = [[-BETA * d(-x) / 2 for x in row] + [0.0] * (3 - len(row)) for row in STEPS]
    close(slope, wanted)
    # As a value k3 is ρ − 1 − log ρ and not its mirror image: the order of the arguments is that of the divergence.
    if estimator is k3:
        mirror = BETA * sum(k(x) for row in STEPS for x in row) / 2
        assert abs(value - mirror) > 1e-4


def test_before_the_first_update_a_penalty_on_the_step_is_nothing():
    batch = two_rows()
    for estimator in (k2, k3):
        value, slope = value_and_slope(
            penalized(estimator, "loss", against="old"), batch, batch.old_logprobs.tolist()
        )
        assert value == 0.0
        assert not slope.any()


@ESTIMATORS
@pytest.mark.parametrize("weight", ["detached", "live"])
def test_an_importance_weight_multiplies_each_token(estimator, weight):
    """ρ k. Live, its own slope is added: ρ (k + k′); detached ρ k′. With k1 that is l + 1 against 1."""
    value, slope = value_and_slope(penalized(estimator, "loss", weight=weight), two_rows(), MOVED)
    k, d = VALUES[estimator], SLOPES[estimator]
    total, wanted = 0.0, [[0.0] * 3, [0.0] * 3]
    for row, (steps, ratios) in enumerate(zip(STEPS, RATIOS, strict=True)):
        for t, (step, ratio) in enumerate(zip(steps, ratios, strict=True)):
            x, rho = ratio + step, math.exp(step)  # log π/π_ref after the updates
            total += BETA * rho * k(x) / 2
            wanted[row][t] = BETA * rho * (d(x) + (k(x) if weight == "live" else 0.0)) / 2
    assert value == pytest.approx(total, abs=1e-12)
    close(slope, wanted)


@ESTIMATORS
@pytest.mark.parametrize("weight", ["detached", "live"])
def test_an_importance_weight_of_a_sequence_is_the_product_of_its_tokens(estimator, weight):
    """ρ = e^0.1 and e^−0.3 of the whole; l = −0.1 + 0.1 and 0.3 − 0.3 after the updates plus what was shifted."""
    reference = two_rows().reference_logprobs - 0.05
    batch = replace(two_rows(), reference_logprobs=reference)
    method = penalized(estimator, "loss", level="sequence", weight=weight)
    value, slope = value_and_slope(method, batch, MOVED)
    k, d = VALUES[estimator], SLOPES[estimator]
    total, wanted = 0.0, []
    for step, x, length in ((0.1, 0.0 + 0.15, 3), (-0.3, 0.0 + 0.05, 1)):
        rho = math.exp(step)
        total += BETA * rho * k(x) / 2
        one = BETA * rho * (d(x) + (k(x) if weight == "live" else 0.0)) / 2
        wanted.append([one] * length + [0.0] * (3 - length))
    assert value == pytest.approx(total, abs=1e-12)
    close(slope, wanted)


def test_a_weight_without_old_logprobs_is_refused():
    method = penalized(k1, "loss", weight="live")
    batch = replace(two_rows(), old_logprobs=None)
    prepared = method.prepare(batch)
    with pytest.raises(InvalidInput, match="importance weight needs old log-probs"):
        method.loss(leaf(MOVED), prepared, method.weights(prepared.mask))


@pytest.mark.parametrize(
    "settings", [{"against": "old"}, {"weight": "live"}, {"weight": "detached"}], ids=lambda s: str(s)
)
def test_what_can_only_be_a_mistake_in_the_reward_is_refused(settings):
    with pytest.raises(InvalidInput, match="a KL in the reward is a constant"):
        KLPenalty(k1, "reward", 0.1, **settings)


def test_needs_name_what_a_penalty_reads():
    assert penalized(k1, "reward").needs == {"reference"}
    assert penalized(k3, "loss", against="old").needs == {"old"}
    assert penalized(k1, "loss", weight="live").needs == {"reference", "old"}
    assert replace(PLAIN, kl=KLPenalty(k1, "loss", 0.0, weight="live")).needs == frozenset()


# --- coefficients --------------------------------------------------------------------------------------------------


def test_the_coefficient_as_it_stands():
    controllers = (AdaptiveKL(0.2, target=6.0, horizon=1e4), DoublingKL(0.2, target=6.0))
    for coefficient in (0.2, *controllers):
        penalty = KLPenalty(k1, "reward", coefficient)
        assert penalty.beta == 0.2
        assert penalty.with_coefficient(0.7).beta == 0.7
    for coefficient in controllers:
        kept = KLPenalty(k1, "reward", coefficient).with_coefficient(0.7).coefficient
        assert kept == replace(coefficient, coefficient=0.7)


def test_each_controller_follows_its_own_rule():
    """Ziegler: 0.2 (1 + 0.2 · 256/10⁴) at twice the target. Schulman: twice 0.2 there. A number stays."""
    adaptive = KLPenalty(k1, "reward", AdaptiveKL(0.2, target=6.0, horizon=1e4)).after(12.0, 256)
    assert adaptive.beta == pytest.approx(0.201024, abs=1e-12)
    assert KLPenalty(k3, "loss", DoublingKL(0.2, target=6.0)).after(12.0, 256).beta == 0.4
    assert KLPenalty(k3, "loss", 0.2).after(12.0, 256).beta == 0.2


def test_a_steered_coefficient_multiplies_the_penalty():
    steered = replace(PLAIN, kl=KLPenalty(k1, "reward", DoublingKL(BETA, target=1.0)))
    close(steered.token_rewards(two_rows()), penalized(k1, "reward").token_rewards(two_rows()))
    later = steered.after(two_rows(), kl=9.0)
    close(later.token_rewards(two_rows())[1], [-2.0 - 2 * BETA * 0.3, 0.0, 0.0])


@pytest.mark.parametrize(
    ("name", "word"),
    [("placement", "rewards"), ("against", "ref"), ("level", "seq"), ("weight", "Live"), ("weight", "none")],
)
def test_a_word_that_a_penalty_does_not_know_is_refused(name, word):
    with pytest.raises(InvalidInput, match=f"the {name} of a KL penalty is one of .* got '{word}'"):
        KLPenalty(**({"estimator": k1, "placement": "loss", "coefficient": 0.1} | {name: word}))


@pytest.mark.parametrize("beta", [math.inf, math.nan, -0.1])
def test_a_coefficient_is_a_finite_number(beta):
    with pytest.raises(InvalidInput, match="finite and ≥ 0"):
        KLPenalty(k1, placement="reward", coefficient=beta)
