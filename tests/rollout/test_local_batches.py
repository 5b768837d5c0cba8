"""What the engine computes for its batch, and what a batch must not change."""

from typing import Any

import numpy as np
import pytest
import torch

from rung.batch import Completion
from rung.rollout.engine import Request
from rung.rollout.local import LocalEngine
from tests.decoders import exact_llama, plain
from tests.sampled import ENDS, LONG, REQUESTS, sample


def watched(model: Any) -> list[tuple[int, ...]]:
    """The shape of the input ids of every forward call."""
    shapes: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return shapes


def test_a_group_computes_its_prompt_once_and_finished_rows_leave() -> None:
    model = exact_llama()
    shapes = watched(model)
    found = sample(model=model)
    assert shapes[0] == (3, len(LONG))
    lengths = [len(completion.token_ids) for completion in found.values()]
    # After its s-th token, a row is in the batch of the next call only if it goes on.
    expected = [(sum(length > s for length in lengths), 1) for s in range(1, max(lengths))]
    assert shapes[1:] == expected
    assert len({rows for rows, _ in expected}) > 3


def test_equal_prompts_of_two_requests_are_computed_once() -> None:
    model = exact_llama()
    shapes = watched(model)
    sample([Request(LONG, (1, 2), 0, 3), Request(LONG, (3,), 1, 3)], model=model)
    assert shapes[0] == (1, len(LONG))


@pytest.mark.parametrize(("max_rows", "waves"), [(12, 1), (10, 2), (9, 2), (6, 2), (4, 4), (1, 12)])
def test_waves_hold_no_more_rows_than_allowed(
    max_rows: int, waves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of 6, 4 and 2 rows stay together where they fit."""
    prefills: list[int] = []
    true_prefill = LocalEngine._prefill

    def count(engine: LocalEngine, prompts: list[tuple[int, ...]]) -> Any:
        prefills.append(len(prompts))
        return true_prefill(engine, prompts)

    monkeypatch.setattr(LocalEngine, "_prefill", count)
    model = exact_llama()
    shapes = watched(model)
    assert len(sample(model=model, max_rows=max_rows)) == 12
    assert max(rows for rows, _ in shapes) <= max_rows
    assert len(prefills) == waves


def test_completions_come_as_they_finish() -> None:
    done = list(LocalEngine(exact_llama(), ENDS).generate(REQUESTS))
    lengths = [len(completion.token_ids) for completion in done]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 3


# --- independence ---


def alone() -> dict[tuple[int, int], Completion]:
    """Every sample in a batch of its own."""
    out = {}
    for request in REQUESTS:
        for i, key in enumerate(request.keys):
            single = Request(request.prompt_ids, (key,), request.group, request.max_new_tokens)
            out[request.group, i] = sample([single])[request.group, 0]
    return out


ARRANGED: dict[str, dict[str, Any]] = {
    "waves of 4": {"max_rows": 4},
    "waves of 1": {"max_rows": 1},
    "reversed": {"requests": REQUESTS[::-1]},
    "with strangers": {"requests": [Request((5,) * 11, (1, 2, 3), 9, 7), *REQUESTS]},
}


@pytest.mark.parametrize("how", ARRANGED)
def test_batch_mates_order_and_waves_change_nothing(how: str) -> None:
    expected = alone()
    found = sample(**ARRANGED[how])
    assert expected.keys() <= found.keys()
    for which, completion in expected.items():
        assert found[which].token_ids == completion.token_ids
        assert found[which].end_reason == completion.end_reason
        np.testing.assert_allclose(
            found[which].behaviour_logprobs, completion.behaviour_logprobs, rtol=0, atol=1e-12
        )


def test_h7_the_same_keys_give_the_same_tokens_and_other_keys_others() -> None:
    many = Request(LONG, tuple(range(40)), 0, 8)
    once, again = sample([many]), sample([many])
    assert [c.token_ids for c in once.values()] == [c.token_ids for c in again.values()]
    assert [c.behaviour_logprobs for c in once.values()] == [c.behaviour_logprobs for c in again.values()]
    assert len({c.token_ids for c in once.values()}) > 30
    twins = sample([Request(LONG, (5, 5, 6), 0, 8)])
    assert twins[0, 0].token_ids == twins[0, 1].token_ids != twins[0, 2].token_ids


def test_sampling_does_not_touch_the_global_generators() -> None:
    model = exact_llama()
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = sample(model=model)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    np.random.seed(2)
    assert [c.token_ids for c in sample().values()] == [c.token_ids for c in first.values()]


def test_a_tiny_temperature_follows_the_most_likely_tokens() -> None:
    found = sample([Request(LONG, (1, 2, 3), 0, 10)], temperature=1e-4)
    model = plain(exact_llama())
    tokens: list[int] = []
    while len(tokens) < 10 and (not tokens or tokens[-1] not in ENDS):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*LONG, *tokens]]), use_cache=False).logits[0, -1]
        tokens.append(int(logits.argmax()))
    assert {completion.token_ids for completion in found.values()} == {tuple(tokens)}
