"""`rung verify credit`: every claim holds, the digits are the recorded ones, and a wrong number becomes a sentence."""

import numpy as np
import pytest

from rung import exact
from rung.verify.credit import cells, oracle
from rung.verify.credit import claims as claimed
from rung.verify.credit.cells import BATCH, SINGLE, Bench, Rows, discounted
from rung.verify.credit.facts import RARE, rare_token
from rung.verify.credit.gae_curves import LAMBDAS, SIZES, Curve, curves
from rung.verify.credit.tables import BENCHES, examine, reader_of, survey
from rung.verify.findings import Findings
from rung.verify.problems import one_prompt
from rung.verify.three_tokens import three_tokens
from tests.toys import (
    C_ALIVE_MEAN_FACTORS,
    C_BEST_CONSTANT_BASELINE,
    C_BEST_STATE_BASELINE,
    C_BIAS_WITHOUT_DISCOUNT_WEIGHT,
    C_OBJECTIVE,
    C_OBJECTIVE_GRADIENT,
    C_STANDARDIZED,
    C_STANDARDIZED_COSINES,
    C_TRACE_A,
    C_TRACE_BEST_CONSTANT_BASELINE,
    C_TRACE_GAE_HALF,
    C_TRACE_Q,
    C_TRACE_Q_LESS_BEST_STATE_BASELINE,
    C_TRACE_RETURN,
    C_TRACE_RETURN_LESS_J,
    C_TRACE_TO_GO_LESS_V,
    C_WRONG_CRITIC_BIAS,
    TOY_LONG,
    assert_digits,
)

C, LONG = Bench(one_prompt()), Bench(three_tokens())


@pytest.fixture(scope="module")
def findings():
    return survey()


def gradient_of_j(bench):
    mdp, policy, _ = bench.problem.oracles()[0]
    return exact.objective_gradient(mdp, policy, gamma=bench.gamma)


def test_every_claim_holds(findings):
    assert isinstance(findings, Findings)
    assert findings.failures == ()


def test_tables_and_charts_are_regular(findings):
    for table in findings.tables:
        assert all(len(row) == len(table.columns) for row in table.rows), table.title
    assert len(findings.charts) == 4
    for chart in findings.charts:
        assert all(line.x == LAMBDAS and len(line.y) == len(LAMBDAS) for line in chart.lines)
        assert not chart.log_y or min(min(line.y) for line in chart.lines) > 0.0


def test_every_claimed_credit_is_measured_and_defined():
    assert set(claimed.SINGLE) == set(SINGLE) == set(oracle.SINGLE)
    assert set(claimed.BATCH) == set(BATCH) == set(oracle.BATCH)
    assert set(claimed.DISCOUNTED) == set(discounted(0.9))


def test_the_longer_problem_rewards_steps_too():
    """As the toy of three tokens has them: return so far and return to go differ."""
    for i, s in enumerate(LONG.problem.sequences):
        recorded = TOY_LONG.mdp.rewards(s.tokens)
        np.testing.assert_array_equal(LONG.rows.rewards[i, : len(s.tokens)].numpy(), recorded)
        assert not LONG.rows.mask[i, len(s.tokens) :].any()


def test_a_wrong_claim_becomes_a_sentence():
    x = reader_of(C)
    claims = {"TD residual, wrong V": "unbiased", "A": "turned", "Q": "times 1 − 1/B"}
    _, failures = examine(C, SINGLE, lambda name: oracle.of_sequence(x, oracle.SINGLE[name]), claims, 1)
    assert len(failures) == 3
    assert failures[0].startswith('TD residual, wrong V, B = 1: it is said to be "unbiased"')
    assert failures[1] == "A, B = 1: it is said to turn the gradient, and is a multiple of it"
    assert failures[2].startswith('Q, B = 1: it is said to be "times 1 − 1/B"')


def test_a_wrong_definition_becomes_a_sentence():
    x = reader_of(C)
    other = oracle.of_sequence(x, oracle.SINGLE["Q"])
    _, failures = examine(C, SINGLE, lambda name: other, {"A": "unbiased"}, 1)
    assert len(failures) == 1
    assert failures[0].startswith(
        "A, B = 1: its covariance has trace 0.167789196; by its definition 0.2340496"
    )


# --- recorded digits -----------------------------------------------------------------------------------------------


def test_digits_of_single_sequences():
    for name, trace in (
        ("R(τ), total return", C_TRACE_RETURN),
        ("R − J", C_TRACE_RETURN_LESS_J),
        ("R − best constant", C_TRACE_BEST_CONSTANT_BASELINE),
        ("R − R(greedy)", C_TRACE_RETURN),  # the greedy sequence is worth 0
        ("G_t − V", C_TRACE_TO_GO_LESS_V),
        ("Q", C_TRACE_Q),
        ("A", C_TRACE_A),
        ("Q − best b(s)", C_TRACE_Q_LESS_BEST_STATE_BASELINE),
        ("TD residual, exact V", C_TRACE_A),
        ("GAE(0.5), exact V", C_TRACE_GAE_HALF),
    ):
        found = C.moments(SINGLE[name], 1)
        assert_digits(found.trace, trace, 10)
        assert_digits(found.ascent, C_OBJECTIVE_GRADIENT, 10)
    assert_digits(C.constants["best"], C_BEST_CONSTANT_BASELINE, 12)
    assert_digits(C.constants["J"], C_OBJECTIVE, 12)
    for prefix, value in C_BEST_STATE_BASELINE.items():
        assert_digits(C.best_state[prefix], value, 10)


