"""How often another batch shape changes a sampled token in float32, and by how much it moves log-probabilities.

Tokens are a function of keys and logits, and logits are sums whose rounding depends on the shape of the batch. Each
completion is sampled twice from the same keys: in one large batch, and in batches of `--rows` rows. Tokens are compared
up to and including the first that differs in a row (after it the texts differ, so nothing is to be compared).

    python benchmarks/batch_shape.py runs/quickstart-sft/checkpoints/step-000600/model --prompts 64 --samples 8
    python benchmarks/batch_shape.py models/smollm2-135m-instruct --chat --prompts 8 --samples 4 --tokens 64
    python benchmarks/batch_shape.py --scratch --prompts 64 --samples 8 --tokens 48
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rung.batch import Completion
from rung.models import loading
from rung.rollout.collect import collect, requests_for
from rung.rollout.engine import Request
from rung.rollout.local import LocalEngine


@dataclass(frozen=True)
class Comparison:
    """What two samplings of the same keys have in common."""

    tokens: int
    differing: int
    rows: int
    largest: float
    mean: float


def compare(one: Sequence[Completion], other: Sequence[Completion]) -> Comparison:
    tokens, differing = 0, 0
    gaps: list[float] = []
    for a, b in zip(one, other, strict=True):
        for x, y, p, q in zip(
            a.token_ids, b.token_ids, a.behaviour_logprobs, b.behaviour_logprobs, strict=False
        ):
            tokens += 1
            if x != y:
                differing += 1
                break
            gaps.append(abs(p - q))
    return Comparison(tokens, differing, len(one), max(gaps), sum(gaps) / len(gaps))


def prompts_for(
    language: loading.LanguageModel, number: int, *, chat: bool, scratch: bool
) -> list[tuple[int, ...]]:
    if scratch:
        return [language.encode(f"{7 * i % 100}+{13 * i % 97}=") for i in range(number)]
    questions = [f"What is {7 * i % 100} plus {13 * i % 97}? Explain each step." for i in range(number)]
    return [language.encode([{"role": "user", "content": q}] if chat else q) for q in questions]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="a model folder")
    parser.add_argument(
        "--scratch", action="store_true", help="a random 3-layer Llama over 12 characters instead"
    )
    parser.add_argument("--chat", action="store_true", help="put prompts through the chat template")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="at most so many a completion")
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1, 2, 3, 8], help="sizes of the small batches"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.scratch == bool(arguments.model):
        parser.error("give either a model folder or --scratch")
    torch.set_num_threads(1)
    if arguments.scratch:
        sizes = {
            "hidden_size": 128,
            "intermediate_size": 352,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
        }
        language = loading.scratch("0123456789+=", seed=0, **sizes)
    else:
        language = loading.load(arguments.model)
    number = arguments.prompts
    requests = requests_for(
        prompts_for(language, number, chat=arguments.chat, scratch=arguments.scratch),
        range(number),
        [0] * number,
        samples=arguments.samples,
        max_new_tokens=arguments.tokens,
        seed=arguments.seed,
        stream="eval",
    )
    large = run(language, requests, number * arguments.samples)
    print(f"batch of {number * arguments.samples} rows against batches of:")
    for rows in arguments.rows:
        found = compare(large, run(language, requests, rows))
        print(
            f"  {rows:3d} rows: {found.tokens} tokens compared, {found.differing} differ "
            f"({found.differing / found.rows:.2%} of {found.rows} completions); log-probabilities of equal tokens: "
            f"max {found.largest:.1e}, mean {found.mean:.1e} nats",
            flush=True,
        )


def run(language: loading.LanguageModel, requests: Sequence[Request], rows: int) -> list[Completion]:
    started = time.perf_counter()
    done = collect(LocalEngine(language.model, language.end_ids, max_rows=rows), requests)
    tokens = sum(len(completion.token_ids) for completion in done)
    print(f"  ({rows} rows at once: {tokens} tokens in {time.perf_counter() - started:.1f} s)", flush=True)
    return done


if __name__ == "__main__":
    main()
