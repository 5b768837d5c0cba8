"""Recorded gradients of penalties, toys A and B, on policy and off policy, and variances of one sequence's."""

import numpy as np
import pytest

from rung.exact import kl_cell
from tests.toys import (
    A_GRADIENT_KL_POLICY_REFERENCE,
    A_GRADIENT_KL_REFERENCE_POLICY,
    A_GRADIENT_OF_MEAN_K2,
    A_K2_IN_REWARD,
    A_K3_IN_REWARD,
    A_OFF_POLICY_K1_IN_LOSS,
    A_OFF_POLICY_K2_IN_LOSS,
    A_OFF_POLICY_K3_IN_LOSS,
    B_FORWARD_KL_ON_POLICY_PREFIXES,
    B_FUTURE_FIRST_ROW,
    B_GRADIENT_KL_POLICY_REFERENCE,
    B_IMMEDIATE_KL_POLICY_REFERENCE,
    B_REVERSE_KL_ON_BEHAVIOUR_PREFIXES,
    B_TRACE_FULL_VOCABULARY,
    B_TRACE_K1_TO_GO,
    B_TRACE_K1_TOTAL,
    TOY_A,
    TOY_B,
    assert_digits,
    rows,
)

SEQUENCE_KL_REFERENCE_POLICY_B = rows(
    "-.0230309501 -.2773428726 .3003738227 | -.0778317688 .1053145529 -.0274827841"
    "| .2059461527 -.1281931045 -.0777530482 | .0060021830 -.0835924961 .0775903131"
)


def cell(toy, *, off_policy=False, **choice):
    sampler = toy.behaviour if off_policy else None
    return kl_cell(toy.mdp, toy.policy, toy.reference, sampler=sampler, **choice).mean


@pytest.mark.parametrize(
    ("estimator", "placement", "recorded"),
    [
        ("k1", "reward", A_GRADIENT_KL_POLICY_REFERENCE),
        ("k2", "reward", A_K2_IN_REWARD),
        ("k3", "reward", A_K3_IN_REWARD),
        ("full", "reward", np.zeros(3)),
        ("k1", "loss", np.zeros(3)),
        ("k2", "loss", A_GRADIENT_KL_POLICY_REFERENCE),
        ("k3", "loss", A_GRADIENT_KL_REFERENCE_POLICY),
        ("full", "loss", A_GRADIENT_KL_POLICY_REFERENCE),
    ],
)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_cells_of_toy_a_on_policy(estimator, placement, recorded, level):
    """One token: both levels are one."""
    assert_digits(cell(TOY_A, estimator=estimator, placement=placement, level=level), recorded, 12)


@pytest.mark.parametrize(
    ("estimator", "placement", "weight", "recorded"),
    [
        ("k1", "loss", "none", A_OFF_POLICY_K1_IN_LOSS),
        ("k2", "loss", "none", A_OFF_POLICY_K2_IN_LOSS),
        ("k1", "reward", "none", A_OFF_POLICY_K2_IN_LOSS),
        ("k3", "loss", "none", A_OFF_POLICY_K3_IN_LOSS),
        ("k1", "loss", "live", A_GRADIENT_KL_POLICY_REFERENCE),
        ("k3", "loss", "live", A_GRADIENT_KL_POLICY_REFERENCE),
        ("full", "loss", "live", A_GRADIENT_KL_POLICY_REFERENCE),
        ("k2", "loss", "detached", A_GRADIENT_KL_POLICY_REFERENCE),
        ("k1", "reward", "detached", A_GRADIENT_KL_POLICY_REFERENCE),
        ("k1", "reward", "live", A_GRADIENT_KL_POLICY_REFERENCE),
        ("k3", "loss", "detached", A_GRADIENT_KL_REFERENCE_POLICY),
        ("k2", "loss", "live", A_GRADIENT_OF_MEAN_K2),
        ("k1", "loss", "detached", np.zeros(3)),
    ],
)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_cells_of_toy_a_off_policy(estimator, placement, weight, recorded, level):
    choice = {"estimator": estimator, "placement": placement, "weight": weight, "level": level}
    assert_digits(cell(TOY_A, off_policy=True, **choice), recorded, 12)


@pytest.mark.parametrize(
    ("estimator", "placement", "level", "recorded"),
    [
        ("k1", "loss", "token", np.zeros(12)),
        ("k2", "loss", "token", B_IMMEDIATE_KL_POLICY_REFERENCE),
        ("k2", "loss", "sequence", B_GRADIENT_KL_POLICY_REFERENCE),
        ("k3", "loss", "token", B_FORWARD_KL_ON_POLICY_PREFIXES),
        ("k3", "loss", "sequence", SEQUENCE_KL_REFERENCE_POLICY_B),
        ("full", "loss", "token", B_IMMEDIATE_KL_POLICY_REFERENCE),
        ("k1", "reward", "token", B_GRADIENT_KL_POLICY_REFERENCE),
        ("k1", "reward", "sequence", B_GRADIENT_KL_POLICY_REFERENCE),
        ("full", "reward", "token", np.concatenate([B_FUTURE_FIRST_ROW, np.zeros(9)])),
        ("full", "reward", "sequence", np.concatenate([B_FUTURE_FIRST_ROW, np.zeros(9)])),
    ],
)
def test_cells_of_toy_b_on_policy(estimator, placement, level, recorded):
    assert_digits(cell(TOY_B, estimator=estimator, placement=placement, level=level), recorded, 10)


def test_token_k3_in_the_reward_of_toy_b_is_neither_divergence():
    found = cell(TOY_B, estimator="k3", placement="reward")
    for recorded in (
        B_GRADIENT_KL_POLICY_REFERENCE,
        B_IMMEDIATE_KL_POLICY_REFERENCE,
        B_FORWARD_KL_ON_POLICY_PREFIXES,
        SEQUENCE_KL_REFERENCE_POLICY_B,
    ):
        assert np.abs(found - recorded).max() > 0.05


def test_cells_of_toy_b_off_policy():
    for estimator in ("k1", "k3", "full"):
        live = {"estimator": estimator, "placement": "loss", "weight": "live", "off_policy": True}
        assert_digits(cell(TOY_B, **live, ratio="sequence"), B_GRADIENT_KL_POLICY_REFERENCE, 10)
        assert_digits(cell(TOY_B, **live), B_REVERSE_KL_ON_BEHAVIOUR_PREFIXES, 10)


@pytest.mark.parametrize(
    ("estimator", "placement", "level", "recorded"),
    [
        ("k1", "reward", "sequence", B_TRACE_K1_TOTAL),
        ("k2", "loss", "sequence", B_TRACE_K1_TOTAL),
        ("k1", "reward", "token", B_TRACE_K1_TO_GO),
        ("full", "loss", "token", B_TRACE_FULL_VOCABULARY),
    ],
)
def test_variances_of_cells_of_toy_b(estimator, placement, level, recorded):
    choice = {"estimator": estimator, "placement": placement, "level": level}
    assert_digits(kl_cell(TOY_B.mdp, TOY_B.policy, TOY_B.reference, **choice).trace, recorded, 10)
