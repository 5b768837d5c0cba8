"""What the losses of one optimizer step read."""

from dataclasses import dataclass

import torch

from rung.notation import PerToken, TokenMask


@dataclass(frozen=True)
class TrainingBatch:
    """[B, T] each; made once per rollout batch, indexed by row.

    Attributes:
        mask: the tokens that train: sampled by the policy, in valid and selected rows.
        credit: Ψ, detached.
        old_logprobs: frozen at the start of the update, or None if the method does not need them.
        reference_logprobs: of the frozen reference, or None.
        behaviour_logprobs: as sampled, or None if no slot reads them.
        correction: detached weights between sampler and trainer, or None.
    """

    mask: TokenMask
    credit: PerToken
    old_logprobs: PerToken | None = None
    reference_logprobs: PerToken | None = None
    behaviour_logprobs: PerToken | None = None
    correction: PerToken | None = None

    def rows(self, index: torch.Tensor) -> "TrainingBatch":
        """The same batch, restricted to some rows."""

        def of(values: PerToken | None) -> PerToken | None:
            return None if values is None else values[index]

        return TrainingBatch(
            self.mask[index],
            self.credit[index],
            of(self.old_logprobs),
            of(self.reference_logprobs),
            of(self.behaviour_logprobs),
            of(self.correction),
        )
