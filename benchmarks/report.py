"""Make docs/benchmarks.md from the raw results: `python -m benchmarks.report`.

Reads every `benchmarks/results/{paper,static}-*.json` that `cleave bench` wrote. Nothing in the page is typed
by hand, so a figure that is not in a raw file cannot appear. A point below its target is marked as a miss; a
reason stands beside it where `benchmarks/results/misses.json` has one ({file: {case: reason}}), and what is
wrong with a file as a whole where `doubtful.json` says so ({file: reason}), and what the profiler counted
where `benchmarks.counters` was asked. Long lists of peers go to a page of their own.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.counters import Kernel
from benchmarks.run import best_peer, by_point, is_peer, ratio_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

Record = dict[str, Any]
Rows = list[Record]

PEERS_PAGE = "benchmarks-peers.md"

HEAD = """# Benchmarks

Made by `python -m benchmarks.report` from the raw results in `benchmarks/results/`; do not edit. Each row was
checked against float64 on the same inputs before its time was kept; what is wrong or raises is shown as such.
Times are medians in microseconds, all implementations of a point interleaved in one process. The *ratio* is
the time of the best correct peer over ours: above 1 we are faster. *Roofline* is the share of what the
device's measured ceilings allow (arithmetic, or all inputs and outputs once at the bandwidth of a copy):
above 1 where data stays in a cache. A † marks a peer's time of an earlier run, scaled by eager's time now
over then. *Compile* is the first compile of a case: it serves all its sizes. Every peer, errors and warm
times are in [benchmarks-peers.md](benchmarks-peers.md); how a run is made is in
[benchmarking.md](benchmarking.md).
"""

PEERS_HEAD = """# Benchmarks: every peer

