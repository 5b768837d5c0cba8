"""A run folder as rung leaves it, with numbers from a seeded generator."""

import json
import math
import random
import sqlite3
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

SCHEMA = (
    "CREATE TABLE rollouts(id INTEGER PRIMARY KEY, step INTEGER, split TEXT, row INTEGER, group_id INTEGER,"
    " sample INTEGER, prompt TEXT, completion TEXT, prompt_ids TEXT, token_ids TEXT, sampled_mask TEXT,"
    " behaviour_logprobs TEXT, policy_version INTEGER, end_reason TEXT, outcome TEXT, reward REAL, reference TEXT)"
)
PHASES = {"collect": 1.4, "reward": 0.05, "annotate": 0.3, "update": 0.9, "record": 0.02}


def add_rollout(store: sqlite3.Connection, **values: Any) -> None:
    """Store one completion; what is not given gets a plain value."""
    completion = str(values.get("completion", "7."))
    tokens = max(1, len(completion))
    row = {
        "step": 0, "split": "validation", "row": 0, "group_id": 0, "sample": 0, "prompt": "3+4=",
        "completion": completion,
        "prompt_ids": "[1, 2, 3]", "token_ids": json.dumps([5] * tokens), "sampled_mask": json.dumps([1] * tokens),
        "behaviour_logprobs": json.dumps([-0.25] * tokens), "policy_version": 0, "end_reason": "stop",
        "outcome": "reward", "reward": 1.0, "reference": '"7"',
    }  # fmt: skip
    row |= values
    marks = ", ".join("?" * len(row))
    store.execute(f"INSERT INTO rollouts({', '.join(row)}) VALUES ({marks})", [*row.values()])


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    """One JSON object a line, NaN and Infinity as Python spells them."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def train_line(step: int, steps: int, rng: random.Random) -> dict[str, Any]:
    """One training step of a run that improves."""
    progress = 1 - math.exp(-3 * step / max(steps, 1))
    kl = 2.2 * progress + rng.gauss(0, 0.12)
    return {
        "step": step, "kind": "train", "reward_mean": 0.3 + 0.42 * progress + rng.gauss(0, 0.04),
        "reward_std": 0.45 + rng.gauss(0, 0.01), "reward_errors": int(rng.random() < 0.02),
        "groups_without_signal": rng.randint(2, 6) + round(12 * progress), "completions": 256,
        "tokens": 900 + rng.randint(-40, 40), "length_mean": 3.6 + rng.gauss(0, 0.05) - 0.3 * progress,
        "stop_fraction": min(1.0, 0.93 + 0.06 * progress + rng.gauss(0, 0.005)), "loss": rng.gauss(0, 0.02),
        "grad_norm": 0.8 + abs(rng.gauss(0, 0.25)), "kl_policy_reference_k1": kl,
        "kl_policy_reference_k3": abs(kl * 0.97 + rng.gauss(0, 0.05)),
        "entropy": 1.1 - 0.6 * progress + rng.gauss(0, 0.02),
        "learning_rate": 3e-4, "sampler_logratio_max": 2e-5 * math.exp(rng.gauss(0, 0.4)),
        "sampler_logratio_p99": 8e-6 * math.exp(rng.gauss(0, 0.2)), "sampler_logratio_mean": rng.gauss(0, 2e-7),
        "updates": step,
    }  # fmt: skip


def eval_line(step: int, steps: int, split: str, rng: random.Random) -> dict[str, Any]:
    """One evaluation with its interval."""
    progress = 1 - math.exp(-3 * step / max(steps, 1))
    mean = 0.29 + 0.38 * progress + rng.gauss(0, 0.01)
    return {
        "step": step, "kind": "eval", "split": split, "reward_mean": mean, "reward_low": mean - 0.041,
        "reward_high": mean + 0.041, "n": 500, "length_mean": 3.6 - 0.25 * progress,
        "stop_fraction": 0.94 + 0.05 * progress, "kl_policy_reference": 2.1 * progress,
        "kl_policy_reference_low": 2.1 * progress - 0.1, "kl_policy_reference_high": 2.1 * progress + 0.1,
        "completions": 500, "tokens": 1700, "reward_errors": 0, "full_reward": mean, "full_reward_low": mean - 0.041,
        "full_reward_high": mean + 0.041,
    }  # fmt: skip


def sft_lines(steps: int, rng: random.Random) -> list[dict[str, Any]]:
    """A fine-tuning run: loss at each step, exact match now and then."""
    lines: list[dict[str, Any]] = []
    for step in range(steps + 1):
        right = 0.44 / (1 + math.exp(-(step - 0.7 * steps) / max(0.08 * steps, 1)))
        if step:
            loss = 0.55 + 2.1 * math.exp(-4 * step / steps) + rng.gauss(0, 0.03)
            extra = {
                "tokens": 512,
                "grad_norm": 1 + abs(rng.gauss(0, 0.2)),
                "learning_rate": 2e-3 * min(1, step / 20),
            }
            lines.append({"step": step, "kind": "train", "loss": loss, **extra})
        if step % max(steps // 6, 1) == 0:
            interval = {"reward_low": max(0.0, right - 0.04), "reward_high": right + 0.04, "n": 500}
            lines.append(
                {"step": step, "kind": "eval", "split": "validation", "reward_mean": right, **interval}
            )
    return lines


def fill_store(path: Path, steps: int, every: int, rng: random.Random, rows: int = 40) -> None:
    """Evaluation completions of 40 problems and a group of 4 for each training step."""
    store = sqlite3.connect(path)
    store.execute(SCHEMA)
    for step in sorted({*range(0, steps + 1, every), steps} if every else ()):
        for row in range(rows):
            a, b = 17 + row, 61 - row // 2
            right = rng.random() < 0.25 + 0.5 * step / max(steps, 1)
            text = f"{a + b + (0 if right else rng.choice((-10, -1, 1, 10)))}."
            base = {
                "step": step,
                "row": 1000 + row,
                "group_id": row,
                "prompt": f"{a}+{b}=",
                "reference": json.dumps(str(a + b)),
            }
            add_rollout(store, **base, completion=text, reward=float(right))
    for step in range(1, min(steps, 400) + 1):
        for sample in range(4):
            a, b = step % 90, (7 * step) % 90
            right = rng.random() < 0.3 + 0.4 * step / steps
            cut = rng.random() < 0.05
            text = f"{a + b + (0 if right else 1)}" + ("" if cut else ".")
            base = {
                "split": "train",
                "step": step,
                "row": step % 150,
                "group_id": step,
                "sample": sample,
                "prompt": f"{a}+{b}=",
            }
            end = "length" if cut else "stop"
            add_rollout(
                store,
                **base,
                completion=text,
                end_reason=end,
                reward=float(right),
                reference=json.dumps(str(a + b)),
            )
    store.commit()
    store.close()


class Page(HTMLParser):
    """What a browser would find: each element's tag and attributes, and the text outside style sheets."""

    def __init__(self, html: str) -> None:
        """Parse at once."""
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.chunks: list[str] = []
        self.style = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element."""
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Leave an element."""
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        """Keep text."""
        if self._open and self._open[-1] == "style":
            self.style += data
        else:
            self.chunks.append(data)

    @property
    def text(self) -> str:
        """All text, spaces and line ends as one space."""
        return " ".join("".join(self.chunks).split())

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        """Elements with a tag and attribute values."""
        return [a for t, a in self.elements if t == tag and all(a.get(k) == v for k, v in attributes.items())]

    def marks(self, series: str, key: str) -> dict[float, float | None]:
        """The points drawn for one series of one metric: step → value, None for "not finite"."""
        found: dict[float, float | None] = {}
        inside = False
        for tag, attributes in self.elements:
            if tag == "g" and "data-series" in attributes:
                inside = (attributes["data-series"], attributes["data-key"]) == (series, key)
            elif tag == "svg":
                inside = False
            elif inside and attributes.get("data-x") is not None:
                y = attributes["data-y"]
                found[float(str(attributes["data-x"]))] = float(y) if y else None
        return found


