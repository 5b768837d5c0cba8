"""Prompts and rewards. `TASKS` names the built-in tasks."""

from rung.errors import UsageError
from rung.tasks.addition import Addition
from rung.tasks.base import Message, Problem, Split, Task
from rung.tasks.extraction import Extraction

TASKS = {"addition": Addition, "extraction": Extraction}


def load_task(name: str) -> Task:
    """A task by name.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in TASKS:
        raise UsageError(f'task "{name}" is not known; there is {", ".join(sorted(TASKS))}')
    return TASKS[name]()


__all__ = ["TASKS", "Message", "Problem", "Split", "Task", "load_task"]
