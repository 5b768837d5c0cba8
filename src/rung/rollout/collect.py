"""From prompts to completions, in the order asked for."""

from collections.abc import Callable, Sequence

from rung.batch import Completion
from rung.rollout.engine import Engine, Request
from rung.rollout.sampling import sampling_key


def requests_for(
    prompts: Sequence[tuple[int, ...]],
    rows: Sequence[int],
    visits: Sequence[int],
    *,
    samples: int,
    max_new_tokens: int,
    seed: int,
    stream: str,
    first_group: int = 0,
    greedy: bool = False,
) -> list[Request]:
    """One request a prompt; its group is its place in the batch.

    Args:
        prompts: token ids of each prompt.
        rows: the data row of each: with `visits`, what makes its randomness its own.
        visits: how often each row was visited before.
        samples: G.
        max_new_tokens: the length cap.
        seed: of the run.
        stream: "train", "eval" or "library".
        first_group: the group of the first prompt, where a batch is drawn in several parts.
        greedy: ask for the most likely completion. Then `samples` is 1.
    """
    return [
        Request(
            prompt_ids=prompt,
            keys=tuple(sampling_key(seed, stream, row, visit, sample) for sample in range(samples)),
            group=group,
            max_new_tokens=max_new_tokens,
            greedy=greedy,
        )
        for group, (prompt, row, visit) in enumerate(zip(prompts, rows, visits, strict=True), first_group)
    ]


def collect(
    engine: Engine, requests: Sequence[Request], on_completion: Callable[[Completion], None] | None = None
) -> list[Completion]:
    """All completions, ordered by group and sample, whatever the order in which they finished."""
    done = []
    for completion in engine.generate(requests):
        done.append(completion)
        if on_completion is not None:
            on_completion(completion)
    return sorted(done, key=lambda c: (c.group, c.sample))
