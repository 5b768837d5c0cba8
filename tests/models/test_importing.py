"""Importing GGUF files: a tiny Llama written here, and SmolLM2 where it was fetched."""

import json
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from rung.errors import ModelError, UsageError
from rung.models import gguf_metadata, importing
from rung.models.importing import import_checkpoint

SMOLLM2 = Path(__file__).parents[2] / Path("build/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
HIDDEN, INNER, HEADS, KV_HEADS, LAYERS, HEAD_SIZE = 32, 64, 4, 2, 2, 8
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_alphabet() -> list[str]:
    """The 256 characters by which byte-level vocabularies spell bytes, in the order of the bytes (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + i) for i in range(256))
    return [chr(byte) if byte in printable else next(others) for byte in range(256)]


def vocabulary() -> list[str]:
    return [*CONTROL, *byte_alphabet(), "ĠĠ", "is"]


def tensors() -> dict[str, np.ndarray]:
    """Random weights of a two-layer Llama under llama.cpp's names; the output layer is the embedding."""
    random = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return random.normal(0, 0.2, shape).astype(np.float32)

    found = {"token_embd.weight": weight(len(vocabulary()), HIDDEN), "output_norm.weight": 1 + weight(HIDDEN)}
    for layer in range(LAYERS):
        found |= {
            f"blk.{layer}.{name}.weight": value
            for name, value in {
                "attn_norm": 1 + weight(HIDDEN),
                "ffn_norm": 1 + weight(HIDDEN),
                "attn_q": weight(HIDDEN, HIDDEN),
                "attn_k": weight(KV_HEADS * HEAD_SIZE, HIDDEN),
                "attn_v": weight(KV_HEADS * HEAD_SIZE, HIDDEN),
                "attn_output": weight(HIDDEN, HIDDEN),
                "ffn_gate": weight(INNER, HIDDEN),
                "ffn_up": weight(INNER, HIDDEN),
                "ffn_down": weight(HIDDEN, INNER),
            }.items()
        }
    return found


def write_gguf(path: Path, *, architecture: str = "llama", without: str = "", parts: int = 1) -> Path:
    """A GGUF file with a chat template; projections as Q8_0, the rest float32."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocabulary()))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocabulary())
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(vocabulary()) - len(CONTROL)))
    writer.add_token_merges(["Ġ Ġ", "i s"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT)
    if parts > 1:
        writer.add_uint16("split.count", parts)
    for name, value in tensors().items():
        if name == without:
            continue
        if value.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def folder(source: Path) -> Path:
    return import_checkpoint(source, source.parent / "models" / "tiny")


def test_weights_are_those_of_the_file(folder: Path) -> None:
    """Q8_0 by its definition: per 32 numbers a float16 scale = max|x|/127, and integers round(x/scale)."""
    state = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    gate = tensors()["blk.1.ffn_gate.weight"].reshape(-1, 32)
    scale = np.abs(gate).max(axis=1, keepdims=True) / 127
    expected = (np.round(gate / scale) * scale.astype(np.float16).astype(np.float32)).reshape(INNER, HIDDEN)
    found = state["model.layers.1.mlp.gate_proj.weight"]
    assert found.dtype == torch.float32
    assert np.abs(found.numpy() - expected).max() < 1e-6
    norm = tensors()["blk.0.attn_norm.weight"]
    assert np.array_equal(state["model.layers.0.input_layernorm.weight"].numpy(), norm)


def test_query_rows_are_put_back_into_the_order_of_transformers(folder: Path) -> None:
    """llama.cpp interleaves the two halves of each head's rotary dimensions: row 2i+h there is row h·4+i here."""
    found = AutoModelForCausalLM.from_pretrained(folder).state_dict()[
        "model.layers.0.self_attn.q_proj.weight"
    ]
    stored = tensors()["blk.0.attn_q.weight"].reshape(HEADS, HEAD_SIZE // 2, 2, HIDDEN)
    expected = np.concatenate([stored[:, :, 0], stored[:, :, 1]], axis=1).reshape(HIDDEN, HIDDEN)
    assert np.abs(found.numpy() - expected).max() < 0.01  # half a step of Q8_0: max|x| / 254, at most 0.004


def test_configuration_has_no_quantization_and_every_end_token(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    assert (config["dtype"], config["hidden_size"], config["tie_word_embeddings"]) == (
        "float32",
        HIDDEN,
        True,
    )
    generation = GenerationConfig.from_pretrained(folder)
    assert generation.eos_token_id == [2, 0]  # declared, and <|endoftext|> by its name
    assert generation.pad_token_id == 2


def test_tokenizer_keeps_template_special_tokens_and_length(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "is"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nis<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == 1
    assert ids.count(2) == 1
    assert tokenizer.decode(ids) == text
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.model_max_length) == (
        "<|im_end|>",
        "<|im_end|>",
        128,
    )


def test_digits_are_cut_off_before_blanks_are_merged(folder: Path) -> None:
    """Two blanks before a number are one token where digits stand alone; GPT-2 gives the second to the number."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens(tokenizer("is  17")["input_ids"]) == ["is", "ĠĠ", "1", "7"]


def test_progress_rises_and_nothing_else_is_printed(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    import_checkpoint(source, tmp_path / "out", progress=seen.append)
    shares = [int(line.partition("%")[0]) for line in seen]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 100)
    assert seen[-1] == f"100%  wrote {tmp_path / 'out'}"
    assert capfd.readouterr() == ("", "")


def test_settings_of_transformers_are_put_back(source: Path, tmp_path: Path) -> None:
    log = transformers.utils.logging
    before = log.get_verbosity(), log.is_progress_bar_enabled()
    import_checkpoint(source, tmp_path / "out")
    assert (log.get_verbosity(), log.is_progress_bar_enabled()) == before


def test_second_import_of_the_same_file_changes_nothing(folder: Path, source: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    seen: list[str] = []
    assert import_checkpoint(source, folder, progress=seen.append) == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert seen[-1].endswith("was already imported from this file")


def test_other_model_is_replaced_only_when_asked(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="--overwrite"):
        import_checkpoint(source, out)
    assert [path.name for path in out.iterdir()] == ["config.json"]
    import_checkpoint(source, out, overwrite=True)
    assert json.loads((out / "config.json").read_text())["model_type"] == "llama"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_folder_that_is_no_model_is_never_replaced(source: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("three years")
    with pytest.raises(UsageError, match="is not a model folder"):
        import_checkpoint(source, tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "three years"


def test_import_cut_short_is_done_again(source: Path, tmp_path: Path) -> None:
    out = import_checkpoint(source, tmp_path / "out")
    os.truncate(out / "model.safetensors", 100)
    with pytest.raises(UsageError, match="--overwrite"):
        import_checkpoint(source, out)
    import_checkpoint(source, out, overwrite=True)
    assert (out / "model.safetensors").stat().st_size > 100


def test_folder_that_does_not_reproduce_the_file_is_not_kept(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are disturbed between writing and checking."""
    save = transformers.PreTrainedModel.save_pretrained

    def disturbed(model: transformers.PreTrainedModel, target: Path) -> None:
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight[0] += 1.0
        save(model, target)

    monkeypatch.setattr(transformers.PreTrainedModel, "save_pretrained", disturbed)
    with pytest.raises(ModelError, match="logits differ"):
        import_checkpoint(source, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), (b"PK\x03\x04", "not a GGUF file"), (b"", "not a GGUF file")],
)
def test_wrong_file_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "model.bin"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        import_checkpoint(path, tmp_path / "out")
    assert str(path) in str(caught.value)


def test_folder_as_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        import_checkpoint(tmp_path, tmp_path / "out")


@pytest.mark.parametrize("share", [0.0005, 0.02, 0.9])
def test_cut_off_file_is_reported_as_such(source: Path, tmp_path: Path, share: float) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(source.read_bytes()[: int(share * source.stat().st_size)])
    with pytest.raises(ModelError, match=r"cut\.gguf"):
        import_checkpoint(path, tmp_path / "out")
    assert [left.name for left in tmp_path.iterdir()] == ["cut.gguf"]


def test_unsupported_architecture_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "odd.gguf", architecture="grok")
    with pytest.raises(ModelError, match='architecture "grok"'):
        import_checkpoint(path, tmp_path / "out")


