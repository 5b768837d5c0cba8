"""The estimators' side of `rung verify kl`: each cell as a method of rung's, with autograd through torch's softmax."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import numpy as np
import torch

from rung.aggregation import sequence_sum
from rung.batch import Rollouts
from rung.correction import importance
from rung.credit import reward_to_go
from rung.exact import Prefix, SoftmaxTable
from rung.exact.token_mdp import FloatArray
from rung.kl import k1, k2, k3, kl_divergence
from rung.masked import masked_sum
from rung.methods import KLPenalty, Method
from rung.notation import PerToken, TokenMask
from rung.policy_losses import importance_weighted_loss, policy_gradient_loss
from rung.verify.enumeration import Setting, Situation
from rung.verify.kl.claims import Estimator, Level, Placement, Weight
from rung.verify.problems import ParametricPolicy, Problem

Estimate = Callable[[PerToken, PerToken], PerToken]
SAMPLED: dict[str, Estimate] = {"k1": k1, "k2": k2, "k3": k3}


@dataclass(frozen=True)
class Cell:
    """One of the ways to use an estimate of KL(π‖π_ref); rung.verify.kl says what each word means."""

    estimator: Estimator
    placement: Placement
    level: Level
    weight: Weight

    def __str__(self) -> str:
        level = {"token": "token", "sequence": "seq.", "mixed": "Σ"}[self.level]
        weight = {None: "", "detached": " sg(w)", "live": " w"}[self.weight]
        if self.level != "token":
            weight = weight.replace("w", "W")
        return f"{self.estimator} {self.placement} {level}{weight}"


@dataclass(frozen=True)
class Measured:
    """What a cell does, over every sequence that its sampler may give.

    Attributes:
        mean: of its value, nats per sequence.
        variance: of one sequence's value.
        gradient: [n], the expected gradient of the penalty: the direction in which it grows.
        trace: of the covariance of one sequence's gradient.
    """

    mean: float
    variance: float
    gradient: FloatArray
    trace: float


def whole_ratio_loss(
    policy_logprobs: PerToken, behaviour_logprobs: PerToken, credit: PerToken, mask: TokenMask
) -> PerToken:
    """−W Ψ with a live W = Π_t π/μ, spread evenly over the sequence's tokens; Ψ is one number a sequence."""
    ratio = masked_sum(policy_logprobs - behaviour_logprobs, mask, dim=1).exp().unsqueeze(1)
    return -ratio * credit / mask.sum(1, keepdim=True)


def token_ratio_loss(policy_logprobs: PerToken, behaviour_logprobs: PerToken, credit: PerToken) -> PerToken:
    """`importance_weighted_loss` with regard to the sampler."""
    return importance_weighted_loss(policy_logprobs, behaviour_logprobs, credit)


