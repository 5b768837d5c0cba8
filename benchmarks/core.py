"""How long the numeric core takes on a large batch, beside plain PyTorch, rlax, and a copy of the same bytes.

    python benchmarks/core.py                                  # prints the table
    python benchmarks/core.py --json docs/results/core.json    # and writes every time that was taken

Fixed before the first run: 512 sequences of up to 4096 tokens (lengths uniform from 2048, seed 0), groups of 8, two
threads on two processors, float64 for credit and float32 for the loss, 9 rounds in which the contestants take turns,
after two that do not count; results agree to 1e-10 (loss and gradient: 1e-5) before any clock starts.

    plain PyTorch   GAE and returns: a loop over tokens, all sequences at once; groups: a loop over groups;
                    clipped loss: the formula typed out, on whole tensors
    rlax            compiled by JAX for this processor, in an environment of its own under build/; it has no masks,
                    so that ends are discounts of 0 and padding is zeros, prepared outside the clock
    copy            `clone` of the arguments that are [B, T] or [B]

Short functions are called often enough in each round for 20 ms.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import core_plain as plain  # noqa: E402
from rung.credit import gae, group_standardized, leave_one_out, reward_to_go  # noqa: E402
from rung.masked import masked_sum, select  # noqa: E402
from rung.policy_losses import clipped_loss  # noqa: E402

ENVIRONMENT = ROOT / "build" / "rlax"
VERSIONS = ("jax==0.10.2", "rlax==0.1.9")
SEQUENCES, TOKENS, GROUP, THREADS, ROUNDS, SEED = 512, 4096, 8, 2, 9, 0
GAMMA, LAM, CLIP = 1.0, 0.95, 0.2
SHORTEST = 0.02  # seconds a round
PAUSE = 0.05  # seconds between contestants, for threads of the last one to go to sleep
Tensors = tuple[torch.Tensor, ...]
Function = Callable[[], torch.Tensor | Tensors]


# --- what is computed ------------------------------------------------------------------------------------------------


def inputs() -> dict[str, torch.Tensor]:
    """A batch like one of training: padded rows, a reward at every token, log-probabilities near the old ones."""
    generator = torch.Generator().manual_seed(SEED)
    shape = (SEQUENCES, TOKENS)
    lengths = torch.randint(TOKENS // 2, TOKENS + 1, (SEQUENCES, 1), generator=generator)
    mask = torch.arange(TOKENS) < lengths
    rewards, values, credit = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    old = -torch.rand(shape, generator=generator)
    policy = old + 0.3 * torch.randn(shape, generator=generator)
    return {
        "rewards": select(rewards, mask),
        "values": select(values, mask),
        "mask": mask,
        "returns": masked_sum(rewards, mask, dim=1),
        "groups": torch.arange(SEQUENCES) % (SEQUENCES // GROUP),
        "credit": credit.float(),
        "old": old,
        "policy": policy,
    }


@dataclass(frozen=True)
class Contest:
    """One function: ours, the plain one, the name of rlax's, and what it reads."""

    name: str
    ours: Function
    plain: Function
    rlax: str | None
    arguments: Tensors


def contests(data: dict[str, torch.Tensor]) -> list[Contest]:
    rewards, values, mask = data["rewards"], data["values"], data["mask"]
    returns, groups = data["returns"], data["groups"]
    losses = data["policy"], data["old"], data["credit"]
    bounds = {"clip_low": CLIP, "clip_high": CLIP}
    return [
        Contest(
            "gae",
            partial(gae, rewards, values, mask, gamma=GAMMA, lam=LAM),
            partial(plain.gae, rewards, values, mask, gamma=GAMMA, lam=LAM),
            "gae",
            (rewards, values, mask),
        ),
        Contest(
            "reward_to_go",
            partial(reward_to_go, rewards, mask, gamma=GAMMA),
            partial(plain.to_go, rewards, mask, gamma=GAMMA),
            "reward_to_go",
            (rewards, mask),
        ),
        Contest(
            "leave_one_out",
            partial(leave_one_out, returns, groups),
            partial(plain.groups, returns, groups, standardized=False),
            None,
            (returns, groups),
        ),
        Contest(
            "group_standardized",
            partial(group_standardized, returns, groups),
            partial(plain.groups, returns, groups, standardized=True),
            None,
            (returns, groups),
        ),
        Contest(
            "clipped_loss, with gradient",
            partial(plain.with_gradient, partial(clipped_loss, **bounds), *losses),
            partial(plain.with_gradient, partial(plain.clip, clip=CLIP), *losses),
            "clipped_loss",
            losses,
        ),
    ]


# --- rlax, in a process of its own -----------------------------------------------------------------------------------


