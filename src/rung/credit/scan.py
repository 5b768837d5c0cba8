"""Sums from each token on, without a loop over tokens; tokens that do not count are skipped.

    constant decay:  y_t = x_t + c · y_{t+1}          blocks of 32, one matrix product each, then the blocks' carries
    any decays:      y_t = x_t + d_t · y_{t+1}        pairs of steps become one step, until one is left

`Steps` is time as the policy sees it: its own tokens in order, a tool's output taken out.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from rung.errors import InvalidInput
from rung.masked import select
from rung.notation import PerToken, TokenMask

BLOCK = 32  # the product costs BLOCK operations an element, the carries one in BLOCK elements


def require_fractions(**settings: float) -> None:
    """Refuse a discount or trace parameter outside [0, 1].

    >>> require_fractions(gamma=1.0, lam=0.95)
    """
    for name, value in settings.items():
        if not 0.0 <= value <= 1.0:
            raise InvalidInput(f"{name} must be between 0 and 1, got {value}")


@dataclass(frozen=True)
class Steps:
    """The counted tokens of a batch as steps 0, 1, … of each row.

    Attributes:
        mask: [B, T] bool, the tokens.
        step: [B, T], which step a counted token is; None where no row has a hole and tokens are steps already.
    """

    mask: TokenMask
    step: torch.Tensor | None

    @classmethod
    def of(cls, mask: TokenMask) -> "Steps":
        """The steps of a mask.

        >>> Steps.of(torch.tensor([[True, False, True]])).step
        tensor([[0, 0, 1]])
        """
        if mask.dtype != torch.bool or mask.ndim != 2:
            raise InvalidInput(f"the mask must be boolean [B, T], got {mask.dtype} {tuple(mask.shape)}")
        holes = bool((mask[:, 1:] & ~mask[:, :-1]).any())
        return cls(mask, (mask.cumsum(1) - 1).clamp(min=0) if holes else None)

    @property
    def count(self) -> torch.Tensor:
        """[B] steps of each row."""
        return self.mask.sum(1)

    @property
    def counts(self) -> TokenMask:
        """[B, T] bool, True at the first `count` slots: where `by_step` puts something."""
        if self.step is None:
            return self.mask
        return torch.arange(self.mask.shape[1], device=self.mask.device) < self.count.unsqueeze(1)

    def by_step(self, x: PerToken) -> PerToken:
        """Counted entries moved together to the front of each row, 0 after them. Nothing else is looked at.

        >>> mask = torch.tensor([[True, False, True]])
        >>> Steps.of(mask).by_step(torch.tensor([[1.0, 7.0, 2.0]]))
        tensor([[1., 2., 0.]])
        """
        kept = select(x, self.mask)
        if self.step is None:
            return kept
        beyond = x.shape[1]  # where everything goes that does not count
        target = torch.where(self.mask, self.step, beyond)
        return kept.new_zeros(len(kept), beyond + 1).scatter(1, target, kept)[:, :beyond]

    def by_token(self, y: PerToken) -> PerToken:
        """Back to the tokens' own slots, 0 off the mask; y must be 0 beyond each row's last step.

        >>> mask = torch.tensor([[True, False, True]])
        >>> Steps.of(mask).by_token(torch.tensor([[1.0, 2.0, 0.0]]))
        tensor([[1., 0., 2.]])
        """
        return y if self.step is None else select(y.gather(1, self.step), self.mask)


def discounted_suffix_sum(x: PerToken, decay: float) -> PerToken:
    """The sum from each entry on, weighted down by a constant factor an entry.

        y_t = x_t + c · y_{t+1} = Σ_{k≥0} c^k x_{t+k}

    Args:
        x: [B, T], finite.
        decay: c in [0, 1].

    Returns:
        [B, T]. Each y_t is a sum of products of x with powers of c, so that with c = 1 and one entry that is not 0
        it is that entry, exactly.

    >>> discounted_suffix_sum(torch.tensor([[1.0, 2.0, 4.0]]), 0.5)
    tensor([[3., 4., 4.]])
    """
    if not x.is_floating_point():
        raise InvalidInput(f"sums with a discount need floating-point numbers, got {x.dtype}")
    rows, length = x.shape
    size = min(BLOCK, length)
    powers = decay ** torch.arange(size + 1, dtype=torch.float64, device=x.device)
    place = torch.arange(size, device=x.device)
    within = powers[place.unsqueeze(1) - place].tril().to(x.dtype)  # [from, to]; nothing flows forward
    if length <= BLOCK:
        return x @ within
    number = -(-length // BLOCK)
    blocks = pad(x, (0, number * BLOCK - length)).reshape(rows, number, BLOCK) @ within
    carry = discounted_suffix_sum(blocks[:, :, 0], decay**BLOCK)
    carry = pad(carry, (0, 1))[:, 1:].unsqueeze(2)
    # In place, because fresh memory costs more than the sum.
    return blocks.addcmul_(carry, powers[1:].flip(0).to(x.dtype)).flatten(1)[:, :length]


def suffix_sum(x: PerToken, decays: PerToken) -> PerToken:
    """The sum from each entry on, weighted down by a factor of each entry's own.

        y_t = x_t + d_t · y_{t+1} = Σ_{k≥0} (Π_{i<k} d_{t+i}) x_{t+k}

    Two steps in a row are one step, x_t + d_t x_{t+1} with decay d_t d_{t+1}: half as many remain each time.

    Args:
        x: [B, T], finite.
        decays: [B, T], d_t.

    Returns:
        [B, T].

    >>> suffix_sum(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.5, 0.25, 9.0]]))
    tensor([[2.5000, 3.0000, 4.0000]])
    """
    length = x.shape[1]
    if length <= 1:
        return x
    x, decays = pad(x, (0, length % 2)), pad(decays, (0, length % 2))
    even, odd = x[:, 0::2], x[:, 1::2]
    even_decay, odd_decay = decays[:, 0::2], decays[:, 1::2]
    even = suffix_sum(even + even_decay * odd, even_decay * odd_decay)
    odd = odd + odd_decay * pad(even, (0, 1))[:, 1:]
    return torch.stack((even, odd), 2).flatten(1)[:, :length]
