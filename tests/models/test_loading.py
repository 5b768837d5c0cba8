"""Models and tokenizers from folders: what is read, and what is refused with a reason."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import processors

from rung.errors import InvalidInput, ModelError, UsageError
from rung.models import loading
from rung.models.layout import Row
from rung.models.policy import Policy

CHARACTERS = "0123456789+="
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
BODY = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}={% endif %}"
TEMPLATE = "{{ bos_token }}" + BODY


@pytest.fixture
def language() -> loading.LanguageModel:
    return loading.scratch(CHARACTERS, seed=0, num_key_value_heads=1, **SIZES)


@pytest.fixture
def folder(language: loading.LanguageModel, tmp_path: Path) -> Path:
    language.save(tmp_path)
    return tmp_path


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes), encoding="utf-8")


def test_what_is_saved_is_what_is_loaded(language: loading.LanguageModel, folder: Path) -> None:
    again = loading.load(str(folder))
    rows = [Row(language.encode("12+34="), (4, 6, 12)), Row(language.encode("1+1="), (2, 12))]
    with torch.no_grad():
        assert torch.equal(Policy(again.model)(rows).logprobs, Policy(language.model)(rows).logprobs)
    assert again.end_ids == language.end_ids == {12}
    assert again.encode("12+34=") == language.encode("12+34=") == (1, 2, 10, 3, 4, 11)
    assert not again.model.training


def test_scratch_depends_on_its_seed_alone_and_leaves_the_global_generator_as_it_was() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one = loading.scratch(CHARACTERS, seed=1, **SIZES).model.state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(6)
    again = loading.scratch(CHARACTERS, seed=1, **SIZES).model.state_dict()
    other = loading.scratch(CHARACTERS, seed=2, **SIZES).model.state_dict()
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_a_frozen_copy_stays_when_the_model_moves(language: loading.LanguageModel) -> None:
    twin = loading.frozen_copy(language.model)
    before = {name: tensor.clone() for name, tensor in twin.state_dict().items()}
    with torch.no_grad():
        for parameter in language.model.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(twin.state_dict()[name], before[name]) for name in before)
    assert not any(parameter.requires_grad for parameter in twin.parameters())
    assert all(parameter.requires_grad for parameter in language.model.parameters())


# --- ends ---


def test_c3_every_declared_end_counts(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[11, 3])
    edit(folder / "config.json", eos_token_id=[7])
    assert loading.load(str(folder)).end_ids == {3, 7, 11, 12}  # 12 is the tokenizer's


def test_no_end_anywhere_is_refused(folder: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        edit(folder / name, eos_token_id=None)
    edit(folder / "tokenizer_config.json", eos_token=None)
    with pytest.raises(ModelError, match="no end token"):
        loading.load(str(folder))


def test_decode_drops_the_end_and_nothing_else(language: loading.LanguageModel) -> None:
    assert language.decode((1, 2, 12)) == "12"
    assert language.decode((1, 2)) == "12"
    assert language.decode((1, 12, 2)) == "1<end>2"
    assert language.decode(()) == ""


# --- prompts ---


def with_begin_token(language: loading.LanguageModel, template: str) -> loading.LanguageModel:
    """A tokenizer that puts a begin token ("+", id 10) before whatever it reads, as many do."""
    tokenizer = language.tokenizer
    tokenizer.add_special_tokens({"bos_token": "+"})
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="+ $A", special_tokens=[("+", 10)]
    )
    tokenizer.chat_template = template
    return language


@pytest.mark.parametrize("template", [TEMPLATE, BODY])
def test_c5_one_begin_token_at_most(language: loading.LanguageModel, template: str) -> None:
    language = with_begin_token(language, template)
    chat = [{"role": "user", "content": "12"}]
    written = int(template == TEMPLATE)
    assert language.encode("12=") == (10, 1, 2, 11)
    assert language.encode(chat) == (10,) * written + (1, 2, 11)
    again = language.encode(chat)
    assert again.count(10) == written


def test_c5_a_model_without_a_begin_token_gets_none(language: loading.LanguageModel) -> None:
    assert language.encode("12=") == (1, 2, 11)


def test_messages_without_a_chat_template_are_refused(language: loading.LanguageModel) -> None:
    with pytest.raises(ModelError, match="no chat template"):
        language.encode([{"role": "user", "content": "12"}])


def test_a_character_without_a_token_is_refused_and_never_an_end(language: loading.LanguageModel) -> None:
    with pytest.raises(InvalidInput, match=r"3\*4"):
        language.encode("3*4=")


# --- refusals ---


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("runs/nothing/checkpoints/last", "rung train nothing"),
        ("models/nothing", "make smollm2"),
        ("./nothing", "no such folder"),
        ("nothing", "no such folder"),
    ],
)
def test_a_model_that_is_not_there(
    name: str, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=says):
        loading.load(name)


def test_a_hub_id_offline_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cached copy and no network: transformers says so. (The test command sets HF_HUB_OFFLINE.)"""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="could not be loaded"):
        loading.load("org/name")


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no config\.json"):
        loading.load(str(tmp_path))


def test_damaged_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelError, match="could not be loaded"):
        loading.load(str(folder))


def test_weights_of_another_shape(folder: Path) -> None:
    edit(folder / "config.json", intermediate_size=25)
    with pytest.raises(ModelError, match="could not be loaded"):
        loading.load(str(folder))


def test_missing_weights_are_no_random_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 of its weights \(model\.layers\.1\.mlp\.up_proj\.weight"):
        loading.load(str(folder))


def test_an_unknown_kind_of_model(folder: Path) -> None:
    edit(folder / "config.json", model_type="no-such-kind")
    with pytest.raises(ModelError, match="could not be loaded"):
        loading.load(str(folder))


def test_a_folder_without_a_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(ModelError, match="could not be loaded"):
        loading.load(str(folder))
