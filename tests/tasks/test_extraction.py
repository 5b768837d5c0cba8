"""The extraction task: rewards by hand, splits that share nothing, texts that contain their answer once."""

import json
import re
import subprocess
import sys

import pytest

from rung.batch import Outcome
from rung.tasks.base import Problem, Split
from rung.tasks.extraction import EXAMPLE_ANSWER, ROWS, Extraction, messages, problem, score
from rung.tasks.people import CITIES, FIRST_NAMES, JOBS, SENTENCE_FORMS, SURNAMES

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
MEI = {"name": "Mei Ito", "age": 41, "city": "Leeds"}

WHOLE = [
    '{"name": "Mei Ito", "age": 41, "city": "Leeds"}',
    '{"city":"Leeds","age":41,"name":"Mei Ito"}',
    ' \n{\n  "name": "Mei Ito",\n  "age": 41,\n  "city": "Leeds"\n}\n',
    '{"name": "\\u004dei Ito", "age": 41, "city": "Leeds"}',
]
TWO_RIGHT = [
    '{"name": "Mei Ito", "age": "41", "city": "Leeds"}',
    '{"name": "Mei Ito", "age": 41.0, "city": "Leeds"}',
    '{"name": "Mei", "age": 41, "city": "Leeds"}',
    '{"name": "Mei Ito", "age": 41, "city": "leeds"}',
    '{"name": "Mei Ito ", "age": 41, "city": "Leeds"}',
    '{"name": "Mei Ito", "age": null, "city": "Leeds"}',
    '{"name": ["Mei Ito"], "age": 41, "city": "Leeds"}',
]
ONE_RIGHT = [
    '{"name": "Ann Lee", "age": 41, "city": "Rome"}',
    '{"name": "Mei Ito", "age": 30, "city": {"name": "Leeds"}}',
]
NOTHING = [
    EXAMPLE_ANSWER,
    "",
    "Mei Ito, 41, Leeds",
    "null",
    "41",
    '[{"name": "Mei Ito", "age": 41, "city": "Leeds"}]',
    '{"name": "Mei Ito", "age": 41}',
    '{"name": "Mei Ito", "age": 41, "city": "Leeds", "job": "cook"}',
    '{"Name": "Mei Ito", "age": 41, "city": "Leeds"}',
    '{"name": "Mei Ito", "age": 41, "city": "Leeds", "age": 41}',
    '{"name": "Mei Ito", "age": NaN, "city": "Leeds"}',
    '{"name": "Mei Ito", "age": 41, "city": "Leeds",}',
    "{'name': 'Mei Ito', 'age': 41, 'city': 'Leeds'}",
    '{"name": "Mei Ito", "age": 41, "city": "Leeds"',
    '{"name": "Mei Ito", "age": 41, "city": "Leeds"} Done.',
    '{"name": "Mei Ito", "age": 41, "city": "Leeds"}\n{"name": "Mei Ito", "age": 41, "city": "Leeds"}',
    '```json\n{"name": "Mei Ito", "age": 41, "city": "Leeds"}\n```',
    "[" * 100_000,
    '{"name": "Mei Ito", "age": ' + "4" * 10_000 + ', "city": "Leeds"}',
]


@pytest.mark.parametrize(
    ("completion", "reward"),
    [(text, 1.0) for text in WHOLE]
    + [(text, 1 / 3) for text in TWO_RIGHT]
    + [(text, 1 / 6) for text in ONE_RIGHT]
    + [(text, 0.0) for text in NOTHING],
)
def test_reward_by_hand(completion: str, reward: float) -> None:
    assert score(MEI, completion) == reward
    outcome = Extraction().reward(Problem(row=0, prompt=messages("…"), reference=MEI), completion)
    assert outcome == Outcome("reward", reward)


def test_true_is_not_one() -> None:
    """Python counts true as 1 and 1.0 as 1; JSON does not."""
    baby = {"name": "Mei Ito", "age": 1, "city": "Leeds"}
    assert score(baby, '{"name": "Mei Ito", "age": true, "city": "Leeds"}') == 1 / 3
    assert score(baby, '{"name": "Mei Ito", "age": 1, "city": "Leeds"}') == 1.0


@pytest.mark.parametrize("split", SPLITS)
def test_answer_deserves_the_whole_reward_and_the_example_none(split: Split) -> None:
    task = Extraction()
    for each in task.problems(split):
        assert task.reward(each, task.answer(each)) == Outcome("reward", 1.0)
        assert task.reward(each, EXAMPLE_ANSWER) == Outcome("reward", 0.0)


@pytest.mark.parametrize("split", SPLITS)
def test_text_contains_each_answer_once(split: Split) -> None:
    """As whole words: no other number of the text is the age, and no other name is the person's or the city."""
    for each in Extraction().problems(split):
        text = each.prompt[-1]["content"]
        for value in each.reference.values():
            assert len(re.findall(rf"\b{re.escape(str(value))}\b", text)) == 1, text
        assert "{" not in text
        assert text.endswith(".")


def test_sizes_and_rows() -> None:
    task = Extraction()
    assert [len(task.problems(split)) for split in SPLITS] == [4000, 200, 600]
    rows = [each.row for split in SPLITS for each in task.problems(split)]
    assert rows == list(range(4800))
    assert task.problems("test")[7] == problem(4207)
    with pytest.raises(IndexError, match="4799"):
        problem(4800)
    assert ROWS["test"].stop == 4800


def test_splits_share_no_surname_no_city_and_no_wording() -> None:
    """Read from the texts, not from the lists they were made of."""
    seen: dict[str, dict[str, set[str]]] = {}
    for split in SPLITS:
        surnames, cities, wordings = set(), set(), set()
        for each in Extraction().problems(split):
            text = each.prompt[-1]["content"]
            record = each.reference
            surnames.add(record["name"].split(" ")[1])
            cities |= {city for city in CITIES if re.search(rf"\b{city}\b", text)}
            for value in record.values():
                text = text.replace(str(value), "…")
            for city in cities:
                text = text.replace(city, "…")
            wordings.add(
                re.sub(r"\d+", "…", re.sub("|".join(sorted(JOBS, key=len, reverse=True)), "…", text))
            )
        seen[split] = {"surname": surnames, "city": cities, "wording": wordings}
    for kind in ("surname", "city", "wording"):
        for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
            assert not seen[one][kind] & seen[other][kind], (kind, one, other)


def test_no_full_name_twice() -> None:
    names = [each.reference["name"] for split in SPLITS for each in Extraction().problems(split)]
    assert len(set(names)) == len(names) == 4800


def test_word_lists_repeat_nothing_and_leave_the_example_out() -> None:
    for words in (FIRST_NAMES, SURNAMES, CITIES, JOBS, SENTENCE_FORMS):
        assert len(set(words)) == len(words)
    assert "Ann" not in FIRST_NAMES
    assert "Lee" not in SURNAMES
    assert "Rome" not in CITIES
    assert all(each.reference["age"] != 30 for each in Extraction().problems("train"))


def test_prompt_is_instruction_example_text() -> None:
    roles = [message["role"] for message in problem(0).prompt]
    assert roles == ["system", "user", "assistant", "user"]
    example = json.loads(problem(0).prompt[2]["content"])
    text = problem(0).prompt[1]["content"]
    assert all(str(value) in text for value in example.values())


def test_rows_are_the_same_in_every_process() -> None:
    code = "from rung.tasks.extraction import problem; print([problem(r).prompt for r in (0, 4000, 4799)])"
    for seed in ("1", "2"):
        found = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.strip() == str([problem(row).prompt for row in (0, 4000, 4799)])
