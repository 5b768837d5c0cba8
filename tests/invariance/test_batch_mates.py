"""What a row's batch mates may change, method by method.

    compared with nothing   vpg, reinforce-constant, reinforce-moving-average, reinforce-learned, remax, a2c, impala:
                            no other row changes a row's credit
    with its group          rloo, rloo-corrected, ppo-loo, dual-clip, ppo-penalty, trpo, grpo, dr-grpo, dapo, gspo,
                            cispo: no row of another prompt does
    with the batch          reinforce (mean return), reinforce-step-mean (mean at each step), reinforce++ and its form
                            with a baseline (mean and spread over all tokens): every row does

Weights are shares of the batch: 1/B of its sequences, or for reinforce++, its form with a baseline, dapo and cispo
1/N of its tokens. So other prompts scale a group's part of the gradient, all of it alike, and the four by how long
the others' answers are.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.batches import close, ragged
from tests.invariance.helpers import ENTRIES, parameters, piece_of_loss, sample, step
from tests.methods.helpers import BY_TOKENS, COMPARES

WHOLE = sample(ragged())
ROWS = len(WHOLE.rollouts.valid)
FEW = settings(max_examples=15)
EVERY_ENTRY = pytest.mark.parametrize("method", ENTRIES, ids=COMPARES)
rewards = st.lists(st.floats(-5, 5), min_size=ROWS, max_size=ROWS)


def group_rows(group):
    return torch.arange(ROWS)[WHOLE.rollouts.groups == group]


def with_numbers(others, seed, new_rewards):
    """The batch with other rewards, log-probabilities and values in the rows of this index."""
    changed, elsewhere = ragged(seed + 1), WHOLE.rollouts
    chosen = torch.zeros(ROWS, dtype=torch.bool)
    chosen[others] = True
    columns = ("behaviour_logprobs", "old_logprobs", "reference_logprobs", "values")
    per_token = {
        name: torch.where(chosen.unsqueeze(1), getattr(changed, name), getattr(elsewhere, name))
        for name in columns
    }
    given_rewards = torch.tensor(new_rewards, dtype=torch.float64)
    judged = torch.where(chosen & elsewhere.valid, given_rewards, elsewhere.outcome_rewards)
    greedy = torch.where(chosen, elsewhere.greedy_rewards + 1.0, elsewhere.greedy_rewards)
    return replace(elsewhere, outcome_rewards=judged, greedy_rewards=greedy, **per_token)


@pytest.mark.parametrize("method", [m for m in ENTRIES if COMPARES[m.name] != "batch"], ids=lambda m: m.name)
@FEW
@given(seed=st.integers(0, 1000), new_rewards=rewards)
def test_what_other_prompts_earn_and_say_changes_no_credit_and_no_gradient(method, seed, new_rewards):
    """Group 4's part of the gradient, with anything in the rows of the two other groups; weights held."""
    mine, others = group_rows(4), torch.arange(ROWS)[WHOLE.rollouts.groups != 4]
    weights = method.weights(WHOLE.rollouts.mask & WHOLE.rollouts.valid.unsqueeze(1))

    def part(rollouts):
        theta, prepared = parameters(), method.prepare(rollouts)
        piece_of_loss(method, WHOLE.rows(mine), prepared.rows(mine), weights[mine], theta).backward()
        return prepared.credit[mine], theta.grad

    for found, wanted in zip(
        part(with_numbers(others, seed, new_rewards)), part(WHOLE.rollouts), strict=True
    ):
        close(found, wanted)


@EVERY_ENTRY
def test_which_methods_compare_with_what(method):
    """One reward of another prompt, then one of the same prompt, 1 higher: whose credit changes by that?"""
    credit = method.prepare(WHOLE.rollouts).credit
    trains = WHOLE.rollouts.valid & (WHOLE.rollouts.groups == 4)
    assert trains.nonzero().flatten().tolist() == [0, 2, 3, 6]

    def moved(row):
        raised = WHOLE.rollouts.outcome_rewards.clone()
        raised[row] += 1.0
        other = method.prepare(replace(WHOLE.rollouts, outcome_rewards=raised)).credit
        return (other - credit)[[0, 2, 3]].abs().amax(1) > 1e-3

    assert moved(9).tolist() == [COMPARES[method.name] == "batch"] * 3
    assert moved(6).tolist() == [COMPARES[method.name] != "nothing"] * 3


@EVERY_ENTRY
def test_alone_a_group_gets_the_same_step_up_to_its_share_of_the_batch(method):
    """Credit is the same to the last row; the gradient is that of the group's part times its share."""
    whole, everything = method.prepare(WHOLE.rollouts), parameters()
    weights = method.weights(whole.mask)
    for group in (4, -2):
        rows = group_rows(group)
        alone = step(method, WHOLE.rows(rows))
        if COMPARES[method.name] == "batch":
            assert (alone.credit - whole.credit[rows]).abs().max().item() > 0.05
            continue
        close(alone.credit, whole.credit[rows])
        everything.grad = None
        piece_of_loss(method, WHOLE.rows(rows), whole.rows(rows), weights[rows], everything).backward()
        counted = whole.mask if method.name in BY_TOKENS else whole.mask.any(1)
        share = counted[rows].sum().item() / counted.sum().item()
        assert 0.1 < share < 0.9
        close(everything.grad, share * alone.gradient)


@EVERY_ENTRY
def test_longer_answers_elsewhere_weigh_only_where_tokens_are_counted(method):
    """Five more tokens in the row of group 30: less for the others by 1/N, or nothing where sequences are counted."""
    mine = group_rows(-2)
    mask = WHOLE.rollouts.mask & WHOLE.rollouts.valid.unsqueeze(1)
    longer = torch.nn.functional.pad(mask, (0, 5))
    longer[8, -5:] = True
    shrunk = mask.sum().item() / longer.sum().item() if method.name in BY_TOKENS else 1.0
    close(method.weights(longer)[mine, : mask.shape[1]], shrunk * method.weights(mask)[mine])
