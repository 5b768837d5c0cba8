"""From hidden states to log-probabilities, a chunk of positions at a time: B × T × V never stands whole.

Forward keeps only the picked log-probabilities; backward computes each chunk's logits again. Peak memory is that of
one chunk, in both directions.
"""

from dataclasses import dataclass

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel

from rung.kl import entropy as entropy_of

CHUNK_ELEMENTS = 16_000_000  # logits that may stand at once: 64 MB in float32


@dataclass(frozen=True)
class Head:
    """What a model does to its output layer's logits, read off its configuration and probed at load."""

    scale: float = 1.0
    softcap: float | None = None

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Scale, then soft-cap."""
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


def head_of(config: PreTrainedConfig) -> Head:
    """The logit transformations that decoder families are known to use (Cohere, Granite, Gemma)."""
    config = config.get_text_config()
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(
        getattr(config, "logits_scaling", None) or 1.0
    )
    softcap = getattr(config, "final_logit_softcapping", None) or getattr(config, "logits_soft_cap", None)
    return Head(scale=scale, softcap=softcap)


def _chunk(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    head: Head,
    heat: float,
    live: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(torch.nn.functional.linear(hidden, weight, bias))
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    logits = logits / heat if heat != 1.0 else logits
    normaliser = logits.logsumexp(-1)
    picked = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - normaliser
    if live:
        return picked, entropy_of(logits)
    with torch.no_grad():
        probabilities = (logits - normaliser.unsqueeze(-1)).exp_()
        entropy = normaliser - (probabilities.mul_(logits)).sum(-1)
    return picked, entropy


def picked_logprobs(
    hidden: torch.Tensor,
    model: PreTrainedModel,
    targets: torch.Tensor,
    *,
    temperature: float,
    head: Head,
    live_entropy: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """log π of the target at each position, and the entropy there.

    Args:
        hidden: [n, hidden size], the decoder's outputs at the predicting positions. Gradient flows.
        model: whose output layer is used; gradient flows into it.
        targets: [n] token ids.
        temperature: the logits are divided by it; it is part of the policy.
        head: what the model does to its logits.
        live_entropy: whether a gradient flows from the entropies too, as an entropy bonus needs.

    Returns:
        log-probabilities [n], nats, with gradient; entropies [n], nats, with one only if asked for.
    """
    output = model.get_output_embeddings()
    weight, bias = output.weight, getattr(output, "bias", None)
    size = max(1, CHUNK_ELEMENTS // weight.shape[0])
    arguments = [
        (hidden[i : i + size], weight, bias, targets[i : i + size], head, temperature, live_entropy)
        for i in range(0, len(targets), size)
    ]
    if len(arguments) == 1:  # one chunk is within the bound anyway: nothing to gain by computing it twice
        return _chunk(*arguments[0])
    recompute = torch.is_grad_enabled()
    chunks = [checkpoint(_chunk, *a, use_reentrant=False) if recompute else _chunk(*a) for a in arguments]
    if not chunks:
        return hidden.sum(-1), (hidden if live_entropy else hidden.detach()).sum(-1)
    return torch.cat([picked for picked, _ in chunks]), torch.cat([entropy for _, entropy in chunks])
