"""Make docs/benchmarks.md from the raw results: `python -m benchmarks.report`.

Reads every `benchmarks/results/{paper,static}-*.json` that `cleave bench` wrote. Nothing in the page is typed
by hand, so a figure that is not in a raw file cannot appear. A point below its target is marked as a miss; a
reason stands beside it where `benchmarks/results/misses.json` has one ({file: {case: reason}}).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.run import best_peer, by_point, is_peer, ratio_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

Record = dict[str, Any]
Rows = list[Record]

HEAD = """# Benchmarks

Made by `python -m benchmarks.report` from the raw results in `benchmarks/results/`; do not edit. Each row was
checked against a float64 reference on the same inputs before its time was kept; what is wrong or raises is
shown as such. Times are medians in microseconds; all implementations of a point are timed interleaved in one
process. The *ratio* is the time of the best correct peer over ours: above 1 we are faster. *Error* is the
largest relative error of a row against float64, beside eager's own. *Roofline* is the share of what the
device's measured ceilings allow (arithmetic, or all inputs and outputs once at the bandwidth of a copy):
above 1 where data stays in a cache. A † marks a peer's time of an earlier run, scaled by eager's time now
over then. How a run is made: [benchmarking.md](benchmarking.md).
"""

MEMORY_SHARE = 0.8
"""What a case that memory bounds should reach of the bandwidth."""
WIDE = ("attention", "mha", "gqa", "mqa", "mla", "softcap", "sinks", "qknorm")
LINEAR_LOSS = "linear+cross-entropy"


def main() -> None:
    parts = [HEAD]
    reasons = _reasons()
    for path in sorted([*RESULTS.glob("paper-*.json"), *RESULTS.glob("static-*.json")]):
        data = json.loads(path.read_text())
        points = list(by_point(data["records"]).values())
        draw(path.stem, points)
        parts.append(section(path.stem, data, points, reasons.get(path.stem, {})))
    PAGE.write_text("\n".join(parts))


def _reasons() -> dict[str, dict[str, str]]:
    path = RESULTS / "misses.json"
    return json.loads(path.read_text()) if path.exists() else {}


def target_of(target: str, case: str, phase: str) -> float:
    """The ratio that a point should reach at least (issues 4 and 6)."""
    attention = any(word in case for word in WIDE)
    if target == "cuda":
        return 0.90 if case in ("matmul", "matmul-narrow") else 0.95
    if attention:
        return 2.0 if phase == "decode" else 1.1
    return 1.2 if case == LINEAR_LOSS else 1.0


# ---------------------------------------------------------------- one file


def section(name: str, data: dict[str, Any], points: Sequence[Rows], reasons: dict[str, str]) -> str:
    """The tables of one file."""
    lines = [
        f"## {name}",
        "",
        f"Suite `{data['suite']}` on {data['device']} ({data['target']}), torch {data['torch']}, Python "
        f"{data['python']}, {data['threads']} threads{_dated(data)}. Timing: {data['timing']}.",
        "",
        f"![ratio of each point](plots/{name}.svg)",
        "",
        *table(
            "case | phase | dtype | sizes | launches | workspace | error / eager's | ours | warm | roofline "
            "| eager | best peer | ratio",
            (point_cells(rows, data["target"]) for rows in points),
        ),
        *means(points),
        *misses(points, data["target"], reasons),
        *roofline(points),
        *peers(points),
        *compile_times(points, bool(data.get("cold"))),
        *memory(points),
        *ablations(points),
        "",
    ]
    return "\n".join(lines)


def _dated(data: dict[str, Any]) -> str:
    return f", {data['date']}" if data.get("date") else ""


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
    sizes = " ".join(f"{k}{v}" for k, v in first["sizes"].items())
    return [number + first["case"], first["phase"], first["dtype"], sizes]


def named(rows: Rows, name: str) -> Record | None:
    return next((r for r in rows if r["implementation"] == name), None)


def point_cells(rows: Rows, target: str) -> list[str]:
    ours, eager, best = named(rows, "cleave"), named(rows, "eager"), best_peer(rows)
    if ours is None or ours["failure"]:
        why = ours["failure"][:100] if ours else "not measured"
        return [*labels(rows), "", "", f"**{why}**", "", "", "", micro(eager), micro(best), ""]
    ratio = ratio_of(rows)
    return [
        *labels(rows),
        str(ours.get("launches", "")),
        str(ours.get("workspace_bytes", "")),
        f"{ours['error']:.1e} / {eager['error']:.1e}" if eager else "",
        micro(ours),
        f"{ours['warm_seconds'] * 1e6:.1f}" if _known(ours.get("warm_seconds")) else "",
        share(ours),
        micro(eager),
        f"{best['implementation']} {micro(best)}" if best else "none is correct",
        judged(ratio, target_of(target, ours["case"], ours["phase"])),
    ]


def judged(ratio: float | None, least: float) -> str:
    """A ratio, marked where it is below what it should be."""
    if ratio is None:
        return ""
    return f"{ratio:.2f}" if ratio >= least else f"**{ratio:.2f} miss**"


def share(record: Record) -> str:
    return f"{record['fraction']:.2f}" if record.get("fraction") else ""


def micro(record: Record | None) -> str:
    if record is None:
        return ""
    if record["failure"]:
        return "failed"
    few = f" ({record['runs']} runs)" if record.get("runs", 50) < 50 else ""
    return f"{record['seconds'] * 1e6:.1f}{'†' if 'reused' in record else ''}{few}"


def _known(value: float | None) -> bool:
    return value is not None and value == value


# ---------------------------------------------------------------- below the table


def means(points: Sequence[Rows]) -> list[str]:
    """Geometric means over the sizes of a case, then over cases, by dtype and phase."""
    ratios: dict[tuple[str, str], dict[str, list[float]]] = {}
    for rows in points:
        ratio, first = ratio_of(rows), rows[0]
        if ratio is not None:
            own = ratios.setdefault((first["dtype"], first["phase"]), {})
            own.setdefault(first["case"], []).append(ratio)
    lines = ["Geometric means over the sizes of a case, then over cases:", ""]
    whole: dict[str, dict[str, list[float]]] = {}
    for (dtype, phase), cases in sorted(ratios.items()):
        each = ", ".join(f"{case} {mean(values):.2f}" for case, values in cases.items())
        lines.append(f"- {dtype} {phase}: **{mean([mean(v) for v in cases.values()]):.2f}** ({each})")
        for case, values in cases.items():
            whole.setdefault(dtype, {}).setdefault(case, []).extend(values)
    lines += [f"- {dtype}, all: **{mean([mean(v) for v in c.values()]):.2f}**" for dtype, c in whole.items()]
    ours = [named(rows, "cleave") for rows in points]
    right = sum(1 for r in ours if r is not None and not r["failure"])
    return [*lines, "", f"{right} of {len(points)} points correct.", ""]


def misses(points: Sequence[Rows], target: str, reasons: dict[str, str]) -> list[str]:
    """Cases with points below their target, and why."""
    found: dict[tuple[str, str, str], list[tuple[float, str]]] = {}
    for rows in points:
        ratio, first = ratio_of(rows), rows[0]
        least = target_of(target, first["case"], first["phase"])
        if ratio is not None and ratio < least:
            key = (first["case"], first["phase"], first["dtype"])
            found.setdefault(key, []).append((ratio, labels(rows)[3]))
    body: list[list[str]] = []
    for (case, phase, dtype), values in found.items():
        lowest, sizes = min(values)
        least = target_of(target, case, phase)
        reason = reasons.get(case, "not looked into")
        body.append([case, phase, dtype, str(len(values)), f"{least:.2f}", f"{lowest:.2f} ({sizes})", reason])
    if not body:
        return []
    return ["Misses:", "", *table("case | phase | dtype | points | target | lowest | reason", body)]


def roofline(points: Sequence[Rows]) -> list[str]:
    """How near to the ceilings: ours and the best peer's."""
    body: list[list[str]] = []
    for rows in points:
        ours, best = named(rows, "cleave"), best_peer(rows)
        if ours is None or not ours.get("fraction"):
            continue
        low = ours.get("limit") == "memory" and ours["fraction"] < MEMORY_SHARE
        own = f"**{ours['fraction']:.2f} miss**" if low else f"{ours['fraction']:.2f}"
        theirs = share(best) if best else ""
        floor = f"{ours['floor_seconds'] * 1e6:.2f}"
        tflops = f"{ours['tflops']:.3g}" if ours.get("tflops") else ""
        body.append([*labels(rows), ours.get("limit", ""), floor, own, theirs, tflops])
    if not body:
        return []
    columns = "case | phase | dtype | sizes | bound by | floor | ours | best peer | TFLOP/s"
    return [f"Roofline (what memory bounds should reach {MEMORY_SHARE}):", "", *table(columns, body)]


