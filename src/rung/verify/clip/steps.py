"""What a clip does over many steps on one batch: it stops pushing a token, and does not hold it."""

from dataclasses import dataclass

import numpy as np
import torch

from rung.exact.token_mdp import FloatArray
from rung.kl import kl_divergence
from rung.verify.clip.cells import CLIPS, Clip
from rung.verify.clip.claims import LEAST_RATIO, OLD_POLICY, REWARDS
from rung.verify.findings import Chart, Line, Table

STEPS, RATE = 400, 4.0
SHOWN = (0, 1, 10, 50, 100, 200, 400)
RATES = (1.0, 10.0, 100.0)
COMPARED = ("no clip", "clip 0.2", "dual clip 3")


@dataclass(frozen=True)
class Path:
    """Logits [steps + 1, arms] of repeated steps on one batch."""

    logits: FloatArray

    def ratios(self) -> FloatArray:
        """[steps + 1, arms] π/π_old."""
        policy = torch.from_numpy(self.logits).softmax(-1).numpy()
        found: FloatArray = policy / np.array(OLD_POLICY)
        return found


def _credit() -> FloatArray:
    """A = R − J(π_old) of each arm."""
    rewards: FloatArray = np.array(REWARDS) - np.dot(REWARDS, OLD_POLICY)
    return rewards


def climb(clip: Clip, *, steps: int = STEPS, rate: float = RATE) -> Path:
    """Gradient steps on E_old[−loss] by rung's loss: every arm is in the batch, with its probability."""
    old = torch.tensor([OLD_POLICY], dtype=torch.float64)
    credit, mask = torch.from_numpy(_credit()).unsqueeze(0), torch.ones(1, 3, dtype=torch.bool)
    logits = old.log()
    path = [logits]
    for _ in range(steps):
        leaf = logits.clone().requires_grad_()
        loss = (old * clip.loss(leaf.log_softmax(-1), old.log(), credit, mask)).sum()
        (slope,) = torch.autograd.grad(loss, leaf)
        logits = logits - rate * slope
        path.append(logits)
    return Path(torch.cat(path).numpy())


def climb_by_hand(clip: Clip, *, steps: int = STEPS, rate: float = RATE) -> Path:
    """The same by the pieces: d/d logits = Σ_a π_old(a) slope_a (e_a − π)."""
    old, credit = np.array(OLD_POLICY), _credit()
    logits = np.log(old)
    path = [logits]
    for _ in range(steps):
        policy = np.exp(logits) / np.exp(logits).sum()
        slopes = np.array([clip.piece(r, a).slope for r, a in zip(policy / old, credit, strict=True)])
        logits = logits + rate * (old * slopes - policy * (old @ slopes))
        path.append(logits)
    return Path(np.array(path))


def steps() -> tuple[list[Table], list[Chart], list[str]]:
    """How far ρ goes, with and without a clip."""
    paths = {name: climb(CLIPS[name]) for name in COMPARED}
    ratios = {name: path.ratios() for name, path in paths.items()}
    first, wrong_first = _first_step()
    every = range(0, STEPS + 1, 10)
    chart = Chart(
        "The largest ρ over steps on one batch",
        "step",
        "max ρ",
        tuple(
            Line(name, tuple(map(float, every)), tuple(float(r[k].max()) for k in every))
            for name, r in ratios.items()
        ),
    )
    return [_by_step(paths, ratios), first], [chart], [*_faults(paths, ratios), *wrong_first]


def _faults(paths: dict[str, Path], ratios: dict[str, FloatArray]) -> list[str]:
    failures = []
    for name, path in paths.items():
        off = float(np.abs(path.logits - climb_by_hand(CLIPS[name]).logits).max())
        if off > 1e-9:
            failures.append(f"{name}: after {STEPS} steps the logits are off those by hand by {off:.3g}")
    far = float(ratios["clip 0.2"][-1].max())
    if far < LEAST_RATIO:
        failures.append(f"with the clip the largest ratio should pass {LEAST_RATIO:g}, and is {far:.3f}")
    if max(float(np.abs(r @ np.array(OLD_POLICY) - 1).max()) for r in ratios.values()) > 1e-12:
        failures.append("E_old[ρ] should be 1 at every step")
    return failures


def _by_step(paths: dict[str, Path], ratios: dict[str, FloatArray]) -> Table:
    old = torch.tensor(OLD_POLICY, dtype=torch.float64).log()

    def divergence(step: int) -> float:
        return float(kl_divergence(old, torch.from_numpy(paths["clip 0.2"].logits[step])))

    return Table(
        "Steps on one batch: π_old = (.05, .9, .05), R = (1, 0, 0)",
        ("step", "max ρ: no clip", "clip 0.2", "dual clip 3", "E_old[ρ]", "KL(old‖π)"),
        tuple(
            (
                step,
                *(float(ratios[name][step].max()) for name in COMPARED),
                float(ratios["clip 0.2"][step] @ np.array(OLD_POLICY)),
                divergence(step) if step else 0.0,
            )
            for step in SHOWN
        ),
        note="The clip stops pushing a token and does not hold it: what the usual arm loses goes to the others. "
        "The last two columns are those of clip 0.2: the mean ratio is 1 wherever the policy is, and measures no "
        "divergence.",
    )


def _first_step() -> tuple[Table, list[str]]:
    rows, failures = [], []
    for rate in RATES:
        free, cut = (climb(CLIPS[name], steps=1, rate=rate).ratios()[-1] for name in COMPARED[:2])
        rows.append((rate, float(free.max()), float(cut.max())))
        if np.abs(free - cut).max() > 1e-12:
            failures.append(f"the first step of rate {rate:g} should be the same with and without a clip")
    table = Table(
        "The first step of them, by learning rate",
        ("learning rate", "max ρ: no clip", "clip 0.2"),
        tuple(rows),
        note="At ρ = 1 nothing is clipped: one step goes as far as the learning rate takes it.",
    )
    return table, failures
