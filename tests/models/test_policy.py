"""The policy's log-probabilities: packed, padded and one row at a time are one function, values and gradients."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from rung.errors import InvalidInput
from rung.models import head as head_module
from rung.models import loading
from rung.models.layout import Row, pack
from rung.models.policy import Path, Policy
from tests import decoders
from tests.decoders import ROWS, exact_llama, gradients, largest_gap, naive_table, plain, weighted

EXACT = 1e-10
# Rounding in float32, each bound about four times what was measured: 9.5e-7 nats and 1.9e-6 of the largest gradient on
# the small model; 1.5e-5 (2.6e-5 at worst, on other rows) and 9.3e-5 on SmolLM2.
FLOAT32_VALUES = 4e-6
FLOAT32_GRADIENTS = 8e-6
SMOLLM2_VALUES = 1e-4
SMOLLM2_GRADIENTS = 4e-4
PATHS: list[Path] = ["grouped", "padded"]
ARRANGEMENTS = {
    "all": ROWS,
    "one row": ROWS[:1],
    "one group": [row for row in ROWS if row.prompt_ids == (3, 1, 4, 1, 5)],
    "groups of one": [ROWS[0], ROWS[1], ROWS[4]],
    "one token each": [ROWS[2], ROWS[6]],
    "with an empty row": [ROWS[3], ROWS[6]],
    "the same row twice": [ROWS[0], ROWS[0]],
}


def values_and_gradients(
    policy: Policy, path: Path, rows: Sequence[Row]
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    policy.path = path
    output = policy(rows)
    return output.logprobs.detach(), output.entropy, gradients(policy.model, weighted(output.logprobs))


def naive_entropies(model: LlamaForCausalLM, rows: Sequence[Row], temperature: float) -> torch.Tensor:
    """[B, T] −Σ p log p before each token, from the whole logits of one row at a time."""
    parts = []
    for row in rows:
        logits = model(input_ids=torch.tensor([row.prompt_ids + row.token_ids]), use_cache=False).logits[0]
        p = torch.softmax(logits / temperature, dim=-1)[len(row.prompt_ids) - 1 :][: len(row.token_ids)]
        parts.append(-(p * p.log()).sum(-1))
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)


@pytest.mark.parametrize("rows_at_once", [2, 1000], ids=lambda n: f"chunks-of-{n}")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_live_entropy_has_its_exact_gradient(
    temperature: float, path: Path, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every parameter, by autograd on whole logits; where nobody asks for it there is none."""
    monkeypatch.setattr(head_module, "CHUNK_ELEMENTS", rows_at_once * 13)
    model = exact_llama()
    alone = plain(model)
    expected = naive_entropies(alone, ROWS, temperature)
    policy = Policy(model, temperature=temperature, path=path)
    output = policy(ROWS, live_entropy=True)
    torch.testing.assert_close(output.entropy, expected, rtol=0, atol=EXACT)
    theirs = gradients(alone, weighted(expected))
    assert max(float(gradient.abs().max()) for gradient in theirs.values()) > 0.05
    assert largest_gap(gradients(model, weighted(output.entropy)), theirs) < EXACT
    assert not policy(ROWS).entropy.requires_grad


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("heads", [{}, {"num_key_value_heads": 4}, {"tie_word_embeddings": True}], ids=str)
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_packed_is_padded_is_row_by_row(arrangement: str, heads: dict[str, Any], temperature: float) -> None:
    rows = ARRANGEMENTS[arrangement]
    model = exact_llama(**heads)
    policy = Policy(model, temperature=temperature, path="grouped")
    alone = plain(model)
    table = naive_table(alone, rows, temperature)
    expected = gradients(alone, weighted(table))
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 0.05
    for path in PATHS:
        logprobs, entropy, found = values_and_gradients(policy, path, rows)
        torch.testing.assert_close(logprobs, table.detach(), rtol=0, atol=EXACT)
        assert largest_gap(found, expected) < EXACT
        assert entropy.shape == logprobs.shape
        assert not entropy.requires_grad


@pytest.mark.parametrize("path", PATHS)
def test_scores_are_scaled_as_the_model_says(path: Path) -> None:
    model = exact_llama()
    for layer in model.model.layers:
        layer.self_attn.scaling = 1.7
    logprobs = Policy(model, path=path)(ROWS).logprobs.detach()
    torch.testing.assert_close(logprobs, naive_table(plain(model), ROWS).detach(), rtol=0, atol=EXACT)


@pytest.mark.parametrize("path", PATHS)
def test_entropy_is_that_of_the_whole_distribution(path: Path) -> None:
    model = exact_llama()
    policy = Policy(model, temperature=0.7, path=path)
    entropy = policy(ROWS).entropy
    alone = plain(model)
    for i, row in enumerate(ROWS):
        logits = alone(input_ids=torch.tensor([row.prompt_ids + row.token_ids]), use_cache=False).logits[0]
        p = (logits.detach() / 0.7).softmax(-1)
        for t in range(entropy.shape[1]):
            at = p[len(row.prompt_ids) + t - 1] if t < len(row.token_ids) else None
            expected = 0.0 if at is None else -float((at * at.log()).sum())
            assert float(entropy[i, t]) == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize("path", PATHS)