def build() -> Path:
    """The interpreter that has rlax; installs it where it is missing.

    Raises:
        subprocess.CalledProcessError: pip could not install it.
    """
    python, done = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".rlax"
    if not (done.is_file() and done.read_text() == " ".join(VERSIONS) and python.exists()):
        print(f"installing {' '.join(VERSIONS)} into {ENVIRONMENT.relative_to(ROOT)}", file=sys.stderr)
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, *VERSIONS], check=True, capture_output=True, text=True)
        done.write_text(" ".join(VERSIONS))
    return python


class Rlax:
    """benchmarks/core_rlax.py, kept running: one line in (what, how often), one line out (seconds)."""

    def __init__(self, data: dict[str, torch.Tensor]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        for name, tensor in data.items():
            np.save(Path(self.folder.name) / f"{name}.npy", tensor.numpy())
        settings = [str(x) for x in (GAMMA, LAM, CLIP)]
        command = [str(build()), str(Path(__file__).with_name("core_rlax.py")), self.folder.name, *settings]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        self.process.communicate()
        self.folder.cleanup()

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"core_rlax.py ended when asked for {line!r}")
        return answer.strip()

    def result(self, name: str) -> Tensors:
        count = int(self.ask(f"result {name}"))
        return tuple(torch.from_numpy(np.load(Path(self.folder.name) / f"out{i}.npy")) for i in range(count))

    def seconds(self, name: str, calls: int) -> float:
        return float(self.ask(f"time {name} {calls}"))


def start_rlax(data: dict[str, torch.Tensor]) -> Rlax | None:
    try:
        return Rlax(data)
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:]
        print(f"rlax is left out: it could not be installed ({' '.join(last)})", file=sys.stderr)
        return None


# --- the clock -------------------------------------------------------------------------------------------------------


def seconds(function: Function, calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - begin) / calls


def check(contest: Contest, rlax: Rlax | None) -> None:
    """All contestants compute the same."""
    ours = contest.ours()
    others = [contest.plain()]
    if rlax is not None and contest.rlax is not None:
        found = rlax.result(contest.rlax)
        others.append(found if isinstance(ours, tuple) else found[0])
    tolerance = 1e-5 if isinstance(ours, tuple) else 1e-10
    for other in others:
        torch.testing.assert_close(other, ours, rtol=0, atol=tolerance)


def run(contest: Contest, rlax: Rlax | None) -> dict[str, list[float]]:
    """Seconds a call, by contestant, each round in turn."""
    check(contest, rlax)
    clocks: dict[str, Callable[[int], float]] = {
        "rung": partial(seconds, contest.ours),
        "plain PyTorch": partial(seconds, contest.plain),
        "copy": partial(seconds, partial(plain.copies, contest.arguments)),
    }
    if rlax is not None and contest.rlax is not None:
        clocks["rlax"] = partial(rlax.seconds, contest.rlax)
    calls = {name: max(1, round(SHORTEST / clock(1))) for name, clock in clocks.items()}
    taken: dict[str, list[float]] = {name: [] for name in clocks}
    for turn in range(-2, ROUNDS):
        for name, clock in clocks.items():
            time.sleep(PAUSE)
            found = clock(calls[name])
            if turn >= 0:
                taken[name].append(found)
    return taken


def table(results: dict[str, dict[str, list[float]]]) -> str:
    """Markdown: medians, and how many times rung's each of the others is."""
    others = ("plain PyTorch", "rlax", "copy")
    lines = ["| function | rung | " + " | ".join(others) + " |", "|---" * (len(others) + 2) + "|"]
    for name, taken in results.items():
        own = statistics.median(taken["rung"])
        cells = [f"{1e3 * own:.3g} ms ({1e3 * min(taken['rung']):.3g} to {1e3 * max(taken['rung']):.3g})"]
        for other in others:
            found = statistics.median(taken[other]) if other in taken else None
            cells.append("" if found is None else f"{1e3 * found:.3g} ms ({found / own:.2g} ×)")
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def machine() -> str:
    used = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else THREADS
    return (
        f"{used} of {os.cpu_count()} processors, {THREADS} threads, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, {' '.join(VERSIONS)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all times there")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # JAX has no other setting for how many threads it starts
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    torch.set_num_threads(THREADS)
    data = inputs()
    rlax = start_rlax(data)
    results = {}
    try:
        for contest in contests(data):
            print(f"{contest.name} …", file=sys.stderr, flush=True)
            results[contest.name] = run(contest, rlax)
    finally:
        if rlax is not None:
            rlax.close()
    record = {
        "command": "python benchmarks/core.py",
        "machine": machine(),
        "sequences": SEQUENCES,
        "tokens": TOKENS,
        "seconds": results,
    }
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{machine()}; {SEQUENCES} × {TOKENS}, medians of {ROUNDS}\n")
    print(table(results))


if __name__ == "__main__":
    main()
