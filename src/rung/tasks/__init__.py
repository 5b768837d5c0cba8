"""Prompts and rewards. `TASKS` names the built-in tasks."""

import difflib

from rung.errors import UsageError
from rung.tasks.addition import Addition
from rung.tasks.base import Message, Problem, Split, Task, judged
from rung.tasks.extraction import Extraction

TASKS = {"addition": Addition, "extraction": Extraction}


def load_task(name: str) -> Task:
    """A task by name.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in TASKS:
        close = difflib.get_close_matches(name.lower(), TASKS, n=1, cutoff=0.5)
        meant = f'; did you mean "{close[0]}"?' if close else ""
        raise UsageError(f'task "{name}" is not known; there is {", ".join(sorted(TASKS))}{meant}')
    return TASKS[name]()


__all__ = ["TASKS", "Message", "Problem", "Split", "Task", "judged", "load_task"]
