"""`rung task`: look at a task's problems, and try its reward, before training on it."""

import inspect
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from rung.errors import UsageError

if TYPE_CHECKING:
    from rung.tasks import Problem, Split, Task

app = typer.Typer(
    help="Look at a task and try its reward before training on it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("show")
def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="TASK", help="Without: list the built-in tasks.", show_default=False),
    ] = None,
    split: Annotated[str, typer.Option(help="Of the sample: train, validation or test.")] = "test",
    n: Annotated[int, typer.Option("-n", help="Problems to show, evenly spread over the split.", min=1)] = 5,
    model: Annotated[
        str | None,
        typer.Option(
            help='Show the tokens of each prompt: a Hugging Face folder, a run\'s folder, a hub id, or "scratch".',
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """What a task asks: its splits, some of its problems, and with --model how a prompt becomes tokens."""
    from rung.tasks import TASKS, load_task

    if name is None:
        if model is not None:
            raise UsageError("--model shows the tokens of a task's prompts: name the task")
        _list([TASKS[known]() for known in sorted(TASKS)], as_json)
        return
    found = _examined(load_task(name), _split(split), n, model)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        from rung.cli.prompts import print_task

        print_task(found)


@app.command("score")
def score(
    name: Annotated[str, typer.Argument(metavar="TASK", help="A task's name.", show_default=False)],
    completions: Annotated[
        list[str],
        typer.Option(
            "--completion",
            "-c",
            metavar="TEXT",
            help="What a model answered, without its end token; may be repeated. - reads standard input as it is: "
            "a final line break counts.",
            show_default=False,
        ),
    ],
    row: Annotated[
        int | None,
        typer.Option(help="The problem's row, as `rung task show` prints it.", show_default=False),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(help="The problem's prompt; of a chat, its last message.", show_default=False),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Where to look: train, validation or test. Without: everywhere.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Judge completions exactly as training would. Without --row and --prompt: of the first test problem."""
    from rung.tasks import load_task

    if row is not None and prompt is not None:
        raise UsageError("give either --row or --prompt, not both")
    if completions.count("-") > 1:
        raise UsageError("standard input can be read once: give -c - once")
    task = load_task(name)
    if row is None and prompt is None:
        split = split or "test"
    where, problem = _find(task, row, prompt, None if split is None else _split(split))
    texts = [_read() if text == "-" else text for text in completions]
    found = {
        "task": task.name,
        "split": where,
        **_described(problem),
        "completions": _judged(task, problem, texts),
    }
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        from rung.cli.prompts import print_score

        print_score(found)


def _read() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is no {error.encoding} text, at byte {error.start}") from error


def _examined(task: "Task", split: "Split", n: int, model: str | None) -> dict[str, Any]:
    """A task with n of its problems, evenly spread over a split."""
    problems = task.problems(split)
    n = min(n, len(problems))
    shown = [problems[i * len(problems) // n] for i in range(n)]
    found: dict[str, Any] = {
        "task": task.name,
        "description": inspect.getdoc(type(task)) or "",
        "problems": _sizes(task),
        "split": split,
        "samples": [_described(problem) for problem in shown],
    }
    if model is not None:
        from rung.cli.prompts import TokenViewer

        viewer = TokenViewer(model, task)
        found["samples"] = [_described(problem) | viewer.tokens(problem.prompt) for problem in shown]
        found |= {"model": model, "begin_token": viewer.begin_token}
    return found


def _judged(task: "Task", problem: "Problem", texts: list[str]) -> list[dict[str, Any]]:
    from rung.tasks import judged

    outcomes = [judged(task, problem, text) for text in texts]
    return [
        {"completion": text, "kind": o.kind, "reward": o.reward, "message": o.message}
        for text, o in zip(texts, outcomes, strict=True)
    ]


def _split(word: str) -> "Split":
    from rung.tasks import Split

    splits: tuple[Split, ...] = get_args(Split)
    for split in splits:
        if split == word:
            return split
    raise UsageError(f'split "{word}" is not known; there is {", ".join(splits)}')


def _sizes(task: "Task") -> dict[str, int]:
    from rung.tasks import Split

    return {split: len(task.problems(split)) for split in get_args(Split)}


def _described(problem: "Problem") -> dict[str, Any]:
    return {"row": problem.row, "prompt": problem.prompt, "reference": problem.reference}


def _list(tasks: "list[Task]", as_json: bool) -> None:
    """Each task with the first line of what it says of itself."""
    lines = {task.name: (inspect.getdoc(type(task)) or "").split("\n")[0].rstrip(".") for task in tasks}
    if as_json:
        found = [{"task": task.name, "summary": lines[task.name], "problems": _sizes(task)} for task in tasks]
        print(json.dumps(found, indent=1))
        return
    width = max(map(len, lines))
    for name, line in lines.items():
        print(f"{name:<{width}}  {line}")


def _find(task: "Task", row: int | None, prompt: str | None, only: "Split | None") -> "tuple[Split, Problem]":
    """The problem asked for, and the split it is in: the first one where nothing says which."""
    from rung.tasks import Split

    every = {split: task.problems(split) for split in get_args(Split)}
    found = [
        (split, problem)
        for split, problems in every.items()
        for problem in problems
        if (row is None or problem.row == row) and (prompt is None or _asks(problem) == prompt)
    ]
    inside = [pair for pair in found if only in (None, pair[0])]
    if inside:
        return inside[0]
    which = (
        f"row {row}"
        if row is not None
        else f"problem with the prompt {json.dumps((prompt or '')[:40], ensure_ascii=False)}"
    )
    if found:
        raise UsageError(
            f'task "{task.name}" has no {which} in {only}: it is in {found[0][0]}; '
            f"say --split {found[0][0]}, or leave --split out"
        )
    rows = [problem.row for problems in every.values() for problem in problems]
    raise UsageError(
        f'task "{task.name}" has no {which}: it has {len(rows)} problems, rows {min(rows)} to {max(rows)}; '
        f"`rung task show {task.name}` shows some"
    )


def _asks(problem: "Problem") -> str:
    """What stands for a problem on a command line: its text, or the last message of its chat."""
    return problem.prompt if isinstance(problem.prompt, str) else problem.prompt[-1]["content"]
