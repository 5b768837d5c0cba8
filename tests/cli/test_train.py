"""`rung train` as a person types it: what it prints, what it leaves, and how mistakes are told."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from rung.models import loading
from rung.rollout.local import LocalEngine
from rung.training.config import load_recipe
from tests.tiny import (
    COMMAND,
    Answer,
    checkpoint_of,
    folders,
    metrics,
    rl_recipe,
    rollouts,
    rung,
    sft_recipe,
    sft_run,
)

FAST = ["training.steps=2", "evaluation.test_problems=6", "evaluation.every=0"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def mistake(answer: Answer, code: int, said: str) -> None:
    """One message, the right code, nothing on standard output, no traceback."""
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.startswith("error: ")
    assert re.search(said, answer.message), answer.err
    assert "Traceback" not in answer.err


# --- a run ----------------------------------------------------------------------------------------------------------


def test_a_run_says_where_everything_is_and_it_is_there(tmp_path: Path) -> None:
    answer = rung("train", rl_recipe(tmp_path), *FAST)
    assert (answer.code, answer.err) == (0, "")
    last = answer.out.splitlines()[-3:]
    assert [line.split()[0] for line in last] == ["run", "model", "report"]
    run, model, report = (Path(line.split()[1]) for line in last)
    assert run == Path("runs/tiny-rl")
    assert report.read_text("utf-8").startswith("<!doctype html>")
    assert loading.load(str(model)).model.num_parameters() > 1000
    tests = metrics(run, "eval")
    assert f"held-out reward  {tests[0]['reward_mean']:.1%} [" in answer.out
    assert f"KL(policy‖reference)  {tests[1]['kl_policy_reference']:.3f} nats per completion" in answer.out


def test_through_a_pipe_there_are_no_control_characters_and_no_line_is_wrapped(tmp_path: Path) -> None:
    long_name = "a" * 120
    answer = rung("train", rl_recipe(tmp_path), *FAST, "--name", long_name)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\x1b]", answer.out)
    assert f"run     runs/{long_name}\n" in answer.out
    assert re.search(
        r"^rloo: step 2/2  reward \d\.\d{3}  KL -?\d\.\d+ .* 0 s left$", answer.out, re.MULTILINE
    )


def test_taken_names_get_a_number(tmp_path: Path) -> None:
    recipe = rl_recipe(tmp_path)
    for name in ("tiny-rl", "tiny-rl-2", "tiny-rl-3"):
        assert (
            f"run     runs/{name}\n"
            in rung("train", recipe, "training.steps=1", "evaluation.test_problems=0").out
        )
    assert len(metrics(Path("runs/tiny-rl"))) == 1


def test_the_run_and_its_folder_can_be_named_and_placed(tmp_path: Path) -> None:
    answer = rung("train", sft_recipe(tmp_path), "training.steps=1", "--name", "first", "--runs", "deep/er")
    assert answer.code == 0
    assert (tmp_path / "deep" / "er" / "first" / "config.toml").is_file()


def test_a_run_can_be_continued_from_by_its_folder(tmp_path: Path) -> None:
    """`model = "runs/…"` stands for the newest complete checkpoint, and the run's config says which that was."""
    assert rung("train", sft_recipe(tmp_path), "training.steps=4", "checkpoint.every=2").code == 0
    assert rung("train", rl_recipe(tmp_path), *FAST, "model=runs/tiny-sft").code == 0
    written = tomllib.loads(Path("runs/tiny-rl/config.toml").read_text("utf-8"))
    assert written["model"] == str(Path("runs/tiny-sft/checkpoints/step-000004/model").resolve())


def test_the_runs_config_is_the_whole_recipe_and_a_recipe_itself(tmp_path: Path) -> None:
    assert rung("train", rl_recipe(tmp_path), *FAST, "seed=8").code == 0
    recipe = load_recipe("runs/tiny-rl/config.toml")
    assert (recipe.seed, recipe.training.steps, recipe.rollout.max_rows) == (8, 2, 256)
    again = rung("train", "runs/tiny-rl/config.toml", "--name", "again")
    assert again.code == 0
    assert Path("runs/again/metrics.jsonl").read_bytes() == Path("runs/tiny-rl/metrics.jsonl").read_bytes()


