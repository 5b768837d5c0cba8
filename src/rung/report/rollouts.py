"""What the completion store of a run says: a few prompts followed over time, and the paired change in reward.

The prompts shown are evenly spaced over the problems, not chosen by their result; the two that are (largest
gain and largest loss) say so.
"""

import json
import math
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from rung.report.series import number, spread

_COLUMNS = (
    "step, split, row, prompt, completion, sampled_mask, behaviour_logprobs, end_reason, outcome, reward,"
    " reference"
)


@dataclass(frozen=True)
class Sample:
    """One stored completion, as much of it as the page shows."""

    step: int
    split: str
    row: int
    prompt: str
    completion: str
    tokens: int | None
    given: int
    logprob: float | None
    end_reason: str
    outcome: str
    reward: float | None
    reference: str
    message: str


@dataclass(frozen=True)
class Story:
    """One prompt over time: its samples at each step where it was seen.

    Attributes:
        why: how it came to be shown.
        by_step: the samples of each step, in the order of the steps.
    """

    why: str
    by_step: dict[int, list[Sample]]

    @property
    def first(self) -> Sample:
        """A sample to take the prompt and the reference answer from."""
        return next(iter(self.by_step.values()))[0]

    def reward(self, step: int) -> float | None:
        """Mean reward of a step's samples that have one."""
        rewards = [sample.reward for sample in self.by_step[step] if sample.reward is not None]
        return mean(rewards) if rewards else None


@dataclass(frozen=True)
class PairedChange:
    """Last minus first evaluation, over the prompts that have a reward at both.

    Attributes:
        split: which problems.
        prompts: how many.
        change: mean difference of their rewards.
        half_width: of its 95 % interval, 1.96 · standard deviation / √prompts; None below 30 prompts, or where all
            differences are the same.
        better: prompts whose reward rose.
        worse: prompts whose reward fell.
    """

    split: str
    prompts: int
    change: float
    half_width: float | None
    better: int
    worse: int


@dataclass(frozen=True)
class Rollouts:
    """What the page needs of the store."""

    held_out: tuple[Story, ...] = ()
    training: tuple[Story, ...] = ()
    paired: tuple[PairedChange, ...] = ()


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _list(text: object) -> list[object] | None:
    try:
        value = json.loads(str(text))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def _sample(row: Sequence[object]) -> Sample:
    step, split, data_row, prompt, completion, mask, logprobs, end, outcome, reward, answer, message = row
    counted = _list(mask)
    values = [number(value) for value in _list(logprobs) or []]
    known = [value for value in values if value is not None]
    reference = str(answer or "")
    try:
        parsed = json.loads(reference)
        reference = parsed if isinstance(parsed, str) else reference
    except (ValueError, RecursionError):
        pass
    return Sample(
        step=int(str(step)),
        split=str(split),
        row=int(str(data_row)),
        prompt=str(prompt or ""),
        completion=str(completion or ""),
        tokens=None if counted is None else len(counted),
        given=0 if counted is None else sum(not value for value in counted),
        logprob=math.fsum(known) if known and len(known) == len(values) else None,
        end_reason=str(end or ""),
        outcome=str(outcome or ""),
        reward=number(reward),
        reference=reference,
        message=str(message or ""),
    )


def _samples(store: sqlite3.Connection, where: str, values: Sequence[object]) -> Iterator[Sample]:
    columns = {name for _, name, *_ in store.execute("PRAGMA table_info(rollouts)")}
    message = "message" if "message" in columns else "''"
    query = f"SELECT {_COLUMNS}, {message} FROM rollouts WHERE {where} ORDER BY step, group_id, sample, id"
    for row in store.execute(query, values):
        yield _sample(row)


def _collect(samples: Iterator[Sample], why: dict[int, str]) -> list[Story]:
    """Samples of several data rows, as one story a row, in the order of `why`."""
    stories: dict[int, dict[int, list[Sample]]] = {row: {} for row in why}
    for sample in samples:
        stories[sample.row].setdefault(sample.step, []).append(sample)
    return [Story(why[row], by_step) for row, by_step in stories.items() if by_step]


def _rewards(store: sqlite3.Connection, split: str, step: int) -> dict[int, float | None]:
    """Mean reward of each data row at one evaluation; None where no sample has one."""
    query = "SELECT row, AVG(reward) FROM rollouts WHERE split = ? AND step = ? GROUP BY row ORDER BY row"
    return {int(row): number(reward) for row, reward in store.execute(query, (split, step))}


def _steps(store: sqlite3.Connection, split: str) -> list[int]:
    query = "SELECT DISTINCT step FROM rollouts WHERE split = ? ORDER BY step"
    return [int(step) for (step,) in store.execute(query, (split,))]


