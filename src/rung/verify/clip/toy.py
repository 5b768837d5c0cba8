"""Clipped objectives and importance ratios on every sequence of toy C, sampled by another policy."""

from functools import partial

import numpy as np
import torch

from rung.aggregation import sequence_mean
from rung.exact import advantages, objective, objective_gradient, surrogate_objective
from rung.policy_losses import (
    clipped_loss,
    importance_weighted_loss,
    policy_gradient_loss,
    sequence_clipped_loss,
)
from rung.verify.clip.cells import CLIPS, SequenceLoss, Surrogate, of_tokens, surrogate
from rung.verify.clip.claims import OBJECTIVES
from rung.verify.findings import Chart, Line, Table
from rung.verify.kl.cells import whole_ratio_loss
from rung.verify.problems import Problem, moved, one_prompt

CLIPPED = "token ratios, clip 0.2, Ψ = A of μ"
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)  # of the way from μ to π


def advantages_of_sampler(problem: Problem) -> torch.Tensor:
    """[N, T] A of μ at each token of each sequence, 0 after each end."""
    mdp, sampler, _ = problem.oracles(problem.behaviour)[0]
    table = advantages(mdp, sampler)
    out = torch.zeros(len(problem.sequences), problem.max_length, dtype=torch.float64)
    for i, s in enumerate(problem.sequences):
        for t, token in enumerate(s.tokens):
            out[i, t] = float(table[s.tokens[:t]][token])
    return out


def family(problem: Problem) -> dict[str, Surrogate]:
    """The objectives of `OBJECTIVES`, by rung."""
    mdp, sampler, _ = problem.oracles(problem.behaviour)[0]
    credit, clip = advantages_of_sampler(problem), CLIPS["clip 0.2"].loss
    returns = torch.tensor([[s.reward] for s in problem.sequences], dtype=torch.float64)
    centered = (returns - objective(mdp, sampler)).expand_as(credit)
    whole = partial(sequence_clipped_loss, clip_low=0.2, clip_high=0.2)
    return {
        "clip 0.2": surrogate(problem, clip, credit),
        "dual clip 1.5": surrogate(problem, of_tokens(partial(clipped_loss, dual_clip=1.5)), credit),
        "negated, clip 0.2": surrogate(problem, clip, -credit),
        "negated, clip 0.2/0.28": surrogate(
            problem, of_tokens(partial(clipped_loss, clip_high=0.28)), -credit
        ),
        "sequence clip 0.2": surrogate(problem, whole, centered, sequence_mean),
    }


def objectives() -> tuple[Table, list[str]]:
    """The PPO family's objectives on the samples of μ, beside recorded values."""
    problem = one_prompt()
    mdp, sampler, _ = problem.oracles(problem.behaviour)[0]
    found = family(problem)
    failures = [
        f"{name}: the objective on toy C is {found[name].value:.12f}, recorded {value:.12f}"
        for name, value in OBJECTIVES.items()
        if abs(found[name].value - value) > 1e-12
    ]
    exact = surrogate_objective(mdp, problem.policy, sampler)
    wanted = exact.value - objective(mdp, sampler)
    free = surrogate(problem, CLIPS["no clip"].loss, advantages_of_sampler(problem))
    off = max(abs(free.value - wanted), float(np.abs(free.gradient - exact.gradient).max()))
    if off > 1e-10:
        failures.append(f"no clip: it is off the surrogate of conservative policy iteration by {off:.3g}")
    rows = [("no clip", free.value, wanted)]
    rows += [(name, found[name].value, value) for name, value in OBJECTIVES.items()]
    return (
        Table(
            "E_μ[Σ_t −loss] on two tokens at most, exact advantages of μ",
            ("objective", "rung", "recorded"),
            tuple((name, f"{value:.12f}", f"{recorded:.12f}") for name, value, recorded in rows),
            note="negated: all rewards times −1, so that the other arms are met. sequence clip: one ratio a sequence, "
            "credit R − J(μ), mean over each sequence. no clip: beside the surrogate of conservative policy "
            "iteration, less J(μ).",
        ),
        failures,
    )


def corrections() -> tuple[Table, Chart, list[str]]:
    """What each ratio makes of samples of μ, beside ∇J of π."""
    losses: dict[str, SequenceLoss] = {
        "no ratio": lambda policy, old, credit, mask: policy_gradient_loss(policy, credit),
        "token ratios": of_tokens(importance_weighted_loss),
        CLIPPED: CLIPS["clip 0.2"].loss,
        "the sequence's ratio": whole_ratio_loss,
    }
    problems = [moved(one_prompt(), share) for share in SHARES]
    off: dict[str, list[float]] = {name: [] for name in losses}
    cosines: dict[str, float] = {}
    for problem in reversed(problems):  # the farthest one last
        target = objective_gradient(problem.prompts[0][1], problem.policy)
        returns = torch.tensor([[s.reward] for s in problem.sequences], dtype=torch.float64)
        for name, loss in losses.items():
            whole = returns.expand(-1, problem.max_length)
            credit = advantages_of_sampler(problem) if name == CLIPPED else whole
            g = surrogate(problem, loss, credit).gradient
            off[name].append(float(np.linalg.norm(g - target) / np.linalg.norm(target)))
            cosines[name] = float(g @ target / np.linalg.norm(g) / np.linalg.norm(target))
    failures = []
    if (most := max(off["the sequence's ratio"])) > 1e-10:
        failures.append(f"the sequence's ratio should be exact, and is off by {most:.3g}")
    if (least := min(off["token ratios"])) < 1e-3:
        failures.append(f"token ratios should leave a bias off policy; it is {least:.3g}")
    distances = tuple(problem.distance() for problem in reversed(problems))
    return (
        Table(
            "Samples of μ, Ψ = R unless said otherwise, beside ∇J of π",
            ("correction", "rel. bias", "cosine"),
            tuple(
                (name, values[-1] if values[-1] > 1e-10 else 0.0, cosines[name])
                for name, values in off.items()
            ),
            note="A token's ratio corrects the token; the prefixes, and what follows, are still μ's. Only the ratio of "
            "the whole sequence makes all of them π's.",
        ),
        Chart(
            "Samples of μ: how far from ∇J of π",
            "KL(μ‖π), nats a sequence",
            "|g − ∇J| / |∇J|",
            tuple(Line(name, distances, tuple(values)) for name, values in off.items()),
        ),
        failures,
    )
