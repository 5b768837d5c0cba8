"""Training a table of logits to the end: by the mean update over everything that could be sampled, or by sampling."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.functional import pad

from rung.batch import Rollouts
from rung.methods import Method, TrainingBatch
from tests.enumeration import Tables, greedy_rewards
from tests.methods.critics import Critic, ExactCritic
from tests.methods.trees import Array, Tree, softmax


class Pairs:
    """Every pair of sequences that could be sampled, with its probability; the two orders of a pair are one.

    A pair is one batch. Where credit and weights compare only within a group, all pairs can be prepared at once, each
    a group of its own; where they compare within the batch, `one_by_one`.
    """

    def __init__(self, tree: Tree, *, one_by_one: bool = False) -> None:
        self.tree = tree
        pairs = torch.tensor(list(itertools.combinations_with_replacement(range(len(tree.tokens)), 2)))
        self.rows = pairs.flatten()
        self.reference = tree.problem.frozen(tree.problem.reference)
        self.chunks = [self._built(chunk) for chunk in (pairs.split(1) if one_by_one else [pairs])]

    def _built(self, pairs: torch.Tensor) -> tuple[torch.Tensor, Rollouts]:
        nothing = torch.zeros_like(self.reference)
        built = self.tree.problem.rollouts(
            pairs.flatten().tolist(), Tables(nothing, nothing, self.reference, nothing, nothing[:, 0])
        )
        return pairs, replace(built, groups=torch.arange(len(pairs)).repeat_interleave(2))

    def prepared(self, method: Method, at: Tables) -> tuple[TrainingBatch, torch.Tensor]:
        """All pairs one below the other; a pair's weights times its probability under the sampler."""
        parts = []
        for pairs, built in self.chunks:
            width, rows = built.mask.shape[1], pairs.flatten()
            rollouts = replace(
                built,
                behaviour_logprobs=at.behaviour[rows, :width],
                old_logprobs=at.old[rows, :width],
                values=at.values[rows, :width],
                greedy_rewards=at.greedy[rows],
            )
            batch = method.prepare(rollouts)
            orders = torch.where(pairs[:, 0] == pairs[:, 1], 1.0, 2.0)
            chances = orders * at.behaviour.sum(1).exp()[pairs].prod(1)
            # Weights are a mean over pairs: times their number and each one's chance they are the expectation.
            weights = (
                method.weights(batch.mask) * len(pairs) * chances.repeat_interleave(2).unsqueeze(1).double()
            )
            parts.append((batch, weights))
        width = at.old.shape[1]

        def stacked(columns: list[torch.Tensor | None]) -> torch.Tensor | None:
            kept = [pad(x, (0, width - x.shape[1])) for x in columns if x is not None]
            return torch.cat(kept) if kept else None

        names = ("mask", "credit", "old_logprobs", "reference_logprobs", "behaviour_logprobs", "correction")
        whole = {name: stacked([getattr(batch, name) for batch, _ in parts]) for name in names}
        weights = stacked([weights for _, weights in parts])
        assert weights is not None
        return TrainingBatch(**whole), weights  # type: ignore[arg-type]

    def typical(self, policy: Array, size: int = 64) -> Rollouts:
        """A batch whose sequences are as frequent as they are likely: quantiles (i + ½)/size of their distribution."""
        levels = np.cumsum(self.tree.sequences(policy))
        drawn = np.searchsorted(levels, levels[-1] * (np.arange(size) + 0.5) / size)
        old = self.tree.by_token(torch.from_numpy(np.log(policy)))
        nothing = torch.zeros_like(old)
        return self.tree.problem.rollouts(
            drawn.tolist(), Tables(old, old, self.reference, nothing, nothing[:, 0])
        )


Sampler = Callable[[torch.Tensor], torch.Tensor]  # logits of the policy → logits of who samples for it


@dataclass(frozen=True)
class End:
    """Where training arrived.

    Attributes:
        policy: a table.
        batches: how many it took.
        method: as it was for the last batch.
        objectives: J at the start of every batch.
        critic: as it was for the last batch.
        moved: KL(old‖new) of whole sequences by the updates of each batch, nats.
        betas: the KL coefficient of each batch.
        clipped: tokens, over all updates, that stood beyond 1 ± 0.2 on the side on which PPO lets go of them.
    """

    policy: Array
    batches: int
    method: Method
    objectives: list[float]
    critic: Critic
    moved: list[float]
    betas: list[float]
    clipped: int = 0


