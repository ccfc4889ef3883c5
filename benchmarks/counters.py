"""Counters of the points that miss their target, read by NVIDIA's profiler (`ncu`, of Nsight Compute):

    python -m benchmarks.counters benchmarks/results/paper-h200-bf16.json OUT.json [--budget 120] [--resume]

One call of ours at each missed point is profiled; the figures of its kernels are kept, and
`benchmarks.report` puts them beside the miss. Up to `--batch` points share one process under the profiler,
since starting one takes longer than profiling: cases stay together, so that each is compiled once, and before
each call an empty kernel runs that tells the points apart. A point that raises is kept with its reason, and
so is one at which the process dies or hangs; the others of its process are profiled again. The profiler
repeats each kernel and leaves the clocks alone, with caches flushed before each repetition.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.run import by_point, key_of, ratio_of
from benchmarks.targets import target_of

SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis", "Occupancy", "LaunchStats", "WarpStateStats")
STALL = re.compile(r"smsp__average_warps?_issue_stalled_(\w+?)(_not_issued)?(_per_issue_active|\.)")
SHARES = {
    "memory": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue": "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
"""Percent of the device's peak: memory, L2, instructions issued, warps resident."""
PIPES = re.compile(
    r"sm__(?:inst_executed_)?pipe_(\w+?)(?:_cycles_active)?\.avg\.pct_of_peak_sustained_active"
)
TIME = "gpu__time_duration.sum"
MICROSECONDS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
FEW = 3
"""How many stalls and pipes of a kernel are kept."""
START, GRACE = 40.0, 15.0
"""Seconds that a process may take before its first point, and to end when it is asked to."""
ROOT = Path(__file__).parents[1]
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


# ---------------------------------------------------------------- the profiler's page


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


def windows_of(kernels: Sequence[Kernel]) -> list[list[Kernel]]:
    """The kernels of each point: the first of all is the one that each point begins with, and is left out."""
    windows: list[list[Kernel]] = []
    for kernel in kernels:
        if kernel.name == kernels[0].name:
            windows.append([])
        else:
            windows[-1].append(kernel)
    return windows


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


# ---------------------------------------------------------------- which points


def missed(file: Path, least: float | None = None) -> list[Row]:
    """Our own records of the points whose ratio is below `least` (by default what each should reach), the
    lowest first."""
    data = json.loads(file.read_text())
    found: list[tuple[float, Row]] = []
    for rows in by_point(data["records"]).values():
        ratio, first = ratio_of(rows), rows[0]
        wanted = least or target_of(data.get("target", "cuda"), first["case"], first["phase"])
        if ratio is not None and ratio < wanted:
            found.append((ratio, next(r for r in rows if r["implementation"] == "cleave")))
    return [row for _, row in sorted(found, key=lambda f: f[0])]


