"""Counters of the points that miss their target, read by NVIDIA's profiler (`ncu`, of Nsight Compute):

    python -m benchmarks.counters benchmarks/results/paper-h200-bf16.json OUT.json

One call of ours at each point below its target is profiled in a process of its own; the figures of its
kernels are kept, and `benchmarks.report` puts them beside the miss. The profiler repeats each kernel and
leaves the clocks alone, with caches flushed before each repetition.
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


def profiled(points: Sequence[Row], ncu: str, seconds: float, kept: Path | None = None) -> list[Row]:
    """The points with the kernels of one call each; a point that failed has its error instead. The profiler's
    page is `kept` as it is."""
    with tempfile.TemporaryDirectory() as folder:
        asked, told, report = (Path(folder) / name for name in ("asked.json", "told.json", "report"))
        asked.write_text(json.dumps(list(points)))
        own = [sys.executable, "-m", "benchmarks.counters", "--child", str(asked), str(told)]
        sections = [part for name in SECTIONS for part in ("--section", name)]
        command = [
            ncu,
            "--clock-control",
            "none",
            "--profile-from-start",
            "off",
            *sections,
            "-o",
            str(report),
            *own,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        if done.returncode:
            raise SystemExit(f"{ncu} failed:\n{(done.stdout + done.stderr)[-2000:]}")
        page = [ncu, "--import", f"{report}.ncu-rep", "--page", "raw", "--csv"]
        text = subprocess.run(page, capture_output=True, text=True, check=True).stdout
        if kept is not None:
            kept.write_text(text)
        kernels = iter(kernels_of(text))
        return [
            _with(row, [asdict(next(kernels)) for _ in range(row["launches"])])
            for row in json.loads(told.read_text())
        ]


def _with(row: Row, kernels: list[Row]) -> Row:
    kept = ("case", "phase", "sizes", "dtype", "failure")
    return {**{key: row[key] for key in kept}, "kernels": kernels}


def child(asked: Path, told: Path) -> None:
    """Run each point once under the profiler; tell how many kernels each launched."""
    import torch

    from benchmarks.harness import shown
    from benchmarks.runner import Options, Runner, footprint
    from benchmarks.suites import SUITES
    from cleave import Jit

    cases = {case.name: case for suite in SUITES.values() for case in suite}
    rows: list[Row] = []
    for point in json.loads(asked.read_text()):
        row = {**point, "launches": 0, "failure": ""}
        try:
            runner = Runner(cases[point["case"]], point["dtype"], Options("cuda", peers="none"))
            call, inputs = runner.ours(point["sizes"])
            call(*inputs)
            assert isinstance(call, Jit)
            row["launches"] = footprint(call, inputs)["launches"]
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            call(*inputs)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
        except Exception as error:  # noqa: BLE001  the row says so
            row["failure"] = shown(error)
        rows.append(row)
        told.write_text(json.dumps(rows))
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="raw results of a suite")
    parser.add_argument("out", type=Path)
    parser.add_argument("--least", type=float, default=0.95, help="the ratio below which a point is profiled")
    parser.add_argument("--most", type=int, default=40, help="points")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--page", type=Path, help="where to keep what the profiler printed")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.file, given.out)
        return
    ncu = shutil.which("ncu")
    if ncu is None:
        raise SystemExit("ncu is not installed: it comes with NVIDIA Nsight Compute")
    points = missed(given.file, given.least)[: given.most]
    rows = profiled(points, ncu, given.seconds, given.page)
    given.out.write_text(json.dumps({"of": given.file.name, "points": rows}, indent=1) + "\n")
    for row in rows:
        sizes = " ".join(f"{name}{size}" for name, size in row["sizes"].items())
        told = [str(Kernel(**kernel)) for kernel in row["kernels"]] or [row["failure"]]
        print(f"{row['case']} {row['phase']} {sizes}:", *told, sep="\n  ")


if __name__ == "__main__":
    main()
