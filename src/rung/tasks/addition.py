"""Two-digit addition in plain text: "7+58=" → "65". Small enough to train a model from nothing in seconds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rung.tasks.base import Problem, Split, split_of

if TYPE_CHECKING:
    from rung.batch import Outcome


class Addition:
    """Sums of two numbers below 100 in plain text: "7+58=" → "65".

    a+b= for 0 ≤ a, b < 100: 10,000 problems, a tenth held out for the test and a twentieth for validation.

    Answers have one to three digits. The reward is 1 for exactly the right digits, else 0.
    """

    name = "addition"
    characters = "0123456789+="

    def problems(self, split: Split) -> Sequence[Problem]:
        """All problems of a split, by rising row. The split is by a hash of the text, so it never moves."""
        return [
            Problem(row=100 * a + b, prompt=f"{a}+{b}=", reference=a + b)
            for a in range(100)
            for b in range(100)
            if split_of(f"{a}+{b}", validation=5, test=10) == split
        ]

    def reward(self, problem: Problem, completion: str) -> "Outcome":
        """1 for the right digits and nothing else, else 0."""
        from rung.batch import Outcome

        return Outcome("reward", float(completion == str(problem.reference)))

    def answer(self, problem: Problem) -> str:
        """The right digits."""
        return str(problem.reference)
