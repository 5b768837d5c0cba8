"""From prompts to completions in the order asked for."""

from collections.abc import Iterator, Sequence

import pytest

from rung.batch import Completion
from rung.rollout.collect import collect, requests_for
from rung.rollout.engine import Request
from rung.rollout.local import LocalEngine
from rung.rollout.sampling import sampling_key
from tests.decoders import exact_llama

PROMPTS = [(3, 1, 4), (7,), (3, 1, 4)]


def asked(**changes: object) -> list[Request]:
    settings = {"samples": 4, "max_new_tokens": 9, "seed": 5, "stream": "train"} | changes
    return requests_for(PROMPTS, [40, 2, 11], [0, 0, 3], **settings)


def test_a_request_carries_prompt_keys_group_and_cap() -> None:
    requests = asked()
    assert [request.prompt_ids for request in requests] == PROMPTS
    assert [request.group for request in requests] == [0, 1, 2]
    assert {request.max_new_tokens for request in requests} == {9}
    assert requests[2].keys == tuple(sampling_key(5, "train", 11, 3, sample) for sample in range(4))


def test_every_sample_has_a_key_of_its_own() -> None:
    keys = [key for request in asked() for key in request.keys]
    assert len(set(keys)) == 12


def test_seed_stream_row_and_visit_change_every_key_and_place_in_the_batch_none() -> None:
    keys = {key for request in asked() for key in request.keys}
    for changes in ({"seed": 6}, {"stream": "eval"}):
        assert keys.isdisjoint(key for request in asked(**changes) for key in request.keys)
    settings = {"samples": 4, "max_new_tokens": 9, "seed": 5, "stream": "train"}
    moved = requests_for([(7,)], [2], [0], **settings)
    assert moved[0].keys == asked()[1].keys
    again = requests_for([(7,)], [2], [1], **settings)
    assert keys.isdisjoint(again[0].keys)


def test_a_later_part_of_a_batch_has_groups_of_its_own_and_the_same_keys() -> None:
    later = asked(first_group=3)
    assert [request.group for request in later] == [3, 4, 5]
    assert [request.keys for request in later] == [request.keys for request in asked()]
    assert not any(request.greedy for request in later)
    assert all(request.greedy for request in asked(samples=1, greedy=True))


def test_lists_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        requests_for(PROMPTS, [1, 2], [0, 0], samples=1, max_new_tokens=1, seed=0, stream="train")


def test_completions_come_back_by_group_and_sample() -> None:
    engine = LocalEngine(exact_llama(), {12, 4})
    seen: list[Completion] = []
    done = collect(engine, asked(), seen.append)
    assert [(c.group, c.sample) for c in done] == [(g, s) for g in range(3) for s in range(4)]
    assert [(c.group, c.sample) for c in seen] != [(c.group, c.sample) for c in done]
    assert sorted(map(id, seen)) == sorted(map(id, done))
    assert [c.prompt_ids for c in done] == [prompt for prompt in PROMPTS for _ in range(4)]
    assert [c.sampling_key for c in done] == [key for request in asked() for key in request.keys]


class Backwards:
    """An engine that finishes in the opposite order."""

    def __init__(self) -> None:
        self.engine = LocalEngine(exact_llama(), {12, 4})

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        yield from reversed(list(self.engine.generate(requests)))


def test_the_order_of_finishing_does_not_matter() -> None:
    assert collect(Backwards(), asked()) == collect(LocalEngine(exact_llama(), {12, 4}), asked())


def test_same_prompt_other_row_other_completions() -> None:
    done = collect(LocalEngine(exact_llama(), {12, 4}), asked())
    assert {c.token_ids for c in done if c.group == 0} != {c.token_ids for c in done if c.group == 2}
