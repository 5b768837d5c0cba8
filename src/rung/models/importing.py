"""Turn a GGUF file, as local tools pass models around, into a Hugging Face folder that can be trained.

The weights become float32 and the quantization is dropped: what is trained is exactly the model that the quantized
file describes. The folder is complete or absent: it is written beside its place, checked, and renamed.
"""

import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
import transformers.modeling_gguf_pytorch_utils as legacy
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rung.errors import ModelError, UsageError
from rung.models import gguf_metadata

Progress = Callable[[str], None]
_Tell = Callable[[float, str], None]

RECORD = "import.json"
_PROBE = "The year 2024 had 366 days.\n    def f(x):  return x + 17  # naïve ☕\n"
_LOGIT_TOLERANCE = 1e-4  # equal weights; a kernel may round differently where memory is aligned differently


def import_checkpoint(
    source: Path, out: Path, *, overwrite: bool = False, progress: Progress | None = None
) -> Path:
    """Convert a GGUF file into a Hugging Face folder: float32 safetensors, tokenizer, chat template, end tokens.

    The folder is loaded again before it gets its name: logits and token ids must be those of the GGUF file.
    A folder that was already imported from the same file is left as it is.

    Args:
        source: the GGUF file.
        out: the folder to write.
        overwrite: replace a model folder that is already there.
        progress: called with one line at a time: the share of the usual time that has passed, and what comes next.

    Returns:
        `out`.

    Raises:
        UsageError: the file is missing or no GGUF file, `out` is taken, or packages are missing.
        ModelError: the file is damaged, of an unsupported architecture, or the folder does not reproduce it.
    """

    def tell(share: float, message: str) -> None:
        if progress:
            progress(f"{share:4.0%}  {message}")

    header = gguf_metadata.read(source)
    _check_packages()
    tell(0.0, f"comparing {source.name} with what is there")
    identity = {"format": 1, "source": source.name, "sha256": _sha256(source)}
    if _is_import_of(out, identity):
        tell(1.0, f"{out} was already imported from this file")
        return out
    _check_place(out, overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _staging(out) as staging, _quiet():
        _convert(source, header, staging, tell)
        sizes = {path.name: path.stat().st_size for path in sorted(staging.iterdir())}
        record = {**identity, "transformers": transformers.__version__, "files": sizes}
        (staging / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        _publish(staging, out)
    tell(1.0, f"wrote {out}")
    return out


def _convert(source: Path, header: gguf_metadata.Header, staging: Path, tell: _Tell) -> None:
    """Fill the staging folder from the file, and check it."""
    tell(0.02, "reading the tokenizer")
    with _lone_link(source) as folder:
        tokenizer = _reading(source, header, lambda: _load_tokenizer(folder, header))
        tell(0.3, f"reading the weights of {header.describe()}")
        model, unused = _reading(source, header, lambda: _load_model(folder))
    if unused:
        tell(0.85, f"not used by {type(model).__name__}: {', '.join(unused)}")
    if note := header.tokenizer_note():
        tell(0.85, note)
    length = getattr(model.config, "max_position_embeddings", None)
    tokenizer.model_max_length = length or tokenizer.model_max_length
    _set_end_tokens(model, tokenizer, header)
    ids = _probe_ids(tokenizer)
    expected = _logits(model, ids)
    tell(0.86, f"writing {sum(p.numel() for p in model.parameters()) * 4 / 1e6:,.0f} MB of float32 weights")
    model.save_pretrained(staging)
    tokenizer.save_pretrained(staging)
    del model
    tell(0.92, "loading the folder again and comparing logits and token ids")
    _verify(staging, tokenizer, ids, expected)


def _load_tokenizer(folder: Path, header: gguf_metadata.Header) -> PreTrainedTokenizerBase:
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf")
    header.mend_pre_tokenizer(tokenizer)
    return tokenizer


def _load_model(folder: Path) -> tuple[PreTrainedModel, list[str]]:
    """The model in float32, without a trace of the quantization; and the names of tensors it has no place for."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file="model.gguf",
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
        output_loading_info=True,
    )
    model, info = loaded
    missing = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if missing:
        raise ValueError(f"{len(missing)} weights are not in the file, the first is {missing[0]}")
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None  # transformers would refuse to save the weights as they now are
    model.is_quantized = False
    return model.eval(), sorted(info["unexpected_keys"])


def _set_end_tokens(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, header: gguf_metadata.Header
) -> None:
    """Every token that ends an answer, the tokenizer's first: one number if there is one, else a list."""
    known = [tokenizer.eos_token_id, *_as_list(model.config.eos_token_id), *header.end_ids()]
    ends = list(dict.fromkeys(token for token in known if token is not None))
    if not ends:
        raise ModelError("the file declares no end token: completions would never stop")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(ends[0])
    for holder in (model.config, model.generation_config):
        holder.eos_token_id = ends[0] if len(ends) == 1 else ends
        holder.pad_token_id = tokenizer.pad_token_id


def _as_list(value: int | list[int] | None) -> list[int]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _probe_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """A short prompt with digits, indentation and letters outside ASCII; through the chat template if there is one."""
    ids = list(tokenizer(_PROBE)["input_ids"])
    if tokenizer.chat_template:
        chat = [{"role": "user", "content": _PROBE}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids += tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


@torch.no_grad()
def _logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """Logits [T, V] of the probe."""
    logits: torch.Tensor = model(input_ids=torch.tensor([ids])).logits[0]
    return logits


def _verify(folder: Path, tokenizer: PreTrainedTokenizerBase, ids: list[int], expected: torch.Tensor) -> None:
    """Compare the written folder with what was read from the file."""
    again = AutoTokenizer.from_pretrained(folder)
    if _probe_ids(again) != ids or again.decode(ids) != tokenizer.decode(ids):
        raise ModelError("the written tokenizer gives other token ids than the GGUF file's: nothing was kept")
    if len(again) != len(tokenizer) or again.special_tokens_map != tokenizer.special_tokens_map:
        raise ModelError(
            "the written tokenizer has other special tokens than the GGUF file's: nothing was kept"
        )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    difference = (_logits(model, ids) - expected).abs().max().item()
    if not difference <= _LOGIT_TOLERANCE:  # NaN is refused too
        raise ModelError(
            f"the written model's logits differ by up to {difference:.2g} from the GGUF file's: nothing was kept"
        )


def _check_packages() -> None:
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"reading GGUF files needs {' and '.join(missing)}: install them with: pip install 'rung[gguf]'"
        )


def _check_place(out: Path, overwrite: bool) -> None:
    """Refuse a place that is taken: by something else always, by a model unless it may be replaced."""
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() and not (out / "config.json").is_file():
        raise UsageError(f"{out} exists and is not a model folder: choose another place, it is not touched")
    if out.exists() and not overwrite:
        raise UsageError(f"{out} holds another model: choose another place, or replace it with --overwrite")


def _is_import_of(out: Path, identity: dict[str, Any]) -> bool:
    """Whether `out` is a complete import of the same file."""
    try:
        record = json.loads((out / RECORD).read_text(encoding="utf-8"))
        same = all(record[key] == identity[key] for key in ("format", "sha256"))
        return same and all((out / name).stat().st_size == size for name, size in record["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reading(source: Path, header: gguf_metadata.Header, load: Callable[[], Any]) -> Any:
    """Call a reader of transformers; what it cannot read becomes one error that names file and architecture."""
    try:
        return load()
    except (ValueError, KeyError, IndexError, OSError, RuntimeError, NotImplementedError, TypeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f'{source}: transformers {transformers.__version__} cannot read this file of architecture "'
            f'{header.architecture}": {reason}'
        ) from error


@contextmanager
def _lone_link(source: Path) -> Iterator[Path]:
    """A folder with nothing but the file: transformers would also read configurations that lie beside it."""
    with tempfile.TemporaryDirectory(prefix="rung-import-") as folder:
        (Path(folder) / "model.gguf").symlink_to(source.resolve())
        yield Path(folder)


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """A folder beside `out`, removed unless it was published."""
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    staging.chmod(0o755)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(staging: Path, out: Path) -> None:
    """Flush every file, then give the folder its name; an older one is set aside first and removed last."""
    for path in staging.iterdir():
        path.chmod(0o644)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    old = staging.with_suffix(".replaced")
    if out.exists():
        out.rename(old)
    try:
        staging.rename(out)
    except OSError:
        if old.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' bars, notices and warnings out of rung's output, and put its settings back afterwards."""
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    bar = legacy.tqdm
    log.set_verbosity_error()
    log.disable_progress_bar()
    legacy.tqdm = lambda items, **_: items  # this one bar does not ask the settings
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        legacy.tqdm = bar
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
