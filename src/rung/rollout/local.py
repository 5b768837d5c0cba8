"""The engine in this process: batched decoding with a cache, over the very model that is trained."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from rung.batch import Completion
from rung.errors import InvalidInput
from rung.rollout.engine import Request
from rung.rollout.sampling import draw, uniforms


class LocalEngine:
    """Samples from a transformers causal language model through its cache interface.

    A prompt is computed once for all samples of its group. Completions that end leave the batch. Any of the model's
    end tokens ends a completion, and is part of it.

    Guarantees: log-probabilities are those of the distribution sampled, temperature included; tokens depend on the
    request's keys and the logits alone.
    """

    def __init__(
        self, model: PreTrainedModel, end_ids: Iterable[int], *, temperature: float = 1.0, max_rows: int = 256
    ) -> None:
        if temperature <= 0:
            raise InvalidInput(f"the sampling temperature must be positive, got {temperature}")
        self.model = model
        self.end_ids = torch.tensor(sorted(end_ids))
        self.temperature = temperature
        self.max_rows = max_rows
        self.version = 0

    def load(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take over weights. Those that are the trained model's own storage are there already."""
        own = dict(self.model.named_parameters())
        for name, tensor in tensors:
            if own[name].data_ptr() != tensor.data_ptr():
                own[name].data.copy_(tensor)
        self.version = version

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        """Completions in the order in which they finish, in waves of at most `max_rows` rows."""
        wave: list[Request] = []
        rows = 0
        for request in requests:
            if wave and rows + len(request.keys) > self.max_rows:
                yield from self._wave(wave)
                wave, rows = [], 0
            wave.append(request)
            rows += len(request.keys)
        if wave:
            yield from self._wave(wave)

    def _prefill(self, requests: list[Request]) -> tuple[DynamicCache, torch.Tensor, torch.Tensor]:
        """Each prompt once, padded on the left: its cache, its attention mask, and the logits after it."""
        longest = max(len(r.prompt_ids) for r in requests)
        ids = torch.zeros(len(requests), longest, dtype=torch.int64)
        mask = torch.zeros(len(requests), longest, dtype=torch.int64)
        for i, request in enumerate(requests):
            ids[i, longest - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
            mask[i, longest - len(request.prompt_ids) :] = 1
        cache = DynamicCache(config=self.model.config)
        output = self.model(
            input_ids=ids,
            attention_mask=None if bool(mask.all()) else mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return cache, mask, output.logits[:, -1]

    @torch.inference_mode()
    def _wave(self, requests: list[Request]) -> Iterator[Completion]:
        owners = [(request, sample) for request in requests for sample in range(len(request.keys))]
        keys = np.array([request.keys[sample] for request, sample in owners], dtype=np.uint64)
        limits = torch.tensor([request.max_new_tokens for request, _ in owners])
        tokens: list[list[int]] = [[] for _ in owners]
        logprobs: list[list[float]] = [[] for _ in owners]
        cache, mask, logits = self._prefill(requests)
        of_prompt = torch.tensor([i for i, request in enumerate(requests) for _ in request.keys])
        cache.batch_select_indices(of_prompt)
        mask, logits = mask[of_prompt], logits[of_prompt]
        lengths = mask.sum(1)
        alive = torch.arange(len(owners))
        padded = not bool(mask.all())
        step = 0
        while True:
            uniform = uniforms(keys[alive.numpy()], np.full(len(alive), step))
            drawn, drawn_logprobs = draw(logits, uniform, self.temperature)
            for row, token, logprob in zip(
                alive.tolist(), drawn.tolist(), drawn_logprobs.tolist(), strict=True
            ):
                tokens[row].append(token)
                logprobs[row].append(logprob)
            step += 1
            stopped = torch.isin(drawn, self.end_ids)
            finished = stopped | (limits[alive] <= step)
            for row, stop in zip(alive[finished].tolist(), stopped[finished].tolist(), strict=True):
                yield self._completion(*owners[row], tokens[row], logprobs[row], stop)
            if bool(finished.all()):
                return
            if bool(finished.any()):
                kept = (~finished).nonzero().squeeze(1)
                cache.batch_select_indices(kept)
                alive, drawn, mask, lengths = alive[kept], drawn[kept], mask[kept], lengths[kept]
            mask = torch.cat([mask, mask.new_ones(len(alive), 1)], dim=1)
            logits = self.model(
                input_ids=drawn.unsqueeze(1),
                attention_mask=mask if padded else None,
                position_ids=(lengths + step - 1).unsqueeze(1),
                cache=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]

    def _completion(
        self, request: Request, sample: int, tokens: list[int], logprobs: list[float], stop: bool
    ) -> Completion:
        return Completion(
            prompt_ids=request.prompt_ids,
            token_ids=tuple(tokens),
            sampled=(True,) * len(tokens),
            behaviour_logprobs=tuple(logprobs),
            policy_versions=(self.version,) * len(tokens),
            group=request.group,
            sample=sample,
            sampling_key=request.keys[sample],
            end_reason="stop" if stop else "length",
        )
