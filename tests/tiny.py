"""Runs on a model so small that each takes seconds: recipes, one finished supervised run to start from, comparisons."""

import atexit
import contextlib
import functools
import io
import json
import multiprocessing
import multiprocessing.process
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rung import api
from rung.cli import main
from rung.training.session import Silent

COMMAND = str(Path(sys.executable).with_name("rung"))

SFT = """
name = "tiny-sft"
method = "sft"
task = "addition"
model = "scratch"
threads = 1

[scratch]
hidden_size = 32
intermediate_size = 64
layers = 2
heads = 2
key_value_heads = 2

[rollout]
max_new_tokens = 4

[optimizer]
learning_rate = 1e-2
schedule = "linear"

[training]
steps = 60
batch_size = 64

[evaluation]
test_problems = 0
"""

RL = """
name = "tiny-rl"
method = "rloo"
task = "addition"
model = MODEL
seed = 3
threads = 1
kl_coefficient = 0.02

[rollout]
prompts_per_step = 8
samples_per_prompt = 6
max_new_tokens = 4
mismatch_tolerance = 1e-5

[optimizer]
learning_rate = 1e-3
schedule = "linear"

[training]
steps = 10

[evaluation]
test_problems = 12
validation_problems = 10
every = 3

[checkpoint]
every = 1
"""

TINY_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


@functools.cache
def _scratch_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="rung-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def sft_run() -> Path:
    """A finished supervised run, made once: few of its answers are right, and all are digits."""
    recipe = _scratch_folder() / "tiny-sft.toml"
    recipe.write_text(SFT, encoding="utf-8")
    return api.train(recipe, root=_scratch_folder() / "runs").folder


def rl_recipe(folder: Path) -> Path:
    """A recipe file that trains from the supervised run."""
    path = folder / "tiny-rl.toml"
    path.write_text(RL.replace("MODEL", json.dumps(str(sft_run()))), encoding="utf-8")
    return path


def sft_recipe(folder: Path) -> Path:
    """The recipe file of the supervised run."""
    path = folder / "tiny-sft.toml"
    path.write_text(SFT, encoding="utf-8")
    return path


class Answer:
    """What a command printed and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def message(self) -> str:
        """Standard error, on one line: help and messages are wrapped."""
        return " ".join(self.err.split())


def rung(*words: object) -> Answer:
    """A command as a person types it, in this process (torch is loaded already)."""
    out, err, before, code = io.StringIO(), io.StringIO(), sys.argv, 0
    sys.argv = ["rung", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = before
    return Answer(code, out.getvalue(), err.getvalue())


def start(*words: object, cwd: Path) -> subprocess.Popen[str]:
    """A command in a process of its own, its output piped, that Ctrl-C reaches.

    Tests that run in the background of a shell inherit an ignored SIGINT, and Python would keep it ignored.
    """
    with_interrupts = (
        "import signal, sys, os; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(*eval(sys.argv[1]))"
    )
    command = [str(COMMAND), *map(str, words)]
    return subprocess.Popen(
        [sys.executable, "-c", with_interrupts, repr((command[0], command))],
        cwd=cwd,
        text=True,
        encoding="utf-8",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _forked(words: Sequence[str], cwd: Path, out: Path) -> None:
    os.chdir(cwd)
    with out.open("a", encoding="utf-8", buffering=1) as stream:
        sys.stdout = sys.stderr = stream
        sys.argv = ["rung", *words]
        main()


def fork(*words: object, cwd: Path, out: Path) -> multiprocessing.process.BaseProcess:
    """The same from a server that has torch loaded: where many are started, and killed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rung.api"])
    process = context.Process(target=_forked, args=([*map(str, words)], cwd, out))
    process.start()
    return process


class Stop(Silent):
    """Stops a run in the middle of a step, before the step's checkpoint."""

    def __init__(self, after: int) -> None:
        self.after = after

    def step(self, step: int, *_: object) -> None:
        if step == self.after:
            raise KeyboardInterrupt


def metrics(run: Path, kind: str = "train") -> list[dict[str, Any]]:
    """The lines of one kind."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [line for line in lines if line["kind"] == kind]


def rollouts(run: Path, columns: str = "*", where: str = "1") -> list[tuple[Any, ...]]:
    """Rows of a run's database, in the order in which they were written."""
    with contextlib.closing(sqlite3.connect(run / "rollouts.sqlite")) as database:
        return database.execute(f"SELECT {columns} FROM rollouts WHERE {where} ORDER BY id").fetchall()


def checkpoint_of(run: Path) -> Path:
    """The newest of a run's checkpoints."""
    return max((run / "checkpoints").glob("step-*"))


def flat_state(state: Any, name: str = "") -> list[tuple[str, Any]]:
    """A nested state, such as an optimizer's, as (name, tensor or value)."""
    if isinstance(state, dict):
        return [item for key, value in state.items() for item in flat_state(value, f"{name}.{key}")]
    if isinstance(state, (list, tuple)):
        return [item for i, value in enumerate(state) for item in flat_state(value, f"{name}.{i}")]
    return [(name, state)]


def assert_same_run(one: Path, other: Path) -> None:
    """Bit-equal weights, optimizer, counters, random state, samples, outcomes and metrics."""
    assert (one / "metrics.jsonl").read_text("utf-8") == (other / "metrics.jsonl").read_text("utf-8")
    assert (one / "rollouts.sqlite").is_file() == (other / "rollouts.sqlite").is_file()
    if (one / "rollouts.sqlite").is_file():
        assert rollouts(one) == rollouts(other)
    first, second = checkpoint_of(one), checkpoint_of(other)
    assert first.name == second.name
    assert (first / "state.json").read_text("utf-8") == (second / "state.json").read_text("utf-8")
    assert (first / "model" / "model.safetensors").read_bytes() == (
        second / "model" / "model.safetensors"
    ).read_bytes()
    left, right = (
        flat_state(torch.load(folder / "optimizer.pt", weights_only=True)) for folder in (first, second)
    )
    assert [name for name, _ in left] == [name for name, _ in right]
    for (name, a), (_, b) in zip(left, right, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, name


def folders(root: Path) -> Sequence[str]:
    """Everything below a folder, by name."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))
