"""A method run once on a batch of a few tokens, so that what a slot refuses is told before anything is sampled."""

from dataclasses import replace

import torch

from rung.batch import Completion, Outcome, Rollouts, build_rollouts
from rung.methods import Method
from rung.notation import BOOKKEEPING

_LOGPROBS = ((-0.5, -1.0), (-0.25, -2.0, -0.75))


def _rollouts(rewards: tuple[float, ...]) -> Rollouts:
    """At most two completions of one prompt, of unequal length, with everything that a slot may ask for."""
    completions = [
        Completion(
            prompt_ids=(1,),
            token_ids=(1,) * len(logprobs),
            sampled=(True,) * len(logprobs),
            behaviour_logprobs=logprobs,
            policy_versions=(0,) * len(logprobs),
            group=0,
            sample=i,
            sampling_key=i,
            end_reason="stop",
        )
        for i, (logprobs, _) in enumerate(zip(_LOGPROBS, rewards, strict=False))
    ]
    made = build_rollouts(completions, [Outcome("reward", reward) for reward in rewards])
    own = made.behaviour_logprobs
    greedy = torch.full((len(rewards),), 0.25, dtype=BOOKKEEPING)
    return replace(made, old_logprobs=own, reference_logprobs=own, greedy_rewards=greedy)


def probe(method: Method) -> None:
    """Credit, weights and loss of two completions.

    Raises:
        InvalidInput: a setting that one of the method's slots refuses.
    """
    rollouts = _rollouts((1.0, 0.0))
    batch = method.prepare(rollouts)
    entropy = torch.zeros_like(batch.credit)
    method.loss(rollouts.behaviour_logprobs, batch, method.weights(batch.mask), entropy=entropy)


def vanishes_alone(method: Method) -> bool:
    """Whether the credit of a batch of one completion is 0 whatever its reward: the mean that is taken off is its own.

    A KL in the reward is left out: it differs between tokens, and would hide that nothing of the task is left.
    """
    bare = replace(method, kl=None)
    return all(not bool(bare.prepare(_rollouts((reward,))).credit.any()) for reward in (1.0, 3.0))
