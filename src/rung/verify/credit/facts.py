"""What circulates about baselines and discounts and is wrong, on examples that a reader can check by hand."""

import numpy as np
import torch

from rung.credit import minus_constant, reward_to_go, total_return
from rung.exact import SoftmaxTable, TokenMDP
from rung.verify.credit.cells import Bench
from rung.verify.enumeration import Setting
from rung.verify.findings import Table
from rung.verify.problems import Problem, one_prompt

GAMMA = 0.9
# Two tokens, π = (.9, .1), R = (1, 0). |∇log π|² is .02 and 1.62, hence E[R |S|²] = .018 and E[|S|²] = .18: the best
# constant is .1, while J = .9. |∇J|² = .0162. E[(R − b)² |S|²] is .018, .1314 and .0162 for b = 0, J and .1.
RARE = {"R": (0.0, 0.0018), "R − J": (0.9, 0.1152), "R − best constant": (0.1, 0.0)}


def facts() -> tuple[list[Table], list[str]]:
    """Tables of numbers, and a sentence for each that is not what the calculation by hand says."""
    found = [_mean_as_baseline(), _variance_of_what(), _discounting()]
    return [table for table, _ in found], [failure for _, failures in found for failure in failures]


def rare_token() -> Problem:
    """One step: the usual token is worth 1, the rare one 0."""
    mdp = TokenMDP(2, end_token=None, max_length=1, reward=lambda tokens: 1.0 - tokens[0])
    policy = SoftmaxTable([()], np.log([[0.9, 0.1]]))
    return Problem((((), mdp),), policy, policy, policy, lambda prompt, prefix: 0.0)


def _mean_as_baseline() -> tuple[Table, list[str]]:
    """The mean value as a baseline raises the variance 64 times."""
    bench = Bench(rare_token())
    rows, failures = [], []
    for name, (baseline, by_hand) in RARE.items():
        trace = bench.moments(lambda x, b=baseline: minus_constant(x.returns, baseline=b), 1).trace  # type: ignore[misc]
        rows.append((name, baseline, trace if trace > 1e-12 else 0.0))
        if abs(trace - by_hand) > 1e-12:
            failures.append(f"{name} has variance {trace:.12g} on two tokens, by hand {by_hand:g}")
    if abs(bench.constants["best"] - RARE["R − best constant"][0]) > 1e-12:
        failures.append(f"the best constant is {bench.constants['best']:.12g} on two tokens, by hand 0.1")
    return (
        Table(
            "The mean value as a baseline: two tokens, π = (.9, .1), R = (1, 0)",
            ("credit Ψ", "baseline", "cov. trace"),
            tuple(rows),
            note="The best constant is E[R |S|²]/E[|S|²] with S = ∇log p(τ), here a ninth of J: the rare token has the "
            "large score.",
        ),
        failures,
    )


def _variance_of_what() -> tuple[Table, list[str]]:
    """A baseline changes the product with the score, not the scatter of G."""
    bench = Bench(one_prompt())
    chances = torch.tensor([float(p) for p in _chances(bench)], dtype=torch.float64)
    baseline = bench.constants["J"]
    whole = reward_to_go(bench.rows.rewards, bench.rows.mask)[:, 0]
    less = minus_constant(whole, baseline=baseline)
    rows: list[tuple[str, float, float]] = []
    for name, psi in (("G", whole), ("G − b", less)):
        mean = float(chances @ psi)
        rows.append((name, mean, float(chances @ (psi - mean) ** 2)))
    traces, means = [], []
    for b in (0.0, baseline):
        moments = bench.moments(lambda x, b=b: minus_constant(x.returns, baseline=b), 1)  # type: ignore[misc]
        traces.append(moments.trace)
        means.append(moments.ascent)
    failures = []
    if abs(rows[0][2] - rows[1][2]) > 1e-12 or abs(rows[0][1] - rows[1][1] - baseline) > 1e-12:
        failures.append("at one state a baseline should move the mean of G by itself and leave its variance")
    if np.abs(means[0] - means[1]).max() > 1e-12:
        failures.append("the mean of Σ Ψ ∇log π should not depend on a baseline")
    return (
        Table(
            "At the first token: what a baseline b = J changes",
            ("Ψ", "E[Ψ]", "Var[Ψ]", "|E[Ψ S]|", "cov. trace of Ψ S"),
            tuple(
                (*row, float(np.linalg.norm(mean)), trace)
                for row, mean, trace in zip(rows, means, traces, strict=True)
            ),
            note="E[G] and E[G − b] differ; equal are the means of the products with the score S. At a fixed state the "
            "variance of G itself stays; only that of the products changes.",
        ),
        failures,
    )


def _chances(bench: Bench) -> list[float]:
    return Setting(bench.problem, 1).chances


def _discounting() -> tuple[Table, list[str]]:
    """Three tokens, the last one earns 1."""
    rewards, mask = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64), torch.ones(1, 3, dtype=torch.bool)
    to_go = reward_to_go(rewards, mask, gamma=GAMMA)[0].tolist()
    total = total_return(rewards, mask, gamma=GAMMA)[0].tolist()
    failures = [
        f"token {t} of three: G_t {to_go[t]:g}, R(τ) {total[t]:g}; by hand {GAMMA ** (2 - t):g} and {GAMMA**2:g}"
        for t in range(3)
        if abs(to_go[t] - GAMMA ** (2 - t)) > 1e-12 or abs(total[t] - GAMMA**2) > 1e-12
    ]
    return (
        Table(
            f"Three tokens, the last one earns 1, γ = {GAMMA:g}",
            ("token", "γ = 1", "G_t", "γ^t G_t", "R(τ)"),
            tuple((t, 1.0, to_go[t], GAMMA**t * to_go[t], total[t]) for t in range(3)),
            note="Discounting shrinks what early tokens get for a late reward; it does not touch the last token. With "
            "γ^t all get the same, and that is the gradient of the discounted J.",
        ),
        failures,
    )
