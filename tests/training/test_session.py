"""What a run does to its surroundings, and what its surroundings may not do to it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rung import api
from rung.batch import Completion
from rung.errors import ModelError, UsageError
from rung.models import loading
from rung.models.layout import Row
from rung.tasks import Problem
from rung.tasks.addition import Addition
from rung.tracking.run import Run
from rung.training.evaluation import judge
from rung.training.micro import micro_batches
from tests.tiny import Stop, rl_recipe, sft_recipe

TWO_THREADS = """
import sys, torch
from rung.models.layout import Row
from rung.models.loading import scratch
from rung.models.policy import Policy
torch.set_num_threads(2)
if sys.argv[1] == "as a run does it":
    from rung.training.config import load_recipe
    from rung.training.session import set_threads
    set_threads(load_recipe("addition-rloo", ["threads=2"]))
policy = Policy(scratch("0123456789+=", seed=0, hidden_size=128, intermediate_size=128, num_hidden_layers=2,
                        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=32).model)
generator = torch.Generator().manual_seed(1)
rows = [Row((g % 10, 10, g % 7, 11), tuple(torch.randint(12, (5,), generator=generator).tolist()))
        for _ in range(16) for g in range(32)]
seen = set()
for _ in range(12):
    policy.model.zero_grad()
    policy(rows).logprobs.square().sum().backward()
    seen.add(tuple(float(p.grad.double().sum()) for p in policy.model.parameters()))
print(len(seen))
"""


def test_two_threads_give_one_gradient() -> None:
    """Sixteen rows share each prompt, in tensors large enough for torch to add their gradients in parallel.

    Without the request for deterministic sums ("plain" in place of the last word) there are 12 of them.
    """
    command = [sys.executable, "-W", "error", "-c", TWO_THREADS, "as a run does it"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "1"


def test_a_run_has_one_writer(tmp_path: Path) -> None:
    result = api.train(sft_recipe(tmp_path), ["training.steps=2", "checkpoint.every=1"], root=tmp_path)
    (result.folder / "finished").unlink()
    writer = Run.open(result.folder)
    writer.lock()
    before = (result.folder / "metrics.jsonl").read_bytes()
    with pytest.raises(UsageError, match="being trained by another process"):
        api.resume(result.folder)
    assert (result.folder / "metrics.jsonl").read_bytes() == before
    writer.close()
    assert api.resume(result.folder).folder == result.folder


def test_a_judge_that_raises_is_an_outcome_and_never_a_zero() -> None:
    class Fragile(Addition):
        def reward(self, problem: Problem, completion: str):  # type: ignore[no-untyped-def]
            if completion == "3":
                raise ZeroDivisionError("by nothing")
            return super().reward(problem, completion)

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    language = loading.scratch("0123456789+=", seed=0, num_key_value_heads=1, **sizes)
    problem = Problem(row=102, prompt="1+2=", reference=3)
    answers = [
        Completion((1,), (t, 12), (True, True), (0.0, 0.0), (0, 0), 0, i, i, "stop")
        for i, t in enumerate([3, 4])
    ]
    judged = judge(Fragile(), language, [problem], answers)
    assert [o.kind for o in judged.outcomes] == ["error", "reward"]
    assert judged.outcomes[0].message == "ZeroDivisionError: by nothing"
    assert judged.rewards() == [0.0]


def test_a_chat_template_that_refuses_a_role_says_so() -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    language = loading.scratch("ab", seed=0, num_key_value_heads=1, **sizes)
    language.tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(ModelError, match="roles system, user: System role not supported"):
        language.encode(({"role": "system", "content": "a"}, {"role": "user", "content": "b"}))


def test_a_prompt_counts_for_each_row_where_it_is_computed_for_each_row() -> None:
    rows = [Row((1,) * 9, (2,)) for _ in range(6)]
    assert [len(piece) for piece in micro_batches(rows, 20, shared=True)] == [6]
    assert [len(piece) for piece in micro_batches(rows, 20, shared=False)] == [2, 2, 2]


def test_supervised_training_has_no_temperature(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="method sft trains at temperature 1"):
        api.prepared(sft_recipe(tmp_path), ["rollout.temperature=0.7"])


def test_settings_beside_a_recipe_object_are_refused(tmp_path: Path) -> None:
    recipe = api.prepared(sft_recipe(tmp_path))
    with pytest.raises(UsageError, match="model_copy"):
        api.prepared(recipe, ["seed=1"])


def test_a_run_asks_torch_for_deterministic_sums(tmp_path: Path) -> None:
    api.train(sft_recipe(tmp_path), ["training.steps=1"], root=tmp_path)
    assert torch.are_deterministic_algorithms_enabled()


def test_what_may_not_have_been_meant_is_said_once_at_the_start(tmp_path: Path) -> None:
    """Of DAPO with the KL coefficient of the recipe and one update a batch; not again where the run is taken up."""
    said: list[str] = []

    class Watch(Stop):
        def note(self, text: str) -> None:
            said.append(text)

    words = ["method=dapo", "evaluation.test_problems=0", "evaluation.every=0", "checkpoint.every=1"]
    with pytest.raises(KeyboardInterrupt):
        api.train(
            rl_recipe(tmp_path), [*words, "training.steps=2"], root=tmp_path, name="r", observer=Watch(2)
        )
    about = [text for text in said if "dapo" in text and "passed the selection" not in text]
    assert about == [
        "method dapo has no KL of its own: kl_coefficient = 0.02 in the recipe adds one, and with it a reference model",
        "one update per batch: every ratio is 1, so that the clip of dapo does not act",
    ]
    said.clear()
    api.resume(tmp_path / "r", observer=Watch(9))
    assert not [text for text in said if "KL of its own" in text or "does not act" in text]
