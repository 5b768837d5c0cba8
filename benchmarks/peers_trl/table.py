"""The tables of docs/peers.md, from the recorded results."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers_trl.expected import Row

HIDDEN = {"num_iterations", "use_vllm"}  # said once, above the table
HEAD = (
    "| configuration | it estimates | scale | relative bias | cosine | trace | trace / scale² | off by |\n"
    "|---|---|---|---|---|---|---|---|"
)


def refresh(page: Path, record: dict[str, Any], rows: Sequence[Row]) -> None:
    """Rewrite what stands between the page's markers."""
    text = page.read_text(encoding="utf-8")
    for name, content in sections(record, rows).items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        text = re.sub(f"(?s){begin}.*{end}", lambda _, c=content, b=begin, e=end: f"{b}\n{c}\n{e}", text)
    page.write_text(text, encoding="utf-8")


def sections(record: dict[str, Any], rows: Sequence[Row]) -> dict[str, str]:
    """Markdown by marker: the summary, and one table for each situation."""
    cases = record["cases"]
    tables = {
        situation: "\n".join([HEAD, *(line(row, cases) for row in rows if row.situation == situation)])
        for situation in ("on-policy", "stale", "mismatch")
    }
    return {"summary": summary(record), **tables}


def summary(record: dict[str, Any]) -> str:
    cases = record["cases"].values()
    whole = max(off_by(case, "measured") for case in cases)
    adapter = [off_by(case, "through log-probs") for case in cases if "through log-probs" in case]
    return (
        f"Peer {record['peer']}; `{record['command']}`; {record['machine']}; {record['precision']}; "
        f"{record['seconds']} s for {len(cases)} cases.\n"
        f"Largest difference of a component of the mean from its derivation: {whole:.1e} through the whole trainer, "
        f"{max(adapter):.1e} through log-probs ({len(adapter)} cases)."
    )


def off_by(case: dict[str, Any], way: str) -> float:
    return float(np.abs(np.array(case[way]["mean"]) - np.array(case["derived"]["mean"])).max())


def line(row: Row, cases: dict[str, Any]) -> str:
    """One row, G = 2 / G = 3."""
    found = [cases[f"{row.situation} | {row.name} | G={size}"] for size in row.sizes]
    columns = zip(*(measures(row, case["measured"]) for case in found), strict=True)
    cells = [" / ".join(values) for values in columns]
    off = max(off_by(case, "measured") for case in found)
    shown = [f"`{name}={value}`" for name, value in row.config.items() if name not in HIDDEN]
    several = f", {row.prompts} prompts" if row.prompts > 1 else ""
    name = " ".join([row.trainer.removesuffix("Trainer"), *shown]) + several
    return f"| {name} | {row.estimates} | {' | '.join(cells)} | {off:.0e} |"


def measures(row: Row, case: dict[str, Any]) -> tuple[str, ...]:
    """Scale, relative bias, cosine, trace, trace over scale²."""
    mean, target = np.array(case["mean"]), row.target
    scale = float(mean @ target / (target @ target))
    bias = float(np.linalg.norm(mean - target) / np.linalg.norm(target))
    cosine = float(mean @ target / (np.linalg.norm(mean) * np.linalg.norm(target)))
    return (
        f"{scale:.4f}",
        f"{bias:.4f}" if bias > 5e-5 else "0",
        f"{cosine:.5f}" if cosine < 1 - 1e-9 else "1",
        f"{case['trace']:.4f}",
        f"{case['trace'] / scale**2:.3f}",
    )
