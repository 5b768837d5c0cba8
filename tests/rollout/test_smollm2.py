"""Sampling with a cache from a real model, against one full pass of the trainer over the same tokens."""

import pytest
import torch

from rung.batch import Outcome, build_rollouts
from rung.errors import SamplerMismatch
from rung.models.layout import Row
from rung.models.policy import Policy
from rung.rollout.collect import collect, requests_for
from rung.rollout.local import LocalEngine
from rung.training.micro import SamplerComparison, logprobs_of
from tests.decoders import smollm2

PROMPTS = [
    "What is the capital of France?",
    "List three fruits.",
    "Why is the sky blue? Answer in one sentence, please, and do not speak of anything else.",
    "Write a short poem about a river that forgot the way to the sea.",
]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_smollm2_sampler_and_trainer_agree_within_rounding(temperature: float) -> None:
    """4 prompts × 4 samples × at most 40 tokens in float32: max below 2e-4 nats, mean size below 1e-5."""
    language = smollm2()
    prompts = [language.encode([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    requests = requests_for(prompts, range(4), [0] * 4, samples=4, max_new_tokens=40, seed=0, stream="eval")
    engine = LocalEngine(language.model, language.end_ids, temperature=temperature)
    done = collect(engine, requests)
    policy = Policy(language.model, temperature=temperature)
    assert policy.path == "grouped"
    with torch.no_grad():
        logprobs = policy([Row(c.prompt_ids, c.token_ids) for c in done]).logprobs
    gaps = torch.cat(
        [
            (logprobs[i, : len(c.token_ids)] - torch.tensor(c.behaviour_logprobs)).abs()
            for i, c in enumerate(done)
        ]
    )
    assert len(gaps) > 300
    assert len({c.token_ids for c in done}) == 16
    assert float(gaps.max()) < 2e-4
    assert float(gaps.mean()) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("planted", ["a temperature of 1.01", "a shift by one position"])
def test_smollm2_a_planted_difference_exceeds_the_bound_tenfold(planted: str) -> None:
    """What the recipe tolerates, 2e-4 nats, is far from both noise and mistake."""
    language = smollm2()
    prompts = [language.encode([{"role": "user", "content": prompt}]) for prompt in PROMPTS[:2]]
    requests = requests_for(prompts, range(2), [0] * 2, samples=2, max_new_tokens=24, seed=0, stream="eval")
    hot = 1.01 if planted == "a temperature of 1.01" else 1.0
    done = collect(LocalEngine(language.model, language.end_ids, temperature=hot), requests)
    rollouts = build_rollouts(done, [Outcome("reward", 0.0)] * len(done))
    own = logprobs_of(Policy(language.model), [Row(c.prompt_ids, c.token_ids) for c in done], 4096)
    sampler = rollouts.behaviour_logprobs
    if planted == "a shift by one position":
        sampler = sampler.roll(1, dims=1)
    compared = SamplerComparison.of(own, sampler, rollouts.mask)
    assert compared.largest > 10 * 2e-4
    with pytest.raises(SamplerMismatch, match="another temperature"):
        compared.check(2e-4)
