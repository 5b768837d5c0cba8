"""From hidden states to log-probabilities in chunks: equal to the definition, and never all positions at once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CohereConfig, Gemma2Config, GraniteConfig, LlamaConfig

from rung.models import head as head_module
from rung.models.head import Head, head_of, picked_logprobs

N, HIDDEN, VOCABULARY = 11, 5, 9


class Output(torch.nn.Module):
    """What the head needs of a model: its output layer."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def get_output_embeddings(self) -> torch.nn.Linear:
        return self.layer


def output(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Output:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return Output(layer)


def setting(*, bias: bool) -> tuple[torch.Tensor, Output, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    model = output(2 * draw(VOCABULARY, HIDDEN), draw(VOCABULARY) if bias else None)
    targets = torch.randint(VOCABULARY, (N,), generator=generator)
    return draw(N, HIDDEN).requires_grad_(), model, targets


def by_definition(
    hidden: torch.Tensor,
    model: Output,
    targets: torch.Tensor,
    transform: Callable[[torch.Tensor], torch.Tensor],
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """log(e^z_a / Σ e^z) and −Σ p log p, written out."""
    logits = transform(model.layer(hidden)) / temperature
    weights = logits.exp()
    probabilities = weights / weights.sum(-1, keepdim=True)
    picked = torch.stack([probabilities[i, target].log() for i, target in enumerate(targets.tolist())])
    return picked, -(probabilities * probabilities.log()).sum(-1)


TRANSFORMS: dict[str, tuple[Head, Callable[[torch.Tensor], torch.Tensor]]] = {
    "none": (Head(), lambda z: z),
    "scale": (Head(scale=0.25), lambda z: z / 4),
    "softcap": (Head(softcap=1.5), lambda z: 1.5 * torch.tanh(z / 1.5)),
    "both": (Head(scale=3.0, softcap=4.0), lambda z: 4.0 * torch.tanh(3 * z / 4)),
}


@pytest.mark.parametrize("rows_at_once", [1, 2, 4, 1000], ids=lambda n: f"chunks-of-{n}")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("bias", [False, True], ids=["no-bias", "bias"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_chunked_is_the_definition(
    name: str, bias: bool, temperature: float, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_module, "CHUNK_ELEMENTS", rows_at_once * VOCABULARY)
    head, transform = TRANSFORMS[name]
    hidden, model, targets = setting(bias=bias)
    sources = [hidden, *model.parameters()]
    weights = torch.linspace(-1, 2, N, dtype=torch.float64)
    picked, entropy = picked_logprobs(hidden, model, targets, temperature=temperature, head=head)
    expected, expected_entropy = by_definition(hidden, model, targets, transform, temperature)
    torch.testing.assert_close(picked, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(entropy, expected_entropy, rtol=0, atol=1e-10)
    assert not entropy.requires_grad
    ours = torch.autograd.grad((weights * picked).sum(), sources)
    theirs = torch.autograd.grad((weights * expected).sum(), sources)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rows_at_once", [1, 4, 1000], ids=lambda n: f"chunks-of-{n}")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_live_entropy_has_the_gradient_of_its_definition(
    name: str, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a gradient through the log-probabilities, in hidden states, weights and bias."""
    monkeypatch.setattr(head_module, "CHUNK_ELEMENTS", rows_at_once * VOCABULARY)
    head, transform = TRANSFORMS[name]
    hidden, model, targets = setting(bias=True)
    sources = [hidden, *model.parameters()]
    weights = torch.linspace(-1, 2, N, dtype=torch.float64)
    picked, entropy = picked_logprobs(hidden, model, targets, temperature=0.7, head=head, live_entropy=True)
    expected, expected_entropy = by_definition(hidden, model, targets, transform, 0.7)
    torch.testing.assert_close(entropy, expected_entropy, rtol=0, atol=1e-10)
    ours = torch.autograd.grad((weights * picked - 0.3 * weights.flip(0) * entropy).sum(), sources)
    theirs = torch.autograd.grad(
        (weights * expected - 0.3 * weights.flip(0) * expected_entropy).sum(), sources
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_e1_temperature_is_part_of_the_policy() -> None:
    model = output(torch.tensor([[2.0], [1.0], [0.0]], dtype=torch.float64))
    model.requires_grad_(False)
    hidden, target = torch.ones(1, 1, dtype=torch.float64), torch.tensor([1])
    at = {
        temperature: picked_logprobs(hidden, model, target, temperature=temperature, head=Head())[0].item()
        for temperature in (0.7, 1.0)
    }
    assert at[0.7] == pytest.approx(-1.68868983, abs=5e-9)
    assert at[1.0] == pytest.approx(-1.40760596, abs=5e-9)


def test_no_position_gives_nothing_with_a_gradient_of_zero() -> None:
    hidden, model, targets = setting(bias=True)
    picked, entropy = picked_logprobs(hidden[:0], model, targets[:0], temperature=1.0, head=Head())
    assert picked.shape == entropy.shape == (0,)
    (gradient,) = torch.autograd.grad(picked.sum(), [hidden])
    assert torch.equal(gradient, torch.zeros_like(hidden))


class Largest(TorchDispatchMode):
    """Remembers the most elements that any tensor had while it was on."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


@pytest.mark.parametrize("live", [False, True], ids=["", "live-entropy"])
@pytest.mark.parametrize("grad", [False, True], ids=["without-gradient", "with-gradient"])
def test_h13_no_tensor_of_all_positions_and_words(
    grad: bool, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions, hidden_size, vocabulary = 80, 4, 300
    chunk = 5 * vocabulary
    monkeypatch.setattr(head_module, "CHUNK_ELEMENTS", chunk)
    model = output(torch.randn(vocabulary, hidden_size, dtype=torch.float64))
    hidden = torch.randn(positions, hidden_size, dtype=torch.float64, requires_grad=grad)
    targets = torch.arange(positions)
    with Largest() as seen, torch.set_grad_enabled(grad):
        picked, entropy = picked_logprobs(
            hidden, model, targets, temperature=0.7, head=Head(softcap=3.0), live_entropy=live
        )
        forward = seen.elements
        if grad:
            (picked + entropy).sum().backward()
    # The largest tensor, forward and backward, is one chunk's logits: a sixteenth of B·T·V.
    assert forward == chunk
    assert seen.elements == chunk
    assert 16 * chunk == positions * vocabulary


@pytest.mark.parametrize("live", [False, True], ids=["", "live-entropy"])
def test_backward_keeps_no_chunk(live: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What autograd holds between forward and backward does not grow with the vocabulary times the positions."""
    monkeypatch.setattr(head_module, "CHUNK_ELEMENTS", 5 * 300)
    model = output(torch.randn(300, 4, dtype=torch.float64))
    hidden = torch.randn(80, 4, dtype=torch.float64, requires_grad=True)
    held: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        held.append(tensor.numel() if tensor.data_ptr() != model.layer.weight.data_ptr() else 0)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        picked_logprobs(hidden, model, torch.arange(80), temperature=1.0, head=Head(), live_entropy=live)
    assert sum(held) < 5 * 300


def test_what_known_families_do_to_their_logits() -> None:
    assert head_of(LlamaConfig()) == Head()
    assert head_of(CohereConfig(logit_scale=0.25)) == Head(scale=0.25)
    assert head_of(GraniteConfig(logits_scaling=8.0)) == Head(scale=0.125)
    assert head_of(Gemma2Config(final_logit_softcapping=30.0)) == Head(softcap=30.0)
