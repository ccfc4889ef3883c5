"""What a page says of points below their target: why, and what the profiler counted there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.counters import Kernel
from benchmarks.report_text import Rows, folded, labels, named, share, sizes_text, table
from benchmarks.run import best_peer, ratio_of
from benchmarks.targets import MEMORY_SHARE, target_of

Label = tuple[str, ...]


def counted(folder: Path, name: str) -> dict[Label, str]:
    """What the profiler told of a file's points (`benchmarks.counters`), by case, phase, dtype and sizes."""
    found: dict[Label, str] = {}
    for path in sorted(folder.glob("counters-*.json")):
        data = json.loads(path.read_text())
        for row in data["points"] if data["of"] == f"{name}.json" else []:
            key = (row["case"], row["phase"], row["dtype"], sizes_text(row["sizes"]))
            found[key] = "; ".join(str(Kernel(**kernel)) for kernel in row["kernels"]) or row["failure"]
    return found


def missed(points: Sequence[Rows], target: str) -> dict[tuple[str, str, str], list[tuple[float, str]]]:
    """Ratios and sizes of the points below their target, the lowest first, by case, phase and dtype."""
    found: dict[tuple[str, str, str], list[tuple[float, str]]] = {}
    for rows in points:
        ratio, first = ratio_of(rows), rows[0]
        if ratio is not None and ratio < target_of(target, first["case"], first["phase"]):
            key = (first["case"], first["phase"], first["dtype"])
            found.setdefault(key, []).append((ratio, labels(rows)[3]))
    return {key: sorted(values) for key, values in found.items()}


def misses(
    points: Sequence[Rows], target: str, reasons: Mapping[str, str], profiles: Mapping[Label, str]
) -> list[str]:
    """Cases with points below their target, and why; what the profiler counted at the lowest of each, and
    below that at all of them."""
    found = missed(points, target)
    body: list[list[str]] = []
    every: list[list[str]] = []
    for (case, phase, dtype), values in found.items():
        lowest, sizes = values[0]
        least = target_of(target, case, phase)
        reason = reasons.get(case, "not looked into")
        cells = [case, phase, dtype, str(len(values)), f"{least:.2f}", f"{lowest:.2f} ({sizes})", reason]
        body.append([*cells, profiles.get((case, phase, dtype, sizes), "")] if profiles else cells)
        for ratio, where in values:
            profile = profiles.get((case, phase, dtype, where), "not profiled")
            every.append([case, phase, dtype, where, f"{ratio:.2f}", profile])
    if not body:
        return []
    columns = "case | phase | dtype | points | target | lowest | reason, next idea"
    lines = ["Misses:", "", *table(f"{columns} | profile of the lowest" if profiles else columns, body)]
    if profiles:
        told = sum(cells[5] != "not profiled" for cells in every)
        title = f"Profile of each missed point, {told} of {len(every)}"
        lines += folded(title, table("case | phase | dtype | sizes | ratio | profile", every))
    return lines


def roofline(points: Sequence[Rows]) -> list[str]:
    """What the points that memory bounds reach of the bandwidth: ours and the best peer's."""
    body: list[list[str]] = []
    for rows in points:
        ours, best = named(rows, "cleave"), best_peer(rows)
        if ours is None or not ours.get("fraction") or ours.get("limit") != "memory":
            continue
        own = share(ours) if ours["fraction"] >= MEMORY_SHARE else f"**{share(ours)} miss**"
        theirs = share(best) if best else ""
        body.append([*labels(rows), f"{ours['floor_seconds'] * 1e6:.2f}", own, theirs])
    if not body:
        return []
    reached = sum("miss" not in cells[5] for cells in body)
    columns = "case | phase | dtype | sizes | floor, µs | ours | best peer"
    return folded(
        f"Roofline: share of bandwidth where memory bounds, {reached} of {len(body)} reach {MEMORY_SHARE}",
        table(columns, body),
    )
