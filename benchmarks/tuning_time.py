"""How long a compile takes from empty caches, all phases and tuning included.

    python -m benchmarks.tuning_time --json benchmarks/results/tuning-h200.json --budget 45 --case swiglu

For each case of the paper suite (those named, or all of them): capture, search, planning, emission and the
compiler, as `cleave bench --cold` times them, then the tuner, at all sizes of the case, with nothing measured
before. Kept are the seconds of each, and at each size the microseconds of the cost model's first choice and
of the best. The file is written after every case; `--limit S` begins no other case after S seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.case import Case, points_of
from benchmarks.compiling import Phases, captured, compiled
from benchmarks.runner import DTYPES, bound
from benchmarks.suites import SUITES
from benchmarks.wishes import of_case
from cleave.frontend.tuning import Done, tune_all
from cleave.knobs import knobs, scope
from cleave.runtime.machines import device_name
from cleave.runtime.tune import jobs_here
from cleave.runtime.tune_point import Limits, Result, Tuned
from cleave.runtime.tune_store import RIGHT


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--suite", default="paper")
    parser.add_argument("--case", action="append", help="repeatable; the exact name")
    parser.add_argument("--phase", help="the sizes of this phase alone")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--budget", type=float, default=45.0, help="seconds of the tuner for a case")
    parser.add_argument("--limit", type=float, default=float("inf"), help="begin no case after S seconds")
    parser.add_argument(
        "--recipes", type=Path, help="a folder that keeps what is tuned; without it nothing is kept"
    )
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    if given.recipes is not None:
        given.recipes.mkdir(parents=True, exist_ok=True)
    cases = {case.name: case for case in SUITES[given.suite]}
    for name in given.case or cases:
        if time.perf_counter() - began > given.limit:
            break
        row = timed(cases[name], given.target, given.dtype, given.budget, given.recipes, given.phase)
        rows.append(row)
        told = {key: round(value, 2) for key, value in row["phases"].items()}
        print(name, told, *(f"{p['sizes']}: {p['first']} {p['best']}" for p in row["points"]), flush=True)
        write(given.json, given.target, given.budget, rows)


def write(path: Path, target: str, budget: float, rows: Sequence[dict[str, Any]]) -> None:
    """Write what is known by now."""
    data = {
        "device": device_name(target),
        "cores": jobs_here(),
        "date": time.strftime("%Y-%m-%d"),
        "budget": budget,
        "rows": list(rows),
    }
    path.write_text(json.dumps(data, indent=1) + "\n")


def timed(
    case: Case, target: str, dtype: str, budget: float, out: Path | None = None, phase: str | None = None
) -> dict[str, Any]:
    """One case from empty caches; machines that were fitted are kept, they belong to the device. What is
    tuned goes to `out`."""
    machines = knobs().data_dir / "machines"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cache").mkdir()
        (folder / "data").mkdir()
        with suppress(OSError):
            shutil.copytree(machines, folder / "data" / "machines")
        before = os.environ.get("TRITON_CACHE_DIR")
        os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
        try:
            with scope(cache_dir=folder / "cache", data_dir=folder / "data"):
                phases, done = _both(case, target, dtype, budget, out, phase)
        finally:
            os.environ.pop("TRITON_CACHE_DIR")
            if before is not None:
                os.environ["TRITON_CACHE_DIR"] = before
    points = [point(tuned) for each in done for tuned in each.tuned]
    return {"case": case.name, "dtype": dtype, "phases": phases.seconds, "points": points}


def _both(
    case: Case, target: str, dtype: str, budget: float, out: Path | None, phase: str | None
) -> tuple[Phases, list[Done]]:
    """A compile for the first of the sizes, then the tuner for all of them."""
    phases = Phases()
    sizes = [each for own, each in points_of(case, target) if phase in (None, own)]
    program = phases.timed("capture", lambda: captured(case, sizes[0], DTYPES[dtype]))
    compiled(program, target, bound(program, sizes[0]), phases)
    wishes = of_case(case, sizes, DTYPES[dtype])
    return phases, phases.timed("tune", lambda: tune_all(wishes, target, Limits(budget), out=out))


def point(tuned: Tuned) -> dict[str, Any]:
    """What the tuner knows of a point: microseconds of the model's first choice and of the best, and how many
    tile programs were measured and right."""
    sizes = {str(atom): tuned.point.sizes[atom] for atom in tuned.point.program.dynamic}
    return {
        "sizes": sizes,
        "first": _microseconds(tuned.first),
        "best": _microseconds(tuned.best),
        "measured": sum(r.measured.status == RIGHT for r in tuned.results),
    }


def _microseconds(result: Result | None) -> float | None:
    seconds = result.measured.seconds if result is not None else None
    return None if seconds is None else round(seconds * 1e6, 3)


if __name__ == "__main__":
    main()