def train(
    method: Method,
    pairs: Pairs,
    step: float,
    *,
    most: int = 200,
    enough: float = 1e-14,
    updates: int = 1,
    critic: Critic | None = None,
    sampler: Sampler | None = None,
) -> End:
    """Follow the mean update until it vanishes.

    A step divides ∂/∂θ(s,a) by p(s) π(a|s): the natural gradient of a table of logits. It changes no point at which
    the update vanishes, and prefixes that are seldom reached learn as fast as others.

    Args:
        method: any.
        pairs: everything that could be sampled.
        step: the step size of a batch, shared by its updates.
        most: batches at most.
        enough: how small a slope counts as none.
        updates: steps with each batch; from the second on the policy is no longer the one that sampled.
        critic: for methods that ask for values; exact if not given.
        sampler: who samples, if it is not the policy.
    """
    tree = pairs.tree
    logits, clipped = torch.tensor(tree.problem.policy.parameters), 0
    objectives: list[float] = []
    moved: list[float] = []
    betas: list[float] = []
    critic = ExactCritic(method.kl.beta if method.kl is not None else 0.0) if critic is None else critic
    for done in range(most):
        old, table = tree.logprobs(logits), tree.table(logits)
        policy = softmax(table.logits)
        objectives.append(tree.objective(policy))
        betas.append(method.kl.beta if method.kl is not None else 0.0)
        nothing = torch.zeros_like(old)
        at = Tables(
            old if sampler is None else tree.logprobs(sampler(logits)),
            old,
            pairs.reference,
            critic.values(tree, table) if "values" in method.needs else nothing,
            greedy_rewards(tree.problem, table) if "greedy" in method.needs else nothing[:, 0],
        )
        batch, weights = pairs.prepared(method, at)
        visits = torch.from_numpy(tree.at_choices(tree.sequences(policy))).flatten()
        for update in range(updates):
            downhill = tree.slope(method, logits, pairs.rows, batch, weights)
            if update == 0 and downhill.abs().max() < enough:
                return End(policy, done, method, objectives, critic, moved, betas, clipped)
            logits = logits - step / updates * downhill / visits
            ratio = (tree.logprobs(logits) - old).exp()[pairs.rows]
            let_go = torch.where(batch.credit > 0, ratio > 1.2, ratio < 0.8) & (batch.credit != 0)
            clipped += int(let_go.sum()) if update + 1 < updates else 0
        if "values" in method.needs:
            critic = critic.learned(tree, pairs.rows, batch, weights)
        change = (old - tree.logprobs(logits)).sum(1)
        moved.append(float(torch.where(old.sum(1) > -700, old.sum(1).exp() * change, 0.0).sum()))
        if method.state:
            method = method.after(pairs.typical(policy), kl=max(moved[-1], 0.0))
    return End(softmax(tree.table(logits).logits), most, method, objectives, critic, moved, betas, clipped)


def train_by_sampling(
    method: Method,
    tree: Tree,
    step: float,
    *,
    seed: int,
    batches: int,
    updates: int = 1,
    critic: Critic | None = None,
    sampler: Sampler | None = None,
) -> Array:
    """Plain gradient descent on 64 sampled pairs a batch, with steps that shrink as 1/(1 + batch/100): the policy."""
    generator = np.random.default_rng(seed)
    logits = torch.tensor(tree.problem.policy.parameters)
    reference = tree.problem.frozen(tree.problem.reference)
    critic = ExactCritic(method.kl.beta if method.kl is not None else 0.0) if critic is None else critic
    for done in range(batches):
        old, table = tree.logprobs(logits), tree.table(logits)
        behaviour = old if sampler is None else tree.logprobs(sampler(logits))
        chances = behaviour.sum(1).exp().numpy()
        drawn = generator.choice(len(chances), size=128, p=chances / chances.sum())
        nothing = torch.zeros_like(old)
        at = Tables(
            behaviour,
            old,
            reference,
            critic.values(tree, table) if "values" in method.needs else nothing,
            greedy_rewards(tree.problem, table) if "greedy" in method.needs else nothing[:, 0],
        )
        rollouts = replace(tree.problem.rollouts(drawn.tolist(), at), groups=torch.arange(128) % 64)
        batch, rows = method.prepare(rollouts), torch.from_numpy(drawn)
        weights = method.weights(batch.mask)
        for _ in range(updates):
            downhill = tree.slope(method, logits, rows, batch, weights)
            logits = logits - step / (updates * (1 + done / 100)) * downhill
        if "values" in method.needs:
            critic = critic.learned(tree, rows, batch, weights)
        if method.state:
            change = (tree.logprobs(logits) - old)[rows]  # k3 of KL(old‖policy): never negative, k1 may be
            method = method.after(rollouts, kl=float((change.expm1() - change).sum(1).mean()))
    return softmax(tree.table(logits).logits)
