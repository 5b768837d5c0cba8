"""What a run will do and need, before it starts: steps, tokens, updates, memory."""

import statistics
from dataclasses import dataclass

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from rung.errors import ModelError
from rung.models.head import CHUNK_ELEMENTS
from rung.models.loading import LanguageModel, tokenizer_only
from rung.tasks import Task, load_task
from rung.training.config import Recipe
from rung.training.evaluation import spread_over
from rung.training.session import load_language

FLOAT = 4  # bytes; rung trains in float32


@dataclass(frozen=True)
class Estimate:
    """Counts of what is done at most: completions reach the cap, and every step draws all its rounds of prompts.

    Memory is an estimate.

    Attributes:
        parameters: of the model.
        steps, updates: training steps, optimizer steps.
        completions, tokens: sampled over the whole run, at most.
        prompt_tokens: (mean, longest) over a sample of the training prompts.
        memory: bytes by part, at the peak of a step.
    """

    parameters: int
    steps: int
    updates: int
    completions: int
    tokens: int
    prompt_tokens: tuple[float, int]
    memory: dict[str, int]


def _skeleton(recipe: Recipe, task: Task) -> tuple[PreTrainedConfig, int, object]:
    """Configuration, number of parameters and something that encodes prompts, without loading weights."""
    if recipe.scratch is not None:
        language = load_language(recipe, task)
        return language.model.config, language.model.num_parameters(), language
    try:
        tokenizer = tokenizer_only(recipe.model)
        config = AutoConfig.from_pretrained(recipe.model)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f'model "{recipe.model}" could not be loaded: {reason}') from error
    return config, model.num_parameters(), LanguageModel(model, tokenizer, frozenset({0}))


def _activations_per_token(config: PreTrainedConfig) -> int:
    """Bytes that autograd keeps per token in line: per layer about 10 hidden-size and 4 intermediate-size tensors."""
    text = config.get_text_config()
    return (
        FLOAT
        * text.num_hidden_layers
        * (10 * text.hidden_size + 4 * getattr(text, "intermediate_size", 4 * text.hidden_size))
    )


def estimate(recipe: Recipe) -> Estimate:
    """Count what a recipe will do, and estimate the memory of its largest step."""
    task = load_task(recipe.task)
    config, parameters, language = _skeleton(recipe, task)
    text = config.get_text_config()
    lengths = [len(language.encode(p.prompt)) for p in spread_over(task.problems("train"), 200)]  # type: ignore[attr-defined]
    longest = max(lengths)
    settings, rl = recipe.rollout, recipe.method != "sft"
    method = recipe.build_method() if rl else None
    per_step = settings.prompts_per_step * settings.samples_per_prompt if rl else 0
    new = settings.max_new_tokens
    in_line = (
        settings.prompts_per_step * longest + per_step * new
        if rl
        else recipe.training.batch_size * (longest + new)
    )
    micro = min(recipe.training.micro_batch_tokens, in_line)
    heads = getattr(text, "num_attention_heads", 0)  # a recurrent model has none
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    head = getattr(text, "head_dim", None) or text.hidden_size // max(heads, 1)
    rows = min(settings.max_rows, max(per_step, 1))
    in_micro = max(1, micro * (per_step if rl else recipe.training.batch_size) // in_line)
    attended = in_micro * (longest + new) * text.num_hidden_layers * heads * head
    optimizer = {"optimizer": 2 * FLOAT * parameters}
    if method is not None and method.update is not None:
        # Old weights, gradient, and of the conjugate gradient a solution, residual, direction and product.
        optimizer = {"trust region": 6 * FLOAT * parameters}
    memory = {
        "weights": FLOAT * parameters,
        "gradients": FLOAT * parameters,
        **optimizer,
        "activations of a micro-batch": micro * _activations_per_token(config),
        "keys and values of its rows": 2 * FLOAT * attended,
        "logits of a chunk": 5 * FLOAT * min(CHUNK_ELEMENTS, micro * text.vocab_size),
        "sampling cache": 2 * FLOAT * rows * (longest + new) * text.num_hidden_layers * kv_heads * head,
    }
    if method is not None and "reference" in method.needs:
        memory["reference"] = FLOAT * parameters
    sampled = per_step
    if method is not None and method.select is not None:
        sampled *= settings.max_rounds
    if method is not None and "greedy" in method.needs:
        sampled += settings.prompts_per_step
    return Estimate(
        parameters=parameters,
        steps=recipe.training.steps,
        updates=recipe.updates,
        completions=sampled * recipe.training.steps,
        tokens=sampled * recipe.training.steps * new,
        prompt_tokens=(statistics.fmean(lengths), longest),
        memory=memory,
    )