def peers(points: Sequence[Rows]) -> list[str]:
    """Each peer at its defaults and tuned, and what fails."""
    names = list(dict.fromkeys(r["implementation"] for rows in points for r in rows if is_peer(r)))
    if len(names) < 4:
        return []
    body: list[list[str]] = []
    for rows in points:
        cells = [*labels(rows)]
        for name in names:
            record = named(rows, name)
            note = f" ({record['setting']})" if record and record.get("setting") else ""
            cells.append(micro(record) + note)
        body.append(cells)
    failures: dict[tuple[str, str, str], int] = {}
    for rows in points:
        for r in rows:
            if is_peer(r) and r["failure"]:
                key = (r["implementation"], r["case"], r["failure"][:140].replace("|", "/"))
                failures[key] = failures.get(key, 0) + 1
    listed = [[*key, str(count)] for key, count in failures.items()]
    why = table("peer | case | failure | points", listed)
    return [
        "Peers:", "", *table(" | ".join(["case", "phase", "dtype", "sizes", *names]), body),
        *(["What failed:", "", *why] if why else []),
    ]  # fmt: skip


def compile_times(points: Sequence[Rows], cold: bool) -> list[str]:
    """Seconds of each stage, once a case and dtype."""
    seen: dict[tuple[str, str], dict[str, float]] = {}
    for rows in points:
        ours = named(rows, "cleave")
        if ours is not None and ours.get("phases"):
            seen.setdefault((ours["case"], ours["dtype"]), ours["phases"])
    stages = ("capture", "search", "plan", "emit", "build", "further")
    body = [
        [
            case, dtype,
            *(f"{phases.get(stage, 0.0):.2f}" for stage in stages),
            f"{sum(v for k, v in phases.items() if k != 'further'):.2f}",
        ]
        for (case, dtype), phases in seen.items()
    ]  # fmt: skip
    if not body:
        return []
    columns = (
        "case | dtype | capture | search | plan | emit | build | variants for other sizes | first compile"
    )
    state = "caches empty before the run" if cold else "caches may have held something"
    return [f"Compile time, seconds, without tuning ({state}):", "", *table(columns, body)]


