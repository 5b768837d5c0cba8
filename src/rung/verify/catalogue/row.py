"""Everything that is measured of one method, and what of it does not hold."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rung.verify.bias import Bias
from rung.verify.catalogue.check import SHOWS, UNBIASED, Case, Measured
from rung.verify.catalogue.kl_part import KLPart
from rung.verify.claims import Claim

ONE, TWO = "one prompt", "two prompts"
SIZES = (2, 3, 4)


@dataclass(frozen=True)
class Row:
    """Everything that was measured of one method."""

    claim: Claim
    cases: dict[Case, Measured]
    kl: KLPart
    ladder: list[tuple[str, Bias]]

    @property
    def failures(self) -> tuple[str, ...]:
        """What does not hold, a sentence each."""
        found = [text for measured in self.cases.values() for text in measured.failures]
        if not self.kl.holds:
            found.append(
                f"{self.claim.name} ({self.kl.case}): the part of its {self.kl.words} is off the derived one by "
                f"{self.kl.deviation:.2g} of that one's length"
            )
        return (*found, *_off_the_ladder(self.claim, self.ladder))

    def at(self, *case: object) -> Bias:
        """What was measured on a case, given by its fields."""
        return self.cases[Case(*case)].bias  # type: ignore[arg-type]


def _off_the_ladder(claim: Claim, ladder: list[tuple[str, Bias]]) -> list[str]:
    """Each change must do something, and after the last one no bias may be left."""
    idle = [
        what
        for (_, before), (what, after) in pairwise(ladder)
        if np.linalg.norm(after.moments.ascent - before.moments.ascent)
        < SHOWS * np.linalg.norm(before.target)
        and np.array_equal(before.target, after.target)
    ]
    found = [f'{claim.name}: "{what}" was to take out a source of bias, and changes nothing' for what in idle]
    left = ladder[-1][1].relative
    if not left <= UNBIASED:
        found.append(
            f"{claim.name}: with its sources of bias taken out, a relative bias of {left:.2g} is left"
        )
    return found