def test_file_without_a_weight_is_refused(tmp_path: Path) -> None:
    """transformers would fill the gap with random numbers and say so in a notice only."""
    path = write_gguf(tmp_path / "gap.gguf", without="blk.1.ffn_up.weight")
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        import_checkpoint(path, tmp_path / "out")


def test_part_of_several_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "part.gguf", parts=4)
    with pytest.raises(UsageError, match="one part of 4"):
        import_checkpoint(path, tmp_path / "out")


def test_missing_package_says_what_to_install(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importing.find_spec
    monkeypatch.setattr(importing, "find_spec", lambda name: None if name == "gguf" else find(name))
    with pytest.raises(UsageError, match=r"pip install 'rung\[gguf\]'"):
        import_checkpoint(source, tmp_path / "out")


def test_unknown_way_to_cut_text_is_mentioned(source: Path) -> None:
    values = gguf_metadata.read(source).values
    assert gguf_metadata.Header(values).tokenizer_note() is None
    note = gguf_metadata.Header({**values, "tokenizer.ggml.pre": "never-heard-of"}).tokenizer_note()
    assert note is not None
    assert "never-heard-of" in note


@pytest.mark.slow
def test_smollm2_answers_a_question(tmp_path: Path) -> None:
    """Greedy, through the chat template: a model whose weights were read wrongly does not name Paris."""
    assert SMOLLM2.is_file(), "fetch it with `make smollm2`"
    out = import_checkpoint(SMOLLM2, tmp_path / "smollm2")
    tokenizer, model = AutoTokenizer.from_pretrained(out), AutoModelForCausalLM.from_pretrained(out)
    assert model.generation_config.eos_token_id == [2, 0]
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    written = model.generate(**inputs, do_sample=False, max_new_tokens=24)[0, inputs["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(written)
    assert written[-1].item() in (0, 2)
