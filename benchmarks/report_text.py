"""What the pages of results are written with: tables in Markdown, and what their cells say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.run import ratio_of

Record = dict[str, Any]
Rows = list[Record]


def table(columns: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown, without rows none."""
    body = [f"| {' | '.join(cells)} |" for cells in rows]
    if not body:
        return []
    count = columns.count("|") + 1
    return [f"| {columns} |", "|" + "---|" * count, *body, ""]


def labels(rows: Rows) -> list[str]:
    """Case, phase, dtype and sizes of a point."""
    first = rows[0]
    number = f"{first['row']} " if first.get("row") else ""
    return [number + first["case"], first["phase"], first["dtype"], sizes_text(first["sizes"])]


def sizes_text(sizes: dict[str, int]) -> str:
    return " ".join(f"{name}{size}" for name, size in sizes.items())


def named(rows: Rows, name: str) -> Record | None:
    return next((r for r in rows if r["implementation"] == name), None)


def judged(ratio: float | None, least: float) -> str:
    """A ratio, marked where it is below what it should be."""
    if ratio is None:
        return ""
    return f"{ratio:.2f}" if ratio >= least else f"**{ratio:.2f} miss**"


FUSED = ("sdpa-", "fa3", "flex", "flashinfer")
"""How the names of peers begin that compute attention in a kernel of their own."""


def unmatched(rows: Rows) -> bool:
    """Whether a point of attention on a GPU has no right peer that fuses it: what is faster than `eager` or
    `torch.compile` is not known then, and the point counts for no mean. FlexAttention takes most of these,
    but compiles for seconds."""
    fused = [r for r in rows if r["implementation"].startswith(FUSED)]
    on_gpu = any(r["implementation"].startswith("fa3") for r in fused)
    return on_gpu and not any(not r["failure"] and is_known(r["seconds"]) for r in fused)


def share(record: Record) -> str:
    value = record.get("fraction")
    return (f"{value:.2f}" if value >= 0.01 else f"{value:.4f}") if value else ""


def micro(record: Record | None) -> str:
    if record is None:
        return ""
    if record["failure"]:
        return "failed"
    few = f" ({record['runs']} runs)" if record.get("runs", 50) < 50 else ""
    return f"{record['seconds'] * 1e6:.1f}{'†' if 'reused' in record else ''}{few}"


def is_known(value: float | None) -> bool:
    return value is not None and value == value


def folded(title: str, lines: Sequence[str]) -> list[str]:
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "</details>", ""]


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def score(points: Sequence[Rows]) -> str:
    """The score of points as a text; empty where there is nothing."""
    value = score_of(points)
    return "" if value is None else f"{value:.2f}"


def score_of(points: Sequence[Rows]) -> float | None:
    """The geometric mean over the points of an op, then over ops, those without a fused peer left out; None
    where there is nothing."""
    cases: dict[str, list[float]] = {}
    for rows in points:
        ratio = ratio_of(rows)
        if ratio is not None and not unmatched(rows):
            cases.setdefault(rows[0]["case"], []).append(ratio)
    return mean([mean(v) for v in cases.values()]) if cases else None
