"""Small batches for tests of the numeric core: written out by hand, or random and as irregular as allowed."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from rung.batch import Completion, Outcome, Rollouts, build_rollouts

NAN, INF = float("nan"), float("inf")


def f64(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def flags(values: object) -> torch.Tensor:
    """A mask written as 0 and 1."""
    return torch.tensor(values) == 1


def close(actual: torch.Tensor, expected: object, *, atol: float = 1e-12) -> None:
    """Equal in shape and, to `atol`, in value. The expected value is worked out in the test."""
    wanted = expected if isinstance(expected, torch.Tensor) else f64(expected)
    torch.testing.assert_close(actual.detach(), wanted, rtol=0, atol=atol)


def gradient(loss: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
    """∂ loss / ∂ input, of the first or only input; a loss of several entries is summed."""
    return torch.autograd.grad(loss.sum(), inputs)[0]


def leaf(values: object) -> torch.Tensor:
    """A float64 tensor that a gradient is asked of."""
    return f64(values).requires_grad_()


def completion(
    tokens: Sequence[int],
    *,
    sampled: Sequence[int] | None = None,
    behaviour: Sequence[float] | None = None,
    group: int = 0,
    sample: int = 0,
    prompt: Sequence[int] = (7,),
) -> Completion:
    """One completion; by default every token was sampled, each at −0.5 nats."""
    mask = tuple(bool(x) for x in (sampled if sampled is not None else [1] * len(tokens)))
    logprobs = tuple(behaviour) if behaviour is not None else tuple(-0.5 if on else 0.0 for on in mask)
    return Completion(
        prompt_ids=tuple(prompt),
        token_ids=tuple(tokens),
        sampled=mask,
        behaviour_logprobs=logprobs,
        policy_versions=(0,) * len(tokens),
        group=group,
        sample=sample,
        sampling_key=0,
        end_reason="stop",
    )


def outcomes(rewards: Sequence[float | None]) -> list[Outcome]:
    """A reward each; None is a judge that failed."""
    return [Outcome("reward", reward) if reward is not None else Outcome("error") for reward in rewards]


def rollouts(
    masks: Sequence[Sequence[int]], rewards: Sequence[float | None], groups: Sequence[int] | None = None
) -> Rollouts:
    """A batch from the sampled mask, reward and group of each row; rows may differ in length."""
    ids = groups if groups is not None else [0] * len(masks)
    rows = [
        completion(range(len(mask)), sampled=mask, group=group)
        for mask, group in zip(masks, ids, strict=True)
    ]
    return build_rollouts(rows, outcomes(rewards))


# Rows of every awkward kind: holes, a hole at the end, no sampled token, a failed judge, nothing at all; groups of one,
# two and four, in no order; rewards with ties and of several values.
RAGGED_MASKS = [
    [1, 1, 1],
    [1, 0, 0, 1, 1],
    [1, 1],
    [1],
    [0, 0],
    [1, 1, 1, 1],
    [0, 1, 1, 0],
    [],
    [1, 1, 1, 1, 1, 1],
    [1, 0, 1],
]
RAGGED_REWARDS = [1.0, -0.5, 0.25, 1.0, 9.0, None, 0.0, 5.0, 2.5, -1.25]
RAGGED_GROUPS = [4, -2, 4, 4, 4, -2, 4, 30, 30, -2]


def ragged(seed: int = 0) -> Rollouts:
    """The rows above with everything that can be annotated, at random and all different.

    Behaviour, old and reference log-probabilities, values, two rows that an artificial limit cut off, and the reward
    of a greedy completion for each group. Log-probabilities stand on sampled tokens only; values on all.
    """
    batch = rollouts(RAGGED_MASKS, RAGGED_REWARDS, RAGGED_GROUPS)
    generator = torch.Generator().manual_seed(seed)

    def logprobs() -> torch.Tensor:
        drawn = -2.0 * torch.rand(batch.mask.shape, generator=generator, dtype=torch.float64)
        return torch.where(batch.mask, drawn, 0.0)

    batch = replace(
        batch, behaviour_logprobs=logprobs(), old_logprobs=logprobs(), reference_logprobs=logprobs()
    )
    greedy = {4: 0.75, -2: -0.5, 30: 1.5}
    return replace(
        batch,
        values=torch.randn(batch.mask.shape, generator=generator, dtype=torch.float64),
        bootstrap=f64([0.0, 0.6, 0.0, 0.0, 0.0, -0.4, 0.0, 0.0, -0.8, 0.0]),
        greedy_rewards=f64([greedy[group] for group in RAGGED_GROUPS]),
    )


def annotated(batch: Rollouts, **given: torch.Tensor) -> Rollouts:
    """The batch with all that is missing: old and reference as sampled, a critic that says 0, a greedy reward of 0."""
    own = batch.behaviour_logprobs
    missing = {
        "old_logprobs": own,
        "reference_logprobs": own,
        "values": torch.zeros_like(own),
        "greedy_rewards": torch.zeros_like(batch.outcome_rewards),
    }
    found = {
        name: value for name, value in missing.items() if getattr(batch, name) is None and name not in given
    }
    return replace(batch, **found, **given)