Made by `python -m benchmarks.report`; the summary is in [benchmarks.md](benchmarks.md). Medians in
microseconds. *Error* is the largest relative error of a row against float64, ours and eager's.
"""

MEMORY_SHARE = 0.8
"""What a case that memory bounds should reach of the bandwidth."""
WIDE = ("attention", "mha", "gqa", "mqa", "mla", "softcap", "sinks", "qknorm")
LINEAR_LOSS = "linear+cross-entropy"


def main() -> None:
    reasons, doubts = _notes("misses.json"), _notes("doubtful.json")
    files: list[tuple[str, dict[str, Any], list[Rows]]] = []
    for path in sorted([*RESULTS.glob("paper-*.json"), *RESULTS.glob("static-*.json")]):
        data = json.loads(path.read_text())
        files.append((path.stem, data, list(by_point(data["records"]).values())))
    files.sort(key=lambda file: file[1]["target"] != "cuda")
    parts, further = [HEAD, *overview(files, doubts), *_of_ablation()], [PEERS_HEAD]
    for name, data, points in files:
        draw(name, points)
        parts.append(section(name, data, points, reasons.get(name, {}), doubts.get(name, "")))
        further += [f"## {name}", "", *details(points), *peers(points)]
    PAGE.write_text("\n".join(parts))
    (PAGE.parent / PEERS_PAGE).write_text("\n".join(further))


def _notes(name: str) -> dict[str, Any]:
    path = RESULTS / name
    return json.loads(path.read_text()) if path.exists() else {}


def _of_ablation() -> list[str]:
    """The tables of the files that only measure what is left out (`ablation-*.json`)."""
    lines: list[str] = []
    for path in sorted(RESULTS.glob("ablation-*.json")):
        data = json.loads(path.read_text())
        table_of = ablations(list(by_point(data["records"]).values()))
        if table_of:
            what = f"Suite `{data['suite']}` on {data['device']}{_dated(data)}, some points of every op."
            lines += [f"## {path.stem}", "", what, "", *table_of]
    return lines


def overview(files: Sequence[tuple[str, dict[str, Any], list[Rows]]], doubts: dict[str, str]) -> list[str]:
    """The score of each file: the geometric mean over the shapes of a case, then over cases."""
    body: list[list[str]] = []
    for name, data, points in files:
        for dtype in dict.fromkeys(rows[0]["dtype"] for rows in points):
            own = [rows for rows in points if rows[0]["dtype"] == dtype]
            ours = [named(rows, "cleave") for rows in own]
            right = sum(1 for r in ours if r is not None and not r["failure"])
            scores = [
                score([rows for rows in own if rows[0]["phase"] in phases])
                for phases in (("prefill",), ("decode",), ("prefill", "decode"))
            ]
            below = sum(
                1
                for rows in own
                if (ratio := ratio_of(rows)) is not None
                and ratio < target_of(data["target"], rows[0]["case"], rows[0]["phase"])
            )
            mark = " (doubtful)" if name in doubts else ""
            body.append(
                [
                    data["suite"],
                    data["device"],
                    dtype,
                    *(f"{v}{mark}" if v else "" for v in scores),
                    f"{right} of {len(own)}",
                    str(below),
                    f"[{name}](#{name})",
                ]
            )
    columns = "suite | device | dtype | prefill | decode | all | correct points | below target | details"
    means_of = "Ratio to the best correct peer: the geometric mean over the shapes of an op, then over ops."
    return ["## Summary", "", means_of, "", *table(columns, body)]


def score(points: Sequence[Rows]) -> str:
    """The geometric mean of geometric means; empty where there is nothing."""
    cases: dict[str, list[float]] = {}
    for rows in points:
        ratio = ratio_of(rows)
        if ratio is not None:
            cases.setdefault(rows[0]["case"], []).append(ratio)
    return f"{mean([mean(v) for v in cases.values()]):.2f}" if cases else ""


def target_of(target: str, case: str, phase: str) -> float:
    """The ratio that a point should reach at least (issues 4 and 6)."""
    attention = any(word in case for word in WIDE)
    if target == "cuda":
        return 0.90 if case in ("matmul", "matmul-narrow") else 0.95
    if attention:
        return 2.0 if phase == "decode" else 1.1
    return 1.2 if case == LINEAR_LOSS else 1.0


# ---------------------------------------------------------------- one file


def section(
    name: str, data: dict[str, Any], points: Sequence[Rows], reasons: dict[str, str], doubt: str
) -> str:
    """The tables of one file."""
    lines = [
        f"## {name}",
        "",
        f"Suite `{data['suite']}` on {data['device']} ({data['target']}), torch {data['torch']}, Python "
        f"{data['python']}, {data['threads']} threads{_dated(data)}. Timing: {data['timing']}.",
        "",
        *([f"**Doubtful**: {doubt}", ""] if doubt else []),
        f"![ratio of each point](plots/{name}.svg)",
        "",
        *means(points),
    ]
    columns = "case | dtype | sizes | ours | roofline | launches | best peer | ratio | compile, s"
    for phase in ("prefill", "decode"):
        own = [rows for rows in points if rows[0]["phase"] == phase]
        if own:
            lines += [f"### {name}: {phase}", ""]
            lines += table(columns, (point_cells(rows, data["target"]) for rows in own))
    lines += [
        *misses(points, data["target"], reasons, counted(name)),
        *roofline(points),
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
    return [number + first["case"], first["phase"], first["dtype"], sizes_text(first["sizes"])]


def sizes_text(sizes: dict[str, int]) -> str:
    return " ".join(f"{name}{size}" for name, size in sizes.items())


def named(rows: Rows, name: str) -> Record | None:
    return next((r for r in rows if r["implementation"] == name), None)


def point_cells(rows: Rows, target: str) -> list[str]:
    ours, best = named(rows, "cleave"), best_peer(rows)
    case, _, dtype, sizes = labels(rows)
    theirs = f"{best['implementation']} {micro(best)}" if best else "none is correct"
    if ours is None or ours["failure"]:
        why = ours["failure"][:100] if ours else "not measured"
        return [case, dtype, sizes, f"**{why}**", "", "", theirs, "", ""]
    seconds = ours.get("compile_seconds")
    return [
        case,
        dtype,
        sizes,
        micro(ours),
        share(ours),
        str(ours.get("launches", "")),
        theirs,
        judged(ratio_of(rows), target_of(target, ours["case"], ours["phase"])),
        f"{seconds:.2f}" if _known(seconds) else "",
    ]


def details(points: Sequence[Rows]) -> list[str]:
    """What the tables of points leave out."""
    body: list[list[str]] = []
    for rows in points:
        ours, eager = named(rows, "cleave"), named(rows, "eager")
        if ours is None or ours["failure"]:
            continue
        body.append(
            [
                *labels(rows),
                f"{ours['error']:.1e} / {eager['error']:.1e}" if eager else "",
                str(ours.get("workspace_bytes", "")),
                micro(ours),
                f"{ours['warm_seconds'] * 1e6:.1f}" if _known(ours.get("warm_seconds")) else "",
                micro(eager),
                f"{ours['tflops']:.3g}" if ours.get("tflops") else "",
            ]
        )
    columns = (
        "case | phase | dtype | sizes | error / eager's | workspace, bytes | ours | warm | eager | TFLOP/s"
    )
    return table(columns, body)


def judged(ratio: float | None, least: float) -> str:
    """A ratio, marked where it is below what it should be."""
    if ratio is None:
        return ""
    return f"{ratio:.2f}" if ratio >= least else f"**{ratio:.2f} miss**"


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


def _known(value: float | None) -> bool:
    return value is not None and value == value


# ---------------------------------------------------------------- below the table


def means(points: Sequence[Rows]) -> list[str]:
    """Geometric means over the sizes of a case, by dtype and phase."""
    cells: dict[tuple[str, str], dict[str, list[float]]] = {}
    for rows in points:
        ratio = ratio_of(rows)
        if ratio is not None:
            own = cells.setdefault((rows[0]["case"], rows[0]["dtype"]), {})
            own.setdefault(rows[0]["phase"], []).append(ratio)
    body = [
        [case, dtype, *(_spread(phases.get(p, [])) for p in ("prefill", "decode"))]
        for (case, dtype), phases in cells.items()
    ]
    ours = [named(rows, "cleave") for rows in points]
    right = sum(1 for r in ours if r is not None and not r["failure"])
    columns = "op | dtype | prefill: mean (lowest to highest) | decode"
    return [*table(columns, body), f"{right} of {len(points)} points correct.", ""]


def _spread(values: Sequence[float]) -> str:
    return f"**{mean(values):.2f}** ({min(values):.2f} to {max(values):.2f})" if values else ""


def counted(name: str) -> dict[tuple[str, ...], str]:
    """What the profiler told of a file's points (`benchmarks.counters`), by their labels."""
    found: dict[tuple[str, ...], str] = {}
    for path in sorted(RESULTS.glob("counters-*.json")):
        data = json.loads(path.read_text())
        for row in data["points"] if data["of"] == f"{name}.json" else []:
            key = (row["case"], row["phase"], row["dtype"], sizes_text(row["sizes"]))
            found[key] = "; ".join(str(Kernel(**kernel)) for kernel in row["kernels"]) or row["failure"]
    return found


