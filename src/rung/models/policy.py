"""The policy: one module whose forward gives what a method needs. Nothing calls its parts from outside."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from transformers import PreTrainedModel

from rung.errors import InvalidInput, ModelError
from rung.models.attention import NAME
from rung.models.head import head_of, picked_logprobs
from rung.models.layout import Row, pack, padded
from rung.notation import PerToken

Path = Literal["grouped", "padded"]
# nats. Rounding alone: transformers' norms round to float32 even in a float64 model. A wrong path is off by far more.
PROBE_TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-4}


@dataclass(frozen=True)
class PolicyOutput:
    """[B, T] per token after the prompt, 0 beyond a row's end.

    Attributes:
        logprobs: log π(a_t|s_t), nats. Gradient flows.
        entropy: of the whole distribution at that position, nats. Gradient flows only where it was asked for.
    """

    logprobs: PerToken
    entropy: PerToken


class Policy(nn.Module):
    """π(a|s) of a causal language model, at one temperature.

    Rows with the same prompt compute it once (path "grouped"), where the model's attention allows it; otherwise each
    row is computed on its own, padded on the right. `probe` decides by comparing both, values and gradients.
    """

    def __init__(self, model: PreTrainedModel, *, temperature: float = 1.0, path: Path | None = None) -> None:
        super().__init__()
        model.eval()  # no dropout: sampler and trainer are the same distribution
        self.model = model
        self.temperature = temperature
        self.head = head_of(model.config)
        self.path: Path = path or probe(self)

    def train(self, mode: bool = True) -> "Policy":
        """Stays in evaluation mode whatever is asked: with dropout, no two passes would be the same policy."""
        return super().train(False)

    def forward(self, rows: Sequence[Row], *, live_entropy: bool = False) -> PolicyOutput:
        """Log-probabilities and entropies of the rows' tokens, [B, T]. Gradient flows into the model.

        Args:
            rows: prompts with the tokens after them.
            live_entropy: whether a gradient flows from the entropies too; it costs memory of a chunk, not of all.
        """
        if not rows:
            raise InvalidInput("the policy was asked for no rows at all")
        if self.path == "grouped":
            hidden, targets, where, shape = self._grouped(rows)
        else:
            hidden, targets, where, shape = self._padded(rows)
        picked, entropy = picked_logprobs(
            hidden,
            self.model,
            targets,
            temperature=self.temperature,
            head=self.head,
            live_entropy=live_entropy,
        )
        empty = picked.new_zeros(shape)
        return PolicyOutput(empty.index_put(where, picked), empty.index_put(where, entropy))

    @property
    def _decoder(self) -> nn.Module:
        """The model without its output layer."""
        base: nn.Module = self.model.base_model
        if base is self.model:
            raise ModelError(f"{type(self.model).__name__} does not say which of its parts is the decoder")
        return base

    def _grouped(
        self, rows: Sequence[Row]
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor], tuple[int, int]]:
        if self.model.config.get_text_config()._attn_implementation != NAME:
            raise ModelError(
                f'the path "grouped" needs the attention {NAME}: load the model with rung.models.loading'
            )
        lay = pack(rows)
        # A 4D mask is passed on as it is, so that transformers builds no N × N mask for the packed line.
        unused = torch.ones(1, 1, 1, 1, dtype=torch.bool)
        output = self._decoder(
            input_ids=lay.input_ids,
            position_ids=lay.positions,
            attention_mask=unused,
            use_cache=False,
            group_layout=lay,
        )
        return output.last_hidden_state[0, lay.predictors], lay.targets, (lay.rows, lay.columns), lay.shape

    def _padded(
        self, rows: Sequence[Row]
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor], tuple[int, int]]:
        input_ids, mask, predictors = padded(rows)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        output = self._decoder(
            input_ids=input_ids, attention_mask=mask, position_ids=positions, use_cache=False
        )
        lengths = [len(row.token_ids) for row in rows]
        where = (
            torch.tensor([i for i, n in enumerate(lengths) for _ in range(n)], dtype=torch.int64),
            torch.tensor([t for n in lengths for t in range(n)], dtype=torch.int64),
        )
        targets = torch.tensor([token for row in rows for token in row.token_ids], dtype=torch.int64)
        return output.last_hidden_state.flatten(0, 1)[predictors], targets, where, (len(rows), max(lengths))


def _probe_rows(vocabulary: int) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    token = torch.randint(vocabulary, (40,), generator=generator).tolist()
    first, second = tuple(token[:7]), tuple(token[7:10])
    return [
        Row(first, tuple(token[10:16])),
        Row(second, tuple(token[16:18])),
        Row(first, tuple(token[18:19])),
        Row(first, tuple(token[19:28])),
        Row(second, tuple(token[28:40])),
    ]


def _values_and_gradient(policy: Policy, path: Path, rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities, and a gradient of their weighted sum: with regard to every norm and bias, in one line."""
    policy.path = path
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    small = [p for p in trained if p.ndim == 1] or sorted(trained, key=lambda p: p.numel())[:1]
    with torch.enable_grad():
        logprobs = policy(rows).logprobs
        weights = torch.linspace(0.5, 1.5, logprobs.numel(), dtype=logprobs.dtype).view_as(logprobs)
        if not small:
            return logprobs.detach(), logprobs.new_zeros(1)
        parts = torch.autograd.grad((weights * logprobs).sum(), small, allow_unused=True)
    return logprobs.detach(), torch.cat([part.double().flatten() for part in parts if part is not None])


def probe(policy: Policy) -> Path:
    """Which path a model can take, by comparison on a few rows: log-probabilities and gradients.

    Also checks that the log-probabilities equal those of the model's own logits. Windows may be longer than the rows
    compared here, so a model with any is not asked.

    Raises:
        ModelError: the model's own forward does something to its logits that rung does not know.
    """
    config = policy.model.config.get_text_config()
    tolerance = PROBE_TOLERANCE.get(policy.model.dtype, 2e-2)
    rows = _probe_rows(config.vocab_size)
    values, gradient = _values_and_gradient(policy, "padded", rows)
    _check_head(policy, rows, values, tolerance)
    windowed = any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or [])
    if config._attn_implementation != NAME or windowed or getattr(config, "sliding_window", None):
        return "padded"
    try:
        grouped_values, grouped_gradient = _values_and_gradient(policy, "grouped", rows)
    except (ModelError, TypeError, RuntimeError, ValueError, IndexError, AttributeError):
        return "padded"
    same = torch.allclose(grouped_values, values, rtol=0, atol=tolerance)
    same = same and bool((grouped_gradient - gradient).norm() <= 10 * tolerance * gradient.norm())
    return "grouped" if same else "padded"


@torch.no_grad()
def _check_head(policy: Policy, rows: list[Row], values: torch.Tensor, tolerance: float) -> None:
    input_ids, mask, predictors = padded(rows)
    logits = policy.model(input_ids=input_ids, attention_mask=mask, use_cache=False).logits.flatten(0, 1)[
        predictors
    ]
    targets = torch.tensor([token for row in rows for token in row.token_ids])
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    own = (logits / policy.temperature).log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    lengths = [len(row.token_ids) for row in rows]
    ours = torch.cat([values[i, :n] for i, n in enumerate(lengths)])
    difference = float((own - ours).abs().max())
    if not difference <= tolerance:
        raise ModelError(
            f"log-probabilities from the output layer differ from this model's own logits by {difference:.2g} nats: "
            f"{policy.model.config.model_type} models transform their logits in a way that rung does not know yet"
        )
