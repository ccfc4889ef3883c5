"""Run a suite: compile each case once per dtype, check and time every point, print a table, keep raw JSON."""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import cleave
from benchmarks.harness import Outputs, Row, compare
from benchmarks.suites import SUITES, Case, Sizes
from cleave.errors import Invalid
from cleave.pipeline import Compiled
from cleave.report.schedule import bytes_text

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
DEFAULT_DTYPES = {"cpu": ("f32", "bf16"), "cuda": ("f16", "bf16")}


def run_suite(
    suite: str,
    *,
    target: str,
    cases: Sequence[str] | None,
    dtypes: Sequence[str] | None,
    phases: Sequence[str] | None,
    json_file: Path | None,
    budget: float,
) -> int:
    """Run what the filters leave; returns how many of Cleave's own rows are wrong or failed."""
    if suite not in SUITES:
        raise Invalid(f"no suite {suite!r}", hint=f"there is {', '.join(SUITES)}")
    console = Console(width=160)
    records: list[dict[str, object]] = []
    for case in SUITES[suite]:
        if cases and not any(name in case.name for name in cases):
            continue
        for dtype in dtypes or DEFAULT_DTYPES[target]:
            records += run_case(case, target, dtype, phases, budget, console)
            if json_file:
                write(json_file, suite, target, records)
    console.print(summary(records, target))
    ours = [r for r in records if r["implementation"] == "cleave"]
    wrong = [r for r in ours if r["failure"]]
    console.print(f"{len(ours) - len(wrong)} of {len(ours)} points correct")
    return len(wrong)


def run_case(
    case: Case, target: str, dtype: str, phases: Sequence[str] | None, budget: float, console: Console
) -> list[dict[str, object]]:
    device = "cuda" if target == "cuda" else "cpu"
    points = [
        (phase, sizes)
        for (kind, phase), grid in case.points.items()
        if kind == target and (not phases or phase in phases)
        for sizes in grid
    ]
    if not points:
        return []
    started = time.perf_counter()
    ours = compiled(case, points[0][1], dtype, device)
    records: list[dict[str, object]] = []
    for phase, sizes in points:
        sets = [case.make(sizes, DTYPES[dtype], device, seed) for seed in range(3)]
        torch._dynamo.reset()
        implementations: dict[str, Callable[..., object]] = {
            "eager": case.function,
            "torch.compile": torch.compile(case.function, dynamic=False),
            **case.peers,
            "cleave": ours,
        }
        length = max(sizes.values())
        rows = compare(implementations, case.function, sets, device=device, length=length, budget=budget)
        note_footprint(rows[-1], ours, sets[0])
        records += [record(case, phase, sizes, dtype, row) for row in rows]
        console.print(line(case, phase, sizes, dtype, rows))
    info = records[-1]
    info["case_seconds"] = time.perf_counter() - started
    return records


def note_footprint(row: Row, ours: Callable[..., object], inputs: Outputs) -> None:
    """Launches and workspace of our own row; a row that ran in PyTorch is a failure, not a result."""
    if row.failure or not isinstance(ours, cleave.Jit):
        return
    if ours.fallbacks or len(ours.compiled) != 1:
        reasons = "; ".join(str(f) for f in ours.fallbacks) or f"{len(ours.compiled)} programs"
        row.failure, row.seconds = f"not compiled as one program: {reasons}", math.nan
        return
    program = ours.compiled[0]
    assert isinstance(program, Compiled)
    launches, workspace = program.footprint(*inputs)
    row.notes = {
        "launches": launches,
        "workspace_bytes": workspace,
        "workspace": bytes_texts(program, inputs),
        "compiles": ours.compile_count,
    }


def bytes_texts(program: Compiled, inputs: Outputs) -> str:
    """The workspace as a formula in sizes and parts."""
    key = tuple([t.shape for t in inputs])
    return " + ".join(bytes_text(t) for t in program.chosen[key].tiles.workspaces) or "0"


