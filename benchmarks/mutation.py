"""A mutation run over the numeric core: every small change that a rule allows, and whether a test notices.

    python benchmarks/mutation.py                    all modules, about an hour on two cores
    python benchmarks/mutation.py kl policy_losses   some of them

The planted mistakes in tests/mutants are chosen by hand, and each has to be caught by the test that is named for it.
Here nothing is chosen: operators, comparisons, constants, negations, detaches, clamps and argument orders are changed
one at a time. A mutant is killed if any test of its module's list fails; survivors are printed with their lines.
Each mutant runs in a forked process, so that nothing it computed reaches the next one.

`docs/mutation.md` lists the survivors of the last run and says of each why no test could notice.
"""

import argparse
import ast
import copy
import importlib
import inspect
import json
import mmap
import os
import pickle
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

# module → the tests that are run against its mutants, quick and near ones first.
TESTS = {
    "masked": ["tests/test_masked.py", "tests/credit"],
    "kl": ["tests/kl", "tests/unbiased/test_kl_gradients.py"],
    "aggregation": ["tests/test_aggregation.py", "tests/reductions/test_aggregation.py"],
    "policy_losses": ["tests/test_policy_losses.py", "tests/reductions/test_policy_losses.py"],
    "correction": ["tests/test_correction.py", "tests/unbiased/test_corrections.py"],
    "selection": ["tests/test_selection.py"],
    "critic": ["tests/test_critic.py"],
    "trust_region": ["tests/test_trust_region.py"],
    "batch": ["tests/test_batch.py", "tests/methods/test_slots.py"],
    "credit.scan": ["tests/credit", "tests/reductions/test_credit.py"],
    "credit.returns": ["tests/credit", "tests/reductions/test_credit.py"],
    "credit.baselines": ["tests/credit", "tests/unbiased/test_credit_baselines.py"],
    "credit.moving_average": ["tests/credit", "tests/unbiased/test_credit_baselines.py"],
    "credit.groups": ["tests/credit", "tests/unbiased/test_binary_rewards.py"],
    "credit.gae": ["tests/credit", "tests/reductions/test_credit.py", "tests/unbiased/test_credit_family.py"],
    "credit.vtrace": [
        "tests/credit",
        "tests/reductions/test_credit.py",
        "tests/unbiased/test_credit_vtrace.py",
    ],
    "methods.method": ["tests/methods/test_slots.py", "tests/methods", "tests/invariance"],
    "methods.penalty": [
        "tests/methods/test_slots.py",
        "tests/methods",
        "tests/unbiased/test_kl_gradients.py",
    ],
}
SLOW = 1.0  # seconds; a slower test is not run against mutants
SECONDS = 30  # for one test under a mutant; an endless loop is killed as well

COMPARE = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
BINARY = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}
DROPPED = {
    "abs",
    "any",
    "clamp",
    "detach",
    "exp",
    "expm1",
    "flip",
    "log",
    "nan_to_num",
    "sqrt",
    "square",
    "to",
    "tril",
    "unsqueeze",
}
EXCHANGED = {
    "minimum": "maximum",
    "maximum": "minimum",
    "min": "max",
    "max": "min",
    "amin": "amax",
    "amax": "amin",
    "any": "all",
    "all": "any",
    "sum": "mean",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
}
COMMUTATIVE = {"maximum", "minimum", "max", "min"}


@dataclass(frozen=True)
class Change:
    """One mutant: where, and what became of which piece of the source."""

    module: str
    function: str
    line: int
    before: str
    after: str