def memory(points: Sequence[Rows]) -> list[str]:
    """The most memory in use during a call, where it was measured."""
    body: list[list[str]] = []
    for rows in points:
        known = [r for r in rows if _known(r.get("peak_bytes"))]
        if known:
            each = "; ".join(f"{r['implementation']} {r['peak_bytes'] / 2**20:.1f}" for r in known)
            body.append([*labels(rows), each])
    if not body:
        return []
    return ["Peak memory of a call, MiB:", "", *table("case | phase | dtype | sizes | MiB", body)]


def ablations(points: Sequence[Rows]) -> list[str]:
    """What is lost without a part: the geometric mean of its time over ours, of all points that have both."""
    losses: dict[str, list[float]] = {}
    gone: dict[str, int] = {}
    for rows in points:
        ours = named(rows, "cleave")
        if ours is None or ours["failure"]:
            continue
        for r in rows:
            what = r["implementation"].removeprefix("cleave ")
            if is_peer(r) or what == "cleave":
                continue
            if r["failure"]:
                gone[what] = gone.get(what, 0) + 1
            else:
                losses.setdefault(what, []).append(r["seconds"] / ours["seconds"])
    body = [
        [what, str(len(values)), f"{mean(values):.2f}", f"{max(values):.2f}", str(gone.get(what, 0))]
        for what, values in losses.items()
    ]
    if not body:
        return []
    columns = "left out (reassociation: let in) | points | time over ours, mean | highest | no schedule"
    return ["Ablations:", "", *table(columns, body)]


def draw(name: str, points: Sequence[Rows]) -> None:
    """A bar for each point: the time of the best correct peer over ours, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = name  # the same input gives the same bytes
    from matplotlib import pyplot

    shown = [(labels(rows), ratio) for rows in points if (ratio := ratio_of(rows)) is not None]
    figure, axes = pyplot.subplots(figsize=(9, max(3.0, 0.17 * len(shown))))
    axes.barh(range(len(shown)), [ratio for _, ratio in shown], color="#4878a8")
    axes.set_yticks(range(len(shown)), [" ".join(label) for label, _ in shown], fontsize=6)
    axes.set_xscale("log")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("time of the best correct peer over ours")
    figure.tight_layout()
    (PAGE.parent / "plots").mkdir(exist_ok=True)
    figure.savefig(PAGE.parent / "plots" / f"{name}.svg", metadata={"Date": None})
    pyplot.close(figure)


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


if __name__ == "__main__":
    main()
