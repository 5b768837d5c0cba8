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

In its turn each makes one call that does not count, which wakes its threads and its memory, then calls for 0.1 s.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.core_parts import plain  # noqa: E402
from benchmarks.core_parts.peer import VERSIONS, Rlax, start  # noqa: E402
from rung.credit import gae, group_standardized, leave_one_out, reward_to_go  # noqa: E402
from rung.masked import masked_sum, select  # noqa: E402
from rung.policy_losses import clipped_loss  # noqa: E402

SEQUENCES, TOKENS, GROUP, THREADS, ROUNDS, SEED = 512, 4096, 8, 2, 9, 0
GAMMA, LAM, CLIP = 1.0, 0.95, 0.2
TURN = 0.1  # seconds
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


# --- the clock -------------------------------------------------------------------------------------------------------


def others() -> float | None:
    """Processor seconds that everybody else has used since the machine started; None where nothing tells."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    user, nice, system, _idle, _waiting, *rest = stat.read_text().split("\n", 1)[0].split()[1:9]
    every = sum(float(ticks) for ticks in (user, nice, system, *rest)) / os.sysconf("SC_CLK_TCK")
    return every - sum(os.times()[:4])


def seconds(function: Function, calls: int) -> float:
    function()
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
    calls = {name: max(1, round(TURN / clock(1))) for name, clock in clocks.items()}
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


def write(path: Path, results: dict[str, dict[str, list[float]]], share: float | None) -> None:
    """All times in milliseconds, one contestant a line."""
    milliseconds = [
        f"  {json.dumps(f'{name} | {who}')}: {[round(1e3 * s, 5) for s in taken]}"
        for name, by_contestant in results.items()
        for who, taken in by_contestant.items()
    ]
    head = {
        "command": "python benchmarks/core.py",
        "machine": machine(),
        "sequences": SEQUENCES,
        "tokens": TOKENS,
        "share of other processes": None if share is None else round(share, 3),
    }
    text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    text += ',\n "milliseconds a call, by round": {\n' + ",\n".join(milliseconds) + "\n }\n}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


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
    data, before, begin = inputs(), others(), time.perf_counter()
    rlax = start(data, (GAMMA, LAM, CLIP))
    results = {}
    try:
        for contest in contests(data):
            print(f"{contest.name} …", file=sys.stderr, flush=True)
            results[contest.name] = run(contest, rlax)
    finally:
        if rlax is not None:
            rlax.close()
    after, took = others(), time.perf_counter() - begin
    share = None if before is None or after is None else max(0.0, (after - before) / took / THREADS)
    if arguments.json is not None:
        write(arguments.json, results, share)
    print(f"{machine()}; {SEQUENCES} × {TOKENS}, medians of {ROUNDS}")
    if share is not None:
        print(f"other processes had {share:.0%} of the processors meanwhile")
    print("\n" + table(results))


if __name__ == "__main__":
    main()
