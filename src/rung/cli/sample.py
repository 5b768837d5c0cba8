"""`rung sample`: what a model answers."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Annotated

import typer


def sample(
    model: Annotated[
        str,
        typer.Argument(help="A Hugging Face folder, a run's folder (its newest checkpoint), or a hub id."),
    ],
    prompts: Annotated[
        list[str],
        typer.Option(
            "--prompt", "-p", help="A prompt; may be repeated. - reads standard input, one prompt a line."
        ),
    ],
    n: Annotated[
        int | None,
        typer.Option("-n", help="Samples of each prompt: 4, or 1 with --greedy.", min=1, show_default=False),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(help="The length cap: 64, or what the model has room for.", min=1, show_default=False),
    ] = None,
    temperature: Annotated[float, typer.Option(help="The logits are divided by it.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the sampling.", min=0)] = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the most likely token, draw none.")] = False,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat",
            help="Send each prompt as a user's message through the model's chat template. Without, the template is "
            "not applied: the model goes on with the text as it stands.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Sample completions of a prompt: text, why each ended, and its log-probability in nats.

    The same seed gives the same completions. Log-probabilities are those of the distribution that was sampled,
    temperature included, summed over the completion's tokens, its end token among them.
    """
    from rung import api

    given = _read(prompts)
    answers = api.sample(
        model,
        given,
        n=n,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        greedy=greedy,
        chat=chat,
    )
    if as_json:
        print(json.dumps([dataclasses.asdict(answer) for answer in answers], indent=1))
        return
    for answer in answers:
        if answer.sample == 0 and len(given) > 1:
            print(f"prompt {answer.prompt + 1}: {_plain(given[answer.prompt])}")
        tokens = len(answer.token_ids)
        print(
            f"[{answer.sample + 1}] {answer.end_reason}, {tokens} token{'s' * (tokens != 1)}, "
            f"log-probability {answer.logprob:.4f}"
        )
        print(_plain(answer.text))


def _read(prompts: Sequence[str]) -> list[str]:
    """The prompts, with the lines of standard input in the place of "-"."""
    found: list[str] = []
    for prompt in prompts:
        found += [line for line in sys.stdin.read().splitlines() if line] if prompt == "-" else [prompt]
    return found


def _plain(text: str) -> str:
    """Text that cannot steer a terminal: control characters are written out."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
