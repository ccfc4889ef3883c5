"""Counters of the points that miss their target, read by NVIDIA's profiler (`ncu`, of Nsight Compute):

    python -m benchmarks.counters benchmarks/results/paper-h200-bf16.json OUT.json

One call of ours at each point where we are slower than `--least` of the best peer is profiled in a process of
its own; the figures of its kernels are kept, and `benchmarks.report` puts them beside the miss. The profiler
repeats each kernel and leaves the clocks alone, with caches flushed before each repetition.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.run import by_point, ratio_of

SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis", "Occupancy", "LaunchStats", "WarpStateStats")
STALL = re.compile(r"smsp__average_warps?_issue_stalled_(\w+?)(_not_issued)?(_per_issue_active|\.)")
SHARES = {
    "memory": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "issue": "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
"""Percent of the device's peak: memory, instructions issued, warps resident."""
PIPES = re.compile(
    r"sm__(?:inst_executed_)?pipe_(\w+?)(?:_cycles_active)?\.avg\.pct_of_peak_sustained_active"
)
TIME = "gpu__time_duration.sum"
MICROSECONDS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
FEW = 3
"""How many stalls and pipes of a kernel are kept."""
Row = dict[str, Any]


@dataclass
class Kernel:
    """What the profiler told of one kernel: microseconds, percent of peaks, and per issued instruction the
    warps that waited, by reason, the most first."""

    name: str
    microseconds: float
    blocks: int
    registers: int
    shares: dict[str, float] = field(default_factory=dict[str, float])
    pipes: dict[str, float] = field(default_factory=dict[str, float])
    stalls: dict[str, float] = field(default_factory=dict[str, float])

    def __str__(self) -> str:
        told = [f"{name} {value:.0f}%" for name, value in {**self.shares, **self.pipes}.items()]
        waits = [f"{name.replace('_', ' ')} {value:.1f}" for name, value in self.stalls.items()]
        return f"{self.name} {self.microseconds:.1f} us: {', '.join(told)}; waits for {', '.join(waits)}"


def kernels_of(text: str) -> list[Kernel]:
    """The kernels of a raw page in CSV: names of metrics, their units, then a line for each kernel."""
    start = text.find('"ID"')
    rows = list(csv.reader(io.StringIO(text[start:]))) if start >= 0 else []
    if len(rows) < 2:
        return []
    scale = MICROSECONDS.get(dict(zip(rows[0], rows[1], strict=False)).get(TIME, ""), 1e-3)
    return [
        _kernel(dict(zip(rows[0], row, strict=True)), scale) for row in rows[2:] if len(row) == len(rows[0])
    ]


def _kernel(told: dict[str, str], scale: float) -> Kernel:
    numbers = {name: value for name, text in told.items() if (value := _number(text)) is not None}
    stalls: dict[str, float] = {}
    for name, value in numbers.items():
        found = STALL.match(name)
        if found and found[1] != "selected" and name.endswith(".ratio") and not found[2]:
            stalls[found[1]] = value
    pipes = {m[1]: value for name, value in numbers.items() if (m := PIPES.match(name))}
    return Kernel(
        told.get("Kernel Name", ""),
        numbers.get(TIME, 0.0) * scale,
        int(numbers.get("launch__grid_size", 0)),
        int(numbers.get("launch__registers_per_thread", 0)),
        {short: numbers[name] for short, name in SHARES.items() if name in numbers},
        _most(pipes),
        _most(stalls),
    )


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _most(values: dict[str, float]) -> dict[str, float]:
    return dict(sorted(values.items(), key=lambda item: -item[1])[:FEW])


def missed(file: Path, least: float) -> list[Row]:
    """Our own records of the points whose ratio is below `least`, the lowest first."""
    points = by_point(json.loads(file.read_text())["records"]).values()
    found = [(ratio, rows) for rows in points if (ratio := ratio_of(rows)) is not None and ratio < least]
    return [
        next(r for r in rows if r["implementation"] == "cleave")
        for _, rows in sorted(found, key=lambda f: f[0])
    ]


def profiled(point: Row, ncu: str, seconds: float) -> Row:
    """A point with the kernels of one call, or why it has none."""
    with tempfile.TemporaryDirectory() as folder:
        asked, report = Path(folder) / "asked.json", Path(folder) / "report"
        asked.write_text(json.dumps(point))
        how = ["--clock-control", "none", "--profile-from-start", "off", "-o", str(report)]
        sections = [part for name in SECTIONS for part in ("--section", name)]
        own = [sys.executable, "-m", "benchmarks.counters", "--child", str(asked), str(asked)]
        try:
            run = subprocess.run(
                [ncu, *how, *sections, *own], capture_output=True, text=True, timeout=seconds, check=False
            )
            page = [ncu, "--import", f"{report}.ncu-rep", "--page", "raw", "--csv"]
            text = subprocess.run(page, capture_output=True, text=True, check=False).stdout
        except subprocess.TimeoutExpired:
            return _told(point, [], f"no answer in {seconds:g} seconds")
    kernels = [] if run.returncode else kernels_of(text)
    return _told(point, kernels, "" if kernels else (run.stdout + run.stderr).strip()[-300:])


def _told(point: Row, kernels: Sequence[Kernel], failure: str) -> Row:
    kept = {key: point[key] for key in ("case", "phase", "sizes", "dtype")}
    return {**kept, "failure": failure, "kernels": [asdict(kernel) for kernel in kernels]}


def child(asked: Path) -> None:
    """Run a point once under the profiler."""
    import torch

    from benchmarks.runner import Options, Runner
    from benchmarks.suites import SUITES

    cases = {case.name: case for suite in SUITES.values() for case in suite}
    point = json.loads(asked.read_text())
    call, inputs = Runner(cases[point["case"]], point["dtype"], Options("cuda", peers="none")).ours(
        point["sizes"]
    )
    call(*inputs)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call(*inputs)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="raw results of a suite")
    parser.add_argument("out", type=Path)
    parser.add_argument("--least", type=float, default=0.95, help="the ratio below which a point is profiled")
    parser.add_argument("--most", type=int, default=40, help="points")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.file)
        return
    ncu = shutil.which("ncu")
    if ncu is None:
        raise SystemExit("ncu is not installed: it comes with NVIDIA Nsight Compute")
    rows: list[Row] = []
    for point in missed(given.file, given.least)[: given.most]:
        row = profiled(point, ncu, given.seconds)
        rows.append(row)
        given.out.write_text(json.dumps({"of": given.file.name, "points": rows}, indent=1) + "\n")
        sizes = " ".join(f"{name}{size}" for name, size in row["sizes"].items())
        told = [str(Kernel(**kernel)) for kernel in row["kernels"]] or [row["failure"]]
        print(f"{row['case']} {row['phase']} {sizes}:", *told, sep="\n  ")


if __name__ == "__main__":
    main()
