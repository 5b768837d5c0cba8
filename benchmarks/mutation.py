"""A mutation run over the numeric core: every small change that a rule allows, and whether a test notices.

    python benchmarks/mutation.py                    all modules, six minutes on one core
    python benchmarks/mutation.py kl policy_losses   some of them

The planted mistakes in tests/mutants are chosen by hand, and each has to be caught by the test that is named for it.
Here nothing is chosen: whatever the rules in mutation_rules.py can change is changed, one thing at a time. A mutant is
killed if any test of its module's list fails; survivors are printed with their lines. Each runs in a forked process,
so that nothing it computed reaches the next one.

`docs/mutation.md` lists the survivors of the last run and says of each why no test could notice.
"""

import argparse
import json
import mmap
import os
import pickle
import signal
import sys
import time
from pathlib import Path
from types import FunctionType
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.mutation_rules import Change, functions, mutants, parsed  # noqa: E402

# module → the tests that are run against its mutants: its own, so that no mistake needs a far one to be seen.
TESTS = {
    "masked": ["tests/test_masked.py"],
    "kl": ["tests/kl"],
    "aggregation": ["tests/test_aggregation.py"],
    "policy_losses": ["tests/test_policy_losses.py", "tests/test_sequence_clip.py"],
    "correction": ["tests/test_correction.py"],
    "selection": ["tests/test_selection.py"],
    "critic": ["tests/test_critic.py"],
    "trust_region": ["tests/test_trust_region.py"],
    "batch": ["tests/test_batch.py"],
    "credit.scan": ["tests/credit/test_scan.py"],
    "credit.returns": ["tests/credit/test_returns.py"],
    "credit.baselines": ["tests/credit/test_baselines.py"],
    "credit.moving_average": ["tests/credit/test_moving_average.py"],
    "credit.groups": ["tests/credit/test_groups.py"],
    "credit.gae": ["tests/credit/test_gae.py", "tests/credit/test_gae_tables.py"],
    "credit.vtrace": ["tests/credit/test_vtrace.py"],
    "methods.method": [f"tests/methods/test_{name}.py" for name in ("slots", "state", "catalogue", "gaps")],
    "methods.penalty": [f"tests/methods/test_{name}.py" for name in ("penalty", "slots", "gaps")],
}
SLOW = 1.0  # seconds; a slower test is not run against mutants
SECONDS = 20  # of the processor, for one test under a mutant; an endless loop is killed as well


def plant(function: FunctionType, code: Any) -> None:
    """Exchange a function's code in place, for everybody who has imported it."""
    namespace = dict(function.__globals__)
    exec(code, namespace)
    made = namespace[function.__name__]
    function.__code__, function.__defaults__ = made.__code__, made.__defaults__
    function.__kwdefaults__ = made.__kwdefaults__


