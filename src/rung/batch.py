"""What a sampler returns and what a method reads: validated once, here.

A `Completion` is one sampled answer, as token ids. `Rollouts` are many of them as [B, T] tensors with their outcomes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from rung.errors import InvalidInput
from rung.masked import select
from rung.notation import BOOKKEEPING, GroupIds, PerSequence, PerToken, TokenMask

EndReason = Literal["stop", "length"]
OutcomeKind = Literal["reward", "error", "timeout", "abstain"]


@dataclass(frozen=True)
class Outcome:
    """What a judge said of one completion. Only the kind "reward" carries a number; the others never become 0."""

    kind: OutcomeKind
    reward: float | None = None
    message: str = ""

    def __post_init__(self) -> None:
        """Refuse a reward that is not a finite number, and a number without the kind "reward"."""
        if (self.kind == "reward") != (self.reward is not None):
            raise InvalidInput(
                f"outcome {self.kind!r} with reward {self.reward!r}: only 'reward' carries a number"
            )
        if self.reward is not None and not abs(self.reward) < float("inf"):
            raise InvalidInput(f"a reward must be a finite number, got {self.reward!r}")


@dataclass(frozen=True)
class Completion:
    """One sampled answer: ids are the truth, and are never decoded and encoded again.

    Attributes:
        prompt_ids: the prompt's token ids, not empty.
        token_ids: the tokens after the prompt, the end token included.
        sampled: for each of them, whether the policy sampled it (a tool's output is not).
        behaviour_logprobs: log-probability of each under the distribution it was drawn from, nats (0 if not sampled).
        policy_versions: number of updates of the policy that sampled each token.
        group: id of the prompt's group in its batch.
        sample: which sample of the group.
        sampling_key: what the randomness was a function of.
        end_reason: "stop" (one of the model's end tokens) or "length" (the cap).
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    sampled: tuple[bool, ...]
    behaviour_logprobs: tuple[float, ...]
    policy_versions: tuple[int, ...]
    group: int
    sample: int
    sampling_key: int
    end_reason: EndReason

    def __post_init__(self) -> None:
        """Refuse parts of unequal length and an empty prompt."""
        lengths = {
            len(self.token_ids),
            len(self.sampled),
            len(self.behaviour_logprobs),
            len(self.policy_versions),
        }
        if len(lengths) != 1:
            raise InvalidInput(f"tokens, sampled, log-probs and versions differ in length: {sorted(lengths)}")
        if not self.prompt_ids:
            raise InvalidInput("a completion needs a prompt of at least one token")


def pad(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> torch.Tensor:
    """Rows of unequal length as one [B, T] tensor, 0 after each row's end."""
    length = max((len(row) for row in rows), default=0)
    out = torch.zeros(len(rows), length, dtype=dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row, dtype=dtype)
    return out


@dataclass(frozen=True)
class Rollouts:
    """A batch of completions with their outcomes, and what was annotated to them.

    Attributes:
        completions: B of them.
        outcomes: one each.
        mask: [B, T] bool, the tokens that the policy sampled.
        groups: [B] int64.
        valid: [B] bool: an outcome that is a reward, and at least one sampled token.
        outcome_rewards: [B], the reward units of valid rows, 0 for the others.
        behaviour_logprobs: [B, T], nats.
        old_logprobs: [B, T], the trainer's own at the start of the update, or None.
        reference_logprobs: [B, T], or None.
        values: [B, T] V(s_t) of a critic before each token, reward units, or None.
        bootstrap: [B] V after the last token of rows that an artificial limit cut off, 0 for the others, or None.
        greedy_rewards: [B], what the judge said of the greedy completion of each row's prompt, or None.
    """

    completions: tuple[Completion, ...]
    outcomes: tuple[Outcome, ...]
    mask: TokenMask
    groups: GroupIds
    valid: torch.Tensor
    outcome_rewards: PerSequence
    behaviour_logprobs: PerToken
    old_logprobs: PerToken | None = field(default=None)
    reference_logprobs: PerToken | None = field(default=None)
    values: PerToken | None = field(default=None)
    bootstrap: PerSequence | None = field(default=None)
    greedy_rewards: PerSequence | None = field(default=None)

    @property
    def rewards(self) -> PerToken:
        """[B, T] r_t: the outcome reward at the last token that the policy sampled, 0 elsewhere."""
        remaining = self.mask.flip(1).cumsum(1).flip(1)
        return torch.where(self.mask & (remaining == 1), self.outcome_rewards.unsqueeze(1), 0.0)


def build_rollouts(completions: Sequence[Completion], outcomes: Sequence[Outcome]) -> Rollouts:
    """The tensors of a batch, on the CPU, in float64.

    Raises:
        InvalidInput: no completions, or another number of outcomes.
    """
    if not completions or len(completions) != len(outcomes):
        raise InvalidInput(f"{len(completions)} completions with {len(outcomes)} outcomes")
    mask = pad([c.sampled for c in completions], torch.bool)
    valid = torch.tensor([o.kind == "reward" for o in outcomes]) & mask.any(1)
    rewards = torch.tensor([o.reward if o.reward is not None else 0.0 for o in outcomes], dtype=BOOKKEEPING)
    return Rollouts(
        completions=tuple(completions),
        outcomes=tuple(outcomes),
        mask=mask,
        groups=torch.tensor([c.group for c in completions], dtype=torch.int64),
        valid=valid,
        outcome_rewards=select(rewards, valid),
        behaviour_logprobs=pad([c.behaviour_logprobs for c in completions], BOOKKEEPING),
    )
