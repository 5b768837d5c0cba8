"""What a sampler must do, whatever it runs on."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from rung.batch import Completion
from rung.errors import InvalidInput


@dataclass(frozen=True)
class Request:
    """One prompt and the samples wanted of it.

    Attributes:
        prompt_ids: the prompt's token ids.
        keys: a sampling key for each sample; they alone decide the randomness.
        group: id that its completions carry.
        max_new_tokens: the length cap; reaching it without an end token ends a completion by "length".
        greedy: the most likely token in place of a drawn one. There is then one sample, and its key decides nothing.
    """

    prompt_ids: tuple[int, ...]
    keys: tuple[int, ...]
    group: int
    max_new_tokens: int
    greedy: bool = False

    def __post_init__(self) -> None:
        """Refuse what no sampler can do."""
        if not self.prompt_ids or not self.keys or self.max_new_tokens < 1:
            raise InvalidInput(
                "a request needs a prompt of at least one token, at least one sampling key and room for at least one "
                f"new token; got {len(self.prompt_ids)}, {len(self.keys)} and {self.max_new_tokens}"
            )
        if self.greedy and len(self.keys) != 1:
            raise InvalidInput(
                f"a greedy request has one sample, as all would be the same; got {len(self.keys)} keys"
            )


class Engine(Protocol):
    """Samples completions of the current policy."""

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        """Completions in the order in which they finish."""
        ...

    def load(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take over the weights of policy version `version`; completions carry that number from then on."""
        ...