def fabricate(
    folder: Path,
    *,
    steps: int = 60,
    every: int = 20,
    stage: str = "rl",
    seed: int = 0,
    name: str = "addition-rloo",
) -> Path:
    """A run folder with all its files; `every=0` means no evaluation."""
    rng = random.Random(seed)
    run = folder / name
    run.mkdir()
    method = "sft" if stage == "sft" else "rloo"
    head = {
        "name": name,
        "method": method,
        "task": "addition",
        "model": "models/tiny-adder",
    }
    recipe = "".join(f'{key} = "{value}"\n' for key, value in head.items())
    recipe += f"seed = {seed}\n\n[training]\nsteps = {steps}\n"
    (run / "config.toml").write_text(recipe, encoding="utf-8")
    environment = {
        "python": "3.11.7",
        "torch": "2.13.0",
        "rung": "0.1.0",
        "threads": 2,
        "started": "2026-03-04T05:06:07Z",
    }
    (run / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    lines: list[dict[str, Any]] = sft_lines(steps, rng) if stage == "sft" else []
    for step in range(steps + 1) if stage == "rl" else ():
        if step:
            lines.append(train_line(step, steps, rng))
        if every and (step % every == 0 or step == steps):
            lines.append(eval_line(step, steps, "validation", rng))
    if every and stage == "rl":
        lines += [eval_line(step, steps, "test", rng) for step in (0, steps)]
    write_lines(run / "metrics.jsonl", lines)
    timing = []
    for step in range(1, steps + 1):
        parts = {phase: base * (1 + 0.1 * rng.random()) for phase, base in PHASES.items()}
        total = sum(parts.values()) + 0.06
        timing.append({"step": step, **parts, "total": total, "tokens_per_second": 900 / total})
    write_lines(run / "timing.jsonl", timing)
    fill_store(run / "rollouts.sqlite", steps, every, rng)
    return run