def test_digits_of_a_wrong_critic():
    for lam, largest in C_WRONG_CRITIC_BIAS.items():
        found = C.moments(lambda x, lam=lam: x.gae("wrong", lam), 1)
        assert_digits(np.abs(found.ascent - C_OBJECTIVE_GRADIENT).max(), largest, 9)


def test_digits_of_discounting():
    bench = Bench(one_prompt(), 0.9)
    off = bench.moments(discounted(0.9)["G_t"], 1).ascent - gradient_of_j(bench)
    assert_digits(np.abs(off).max(), C_BIAS_WITHOUT_DISCOUNT_WEIGHT, 10)


@pytest.mark.parametrize("size", [2, 3])
def test_digits_of_a_mean_at_each_step(size):
    """The first row of parameters is the first step, the other two are the second."""
    found = C.moments(BATCH["G_t − step mean"], size).ascent
    first, second = C_ALIVE_MEAN_FACTORS[size]
    assert_digits(found[:3], first * C_OBJECTIVE_GRADIENT[:3], 10)
    assert_digits(found[3:], second * C_OBJECTIVE_GRADIENT[3:], 10)


def test_digits_of_standardizing():
    found = C.moments(BATCH["group-standardized"], 2).ascent
    assert_digits(found, C_STANDARDIZED / np.sqrt(2.0), 10)
    for size, cosine in C_STANDARDIZED_COSINES.items():
        g, target = C.moments(BATCH["group-standardized"], size).ascent, gradient_of_j(C)
        assert_digits(g @ target / np.linalg.norm(g) / np.linalg.norm(target), cosine, 8)


# --- what is said beside the tables --------------------------------------------------------------------------------


def traces(bench):
    return {name: bench.moments(credit, 1).trace for name, credit in SINGLE.items()}


@pytest.mark.parametrize("bench", [C, LONG], ids=["C", "LONG"])
def test_the_advantage_is_not_the_quietest(bench):
    found = traces(bench)
    assert found["Q − best b(s)"] < 0.9 * found["A"]
    assert found["R − best constant"] < min(found[f"R − {b}"] for b in ("J", "constant 0.5", "R(greedy)"))


def test_less_variance_is_no_law():
    """On three tokens the return to go scatters more than the total, and J as a baseline more than none."""
    found = traces(LONG)
    assert found["G_t, reward-to-go"] > found["R(τ), total return"] + 1e-4
    assert found["R − J"] > found["R(τ), total return"] + 0.05


def test_the_mean_as_a_baseline_by_hand():
    """E[(R − b)² |S|²] − |∇J|² with .9 · .02 and .1 · 1.62: 0.018, 0.1314 and 0.0162, less 0.0162."""
    for baseline, trace in RARE.values():
        by_hand = 0.9 * (1 - baseline) ** 2 * 0.02 + 0.1 * baseline**2 * 1.62 - 0.0162
        assert trace == pytest.approx(by_hand, abs=1e-15)
        found = Bench(rare_token()).moments(lambda x, b=baseline: x.returns - b, 1).trace
        assert found == pytest.approx(by_hand, abs=1e-15)


# --- λ -------------------------------------------------------------------------------------------------------------


def test_on_two_tokens_bias_is_linear_and_variance_quadratic_in_lambda():
    """A_0 = δ_0 + λ δ_1 and A_1 = δ_1: the estimate is linear in λ, hence its variance a parabola."""
    for critic, curve in curves(C).by_critic.items():
        lam = np.array(LAMBDAS)
        np.testing.assert_allclose(curve.bias, curve.bias[0] * (1 - lam) ** 2, rtol=0, atol=1e-15)
        parabola = np.polynomial.Polynomial.fit(lam[[0, 10, 20]], np.array(curve.variance)[[0, 10, 20]], 2)
        np.testing.assert_allclose(curve.variance, parabola(lam), rtol=0, atol=1e-12)
        assert (curve.bias[0] < 1e-20) == (critic == "exact")


def test_the_error_of_a_batch_is_that_of_its_mean():
    """|bias|² + variance/B, against the second moment of a batch of two about ∇J."""
    curve = curves(C).by_critic["wrong"]
    of_two = C.moments(lambda x: Rows.gae(x, "wrong", LAMBDAS[6]), 2)
    error = float(np.sum((of_two.ascent - gradient_of_j(C)) ** 2)) + of_two.trace
    assert curve.error(2)[6] == pytest.approx(error, abs=1e-14)


def test_where_lambda_lands():
    found = curves(LONG)
    assert found.failures == ()
    exact_critic, wrong = found.by_critic["exact"], found.by_critic["wrong"]
    assert {exact_critic.best(size) for size in SIZES} == {0}
    landed = [LAMBDAS[wrong.best(size)] for size in (*SIZES, np.inf)]
    assert landed == sorted(landed)
    assert landed[0] < 0.6
    assert landed[-1] == 1.0
    assert [row[0] for row in found.table.rows] == ["1", "4", "16", "64", "256", "∞"]
    assert [row[3] for row in found.table.rows] == landed


def test_the_best_lambda_is_the_largest_of_equals():
    assert Curve((0.25, 0.0, 0.0), (1.0, 2.0, 2.0)).best(8) == 2  # 0.375, 0.25, 0.25
    assert Curve((0.25, 0.0, 0.0), (1.0, 2.0, 2.0)).best(2) == 0  # 0.75, 1, 1


def test_benches_are_the_two_problems():
    assert [len(bench.problem.sequences) for bench, _ in BENCHES.values()] == [7, 15]
    assert cells.CONSTANT == 0.5
