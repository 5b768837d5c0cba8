"""A checkpoint is complete or absent, whatever is done to it and whenever the process dies."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rung import api
from rung.errors import CheckpointError, UsageError
from rung.training import checkpoint
from rung.training.checkpoint import all_checkpoints, is_complete, newest, publish
from rung.training.session import Silent
from tests.tiny import assert_same_run, checkpoint_of, folders, metrics, rl_recipe, rollouts


def make(folder: Path, content: str = "weights") -> Path:
    """A small checkpoint of two files, one of them in a folder of its own."""

    def write(beside: Path) -> None:
        (beside / "model").mkdir()
        (beside / "model" / "w.bin").write_text(content, encoding="utf-8")
        (beside / "state.json").write_text("{}\n", encoding="utf-8")

    publish(folder, write)
    return folder


class Notes(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def test_a_published_folder_has_a_manifest_of_every_file(tmp_path: Path) -> None:
    """SHA-256 of "{}\\n" is ca3d163b…, as sha256sum prints it."""
    folder = make(tmp_path / "step-000001")
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    assert set(manifest) == {"model/w.bin", "state.json"}
    assert manifest["state.json"]["bytes"] == 3
    assert manifest["state.json"]["sha256"].startswith("ca3d163bab055381827226140568f3be")
    assert is_complete(folder)
    assert folders(tmp_path) == [
        "step-000001",
        "step-000001/manifest.json",
        "step-000001/model",
        "step-000001/model/w.bin",
        "step-000001/state.json",
    ]


def test_nothing_stands_under_the_name_until_all_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "step-000001"

    def write(beside: Path) -> None:
        assert not folder.exists()
        (beside / "half").write_text("x", "utf-8")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish(folder, write)
    assert not folder.exists()


def test_a_cut_between_writing_and_renaming_leaves_nothing_under_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is there and everything was flushed; only the last call did not come."""
    flushed: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        flushed.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    def no_replace(source: object, target: object) -> None:
        raise OSError("cut")

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", no_replace)
    with pytest.raises(OSError, match="cut"):
        make(tmp_path / "step-000001")
    assert not (tmp_path / "step-000001").exists()
    (beside,) = tmp_path.iterdir()
    assert {path.stat().st_ino for path in (beside, *beside.rglob("*"))} == set(flushed)
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        newest(tmp_path)


