"""Decoder families through the whole path: a folder on disk, the probe, the policy, the engine.

Each is random and tiny, with more tokens than its window. What the policy and the engine say is compared with
transformers' eager attention, one row at a time. Bounds: rounding of float32, four times the worst that was measured
(2.6e-6 nats, and 7.6e-7 of the gradient's norm).
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from rung.errors import ModelError
from rung.models import loading
from rung.models.layout import Row
from rung.models.policy import Policy
from rung.rollout.engine import Request
from rung.rollout.local import LocalEngine
from tests.decoders import eager, gradients, naive_table, randomize, weighted

CHARACTERS = "abcdefghijklmnopqrstuvwxyz01"  # with the end token: 29
END = len(CHARACTERS)
ROUNDING, GRADIENT_ROUNDING = 1e-5, 3e-6
IDS = {"bos_token_id": None, "eos_token_id": END, "pad_token_id": END}
SIZES = {
    "vocab_size": END + 1,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    **IDS,
}
SHARED = SIZES | {"num_key_value_heads": 2}
WIDE = SHARED | {"head_dim": 8}
OLD = {"vocab_size": END + 1, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **IDS}
SSM = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 8}

ROWS = [
    Row((1, 2, 3, 4, 5, 6, 7), (8, 9, 10, 11, 12)),
    Row((3, 5), (1,)),
    Row((1, 2, 3, 4, 5, 6, 7), (1, 2)),
    Row((3, 5), (7, 7, 2, 3, 4, 5, 6, 8)),
    Row((3, 5), ()),
]


@dataclass(frozen=True)
class Family:
    """A configuration, and the path that its model must take."""

    name: str
    path: str
    settings: dict[str, Any] = field(hash=False)

    def build(self, seed: int = 0) -> transformers.PreTrainedModel:
        loading.quiet_transformers()
        config = getattr(transformers, f"{self.name}Config")(**self.settings)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return randomize(AutoModelForCausalLM.from_config(config), seed).eval()


GROUPED = [
    Family("Llama", "grouped", SHARED | {"attention_bias": True}),
    Family("Qwen2", "grouped", SHARED),
    Family("Qwen3", "grouped", WIDE),
    Family("Mistral", "grouped", SHARED | {"sliding_window": None}),
    Family("Mixtral", "grouped", SHARED | {"num_local_experts": 2, "num_experts_per_tok": 1}),
    Family("Gemma", "grouped", WIDE),
    Family("Granite", "grouped", SHARED | {"logits_scaling": 3.0, "attention_multiplier": 0.3}),
    Family("Cohere", "grouped", SHARED | {"logit_scale": 0.25}),
    Family("Olmo2", "grouped", SHARED),
    Family("Phi3", "grouped", SHARED),
    Family("SmolLM3", "grouped", SHARED),
    Family("GPT2", "grouped", OLD),
    Family("GPTNeoX", "grouped", SIZES),
    Family(
        "OPT", "grouped", SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64}
    ),
]
WINDOWED = [
    Family("Mistral", "padded", SHARED | {"sliding_window": 4}),
    Family(
        "Gemma2",
        "padded",
        WIDE | {"sliding_window": 4, "final_logit_softcapping": 2.0, "attn_logit_softcapping": 1.0},
    ),
    Family("Gemma3Text", "padded", WIDE | {"sliding_window": 4, "query_pre_attn_scalar": 8}),
    Family("Cohere2", "padded", SHARED | {"sliding_window": 4, "logit_scale": 0.25}),
]
OTHER_ATTENTION = [
    Family("Bloom", "padded", {"vocab_size": END + 1, "hidden_size": 32, "n_layer": 2, "n_head": 4, **IDS}),
    Family("Falcon", "padded", SIZES | {"alibi": True, "new_decoder_architecture": False}),
    Family(
        "GptOss", "padded", WIDE | {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4}
    ),
]
RECURRENT = [
    Family(
        "Mamba",
        "padded",
        {"vocab_size": END + 1, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, **IDS},
    ),
    Family("Bamba", "padded", SHARED | {"attn_layer_indices": [1], "mamba_expand": 2, **SSM}),
    Family("Lfm2", "padded", SHARED | {"layer_types": ["conv", "full_attention"]}),
]
FAMILIES = GROUPED + WINDOWED + OTHER_ATTENTION + RECURRENT
MANY = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{family.name}-{family.path}")


def through_disk(family: Family, folder: Path) -> loading.LanguageModel:
    family.build().save_pretrained(folder)
    loading.character_tokenizer(CHARACTERS).save_pretrained(folder)
    return loading.load(str(folder))


@MANY
def test_family(family: Family, tmp_path: Path) -> None:
    language = through_disk(family, tmp_path)
    assert language.end_ids == {END}
    alone = eager(family.build())
    policy = Policy(language.model)
    assert policy.path == family.path

    output = policy(ROWS)
    expected = naive_table(alone, ROWS)
    assert float(expected.detach().std()) > 0.3
    assert float((output.logprobs - expected).detach().abs().max()) < ROUNDING
    ours = gradients(language.model, weighted(output.logprobs))
    theirs = gradients(alone, weighted(expected))
    gap = torch.cat([(ours[name] - theirs[name]).flatten() for name in theirs]).norm()
    assert float(gap / torch.cat([g.flatten() for g in theirs.values()]).norm()) < GRADIENT_ROUNDING

    # Sampling with a cache from prompts of unequal length, beyond the window, some rows ending before others.
    engine = LocalEngine(language.model, {END, 3})
    requests = [Request(ROWS[0].prompt_ids, tuple(range(6)), 0, 9), Request((3, 5), (11, 12, 13), 1, 12)]
    done = list(engine.generate(requests))
    rows = [Row(c.prompt_ids, c.token_ids) for c in done]
    assert max(len(row.token_ids) for row in rows) > 6
    with torch.no_grad():
        table = naive_table(alone, rows)
        trained = policy(rows).logprobs
    for i, completion in enumerate(done):
        behaviour = torch.tensor(completion.behaviour_logprobs)
        for derivation in (table, trained):
            assert float((derivation[i, : len(behaviour)] - behaviour).abs().max()) < ROUNDING


REFUSED = [
    Family("Rwkv", "padded", {"vocab_size": END + 1, "hidden_size": 32, "num_hidden_layers": 2, **IDS}),
    Family(
        "RecurrentGemma",
        "padded",
        SIZES
        | {"num_key_value_heads": 1, "head_dim": 8, "lru_width": 32, "attention_window_size": 8}
        | {"block_types": ["recurrent", "attention"]},
    ),
]


@pytest.mark.parametrize("family", REFUSED, ids=lambda family: family.name)
def test_the_engine_refuses_a_model_that_keeps_its_past_elsewhere(family: Family) -> None:
    model = family.build()
    assert Policy(model).path == "padded"
    with pytest.raises(ModelError, match="in a way of their own"):
        list(LocalEngine(model, {END}).generate([Request((3, 5), (0,), 0, 4)]))
