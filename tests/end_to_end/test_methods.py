"""Every method of the catalogue that needs no critic trains by changing one word of a command."""

import math
from pathlib import Path

import pytest

from rung.methods import CATALOGUE
from rung.models import loading
from rung.tracking.definitions import METRICS
from rung.training.session import fingerprint
from tests.learning import TRAINABLE
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


CLIPPED = [
    "reinforce++",
    "reinforce++-baseline",
    "ppo-loo",
    "dual-clip",
    "grpo",
    "dr-grpo",
    "dapo",
    "gspo",
    "cispo",
]
K3_IN_THE_LOSS = ["ppo-penalty", "grpo", "dr-grpo", "dapo", "gspo", "cispo"]
# At one update a batch there is nothing to penalize.
MORE = {"ppo-penalty": ["training.epochs=2"]}
OWN = {
    "reinforce-moving-average": {"baseline"},
    "remax": {"greedy_reward_mean", "greedy_errors", "greedy_tokens"},
    "ppo-penalty": {"kl_coefficient", "kl_old_policy"},
    "trpo": {"kl_old_policy", "backtracks", "accepted"},
    "dapo": {"groups_drawn", "groups_dropped"},
}


@pytest.mark.parametrize("name", TRAINABLE)
def test_a_method_is_one_word(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first_samples: dict[str, list[tuple[str, ...]]],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [f"model={sft_run()}", f"method={name}", *COMMON, *MORE.get(name, []), "threads=1"]
    answer = rung("train", "addition-rloo", *words)
    assert (answer.code, answer.err) == (0, "")
    run = Path("runs/addition-rloo")
    lines = metrics(run)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(math.isfinite(value) for line in lines for value in line.values() if isinstance(value, float))
    assert ("clip_fraction" in lines[0]) == (name in CLIPPED)
    assert ("kl_capped_tokens" in lines[0]) == (name in K3_IN_THE_LOSS)
    assert ("learning_rate" in lines[0]) == (name != "trpo")
    assert set().union(*OWN.values()) & set(lines[0]) == OWN.get(name, set())
    assert set(lines[0]) <= set(METRICS)
    assert lines[0]["sampler_logratio_max"] < 1e-5
    assert ("kl_policy_reference_k1" in lines[0]) == (name != "ppo-penalty")
    assert abs(lines[0].get("kl_policy_reference_k1", 0.0)) < 1e-5
    trained, before = (
        loading.load(str(checkpoint_of(folder) / "model")).model for folder in (run, sft_run())
    )
    assert fingerprint(trained) != fingerprint(before)
    # The first step's samples depend on model, seed and data alone: no method may change them.
    columns = "prompt, completion, behaviour_logprobs"
    first_samples[name] = rollouts(run, columns, "split = 'train' AND step = 1 AND group_id < 8")
    assert first_samples[name] == next(iter(first_samples.values()))


@pytest.mark.parametrize("name", sorted(set(CATALOGUE) - set(TRAINABLE)))
def test_a_method_with_a_critic_is_refused_before_anything_is_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = rung("train", "addition-rloo", f"method={name}")
    assert answer.code == 2
    assert f"method {name} needs the values of a critic" in answer.message
    assert f"`rung verify {name}` shows what it estimates" in answer.message
    assert not list(tmp_path.iterdir())
