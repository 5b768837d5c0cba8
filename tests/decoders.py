"""Small decoders for tests, and log-probabilities taken from them in the plainest way."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from rung.models import loading
from rung.models.attention import NAME, register
from rung.models.layout import Row

SMOLLM2 = Path(__file__).parents[1] / "models" / "smollm2-135m-instruct"

# Three prompts of unequal length in groups of 4, 2 and 1; completions of 0 to 6 tokens, rows of a group not adjacent.
ROWS = [
    Row((3, 1, 4, 1, 5), (9, 2, 6)),
    Row((7,), (8, 2, 8, 1, 8, 4)),
    Row((3, 1, 4, 1, 5), (6,)),
    Row((3, 1, 4, 1, 5), ()),
    Row((2, 7, 1), (8, 2)),
    Row((3, 1, 4, 1, 5), (9, 2, 7, 10, 11)),
    Row((7,), (12,)),
]


def randomize(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Weights large enough that attention is far from uniform and every bias and norm matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim < 2:
                parameter.add_((0.2 * noise).to(parameter.dtype))
            else:
                parameter.copy_((noise / parameter.shape[-1] ** 0.5).to(parameter.dtype))
    return model


def exact_llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """A Llama in float64 throughout: its norms, which would round to float32, are torch's own. Grouped heads."""
    register()
    loading.quiet_transformers()
    sizes = {
        "vocab_size": 13,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "bos_token_id": None,
        "eos_token_id": 12,
        "pad_token_id": 12,
    }
    config = LlamaConfig(**(sizes | changes))
    config._attn_implementation = NAME
    model = LlamaForCausalLM(config).double()
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, LlamaRMSNorm):
                setattr(parent, name, torch.nn.RMSNorm(child.weight.numel(), eps=1e-6, dtype=torch.float64))
    return randomize(model, seed).eval()


def _plain_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of one row, one head after the other."""
    assert query.shape[0] == 1
    assert attention_mask is None
    heads, length = query.shape[1:3]
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    out = []
    for head in range(heads):
        shared = head * key.shape[1] // heads
        scores = query[0, head] @ key[0, shared].T * scaling
        out.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ value[0, shared])
    return torch.stack(out, dim=1).unsqueeze(0), None


def plain(model: PreTrainedModel) -> PreTrainedModel:
    """A twin with an attention of the tests' own, in the model's precision, for one row at a time."""
    AttentionInterface.register("tests_plain", _plain_attention)
    twin = copy.deepcopy(model)
    twin.set_attn_implementation("tests_plain")
    return twin


def eager(model: PreTrainedModel) -> PreTrainedModel:
    """A twin with transformers' eager attention, where the family has one: matrix products and a softmax."""
    twin = copy.deepcopy(model)
    twin.set_attn_implementation("eager")
    return twin


def naive_logprobs(model: PreTrainedModel, row: Row, temperature: float = 1.0) -> torch.Tensor:
    """[T] log π of a row's tokens: the row alone, the model's own logits, log_softmax, one look-up a token."""
    if not row.token_ids:
        return torch.zeros(0, dtype=model.dtype)
    logits = model(input_ids=torch.tensor([row.prompt_ids + row.token_ids]), use_cache=False).logits[0]
    table = torch.log_softmax(logits / temperature, dim=-1)
    return torch.stack([table[len(row.prompt_ids) + t - 1, token] for t, token in enumerate(row.token_ids)])


def naive_table(model: PreTrainedModel, rows: Sequence[Row], temperature: float = 1.0) -> torch.Tensor:
    """[B, T] of the same, 0 beyond a row's end."""
    parts = [naive_logprobs(model, row, temperature) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)


def weighted(logprobs: torch.Tensor) -> torch.Tensor:
    """A scalar of [B, T] in which every entry has a weight of its own."""
    weights = torch.linspace(-1.0, 2.0, logprobs.numel(), dtype=logprobs.dtype).view_as(logprobs)
    return (weights * logprobs).sum()


def gradients(model: PreTrainedModel, value: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradient of a scalar with regard to every parameter, by name; a parameter without influence has 0."""
    named = dict(model.named_parameters())
    parts = torch.autograd.grad(value, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if part is None else part
        for (name, parameter), part in zip(named.items(), parts, strict=True)
    }


def largest_gap(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference between two sets of gradients."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def smollm2() -> loading.LanguageModel:
    """SmolLM2-135M-Instruct, which slow tests need."""
    if not (SMOLLM2 / "config.json").is_file():
        pytest.fail(f"{SMOLLM2} is missing: run `make smollm2` first", pytrace=False)
    return loading.load(str(SMOLLM2))
