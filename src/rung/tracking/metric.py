"""What a definition of a recorded number consists of. Only the standard library is imported."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One recorded number.

    Attributes:
        name: the key in metrics.jsonl or timing.jsonl.
        label: what a person calls it.
        meaning: one line, without the formula.
        unit: what one of it is.
        formula: how it is computed.
        normaliser: what the sum is divided by, or why nothing divides it.
        expected: range and healthy behavior.
        odd: what it means when it leaves them.
    """

    name: str
    label: str
    meaning: str
    unit: str
    formula: str
    normaliser: str
    expected: str
    odd: str

    @property
    def one_line(self) -> str:
        """The definition in one line: meaning and unit.

        >>> from rung.tracking.definitions import METRICS
        >>> METRICS["entropy"].one_line
        'How undecided the policy is before each token that it sampled (nats per token).'
        """
        return f"{self.meaning} ({self.unit})."
