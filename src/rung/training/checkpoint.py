"""Checkpoints that are complete or absent: written beside, flushed, hashed, renamed."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rung.errors import CheckpointError
from rung.models.loading import LanguageModel
from rung.training.learner import Learner

_NAME = re.compile(r"step-(\d{6,})")


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Ask the system to have a file or folder on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(folder: Path, write: Callable[[Path], None]) -> None:
    """Make a folder appear whole: `write` fills one beside it, which is flushed, hashed and renamed."""
    beside = folder.parent / f".{folder.name}.{os.getpid()}.tmp"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    write(beside)
    files = sorted(path for path in beside.rglob("*") if path.is_file())
    manifest = {
        str(file.relative_to(beside)): {"sha256": _hash(file), "bytes": file.stat().st_size} for file in files
    }
    # No newline at its end: cut by a single byte, it is no longer JSON.
    (beside / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for path in [*files, beside / "manifest.json", *(p for p in beside.rglob("*") if p.is_dir()), beside]:
        _flush(path)
    os.replace(beside, folder)
    _flush(folder.parent)


def is_complete(folder: Path) -> bool:
    """Whether every file is there and is what the manifest says."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        return bool(manifest) and all(
            (folder / name).stat().st_size == entry["bytes"] and _hash(folder / name) == entry["sha256"]
            for name, entry in manifest.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def all_checkpoints(checkpoints: Path) -> list[tuple[int, Path]]:
    """(step, folder) of everything that is named like a checkpoint, newest first."""
    found = [(int(m[1]), path) for path in checkpoints.glob("step-*") if (m := _NAME.fullmatch(path.name))]
    return sorted(found, reverse=True)


def newest(checkpoints: Path) -> tuple[int, Path]:
    """The newest complete checkpoint.

    Raises:
        CheckpointError: there is none.
    """
    damaged = []
    for step, folder in all_checkpoints(checkpoints):
        if is_complete(folder):
            return step, folder
        damaged.append(folder.name)
    note = f" ({', '.join(damaged)} do not match their manifests)" if damaged else ""
    raise CheckpointError(
        f"no complete checkpoint in {checkpoints}{note}. Start the run again with `rung train`"
    )


def save(
    checkpoints: Path,
    step: int,
    learner: Learner,
    language: LanguageModel,
    keep: int,
    *,
    more: dict[str, Any],
) -> Path:
    """Write the checkpoint of a finished step; older ones go only once it is there.

    Args:
        checkpoints: the run's folder of them.
        step: finished training steps.
        learner: for optimizer and counters.
        language: model and tokenizer.
        keep: how many stay.
        more: what the session adds to the state, as JSON.
    """

    def write(folder: Path) -> None:
        language.save(folder / "model")
        torch.save(learner.optimizer.state_dict(), folder / "optimizer.pt")
        state = {
            "step": step,
            "updates": learner.updates,
            "path": learner.policy.path,
            "torch_random": torch.get_rng_state().tolist(),
        } | more
        (folder / "state.json").write_text(json.dumps(state) + "\n", encoding="utf-8")

    folder = checkpoints / f"step-{step:06d}"
    shutil.rmtree(folder, ignore_errors=True)
    publish(folder, write)
    there = all_checkpoints(checkpoints)
    kept = [path for at, path in there if at <= step][:keep]  # a later one was damaged, and is not counted
    for _, path in there:
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)
    for leftover in checkpoints.glob(".step-*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)
    return folder


def restore(folder: Path, learner: Learner) -> dict[str, Any]:
    """Put optimizer, counters and random state back, and compute as before: the path was chosen by a measurement.

    The weights were loaded from the folder's `model`.
    """
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    learner.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))
    learner.updates = state["updates"]
    for policy in filter(None, (learner.policy, learner.reference)):
        policy.path = state["path"]
    torch.set_rng_state(torch.tensor(state["torch_random"], dtype=torch.uint8))
    return state
