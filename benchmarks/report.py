"""Make docs/benchmarks.md from the raw results: `python -m benchmarks.report`.

Reads every `benchmarks/results/{paper,static}-*.json` that `cleave bench` wrote. Nothing in the page is typed
by hand, so a figure that is not in a raw file cannot appear. A point below its target is marked as a miss; a
reason stands beside it where `benchmarks/results/misses.json` has one ({file: {case: reason}}), and what is
wrong with a file as a whole where `doubtful.json` says so ({file: reason}), and what the profiler counted
where `benchmarks.counters` was asked. Long lists of peers go to a page of their own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report_goals import goals, long_attention, peer_text
from benchmarks.report_misses import counted, misses, roofline
from benchmarks.report_parts import ablations, compile_times, of_ablation, of_calls, of_model, of_tuning
from benchmarks.report_text import (
    Rows,
    folded,
    is_known,
    judged,
    labels,
    mean,
    micro,
    named,
    score,
    share,
    table,
    unmatched,
)
from benchmarks.run import best_peer, by_point, is_peer, ratio_of
from benchmarks.targets import target_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

PEERS_PAGE = "benchmarks-peers.md"

HEAD = """# Benchmarks

Made by `python -m benchmarks.report` from the raw results in `benchmarks/results/`; do not edit. Each row was
checked against float64 on the same inputs before its time was kept; what is wrong or raises is shown as such.
Times are medians in microseconds, all implementations of a point interleaved in one process. The *ratio* is
the time of the best correct peer over ours: above 1 we are faster. *Roofline* is the share of what the
device's measured ceilings allow (arithmetic, or all inputs and outputs once at the bandwidth of a copy):
above 1 where data stays in a cache. A † marks a peer's time of an earlier run, scaled by eager's time now
over then; a ‡ attention on a GPU beside which no peer that fuses it was measured, or is right: it counts for
no mean. *Compile* is the first compile of a case: it serves all its sizes. Every peer, errors and warm
times are in [benchmarks-peers.md](benchmarks-peers.md); how a run is made is in
[benchmarking.md](benchmarking.md).
"""

PEERS_HEAD = """# Benchmarks: every peer

Made by `python -m benchmarks.report`; the summary is in [benchmarks.md](benchmarks.md). Medians in
microseconds. *Error* is the largest relative error of a row against float64, ours and eager's.
"""


def main() -> None:
    reasons, doubts = _notes("misses.json"), _notes("doubtful.json")
    files: list[tuple[str, dict[str, Any], list[Rows]]] = []
    for path in sorted([*RESULTS.glob("paper-*.json"), *RESULTS.glob("static-*.json")]):
        data = json.loads(path.read_text())
        files.append((path.stem, data, list(by_point(data["records"]).values())))
    files.sort(key=lambda file: file[1]["target"] != "cuda")
    parts = [HEAD, *overview(files, doubts), *goals(files), *of_ablation(RESULTS, files)]
    parts += [*of_model(RESULTS), *of_tuning(RESULTS), *of_calls(RESULTS)]
    further = [PEERS_HEAD]
    for name, data, points in files:
        draw(name, points)
        parts.append(section(name, data, points, reasons.get(name, {}), doubts.get(name, "")))
        further += [f"## {name}", "", *details(points), *peers(points)]
    PAGE.write_text("\n".join(parts))
    (PAGE.parent / PEERS_PAGE).write_text("\n".join(further))


def _notes(name: str) -> dict[str, Any]:
    path = RESULTS / name
    return json.loads(path.read_text()) if path.exists() else {}


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
        *misses(points, data["target"], reasons, counted(RESULTS, name)),
        *(long_attention(points) if data["target"] == "cuda" else []),
        *roofline(points),
        *compile_times(points, bool(data.get("cold")), data["target"]),
        *memory(points),
        *ablations(points),
        "",
    ]
    return "\n".join(lines)


def _dated(data: dict[str, Any]) -> str:
    return f", {data['date']}" if data.get("date") else ""


def point_cells(rows: Rows, target: str) -> list[str]:
    ours, best = named(rows, "cleave"), best_peer(rows)
    case, _, dtype, sizes = labels(rows)
    theirs = peer_text(rows, best)
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
        judged(ratio_of(rows), target_of(target, ours["case"], ours["phase"])) + "‡" * unmatched(rows),
        f"{seconds:.2f}" if is_known(seconds) else "",
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
                f"{ours['warm_seconds'] * 1e6:.1f}" if is_known(ours.get("warm_seconds")) else "",
                micro(eager),
                f"{ours['tflops']:.3g}" if ours.get("tflops") else "",
            ]
        )
    columns = (
        "case | phase | dtype | sizes | error / eager's | workspace, bytes | ours | warm | eager | TFLOP/s"
    )
    return table(columns, body)


# ---------------------------------------------------------------- below the table


def means(points: Sequence[Rows]) -> list[str]:
    """Geometric means over the sizes of a case, by dtype and phase."""
    cells: dict[tuple[str, str], dict[str, list[float]]] = {}
    for rows in points:
        ratio = ratio_of(rows)
        if ratio is not None and not unmatched(rows):
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


def memory(points: Sequence[Rows]) -> list[str]:
    """The most memory in use during a call, where it was measured."""
    body: list[list[str]] = []
    for rows in points:
        known = [r for r in rows if is_known(r.get("peak_bytes"))]
        if known:
            each = "; ".join(f"{r['implementation']} {r['peak_bytes'] / 2**20:.1f}" for r in known)
            body.append([*labels(rows), each])
    if not body:
        return []
    return folded("Peak memory of a call, MiB", table("case | phase | dtype | sizes | MiB", body))


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


if __name__ == "__main__":
    main()