def batches_of(points: Sequence[Row], size: int) -> list[list[Row]]:
    """Points that share a process, those of a case and dtype together, the cases as they come."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for point in points:
        groups.setdefault((point["case"], point["dtype"]), []).append(point)
    order = [point for group in groups.values() for point in group]
    return [order[n : n + size] for n in range(0, len(order), size)]


# ---------------------------------------------------------------- processes under the profiler


def profiled(points: Sequence[Row], ncu: str, seconds: float, end: float) -> tuple[list[Row], list[Row]]:
    """Points with the kernels of one call each, or why they have none; and the points that are left because
    the time (`end`, by time.time) was over or the process was gone. `seconds` are for each point."""
    with tempfile.TemporaryDirectory() as folder:
        asked, report, journal = (Path(folder) / name for name in ("asked.json", "report", "journal"))
        asked.write_text(json.dumps({"points": list(points), "until": end, "journal": str(journal)}))
        how = ["--clock-control", "none", "--profile-from-start", "off", "-o", str(report)]
        sections = [part for name in SECTIONS for part in ("--section", name)]
        own = [sys.executable, "-m", "benchmarks.counters", "--child", str(asked), str(asked)]
        patience = START + min(seconds * len(points), max(0.0, end - time.time()) + seconds)
        output, late = ran([ncu, *how, *sections, *own], patience, journal)
        page = [ncu, "--import", f"{report}.ncu-rep", "--page", "raw", "--csv"]
        text = subprocess.run(page, capture_output=True, text=True, check=False).stdout
        return settled(points, notes_of(journal), windows_of(kernels_of(text)), output, late)


def ran(command: Sequence[str], seconds: float, journal: Path) -> tuple[str, bool]:
    """What a command prints, and whether it took too long: the process that it profiles is then interrupted,
    so that the profiler can write what it has, and at last both are killed."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        late = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            late = True
            for pid in (note["pid"] for note in notes_of(journal) if "pid" in note):
                with suppress(OSError):
                    os.kill(pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.seek(0)
        return log.read().strip(), late


def notes_of(journal: Path) -> list[dict[str, Any]]:
    """What a process has told so far, whole lines only."""
    lines = journal.read_text().split("\n")[:-1] if journal.exists() else []
    return [json.loads(line) for line in lines]


def settled(
    points: Sequence[Row],
    notes: Sequence[dict[str, Any]],
    windows: Sequence[Sequence[Kernel]],
    output: str,
    late: bool,
) -> tuple[list[Row], list[Row]]:
    """The rows of a process's points, by its notes: `begun`, `failed` (why) or `marked` (its kernels come
    next on the page) and `done`; and the points that are to be tried again."""
    why = {note["failed"]: note["why"] for note in notes if "failed" in note}
    begun = {note["begun"] for note in notes if "begun" in note}
    done = {note["done"] for note in notes if "done" in note}
    marked = [note["marked"] for note in notes if "marked" in note]
    kernels = dict(zip(marked, windows, strict=False))
    whole = not late and begun == done | set(why)
    rows: list[Row] = []
    left: list[Row] = []
    for number, point in enumerate(points):
        if number in why:
            rows.append(told(point, [], why[number]))
        elif number in done and kernels.get(number):
            rows.append(told(point, kernels[number], ""))
        elif number in done and whole:
            rows.append(told(point, [], f"the profiler saw none of its kernels: {output[-300:]}"))
        elif number in begun and number not in done:
            rows.append(told(point, [], "no answer in time" if late else f"it died: {output[-300:]}"))
        else:
            left.append(point)
    return rows, left


def told(point: Row, kernels: Sequence[Kernel], failure: str) -> Row:
    """What is kept of a point."""
    kept = {key: point[key] for key in ("case", "phase", "sizes", "dtype")}
    return {**kept, "failure": failure, "kernels": [asdict(kernel) for kernel in kernels]}


def child(asked: Path) -> None:
    """Run points once each under the profiler, and tell how far it is."""
    import torch

    from benchmarks.harness import shown
    from benchmarks.runner import Options, Runner
    from benchmarks.suites import SUITES

    cases = {case.name: case for suite in SUITES.values() for case in suite}
    given = json.loads(asked.read_text())
    runner: Runner | None = None
    with Path(given["journal"]).open("a", buffering=1) as journal:

        def tell(**note: object) -> None:
            journal.write(json.dumps(note) + "\n")

        tell(pid=os.getpid())
        for number, point in enumerate(given["points"]):
            if time.time() > given["until"]:
                break
            tell(begun=number)
            try:
                if runner is None or (runner.case.name, runner.dtype) != (point["case"], point["dtype"]):
                    runner = None  # gives its memory back first
                    torch.cuda.empty_cache()
                    runner = Runner(cases[point["case"]], point["dtype"], Options("cuda", peers="none"))
                call, inputs = runner.ours(point["sizes"])
                call(*inputs)
                torch.cuda.synchronize()
            except Exception as error:  # noqa: BLE001  the point's row says so
                tell(failed=number, why=shown(error))
                continue
            tell(marked=number)
            torch.cuda.profiler.start()
            torch.cuda._sleep(1)  # the empty kernel that each point begins with
            call(*inputs)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
            tell(done=number)


# ---------------------------------------------------------------- the command


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="raw results of a suite")
    parser.add_argument("out", type=Path)
    parser.add_argument("--least", type=float, help="the ratio below which a point is profiled (its target)")
    parser.add_argument("--most", type=int, default=60, help="points")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each, before it counts as hanging")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds for all")
    parser.add_argument("--batch", type=int, default=16, help="points in one process")
    parser.add_argument("--resume", action="store_true", help="keep the points that OUT has")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.file)
        return
    ncu = shutil.which("ncu")
    if ncu is None:
        raise SystemExit("ncu is not installed: it comes with NVIDIA Nsight Compute")
    rows = earlier(given.out, given.file.name) if given.resume else []
    known = {key_of(row) for row in rows}
    points = [p for p in missed(given.file, given.least)[: given.most] if key_of(p) not in known]
    left = profile(points, rows, given, ncu)
    got = sum(not row["failure"] for row in rows)
    print(f"{got} points profiled, {len(rows) - got} failed, {len(left)} left; --resume goes on")


def earlier(out: Path, of: str) -> list[Row]:
    """The points that a file has already, but for those that failed."""
    data = json.loads(out.read_text()) if out.exists() else {"of": of, "points": []}
    if data["of"] != of:
        raise SystemExit(f"{out} is of {data['of']}, not of {of}")
    return [row for row in data["points"] if not row["failure"]]


def profile(points: Sequence[Row], rows: list[Row], given: argparse.Namespace, ncu: str) -> list[Row]:
    """Profile points in batches, add their rows and write them after each batch; returns what is left. A
    process that settles no point is the last one."""
    end = time.time() + given.budget
    waiting = list(points)
    while waiting and time.time() < end:
        batch = batches_of(waiting, given.batch)[0]
        found, _ = profiled(batch, ncu, given.seconds, end)
        taken = {key_of(row) for row in found}
        waiting = [point for point in waiting if key_of(point) not in taken]
        rows += found
        given.out.write_text(json.dumps({"of": given.file.name, "points": rows}, indent=1) + "\n")
        for row in found:
            sizes = " ".join(f"{name}{size}" for name, size in row["sizes"].items())
            lines = [str(Kernel(**kernel)) for kernel in row["kernels"]] or [row["failure"]]
            print(f"{row['case']} {row['phase']} {sizes}:", *lines, sep="\n  ", flush=True)
        if len(found) != 1 and not any(row["kernels"] for row in found):  # one alone may be to blame
            print("the profiler gave no kernels: no other process is started", flush=True)
            break
    return waiting


if __name__ == "__main__":
    main()
