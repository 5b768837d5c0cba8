"""How long `import rung` and `rung --help` take in a fresh process, the interpreter's own start included.

The bounds are 0.3 s and 0.5 s. The tests check what makes them possible (nothing loads torch); this checks the clock.

    python benchmarks/startup.py --repeats 20
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

COMMANDS = {
    "python -c pass": ([sys.executable, "-c", "pass"], None),
    "import rung": ([sys.executable, "-c", "import rung"], 0.3),
    "rung --help": ([str(Path(sys.executable).with_name("rung")), "--help"], 0.5),
}


def seconds(command: Sequence[str], repeats: int) -> list[float]:
    """Wall time of each of several starts; the first, which fills the file cache, is left out."""
    taken = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        taken.append(time.perf_counter() - begin)
    return taken[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    slow = []
    for name, (command, bound) in COMMANDS.items():
        taken = seconds(command, repeats)
        median = statistics.median(taken)
        limit = f"bound {bound:.1f} s" if bound else ""
        print(
            f"{name:<16} median {median:.3f} s   fastest {min(taken):.3f}   slowest {max(taken):.3f}   {limit}"
        )
        if bound and median > bound:
            slow.append(name)
    if slow:
        sys.exit(f"slower than its bound: {', '.join(slow)}")


if __name__ == "__main__":
    main()
