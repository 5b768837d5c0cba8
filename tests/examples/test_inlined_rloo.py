"""The one-file RLOO and rung, on the same batch: two derivations of one gradient."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import torch

from rung.batch import Completion, Outcome, build_rollouts
from rung.methods import rloo
from rung.models.loading import frozen_copy, scratch
from rung.models.policy import Policy
from rung.training.learner import logprobs_of, rows_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "inlined_rloo.py"


def load_example():
    spec = importlib.util.spec_from_file_location("inlined_rloo", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small_model(seed):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return scratch("0123456789+=", seed=seed, num_key_value_heads=2, max_position_embeddings=32, **sizes)


PROMPTS = [(1, 10, 2, 11)] * 3 + [(5, 7, 10, 3, 11)] * 3
ANSWERS = [(3, 12), (1, 2, 12), (4, 4, 4, 4, 4), (6, 0, 12), (12,), (6, 1, 12)]
REWARDS = [1.0, 0.25, 0.0, 1.0, 0.0, 0.5]


def test_the_example_imports_nothing_from_rung():
    imports = [line for line in EXAMPLE.read_text().splitlines() if line.startswith(("import", "from"))]
    assert imports
    assert not [line for line in imports if "rung" in line]


def test_inlined_gradient_equals_rungs_on_the_same_batch():
    """The policy is not the reference, lengths differ, the rewards have four values."""
    example = load_example()
    language = small_model(0)
    model, reference = language.model.double(), frozen_copy(small_model(1).model.double())

    loss, kl = example.rloo_loss(
        model,
        reference,
        [list(p) for p in PROMPTS],
        [list(a) for a in ANSWERS],
        torch.tensor(REWARDS).double(),
        3,
        0.3,
    )
    loss.backward()
    inlined = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()

    policy = Policy(model)
    assert policy.path == "grouped"
    completions = [
        Completion(p, a, (True,) * len(a), (0.0,) * len(a), (0,) * len(a), i // 3, i % 3, i, "stop")
        for i, (p, a) in enumerate(zip(PROMPTS, ANSWERS, strict=True))
    ]
    rollouts = build_rollouts(completions, [Outcome("reward", r) for r in REWARDS])
    rollouts = replace(
        rollouts,
        behaviour_logprobs=logprobs_of(policy, rows_of(rollouts), 1000),
        reference_logprobs=logprobs_of(Policy(reference, path="padded"), rows_of(rollouts), 1000),
    )
    method = rloo(kl_coefficient=0.3)
    batch = method.prepare(rollouts)
    method.loss(policy(rows_of(rollouts)).logprobs, batch, method.weights(batch.mask)).backward()

    # Llama's norms compute in float32 whatever the model's dtype, so equal to float32 rounding, not to 1e-10.
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.grad, inlined[name], rtol=0, atol=3e-6, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert max(float(g.abs().max()) for g in inlined.values()) > 0.1
    log_ratio = rollouts.behaviour_logprobs - rollouts.reference_logprobs
    torch.testing.assert_close(kl, log_ratio[rollouts.mask].sum() / 6, rtol=0, atol=1e-5)
