"""A method of the plainest slots, and a batch whose numbers can be checked by hand."""

from dataclasses import replace

from rung.aggregation import sequence_sum
from rung.batch import Rollouts
from rung.credit import total_return
from rung.methods import KLPenalty, Method
from rung.policy_losses import policy_gradient_loss
from tests.batches import NAN, f64, rollouts

PLAIN = Method("plain", total_return, policy_gradient_loss, sequence_sum)


def penalized(estimator, placement, coefficient=0.5, **slots) -> Method:
    """The plain method with a KL penalty, and other slots where named."""
    return replace(PLAIN, kl=KLPenalty(estimator, placement=placement, coefficient=coefficient), **slots)


def two_rows() -> Rollouts:
    """Three tokens with reward 1, one token with reward −2; log-ratios to the reference 0.2, −0.4, 0.1 | 0.3."""
    batch = rollouts([[1, 1, 1], [1]], [1.0, -2.0])
    policy = f64([[-1.0, -1.0, -1.0], [-1.0, NAN, NAN]])
    ratio = f64([[0.2, -0.4, 0.1], [0.3, NAN, NAN]])
    return replace(batch, behaviour_logprobs=policy, old_logprobs=policy, reference_logprobs=policy - ratio)
