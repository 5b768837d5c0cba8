"""Recipes: what is wrong is said with file, line and key, and everything is checked before anything starts."""

import dataclasses
import inspect
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from rung.errors import InvalidInput, UsageError
from rung.kl import AdaptiveKL, DoublingKL
from rung.methods import CATALOGUE, Method
from rung.training.choice import SETTINGS
from rung.training.config import (
    Checkpoint,
    Evaluation,
    Optimizer,
    Recipe,
    Rollout,
    Scratch,
    Training,
    dump,
    load_recipe,
    shipped,
)
from rung.training.explain import ELSEWHERE, REFUSED, keys_by_section
from rung.training.overrides import apply_overrides
from rung.training.probe import probe
from rung.trust_region import TrustRegion
from tests.learning import TRAINABLE
from tests.tiny import RL, SFT


def message(text: str, tmp_path: Path, overrides: list[str] | None = None) -> str:
    """What is said of a recipe's text."""
    path = tmp_path / "r.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_recipe(str(path), overrides)
    return str(caught.value).replace(str(path), "r.toml")


def rl(extra: str = "", **replaced: str) -> str:
    """The small recipe, with some of its lines replaced and others after its end."""
    text = RL.replace("MODEL", '"runs/tiny-sft"')
    for line, new in replaced.items():
        assert line in text
        text = text.replace(line, new)
    return text + extra


RECIPE = rl()
LINE = {line.split(" =")[0]: number for number, line in enumerate(RECIPE.splitlines(), start=1)}


def in_section(section: str, line: str) -> str:
    """A line put first in a section; "" is the top."""
    if not section:
        return line + "\n" + RECIPE
    assert f"[{section}]\n" in RECIPE
    return RECIPE.replace(f"[{section}]\n", f"[{section}]\n{line}\n")


# --- unknown keys ---------------------------------------------------------------------------------------------------


def test_an_unknown_key_is_named_with_file_line_section_and_what_was_meant(tmp_path: Path) -> None:
    said = message(in_section("rollout", "num_generations = 8"), tmp_path)
    line = RECIPE.splitlines().index("[rollout]") + 2
    assert said == (
        f'recipe r.toml, line {line}: unknown key "num_generations" in [rollout]\n'
        '       did you mean "samples_per_prompt"? (the same thing under another library\'s name)'
    )


@pytest.mark.parametrize(
    ("section", "key", "meant"),
    [
        ("rollout", "samples_per_promt", '"samples_per_prompt"?'),
        ("training", "step", '"steps"?'),
        ("", "kl_coeficient", '"kl_coefficient"?'),
        ("training", "lr", '"learning_rate" in [optimizer]?'),
        ("", "max_steps", '"steps" in [training]?'),
        ("training", "steps_", '"steps"?'),
        ("rollout", "beta", '"kl_coefficient" at the top of the recipe?'),
        ("", "micro_batch_tokens", '"micro_batch_tokens" in [training]?'),
        ("optimizer", "seed", '"seed" at the top of the recipe?'),
        ("training", "save_steps", '"every" in [checkpoint]?'),
        ("training", "eval_steps", '"every" in [evaluation]?'),
        ("checkpoint", "save_steps", '"every"?'),
    ],
)
def test_what_was_meant_is_looked_for_in_every_section(
    section: str, key: str, meant: str, tmp_path: Path
) -> None:
    said = message(in_section(section, f"{key} = 1"), tmp_path)
    assert f'unknown key "{key}"' in said
    assert f"did you mean {meant}" in said
    assert ("another library's name" in said) == (key in ELSEWHERE)


def test_a_word_like_no_other_gets_no_suggestion(tmp_path: Path) -> None:
    assert "did you mean" not in message(in_section("training", "zzzzzz = 1"), tmp_path)


def test_an_unknown_section_is_named_with_its_line(tmp_path: Path) -> None:
    said = message(rl("\n[rollouts]\nsamples_per_prompt = 3\n"), tmp_path)
    line = len(RECIPE.splitlines()) + 2
    assert said == f'recipe r.toml, line {line}: unknown key "rollouts"\n       did you mean "rollout"?'


