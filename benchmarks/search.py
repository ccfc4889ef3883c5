"""What the search costs: seconds, memory, candidates, normal forms and cached results, over all programs.

`cleave bench search` runs every program of the paper's suite and of `tests/cases/algebra` twice, with its
sizes as they are and with all of them multiplied by 64 (which must find the same in the same time), then
reads every result back from the store in another process. One process, one thread; seconds are of the
processor, so that other work on the machine does not count, with wall-clock time beside them.
`python -m benchmarks.search` makes docs/search.md.
"""

from __future__ import annotations

import cProfile
import json
import platform
import pstats
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import wanted
from benchmarks.suites import SUITES
from benchmarks.wishes import captured
from cleave import knobs
from cleave.algebra.normal import node_form
from cleave.algebra.search import Found, search
from cleave.errors import CleaveError, Invalid
from cleave.ir.dims import Atom
from cleave.ir.program import Program
from cleave.ir.text import parse_program, print_program
from cleave.runtime import search_store

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "search.json"
PAGE = ROOT / "docs" / "search.md"
FACTOR = 64
SMALL = 4
"""The size of every dim at x1."""
LIMITS = {
    "median_s": 0.5,
    "worst_s": 5.0,
    "peak_mib": 1024.0,
    "cached_ms": 5.0,
    "form_ms": 0.2,
    "form99_ms": 5.0,
}

Row = dict[str, Any]


def programs(only: Sequence[str] | None = None) -> dict[str, Program]:
    """Every program by name; those of the paper as `paper: NAME`."""
    found: dict[str, Program] = {}
    for case in SUITES["paper"]:
        sizes = next(grid for (target, _), grid in case.points.items() if target == "cpu")[0]
        found[f"paper: {case.name}"] = captured(case, sizes, torch.float32)
    found |= {case.name: case.program for case in wanted.cases()}
    # As text and back: the names of values are then those of the printed program.
    chosen = {
        n: parse_program(print_program(p)) for n, p in found.items() if not only or any(o in n for o in only)
    }
    if not chosen:
        raise Invalid(
            f"no program has {' or '.join(only or ())} in its name", hint=f"there are {', '.join(found)}"
        )
    return chosen


def sized(program: Program, factor: int) -> Program:
    """The program with a known size for every dim. What is 1 stays 1: a column is no matrix."""
    known = {atom for atom, _ in program.sizes}
    more = tuple(
        (atom, SMALL * factor) for atom in program.dims if isinstance(atom, Atom) and atom not in known
    )
    scaled = tuple((a, v * factor if isinstance(v, int) and v > 1 else v) for a, v in program.sizes)
    return replace(program, sizes=(*scaled, *more))


def timed(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """What a call gives, its seconds of the processor and by the wall clock."""
    wall, own = time.perf_counter(), time.process_time()
    result = call()
    return result, time.process_time() - own, time.perf_counter() - wall


def run_search(cases: Sequence[str] | None, json_file: Path | None) -> int:
    """Run all, print a table and the closing lines; returns how many limits are missed."""
    console = Console(width=140)
    everything = programs(cases)
    baseline = peak_mib()
    rows: list[Row] = []
    forms: list[float] = []
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder:
        for name, program in everything.items():
            rows.append(row_of(name, program, forms, Path(folder)))
            console.print(line(rows[-1]))
        cached = cached_elsewhere(everything, Path(folder))
    for name, program in everything.items():
        if name.startswith("paper") or cases:
            profile.enable()
            search(program)
            profile.disable()
    for row in rows:
        row["cached_ms"] = cached["rows"][row["program"]]
    data = {
        "machine": machine(),
        "summary": summary(rows, forms, cached, baseline),
        "profile": by_module(profile),
        "rows": rows,
    }
    for text in closing(data["summary"]):
        console.print(text)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(data, indent=1) + "\n")
    return len(missed(data["summary"]))


def row_of(name: str, program: Program, forms: list[float], folder: Path) -> Row:
    """One program: its search at both sizes, what was built, pruned and kept. The first search puts what it
    finds into the store in `folder`."""
    with knobs.scope(cache_dir=folder):
        found, seconds, wall = timed(lambda: search_store.search(sized(program, 1)))
    large, large_seconds, _ = timed(lambda: search(sized(program, FACTOR)))
    forms += form_times(program)
    return {
        "program": name,
        "nodes": len(program.nodes),
        "seconds": seconds,
        "wall_seconds": wall,
        "seconds_x64": large_seconds,
        "same_x64": described(found) == described(large),
        "candidates": len(found.candidates),
        "counts": dict(found.counts),
        "peak_mib": peak_mib(),
    }