def _variants(node: ast.AST) -> Iterator[ast.AST]:
    """What a node may be changed into."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARE:
            yield ast.Compare(node.left, [COMPARE[type(op)]()], node.comparators)
        case ast.Compare(ops=ops) if len(ops) > 1:
            yield from _chains(node)
        case ast.BinOp(op=op) if type(op) in BINARY:
            yield ast.BinOp(node.left, BINARY[type(op)](), node.right)
        case ast.BoolOp(op=op):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield ast.Constant(node.value + 1)
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.If(test=test) if not any(True for _ in _variants(test)):
            yield ast.If(ast.UnaryOp(ast.Not(), test), node.body, node.orelse)
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Call():
            yield from _calls(node)


def _chains(node: ast.Compare) -> Iterator[ast.AST]:
    """a ≤ b < c: one comparison at a time."""
    for i, op in enumerate(node.ops):
        if type(op) in COMPARE:
            ops = [COMPARE[type(op)]() if i == j else other for j, other in enumerate(node.ops)]
            yield ast.Compare(node.left, ops, node.comparators)


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    if isinstance(node.func, ast.Attribute):
        if node.func.attr in DROPPED and not _is_module(node.func.value):
            yield node.func.value
        if node.func.attr in EXCHANGED:
            func = ast.Attribute(node.func.value, EXCHANGED[node.func.attr], node.func.ctx)
            yield ast.Call(func, node.args, node.keywords)
    elif isinstance(node.func, ast.Name) and node.func.id in EXCHANGED:
        yield ast.Call(ast.Name(EXCHANGED[node.func.id], ast.Load()), node.args, node.keywords)
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    for i, keyword in enumerate(node.keywords):
        if keyword.arg not in (None, "device"):  # one device is all there is here
            yield ast.Call(node.func, node.args, node.keywords[:i] + node.keywords[i + 1 :])
    plain = len(node.args) == 2 and not any(isinstance(a, ast.Starred | ast.Constant) for a in node.args)
    if plain and name not in COMMUTATIVE:
        yield ast.Call(node.func, [node.args[1], node.args[0]], node.keywords)


def _is_module(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("torch", "math", "np")


def _computes_nothing(parent: ast.AST, field: str, node: ast.AST) -> bool:
    """Messages, annotations, decorators and docstrings."""
    return (
        isinstance(node, ast.Raise | ast.JoinedStr)
        or field in ("annotation", "returns", "decorator_list")
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    )


def _places(parent: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """(parent, field, index, node) of everything that may be changed."""
    for field, value in ast.iter_fields(parent):
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST) and not _computes_nothing(parent, field, node):
                yield parent, field, index, node
                yield from _places(node)


def mutants(module: str, function: FunctionType) -> Iterator[tuple[Change, Any]]:
    """Every mutant of a function, with its code object."""
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    if not isinstance(tree.body[0], ast.FunctionDef):
        return
    tree.body[0].decorator_list = []
    for number, (_, _, _, node) in enumerate(_places(tree)):
        for variant, _ in enumerate(_variants(node)):
            changed = copy.deepcopy(tree)
            parent, field, index, found = list(_places(changed))[number]
            new = ast.copy_location(list(_variants(found))[variant], found)
            if index is None:
                setattr(parent, field, new)
            else:
                getattr(parent, field)[index] = new
            before, after = (ast.unparse(piece).splitlines()[0] for piece in (node, new))
            change = Change(module, function.__qualname__, first + node.lineno - 1, before, after)
            ast.fix_missing_locations(changed)
            yield change, compile(changed, f"<{change.function}:{number}.{variant}>", "exec")


def functions(module: str) -> list[FunctionType]:
    """The functions and methods that are written in a module; dataclasses make others, without a file."""
    found = importlib.import_module(f"rung.{module}")
    out: list[FunctionType] = []
    for value in vars(found).values():
        for item in vars(value).values() if inspect.isclass(value) else [value]:
            for name in ("fget", "func", "__func__"):  # of properties, cached ones and class methods
                item = getattr(item, name, item)
            written = isinstance(item, FunctionType) and item.__code__.co_filename == found.__file__
            if written and item not in out:
                out.append(item)
    return out


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
        self.tests = self._timed(session.items)
        todo = [(f, change, code) for f in functions(self.module) for change, code in mutants(self.module, f)]
        self.total = len(todo)
        self.killers = mmap.mmap(
            -1, 4 * max(self.total, 1)
        )  # each process writes which test killed its mutant
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
        except Exception:
            return 1
        for name, item in self.tests:
            if not _passes(item):
                self.killers[4 * number : 4 * number + 4] = name.to_bytes(4, "little")
                return 1
        return 0

    def _timed(self, items: list[Any]) -> list[tuple[int, Any]]:
        """The numbered tests, the quick ones first and the slow ones left out, as timed without a mutant."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            seconds = []
            for item in items:
                begin = time.process_time()
                passed = _passes(item)
                seconds.append(time.process_time() - begin if passed else -1.0)
            with os.fdopen(writer, "wb") as stream:
                stream.write(pickle.dumps(seconds))
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


def _passes(item: Any) -> bool:
    from _pytest.runner import runtestprotocol

    def stop(*_: Any) -> None:
        os._exit(1)  # too long: an endless loop is noticed

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    reports = runtestprotocol(item, log=False, nextitem=None)
    signal.alarm(0)
    return not any(report.failed for report in reports)


def run(module: str, jobs: int) -> Loop:
    """All mutants of one module."""
    import pytest

    loop = Loop(module, jobs)
    paths = list(dict.fromkeys(str(ROOT / path) for path in TESTS[module]))
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
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    options = parser.parse_args()
    unknown = [m for m in options.modules if m not in TESTS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    import torch

    torch.set_num_threads(1)
    os.chdir(ROOT)
    results = {}
    for module in options.modules or TESTS:
        loop = run(module, options.jobs)
        results[module] = {"mutants": loop.total, "survivors": [asdict(c) for c in loop.survivors]}
        print(f"{module}: {loop.total - len(loop.survivors)} of {loop.total} killed", flush=True)
        for c in sorted(loop.survivors, key=lambda c: c.line):
            print(f"  {c.module}.{c.function}, line {c.line}: {c.before}  →  {c.after}", flush=True)
        if options.json is not None:
            options.json.write_text(
                json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )


if __name__ == "__main__":
    main()
