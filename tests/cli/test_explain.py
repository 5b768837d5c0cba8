"""`rung explain`: every metric, setting and method has a meaning, and words of other libraries lead to it."""

import pytest
from pydantic import BaseModel

from rung.methods import CATALOGUE
from rung.tracking.definitions import METRICS
from rung.training.config import Recipe
from rung.training.explain import ELSEWHERE, METHODS_ELSEWHERE, METRICS_ELSEWHERE, REFUSED
from tests.cli.test_startup import loaded
from tests.tiny import rung


def settings() -> dict[str, str]:
    """Every key of a recipe, as it is written on the command line, with its meaning."""
    found: dict[str, str] = {}
    for name, field in Recipe.model_fields.items():
        found[name] = field.description or ""
        for option in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(option, type) and issubclass(option, BaseModel):
                inner = option.model_fields
                found |= {f"{name}.{key}": inner[key].description or "" for key in inner}
    return found


def said(word: str) -> str:
    """What is printed, on one line; it fits a terminal and is plain."""
    answer = rung("explain", word)
    assert answer.code == 0, answer.err
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "\x1b" not in answer.out
    return " ".join(answer.out.split())


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_explained_in_full(name: str) -> None:
    metric, text = METRICS[name], said(name)
    assert f"{name} (metric): {metric.label}" in text
    for part in (metric.one_line, metric.formula, metric.normaliser, metric.expected, metric.odd):
        assert " ".join(part.split()) in text


@pytest.mark.parametrize("key", settings())
def test_every_setting_has_a_meaning_and_is_explained_with_and_without_its_section(key: str) -> None:
    meaning = settings()[key]
    assert meaning
    for word in (key, key.rpartition(".")[2]):
        assert f"{key} (setting) {meaning}" in said(word)


@pytest.mark.parametrize("name", ["sft", *CATALOGUE])
def test_every_method_is_explained(name: str) -> None:
    text = said(name)
    assert f"{name} (method)" in text
    if name != "sft":
        assert (CATALOGUE[name].__doc__ or "").strip().split("\n")[0] in text
        assert f"`rung verify {name}`" in text


@pytest.mark.parametrize(
    ("word", "home"), [*ELSEWHERE.items(), *METHODS_ELSEWHERE.items(), *METRICS_ELSEWHERE.items()]
)
def test_every_word_of_another_library_leads_to_rungs(word: str, home: str) -> None:
    text = said(word)
    assert any(f"{home} ({kind})" in text for kind in ("metric", "setting", "method"))


@pytest.mark.parametrize("word", REFUSED)
def test_what_rung_refuses_is_said_with_the_reason(word: str) -> None:
    assert f"rung refuses {word}: {REFUSED[word]}." in said(word)


@pytest.mark.parametrize(
    ("word", "home"),
    [
        ("loss_type=dapo", "dapo (method)"),
        ("loss_type=dr_grpo", "dr-grpo (method)"),
        ("adv_estimator=reinforce_plus_plus_baseline", "reinforce++-baseline (method)"),
        ("method=grpo", "grpo (method)"),
        ("algorithm.kl_ctrl.kl_coef", "kl_coefficient (setting)"),
        ("actor/pg_clipfrac", "clip_fraction (metric)"),
        ("clip_high=0.28", "clip_high (setting)"),
    ],
)
def test_a_word_may_come_with_its_sections_and_its_value(word: str, home: str) -> None:
    assert home in said(word)


def test_a_setting_says_type_bounds_defaults_and_who_has_it() -> None:
    text = said("clip_high")
    assert "type number bounds ≥ 0 default the method's own 0.2: " in text
    assert "0.28: dapo 0.0004: gspo" in text
    assert "cliprange" in text
    text = said("seed")
    assert "type whole number bounds ≥ 0, < 9.22337e+18 default 0" in text
    assert "1 at first: ppo-penalty" in said("kl_coefficient")
    assert "default none: a recipe sets it" in said("training.steps")
    assert "ppo-penalty" not in said("kl_target")


def test_a_method_says_its_parts() -> None:
    text = said("dapo")
    for part in ("overlong_standardized", "clipped_loss", "token_mean", "mixed_groups", "k3 in the loss"):
        assert part in text
    assert "update TrustRegion" in said("trpo")
    assert "it needs one" in said("a2c")


def test_a_name_with_two_meanings_has_both() -> None:
    text = said("every")
    assert "evaluation.every (setting)" in text
    assert "checkpoint.every (setting)" in text
    text = said("baseline")
    assert "baseline (metric)" in text
    assert "baseline (setting)" in text


def test_without_a_word_all_are_listed_a_line_each() -> None:
    answer = rung("explain")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert max(map(len, lines)) <= 80
    first = [line.split()[0] for line in lines if line.startswith("  ")]
    assert first == [*METRICS, *sorted(settings(), key=lambda key: "." in key), "sft", *CATALOGUE]


@pytest.mark.parametrize("word", ["clip_fracton", "clip-fraction"])
def test_an_unknown_word_gets_the_nearest(word: str) -> None:
    answer = rung("explain", word)
    assert answer.code == 2
    assert f'"{word}" is no metric, setting or method' in answer.err
    assert 'did you mean "clip_fraction"?' in answer.err


def test_a_metric_is_explained_without_loading_anything_slow() -> None:
    code = "sys.argv = ['rung', 'explain', 'clip_fraction']\nfrom rung.cli import main\n"
    quiet = "import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()):\n"
    assert loaded(code + quiet + "    try: main()\n    except SystemExit: pass") == []