def test_rows_without_a_token_give_an_empty_table_and_no_gradient(path: Path) -> None:
    model = exact_llama()
    policy = Policy(model, path=path)
    logprobs = policy([Row((1, 2), ()), Row((3,), ())]).logprobs
    assert logprobs.shape == (2, 0)
    found = gradients(model, logprobs.sum())
    assert all(float(gradient.abs().max()) == 0 for gradient in found.values())


def test_no_rows_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no rows"):
        Policy(exact_llama())([])


def float32_model() -> LlamaForCausalLM:
    """An unmodified transformers Llama, 4 layers wide enough that rounding adds up."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    language = loading.scratch("0123456789+=", seed=1, num_key_value_heads=2, **sizes)
    return decoders.randomize(language.model, 1)


def relative_gap(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of any parameter's gradient, in units of that parameter's largest gradient."""
    return max(float((one[name] - other[name]).abs().max() / other[name].abs().max()) for name in one)


def test_packed_is_padded_in_float32_within_rounding() -> None:
    policy = Policy(float32_model())
    assert policy.path == "grouped"
    packed, _, packed_gradients = values_and_gradients(policy, "grouped", ROWS)
    padded, _, padded_gradients = values_and_gradients(policy, "padded", ROWS)
    assert float((packed - padded).abs().max()) < FLOAT32_VALUES
    assert relative_gap(packed_gradients, padded_gradients) < FLOAT32_GRADIENTS


class Largest(TorchDispatchMode):
    """Remembers the most elements that any tensor had while it was on."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


@pytest.mark.parametrize("path", PATHS)
def test_h13_logits_of_all_tokens_never_stand_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = exact_llama(vocab_size=400, hidden_size=8, intermediate_size=8, num_hidden_layers=1)
    monkeypatch.setattr(head_module, "CHUNK_ELEMENTS", 8 * 400)
    rows = [Row((i % 3 + 1, 2), tuple(range(20 + i, 28 + i))) for i in range(6)]
    policy = Policy(model, path=path)
    with Largest() as seen:
        policy(rows).logprobs.sum().backward()
    assert seen.elements == 8 * 400  # a chunk's logits, and the output layer's weight
    assert seen.elements * 6 == 6 * 8 * 400  # a sixth of B·T·V


def test_group_attention_builds_nothing_quadratic_in_the_packed_line() -> None:
    model = exact_llama(vocab_size=13, hidden_size=8, intermediate_size=8, num_hidden_layers=1)
    rows = [Row((1, 2, 3), tuple((i + t) % 13 for t in range(6))) for i in range(40)]
    policy = Policy(model, path="grouped")
    line = pack(rows).input_ids.shape[1]
    with Largest() as seen, torch.no_grad():
        policy(rows)
    assert seen.elements < line * line / 4


# --- dropout ---


def models_with_dropout() -> list[Any]:
    gpt2 = GPT2Config(
        vocab_size=13, n_embd=16, n_layer=2, n_head=4, n_positions=64, bos_token_id=None, eos_token_id=12,
        resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1,
    )  # fmt: skip
    return [exact_llama(attention_dropout=0.1), decoders.randomize(GPT2LMHeadModel(gpt2).double(), 0)]


@pytest.mark.parametrize("which", [0, 1], ids=["llama", "gpt2"])
def test_e3_dropout_leaves_the_ratio_at_one(which: int) -> None:
    model = models_with_dropout()[which].train()
    policy = Policy(model)
    old = policy(ROWS).logprobs.detach()
    policy.train()  # as a training loop is used to say
    assert not any(module.training for module in policy.modules())
    again = torch.zeros_like(old)
    for i, row in enumerate(ROWS):  # another micro-batch size
        again[i, : len(row.token_ids)] = policy([row]).logprobs[0].detach()
    # GPT-2's causal path computes in float64 throughout, Llama's norms are torch's own: rounding alone.
    assert float((again - old).abs().max()) < EXACT


# --- a real model ---


def real_rows(language: loading.LanguageModel) -> list[Row]:
    """Three questions in chat form, each with answers of unequal length."""
    answers = {
        "What is the capital of France?": ["Paris.", "The capital of France is the city of Paris.", "I"],
        "List three fruits.": ["Apple, banana, cherry.", "1. Apples\n2. Oranges\n3. Pears"],
        "Why is the sky blue? Answer in one sentence, please, and do not speak of anything else.": [
            "Because air scatters blue light more strongly than red light."
        ],
    }
    return [
        Row(language.encode([{"role": "user", "content": question}]), (*language.encode(answer), 2))
        for question, texts in answers.items()
        for answer in texts
    ]


@pytest.mark.slow
def test_smollm2_packed_is_padded_within_rounding() -> None:
    language = decoders.smollm2()
    policy = Policy(language.model)
    assert policy.path == "grouped"
    rows = real_rows(language)
    packed, _, packed_gradients = values_and_gradients(policy, "grouped", rows)
    padded, _, padded_gradients = values_and_gradients(policy, "padded", rows)
    with torch.no_grad():
        alone = naive_table(language.model, rows)
    assert float((packed - padded).abs().max()) < SMOLLM2_VALUES
    assert float((packed - alone).abs().max()) < SMOLLM2_VALUES
    assert relative_gap(packed_gradients, padded_gradients) < SMOLLM2_GRADIENTS