# --- --dry-run ------------------------------------------------------------------------------------------------------


def numbers(out: str, label: str) -> list[int]:
    (line,) = [line for line in out.splitlines() if line.startswith(f"# {label}")]
    return [int(word.replace(",", "")) for word in re.findall(r"\d[\d,]*", line)]


@pytest.mark.parametrize(
    "words",
    [
        ["method=rloo", "training.steps=3"],
        ["method=ppo-loo", "training.steps=2", "training.epochs=3", "training.mini_batches=4"],
    ],
)
def test_a_dry_run_does_nothing_on_disk_and_counts_what_a_run_does(words: list[str], tmp_path: Path) -> None:
    recipe = rl_recipe(tmp_path)
    before = folders(tmp_path), folders(sft_run())
    plan = rung("train", recipe, *words, "--dry-run")
    assert (plan.code, plan.err) == (0, "")
    assert (folders(tmp_path), folders(sft_run())) == before
    assert rung("train", recipe, *words).code == 0
    run = Path("runs/tiny-rl")
    lines = metrics(run)
    assert numbers(plan.out, "steps") == [len(lines), lines[-1]["updates"]]
    sampled = rollouts(run, "COUNT(*), SUM(json_array_length(token_ids))", "split = 'train'")[0]
    completions, most = numbers(plan.out, "sampled")
    assert completions == sampled[0] == sum(line["completions"] for line in lines)
    assert sampled[1] <= most == completions * 4
    parameters = loading.load(str(checkpoint_of(run) / "model")).model.num_parameters()
    assert numbers(plan.out, "model") == [parameters]
    longest = max(len(ids.split(",")) for (ids,) in rollouts(run, "prompt_ids"))
    assert numbers(plan.out, "prompts")[2] >= longest


def test_what_a_dry_run_prints_is_the_resolved_recipe(tmp_path: Path) -> None:
    plan = rung("train", rl_recipe(tmp_path), "seed=11", "--dry-run")
    written = tomllib.loads(plan.out)  # the counts are comments
    assert written["seed"] == 11
    assert written["training"]["micro_batch_tokens"] == 16_384
    assert "GiB at the peak of a step" in plan.out
    assert "reference" in plan.out


def test_a_dry_run_shows_the_settings_of_the_method_that_was_asked_for(tmp_path: Path) -> None:
    """Those that neither the recipe nor the command line sets too: GRPO clips at 0.2."""
    plan = rung("train", rl_recipe(tmp_path), "method=grpo", "clip_high=0.25", "--dry-run")
    written = tomllib.loads(plan.out)
    assert {key: written[key] for key in ("kl_coefficient", "clip_low", "clip_high")} == {
        "kl_coefficient": 0.02,
        "clip_low": 0.2,
        "clip_high": 0.25,
    }


def test_a_dry_run_of_a_supervised_recipe_samples_nothing_and_needs_no_model() -> None:
    plan = rung("train", "addition-sft", "--dry-run")
    assert plan.code == 0
    assert "# sampled" not in plan.out
    assert numbers(plan.out, "steps") == [600, 600]
    assert folders(Path()) == []


# --- mistakes -------------------------------------------------------------------------------------------------------


def test_an_unknown_key_of_a_recipe(tmp_path: Path) -> None:
    recipe = rl_recipe(tmp_path)
    recipe.write_text(recipe.read_text("utf-8").replace("max_new_tokens", "max_completion_length"), "utf-8")
    answer = rung("train", recipe)
    mistake(answer, 2, r'tiny-rl\.toml, line 13: unknown key "max_completion_length" in \[rollout\]')
    assert 'did you mean "max_new_tokens"? (the same thing under another library\'s name)' in answer.message
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rollout.top_p=0.9"], r'command line, "rollout\.top_p=0\.9": unknown key "top_p".*another policy'),
        (["training.steps"], r'"training\.steps" is not of the form key=value'),
        (["method=dpo"], r'command line, "method=dpo": method "dpo" is not known'),
        (["training.epochs=2"], r"method rloo has no importance ratio"),
        (["task=sums"], r'task "sums" is not known; there is .*addition'),
        (["model=nowhere"], r'model "nowhere": no such folder'),
        (["model=runs/none"], r'model "runs/none": there is no such run yet'),
        (["model=."], r'model "\.": the folder has no config\.json'),
        (["--name", "../up"], r'"\.\./up" is no name for a run'),
    ],
)
@pytest.mark.parametrize("dry", [False, True])
def test_a_mistake_of_usage_ends_with_code_2_and_leaves_no_run(
    words: list[str], said: str, dry: bool, tmp_path: Path
) -> None:
    if dry and "--name" in words:
        return
    mistake(rung("train", rl_recipe(tmp_path), *words, *(["--dry-run"] if dry else [])), 2, said)
    assert not Path("runs").exists() or not folders(Path("runs"))


