"""Progress for people: a live bar in a terminal, plain lines through a pipe."""

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

PLAIN_EVERY = 10.0  # seconds between lines when nobody watches live


def percent(line: dict[str, Any]) -> str:
    """A held-out reward with its interval."""
    if not line["n"]:
        return "unknown, as no completion could be judged"
    return f"{line['reward_mean']:.1%} [{line['reward_low']:.1%}, {line['reward_high']:.1%}]"


class Terminal:
    """Watches a run. Use as a context manager: the live bar is put away at its end, whatever happens.

    `open_end` is for a run that ends when it has reached something: its number of steps is a limit, not a forecast.
    """

    def __init__(self, label: str, console: Console | None = None, *, open_end: bool = False) -> None:
        self.label = label
        self.open_end = open_end
        self.console = console or Console(highlight=False)
        self.live = self.console.is_terminal
        self.progress: Progress | None = None
        self.task: TaskID | None = None
        self.evaluation: TaskID | None = None
        self.finished_steps = 0
        self.begin = time.monotonic()
        self.first_step: int | None = None
        self.printed = 0.0
        self.told = self.begin

    def __enter__(self) -> "Terminal":
        """Start the live bar, if there is a terminal."""
        if self.live:
            self.progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=14),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(compact=True),
                console=self.console,
            )
            self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the bar away. A run that ended before its last step, as it should, is complete."""
        if self.progress is not None:
            if self.task is not None and error is None:
                self.progress.update(self.task, total=self.finished_steps)
            self.progress.stop()

    def note(self, text: str) -> None:
        """A line of its own."""
        self.console.print(f"{self.label}: {text}", markup=False, soft_wrap=True)

    def evaluating(self, split: str, done: int, total: int) -> None:
        """Move a bar that is there while an evaluation lasts, or print a line now and then."""
        if self.progress is not None:
            if self.evaluation is None:
                self.evaluation = self.progress.add_task("", total=total, rate="")
            words = f"{self.label} evaluating {split}"
            self.progress.update(
                self.evaluation, completed=done, total=total, visible=done < total, description=words
            )
        elif time.monotonic() - self.told >= PLAIN_EVERY and done < total:
            self.told = time.monotonic()
            self.note(f"evaluating {split} {done}/{total}")

    def evaluated(self, step: int, split: str, metrics: dict[str, Any]) -> None:
        """Held-out reward with its interval."""
        if split == "test":
            self.note(f"step {step}, {metrics['n']} test problems: reward {percent(metrics)}")

    def step(self, step: int, total: int, metrics: dict[str, Any], timing: dict[str, float]) -> None:
        """Move the bar, or print a line now and then."""
        now = time.monotonic()
        if self.first_step is None:
            self.first_step, self.begin = step, now - timing["total"]
        per_step = (now - self.begin) / (step - self.first_step + 1)
        rate = f"{1 / per_step:.1f} steps/s" if per_step < 1 else f"{per_step:.1f} s/step"
        words = describe(metrics)
        self.finished_steps = step
        if self.progress is not None:
            if self.task is None:
                self.task = self.progress.add_task(
                    self.label, total=None if self.open_end else total, rate=""
                )
            self.progress.update(self.task, completed=step, description=f"{self.label} {words}", rate=rate)
        elif now - self.printed >= PLAIN_EVERY or step == total:
            self.printed = now
            left = f"{per_step * (total - step):.0f} s left"
            place = f"step {step}, at most {total}" if self.open_end else f"step {step}/{total}"
            self.note(f"{place}  {words}  {rate}" + ("" if self.open_end else f", {left}"))


def describe(metrics: dict[str, Any]) -> str:
    """The two or three numbers of a step that a person follows."""
    if "reward_mean" not in metrics:
        return f"loss {metrics['loss']:.3f}"
    words = f"reward {metrics['reward_mean']:.3f}"
    if "kl_policy_reference_k1" in metrics:
        words += f"  KL {metrics['kl_policy_reference_k1']:.2f}"
    return words
