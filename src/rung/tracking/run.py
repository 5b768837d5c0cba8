"""A run on disk: what it was asked to do, what it measured, what was sampled."""

import fcntl
import json
import math
import os
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rung.batch import Completion, Outcome
from rung.errors import UsageError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rollouts (
    id INTEGER PRIMARY KEY, step INTEGER NOT NULL, split TEXT NOT NULL, row INTEGER NOT NULL,
    group_id INTEGER NOT NULL, sample INTEGER NOT NULL, sampling_key TEXT NOT NULL, prompt TEXT NOT NULL,
    completion TEXT NOT NULL, prompt_ids TEXT NOT NULL, token_ids TEXT NOT NULL, sampled_mask TEXT NOT NULL,
    behaviour_logprobs TEXT NOT NULL, policy_version INTEGER NOT NULL, end_reason TEXT NOT NULL,
    outcome TEXT NOT NULL, reward REAL, message TEXT NOT NULL, reference TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS rollouts_by_step ON rollouts (step, split);
"""


def storable(text: str) -> str:
    """Text that any UTF-8 file or database takes: lone surrogates and NUL become visible escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")


def _commit() -> str | None:
    """The commit of a checkout of rung, "-dirty" with local changes; None for an installed package."""
    package = Path(__file__).parents[1]
    root = package.parents[1]
    if package.parent.name != "src" or not (root / ".git").exists():
        return None  # an environment may lie inside somebody else's repository
    try:
        asked = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def environment(threads: int) -> dict[str, Any]:
    """What the numbers were made on."""

    def of(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    return {
        "python": sys.version.split()[0],
        **{package: of(package) for package in ("rung", "torch", "transformers", "tokenizers", "numpy")},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "git_commit": _commit(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _new_folder(root: Path, name: str) -> Path:
    number = 1
    try:
        root.mkdir(parents=True, exist_ok=True)
        while True:
            folder = root / (name if number == 1 else f"{name}-{number}")
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                number += 1
    except OSError as error:
        raise UsageError(f"no run can be made in {root}: {error.strerror}") from error


class Run:
    """One run folder. Writers append and flush; nothing is rewritten but by `rewind`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.toml"
        self.metrics = folder / "metrics.jsonl"
        self.timing = folder / "timing.jsonl"
        self.checkpoints = folder / "checkpoints"
        self._database: sqlite3.Connection | None = None
        self._lock: int | None = None

    @classmethod
    def create(cls, root: Path, name: str, config: str, threads: int) -> "Run":
        """Make a new folder; an existing one is never written over, the name gets a number instead.

        Raises:
            UsageError: the name is no folder's name, or nothing can be made there.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise UsageError(
                f'"{name}" is no name for a run: letters, digits, ".", "_" and "-", a letter or digit first'
            )
        run = cls(_new_folder(root, name))
        run.config.write_text(config, encoding="utf-8")
        record = json.dumps(environment(threads), indent=2) + "\n"
        (run.folder / "environment.json").write_text(record, encoding="utf-8")
        run.checkpoints.mkdir()
        return run

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """An existing run.

        Raises:
            UsageError: the folder is not a run.
        """
        if not (folder / "config.toml").is_file():
            raise UsageError(f"{folder} is not a run: it has no config.toml")
        return cls(folder)

    def write(self, file: Path, record: dict[str, Any]) -> None:
        """Append one JSON line. The names of the files are `metrics` and `timing`. JSON has no NaN: it becomes null."""
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
        }
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(finite, ensure_ascii=True, allow_nan=False) + "\n")

    def read(self, file: Path) -> list[dict[str, Any]]:
        """The lines of a file; a last line that a kill cut short is left out."""
        records = []
        for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else []:
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return records

    @property
    def database(self) -> sqlite3.Connection:
        """The rollouts, opened when first used."""
        if self._database is None:
            self._database = sqlite3.connect(self.folder / "rollouts.sqlite")
            self._database.executescript(_SCHEMA)
        return self._database

    def write_rollouts(
        self,
        step: int,
        split: str,
        prompts: Sequence[tuple[int, str, Any]],
        completions: Sequence[Completion],
        outcomes: Sequence[Outcome],
        texts: Sequence[str],
    ) -> None:
        """Store completions with their outcomes.

        Args:
            step: training steps finished when the policy sampled them, plus one for those it trains on.
            split: "train", "greedy" (baselines of the step's prompts), "validation" or "test".
            prompts: (data row, prompt text, reference) of each group, by group id.
            completions: as sampled.
            outcomes: one each.
            texts: decoded, for people.
        """
        records = []
        for completion, outcome, text in zip(completions, outcomes, texts, strict=True):
            row, prompt, reference = prompts[completion.group]
            records.append(
                (
                    step, split, row, completion.group, completion.sample, f"{completion.sampling_key:016x}",
                    storable(prompt), storable(text), json.dumps(completion.prompt_ids),
                    json.dumps(completion.token_ids), json.dumps([int(s) for s in completion.sampled]),
                    json.dumps(completion.behaviour_logprobs), max(completion.policy_versions, default=0),
                    completion.end_reason, outcome.kind, outcome.reward, storable(outcome.message),
                    json.dumps(reference),
                )
            )  # fmt: skip
        with self.database as connection:
            connection.executemany(
                "INSERT INTO rollouts (step, split, row, group_id, sample, sampling_key, prompt, completion,"
                " prompt_ids, token_ids, sampled_mask, behaviour_logprobs, policy_version, end_reason, outcome, reward,"
                f" message, reference) VALUES ({', '.join('?' * 18)})",
                records,
            )

    def rewind(self, step: int) -> None:
        """Forget everything after a step: resuming from its checkpoint writes it anew."""
        for file in (self.metrics, self.timing):
            kept = [record for record in self.read(file) if record["step"] <= step]
            beside = file.with_suffix(".tmp")
            beside.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
            os.replace(beside, file)
        with self.database as connection:
            connection.execute("DELETE FROM rollouts WHERE step > ?", (step,))

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.folder / "finished").is_file()

    def finish(self) -> None:
        """Mark the end."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        (self.folder / "finished").write_text(now + "\n", encoding="utf-8")

    def discard(self) -> None:
        """Remove a run in which nothing happened yet, because its model could not be loaded."""
        self.close()
        shutil.rmtree(self.folder)

    def lock(self) -> None:
        """Become the only writer of this run, until `close` or the end of the process.

        Raises:
            UsageError: another process is writing to it.
        """
        descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise UsageError(
                f"{self.folder} is being trained by another process: wait for it, or stop it"
            ) from error
        self._lock = descriptor

    def flush(self) -> None:
        """Have the lines written so far on disk, before a checkpoint says that their steps are done."""
        for file in (self.metrics, self.timing):
            if file.is_file():
                with file.open("a", encoding="utf-8") as out:
                    os.fsync(out.fileno())

    def close(self) -> None:
        """Close the database and let others write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._database is not None:
            self._database.close()
            self._database = None
