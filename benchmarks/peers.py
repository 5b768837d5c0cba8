"""What TRL's RLOO and GRPO losses estimate: every loss type of its two trainers, through the exact oracle.

    python benchmarks/peers.py             # builds build/peers with TRL 1.16.0, measures, writes JSON and tables
    python benchmarks/peers.py --check     # measures the groups of two again; fails where they moved
    python benchmarks/peers.py --derive    # the derivations alone, which need no TRL
    python benchmarks/peers.py --table     # the tables of docs/peers.md from docs/results/peers.json

Fixed before the first run: the configurations, and for each what it ought to estimate (benchmarks/peers_trl/). The
trainers are TRL's own, on a real model of transformers whose next-token logits are a table; only sampling is replaced,
by every batch that could be sampled, in turn. Numbers are float32, as TRL's head computes them: bounds below.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import venv
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from benchmarks.peers_trl.expected import Row, derive  # noqa: E402
from benchmarks.peers_trl.off_policy import MISMATCH, STALE  # noqa: E402
from benchmarks.peers_trl.on_policy import ON_POLICY  # noqa: E402
from benchmarks.peers_trl.table import refresh  # noqa: E402
from rung import exact  # noqa: E402

VERSION = "1.16.0"
ENVIRONMENT = ROOT / "build" / "peers"
RESULTS = ROOT / "docs" / "results" / "peers.json"
PAGE = ROOT / "docs" / "peers.md"
ROWS = (*ON_POLICY, *STALE, *MISMATCH)
# Of float32: the largest component's error of a mean gradient, and the relative error of a trace.
MEAN_BOUND, TRACE_BOUND = 1e-6, 1e-5


# --- results ---------------------------------------------------------------------------------------------------------


def cases(sizes: tuple[int, ...] = (2, 3)) -> Iterator[tuple[Row, int]]:
    for row in ROWS:
        for size in row.sizes:
            if size in sizes:
                yield row, size


def key(row: Row, size: int) -> str:
    return f"{row.situation} | {row.name} | G={size}"


def numbers(moments: exact.Moments) -> dict[str, Any]:
    return {"mean": [float(f"{x:.10g}") for x in moments.mean], "trace": float(f"{moments.trace:.10g}")}


def derived() -> dict[str, dict[str, Any]]:
    return {key(row, size): {"derived": numbers(derive(row, size))} for row, size in cases()}


def differences(found: dict[str, Any], other: dict[str, Any]) -> tuple[float, float]:
    """Largest difference of the means' components, and the relative one of the traces."""
    mean = np.abs(np.array(found["mean"]) - np.array(other["mean"])).max()
    return float(mean), abs(found["trace"] / other["trace"] - 1)


def measured(sizes: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """All cases again, with TRL: whole trainers, and for groups of two the adapter too."""
    from benchmarks.peers_trl.measure import through_logprobs, through_trainer

    warnings.simplefilter("ignore", FutureWarning)
    found = {}
    chosen = list(cases(sizes))
    begin = time.monotonic()
    for i, (row, size) in enumerate(chosen):
        result: dict[str, Any] = {"derived": numbers(derive(row, size))}
        result["measured"] = numbers(through_trainer(row, size))
        adapter = through_logprobs(row, size) if size == 2 and row.prompts == 1 else None
        if adapter is not None:
            result["through log-probs"] = numbers(adapter)
        found[key(row, size)] = result
        left = (time.monotonic() - begin) / (i + 1) * (len(chosen) - i - 1)
        print(f"{i + 1}/{len(chosen)}  {left:4.0f} s left  {key(row, size)}", file=sys.stderr, flush=True)
    return found


def off_bounds(results: dict[str, dict[str, Any]]) -> list[str]:
    """Where TRL does not do what was derived."""
    found = []
    for name, result in results.items():
        for way in ("measured", "through log-probs"):
            if way in result:
                mean, trace = differences(result[way], result["derived"])
                if mean > MEAN_BOUND or trace > TRACE_BOUND:
                    found.append(f"{way}: mean off by {mean:.1e}, trace by {trace:.1e}: {name}")
    return found


def measure() -> None:
    begin = time.monotonic()
    results = measured((2, 3))
    record = {
        "peer": f"trl {VERSION}",
        "command": "python benchmarks/peers.py",
        "machine": f"{os.cpu_count()} cores, one used, no accelerator, {platform.system()}, "
        f"Python {platform.python_version()}",
        "precision": "float32",
        "seconds": round(time.monotonic() - begin),
        "cases": results,
    }
    write(record)
    refresh(PAGE, record, ROWS)
    print(f"{len(results)} cases in {record['seconds']} s; written to {RESULTS.relative_to(ROOT)}")
    print("\n".join(off_bounds(results) or ["every case is what was derived for it"]))


def check() -> int:
    """Groups of two once more: as derived, and as recorded."""
    recorded = json.loads(RESULTS.read_text(encoding="utf-8"))["cases"]
    results = measured((2,))
    problems = off_bounds(results)
    for name, result in results.items():
        mean, trace = differences(result["measured"], recorded[name]["measured"])
        if mean > MEAN_BOUND or trace > TRACE_BOUND:
            problems.append(f"not as recorded: mean off by {mean:.1e}, trace by {trace:.1e}: {name}")
    print("\n".join(problems or [f"{len(results)} cases as derived and as recorded"]))
    return 1 if problems else 0


def write(record: dict[str, Any]) -> None:
    """JSON with one case a line."""
    lines = [
        f"  {json.dumps(name, ensure_ascii=False)}: {json.dumps(case)}"
        for name, case in record["cases"].items()
    ]
    head = json.dumps({k: v for k, v in record.items() if k != "cases"}, indent=1).removesuffix("\n}")
    text = head + ',\n "cases": {\n' + ",\n".join(lines) + "\n }\n}\n"
    RESULTS.write_text(text, encoding="utf-8")


# --- the environment -------------------------------------------------------------------------------------------------


def inside() -> bool:
    return Path(sys.prefix).resolve() == ENVIRONMENT.resolve()


def build() -> Path:
    """The environment's interpreter; builds it where it is missing or holds another version."""
    python = ENVIRONMENT / "bin" / "python"
    done = ENVIRONMENT / ".trl"
    if not (done.is_file() and done.read_text() == VERSION and python.exists()):
        print(
            f"installing TRL {VERSION} into {ENVIRONMENT.relative_to(ROOT)} (about 1.5 GB)", file=sys.stderr
        )
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        wanted = ["-c", str(ROOT / "constraints.txt"), f"trl=={VERSION}", "-e", str(ROOT)]
        subprocess.run([*pip, *wanted], check=True)
        done.write_text(VERSION)
    return python


def rerun_inside(arguments: list[str]) -> int:
    settings = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [str(build()), str(Path(__file__).resolve()), *arguments]
    return subprocess.run(command, env=os.environ | settings, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--check", action="store_true", help="measure groups of two again and compare")
    only.add_argument("--derive", action="store_true", help="write the derivations alone")
    only.add_argument("--table", action="store_true", help="write the tables of docs/peers.md")
    arguments = parser.parse_args()
    if arguments.derive:
        write({"peer": f"trl {VERSION}", "cases": derived()})
        return 0
    if arguments.table:
        refresh(PAGE, json.loads(RESULTS.read_text(encoding="utf-8")), ROWS)
        return 0
    if not inside():
        return rerun_inside(sys.argv[1:])
    if arguments.check:
        return check()
    measure()
    return 0


if __name__ == "__main__":
    sys.exit(main())
