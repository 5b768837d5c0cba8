"""Every method of the catalogue trains by changing one word of a command."""

import math
from pathlib import Path

import pytest

from rung.methods import CATALOGUE
from rung.models import loading
from rung.training.session import fingerprint
from tests.tiny import checkpoint_of, metrics, rollouts, rung, sft_run

COMMON = [
    "training.steps=3",
    "rollout.prompts_per_step=8",
    "evaluation.test_problems=20",
    "evaluation.every=0",
]


@pytest.fixture(scope="module")
def first_samples() -> dict[str, list[tuple[str, ...]]]:
    return {}


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_method_is_one_word(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first_samples: dict[str, list[tuple[str, ...]]],
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = rung("train", "addition-rloo", f"model={sft_run()}", f"method={name}", *COMMON, "threads=1")
    assert (answer.code, answer.err) == (0, "")
    run = Path("runs/addition-rloo")
    lines = metrics(run)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(math.isfinite(value) for line in lines for value in line.values() if isinstance(value, float))
    assert ("clip_fraction" in lines[0]) == (name in ("grpo", "ppo-loo"))
    assert lines[0]["sampler_logratio_max"] < 1e-5
    assert abs(lines[0]["kl_policy_reference_k1"]) < 1e-5
    trained, before = (
        loading.load(str(checkpoint_of(folder) / "model")).model for folder in (run, sft_run())
    )
    assert fingerprint(trained) != fingerprint(before)
    # The first step's samples depend on model, seed and data alone: no method may change them.
    first_samples[name] = rollouts(
        run, "prompt, completion, behaviour_logprobs", "split = 'train' AND step = 1"
    )
    assert first_samples[name] == next(iter(first_samples.values()))
