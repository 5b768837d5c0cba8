"""How a batch is written down changes nothing: order of rows, ids of groups, columns, micro-batches, ranks."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rung.aggregation import count
from tests.batches import INF, NAN, close, ragged
from tests.invariance.helpers import METHODS, NAMES, parameters, piece_of_loss, sample, step

WHOLE = sample(ragged())
COMPACT = WHOLE.compact()
ROWS = len(WHOLE.rollouts.valid)
LENGTHS = WHOLE.rollouts.mask.sum(1).tolist()
FEW = settings(max_examples=15)

orders = st.permutations(range(ROWS)).map(torch.tensor)
EVERY_METHOD = pytest.mark.parametrize("method", METHODS, ids=NAMES)
JUNK = pytest.mark.parametrize("junk", [0.0, -3.0, NAN, INF])


@st.composite
def partitions(draw):
    """The rows, in any order, cut into any number of pieces."""
    order = draw(st.permutations(range(ROWS)))
    cuts = sorted(draw(st.sets(st.integers(1, ROWS - 1))))
    return [torch.tensor(order[a:b]) for a, b in zip([0, *cuts], [*cuts, ROWS], strict=True)]


@st.composite
def spreads(draw):
    """(columns of each row's tokens, width): anywhere in up to twelve columns, in order."""
    width = draw(st.integers(max(LENGTHS), 12))
    columns = st.permutations(range(width))
    return [sorted(draw(columns)[:length]) for length in LENGTHS], width


@EVERY_METHOD
@FEW
@given(pieces=partitions())
def test_case_D1_no_split_into_micro_batches_changes_the_gradient(method, pieces):
    whole, found = step(method, WHOLE), step(method, WHOLE, pieces)
    close(found.loss, whole.loss)
    close(found.gradient, whole.gradient)


@EVERY_METHOD
def test_case_D1_row_by_row(method):
    whole, found = step(method, WHOLE), step(method, WHOLE, [torch.tensor([i]) for i in range(ROWS)])
    close(found.loss, whole.loss)
    close(found.gradient, whole.gradient)


@EVERY_METHOD
@FEW
@given(pieces=partitions())
def test_case_D2_ranks_that_know_the_totals_add_up(method, pieces):
    """Each rank makes the weights of its own rows from the counts of all; gradients are summed over ranks."""
    whole = step(method, WHOLE)
    batch = method.prepare(WHOLE.rollouts)
    theta = parameters()
    for piece in pieces:
        part = batch.rows(piece)
        weights = method.weights(part.mask, count(batch.mask))
        piece_of_loss(method, WHOLE.rows(piece), part, weights, theta).backward()
    close(theta.grad, whole.gradient)


@EVERY_METHOD
@FEW
@given(order=orders)
def test_case_B1_the_order_of_rows_changes_nothing(method, order):
    whole, found = step(method, WHOLE), step(method, WHOLE.rows(order))
    close(found.credit, whole.credit[order])
    close(found.loss, whole.loss)
    close(found.gradient, whole.gradient)


@EVERY_METHOD
@FEW
@given(ids=st.lists(st.integers(-(2**62), 2**62), min_size=3, max_size=3, unique=True))
def test_case_B1_the_ids_of_groups_are_only_names(method, ids):
    names = dict(zip(sorted(set(WHOLE.rollouts.groups.tolist())), ids, strict=True))
    renamed = torch.tensor([names[group] for group in WHOLE.rollouts.groups.tolist()])
    whole = step(method, WHOLE)
    found = step(method, replace(WHOLE, rollouts=replace(WHOLE.rollouts, groups=renamed)))
    close(found.credit, whole.credit)
    close(found.gradient, whole.gradient)


@EVERY_METHOD
@JUNK
def test_more_padding_changes_nothing(method, junk):
    whole = step(method, COMPACT)
    for columns in (1, 4):
        width = COMPACT.rollouts.mask.shape[1] + columns
        found = step(method, COMPACT.spread([range(length) for length in LENGTHS], width, junk))
        close(found.credit[:, :-columns], whole.credit)
        assert not found.credit[:, -columns:].any()
        close(found.loss, whole.loss)
        close(found.gradient, whole.gradient)


@EVERY_METHOD
@JUNK
def test_case_A4_a_tools_tokens_are_as_if_they_were_not_there(method, junk):
    """A batch with holes in its mask and the batch of its sampled tokens alone: the same loss and gradient.

    So V of the next sampled token is the next value, lengths and denominators count what was sampled, and a penalty
    adds nothing for what a tool said.
    """
    whole = step(method, COMPACT)
    mask = WHOLE.rollouts.mask
    assert bool((mask[:, 1:] & ~mask[:, :-1]).any())  # there are holes
    columns = [torch.where(row)[0].tolist() for row in mask]
    found = step(method, WHOLE.spread(columns, mask.shape[1], junk))
    close(found.credit[mask], whole.credit[COMPACT.rollouts.mask])
    close(found.loss, whole.loss)
    close(found.gradient, whole.gradient)


@EVERY_METHOD
@FEW
@given(where=spreads(), junk=st.sampled_from([-3.0, NAN, INF, -INF]))
def test_a_rows_tokens_may_stand_in_any_columns(method, where, junk):
    """Padding before, after and between them, with anything in it."""
    columns, width = where
    whole, moved = step(method, COMPACT), COMPACT.spread(columns, width, junk)
    found = step(method, moved)
    close(found.credit[moved.rollouts.mask], whole.credit[COMPACT.rollouts.mask])
    assert not found.credit[~moved.rollouts.mask].any()
    close(found.loss, whole.loss)
    close(found.gradient, whole.gradient)
