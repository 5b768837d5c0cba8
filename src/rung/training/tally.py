"""What is logged of the updates of a step."""

import inspect
import math

import torch

from rung.kl import capped, k3
from rung.masked import masked_mean, select
from rung.methods.method import KLPenalty, Method, TrainingBatch, clip_bounds
from rung.notation import PerToken, TokenMask
from rung.policy_losses import cispo_loss, sequence_clipped_loss
from rung.training.micro import SamplerComparison


def tally_for(method: Method) -> "Tally":
    """An empty one, for what a method can have."""
    tally = Tally(clip_bounds(method))
    loss = getattr(method.policy_loss, "func", method.policy_loss)
    set_to: dict[str, float] = getattr(method.policy_loss, "keywords", {})
    if loss is sequence_clipped_loss:
        tally.bounds, tally.whole = (1.0 - set_to["clip_low"], 1.0 + set_to["clip_high"]), True
    if loss is cispo_loss:
        tally.cap = set_to["cap"]
    second = inspect.signature(method.policy_loss).parameters.get("dual_clip")
    if second is not None and isinstance(second.default, float):
        tally.dual_clip = second.default
    kl = method.kl
    if (
        kl is not None
        and kl.estimator is k3
        and kl.placement == "loss"
        and kl.level == "token"
        and kl.beta > 0
    ):
        tally.penalty = kl
    if method.update is not None:
        tally.rate = None
    return tally


class Tally:
    """Sums over all mini-batches of a step, masked, then divided once.

    Attributes:
        bounds: of a policy loss that clips ratios, else None.
        whole: the ratio is one of a sequence, the geometric mean of its tokens', and so is the credit.
        cap: of a policy loss whose ratios are held constant, and capped, or None.
        dual_clip: the ratio beyond which a token of negative credit stops pulling.
        penalty: a KL in the loss by k3, whose capped tokens are counted, or None.
        rate: the learning rate of the last update; None where there is no such thing.
    """

    def __init__(self, bounds: tuple[float, float] | None) -> None:
        self.bounds = bounds
        self.whole = False
        self.cap: float | None = None
        self.dual_clip = math.inf
        self.penalty: KLPenalty | None = None
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.rate: float | None = 0.0
        self.counted = 0
        self.capped = 0
        self.entropy = 0.0
        self.clipped = 0
        self.log_ratios: list[torch.Tensor] = []
        self.compared = False

    @property
    def clips(self) -> bool:
        """Whether there is a clip or a cap to be counted."""
        return self.bounds is not None or self.cap is not None

    def _clipped(self, log_ratios: PerToken, credit: PerToken, mask: TokenMask) -> torch.Tensor:
        """[B, T] or [B, 1] bool, where a clip takes the gradient, or a cap the rest of a ratio."""
        if self.cap is not None:
            return log_ratios.exp() > self.cap
        assert self.bounds is not None
        if self.whole:
            log_ratios, credit = (masked_mean(x, mask, dim=1).unsqueeze(1) for x in (log_ratios, credit))
        ratio = log_ratios.exp()
        up = (credit > 0) & (ratio > self.bounds[1])
        down = (credit < 0) & ((ratio < self.bounds[0]) | (ratio > self.dual_clip))
        return up | down

    def compare(self, own: PerToken, behaviour: PerToken, mask: torch.Tensor) -> None:
        """Take the sampler's comparison from log-probs of the whole batch, where the first update sees but a part."""
        self.log_ratios = [(own - behaviour)[mask]]
        self.compared = True

    def tokens(self, logprobs: PerToken, entropy: PerToken, batch: TrainingBatch) -> None:
        """One micro-batch."""
        self.counted += int(batch.mask.sum())
        self.entropy += float(select(entropy.double(), batch.mask).sum())
        if not self.compared and batch.behaviour_logprobs is not None:
            self.log_ratios.append((logprobs - batch.behaviour_logprobs)[batch.mask])
        if self.clips and batch.old_logprobs is not None:
            log_ratios = select(logprobs, batch.mask) - select(batch.old_logprobs, batch.mask)
            self.clipped += int((self._clipped(log_ratios, batch.credit, batch.mask) & batch.mask).sum())
        if self.penalty is not None:
            of_old = self.penalty.against == "old"
            other = batch.old_logprobs if of_old else batch.reference_logprobs
            if other is not None:
                pair = (other, logprobs) if of_old else (logprobs, other)
                self.capped += int((capped(*pair) & batch.mask).sum())

    def update(self, loss: float, norm: float, rate: float | None) -> None:
        """One optimizer step. After it the trainer is no longer the policy that sampled."""
        self.compared = True
        self.losses.append(loss)
        self.norms.append(norm)
        self.rate = rate

    def metrics(self) -> dict[str, float]:
        """Numbers of the step."""
        ratios = torch.cat(self.log_ratios) if self.log_ratios else torch.zeros(0)
        compared = SamplerComparison.of(
            ratios, torch.zeros_like(ratios), torch.ones_like(ratios, dtype=torch.bool)
        )
        out = {
            "loss": sum(self.losses) / max(len(self.losses), 1),
            "grad_norm": sum(self.norms) / max(len(self.norms), 1),
        }
        if self.rate is not None:
            out["learning_rate"] = self.rate
        out |= {
            "entropy": self.entropy / max(self.counted, 1),
            "sampler_logratio_max": compared.largest,
            "sampler_logratio_p99": compared.p99,
            "sampler_logratio_mean": compared.mean,
        }
        if self.penalty is not None:
            out["kl_capped_tokens"] = self.capped
        if self.clips:
            out["clip_fraction"] = self.clipped / max(self.counted, 1)
        return out