def _changes(first: dict[int, float | None], last: dict[int, float | None]) -> dict[int, float]:
    """Last minus first reward of each data row that has both."""
    return {row: b - a for row, a in first.items() if a is not None and (b := last.get(row)) is not None}


def _paired(split: str, first: dict[int, float | None], last: dict[int, float | None]) -> PairedChange | None:
    changes = list(_changes(first, last).values())
    if not changes:
        return None
    half = 1.96 * stdev(changes) / math.sqrt(len(changes)) if len(changes) >= 30 else 0.0
    better, worse = sum(change > 0 for change in changes), sum(change < 0 for change in changes)
    return PairedChange(split, len(changes), mean(changes), half or None, better, worse)


def _chosen(first: dict[int, float | None], last: dict[int, float | None], limit: int) -> dict[int, str]:
    """Which data rows to show, and why: evenly spaced ones, then the largest gain and the largest loss."""
    rows = [row for row in first if row in last] or list(first)
    why = {rows[index]: "evenly spaced over the problems" for index in spread(len(rows), limit)}
    changes = _changes(first, last)
    for word, sign in (("gain", 1.0), ("loss", -1.0)):
        row = max(changes, key=lambda row: sign * changes[row], default=None)
        if row is not None and row not in why and sign * changes[row] > 0:
            why[row] = f"largest {word} of all, chosen for that"
    return why


def _marks(values: Collection[object]) -> str:
    return ",".join("?" * len(values))


def _held_out(store: sqlite3.Connection, limit: int) -> tuple[list[Story], list[PairedChange]]:
    stories: list[Story] = []
    paired: list[PairedChange] = []
    seen = {split: steps for split in ("validation", "test") if (steps := _steps(store, split))}
    for split, steps in sorted(seen.items(), key=lambda item: item[1][0]):
        first, last = _rewards(store, split, steps[0]), _rewards(store, split, steps[-1])
        if len(steps) > 1 and (change := _paired(split, first, last)) is not None:
            paired.append(change)
        why = _chosen(first, last, limit if not stories else limit // 2)
        shown = [steps[index] for index in spread(len(steps), 8)]
        where = f"split = ? AND row IN ({_marks(why)}) AND step IN ({_marks(shown)})"
        stories += _collect(_samples(store, where, [split, *why, *shown]), why)
    return stories, paired


def _training(store: sqlite3.Connection, limit: int) -> list[Story]:
    """Training prompts: those visited at most steps, and the first group of steps spread over the run."""
    query = (
        "SELECT row, COUNT(DISTINCT step) AS visits FROM rollouts WHERE split = 'train'"
        " GROUP BY row HAVING visits > 1 ORDER BY visits DESC, row LIMIT 2"
    )
    why = {int(row): f"training prompt, seen at {visits} steps" for row, visits in store.execute(query)}
    stories = _collect(_samples(store, f"split = 'train' AND row IN ({_marks(why)})", [*why]), why)
    steps = _steps(store, "train")
    for step in (steps[index] for index in spread(len(steps), limit)):
        where = (
            "split = 'train' AND step = ? AND group_id ="
            " (SELECT MIN(group_id) FROM rollouts WHERE split = 'train' AND step = ?)"
        )
        group = list(_samples(store, where, [step, step]))
        if group and group[0].row not in why:
            stories.append(Story(f"training prompt, first group of step {step}", {step: group}))
    return stories


def _open(path: Path) -> sqlite3.Connection:
    """The store, for reading only; as immutable where a read-only folder allows no other way."""
    address = path.resolve().as_uri()
    try:
        store = sqlite3.connect(f"{address}?mode=ro", uri=True)
        store.execute("SELECT 1 FROM rollouts LIMIT 1").fetchone()
    except sqlite3.OperationalError:
        store = sqlite3.connect(f"{address}?immutable=1", uri=True)
    store.text_factory = _decode
    return store


def read_rollouts(path: Path, notes: list[str], *, held_out: int = 6, training: int = 4) -> Rollouts:
    """Read a few stories from the completion store; a damaged or missing store gives fewer, with a note."""
    if not path.is_file():
        notes.append(f"{path.name} is missing, so no completions are shown.")
        return Rollouts()
    stories: list[Story] = []
    paired: list[PairedChange] = []
    trained: list[Story] = []
    try:
        with closing(_open(path)) as store:
            stories, paired = _held_out(store, held_out)
            trained = _training(store, training)
    except (sqlite3.Error, ValueError, TypeError) as error:
        notes.append(f"{path.name} could not be read to its end ({error}); some completions are not shown.")
    return Rollouts(tuple(stories), tuple(trained), tuple(paired))
