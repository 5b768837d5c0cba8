"""Runs in processes of their own, killed at any moment, resumed, and compared with the straight run to the last bit."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rung import api
from rung.training.checkpoint import all_checkpoints, newest
from tests.tiny import assert_same_run, fork, metrics, rl_recipe, rung, sft_recipe, start

# Steps long enough that a process that looks often sees the fourth before the tenth.
WORK = ["rollout.prompts_per_step=32", "rollout.samples_per_prompt=8", "optimizer.learning_rate=5e-3"]
REUSE = ["method=ppo-loo", "training.epochs=2", "training.mini_batches=2", "rollout.prompts_per_step=24"]
RUNS = {
    "rloo": (rl_recipe, [*WORK, "checkpoint.every=2"]),
    "ppo-loo": (rl_recipe, [*WORK, *REUSE, "checkpoint.every=1"]),
    # 10 steps of 1,000 examples cross the edge of an epoch of 8,457.
    "sft": (
        sft_recipe,
        ["training.steps=10", "training.batch_size=1000", "evaluation.every=3", "checkpoint.every=1"],
    ),
}


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Look often; a process that ends meanwhile is a failure."""
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.003)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def wrote(run: Path, step: int) -> Callable[[], bool]:
    """Whether the line of a training step is in the metrics."""
    wanted = f'{{"step": {step}, "kind": "train"'.encode()
    return lambda: (run / "metrics.jsonl").is_file() and wanted in (run / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_killed_after_step_4_and_resumed_equals_the_straight_run(name: str, tmp_path: Path) -> None:
    """Cases H5 and H6: the first time by SIGKILL in a process of its own, then taken up by `rung resume`."""
    make, words = RUNS[name]
    recipe = make(tmp_path)
    process = start("train", recipe, *words, "--name", "killed", cwd=tmp_path)
    killed = tmp_path / "runs" / "killed"
    wait_for(wrote(killed, 4), process)
    kill(process)
    assert not (killed / "finished").exists()
    step, _ = newest(killed / "checkpoints")
    assert 2 <= step < 10
    answer = rung("resume", killed)
    assert (answer.code, answer.err) == (0, "")
    assert f"after step {step}, from step-{step:06d}" in answer.out
    straight = api.train(recipe, words, name="straight", root=tmp_path / "runs").folder
    assert_same_run(killed, straight)
    assert [line["step"] for line in metrics(killed)] == list(range(1, 11))


def test_an_interrupted_run_says_how_to_go_on_and_ends_with_130(tmp_path: Path) -> None:
    """Ctrl-C: the message names the run as it must be typed, and there is no traceback and no control character."""
    recipe = rl_recipe(tmp_path)
    process = start("train", recipe, *WORK, "training.steps=1000", "checkpoint.every=2", cwd=tmp_path)
    wait_for(wrote(tmp_path / "runs" / "tiny-rl", 3), process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == "interrupted. Go on with: rung resume runs/tiny-rl"
    assert "\x1b" not in out
    assert "Traceback" not in out + err
    shutil.copytree(tmp_path / "runs" / "tiny-rl", tmp_path / "copy")
    step = newest(tmp_path / "copy" / "checkpoints")[0]
    assert step % 2 == 0


def test_interrupted_before_the_first_checkpoint_it_promises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rung.training.learner import Learner

    def interrupt(self: Learner, *_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Learner, "step", interrupt)
    answer = rung("train", rl_recipe(tmp_path), "--runs", tmp_path / "runs")
    assert answer.code == 130
    assert "before the first checkpoint" in answer.message
    assert "checkpoint.every" in answer.message
    assert "rung resume" not in answer.message


def test_interrupted_while_it_loads_it_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rung.training.learner import Learner

    def interrupt(self: Learner, *_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Learner, "__init__", interrupt)
    answer = rung("train", rl_recipe(tmp_path), "--runs", tmp_path / "runs")
    assert answer.code == 130
    assert answer.message == "interrupted before the run began"
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.slow
def test_twenty_kills_at_random_moments(tmp_path: Path) -> None:
    """Case H5: a checkpoint every step, SIGKILL up to 0.15 s after a new one appeared, and resumed, twenty times.

    Whatever stands under a checkpoint's name is complete, the newest is never lost, and the end is the straight run's.
    """
    make, words = RUNS["ppo-loo"]
    words = [*words, "training.steps=120", "rollout.prompts_per_step=8"]
    recipe, chance = make(tmp_path), random.Random(20)
    run, out = tmp_path / "runs" / "killed", tmp_path / "out.txt"

    def last() -> int:
        return max((step for step, _ in all_checkpoints(run / "checkpoints")), default=0)

    process = fork("train", recipe, *words, "--name", "killed", cwd=tmp_path, out=out)
    for _ in range(20):
        before = last()
        while last() == before:
            assert process.is_alive(), out.read_text("utf-8")
            time.sleep(0.003)
        time.sleep(chance.uniform(0.0, 0.15))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        step, folder = newest(run / "checkpoints")
        assert folder == all_checkpoints(run / "checkpoints")[0][1]
        assert step > before
        process = fork("resume", run, cwd=tmp_path, out=out)
    process.join()
    assert process.exitcode == 0, out.read_text("utf-8")
    assert f"after step {step}, from {folder.name}\n" in out.read_text("utf-8")
    straight = api.train(recipe, words, name="straight", root=tmp_path / "runs").folder
    assert_same_run(run, straight)
    assert not [name for name in os.listdir(run / "checkpoints") if name.endswith(".tmp")]


@pytest.mark.slow
def test_memory_does_not_grow(tmp_path: Path) -> None:
    """Case H15: 300 steps, resident memory after every 20th; from step 100 on less than 1 % per 100 steps."""
    recipe = rl_recipe(tmp_path)
    words = [
        *REUSE,
        "training.steps=300",
        "evaluation.every=0",
        "evaluation.test_problems=0",
        "checkpoint.every=50",
    ]
    page = os.sysconf("SC_PAGE_SIZE")
    from rung.training.session import Silent

    class Weigh(Silent):
        sizes: list[int] = []  # noqa: RUF012

        def step(self, step: int, *_: object) -> None:
            if step % 20 == 0 and step >= 100:
                self.sizes.append(page * int(Path("/proc/self/statm").read_text("ascii").split()[1]))

    api.train(recipe, words, root=tmp_path / "runs", observer=Weigh())
    steps = [100 + 20 * i for i in range(len(Weigh.sizes))]
    mean_step, mean_size = sum(steps) / len(steps), sum(Weigh.sizes) / len(steps)
    slope = sum((s - mean_step) * (m - mean_size) for s, m in zip(steps, Weigh.sizes, strict=True))
    slope /= sum((s - mean_step) ** 2 for s in steps)
    assert 100 * slope / mean_size < 0.01, Weigh.sizes
