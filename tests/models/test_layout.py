"""The packed line of tokens, by hand and against a rule that is applied token by token."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.errors import InvalidInput
from rung.models.layout import Layout, Row, pack, padded

P, Q = (11, 12, 13, 14), (21, 22, 23)
HAND = [Row(P, (1, 2, 3, 4)), Row(P, (5, 6, 7)), Row(Q, (8, 9, 8, 9, 7))]
#       line:      11 12 13 14 | 21 22 23 | 1 2 3 | 5 6 | 8 9 8 9
#       place:      0  1  2  3 |  4  5  6 | 7 8 9 | 10 11 | 12 13 14 15
#       position:   0  1  2  3 |  0  1  2 | 4 5 6 | 4 5 | 3 4 5 6

token_ids = st.lists(st.integers(0, 30), max_size=6).map(tuple)
some_rows = st.lists(
    st.builds(Row, st.sampled_from([P, Q, (5,), (11, 12)]), token_ids), min_size=1, max_size=7
)


def test_prompts_come_once_and_last_tokens_are_no_input() -> None:
    lay = pack(HAND)
    assert lay.input_ids.tolist() == [[11, 12, 13, 14, 21, 22, 23, 1, 2, 3, 5, 6, 8, 9, 8, 9]]
    assert lay.positions.tolist() == [[0, 1, 2, 3, 0, 1, 2, 4, 5, 6, 4, 5, 3, 4, 5, 6]]
    assert lay.prompt_of_row.tolist() == [0, 0, 1]
    assert lay.prompt_slots.tolist() == [[0, 1, 2, 3], [4, 5, 6, 0]]
    assert lay.row_slots.tolist() == [[7, 8, 9, 0], [10, 11, 0, 0], [12, 13, 14, 15]]


def test_a_first_token_is_predicted_by_its_prompts_last_position() -> None:
    lay = pack(HAND)
    assert lay.shape == (3, 5)
    assert lay.rows.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2]
    assert lay.columns.tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4]
    assert lay.targets.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 9, 7]
    assert lay.predictors.tolist() == [3, 7, 8, 9, 3, 10, 11, 6, 12, 13, 14, 15]


def test_own_mask_by_hand() -> None:
    lay = pack(HAND)
    assert lay.own_mask.shape == (3, 1, 4, 8)
    # The third row: three of the four prompt places are its prompt's; then its own past, itself included.
    assert lay.own_mask[2, 0].int().tolist() == [
        [1, 1, 1, 0, 1, 0, 0, 0],
        [1, 1, 1, 0, 1, 1, 0, 0],
        [1, 1, 1, 0, 1, 1, 1, 0],
        [1, 1, 1, 0, 1, 1, 1, 1],
    ]


def test_rows_of_one_token_or_none_add_nothing_to_the_line() -> None:
    lay = pack([Row(P, (1,)), Row(P, ())])
    assert lay.input_ids.tolist() == [list(P)]
    assert lay.predictors.tolist() == [3]
    assert lay.targets.tolist() == [1]
    assert lay.shape == (2, 1)
    assert pack([Row(P, ())]).shape == (1, 0)


def _seen(lay: Layout, row: int, t: int) -> list[int]:
    """The places in line that the t-th completion token of a row attends to."""
    slots = torch.cat([lay.prompt_slots[lay.prompt_of_row[row]], lay.row_slots[row]])
    return slots[lay.own_mask[row, 0, t]].tolist()


@given(some_rows)
def test_every_token_sees_its_prompt_and_its_own_past_alone(rows: list[Row]) -> None:
    lay = pack(rows)
    ids = lay.input_ids[0].tolist()
    positions = lay.positions[0].tolist()
    for i, row in enumerate(rows):
        for t in range(len(row.token_ids) - 1):
            seen = _seen(lay, i, t)
            assert [ids[place] for place in seen] == [*row.prompt_ids, *row.token_ids[: t + 1]]
            assert [positions[place] for place in seen] == list(range(len(row.prompt_ids) + t + 1))
            assert seen[-1] == int(lay.row_slots[i, t])


@given(some_rows)
def test_every_counted_token_is_predicted_from_the_text_before_it(rows: list[Row]) -> None:
    lay = pack(rows)
    wanted = [(i, t) for i, row in enumerate(rows) for t in range(len(row.token_ids))]
    assert list(zip(lay.rows.tolist(), lay.columns.tolist(), strict=True)) == wanted
    for (i, t), place, target in zip(wanted, lay.predictors.tolist(), lay.targets.tolist(), strict=True):
        text = rows[i].prompt_ids + rows[i].token_ids[:t]
        assert target == rows[i].token_ids[t]
        assert int(lay.input_ids[0, place]) == text[-1]
        assert int(lay.positions[0, place]) == len(text) - 1


@given(some_rows)
def test_back_undoes_the_spread_into_padded_tensors(rows: list[Row]) -> None:
    lay = pack(rows)
    spread = torch.cat(
        [lay.input_ids[0][lay.prompt_slots].flatten(), lay.input_ids[0][lay.row_slots].flatten()]
    )
    assert torch.equal(spread[lay.back], lay.input_ids[0])
    assert lay.back.unique().numel() == lay.back.numel()


@given(some_rows)
def test_each_distinct_prompt_stands_in_line_once(rows: list[Row]) -> None:
    lay = pack(rows)
    prompts = {row.prompt_ids for row in rows}
    inputs = sum(max(len(row.token_ids) - 1, 0) for row in rows)
    assert lay.input_ids.shape[1] == sum(len(prompt) for prompt in prompts) + inputs


def test_padded_by_hand() -> None:
    input_ids, mask, predictors = padded([Row(P, (1, 2)), Row((21,), (8, 9, 7)), Row(Q, ())])
    assert mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0]]
    assert input_ids[mask.bool()].tolist() == [11, 12, 13, 14, 1, 21, 8, 9, 21, 22, 23]
    assert predictors.tolist() == [3, 4, 5, 6, 7]


def test_a_row_without_a_prompt_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one token"):
        Row((), (1, 2))