def test_every_word_of_another_library_leads_to_a_key_that_exists() -> None:
    keys = keys_by_section(Recipe)
    for word, key in ELSEWHERE.items():
        section, _, name = key.rpartition(".")
        assert name in keys[section], word
        assert all(word not in known for known in keys.values()), word


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_what_makes_the_sampler_another_policy_is_refused_with_the_reason(key: str, tmp_path: Path) -> None:
    said = message(in_section("rollout", f"{key} = 0.9"), tmp_path)
    assert f'unknown key "{key}" in [rollout]' in said
    assert "rung refuses it" in said
    assert "the sampler another policy than the one that is trained" in " ".join(said.split())


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    said = message(RECIPE.replace("steps = 10", "stepz = 10").replace("seed = 3", "seed = -3"), tmp_path)
    assert said.splitlines()[0].startswith(f'recipe r.toml, line {LINE["seed"]}: "seed" = -3')
    assert f'recipe r.toml, line {LINE["steps"]}: unknown key "stepz" in [training]' in said
    assert 'recipe r.toml: "steps" in [training] is missing' in said


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "line", "reason"),
    [
        ("rollout", "temperature = 0", "greater than 0"),
        ("rollout", "temperature = inf", "finite"),
        ("rollout", "temperature = nan", "finite"),
        ("rollout", 'max_rows = "8"', "valid integer"),
        ("rollout", "max_rows = 8.0", "valid integer"),
        ("rollout", "max_rows = true", "valid integer"),
        ("training", 'epochs = "2"', "valid integer"),
        ("optimizer", "betas = [0.9]", "a value is missing"),
        ("optimizer", "betas = [0.9, 1.0]", "less than 1"),
        ("optimizer", 'betas = ["0.9", 0.95]', "valid number"),
        ("optimizer", 'weight_decay = "0.1"', "valid number"),
        ("optimizer", "weight_decay = -0.1", "greater than or equal to 0"),
        ("checkpoint", "keep = 0", "greater than 0"),
        ("", "clip_low = 1.5", "less than or equal to 1"),
        ("", 'clip_low = "0.2"', "valid number"),
        ("", "momentum = 1.5", "less than or equal to 1"),
        ("", "momentum = -0.1", "greater than or equal to 0"),
        ("", "lam = 1.5", "less than or equal to 1"),
        ("", "cap = 0", "greater than 0"),
        ("", "dual_clip = 1.0", "greater than 1"),
        ("", "max_kl = 0.0", "greater than 0"),
        ("", "overlong_buffer = 0", "greater than 0"),
        ("", "overlong_buffer = 2.0", "valid integer"),
        ("", "entropy_coefficient = -0.01", "greater than or equal to 0"),
        ("", "baseline = inf", "finite"),
        ("", "kl_target = 0.0", "greater than 0"),
        ("", "kl_horizon = 0.0", "greater than 0"),
        ("rollout", "max_rounds = 0", "greater than 0"),
    ],
)
def test_values_are_checked_and_never_converted(section: str, line: str, reason: str, tmp_path: Path) -> None:
    said = message(in_section(section, line), tmp_path)
    number = RECIPE.splitlines().index(f"[{section}]") + 2 if section else 1
    key = line.split(" =")[0]
    assert f"recipe r.toml, line {number}: " in said
    assert f'"{key}"' in said
    assert reason in said.lower()


@pytest.mark.parametrize(
    ("line", "new", "reason"),
    [
        ('name = "tiny-rl"', 'name = "../x"', "should match pattern"),
        ('name = "tiny-rl"', "name = 3", "valid string"),
        ("seed = 3", "seed = 99999999999999999999", "less than"),
        ("seed = 3", "seed = 2024-01-01", "valid integer"),
        ("[training]\nsteps = 10\n", "", '"training" is missing'),
        ('schedule = "linear"', 'schedule = "cosine"', "'constant' or 'linear'"),
        ("[checkpoint]\nevery = 1\n", "checkpoint = 3\n", "unexpected"),
    ],
)
def test_a_wrong_value_is_named(line: str, new: str, reason: str, tmp_path: Path) -> None:
    assert line in RECIPE
    if reason == "unexpected":
        text = "checkpoint = 3\n" + RECIPE.replace(line, "")
        assert 'line 1: "checkpoint" = 3' in message(text, tmp_path)
    else:
        assert reason in message(RECIPE.replace(line, new), tmp_path)


