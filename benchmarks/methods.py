"""Five methods on the tiny task, one word changed, over five seeds; their curves on one plot.

    python benchmarks/quickstart.py            # leaves the fine-tuned models that this starts from
    python benchmarks/methods.py

Fixed before the first run: seeds 100 to 104, each from that seed's fine-tuned model, the recipe `addition-rloo` with
`method=` changed and nothing else, 1,018 test problems. Every run is shown.
Writes docs/results/methods.json and docs/results/methods.svg, and prints the table that the docs show.
"""

import argparse
import json
import statistics
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

SEEDS = range(100, 105)
METHODS = ("vpg", "reinforce", "rloo", "grpo", "ppo-loo")
COLORS = ("#9c9c9c", "#d08c2e", "#2f6fde", "#c23b6b", "#2e9e6b")
DOCS = Path(__file__).parents[1] / "docs" / "results"


def run(job: tuple[str, int], models: str, root: str) -> dict:
    """One method from one seed's fine-tuned model."""
    from rung import api

    method, seed = job
    settings = [f"method={method}", f"seed={seed}", "threads=1", f'model="{models}/sft-{seed}"']
    result = api.train("addition-rloo", settings, name=f"{method}-{seed}", root=root)
    before, after = result.evaluations("test")
    return {
        "method": method,
        "seed": seed,
        "before": before["reward_mean"],
        "after": after["reward_mean"],
        "kl": after["kl_policy_reference"],
        "reward_by_step": [line["reward_mean"] for line in result.metrics if line["kind"] == "train"],
    }


def smooth(values: list[float], width: int = 10) -> list[float]:
    """Mean over the last `width` steps."""
    return [statistics.fmean(values[max(0, i + 1 - width) : i + 1]) for i in range(len(values))]


def plot(rows: list[dict]) -> str:
    """Training reward over steps: a thin line a seed, a thick one for the mean over seeds."""
    width, height, left, top, right, bottom = 760, 420, 56, 20, 110, 44
    steps = len(rows[0]["reward_by_step"])

    def x(i: float) -> float:
        return left + (width - left - right) * i / (steps - 1)

    def y(v: float) -> float:
        return top + (height - top - bottom) * (1 - v)

    def line(values: list[float], color: str, stroke: float, opacity: float) -> str:
        points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(values))
        return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{stroke}" opacity="{opacity}"/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for v in (0, 0.2, 0.4, 0.6, 0.8, 1.0):
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y(v)}" y2="{y(v)}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{left - 8}" y="{y(v) + 4}" text-anchor="end" fill="#444">{v:.0%}</text>')
    for s in range(0, steps + 1, 50):
        parts.append(
            f'<text x="{x(max(s - 1, 0))}" y="{height - bottom + 20}" text-anchor="middle" '
            f'fill="#444">{max(s, 1)}</text>'
        )
    parts.append(
        f'<text x="{(left + width - right) / 2}" y="{height - 6}" text-anchor="middle" fill="#444">'
        "training step (mean of the last 10; thin: each seed, thick: mean of five)</text>"
    )
    ends = []
    for method, color in zip(METHODS, COLORS, strict=True):
        curves = [smooth(r["reward_by_step"]) for r in rows if r["method"] == method]
        parts += [line(curve, color, 0.8, 0.35) for curve in curves]
        mean = [statistics.fmean(values) for values in zip(*curves, strict=True)]
        parts.append(line(mean, color, 2.4, 1.0))
        ends.append((mean[-1], method, color))
    spot = -1e9
    for value, method, color in sorted(ends, reverse=True):
        spot = max(y(value) + 4, spot + 16)
        parts.append(
            f'<text x="{width - right + 8}" y="{spot:.1f}" fill="{color}" font-weight="600">{method}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def table(rows: list[dict]) -> str:
    """Markdown: exact match on the test problems after training, for each seed."""
    lines = [
        "| method | " + " | ".join(f"seed {s}" for s in SEEDS) + " | mean | KL, nats |",
        "|---" * (len(SEEDS) + 3) + "|",
    ]
    before = {r["seed"]: r["before"] for r in rows}
    lines.append(
        "| before | "
        + " | ".join(f"{100 * before[s]:.1f} %" for s in SEEDS)
        + f" | {100 * statistics.fmean(before.values()):.1f} % | 0 |"
    )
    for method in METHODS:
        mine = sorted((r for r in rows if r["method"] == method), key=lambda r: r["seed"])
        cells = " | ".join(f"{100 * r['after']:.1f} %" for r in mine)
        mean, kl = statistics.fmean(r["after"] for r in mine), statistics.fmean(r["kl"] for r in mine)
        lines.append(f"| {method} | {cells} | {100 * mean:.1f} % | {kl:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """All methods and seeds, two at a time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", default="runs/benchmark-quickstart", help="where benchmarks/quickstart.py left its runs"
    )
    parser.add_argument("--root", default="runs/benchmark-methods", help="folder of the runs")
    arguments = parser.parse_args()
    jobs = [(method, seed) for seed in SEEDS for method in METHODS]
    rows = []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for row in pool.map(partial(run, models=arguments.models, root=arguments.root), jobs):
            rows.append(row)
            print(f"{row['method']} seed {row['seed']}: {row['before']:.3f} → {row['after']:.3f}", flush=True)
    DOCS.mkdir(parents=True, exist_ok=True)
    (DOCS / "methods.json").write_text(json.dumps(rows) + "\n")
    (DOCS / "methods.svg").write_text(plot(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