def test_a_recipe_that_is_not_there() -> None:
    mistake(
        rung("train", "nowhere.toml"),
        2,
        r'recipe "nowhere\.toml": no such file.*shipped recipes: addition-rloo',
    )


def test_the_shipped_recipe_says_what_to_run_first() -> None:
    mistake(rung("train", "addition-rloo"), 2, r"no such run yet.*rung train addition-sft")


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize("part", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_damaged_model_folder_ends_with_code_1_and_leaves_no_run(
    part: str, dry: bool, tmp_path: Path
) -> None:
    """A dry run reads no weights."""
    model = Path(shutil.copytree(checkpoint_of(sft_run()) / "model", tmp_path / "damaged"))
    content = (model / part).read_bytes()
    (model / part).write_bytes(content[: len(content) // 2])
    answer = rung("train", rl_recipe(tmp_path), f"model={model}", *(["--dry-run"] if dry else []))
    if dry and part == "model.safetensors":
        assert answer.code == 0
    else:
        mistake(answer, 1, r'model ".*damaged" could not be loaded')
    assert not Path("runs").exists() or not folders(Path("runs"))


def test_a_run_without_a_complete_checkpoint_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "runs" / "empty" / "checkpoints").mkdir(parents=True)
    mistake(rung("train", rl_recipe(tmp_path), "model=runs/empty"), 1, "no complete checkpoint in runs/empty")


def test_a_folder_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    mistake(rung("train", rl_recipe(tmp_path), "--runs", "file"), 2, "no run can be made in file")


def test_a_word_that_is_no_option() -> None:
    answer = rung("train", "addition-sft", "--steps", "3")
    assert answer.code == 2
    assert "No such option: --steps" in answer.err


def test_a_mismatch_of_the_sampler_ends_with_code_1_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sampler really runs at temperature 1.01."""
    real = LocalEngine.__init__

    def hotter(self: LocalEngine, *arguments: object, temperature: float = 1.0, **others: object) -> None:
        real(self, *arguments, temperature=1.01 * temperature, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalEngine, "__init__", hotter)
    answer = rung("train", rl_recipe(tmp_path))
    assert answer.code == 1
    assert "Traceback" not in answer.err
    assert re.search(
        r"^error: sampler and trainer disagree.*rollout\.mismatch_tolerance allows 1e-05.*temperature",
        answer.message,
    )
    assert not list(Path("runs/tiny-rl/checkpoints").iterdir())


def test_training_that_diverges_ends_with_code_1_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    """A rate at which the second update of a supervised run overflows."""
    words = ["optimizer.learning_rate=1e30", "optimizer.schedule=constant", "checkpoint.every=1"]
    answer = rung("train", sft_recipe(tmp_path), *words)
    assert answer.code == 1
    assert re.search(r"^error: update 2: the loss is .*lower optimizer\.learning_rate", answer.message), (
        answer.err
    )
    assert [path.name for path in Path("runs/tiny-sft/checkpoints").iterdir()] == ["step-000001"]


def test_where_the_terminal_knows_no_arrow_it_shows_a_question_mark(tmp_path: Path) -> None:
    """Case H4: the run is not lost over its last line. In a process of its own, as the encoding is set at its start."""
    done = subprocess.run(
        [COMMAND, "train", rl_recipe(tmp_path), "training.steps=1"],
        env=os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert re.search(rb"held-out reward  \S+ \[\S+ \S+\]  \?  ", done.stdout)
    assert b"\x1b" not in done.stdout