@pytest.mark.parametrize(
    ("heads", "reason"),
    [("heads = 3", "hidden_size 32 over 3 heads"), ("key_value_heads = 4", "do not divide")],
)
def test_sizes_that_make_no_model_are_refused_before_it_is_made(
    heads: str, reason: str, tmp_path: Path
) -> None:
    key = heads.split(" =")[0]
    text = "\n".join(heads if line.startswith(f"{key} =") else line for line in SFT.splitlines())
    said = message(text, tmp_path)
    assert reason in said
    assert f"line {SFT.splitlines().index('[scratch]') + 1}: " in said


# --- what does not go together --------------------------------------------------------------------------------------


# Methods that look at one completion at a time, or at the batch.
ALONE = ["vpg", "remax", *(name for name in TRAINABLE if name.startswith("reinforce"))]
ALONE.remove("reinforce++-baseline")
# Of these, the ones whose credit is of a completion and of numbers that were there before it.
BY_ITSELF = ["vpg", "remax", "reinforce-constant", "reinforce-moving-average"]
RATIO = ["ppo-loo", "dual-clip", "ppo-penalty", "reinforce++", "reinforce++-baseline"]
RATIO += ["grpo", "dr-grpo", "dapo", "gspo", "cispo"]


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["method=rloo", "training.epochs=2"], "has no importance ratio"),
        (["method=reinforce", "training.mini_batches=2"], "has no importance ratio"),
        (["method=vpg", "clip_low=0.2"], "method vpg has no clip_low; it takes kl_coefficient"),
        (["method=rloo", "clip_high=0.3"], "method rloo has no clip_high"),
        (["method=rloo", "rollout.samples_per_prompt=1"], "must be ≥ 2"),
        (["method=grpo", "rollout.samples_per_prompt=1"], "must be ≥ 2"),
        *(
            (
                [f"method={name}", "rollout.samples_per_prompt=1"],
                f"method {name} compares samples of one prompt",
            )
            for name in TRAINABLE
            if name not in ALONE
        ),
        (["method=rloo-corrected", "training.epochs=2"], "has no importance ratio"),
        (
            ["method=trpo", "training.epochs=2"],
            "takes one step per rollout batch, as far as its trust region",
        ),
        (["method=trpo", "training.mini_batches=2"], "takes one step per rollout batch, as far as its trust"),
        (
            ["method=dapo", "clip_low=0.1", "cap=2"],
            "method dapo has no cap; it takes overlong_buffer, kl_coeff",
        ),
        (["method=rloo", "kl_target=6.0"], "kl_target and kl_horizon steer the KL coefficient together"),
        (["method=rloo", "kl_horizon=1e4"], "kl_target and kl_horizon steer the KL coefficient together"),
        (["kl_coefficient=0", "kl_target=6.0", "kl_horizon=1e4"], "one that starts at 0 stays there"),
        (["method=ppo-penalty", "kl_coefficient=0"], "one that starts at 0 stays there"),
        (["method=ppo-penalty", "kl_target=6.0", "kl_horizon=1e4"], "steers its KL coefficient by itself"),
        (["method=dapo", "overlong_buffer=5"], "overlong_buffer = 5 is more than rollout.max_new_tokens = 4"),
        (
            ["method=ppo-penalty"],
            "at one update per rollout batch the policy still is the old one: the gradient of",
        ),
        (["kl_target=6.0", "kl_horizon=9.6"], "only for kl_horizon > 9.6"),
        (
            ["method=cispo", "cap=0.2"],
            "the cap is the largest ratio itself, so at least 1 (5.0, say); got 0.2",
        ),
        *(
            (
                [f"method={name}", "rollout.prompts_per_step=1", "rollout.samples_per_prompt=1"],
                f"method {name} subtracts a mean over the batch: with one completion a step that is its own return",
            )
            for name in ("reinforce", "reinforce-step-mean", "reinforce++")
        ),
        (["rollout.max_rounds=2"], "max_rounds is for a method that leaves groups out and draws others"),
        *(
            (
                [f"method={name}"],
                f"method {name} needs the values of a critic, and rung train has no critic yet; `rung verify {name}` "
                "shows what it estimates",
            )
            for name in ("reinforce-learned", "a2c", "impala")
        ),
        (["method=grpo", "training.mini_batches=49"], "larger than the 48 completions of a step"),
        (["training.stop_between=[0.1,0.2]"], "stop_between is for method sft"),
        (["training.batch_size=64"], "rollout.samples_per_prompt = 48 completions"),
        (["model=scratch"], "belong together"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    overrides: list[str], reason: str, tmp_path: Path
) -> None:
    said = message(RECIPE, tmp_path, overrides)
    assert reason in said
    assert said.startswith(f"recipe r.toml with {' '.join(overrides)}: ")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["kl_coefficient=0.1"], "method sft has no kl_coefficient"),
        (["clip_low=0.1"], "method sft has no clip_low"),
        (["momentum=0.1"], "method sft has no momentum"),
        (["kl_target=0.1"], "method sft has no kl_target"),
        (["training.epochs=3"], "set training.steps"),
        (["training.mini_batches=3"], "set training.steps"),
        (["training.stop_between=[0.1,0.2]"], "needs validations"),
        (["training.stop_between=[0.5,0.2]", "evaluation.every=1"], "the lower end comes first"),
        (
            ["training.stop_between=[0.1,0.2]", "evaluation.every=1", "evaluation.validation_problems=0"],
            "needs",
        ),
    ],
)
def test_supervised_runs_refuse_what_they_would_not_do(
    overrides: list[str], reason: str, tmp_path: Path
) -> None:
    assert reason in message(SFT, tmp_path, overrides)


