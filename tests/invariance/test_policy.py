"""What must not change a row's log-probabilities: its neighbors, their order, the split, what fills padding."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from rung.models.attention import NAME, register
from rung.models.layout import Row
from rung.models.policy import Path, Policy
from rung.rollout.engine import Request
from rung.rollout.local import LocalEngine
from tests.decoders import (
    ROWS,
    exact_llama,
    gradients,
    largest_gap,
    naive_logprobs,
    plain,
    randomize,
    weighted,
)

EXACT = 1e-10
PATHS: list[Path] = ["grouped", "padded"]
NEVER = 0  # a token that no row below has

token = st.integers(1, 12)
some_rows = st.lists(
    st.builds(
        Row,
        st.sampled_from([(1, 2, 3), (4,), (1, 2, 3, 4, 5), (1, 2)]),
        st.lists(token, max_size=5).map(tuple),
    ),
    min_size=1,
    max_size=6,
)


def table(policy: Policy, rows: Sequence[Row]) -> list[list[float]]:
    with torch.no_grad():
        logprobs = policy(rows).logprobs
    return [logprobs[i, : len(row.token_ids)].tolist() for i, row in enumerate(rows)]


def assert_same(found: list[list[float]], expected: list[list[float]]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=EXACT)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=15)
@given(rows=some_rows, data=st.data())
def test_order_and_neighbors(path: Path, rows: list[Row], data: st.DataObject) -> None:
    policy = Policy(exact_llama(), path=path)
    together = table(policy, rows)
    order = data.draw(st.permutations(range(len(rows))))
    assert_same(table(policy, [rows[i] for i in order]), [together[i] for i in order])
    assert_same([table(policy, [row])[0] for row in rows], together)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("cut", range(1, len(ROWS)))
def test_micro_batches_add_up_to_the_whole_gradient(path: Path, cut: int) -> None:
    model = exact_llama()
    policy = Policy(model, path=path)
    whole = gradients(model, policy(ROWS).logprobs.square().sum())
    parts = [gradients(model, policy(part).logprobs.square().sum()) for part in (ROWS[:cut], ROWS[cut:])]
    summed = {name: parts[0][name] + parts[1][name] for name in whole}
    assert largest_gap(summed, whole) < EXACT


@pytest.mark.parametrize("path", PATHS)
def test_a_row_beyond_its_end_is_zero_and_has_no_gradient(path: Path) -> None:
    model = exact_llama()
    policy = Policy(model, path=path)
    logprobs = policy(ROWS).logprobs
    beyond = torch.ones_like(logprobs, dtype=torch.bool)
    for i, row in enumerate(ROWS):
        beyond[i, : len(row.token_ids)] = False
    assert int(beyond.sum()) > 10
    assert bool((logprobs[beyond] == 0).all())
    assert all(float(g.abs().max()) == 0 for g in gradients(model, logprobs[beyond].sum()).values())


def poisoned(model: PreTrainedModel) -> PreTrainedModel:
    """NaN where only a token that no row has could bring it in."""
    with torch.no_grad():
        model.get_input_embeddings().weight[NEVER] = torch.nan
    return model


@pytest.mark.parametrize("path", PATHS)
def test_what_fills_the_padding_is_never_a_foreign_token(path: Path) -> None:
    clean, model = exact_llama(), poisoned(exact_llama())
    rows = [row for row in ROWS if NEVER not in row.prompt_ids + row.token_ids]
    assert len(rows) == len(ROWS)
    assert_same(table(Policy(model, path=path), rows), table(Policy(clean, path=path), rows))
    found, expected = (gradients(m, weighted(Policy(m, path=path)(rows).logprobs)) for m in (model, clean))
    assert largest_gap(found, expected) < EXACT


def test_what_fills_the_padding_of_prompts_is_never_a_foreign_token() -> None:
    requests = [Request((3, 1, 4, 1, 5), (1, 2), 0, 1), Request((7,), (3, 4), 1, 1)]
    clean, model = exact_llama(), poisoned(exact_llama())
    found, expected = (
        sorted(
            (c.group, c.sample, c.token_ids, c.behaviour_logprobs)
            for c in LocalEngine(m, {12}).generate(requests)
        )
        for m in (model, clean)
    )
    assert found == expected


def test_case_N3_the_mask_is_shifted_with_the_tokens_and_not_with_the_logits() -> None:
    """Logits before the last, ids after the first, and of the mask what is after the first too: no mistake.

    What stands at position j is log π of token j + 1, so that mask[1:] keeps the first token of the answer and its
    end. mask[:-1] would drop the first and keep what follows the end.
    """
    model, policy = exact_llama(), Policy(exact_llama(), path="padded")
    own = policy(ROWS).logprobs.sum(1).tolist()
    for row, total in zip(ROWS, own, strict=True):
        ids = torch.tensor([*row.prompt_ids, *row.token_ids, 12, 12])
        answer = torch.zeros(len(ids), dtype=torch.bool)
        answer[len(row.prompt_ids) : len(row.prompt_ids) + len(row.token_ids)] = True
        logprobs = plain(model)(input_ids=ids.unsqueeze(0), use_cache=False).logits[0].log_softmax(-1)
        shifted = logprobs[:-1].gather(1, ids[1:].unsqueeze(1)).squeeze(1)
        np.testing.assert_allclose(shifted[answer[1:]].sum().item(), total, rtol=0, atol=EXACT)
        assert not row.token_ids or abs(shifted[answer[:-1]].sum().item() - total) > 0.05


# --- absolute positions ---


def gpt2() -> PreTrainedModel:
    sizes = {"vocab_size": 13, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32}
    config = GPT2Config(**sizes, bos_token_id=None, eos_token_id=12)
    register()
    config._attn_implementation = NAME
    return randomize(GPT2LMHeadModel(config).double(), 0).eval()


@pytest.mark.parametrize("pads", [0, 1, 2, 5])
def test_c6_left_padding_moves_no_position(pads: int) -> None:
    """A three-token prompt beside one that is longer by 0, 1, 2 or 5 tokens: positions count real tokens alone."""
    model = gpt2()
    policy = Policy(model, path="grouped")
    seen: list[torch.Tensor] = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["position_ids"].clone()), with_kwargs=True
    )
    mate = Request(tuple(range(1, 4 + pads)), (9,), 1, 6)
    row = Request((5, 6, 7), (1, 2, 3), 0, 6)
    done = [c for c in LocalEngine(model, ()).generate([mate, row]) if c.group == 0]
    hook.remove()
    assert seen[0][1, -3:].tolist() == [0, 1, 2]
    assert [positions[-1].item() for positions in seen[1:3]] == [3, 4]
    single = {c.sample: c for c in LocalEngine(model, ()).generate([row])}
    for completion in done:
        expected = naive_logprobs(model, Row(completion.prompt_ids, completion.token_ids)).detach()
        np.testing.assert_allclose(completion.behaviour_logprobs, expected, rtol=0, atol=EXACT)
        assert completion.token_ids == single[completion.sample].token_ids
        for path in PATHS:
            policy.path = path
            found = table(policy, [Row(completion.prompt_ids, completion.token_ids), *ROWS])[0]
            np.testing.assert_allclose(completion.behaviour_logprobs, found, rtol=0, atol=EXACT)


def test_c6_positions_matter_to_this_model() -> None:
    """Otherwise the test above would show nothing."""
    model = gpt2()
    ids = torch.tensor([[5, 6, 7]])
    here, there = (
        model(input_ids=ids, position_ids=torch.arange(3).unsqueeze(0) + shift).logits for shift in (0, 1)
    )
    assert float((here - there).detach().abs().max()) > 0.1


# --- every arrangement of three rows, as the micro-batches of a training step may have them ---


def test_every_order_of_a_group_gives_the_same_gradient() -> None:
    model = exact_llama()
    rows = [ROWS[0], ROWS[1], ROWS[5]]
    weights = [0.5, -1.0, 2.0]
    expected = None
    for order in itertools.permutations(range(3)):
        logprobs = Policy(model, path="grouped")([rows[i] for i in order]).logprobs
        loss = sum(weights[i] * logprobs[place].sum() for place, i in enumerate(order))
        assert isinstance(loss, torch.Tensor)
        found = gradients(model, loss)
        expected = expected or found
        assert largest_gap(found, expected) < EXACT
