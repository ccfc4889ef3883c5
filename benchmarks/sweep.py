"""Measure many tile programs of a few points, to see how well the cost model ranks them.

    python -m benchmarks.sweep --target cuda --json OUT.json [--case NAME ...] [--count 20]

For each point the tile programs that the scheduler considers are sampled over its whole ranking (the best
few, then evenly), checked against float64 and timed cold. Kept per program: modelled and measured seconds,
what the model counted, tiles, warps, stages. Prints the rank correlation and how far the model's best 1 and
8 are from the best that was measured.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Clock, allowed_error, as_tuple, errors, reference
from benchmarks.runner import DTYPES
from benchmarks.suites import PAPER, Case, Sizes
from cleave.errors import CleaveError
from cleave.frontend.capture import capture
from cleave.pipeline import Ranked, launcher_for, plan
from cleave.schedule.text import print_tiles

POINTS = (
    ("matmul", "decode", 0),
    ("matmul", "prefill", 1),
    ("matmul+rowsum", "decode", 1),
    ("rmsnorm+matmul", "decode", 0),
    ("rmsnorm+matmul", "prefill", 1),
    ("swiglu", "decode", 0),
    ("gqa-d128", "prefill", 1),
    ("gqa-d128", "decode", 0),
    ("causal-gqa-lse", "decode", 0),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--case", action="append")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--seconds", type=float, default=40.0, help="most time spent on one point")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    for name, phase, number in POINTS:
        if options.case and name not in options.case:
            continue
        case = next(c for c in PAPER if c.name == name)
        sizes = case.points[(options.target, phase)][number]
        found = sweep(case, phase, sizes, options.target, options.dtype, options.count, options.seconds)
        results.append(found)
        print(summary(found), flush=True)
        options.json.write_text(json.dumps(results, indent=1))


def sweep(
    case: Case, phase: str, sizes: Sizes, target: str, dtype: str, count: int, budget: float
) -> dict[str, Any]:
    """Measure a sample of one point's tile programs."""
    device = "cuda" if target == "cuda" else "cpu"
    inputs = case.make(sizes, DTYPES[dtype], device, 0)
    dynamic = {n: tuple(d if d in case.dynamic else None for d in dims) for n, dims in case.inputs.items()}
    program = capture(case.function, inputs, {}, dynamic=dynamic).program
    planned = plan(program, target=target, sizes={a: sizes[a.name] for a in program.dynamic}, count=400)
    judge = reference(case.function, inputs)
    eager = errors(as_tuple(case.function(*inputs)), judge)
    allowed = allowed_error(eager, inputs[0].dtype, max(sizes.values()))
    clock = Clock(device)
    rows: list[dict[str, Any]] = []
    start = time.perf_counter()
    for place in sample(len(planned.ranked[0]), count):
        if time.perf_counter() - start > budget:
            break
        rows.append(measured(planned.ranked[0][place], place, target, inputs, judge, allowed, clock))
    return {"case": case.name, "phase": phase, "sizes": dict(sizes), "dtype": dtype, "rows": rows}


def sample(total: int, count: int) -> list[int]:
    """The first eight places, then evenly spaced ones."""
    first = list(range(min(8, total)))
    rest = max(1, (total - len(first)) // max(1, count - len(first)))
    return first + list(range(len(first), total, rest))[: max(0, count - len(first))]


def measured(
    ranked: Ranked,
    place: int,
    target: str,
    inputs: Sequence[torch.Tensor],
    judge: tuple[torch.Tensor, ...],
    allowed: float,
    clock: Clock,
) -> dict[str, Any]:
    """One tile program: what the model says and what the clock says."""
    row: dict[str, Any] = {
        "place": place,
        "form": ranked.candidate.form,
        "model": asdict(ranked.cost),
        "kernels": [
            {
                "grid": [(str(a.index.dim), a.tile) for a in k.grid],
                "warps": k.warps,
                "stages": k.stages,
            }
            for k in ranked.tiles.kernels
        ],
        "tiles": print_tiles(ranked.tiles),
    }
    try:
        launcher = launcher_for(ranked.tiles, target)
        row["error"] = errors(launcher(*inputs), judge)
        row["right"] = row["error"] <= allowed
        reports = getattr(launcher, "reports", ())
        row["reports"] = [str(r) for r in reports]
        times = sorted(clock.once(lambda: launcher(*inputs)) for _ in range(15))
        row["seconds"] = times[len(times) // 2]
    except CleaveError as error:
        row["failure"] = str(error)[:300]
    return row


def summary(found: dict[str, Any]) -> str:
    """Rank correlation, and the best of the model's first 1 and 8 against the best measured."""
    rows = [r for r in found["rows"] if r.get("right") and "seconds" in r]
    title = f"{found['case']} {found['phase']} {found['sizes']}: {len(rows)} of {len(found['rows'])} right"
    if len(rows) < 3:
        return title
    modelled = torch.tensor([r["model"]["seconds"] for r in rows]).argsort().argsort().double()
    clocked = torch.tensor([r["seconds"] for r in rows]).argsort().argsort().double()
    rank = float(torch.corrcoef(torch.stack([modelled, clocked]))[0, 1])
    best = min(r["seconds"] for r in rows)
    first = rows[0]["seconds"]
    eight = min(r["seconds"] for r in rows if r["place"] < 8)
    return (
        f"{title}; rank correlation {rank:.2f}; best {best * 1e6:.1f}us, model's first {first * 1e6:.1f}us, "
        f"best of its eight {eight * 1e6:.1f}us"
    )


if __name__ == "__main__":
    main()
