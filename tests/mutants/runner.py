"""Plant a mistake in a function, run the test that has to notice, and put the function back.

A mutant is data (core/*.toml): which function, which piece of its source, what stands there instead, which test.
The function's code is exchanged in place, so that whoever has imported it runs the mistake.
"""

import ast
import functools
import importlib
import inspect
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType

import pytest

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).with_name("core")


@dataclass(frozen=True)
class Mutant:
    """One planted mistake.

    Attributes:
        name: what it is called in reports.
        target: dotted path of the function, method or property.
        find: a piece of its source that occurs exactly once.
        replace: what stands there instead.
        test: node id of the test that must fail.
        mistake: what somebody would have done wrong, in words.
        survives: why no test can notice, for a mutant that is equivalent; empty otherwise.
    """

    name: str
    target: str
    find: str
    replace: str
    test: str
    mistake: str
    survives: str = ""


def topics() -> list[str]:
    """The data files of the numeric core, by name."""
    return sorted(path.stem for path in DATA.glob("*.toml"))


def load(*names: str) -> list[Mutant]:
    """All mutants of the numeric core, or those of some topics."""
    files = [(DATA / f"{name}.toml").read_text(encoding="utf-8") for name in names or topics()]
    return [Mutant(**entry) for text in files for entry in tomllib.loads(text)["mutant"]]


def of_topic(name: str) -> pytest.MarkDecorator:
    """Parametrizes a test over the mutants of a topic that some test must notice."""
    found = [mutant for mutant in load(name) if not mutant.survives]
    return pytest.mark.parametrize("mutant", found, ids=[mutant.name for mutant in found])


def require_caught(mutant: Mutant) -> None:
    """Fail with what the mistake is and why nobody noticed."""
    verdict = judge(mutant)
    assert verdict.caught, f"{mutant.mistake}: {verdict.reason}"


def resolve(target: str) -> FunctionType:
    """The plain function behind a dotted path: also of a method, a property or a cached property."""
    parts = target.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = inspect.getattr_static(found, name)
        if isinstance(found, property):
            found = found.fget
        if isinstance(found, functools.cached_property):
            found = found.func
        if isinstance(found, staticmethod | classmethod):
            found = found.__func__
        if not isinstance(found, FunctionType):
            raise LookupError(f"{target} is no Python function but {found!r}")
        return found
    raise LookupError(f"nothing can be imported for {target}")


def mutated(function: FunctionType, mutant: Mutant) -> FunctionType:
    """A new function from the changed source, in the same module's namespace."""
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(mutant.find) != 1:
        raise LookupError(
            f"{mutant.name}: {mutant.find!r} occurs {source.count(mutant.find)} times in {mutant.target}"
        )
    tree = ast.parse(source.replace(mutant.find, mutant.replace))
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef) or function.__closure__:
        raise LookupError(f"{mutant.target} is not a plain function")
    definition.decorator_list = []
    namespace = dict(function.__globals__)
    exec(compile(tree, f"<mutant {mutant.name}>", "exec"), namespace)
    made = namespace[definition.name]
    assert isinstance(made, FunctionType)
    return made


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Inside, the target runs the mistake; afterwards it is what it was, whatever happened."""
    function = resolve(mutant.target)
    new = mutated(function, mutant)
    original = function.__code__, function.__defaults__, function.__kwdefaults__
    function.__code__, function.__defaults__, function.__kwdefaults__ = (
        new.__code__,
        new.__defaults__,
        new.__kwdefaults__,
    )
    try:
        yield
    finally:
        function.__code__, function.__defaults__, function.__kwdefaults__ = original


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Outcomes:
    """A pytest plugin that keeps what happened to each test: None if it passed, otherwise its exception."""

    found: dict[str, BaseException | None] = field(default_factory=dict)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[object]:
        report = yield
        if call.excinfo is not None:
            self.found[item.nodeid] = call.excinfo.value
        else:
            self.found.setdefault(item.nodeid, None)
        return report


def run(
    tests: Sequence[str], run_pytest: Callable[..., int] = pytest.main
) -> dict[str, BaseException | None]:
    """Run tests in this process, silently, up to the first that fails; returns what happened to each."""
    outcomes = Outcomes()
    # Without "unraisableexception", which collects garbage five times after each run: nine tenths of the time.
    unused = ("terminal", "cacheprovider", "unraisableexception")
    quiet = [*(f"-pno:{plugin}" for plugin in unused), "--capture=no", "--maxfail=1", f"--rootdir={ROOT}"]
    settings = ["-c", str(ROOT / "pyproject.toml"), "-o", "addopts=", "--import-mode=importlib"]
    run_pytest([*quiet, *settings, *(str(ROOT / test) for test in tests)], plugins=[outcomes])
    return outcomes.found


@dataclass(frozen=True)
class Verdict:
    """Whether a mutant was noticed, and the words of the test that did."""

    caught: bool
    reason: str


def judge(mutant: Mutant) -> Verdict:
    """Caught is only a failed assertion, on numbers, in the named test. Any other exception does not count."""
    with planted(mutant):
        found = run([mutant.test])
    failures = {test: error for test, error in found.items() if error is not None}
    if not found:
        return Verdict(False, f"no such test: {mutant.test}")
    if not failures:
        return Verdict(False, f"survived: {mutant.test} passed")
    for test, error in failures.items():
        if not isinstance(error, AssertionError):
            return Verdict(False, f"{test} failed by {type(error).__name__}, not by an assertion: {error}")
    return Verdict(True, str(next(iter(failures.values()))))
