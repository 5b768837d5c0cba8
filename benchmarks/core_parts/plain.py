"""What somebody would write without a library: loops over tokens and groups, formulas typed out. For core.py."""

from collections.abc import Callable, Sequence

import torch


def gae(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, *, gamma: float, lam: float
) -> torch.Tensor:
    following, running = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
    out = torch.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        residual = rewards[:, t] + gamma * following - values[:, t]
        running = torch.where(mask[:, t], residual + gamma * lam * running, 0.0)
        following = torch.where(mask[:, t], values[:, t], 0.0)
        out[:, t] = running
    return out


def to_go(rewards: torch.Tensor, mask: torch.Tensor, *, gamma: float) -> torch.Tensor:
    running, out = torch.zeros_like(rewards[:, 0]), torch.zeros_like(rewards)
    for t in reversed(range(rewards.shape[1])):
        running = torch.where(mask[:, t], rewards[:, t] + gamma * running, 0.0)
        out[:, t] = running
    return out


def groups(returns: torch.Tensor, groups: torch.Tensor, *, standardized: bool) -> torch.Tensor:
    out = torch.zeros_like(returns)
    for group in groups.unique():
        members = groups == group
        own = returns[members]
        others = (own.sum() - own) / (len(own) - 1)
        out[members] = (own - own.mean()) / own.std() if standardized else own - others
    return out


def clip(policy: torch.Tensor, old: torch.Tensor, credit: torch.Tensor, *, clip: float) -> torch.Tensor:
    ratio = torch.exp(policy - old)
    return -torch.min(ratio * credit, ratio.clamp(1 - clip, 1 + clip) * credit)


def with_gradient(
    loss: Callable[..., torch.Tensor], policy: torch.Tensor, old: torch.Tensor, credit: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    leaf = policy.detach().requires_grad_()
    value = loss(leaf, old, credit).mean()
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


def copies(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.clone() for tensor in tensors)