def misses(
    points: Sequence[Rows], target: str, reasons: dict[str, str], profiles: dict[tuple[str, ...], str]
) -> list[str]:
    """Cases with points below their target, and why; what the profiler counted at the lowest of each."""
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
        profile = profiles.get((case, phase, dtype, sizes), "")
        cells = [case, phase, dtype, str(len(values)), f"{least:.2f}", f"{lowest:.2f} ({sizes})", reason]
        body.append([*cells, profile] if profiles else cells)
    if not body:
        return []
    columns = "case | phase | dtype | points | target | lowest | reason"
    return ["Misses:", "", *table(f"{columns} | profile of the lowest" if profiles else columns, body)]


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
    return _folded(
        f"Roofline: share of bandwidth where memory bounds, {reached} of {len(body)} reach {MEMORY_SHARE}",
        table(columns, body),
    )


def _folded(title: str, lines: Sequence[str]) -> list[str]:
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "</details>", ""]


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
    first: dict[tuple[str, str], str] = {}
    for rows in points:
        ours = named(rows, "cleave")
        if ours is not None and ours.get("phases"):
            seen.setdefault((ours["case"], ours["dtype"]), ours["phases"])
            if _known(ours.get("first_call_seconds")):
                first.setdefault((ours["case"], ours["dtype"]), f"{ours['first_call_seconds']:.3f}")
    stages = ("capture", "search", "plan", "emit", "build")
    if not seen:
        return []
    body = [
        [
            case,
            dtype,
            *(f"{phases.get(stage, 0.0):.2f}" for stage in stages),
            f"{sum(phases.get(stage, 0.0) for stage in stages):.2f}",
            f"{phases.get('further', 0.0):.2f}",
            first.get((case, dtype), "not measured"),
        ]
        for (case, dtype), phases in seen.items()
    ]
    middle = [f"{statistics.median(p.get(stage, 0.0) for p in seen.values()):.2f}" for stage in stages]
    total = statistics.median(sum(p.get(stage, 0.0) for stage in stages) for p in seen.values())
    rest = statistics.median(p.get("further", 0.0) for p in seen.values())
    columns = "| capture | search | planning | emit | compile | sum | variants for other sizes"
    state = "caches empty before the run" if cold else "caches may have held something"
    return [
        f"Compile time, seconds, without tuning ({state}); medians of {len(seen)} compiles:",
        "",
        *table(columns[2:], [[*middle, f"{total:.2f}", f"{rest:.2f}"]]),
        *_folded("Compile time of each case", table(f"case | dtype {columns} | first call", body)),
    ]


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
    return _folded("Peak memory of a call, MiB", table("case | phase | dtype | sizes | MiB", body))


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
