"""A run folder's small files, read as far as they can be read: what was skipped is said, never fatal."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rung.errors import UsageError
from rung.report.series import number

Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What the small files of a run say.

    Attributes:
        directory: the run folder.
        config: the resolved recipe; empty if it could not be read.
        config_text: the same as it stands in the file.
        environment: versions, platform and start.
        metrics: one record a line, the later one where a step was written twice.
        timing: one record a step.
        notes: what was missing, damaged or skipped, for the reader.
        finished: when the run came to its end, as its mark says; None without a mark.
    """

    directory: Path
    config: Record
    config_text: str
    environment: Record
    metrics: tuple[Record, ...]
    timing: tuple[Record, ...]
    notes: list[str] = field(default_factory=list)
    finished: str | None = None

    @property
    def train(self) -> list[Record]:
        """Training lines, by step."""
        return [record for record in self.metrics if record.get("kind") == "train"]

    def evaluations(self, split: str) -> list[Record]:
        """Evaluation lines of one split, by step."""
        lines = (record for record in self.metrics if record.get("kind") == "eval")
        return [record for record in lines if str(record.get("split", "validation")) == split]

    @property
    def splits(self) -> list[str]:
        """The splits that were evaluated, the one that was evaluated first before the others."""
        found = {str(r.get("split", "validation")) for r in self.metrics if r.get("kind") == "eval"}
        return sorted(found, key=lambda s: (self.evaluations(s)[0]["step"], s != "validation", s))

    @property
    def supervised(self) -> bool:
        """Whether the run imitates answers: it has a loss, and no rewards while training."""
        return setting(self.config, "method") == "sft"


def setting(config: Mapping[str, Any], name: str) -> str:
    """A recipe's value as words: `method = "rloo"`, or the name or path in a table `[method]`.

    >>> setting({"model": {"path": "tiny", "seed": 1}}, "model")
    'tiny'
    """
    value = config.get(name)
    if isinstance(value, Mapping):
        keys = ("name", "path", "kind", "base", "start", "checkpoint")
        return next((str(value[key]) for key in keys if value.get(key)), "")
    return "" if value is None else str(value)


def _text(path: Path, notes: list[str]) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except FileNotFoundError:
        notes.append(f"{path.name} is missing.")
    except OSError as error:
        notes.append(f"{path.name} could not be opened ({error.strerror or error}).")
    return None


def _record(line: str) -> Record | None:
    """One line's object, or None if it is not an object with a step."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and number(value.get("step")) is not None else None


def read_lines(path: Path, notes: list[str]) -> tuple[Record, ...]:
    """The records of a file of JSON lines, sorted by step; of two for the same step the later one."""
    text = _text(path, notes)
    if text is None:
        return ()
    lines = text.split("\n")
    cut = len(lines) - 1 if lines[-1].strip() else None
    latest: dict[tuple[str, str, float], Record] = {}
    bad: list[int] = []
    repeated = 0
    for index, line in enumerate(lines):
        record = _record(line) if line.strip() else None
        if record is not None:
            key = (str(record.get("kind")), str(record.get("split")), float(record["step"]))
            repeated += key in latest
            latest[key] = record
        elif line.strip() and index == cut:
            notes.append(f"{path.name}: the last line was cut short and was skipped.")
        elif line.strip():
            bad.append(index + 1)
    if bad:
        listed = ", ".join(map(str, bad[:5])) + (", …" if len(bad) > 5 else "")
        notes.append(f"{path.name}: {len(bad)} unreadable line(s) skipped (line {listed}).")
    if repeated:
        notes.append(
            f"{path.name}: {repeated} step(s) written twice, as after a resume; the later line counts."
        )
    return tuple(sorted(latest.values(), key=lambda record: float(record["step"])))


def _config(path: Path, notes: list[str]) -> tuple[Record, str]:
    text = _text(path, notes)
    if text is None:
        return {}, ""
    try:
        return tomllib.loads(text.replace("\r\n", "\n")), text
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        notes.append(f"{path.name} could not be read as TOML ({error}); it is shown as it stands.")
        return {}, text


def _environment(path: Path, notes: list[str]) -> Record:
    text = _text(path, notes)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        notes.append(f"{path.name} could not be read as a JSON object and was skipped.")
        return {}
    return value


def load_run(directory: Path) -> Run:
    """Read a run folder.

    Raises:
        UsageError: the folder does not exist.
    """
    if not directory.is_dir():
        raise UsageError(
            f"no run folder at {directory}\n       give the folder of a run, such as runs/my-run"
        )
    notes: list[str] = []
    config, config_text = _config(directory / "config.toml", notes)
    environment = _environment(directory / "environment.json", notes)
    metrics = read_lines(directory / "metrics.jsonl", notes)
    timing = read_lines(directory / "timing.jsonl", notes)
    mark = directory / "finished"
    finished = _text(mark, notes) if mark.is_file() else None
    return Run(directory, config, config_text, environment, metrics, timing, notes, finished)