def described(found: Found) -> list[tuple[str, object, object]]:
    """What was found, sizes apart."""
    return [(c.form, c.cost, c.derivation) for c in found.candidates]


def form_times(program: Program) -> list[float]:
    """Milliseconds of the processor for the normal form of each node, those before it being known."""
    known: dict[Any, Any] = {}
    found: list[float] = []
    for node in program.nodes:
        start = time.thread_time_ns()
        try:
            known[node] = node_form(node, known)
        except CleaveError:
            break
        found.append((time.thread_time_ns() - start) / 1e6)
    return found


def peak_mib() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# ---------------------------------------------------------------- cached results

READER = """
import json, sys, time
from pathlib import Path
from cleave import knobs
from cleave.ir.text import parse_program
from cleave.runtime import search_store
from cleave.algebra import search as searching

texts = json.loads(Path(sys.argv[2]).read_text())
programs = {name: parse_program(text) for name, text in texts.items()}
times, searched, real = {}, [], searching.search
searching.search = lambda program, **settings: searched.append(program.name) or real(program, **settings)
with knobs.scope(cache_dir=Path(sys.argv[1])):
    start = time.process_time()
    search_store.search(next(iter(programs.values())))
    first = time.process_time() - start
    search_store.forget()
    for name, program in programs.items():
        reads = []
        for _ in range(5):
            search_store.forget()
            start = time.process_time()
            search_store.search(program)
            reads.append((time.process_time() - start) * 1e3)
        times[name] = sorted(reads)[2]
print(json.dumps({"first_ms": first * 1e3, "rows": times, "searched": searched}))
"""