def test_reuse_is_allowed_where_there_is_a_ratio_and_one_sample_where_none_is_compared(
    tmp_path: Path,
) -> None:
    (tmp_path / "r.toml").write_text(RECIPE, "utf-8")
    for name in TRAINABLE:
        words = [f"method={name}"]
        words += ["training.epochs=3"] if name in RATIO else []
        words += ["rollout.samples_per_prompt=1"] if name in ALONE else []
        words += ["rollout.prompts_per_step=1"] if name in BY_ITSELF else []
        assert load_recipe(str(tmp_path / "r.toml"), words).build_method().name == name


def test_a_recipe_has_a_key_for_everything_that_a_constructor_names() -> None:
    """But for the caps of V-trace, which only a method with a critic has."""
    for name, factory in CATALOGUE.items():
        for key in set(inspect.signature(factory).parameters) - {"length", "rho_cap", "c_cap"}:
            assert key in Recipe.model_fields, (name, key)
            assert key in SETTINGS, (name, key)


@pytest.mark.parametrize(
    ("words", "part", "settings"),
    [
        (["method=dr-grpo"], "aggregation", {"length": 4}),
        (["method=dapo", "rollout.max_new_tokens=9"], "credit", {"length": 9, "buffer": 1}),
        (["method=dapo", "overlong_buffer=3"], "credit", {"length": 4, "buffer": 3}),
        (
            ["method=dual-clip", "dual_clip=2.5"],
            "policy_loss",
            {"dual_clip": 2.5, "clip_low": 0.2, "clip_high": 0.2},
        ),
        (["method=cispo", "cap=3.0"], "policy_loss", {"cap": 3.0}),
        (["method=rloo-corrected", "cap=1.5"], "correction", {"cap": 1.5}),
        (["method=reinforce-constant", "baseline=0.1"], "credit", {"baseline": 0.1}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_setting_arrives_in_its_part(
    words: list[str], part: str, settings: dict[str, float], tmp_path: Path
) -> None:
    (tmp_path / "r.toml").write_text(RECIPE, "utf-8")
    method = load_recipe(str(tmp_path / "r.toml"), words).build_method()
    assert getattr(method, part).keywords == settings


def test_settings_of_methods_with_a_state_or_a_region_arrive(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPE, "utf-8")

    def built(*words: str) -> Method:
        return load_recipe(str(tmp_path / "r.toml"), list(words)).build_method()

    average = built("method=reinforce-moving-average", "baseline=0.25", "momentum=0.5").credit
    assert (average.value, average.momentum) == (0.25, 0.5)  # type: ignore[attr-defined]
    assert built("method=trpo", "max_kl=0.5").update == TrustRegion(max_kl=0.5)


def test_a_kl_coefficient_is_a_number_or_where_a_controller_starts(tmp_path: Path) -> None:
    """The recipe says 0.02; without it the method's own: 0.05 of rloo, 1 of ppo-penalty, whose target is 0.01."""
    plain = RECIPE.replace("kl_coefficient = 0.02\n", "")
    assert plain != RECIPE
    adaptive = ["kl_target=6.0", "kl_horizon=1e4"]
    for text, words, expected in [
        (RECIPE, [], 0.02),
        (plain, [], 0.05),
        (RECIPE, adaptive, AdaptiveKL(0.02, 6.0, 1e4)),
        (plain, adaptive, AdaptiveKL(0.05, 6.0, 1e4)),
        (RECIPE, ["method=ppo-penalty", "training.epochs=2"], DoublingKL(0.02, 0.01)),
        (plain, ["method=ppo-penalty", "training.mini_batches=2"], DoublingKL(1.0, 0.01)),
        (plain, ["method=dapo"], 0.0),
    ]:
        (tmp_path / "r.toml").write_text(text, "utf-8")
        kl = load_recipe(str(tmp_path / "r.toml"), words).build_method().kl
        assert kl is not None
        assert kl.coefficient == expected


def test_a_method_gets_the_recipes_settings(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPE, "utf-8")
    words = ["method=grpo", "kl_coefficient=0.25", "clip_low=0.1", "clip_high=0.3"]
    method = load_recipe(str(tmp_path / "r.toml"), words).build_method()
    assert method.kl is not None
    assert method.kl.coefficient == 0.25
    assert method.policy_loss.keywords == {"clip_low": 0.1, "clip_high": 0.3}  # type: ignore[attr-defined]
    assert "reference" not in load_recipe(str(tmp_path / "r.toml"), ["kl_coefficient=0"]).build_method().needs


def test_an_unknown_method_is_named_with_its_line_and_the_nearest(tmp_path: Path) -> None:
    said = message(RECIPE.replace('"rloo"', '"rlo"'), tmp_path)
    assert said.startswith(
        f'recipe r.toml, line {LINE["method"]}: method "rlo" is not known; there is sft, vpg, '
    )
    assert said.endswith('did you mean "rloo"?')


# --- overrides ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a=3", 3),
        ("a=1e-4", 1e-4),
        ("a=true", True),
        ("a=[0.1, 0.2]", [0.1, 0.2]),
        ('a="3"', "3"),
        ("a=grpo", "grpo"),
        ("a=runs/a b/c", "runs/a b/c"),
        ("a=x=y", "x=y"),
        ("a=", ""),
        ("a=1\nb = 2", "1\nb = 2"),
    ],
)
def test_an_override_has_the_type_that_toml_gives_it(word: str, value: object) -> None:
    assert apply_overrides({}, [word]) == {"a": value}


def test_overrides_reach_into_sections_keep_the_rest_and_leave_the_original() -> None:
    data = {"s": {"a": 1, "b": 2}, "c": 3}
    assert apply_overrides(data, ["s.a=9", "t.d=4", "s.a=8"]) == {
        "s": {"a": 8, "b": 2},
        "c": 3,
        "t": {"d": 4},
    }
    assert data == {"s": {"a": 1, "b": 2}, "c": 3}


@pytest.mark.parametrize("word", ["steps", "=3", "training.=3", ".steps=3", "a..b=3", ""])
def test_a_malformed_override_is_quoted(word: str) -> None:
    with pytest.raises(UsageError, match="not of the form key=value") as caught:
        apply_overrides({}, [word])
    assert f'"{word}"' in str(caught.value)


def test_a_value_is_no_section() -> None:
    with pytest.raises(UsageError, match=r'"name.x=3": name is a value, not a section'):
        apply_overrides({"name": "n"}, ["name.x=3"])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("training.steps=abc", "\"steps\" in [training] = 'abc': input should be a valid integer"),
        ("training.stepz=3", 'unknown key "stepz" in [training]\n       did you mean "steps"?'),
        ("steps=3", 'unknown key "steps"\n       did you mean "steps" in [training]?'),
        ("rollot.max_rows=3", 'unknown key "rollot"\n       did you mean "rollout"?'),
        ("method=grop", 'method "grop" is not known; there is sft, vpg, reinforce-constant, reinforce, '),
        ("optimizer.betas=[0.9,2]", '"betas" in [optimizer] = 2: input should be less than 1'),
        ("training=5", '"training" = 5: input should be a valid dictionary'),
    ],
)
def test_a_mistake_on_the_command_line_is_not_blamed_on_a_line_of_the_recipe(
    word: str, said: str, tmp_path: Path
) -> None:
    heard = message(RECIPE, tmp_path, ["seed=4", word])
    assert heard.startswith(f'command line, "{word}": {said}')
    assert "r.toml" not in heard


