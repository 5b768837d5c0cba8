"""Expectations over the sequences of a problem, one at a time: what a credit, or a penalty alone, does on average."""

import torch

from rung.aggregation import sequence_sum
from rung.credit import total_return
from rung.kl import k1
from rung.methods import KLPenalty, Method
from rung.policy_losses import policy_gradient_loss
from tests.batches import f64
from tests.enumeration import expected


def log_ratios(problem):
    """[sequences, T] log π − log π_ref."""
    return k1(problem.frozen(problem.policy), problem.frozen(problem.reference))


def chances(problem, policy):
    return problem.frozen(policy).sum(1).exp()


def penalty(problem, estimator, placement, *, credit=total_return, **settings):
    """The expected gradient of a penalty alone, β = 1."""
    method = Method(
        "penalty",
        credit,
        policy_gradient_loss,
        sequence_sum,
        KLPenalty(estimator, placement, 1.0, **settings),
    )
    return -expected(method, problem.without_rewards(), 1).ascent


def ascent(problem, credit, chance=None):
    """E[Σ_t Ψ_t ∇log π] for a credit [sequences, T] of every sequence."""
    parameters = torch.tensor(problem.policy.parameters, requires_grad=True)
    live = problem.logprobs(problem.policy, parameters)
    weight = chances(problem, problem.policy) if chance is None else chance
    loss = (weight.unsqueeze(1) * policy_gradient_loss(live, credit)).sum()
    return -torch.autograd.grad(loss, parameters)[0].numpy()


def layout(problem):
    """(mask, rewards) [sequences, T]: each sequence's reward at its last token."""
    lengths = torch.tensor([len(tokens) for _, tokens, _ in problem.sequences])
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    rewards = torch.zeros(mask.shape, dtype=torch.float64)
    rewards[torch.arange(len(lengths)), lengths - 1] = f64([reward for _, _, reward in problem.sequences])
    return mask, rewards