def cached_elsewhere(everything: Mapping[str, Program], folder: Path) -> dict[str, Any]:
    """Read every entry of a store in another process, at other sizes: the median of five reads each, so that
    a collection of garbage that happens to fall into one is not counted."""
    asked = folder / "asked.json"
    asked.write_text(json.dumps({n: print_program(other_sizes(p)) for n, p in everything.items()}))
    command = [sys.executable, "-c", READER, str(folder), str(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return json.loads(done.stdout)


def other_sizes(program: Program) -> Program:
    """The program with its known sizes multiplied, those of 1 aside."""
    return replace(
        program, sizes=tuple((a, v * FACTOR if isinstance(v, int) and v > 1 else v) for a, v in program.sizes)
    )


# ---------------------------------------------------------------- summaries


def machine() -> dict[str, Any]:
    """Where it ran."""
    model = platform.processor() or platform.machine()
    for text in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if text.startswith("model name"):
            model = text.partition(":")[2].strip()
            break
    return {"cpu": model, "python": platform.python_version(), "torch": torch.__version__}


def summary(
    rows: Sequence[Row], forms: Sequence[float], cached: dict[str, Any], baseline: float
) -> dict[str, Any]:
    """The figures that have limits, and what was built, pruned by each rule, and kept."""
    seconds = sorted(row["seconds"] for row in rows)
    totals: dict[str, int] = {}
    for row in rows:
        for reason, count in row["counts"].items():
            totals[reason] = totals.get(reason, 0) + count
    ratios = [row["seconds_x64"] / row["seconds"] for row in rows]
    reads = sorted(cached["rows"].values())
    return {
        "programs": len(rows),
        "median_s": statistics.median(seconds),
        "worst_s": seconds[-1],
        "worst": max(rows, key=lambda row: row["seconds"])["program"],
        "peak_mib": peak_mib(),
        "baseline_mib": baseline,
        "same_x64": sum(row["same_x64"] for row in rows),
        "ratio_x64": statistics.median(ratios),
        "cached_ms": reads[-1],
        "cached_median_ms": statistics.median(reads),
        "cached_first_ms": cached["first_ms"],
        "searched_again": len(cached["searched"]),
        "nodes": len(forms),
        "form_ms": statistics.median(forms),
        "form99_ms": sorted(forms)[int(0.99 * (len(forms) - 1))],
        "totals": dict(sorted(totals.items())),
    }


def missed(figures: Mapping[str, Any]) -> list[str]:
    """The figures beyond their limits."""
    wrong = [name for name, limit in LIMITS.items() if figures[name] > limit]
    if figures["same_x64"] < figures["programs"]:
        wrong.append("same_x64")
    return wrong + (["searched_again"] if figures["searched_again"] else [])


def closing(figures: Mapping[str, Any]) -> Iterable[str]:
    """The lines under the table."""
    f = figures
    yield (
        f"{f['programs']} programs: median {f['median_s']:.3f} s, worst {f['worst_s']:.2f} s ({f['worst']}), "
        f"peak {f['peak_mib']:.0f} MiB, of which {f['baseline_mib']:.0f} before the first search"
    )
    same = f"the same found for {f['same_x64']} of {f['programs']}"
    yield f"sizes x{FACTOR}: {same}, in {f['ratio_x64']:.2f} times the time"
    yield (
        f"cached, in another process at other sizes: median {f['cached_median_ms']:.2f} ms, worst "
        f"{f['cached_ms']:.2f} ms, first look {f['cached_first_ms']:.2f} ms; {f['searched_again']} searched"
    )
    median, most = f"median {f['form_ms']:.3f} ms", f"99th percentile {f['form99_ms']:.2f} ms"
    yield f"normal forms of {f['nodes']} nodes: {median}, {most}"
    yield "; ".join(f"{reason} {count}" for reason, count in f["totals"].items())
    wrong = missed(f)
    yield "within all limits" if not wrong else f"beyond the limit: {', '.join(wrong)}"


def line(row: Row) -> str:
    counts = ", ".join(f"{reason} {count}" for reason, count in row["counts"].items())
    same = "" if row["same_x64"] else "  OTHERS AT x64"
    return f"{row['program']:34} {row['seconds']:6.3f} s  x64 {row['seconds_x64']:6.3f} s  {counts}{same}"


def by_module(profile: cProfile.Profile) -> dict[str, float]:
    """The share of the search's time that is spent in each module's own code, largest first."""
    total: dict[str, float] = {}
    stats: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (file, _, _), (_, _, own, _, _) in stats.items():
        path = Path(file)
        module = f"{path.parent.name}/{path.stem}" if "cleave" in path.parts else "Python and its libraries"
        total[module] = total.get(module, 0.0) + own
    everything = sum(total.values())
    return {m: t / everything for m, t in sorted(total.items(), key=lambda item: -item[1])}


# ---------------------------------------------------------------- the page

HEAD = """# What the search costs

Made by `python -m benchmarks.search` from `benchmarks/results/search.json`; do not edit. `cleave bench search
--json benchmarks/results/search.json` measures it again. Seconds are of the processor, in one process on one
thread; the programs are the paper's subgraphs and those of `tests/cases/algebra`.
"""

TITLES = {
    "median_s": ("search, median", "s"),
    "worst_s": ("search, worst", "s"),
    "peak_mib": ("memory of the process, peak", "MiB"),
    "cached_ms": ("result from the store in another process at other sizes, worst", "ms"),
    "form_ms": ("normal form of a node, median", "ms"),
    "form99_ms": ("normal form of a node, 99th percentile", "ms"),
}


def page(data: Mapping[str, Any]) -> str:
    """docs/search.md."""
    figures = data["summary"]
    lines = [HEAD, f"Machine: {data['machine']['cpu']}, Python {data['machine']['python']}.", ""]
    lines += ["| what | measured | limit |", "|---|---|---|"]
    for name, (title, unit) in TITLES.items():
        lines.append(f"| {title} | {figures[name]:.3g} {unit} | {LIMITS[name]:g} {unit} |")
    lines.append(
        f"| programs found alike at sizes x{FACTOR} | {figures['same_x64']} | {figures['programs']} |"
    )
    lines += ["", *(f"- {text}" for text in closing(figures)), ""]
    lines += [
        "## Where the time goes",
        "",
        "Shares of the time in each module's own code, over the paper's programs, under Python's profiler.",
        "",
    ]
    lines += ["| module | share |", "|---|---|"]
    lines += [f"| {module} | {share:.0%} |" for module, share in data["profile"].items() if share >= 0.02]
    lines += [
        "",
        "## Programs",
        "",
        "| program | nodes | s | s at x64 | cached ms | built | kept | dropped, by rule |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in data["rows"]:
        counts = row["counts"]
        drops = "; ".join(
            f"{k.removeprefix('dropped: ')} {v}" for k, v in counts.items() if k.startswith("dropped")
        )
        lines.append(
            f"| {row['program']} | {row['nodes']} | {row['seconds']:.3f} | {row['seconds_x64']:.3f} "
            f"| {row['cached_ms']:.2f} | {counts.get('built', 0)} | {counts.get('kept', 0)} | {drops} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(RESULTS.read_text())))
