"""The quickstart over ten seeds: how much RL lifts exact match on held-out problems, and how long it takes.

    python benchmarks/quickstart.py            # seeds 100 to 109, two at a time with one thread each

Fixed before the first run: the seeds, the 1,018 test problems (one sample each, temperature 1), the recipes
`addition-sft` and `addition-rloo`, and the bound: at least 25 points in at least nine of ten seeds. Every run is shown.
Writes docs/results/quickstart.json and prints the table that the docs show.
"""

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

SEEDS = range(100, 110)
OUT = Path(__file__).parents[1] / "docs" / "results" / "quickstart.json"


def run(seed: int, root: str) -> dict:
    """Both stages of one seed."""
    from rung import api

    settings = [f"seed={seed}", "threads=1"]
    begin = time.monotonic()
    first = api.train("addition-sft", settings, name=f"sft-{seed}", root=root)
    middle = time.monotonic()
    second = api.train(
        "addition-rloo", [*settings, f"model={json.dumps(str(first.folder))}"], name=f"rloo-{seed}", root=root
    )
    end = time.monotonic()
    before, after = second.evaluations("test")
    validations = first.evaluations("validation")
    keys = ("reward_mean", "reward_low", "reward_high", "n", "length_mean", "stop_fraction")
    return {
        "seed": seed,
        "sft_steps": validations[-1]["step"],
        "sft_validations_below": len(validations) - 1,
        "sft_validation": validations[-1]["reward_mean"],
        "before": {k: before[k] for k in keys},
        "after": {k: after[k] for k in (*keys, "kl_policy_reference")},
        "points": 100 * (after["reward_mean"] - before["reward_mean"]),
        "sft_seconds": middle - begin,
        "rl_seconds": end - middle,
        "folders": [str(first.folder), str(second.folder)],
    }


def table(rows: list[dict]) -> str:
    """Markdown."""
    lines = [
        "| seed | SFT stopped at step (validation) | before RL | after RL | points | KL, nats |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        spans = [
            f"{100 * r[w]['reward_mean']:.1f} % [{100 * r[w]['reward_low']:.1f}, {100 * r[w]['reward_high']:.1f}]"
            for w in ("before", "after")
        ]
        lines.append(
            f"| {r['seed']} | {r['sft_steps']} ({100 * r['sft_validation']:.1f} %) | {spans[0]} | {spans[1]} "
            f"| {r['points']:+.1f} | {r['after']['kl_policy_reference']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """All seeds, two at a time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", default="runs/benchmark-quickstart", help="folder of the runs")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        rows = []
        for row in pool.map(partial(run, root=arguments.root), SEEDS):
            rows.append(row)
            print(
                f"seed {row['seed']}: {row['points']:+.1f} points, "
                f"{row['sft_seconds']:.0f} + {row['rl_seconds']:.0f} s",
                flush=True,
            )
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(
        json.dumps([{k: v for k, v in r.items() if k != "folders"} for r in rows], indent=1) + "\n"
    )
    print(table(rows))
    in_band = sum(0.30 <= r["sft_validation"] <= 0.55 for r in rows)
    lifted = sum(r["points"] >= 25 for r in rows)
    print(
        f"\nSFT stopped within 30 to 55 %: {in_band} of {len(rows)}. "
        f"RL lifted by at least 25 points: {lifted} of {len(rows)}."
    )


if __name__ == "__main__":
    main()