@dataclass(frozen=True)
class World:
    """Every sequence of a problem as one batch, without rewards: what is left is the penalty.

    Attributes:
        problem: one prompt.
        on_policy: whether π itself samples, or the problem's behaviour μ.
    """

    problem: Problem
    on_policy: bool

    @cached_property
    def _bare(self) -> Problem:
        prompts = [
            (p, replace(mdp, reward=lambda _: 0.0, step_reward=None)) for p, mdp in self.problem.prompts
        ]
        return replace(self.problem, prompts=tuple(prompts))

    def _setting(self, situation: Situation) -> Setting:
        return Setting(self._bare, 1, "on-policy" if self.on_policy else situation)

    @cached_property
    def chances(self) -> torch.Tensor:
        """[N] probability of each sequence under the sampler."""
        return torch.tensor(self._setting("stale").chances, dtype=torch.float64)

    def rollouts(self, situation: Situation) -> Rollouts:
        """All sequences. "stale": old is μ. "mismatch": old is π, and only the behaviour is μ's."""
        if situation not in self._rollouts:
            setting = self._setting(situation)
            self._rollouts[situation] = setting.batch(tuple(range(len(self._bare.sequences)))).rollouts
        return self._rollouts[situation]

    @cached_property
    def _rollouts(self) -> dict[Situation, Rollouts]:
        """Those made so far."""
        return {}

    @cached_property
    def _live(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """θ [n]; log π of each token and KL(π‖π_ref) at its prefix, [N, T], differentiable in θ, 0 after each end."""
        theta = torch.tensor(self.problem.policy.parameters, requires_grad=True)
        reference = self.problem.reference
        logprobs, divergences = [], []
        for s in self.problem.sequences:
            for t, token in enumerate(s.tokens):
                prefix = (*self.problem.prompts[s.prompt][0], *s.tokens[:t])
                logits = _logits(self.problem.policy, theta, prefix)
                other = _logits(reference, torch.tensor(reference.parameters), prefix)
                logprobs.append(logits.log_softmax(-1)[token])
                divergences.append(kl_divergence(logits, other))
        zeros = torch.zeros(self.mask.shape, dtype=torch.float64)
        return (
            theta,
            zeros.masked_scatter(self.mask, torch.stack(logprobs)),
            zeros.masked_scatter(self.mask, torch.stack(divergences)),
        )

    @cached_property
    def mask(self) -> TokenMask:
        """[N, T] bool."""
        return self.rollouts("stale").mask

    @cached_property
    def logprobs(self) -> torch.Tensor:
        """[N, T] log π of each token, a leaf."""
        return self._live[1].detach().requires_grad_()

    @cached_property
    def divergences(self) -> torch.Tensor:
        """[N, T] KL(π‖π_ref) over the whole vocabulary at each token's prefix, a leaf."""
        return self._live[2].detach().requires_grad_()

    @cached_property
    def _derivatives(self) -> tuple[FloatArray, FloatArray]:
        """[N, T, n] of `logprobs` and of `divergences`, by torch."""
        theta, *tables = self._live
        found = []
        for table in tables:
            tokens = table[self.mask]
            each = torch.eye(len(tokens), dtype=torch.float64)
            (rows,) = torch.autograd.grad(tokens, theta, each, retain_graph=True, is_grads_batched=True)
            out = np.zeros((*self.mask.shape, len(theta)))
            out[self.mask.numpy()] = rows.numpy()
            found.append(out)
        return found[0], found[1]

    def measure(self, cell: Cell) -> Measured:
        """A cell through the slots, as a training run uses them; each sequence is a batch of its own."""
        method = self._method(cell)
        rollouts = self.rollouts("mismatch" if cell.placement == "reward" else "stale")
        batch = method.prepare(rollouts)
        p = self.chances.numpy()
        values = masked_sum(self._values(cell, method, rollouts), self.mask, dim=1).detach().numpy()
        # No row knows another one, so that one loss holds the gradients of all batches of one.
        gradient, trace = self.moments(method.loss(self.logprobs, batch, method.weights(self.mask) * len(p)))
        mean = float(p @ values)
        return Measured(mean, float(p @ (values - mean) ** 2), gradient, trace)

    def moments(self, losses: torch.Tensor) -> tuple[FloatArray, float]:
        """[n] mean and the trace of the covariance of one sequence's gradient, of all sequences' losses in a sum."""
        slopes = torch.autograd.grad(
            losses, (self.logprobs, self.divergences), allow_unused=True, materialize_grads=True
        )
        gradients = sum(
            np.einsum("it,itn->in", slope.numpy(), table)
            for slope, table in zip(slopes, self._derivatives, strict=True)
        )
        p = self.chances.numpy()
        mean: FloatArray = p @ gradients
        return mean, float(p @ ((gradients - mean) ** 2).sum(1))

    def _values(self, cell: Cell, method: Method, rollouts: Rollouts) -> PerToken:
        """[N, T] weight · k, nats."""
        kl, old, reference = method.kl, rollouts.old_logprobs, rollouts.reference_logprobs
        assert kl is not None
        assert old is not None
        assert reference is not None
        if cell.placement == "loss":
            return kl.in_loss(self.logprobs, reference, old, self.mask)
        penalty = kl.in_reward(old, reference, self.mask)
        if cell.weight is None:
            return penalty
        level: Literal["token", "sequence"] = "token" if cell.level == "token" else "sequence"
        return penalty * importance(old, rollouts.behaviour_logprobs, self.mask, level=level)

    def _estimate(self, cell: Cell) -> Estimate:
        """What the penalty calls. "full" and a sum over tokens under one weight know more than the log-probs."""
        if cell.estimator == "full":
            divergences = self.divergences
            return lambda p, q: divergences if p.ndim == 2 else divergences.sum(1)
        of_tokens = SAMPLED[cell.estimator]
        if cell.level != "mixed" or cell.placement == "reward":
            return of_tokens
        reference = self.rollouts("stale").reference_logprobs
        assert reference is not None
        sums = of_tokens(self.logprobs, reference).sum(1)
        return lambda p, q: sums

    def _method(self, cell: Cell) -> Method:
        weighted: Literal["token", "sequence"] = "token" if cell.level == "token" else "sequence"
        in_loss, mixed = cell.placement == "loss", cell.level == "mixed"
        penalty = KLPenalty(
            self._estimate(cell),
            placement=cell.placement,
            coefficient=1.0,
            level="token" if mixed and not in_loss else weighted,  # in the reward, k stays at its token
            weight=cell.weight if in_loss else None,
        )
        policy_loss: Callable[..., torch.Tensor] = policy_gradient_loss
        if not in_loss and cell.weight == "live":
            policy_loss = token_ratio_loss if cell.level == "token" else whole_ratio_loss
        correction = None
        if not in_loss and cell.weight == "detached":
            correction = partial(importance, level=weighted)
        return Method(str(cell), reward_to_go, policy_loss, sequence_sum, kl=penalty, correction=correction)


def _logits(policy: ParametricPolicy, theta: torch.Tensor, prefix: Prefix) -> torch.Tensor:
    """[V] of the next token, differentiable in θ."""
    if isinstance(policy, SoftmaxTable):
        return theta.reshape(policy.logits.shape)[policy.row_of(prefix)]
    return torch.from_numpy(policy.features(prefix)) @ theta
