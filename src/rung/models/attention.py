"""Group attention: a prompt attends once, and its completions attend to it and to their own past.

Registered with transformers' attention interface as `rung_group`. It acts when a `group_layout` is passed to the
model's forward; without one (generation with a cache, padded batches) it is transformers' own SDPA attention.
"""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rung.errors import ModelError
from rung.models.layout import Layout

NAME = "rung_group"
_IGNORED_BY_SDPA = ("softcap", "s_aux")  # score capping and attention sinks: dropping them would be silent
_NOT_IN_GROUPS = ("sliding_window", "position_bias")


def group_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    group_layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over a packed line of tokens.

    Args:
        module: the attention layer; its `num_key_value_groups` says how many query heads share a key head.
        query: [1, H, N, D], positions already rotated in.
        key: [1, H_kv, N, D], positions already rotated in.
        value: [1, H_kv, N, D].
        attention_mask: used only without a layout.
        scaling: of the scores.
        dropout: used only without a layout; training in rung has none (sampler and trainer must agree).
        group_layout: where the tokens lie, or None.
        **kwargs: passed on without a layout.

    Returns:
        [1, N, H, D], and None for the attention weights.

    Raises:
        ModelError: the layer asks for something that this attention does not compute.
    """
    for name in _IGNORED_BY_SDPA if group_layout is None else _IGNORED_BY_SDPA + _NOT_IN_GROUPS:
        if kwargs.get(name) is not None:
            raise ModelError(
                f"{type(module).__name__} asks its attention for `{name}`, which {NAME} does not compute: "
                "load this model with another attention implementation"
            )
    if group_layout is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    lay = group_layout
    repeats = query.shape[1] // key.shape[1]
    in_line = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]  # [N, heads, D]
    prompt_q, prompt_k, prompt_v = (tensor[lay.prompt_slots].transpose(1, 2) for tensor in in_line)
    row_q, row_k, row_v = (tensor[lay.row_slots].transpose(1, 2) for tensor in in_line)
    prompt_k, prompt_v, row_k, row_v = (
        tensor if repeats == 1 else tensor.repeat_interleave(repeats, dim=1)
        for tensor in (prompt_k, prompt_v, row_k, row_v)
    )
    of_prompts = scaled_dot_product_attention(prompt_q, prompt_k, prompt_v, is_causal=True, scale=scaling)
    of_rows = scaled_dot_product_attention(
        row_q,
        torch.cat([prompt_k[lay.prompt_of_row], row_k], dim=2),
        torch.cat([prompt_v[lay.prompt_of_row], row_v], dim=2),
        attn_mask=lay.own_mask,
        scale=scaling,
    )
    together = torch.cat([out.transpose(1, 2).flatten(0, 1) for out in (of_prompts, of_rows)])
    return together[lay.back].unsqueeze(0), None


def register() -> None:
    """Make `attn_implementation="rung_group"` known to transformers. Safe to call again."""
    AttentionInterface.register(NAME, group_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
