"""Trust regions: the step of TRPO to its last place, its constant derived, and the settings that papers print.

The other numbers of trust regions are held by
    F⁺g = A − mean A, ∇J of the bandit
        tests/test_trust_region.py::test_the_natural_gradient_of_a_bandit_is_its_advantage
        tests/exact/test_improvement.py::test_the_natural_gradient_of_toy_a_is_its_advantage
    the step and its divergence, by the oracle
        tests/exact/test_improvement.py::test_the_step_of_toy_a_for_a_radius_of_a_hundredth
    the surrogate, J(π) − J(μ)
        tests/exact/test_improvement.py::test_the_surrogate_of_toy_c_is_the_token_ratio_gradient
        tests/exact/test_improvement.py::test_performance_difference_lemma
    the bound as it is stated, and that it holds
        tests/exact/test_improvement.py::test_the_bound_spelled_out_for_toy_c
        tests/exact/test_improvement.py::test_the_bound_holds_and_is_not_empty
    β doubled and halved
        tests/kl/test_controllers.py::test_the_edges_of_the_band_are_inside
"""

import math

import numpy as np
import pytest

from rung import exact
from rung.methods import CATALOGUE, TrainingBatch
from rung.methods.method import clip_bounds
from rung.trust_region import TrustRegion, trust_region_step
from tests.batches import close, f64, flags, gradient
from tests.methods.helpers import build, loss_of
from tests.toys import A_OBJECTIVE_GRADIENT, A_REWARDS, PI_ROWS, TOY_C, TOY_LONG, assert_digits

# --- the step --------------------------------------------------------------------------------------------------------


def test_recorded_step_of_toy_a():
    """δ = .01 on F⁺g = (½, −½, 0): .428242209120 times it, and KL(old‖new) then .009888682047."""
    logits, rewards = f64(PI_ROWS[0]), f64(list(A_REWARDS.values()))
    p = logits.softmax(-1)
    slope = p * (rewards - p @ rewards)
    assert_digits(slope, A_OBJECTIVE_GRADIENT, 10)

    def evaluate(step):
        new = (logits + step).softmax(-1)
        return -float(new @ rewards), float(p @ (p / new).log())

    taken = trust_region_step(
        -slope, lambda v: p * v - p * (p @ v), evaluate, TrustRegion(max_kl=0.01, damping=0.0)
    )
    assert_digits(taken.step / f64([0.5, -0.5, 1.0]), [0.428242209120, 0.428242209120, 0.0], 12)
    assert_digits(taken.kl, 0.009888682047, 12)


# --- the constant ----------------------------------------------------------------------------------------------------