def cut(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        with (folder / name).open("r+b") as file:
            file.truncate((folder / name).stat().st_size - 1)

    return damage


def flip(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[0] ^= 1
        (folder / name).write_bytes(content)

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def manifest(content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "manifest.json").write_text(content, encoding="utf-8") and None


DAMAGES = {
    **{f"{name} cut by a byte": cut(name) for name in ("model/w.bin", "state.json", "manifest.json")},
    **{f"{name} with a bit flipped": flip(name) for name in ("model/w.bin", "state.json", "manifest.json")},
    **{f"{name} gone": remove(name) for name in ("model/w.bin", "state.json", "manifest.json")},
    **{
        f"manifest {text!r}": manifest(text)
        for text in ("", "{}", "[]", "3", '{"state.json": 3}', '{"state.json": {}}')
    },
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damage_makes_the_one_before_the_newest(damage: str, tmp_path: Path) -> None:
    """Case H5: one byte is enough."""
    good, bad = make(tmp_path / "step-000004"), make(tmp_path / "step-000006")
    assert newest(tmp_path) == (6, bad)
    DAMAGES[damage](bad)
    assert not is_complete(bad)
    assert newest(tmp_path) == (4, good)
    DAMAGES[damage](good)
    with pytest.raises(CheckpointError, match=r"step-000006, step-000004 do not match.*`rung train`"):
        newest(tmp_path)


def test_checkpoints_are_ordered_by_number_and_other_folders_are_none(tmp_path: Path) -> None:
    for name in (
        "step-000009",
        "step-000010",
        "step-1000000",
        "step-12",
        "notes",
        ".step-000099.1.tmp",
        "step-000011x",
    ):
        (tmp_path / name).mkdir()
    assert [step for step, _ in all_checkpoints(tmp_path)] == [1_000_000, 10, 9]


def test_no_checkpoint_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no complete checkpoint in"):
        newest(tmp_path / "nowhere")


# --- with a run -----------------------------------------------------------------------------------------------------


class Stop(Silent):
    """Stops a run after a step, as a kill would, but for the process."""

    def __init__(self, after: int) -> None:
        self.after = after

    def step(self, step: int, *_: object) -> None:
        if step == self.after:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 8 steps that was stopped in the middle of step 6, with checkpoints of steps 4 and 5."""
    root = tmp_path_factory.mktemp("interrupted")
    with pytest.raises(KeyboardInterrupt):
        api.train(rl_recipe(root), ["training.steps=8"], name="cut", root=root / "runs", observer=Stop(6))
    return root / "runs" / "cut"


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("straight")
    return api.train(rl_recipe(root), ["training.steps=8"], name="cut", root=root / "runs").folder


@pytest.fixture
def run(interrupted: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run."""
    return Path(shutil.copytree(interrupted, tmp_path / "cut"))


def test_a_run_keeps_as_many_as_it_was_asked_to(run: Path) -> None:
    assert [path.name for _, path in all_checkpoints(run / "checkpoints")] == ["step-000005", "step-000004"]
    assert set(os.listdir(checkpoint_of(run))) == {"manifest.json", "model", "optimizer.pt", "state.json"}


def test_a_checkpoint_is_a_model_folder_with_its_tokenizer_and_end(run: Path) -> None:
    from rung.models import loading

    language = loading.load(str(checkpoint_of(run) / "model"))
    assert language.decode(language.encode("12+30=")) == "12+30="
    assert len(language.end_ids) == 1


def test_resuming_says_from_which_and_equals_the_straight_run(run: Path, straight: Path) -> None:
    notes = Notes()
    result = api.resume(run, observer=notes)
    assert notes.said == [f"resuming {run} after step 5, from step-000005"]
    assert result.model == run / "checkpoints" / "step-000008" / "model"
    assert_same_run(run, straight)


@pytest.mark.parametrize("name", ["model/model.safetensors", "optimizer.pt", "state.json", "manifest.json"])
def test_a_file_cut_by_one_byte_makes_resuming_take_the_one_before_and_say_so(
    name: str, run: Path, straight: Path
) -> None:
    """Case H5, with every file of a checkpoint."""
    cut(name)(run / "checkpoints" / "step-000005")
    notes = Notes()
    api.resume(run, observer=notes)
    said = f"resuming {run} after step 4, from step-000004 (step-000005 passed over: damaged)"
    assert notes.said == [said]
    assert_same_run(run, straight)


def test_a_damaged_newer_checkpoint_does_not_push_out_a_good_one(run: Path) -> None:
    """With `keep = 1`, step 5's must survive the damaged one of step 7, which is of a future that was given up."""
    text = (run / "config.toml").read_text("utf-8").replace("keep = 2", "keep = 1")
    (run / "config.toml").write_text(text, "utf-8")
    shutil.copytree(run / "checkpoints" / "step-000004", run / "checkpoints" / "step-000007")
    shutil.rmtree(run / "checkpoints" / "step-000005")
    cut("state.json")(run / "checkpoints" / "step-000007")
    with pytest.raises(KeyboardInterrupt):
        api.resume(run, observer=Stop(6))
    assert newest(run / "checkpoints")[0] == 5
    assert [step for step, _ in all_checkpoints(run / "checkpoints")] == [5]


def test_a_half_written_one_is_ignored_and_cleaned_away(run: Path, straight: Path) -> None:
    leftover = run / "checkpoints" / ".step-000006.4242.tmp"
    shutil.copytree(run / "checkpoints" / "step-000005", leftover)
    assert newest(run / "checkpoints")[0] == 5
    api.resume(run)
    assert not leftover.exists()
    assert_same_run(run, straight)


def test_without_a_complete_checkpoint_nothing_is_lost(run: Path) -> None:
    for _, folder in all_checkpoints(run / "checkpoints"):
        cut("optimizer.pt")(folder)
    before = {
        name: (run / name).read_bytes() for name in ("metrics.jsonl", "timing.jsonl", "rollouts.sqlite")
    }
    with pytest.raises(CheckpointError, match=r"step-000005, step-000004 do not match"):
        api.resume(run)
    assert {name: (run / name).read_bytes() for name in before} == before


def test_a_changed_reference_is_refused_and_nothing_is_lost(run: Path, tmp_path: Path) -> None:
    """The model that the penalty is measured against was trained on, in place."""
    text = (run / "config.toml").read_text("utf-8")
    model = text.split('model = "')[1].split('"')[0]
    changed = Path(shutil.copytree(model, tmp_path / "changed"))
    flip_a_weight(changed / "model.safetensors")
    (run / "config.toml").write_text(text.replace(model, str(changed)), "utf-8")
    before = (run / "metrics.jsonl").read_bytes(), rollouts(run)
    with pytest.raises(CheckpointError, match=r"reference model .*changed.* is not the one"):
        api.resume(run)
    assert ((run / "metrics.jsonl").read_bytes(), rollouts(run)) == before
    shutil.rmtree(changed)
    with pytest.raises(UsageError, match="no such folder"):
        api.resume(run)
    assert ((run / "metrics.jsonl").read_bytes(), rollouts(run)) == before


def flip_a_weight(file: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    name = next(iter(tensors))
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[0] += 1e-3
    save_file(tensors, file, metadata={"format": "pt"})


def test_a_finished_run_is_not_resumed(straight: Path) -> None:
    before = folders(straight), (straight / "metrics.jsonl").read_bytes()
    with pytest.raises(UsageError, match=r"is finished \(step 8\); its model is .*step-000008"):
        api.resume(straight)
    assert (folders(straight), (straight / "metrics.jsonl").read_bytes()) == before


def test_a_run_killed_between_its_last_checkpoint_and_its_end_is_finished(run: Path, straight: Path) -> None:
    api.resume(run)
    (run / "finished").unlink()
    (run / "report.html").unlink()
    api.resume(run)
    assert (run / "finished").is_file()
    assert (run / "report.html").is_file()
    assert_same_run(run, straight)


def test_a_metrics_file_whose_last_line_was_cut_is_mended(run: Path, straight: Path) -> None:
    for name in ("metrics.jsonl", "timing.jsonl"):
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: -len(content.splitlines(keepends=True)[-1]) // 2])
    api.resume(run)
    assert_same_run(run, straight)


def test_the_random_state_is_restored(run: Path) -> None:
    """Nothing in a run draws from torch's generator today; a user's reward may."""
    state = json.loads((checkpoint_of(run) / "state.json").read_text("utf-8"))
    seen: list[list[int]] = []
    torch.manual_seed(99)
    api.resume(run, started=lambda session: seen.append(torch.get_rng_state().tolist()))
    assert seen == [state["torch_random"]]


def test_what_was_chosen_by_a_measurement_is_kept(run: Path) -> None:
    """Threads and the path through the model are those of the start, whatever this machine would choose."""
    state = json.loads((checkpoint_of(run) / "state.json").read_text("utf-8"))
    assert state["path"] == "grouped"
    for folder in (run / "checkpoints").iterdir():
        (folder / "state.json").write_text(
            json.dumps(state | {"path": "padded", "step": int(folder.name[5:])}), "utf-8"
        )
        checkpoint_manifest(folder)
    paths: list[str] = []
    api.resume(
        run,
        started=lambda s: paths.extend([s.learner.policy.path, s.learner.reference.path]),  # type: ignore[union-attr]
    )
    assert paths == ["padded", "padded"]


def checkpoint_manifest(folder: Path) -> None:
    """Write a manifest anew, for what was changed on purpose."""
    names = [
        str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json"
    ]
    entries = {
        n: {"sha256": checkpoint._hash(folder / n), "bytes": (folder / n).stat().st_size} for n in names
    }
    (folder / "manifest.json").write_text(json.dumps(entries), "utf-8")


def test_threads_are_recorded_at_the_start(tmp_path: Path) -> None:
    recipe = rl_recipe(tmp_path)
    recipe.write_text(recipe.read_text("utf-8").replace("threads = 1\n", ""), "utf-8")
    words = ["training.steps=1", "evaluation.test_problems=0", "checkpoint.every=0"]
    run = api.train(recipe, words, root=tmp_path / "runs").folder
    assert f"threads = {torch.get_num_threads()}\n" in (run / "config.toml").read_text("utf-8")
    assert len(metrics(run)) == 1
