"""How a batch is written down changes nothing: order of rows, ids of groups, columns, micro-batches, ranks."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rung.aggregation import count
from rung.methods import CATALOGUE
from tests.batches import INF, NAN, close, ragged
from tests.invariance.helpers import METHODS, NAMES, policy_logprobs, sample, step

WHOLE = sample(ragged())
ROWS = len(WHOLE.rollouts.valid)
FEW = settings(max_examples=12)

orders = st.permutations(range(ROWS)).map(torch.tensor)
EVERY_METHOD = pytest.mark.parametrize("method", METHODS, ids=NAMES)


@st.composite
def partitions(draw):
    """The rows, in any order, cut into any number of pieces."""
    order = draw(st.permutations(range(ROWS)))
    cuts = sorted(draw(st.sets(st.integers(1, ROWS - 1))))
    return [torch.tensor(order[a:b]) for a, b in zip([0, *cuts], [*cuts, ROWS], strict=True)]


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
    theta = torch.linspace(-0.4, 0.6, 5, dtype=torch.float64).requires_grad_()
    for piece in pieces:
        part = batch.rows(piece)
        weights = method.weights(part.mask, count(batch.mask))
        method.loss(policy_logprobs(WHOLE.rows(piece), theta), part, weights).backward()
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
@pytest.mark.parametrize("junk", [0.0, -3.0, NAN, INF])
def test_more_padding_changes_nothing(method, junk):
    whole = step(method, WHOLE)
    for columns in (1, 4):
        wider = WHOLE.padded(columns, junk)
        # A model gives numbers for padding; here they are junk by themselves, without parameters behind them.
        features = torch.where(torch.isfinite(wider.features), wider.features, 1e3)
        found = step(method, replace(wider, features=features))
        close(found.credit[:, :-columns], whole.credit)
        assert not found.credit[:, -columns:].any()
        close(found.loss, whole.loss)
        close(found.gradient, whole.gradient)


@pytest.mark.parametrize("make", CATALOGUE.values(), ids=CATALOGUE)
def test_the_prompts_of_other_groups_do_not_change_a_groups_credit(make):
    """But for REINFORCE, whose baseline is that of the batch, and says so."""
    method = make(kl_coefficient=0.3)
    groups = WHOLE.rollouts.groups
    whole = method.prepare(WHOLE.rollouts).credit
    for group in groups.unique():
        index = torch.arange(ROWS)[groups == group]
        alone = method.prepare(WHOLE.rows(index).rollouts).credit
        if method.name == "reinforce":
            assert (alone - whole[index]).abs().max().item() > 0.05
        else:
            close(alone, whole[index])