def visits_at(mdp, policy, t):
    """Pr(s_t = s) where an action is chosen at time t."""
    found = {}
    for tau, p in exact.distribution(mdp, policy):
        if tau.length > t:
            prefix = tau.steps[t][0]
            found[prefix] = found.get(prefix, 0.0) + p
    return found


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("gamma", [0.5, 0.9])
@pytest.mark.parametrize("toy", [TOY_C, TOY_LONG], ids=["C", "LONG"])
def test_the_constant_of_the_bound_step_by_step(toy, gamma, share):
    """J(π) − L_μ(π) = Σ_t γ^t (E_{s_t~π} − E_{s_t~μ})[Ā(s_t)],  Ā(s) = Σ_a π(a|s) A^μ(s,a),  and with α = max TV

        |Ā(s)| = |Σ_a (π − μ)(a|s) A^μ(s,a)| ≤ 2αε        the two meet at s_t unless they have parted before: the
        |E_π − E_μ| ≤ 2 (1 − (1−α)^t) · 2αε               chance of that is at most 1 − (1−α)^t
        Σ_t γ^t 4αε (1 − (1−α)^t) = 4εγα²/((1−γ)(1−γ(1−α))) ≤ 4εγ/(1−γ)² · α²

    Schulman et al. 2015, 1502.05477, theorem 1; for equation 9 TV² ≤ KL(μ‖π) stands in the place of α². Each line is
    held here, at every t; the last is an equality in the limit of small α, so that no smaller constant follows.
    """
    mdp, behaviour = toy.mdp, toy.behaviour
    policy = behaviour.with_parameters(
        share * np.array(toy.policy.parameters) + (1 - share) * np.array(behaviour.parameters)
    )
    gains = exact.advantages(mdp, behaviour, gamma=gamma)
    mean = {s: float(np.exp(exact.evaluate(policy, s)[0]) @ a) for s, a in gains.items()}
    alpha = max(exact.total_variation(policy, behaviour, s) for s in mdp.prefixes())
    epsilon = max(np.abs(a).max() for a in gains.values())
    for prefix, gain in mean.items():
        variation = exact.total_variation(policy, behaviour, prefix)
        assert abs(gain) <= 2 * variation * np.abs(gains[prefix]).max() + 1e-15
    total = 0.0
    for t in range(mdp.max_length):
        ours, theirs = (visits_at(mdp, chosen, t) for chosen in (policy, behaviour))
        gap = sum(p * mean[s] for s, p in ours.items()) - sum(p * mean[s] for s, p in theirs.items())
        assert abs(gap) <= 4 * alpha * epsilon * (1 - (1 - alpha) ** t) + 1e-15
        assert (abs(gap) > 1e-6) == (t > 0)
        total += gamma**t * gap
    bound = exact.trust_region_bound(mdp, policy, behaviour, gamma=gamma)
    assert exact.objective(mdp, policy, gamma=gamma) - bound.surrogate == pytest.approx(total, abs=1e-14)
    assert bound.epsilon == pytest.approx(epsilon, abs=1e-15)
    assert bound.constant == pytest.approx(4 * epsilon * gamma / (1 - gamma) ** 2, abs=1e-12)
    assert bound.by_total_variation == pytest.approx(bound.surrogate - bound.constant * alpha**2, abs=1e-12)
    for a in (alpha, 1e-4):
        series = sum(gamma**t * 4 * a * epsilon * (1 - (1 - a) ** t) for t in range(2000))
        closed = 4 * epsilon * gamma * a**2 / ((1 - gamma) * (1 - gamma * (1 - a)))
        assert series == pytest.approx(closed, abs=1e-12)
        assert closed <= bound.constant * a**2
    assert closed > 0.999 * bound.constant * a**2


# --- settings that are printed ---------------------------------------------------------------------------------------


def at_ratio(name, ratio, credit):
    """The loss of one token of a given ratio and credit, and its slope by log π."""
    batch = TrainingBatch(flags([[1]]), f64([[credit]]), old_logprobs=f64([[-1.0]]))
    policy = f64([[-1.0 + math.log(ratio)]]).requires_grad_()
    loss = loss_of(build(name, kl_coefficient=0.0), policy, batch, f64([[1.0]]))
    return loss.item(), gradient(loss, policy).item()


def test_settings_of_the_papers_are_the_defaults():
    """PPO .2; DAPO .2, .28; dual clip 3; GSPO 3e-4, 4e-4; CISPO holds ρ at 5, TIS at 2; TRPO as common code has it."""
    assert CATALOGUE["trpo"]().update == TrustRegion(
        max_kl=0.01, damping=0.1, iterations=10, backtracks=10, shrink=0.8
    )
    assert clip_bounds(build("ppo-loo")) == clip_bounds(build("grpo")) == (0.8, 1.2)
    assert clip_bounds(build("dapo")) == (0.8, 1.28)
    for name, ratio, credit, expected in (
        ("dual-clip", 2.9, -1.0, (2.9, 2.9)),
        ("dual-clip", 3.1, -1.0, (3.0, 0.0)),
        ("gspo", 1.00039, 1.0, (-1.00039, -1.00039)),
        ("gspo", 1.00041, 1.0, (-1.0004, 0.0)),
        ("gspo", 0.99971, -1.0, (0.99971, 0.99971)),
        ("gspo", 0.99969, -1.0, (0.9997, 0.0)),
    ):
        assert at_ratio(name, ratio, credit) == pytest.approx(expected, abs=1e-12)
    for ratio, weight in ((4.9, 4.9), (5.1, 5.0)):
        assert at_ratio("cispo", ratio, 1.0)[1] == pytest.approx(-weight, abs=1e-12)
    for ratio, weight in ((1.9, 1.9), (2.1, 2.0)):
        arguments = f64([[math.log(ratio)]]), f64([[0.0]]), flags([[1]])
        close(build("rloo-corrected").correction(*arguments), [[weight]])
