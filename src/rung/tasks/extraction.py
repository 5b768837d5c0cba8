"""Record extraction: read a sentence about a person, write name, age and city as one JSON object.

A small model does this now and then; reinforcement learning makes it reliable. The answer is known exactly, so the
reward needs no judge.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from rung.tasks.base import Message, Problem, Split, split_of
from rung.tasks.people import CITIES, FIRST_NAMES, JOBS, SENTENCE_FORMS, SURNAMES

if TYPE_CHECKING:
    from rung.batch import Outcome

KEYS = ("name", "age", "city")
INSTRUCTION = "Copy name, age and city from the text into JSON."
EXAMPLE_TEXT = "Ann Lee is 30 and lives in Rome."
EXAMPLE_ANSWER = '{"name": "Ann Lee", "age": 30, "city": "Rome"}'
ROWS: dict[Split, range] = {
    "train": range(4000),
    "validation": range(4000, 4200),
    "test": range(4200, 4800),
}
_SPLITS: tuple[Split, ...] = ("train", "validation", "test")
_AGES = tuple(age for age in range(18, 90) if age != 30)


class _NotStrict(ValueError):
    """JSON that Python would accept and the task does not."""


@dataclass(frozen=True)
class Extraction:
    """Sentences about a person, scored on the JSON record written for them.

    Reward of a completion, in [0, 1]; white space around the object and the order of keys do not matter:

        1.0               one valid JSON object with exactly the keys name, age, city and all three values right
        0.5 · right / 3   such an object with one or two values right: 1/6 or 1/3
        0.0               anything else: no value right, prose or code fences around the object, a missing, extra or
                          repeated key, invalid JSON, a completion that was cut off

    A value is right when it is equal to the reference: name and city as strings, letter by letter; age as a JSON
    integer (34, not "34", 34.0 or true). The share of completions with reward 1 is the exact-match rate.

    Every row is a pure function of its number. A surname, a city and a sentence form each belong to one split by
    hash, so no test person, test city or test wording is ever trained on. No two rows share a full name.
    """

    name: str = "extraction"

    def problems(self, split: Split) -> Sequence[Problem]:
        """All problems of a split, by row."""
        return _problems(split)

    def reward(self, problem: Problem, completion: str) -> "Outcome":
        """Compare a completion with the record: see the class for the scale."""
        from rung.batch import Outcome

        return Outcome(kind="reward", reward=score(problem.reference, completion))

    def answer(self, problem: Problem) -> str:
        """The record as the worked example spells it: reward 1."""
        return json.dumps(problem.reference, ensure_ascii=False)


def score(reference: dict[str, Any], completion: str) -> float:
    """Reward of a completion's text against the true record.

    >>> record = {"name": "Mei Ito", "age": 41, "city": "Leeds"}
    >>> score(record, '{"name": "Mei Ito", "city": "Leeds", "age": 41}')
    1.0
    >>> score(record, '{"name": "Mei Ito", "city": "Leeds", "age": "41"}') == 0.5 * 2 / 3
    True
    """
    record = parse_record(completion)
    if record is None:
        return 0.0
    right = sum(type(record[key]) is type(reference[key]) and record[key] == reference[key] for key in KEYS)
    return 1.0 if right == len(KEYS) else 0.5 * right / len(KEYS)


def parse_record(completion: str) -> dict[str, Any] | None:
    """The JSON object that a completion consists of, if it has exactly the task's keys; None otherwise."""
    try:
        value = json.loads(completion.strip(), object_pairs_hook=_unique_keys, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and set(value) == set(KEYS) else None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object, refusing repeated keys: the last one would win silently."""
    record = dict(pairs)
    if len(record) != len(pairs):
        raise _NotStrict("repeated key")
    return record


def _refuse(constant: str) -> NoReturn:
    """Refuse NaN and Infinity, which JSON does not have."""
    raise _NotStrict(constant)


def messages(text: str) -> tuple[Message, ...]:
    """The chat that asks for a text's record: the instruction, one worked example, the text."""
    return (
        {"role": "system", "content": INSTRUCTION},
        {"role": "user", "content": EXAMPLE_TEXT},
        {"role": "assistant", "content": EXAMPLE_ANSWER},
        {"role": "user", "content": text},
    )


def problem(row: int) -> Problem:
    """The problem of a row, in [0, 4800)."""
    split = next((name for name in _SPLITS if row in ROWS[name]), None)
    if split is None:
        raise IndexError(f"row {row} of the extraction task: rows run from 0 to {ROWS['test'].stop - 1}")
    words = _words(split)
    place = _draw(row, "city", len(words.cities))
    other = (place + 1 + _draw(row, "other city", len(words.cities) - 1)) % len(words.cities)
    record = {
        "name": words.people[row - ROWS[split].start],
        "age": _AGES[_draw(row, "age", len(_AGES))],
        "city": words.cities[place],
    }
    text = words.forms[_draw(row, "form", len(words.forms))].format(
        **record,
        job=JOBS[_draw(row, "job", len(JOBS))],
        other_city=words.cities[other],
    )
    return Problem(row=row, prompt=messages(_article(text)), reference=record)


def _article(text: str) -> str:
    """Write "an" before the jobs that need it: architect, electrician, engineer."""
    for job in JOBS:
        if job[0] in "aeiou":
            text = text.replace(f" a {job}", f" an {job}")
    return text


def _draw(row: int, what: str, below: int) -> int:
    """A number in [0, below) that depends on row and purpose only."""
    digest = hashlib.sha256(f"extraction:{row}:{what}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % below


@dataclass(frozen=True)
class _Words:
    """What the texts of one split are made of."""

    people: tuple[str, ...]
    cities: tuple[str, ...]
    forms: tuple[str, ...]


@lru_cache(maxsize=3)
def _words(split: Split) -> _Words:
    """The words of a split: each surname, city and form is in one split by hash; full names shuffled by hash."""

    def mine(items: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(item for item in items if split_of(item, validation=12, test=18) == split)

    people = [f"{first} {last}" for first in FIRST_NAMES for last in mine(SURNAMES)]
    shuffled = sorted(people, key=lambda name: hashlib.sha256(name.encode()).digest())
    return _Words(people=tuple(shuffled), cities=mine(CITIES), forms=mine(SENTENCE_FORMS))


@lru_cache(maxsize=3)
def _problems(split: Split) -> tuple[Problem, ...]:
    """The problems of a split, built once."""
    return tuple(problem(row) for row in ROWS[split])