def test_a_mistake_in_the_recipe_is_not_blamed_on_the_command_line(tmp_path: Path) -> None:
    said = message(RECIPE.replace("seed = 3", 'seed = "x"'), tmp_path, ["training.steps=3"])
    assert said.startswith(f'recipe r.toml, line {LINE["seed"]}: "seed"')


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_recipe_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(
        UsageError, match=r'"addition-rlo": no such file.*\n.*"addition-rloo"\?\n.*addition-sft'
    ):
        load_recipe("addition-rlo")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"name = \n", b"a = 1\na = 2\n"])
def test_a_file_that_is_no_recipe_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_bytes(content)
    with pytest.raises(UsageError, match=r"recipe .*r\.toml (cannot be read|is not valid TOML: .*line \d)"):
        load_recipe(str(tmp_path / "r.toml"))


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_recipe(str(tmp_path))


# --- written out and read back --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_recipe_is_the_same_after_a_round_trip(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    (tmp_path / "r.toml").write_text(dump(recipe), encoding="utf-8")
    assert load_recipe(str(tmp_path / "r.toml")) == recipe
    assert recipe.name == name


@pytest.mark.parametrize("name", shipped())
def test_a_written_recipe_has_every_default(name: str) -> None:
    written = tomllib.loads(dump(load_recipe(name)))

    def compare(model: type[BaseModel], table: dict[str, object]) -> None:
        for key, field in model.model_fields.items():
            assert key in table or field.default is None, key

    compare(Recipe, written)
    for section, model in [("rollout", Rollout), ("optimizer", Optimizer), ("training", Training)]:
        compare(model, written[section])
    for section, model in [("evaluation", Evaluation), ("checkpoint", Checkpoint)]:
        compare(model, written[section])
    assert ("scratch" in written) == (written["model"] == "scratch")


