"""The engine in this process: batched decoding with a cache, over the very model that is trained."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from rung.batch import Completion
from rung.errors import InvalidInput, ModelError
from rung.rollout.engine import Request
from rung.rollout.sampling import draw, uniforms


def _filled(cache: DynamicCache) -> bool:
    """Whether every layer keeps its past in this cache: some models accept one and ignore it."""
    return bool(cache.layers) and all(
        getattr(layer, "is_initialized", False)
        or any(getattr(layer, "is_conv_states_initialized", {}).values())
        or any(getattr(layer, "is_recurrent_states_initialized", {}).values())
        for layer in cache.layers
    )


@dataclass
class _Growing:
    """One completion on its way."""

    request: Request
    sample: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def key(self) -> int:
        return self.request.keys[self.sample]

    def done(self, stop: bool) -> Completion:
        return Completion(
            prompt_ids=self.request.prompt_ids,
            token_ids=tuple(self.tokens),
            sampled=(True,) * len(self.tokens),
            behaviour_logprobs=tuple(self.logprobs),
            policy_versions=tuple(self.versions),
            group=self.request.group,
            sample=self.sample,
            sampling_key=self.key,
            end_reason="stop" if stop else "length",
        )


class LocalEngine:
    """Samples from a transformers causal language model through its cache interface.

    A prompt is computed once for all samples of its group. Completions that end leave the batch. Any of the model's
    end tokens ends a completion, and is part of it.

    Guarantees: log-probabilities are those of the distribution sampled, temperature included; tokens depend on the
    request's keys and the logits alone, and those of a greedy request on the logits.
    """

    def __init__(
        self, model: PreTrainedModel, end_ids: Iterable[int], *, temperature: float = 1.0, max_rows: int = 256
    ) -> None:
        if temperature <= 0:
            raise InvalidInput(f"the sampling temperature must be positive, got {temperature}")
        if max_rows < 1:
            raise InvalidInput(f"max_rows must be at least 1, got {max_rows}")
        self.model = model
        self.end_ids = torch.tensor(sorted(end_ids), dtype=torch.int64)
        self.temperature = temperature
        self.max_rows = max_rows
        self.version = 0

    def load(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take over weights. Those that are the trained model's own storage are there already.

        Raises:
            InvalidInput: a name that the model does not have, or another shape.
        """
        own = dict(self.model.named_parameters(remove_duplicate=False)) | dict(self.model.named_buffers())
        for name, tensor in tensors:
            if name not in own or own[name].shape != tensor.shape:
                there = tuple(own[name].shape) if name in own else "not there"
                raise InvalidInput(
                    f"weight {name!r} of shape {tuple(tensor.shape)} does not fit this model: {there}"
                )
            if own[name].data_ptr() != tensor.data_ptr():
                own[name].data.copy_(tensor)
        self.version = version

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        """Completions in the order in which they finish, in waves of at most `max_rows` rows.

        A group stays together where it fits into a wave.
        """
        self._check(requests)
        wave: list[_Growing] = []
        for request in requests:
            if wave and len(wave) + len(request.keys) > self.max_rows:
                yield from self._wave(wave)
                wave = []
            for sample in range(len(request.keys)):
                if len(wave) == self.max_rows:
                    yield from self._wave(wave)
                    wave = []
                wave.append(_Growing(request, sample))
        if wave:
            yield from self._wave(wave)

    def _check(self, requests: Sequence[Request]) -> None:
        positions = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        for request in requests:
            asked = len(request.prompt_ids) + request.max_new_tokens
            if positions is not None and asked > positions:
                raise InvalidInput(
                    f"a prompt of {len(request.prompt_ids)} tokens and {request.max_new_tokens} new ones do not fit "
                    f"the {positions} positions of this model: shorten prompts, or lower max_new_tokens"
                )

    def _prefill(self, prompts: list[tuple[int, ...]]) -> tuple[DynamicCache, torch.Tensor, torch.Tensor]:
        """Each prompt once, padded on the left: its cache, its attention mask, and the logits after it."""
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.tensor([prompt[:1] * (longest - len(prompt)) + prompt for prompt in prompts])
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        mask = (torch.arange(longest) >= longest - lengths.unsqueeze(1)).long()
        cache = DynamicCache(config=self.model.config)
        refusal = (
            f"{self.model.config.model_type} models keep their past in a way of their own, not in a cache"
        )
        try:
            logits = self.model(
                input_ids=ids,
                attention_mask=None if bool(mask.all()) else mask,
                position_ids=(mask.cumsum(1) - 1).clamp(min=0),
                cache=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits
        except (TypeError, ValueError) as error:
            raise ModelError(f"{refusal}: {error}") from error
        if not _filled(cache):
            raise ModelError(f"{refusal}: the engine in this process cannot sample from them")
        return cache, mask, logits[:, -1]

    def _step(
        self, tokens: torch.Tensor, positions: torch.Tensor, cache: DynamicCache, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """[R, V] logits after one more token of each row."""
        logits: torch.Tensor = self.model(
            input_ids=tokens.unsqueeze(1),
            attention_mask=mask,
            position_ids=positions.unsqueeze(1),
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        return logits

    def _draw(
        self, logits: torch.Tensor, alive: list[_Growing], step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One more token of each row, [R], and whether it is an end token, [R]."""
        keys = np.array([row.key for row in alive], dtype=np.uint64)
        greedy = torch.tensor([row.request.greedy for row in alive])
        drawn, logprobs = draw(logits, uniforms(keys, np.full(len(alive), step)), self.temperature, greedy)
        for row, token, logprob in zip(alive, drawn.tolist(), logprobs.tolist(), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.versions.append(self.version)
        return drawn, torch.isin(drawn, self.end_ids)

    @torch.inference_mode()
    def _wave(self, alive: list[_Growing]) -> Iterator[Completion]:
        self.model.eval()  # no dropout, whoever trained this model in between
        index = {prompt: i for i, prompt in enumerate(dict.fromkeys(row.request.prompt_ids for row in alive))}
        cache, mask, logits = self._prefill(list(index))
        of_prompt = torch.tensor([index[row.request.prompt_ids] for row in alive])
        cache.reorder_cache(
            of_prompt
        )  # selects rows; unlike `batch_select_indices`, recurrent layers have it too
        mask, logits = mask[of_prompt], logits[of_prompt]
        lengths = mask.sum(1)
        # Recurrent layers take a mask of the input alone, which has no padding after the prompts.
        padded = not bool(mask.all()) and any(isinstance(layer, DynamicLayer) for layer in cache.layers)
        for step in itertools.count():
            drawn, stopped = self._draw(logits, alive, step)
            caps = torch.tensor([row.request.max_new_tokens for row in alive])
            finished = stopped | (caps <= step + 1)
            for i in finished.nonzero().squeeze(1).tolist():
                yield alive[i].done(bool(stopped[i]))
            if bool(finished.all()):
                return
            if bool(finished.any()):
                kept = (~finished).nonzero().squeeze(1)
                cache.reorder_cache(kept)
                alive = [alive[i] for i in kept.tolist()]
                drawn, mask, lengths = drawn[kept], mask[kept], lengths[kept]
            mask = torch.cat([mask, mask.new_ones(len(alive), 1)], dim=1)
            logits = self._step(drawn, lengths + step, cache, mask if padded else None)