def compiled(case: Case, sizes: Sizes, dtype: str, device: str) -> Callable[..., object]:
    """One compile for all points; a failure to compile shows as a failed row at each of them."""
    inputs: Outputs = case.make(sizes, DTYPES[dtype], device, 0)
    dynamic = {name: tuple(d for d in dims) for name, dims in case.inputs.items()}
    try:
        return cleave.compile(case.function, inputs, dynamic=_dynamic(dynamic, case.dynamic))
    except Exception as error:  # noqa: BLE001  shown as the row's failure
        failure = error

        def fail(*_: torch.Tensor) -> None:
            raise failure

        return fail


def _dynamic(dims: dict[str, tuple[str, ...]], names: Sequence[str]) -> dict[str, tuple[str | None, ...]]:
    return {name: tuple(d if d in names else None for d in axes) for name, axes in dims.items()}


def record(case: Case, phase: str, sizes: Sizes, dtype: str, row: Row) -> dict[str, object]:
    return {
        "case": case.name,
        "phase": phase,
        "sizes": dict(sizes),
        "dtype": dtype,
        "implementation": row.implementation,
        "error": row.error,
        "allowed": row.allowed,
        "seconds": row.seconds,
        "failure": row.failure,
        **row.notes,
        "tflops": case.flops(sizes) / row.seconds / 1e12 if row.seconds == row.seconds else None,
    }


def line(case: Case, phase: str, sizes: Sizes, dtype: str, rows: Sequence[Row]) -> str:
    shape = " ".join(f"{k}{v}" for k, v in sizes.items())
    texts = [
        f"{r.implementation} {r.failure or f'{r.seconds * 1e6:.1f}us (err {r.error:.1e})'}" for r in rows
    ]
    notes = rows[-1].notes
    if notes:
        texts.append(
            f"{notes['launches']} launches, workspace {notes['workspace_bytes']} = {notes['workspace']}"
        )
    return f"[bold]{case.name}[/bold] {phase} {dtype} {shape}: " + "; ".join(texts)


def best_peer(rows: Sequence[dict[str, object]]) -> dict[str, object] | None:
    """The fastest correct implementation that is not ours."""
    right = [r for r in rows if r["implementation"] != "cleave" and not r["failure"]]
    return min(right, key=lambda r: float(str(r["seconds"])), default=None)


def summary(records: Sequence[dict[str, object]], target: str) -> Table:
    """One line a point: our time, the best correct peer, the ratio."""
    table = Table(title=f"{target}: time of the best correct peer over ours (above 1: we are faster)")
    for column in ("case", "phase", "dtype", "sizes", "cleave us", "best peer", "peer us", "ratio"):
        table.add_column(column)
    points: dict[tuple[str, str, str, str], list[dict[str, object]]] = {}
    for r in records:
        key = (str(r["case"]), str(r["phase"]), str(r["dtype"]), str(r["sizes"]))
        points.setdefault(key, []).append(r)
    for (case, phase, dtype, sizes), rows in points.items():
        ours = next(r for r in rows if r["implementation"] == "cleave")
        peer = best_peer(rows)
        if ours["failure"] or peer is None:
            table.add_row(case, phase, dtype, sizes, str(ours["failure"])[:60], "", "", "")
            continue
        mine, theirs = float(str(ours["seconds"])), float(str(peer["seconds"]))
        times = (
            f"{mine * 1e6:.1f}",
            str(peer["implementation"]),
            f"{theirs * 1e6:.1f}",
            f"{theirs / mine:.2f}",
        )
        table.add_row(case, phase, dtype, sizes, *times)
    return table


def write(path: Path, suite: str, target: str, records: Sequence[dict[str, object]]) -> None:
    device = torch.cuda.get_device_name(0) if target == "cuda" else platform.machine()
    data = {
        "suite": suite,
        "target": target,
        "device": device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "timing": "median; cold L2 on cuda (overwritten before each run), events; wall clock on cpu",
        "records": list(records),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1))