def resolved(tmp_path: Path, text: str, *words: str) -> dict[str, object]:
    """What is written of a recipe with another method."""
    (tmp_path / "r.toml").write_text(text, "utf-8")
    return tomllib.loads(dump(load_recipe(str(tmp_path / "r.toml"), list(words))))


def test_a_written_recipe_has_the_settings_of_the_method_that_the_command_line_chose(tmp_path: Path) -> None:
    """As published: GRPO clips at 0.2 on both sides, DAPO at 0.2 and 0.28; a fifth of 9 tokens is 1."""
    plain = RECIPE.replace("kl_coefficient = 0.02\n", "")
    for words, expected in [
        ([], {"kl_coefficient": 0.05}),
        (["method=grpo"], {"kl_coefficient": 0.05, "clip_low": 0.2, "clip_high": 0.2}),
        (["method=grpo", "clip_high=0.3"], {"kl_coefficient": 0.05, "clip_low": 0.2, "clip_high": 0.3}),
        (
            ["method=dapo", "rollout.max_new_tokens=9"],
            {"kl_coefficient": 0.0, "clip_low": 0.2, "clip_high": 0.28, "overlong_buffer": 1},
        ),
        (["method=ppo-penalty", "training.epochs=2"], {"kl_coefficient": 1.0}),
        (["method=trpo"], {"kl_coefficient": 0.05, "max_kl": 0.01}),
        (["method=cispo"], {"kl_coefficient": 0.0, "cap": 5.0}),
    ]:
        written = resolved(tmp_path, plain, *words)
        assert {key: written[key] for key in SETTINGS if key in written} == expected
    assert resolved(tmp_path, RECIPE, "method=grpo")["kl_coefficient"] == 0.02