class Loop:
    """A pytest plugin that runs the collected tests once a mutant, each time in a forked process."""

    def __init__(self, module: str, jobs: int) -> None:
        self.module = module
        self.jobs = jobs
        self.total = 0
        self.survivors: list[Change] = []

    def pytest_runtestloop(self, session: Any) -> bool:
        """In place of running every test once."""
        todo = [(f, change, code) for f in functions(self.module) for change, code in mutants(self.module, f)]
        self.tests = self._timed(session.items)
        self.total = len(todo)
        # Each process writes which test killed its mutant.
        self.killers = mmap.mmap(-1, 4 * max(self.total, 1))
        running: dict[int, tuple[int, Change]] = {}
        begin = time.monotonic()
        for number, (function, change, code) in enumerate(todo):
            if len(running) >= self.jobs:
                self._reap(running)
            pid = os.fork()
            if pid == 0:
                os._exit(self._judge(function, code, number))
            running[pid] = number, change
            if number % 50 == 49 or number == self.total - 1:
                left = (time.monotonic() - begin) * (self.total / (number + 1) - 1)
                print(
                    f"{self.module}: {number + 1}/{self.total}, {left:.0f} s left",
                    file=sys.stderr,
                    flush=True,
                )
        while running:
            self._reap(running)
        return True

    def _reap(self, running: dict[int, tuple[int, Change]]) -> None:
        """Wait for one process. The test that killed its mutant goes first from now on: neighbors die of the same."""
        pid, status = os.wait()
        number, change = running.pop(pid)
        if os.waitstatus_to_exitcode(status) == 0:
            self.survivors.append(change)
            return
        killer = int.from_bytes(self.killers[4 * number : 4 * number + 4], "little")
        if killer:
            self.tests.sort(key=lambda test: test[0] != killer)

    def _judge(self, function: FunctionType, code: Any, number: int) -> int:
        """1 if a test fails, 0 if the mutant survives all."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        try:
            plant(function, code)
        except Exception:  # a default that cannot be computed
            return 1
        for name, item in self.tests:
            if not _passes(item):
                self.killers[4 * number : 4 * number + 4] = name.to_bytes(4, "little")
                return 1
        return 0

    def _timed(self, items: list[Any]) -> list[tuple[int, Any]]:
        """The numbered tests, the quick ones first and the slow ones left out, as timed without a mutant.

        Every function is planted as it is, so that planting by itself fails no test.
        """
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                with os.fdopen(writer, "wb") as stream:
                    stream.write(pickle.dumps(self._seconds(items)))
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            seconds = pickle.loads(stream.read())
        os.waitpid(pid, 0)
        failing = [item.nodeid for item, s in zip(items, seconds, strict=True) if s < 0]
        if failing:
            raise SystemExit(f"these fail without a mutant: {failing}")
        kept = sorted((i for i, s in enumerate(seconds) if s <= SLOW), key=lambda i: seconds[i])
        print(
            f"{self.module}: {len(kept)} of {len(items)} tests, {sum(seconds[i] for i in kept):.1f} s",
            file=sys.stderr,
            flush=True,
        )
        return [(i + 1, items[i]) for i in kept]

    def _seconds(self, items: list[Any]) -> list[float]:
        """What each test takes; −1 if it fails."""
        for function in functions(self.module):
            plant(function, compile(parsed(function)[0], "<as it is>", "exec"))
        seconds = []
        for item in items:
            begin = time.process_time()
            passed = _passes(item)
            seconds.append(time.process_time() - begin if passed else -1.0)
        return seconds


def _passes(item: Any) -> bool:
    from _pytest.runner import runtestprotocol

    def stop(*_: Any) -> None:
        os._exit(1)  # too long: an endless loop is noticed

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    reports = runtestprotocol(item, log=False, nextitem=None)
    signal.setitimer(signal.ITIMER_PROF, 0)
    return not any(report.failed for report in reports)


def run(module: str, jobs: int) -> Loop:
    """All mutants of one module."""
    import pytest

    loop = Loop(module, jobs)
    paths = [str(ROOT / path) for path in TESTS[module]]
    settings = ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}", "-o", "addopts=", "-m", "not slow"]
    quiet = [
        "-pno:terminal",
        "-pno:cacheprovider",
        "-pno:unraisableexception",
        "--import-mode=importlib",
    ]
    code = pytest.main([*settings, *quiet, "--capture=no", *paths], plugins=[loop])
    if code not in (0, 5):
        raise SystemExit(f"pytest ended with {code} on {paths}")
    return loop


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", help=f"of {', '.join(TESTS)}; all by default")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--json", type=Path, default=None, metavar="FILE", help="modules not run keep what is there"
    )
    options = parser.parse_args()
    unknown = [m for m in options.modules if m not in TESTS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    import torch

    torch.set_num_threads(1)
    os.chdir(ROOT)
    kept = options.json is not None and options.json.exists()
    results = json.loads(options.json.read_text(encoding="utf-8")) if kept else {}
    for module in options.modules or TESTS:
        loop = run(module, options.jobs)
        survivors = sorted(loop.survivors, key=lambda change: change.line)
        print(f"{module}: {loop.total - len(survivors)} of {loop.total} killed", flush=True)
        for c in survivors:
            print(f"  {c.module}.{c.function}, line {c.line}: {c.before}  →  {c.after}", flush=True)
        # Without the lines, which move with every comment.
        found = [
            {"place": f"{c.module}.{c.function}", "before": c.before, "after": c.after} for c in survivors
        ]
        results[module] = {"mutants": loop.total, "survivors": found}
    results = {module: results[module] for module in TESTS if module in results}
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
