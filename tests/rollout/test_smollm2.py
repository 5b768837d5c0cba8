"""Sampling with a cache from a real model, against one full pass of the trainer over the same tokens."""

import pytest
import torch

from rung.models.layout import Row
from rung.models.policy import Policy
from rung.rollout.collect import collect, requests_for
from rung.rollout.local import LocalEngine
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
