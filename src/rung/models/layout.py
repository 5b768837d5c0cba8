"""How rows lie in memory: each prompt once, then the completions, all in one line of tokens without padding.

    tokens     p p p p | q q q | a a a | b b | c c c c        prompts p, q; completions a, b of p and c of q
    positions  0 1 2 3 | 0 1 2 | 4 5 6 | 4 5 | 3 4 5 6

A completion's last token is never an input: nothing after it is predicted. The logits of its first token come from
its prompt's last position.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rung.errors import InvalidInput


@dataclass(frozen=True)
class Row:
    """A prompt and the tokens after it. Rows with equal prompts share its computation."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse an empty prompt: nothing would predict the first token."""
        if not self.prompt_ids:
            raise InvalidInput(
                "a row needs a prompt of at least one token (a begin token, where a model has one)"
            )


@dataclass(frozen=True)
class Layout:
    """Index tensors of one packed batch; N tokens in line, P prompts of at most Lp tokens, B rows of at most Tc.

    Attributes:
        input_ids, positions: [1, N].
        prompt_slots: [P, Lp] where each prompt's tokens lie in line (0 where the prompt is shorter).
        row_slots: [B, Tc] the same for the completions' input tokens.
        prompt_of_row: [B].
        own_mask: [B, 1, Tc, Lp + Tc] bool: what each completion token sees, its prompt first, then its own past.
        back: [N] where each token in line lies in the padded (P·Lp + B·Tc) tensors.
        predictors: [n] the token in line whose output predicts each counted token; targets: [n] that token's id.
        rows, columns: [n] where each counted token stands in [B, T].
        shape: (B, T).
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    prompt_slots: torch.Tensor
    row_slots: torch.Tensor
    prompt_of_row: torch.Tensor
    own_mask: torch.Tensor
    back: torch.Tensor
    predictors: torch.Tensor
    targets: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    shape: tuple[int, int]


def _slots(lengths: Sequence[int], start: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, longest] positions in line of consecutive pieces, and which of them are real."""
    sizes = torch.tensor(lengths)
    first = start + sizes.cumsum(0) - sizes
    offsets = torch.arange(max(lengths, default=0)).expand(len(lengths), -1)
    real = offsets < sizes.unsqueeze(1)
    return torch.where(real, first.unsqueeze(1) + offsets, 0), real


def pack(rows: Sequence[Row]) -> Layout:
    """The packed layout of some rows. Rows may be empty; prompts may not."""
    prompts = {row.prompt_ids: None for row in rows}
    index = {prompt: i for i, prompt in enumerate(prompts)}
    prompt_of_row = torch.tensor([index[row.prompt_ids] for row in rows])
    inputs = [row.token_ids[:-1] for row in rows]
    prompt_lengths = [len(prompt) for prompt in prompts]
    in_prompts = sum(prompt_lengths)
    prompt_slots, prompt_real = _slots(prompt_lengths, 0)
    row_slots, row_real = _slots([len(tokens) for tokens in inputs], in_prompts)
    line = [token for prompt in prompts for token in prompt] + [
        token for tokens in inputs for token in tokens
    ]
    starts = torch.tensor(prompt_lengths)[prompt_of_row]
    positions = torch.zeros(len(line), dtype=torch.int64)
    positions[prompt_slots[prompt_real]] = torch.arange(prompt_slots.shape[1]).expand_as(prompt_slots)[
        prompt_real
    ]
    own = starts.unsqueeze(1) + torch.arange(row_slots.shape[1])
    positions[row_slots[row_real]] = own[row_real]
    past = torch.ones(row_slots.shape[1], row_slots.shape[1], dtype=torch.bool).tril()
    own_mask = torch.cat(
        [
            prompt_real[prompt_of_row].unsqueeze(1).expand(-1, row_slots.shape[1], -1),
            past.expand(len(rows), -1, -1),
        ],
        dim=2,
    )
    back = torch.empty(len(line), dtype=torch.int64)
    back[prompt_slots[prompt_real]] = torch.arange(prompt_slots.numel()).view_as(prompt_slots)[prompt_real]
    back[row_slots[row_real]] = (prompt_slots.numel() + torch.arange(row_slots.numel())).view_as(row_slots)[
        row_real
    ]
    lengths = torch.tensor([len(row.token_ids) for row in rows])
    longest = int(lengths.max())
    counted = torch.arange(longest) < lengths.unsqueeze(1)
    last_of_prompt = prompt_slots[prompt_of_row, starts - 1]
    predictors = torch.cat([last_of_prompt.unsqueeze(1), row_slots], dim=1)[:, :longest]
    rows_index, columns = counted.nonzero(as_tuple=True)
    return Layout(
        input_ids=torch.tensor([line]),
        positions=positions.unsqueeze(0),
        prompt_slots=prompt_slots,
        row_slots=row_slots,
        prompt_of_row=prompt_of_row,
        own_mask=own_mask.unsqueeze(1),
        back=back,
        predictors=predictors[counted],
        targets=torch.tensor([token for row in rows for token in row.token_ids], dtype=torch.int64),
        rows=rows_index,
        columns=columns,
        shape=(len(rows), longest),
    )


def padded(rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The plain layout: input ids [B, L] padded on the right, attention mask [B, L], predictors [n] in B·L.

    What fills the padding is a token of the row itself, so that it is as finite as the row.
    """
    lines = [row.prompt_ids + row.token_ids[:-1] for row in rows]
    length = max(len(line) for line in lines)
    input_ids = torch.tensor([line + line[-1:] * (length - len(line)) for line in lines])
    mask = torch.zeros(len(rows), length, dtype=torch.int64)
    predictors = []
    for i, (row, line) in enumerate(zip(rows, lines, strict=True)):
        mask[i, : len(line)] = 1
        first = i * length + len(row.prompt_ids) - 1
        predictors.extend(range(first, first + len(row.token_ids)))
    return input_ids, mask, torch.tensor(predictors, dtype=torch.int64)
