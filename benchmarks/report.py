"""Make docs/benchmarks.md from the raw results: `python -m benchmarks.report`.

Reads every `benchmarks/results/*.json` that `cleave bench` wrote. Nothing in the page is typed by hand, so a
figure that is not in a raw file cannot appear.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

Record = dict[str, Any]

HEAD = """# Benchmarks

Made by `python -m benchmarks.report` from the raw results in `benchmarks/results/`; do not edit. Each row was
checked against a float64 reference on the same inputs before its time was kept; what is wrong or raises is
shown as such. Times are medians; all implementations of a point are timed interleaved in one process.
The *ratio* is the time of the best correct peer over ours: above 1 we are faster. *Error* is the largest
relative error of a row against float64, beside eager's own.
"""


def main() -> None:
    parts = [HEAD]
    for path in sorted([*RESULTS.glob("paper-*.json"), *RESULTS.glob("static-*.json")]):
        data = json.loads(path.read_text())
        draw(path.stem, data["records"])
        parts.append(section(path.stem, data))
    PAGE.write_text("\n".join(parts))


def section(name: str, data: dict[str, Any]) -> str:
    """The table of one file, with the geometric means below."""
    records: list[Record] = data["records"]
    lines = [
        f"## {name}",
        "",
        f"Suite `{data['suite']}` on {data['device']} ({data['target']}), torch {data['torch']}, Python "
        f"{data['python']}, {data['threads']} threads. Timing: {data['timing']}.",
        "",
        f"![ratio of each point](plots/{name}.svg)",
        "",
        "| case | phase | dtype | sizes | launches | workspace bytes | error / eager's | ours us "
        "| eager us | torch.compile us | best peer | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    ratios: dict[tuple[str, str, str], list[float]] = {}
    for rows in points(records):
        text, ratio = row(rows)
        lines.append(text)
        if ratio is not None:
            first = rows[0]
            ratios.setdefault((first["dtype"], first["phase"], first["case"]), []).append(ratio)
    lines += ["", "Geometric means over the sizes of a case, then over cases:", ""]
    for dtype, phase in sorted({(d, p) for d, p, _ in ratios}):
        means = {case: mean(values) for (d, p, case), values in ratios.items() if (d, p) == (dtype, phase)}
        each = ", ".join(f"{case} {value:.2f}" for case, value in means.items())
        lines.append(f"- {dtype} {phase}: **{mean(list(means.values())):.2f}** ({each})")
    wrong = [r for r in records if r["implementation"] == "cleave" and r["failure"]]
    ours = [r for r in records if r["implementation"] == "cleave"]
    lines += ["", f"{len(ours) - len(wrong)} of {len(ours)} points correct.", ""]
    return "\n".join(lines)


def draw(name: str, records: Sequence[Record]) -> None:
    """A bar for each point: the time of the best correct peer over ours, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = name  # the same input gives the same bytes
    from matplotlib import pyplot

    bars = [(rows, row(rows)[1]) for rows in points(records)]
    shown = [(rows[0], ratio) for rows, ratio in bars if ratio is not None]
    figure, axes = pyplot.subplots(figsize=(9, max(3.0, 0.17 * len(shown))))
    labels = [
        f"{r['case']} {r['phase']} {r['dtype']} " + " ".join(f"{k}{v}" for k, v in r["sizes"].items())
        for r, _ in shown
    ]
    axes.barh(range(len(shown)), [ratio for _, ratio in shown], color="#4878a8")
    axes.set_yticks(range(len(shown)), labels, fontsize=6)
    axes.set_xscale("log")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("time of the best correct peer over ours")
    figure.tight_layout()
    (PAGE.parent / "plots").mkdir(exist_ok=True)
    figure.savefig(PAGE.parent / "plots" / f"{name}.svg", metadata={"Date": None})
    pyplot.close(figure)


def points(records: Sequence[Record]) -> list[list[Record]]:
    """The records of each point, in order."""
    found: dict[tuple[str, ...], list[Record]] = {}
    for r in records:
        found.setdefault((r["case"], r["phase"], r["dtype"], str(r["sizes"])), []).append(r)
    return list(found.values())


def row(rows: Sequence[Record]) -> tuple[str, float | None]:
    """One line of the table, and our ratio to the best correct peer."""
    by_name = {r["implementation"]: r for r in rows}
    ours, eager = by_name["cleave"], by_name["eager"]
    sizes = " ".join(f"{k}{v}" for k, v in ours["sizes"].items())
    start = f"| {ours['case']} | {ours['phase']} | {ours['dtype']} | {sizes} |"
    peers = [r for r in rows if r["implementation"] != "cleave" and not r["failure"]]
    best = min(peers, key=lambda r: r["seconds"], default=None)
    if ours["failure"]:
        return f"{start} | | | {ours['failure'][:80]} | | | | |", None
    ratio = best["seconds"] / ours["seconds"] if best else None
    cells = [
        str(ours.get("launches", "")),
        str(ours.get("workspace_bytes", "")),
        f"{ours['error']:.1e} / {eager['error']:.1e}",
        micro(ours),
        micro(eager),
        micro(by_name["torch.compile"]),
        f"{best['implementation']} {micro(best)}" if best else "none is correct",
        f"{ratio:.2f}" if ratio else "",
    ]
    return f"{start} {' | '.join(cells)} |", ratio


def micro(record: Record) -> str:
    return "failed" if record["failure"] else f"{record['seconds'] * 1e6:.1f}"


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


if __name__ == "__main__":
    main()