@pytest.mark.parametrize("name", TRAINABLE)
def test_a_written_recipe_is_its_method_whatever_the_defaults_become(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every default of the constructor doubled, the recipe that was written builds what it built before."""
    plain = RECIPE.replace("kl_coefficient = 0.02\n", "")
    words = [f"method={name}", "training.epochs=2" if name in RATIO else "training.epochs=1"]
    (tmp_path / "r.toml").write_text(plain, "utf-8")
    before = load_recipe(str(tmp_path / "r.toml"), words)
    (tmp_path / "written.toml").write_text(dump(before), "utf-8")
    factory = CATALOGUE[name]

    def newer(**settings: Any) -> Method:
        return factory(**settings)

    parameters = [
        p.replace(default=2 * p.default) if isinstance(p.default, float) else p
        for p in inspect.signature(factory).parameters.values()
    ]
    newer.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    monkeypatch.setitem(CATALOGUE, name, newer)
    after = load_recipe(str(tmp_path / "written.toml"))
    assert after == before
    one, other = before.build_method(), after.build_method()
    assert one.kl == other.kl
    assert one.update == other.update
    for slot in ("credit", "policy_loss", "correction"):
        mine, theirs = getattr(one, slot), getattr(other, slot)
        assert getattr(mine, "keywords", mine) == getattr(theirs, "keywords", theirs)


def test_a_setting_that_a_slot_refuses_is_told_when_the_recipe_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credit, policy loss and aggregation run once on two completions; whichever refuses is heard."""
    text = RECIPE.replace("kl_coefficient = 0.02\n", "")

    def refusing(mask: torch.Tensor) -> torch.Tensor:
        raise InvalidInput(f"no weights for {mask.shape[0]} rows")

    for slot in ("credit", "aggregation", "policy_loss", "select"):
        method = dataclasses.replace(CATALOGUE["vpg"](), **{slot: refusing})
        if slot == "select":
            method = dataclasses.replace(method, select=lambda returns: refusing(returns))
        monkeypatch.setitem(CATALOGUE, "vpg", lambda *, kl_coefficient=0.05, method=method: method)
        said = message(text, tmp_path, ["method=vpg"])
        assert said == "recipe r.toml with method=vpg: no weights for 2 rows"


def test_a_recipe_is_probed_in_milliseconds() -> None:
    method = CATALOGUE["grpo"]()
    probe(method)
    begin = time.process_time()
    for _ in range(10):
        probe(method)
    assert time.process_time() - begin < 0.5


# --- what a reader may not have meant -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method=rloo"], []),
        (["method=rloo-corrected"], []),
        (["method=trpo"], []),
        (["method=ppo-penalty", "training.epochs=2"], []),
        (["method=grpo", "training.epochs=2"], []),
        (["method=grpo"], ["clip of grpo"]),
        (["method=gspo", "kl_coefficient=0"], ["clip of gspo"]),
        (["method=cispo", "kl_coefficient=0"], ["clip of cispo"]),
        (["method=dapo"], ["method dapo has no KL of its own: kl_coefficient = 0.02", "clip of dapo"]),
        (["method=dapo", "training.mini_batches=2"], ["method dapo has no KL of its own"]),
    ],
)
def test_what_may_not_have_been_meant_is_remarked(words: list[str], said: list[str], tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPE, "utf-8")
    heard = load_recipe(str(tmp_path / "r.toml"), words).remarks
    assert len(heard) == len(said)
    assert all(part in line for part, line in zip(said, heard, strict=True))
    assert load_recipe("addition-sft").remarks == []


floats = st.floats(min_value=1e-300, max_value=1e300)


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    floats,
    st.floats(0, 0.999),
    st.integers(0, 2**63 - 1),
)
def test_any_name_and_number_survives_the_round_trip(model: str, rate: float, beta: float, seed: int) -> None:
    recipe = Recipe(
        name="r",
        method="vpg",
        task="addition",
        model=model if model != "scratch" else "x",
        seed=seed,
        optimizer=Optimizer(learning_rate=rate, betas=(beta, 0.5)),
        training=Training(steps=1),
    )
    assert Recipe.model_validate(tomllib.loads(dump(recipe))) == recipe


def test_a_recipe_cannot_be_changed() -> None:
    recipe = Recipe(name="r", method="vpg", task="addition", model="m", training=Training(steps=1))
    with pytest.raises(ValidationError, match="frozen"):
        recipe.seed = 3
    assert Scratch() == Scratch(hidden_size=128)


@pytest.mark.parametrize(
    ("overrides", "updates"),
    [
        ([], 10),
        (["method=ppo-loo", "training.epochs=2", "training.mini_batches=4"], 80),
        (["training.steps=3"], 3),
    ],
)
def test_updates_are_optimizer_steps(overrides: list[str], updates: int, tmp_path: Path) -> None:
    """Case H8."""
    (tmp_path / "r.toml").write_text(RECIPE, "utf-8")
    assert load_recipe(str(tmp_path / "r.toml"), overrides).updates == updates
