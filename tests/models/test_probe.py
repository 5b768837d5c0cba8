"""The probe at load: it takes the fast path only where that is right, and refuses what it does not know."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from rung.errors import ModelError
from rung.models import loading
from rung.models import policy as policy_module
from rung.models.attention import group_attention
from rung.models.layout import Layout, Row, pack
from rung.models.policy import Policy, probe
from tests.decoders import ROWS, exact_llama, randomize


def test_the_probe_chooses_groups_for_llama_and_padding_for_a_foreign_attention() -> None:
    model = exact_llama()
    assert Policy(model).path == "grouped"
    model.set_attn_implementation("sdpa")
    assert Policy(model).path == "padded"
    with pytest.raises(ModelError, match="needs the attention rung_group"):
        Policy(model, path="grouped")(ROWS)


def test_an_unmodified_llama_in_float64_is_grouped_although_its_norms_round_to_float32() -> None:
    language = loading.scratch(
        "0123456789", seed=1, hidden_size=32, intermediate_size=48, num_hidden_layers=2
    )
    assert Policy(randomize(language.model, 1).double()).path == "grouped"


def blind(lay: Layout) -> Layout:
    """Completions that do not see their prompt."""
    mask = lay.own_mask.clone()
    mask[..., : lay.prompt_slots.shape[1]] = False
    mask[..., lay.prompt_slots.shape[1]] = True
    return replace(lay, own_mask=mask)


PLANTED = {
    "completions do not see their prompt": blind,
    "completions see their own future": lambda lay: replace(lay, own_mask=torch.ones_like(lay.own_mask)),
    "positions start again after the prompt": lambda lay: replace(
        lay, positions=lay.positions.clone().index_fill_(1, lay.row_slots.flatten(), 0)
    ),
    "predictors one late": lambda lay: replace(lay, predictors=(lay.predictors + 1) % len(lay.back)),
}


@pytest.mark.parametrize("vocabulary", [7, 13, 14, 400])
@pytest.mark.parametrize("fault", PLANTED)
def test_the_probe_sees_a_wrong_packing(fault: str, vocabulary: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = exact_llama(vocab_size=vocabulary, pad_token_id=None, eos_token_id=1)
    assert Policy(model).path == "grouped"
    monkeypatch.setattr(policy_module, "pack", lambda rows: PLANTED[fault](pack(rows)))
    assert Policy(model).path == "padded"


def test_the_probe_sees_a_wrong_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            return 2 * grads[0]

    model = exact_llama()
    policy = Policy(model)
    assert policy.path == "grouped"
    normal = policy._grouped

    def with_wrong_gradient(rows: Sequence[Row]) -> Any:
        hidden, *rest = normal(rows)
        return Doubled.apply(hidden), *rest

    monkeypatch.setattr(policy, "_grouped", with_wrong_gradient)
    assert probe(policy) == "padded"


def test_the_probe_needs_no_gradient_mode_and_leaves_no_gradient_behind() -> None:
    model = exact_llama()
    with torch.no_grad():
        assert Policy(model).path == "grouped"
    assert all(parameter.grad is None for parameter in model.parameters())
    assert Policy(loading.frozen_copy(model)).path == "grouped"


class DoubledLogits(LlamaForCausalLM):
    """A model that does to its logits what no configuration says."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = 2 * output.logits
        return output


def test_a_model_that_transforms_its_logits_in_an_unknown_way_is_refused() -> None:
    model = exact_llama()
    model.__class__ = DoubledLogits
    with pytest.raises(ModelError, match="does not know"):
        Policy(model)


def test_an_attention_that_asks_for_more_than_ours_computes_is_refused() -> None:
    model = exact_llama()
    q = torch.ones(1, 4, 2, 4, dtype=torch.float64)
    for name in ("softcap", "s_aux"):
        with pytest.raises(ModelError, match=name):
            group_attention(model, q, q, q, None, **{name: 1.0})
    for name in ("sliding_window", "position_bias"):
        with pytest.raises(ModelError, match=name):
            group_attention(model, q, q, q, None, group_layout=pack(ROWS), **{name: 3})
