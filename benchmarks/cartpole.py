"""The Cartpole study: every variant, every fusion strategy and every peer, over the number of environments;
checked, then timed.

`run_cartpole` works through a fixed list, the most telling rows first (`cartpole_order`), until its time is
up; it keeps the raw file after every row, and `resume` goes on where a file ends. What fails is a row that
says so. Correctness: at each size our whole-loop kernel is held, step by step, to a float64 oracle (one step
from the same state to 1e-6, the free run as far as the equations carry a rounding error, `done` equal
wherever rounding does not decide); everything else is held to that kernel (`cartpole_checks`). Times are of
runs with warm caches: on a GPU of CUDA graphs, by events, the median (JAX by the clock); on a CPU by the
clock and by processor time, the least.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.cartpole_ahead import Built, build_ahead
from benchmarks.cartpole_case import Case
from benchmarks.cartpole_checks import Checks
from benchmarks.cartpole_env import Inputs, make_inputs
from benchmarks.cartpole_order import Makers, Task, order
from benchmarks.cartpole_plans import Planned
from benchmarks.raw import earlier
from cleave.runtime.machines import device_name

SIZES = (2048, 64, 1 << 16, 1 << 20, 1 << 14, 256, 1 << 17, 1 << 23, 1, 70)
"""Numbers of environments, the most interesting ones first."""
LARGEST = {"cpu": 1 << 20, "cuda": 1 << 23}
MOST_ELEMENTS = {"cpu": 1 << 23, "cuda": 1 << 27}
DEFAULT_BUDGET = 235.0
POINT_SECONDS = {"cpu": 0.3, "cuda": 0.05}
LEAST_RUNS, MOST_RUNS = 3, 400
TIME = "microseconds_per_step"
NOT_BUILT = "kernels: not built"
"""What a plan says that is left for its size."""

Row = dict[str, Any]
PRIVATE = ("results", "blocks", "one_step")


class Study:
    """The rows of a study, and what they share."""

    def __init__(self, target: str, json_file: Path | None, rows: list[Row]) -> None:
        self.target, self.json_file, self.rows = target, json_file, rows
        self.makers = Makers(target)
        self.checks: dict[int, Checks] = {}
        self.load = os.getloadavg()[0]
        self.built: Built = {}

    def inputs(self, size: int) -> Checks:
        """The inputs of a size, and what results are held to there."""
        if size not in self.checks:
            inputs = make_inputs(size, steps_for(size, self.target), self.target)
            self.checks[size] = Checks(inputs, self.makers.ours)
        return self.checks[size]

    def run(self, task: Task) -> Row:
        """Make, check and time one case."""
        row: Row = {"implementation": task.name, "environments": task.size, "failure": ""}
        begin = time.perf_counter()
        try:
            checks = self.inputs(task.size)
            if isinstance(task.what, Planned) and (twin := self._twin(task.what, checks.inputs)):
                return {**row, **twin, "row_seconds": round(time.perf_counter() - begin, 2)}
            case = self.makers.case(task, checks.inputs)
            row["steps"] = case.steps
            row |= {k: v for k, v in case.facts.items() if k not in PRIVATE}
            if (seconds := self.built.get((task.name, task.size))) is not None:
                row["compile_seconds"] = seconds
            row |= checks.held(case)
            times = self._timed(case)
            checks.held(case)  # what was timed was right to the end, or has no time
            row |= times
            row["steps_per_second"] = 1e6 / row["microseconds_per_step"] * task.size
        except Exception as error:  # noqa: BLE001  (a failing row is reported)
            row["failure"] = short(error)
        row["row_seconds"] = round(time.perf_counter() - begin, 2)
        return row

    def _twin(self, planned: Planned, inputs: Inputs) -> Row | None:
        """What is known of a plan's kernels where another plan with the same ones is measured: they are run
        once."""
        made = self.makers.plans.prepared(planned, inputs)
        if made.first == planned.name:
            return None
        names = ("implementation", "same_as")
        alike = (r for r in self.rows if made.first in [r.get(n) for n in names] and TIME in r)
        row = next((r for r in alike if r["environments"] == inputs.size and not r["failure"]), None)
        if row is None:
            return None
        own = ("implementation", "environments", "same_as", "row_seconds")
        return {**{k: v for k, v in row.items() if k not in own}, **made.account, "same_as": made.first}

    def _timed(self, case: Case) -> Row:
        """Microseconds per step."""
        return {k: t / case.steps * 1e6 for k, t in timed(case, self.target).items()}

    def keep(self, row: Row) -> None:
        self.rows.append(row)
        print(line(row), flush=True)
        write(self.json_file, self.target, self.rows, self.load)


def run_cartpole(
    target: str,
    *,
    json_file: Path | None = None,
    budget: float | None = None,
    sizes: Sequence[int] | None = None,
    resume: bool = False,
    only: Sequence[str] = (),
    ahead: float = 0.0,
) -> int:
    """Run the study on `cpu` or `cuda`; returns how many of our own results are wrong. With `resume` the rows
    of `json_file` stand, and those that are missing are run; `only` picks those with one of its words in
    their name. So many seconds (`ahead`) go into building in other processes first; what is not built then is
    left."""
    deadline = time.perf_counter() + (DEFAULT_BUDGET if budget is None else budget)
    rows: list[Row] = []
    if resume and json_file is not None and json_file.exists():
        rows = earlier(json_file, target)["rows"]
    study = Study(target, json_file, rows)
    done = {(r["implementation"], r["environments"]) for r in rows}
    wanted = [n for n in sizes or SIZES if n <= LARGEST[target]]
    tasks = [t for t in order(target, wanted) if (t.name, t.size) not in done]
    tasks = [t for t in tasks if not only or any(word in t.name for word in only)]
    left = 0
    if ahead:
        every = [t.what for t in order(target, wanted) if isinstance(t.what, Planned)]
        steps = {n: steps_for(n, target) for n in wanted}
        study.built, study.makers.plans.handed = build_ahead(tasks, every, steps, target, ahead)
        made = sum(seconds is not None for seconds in study.built.values())
        print(f"{made} cases built ahead, {len(study.built) - made} failed", flush=True)
        known = len(tasks)
        tasks = [t for t in tasks if t.what is None or (t.name, t.size) in study.built]
        left = known - len(tasks)
    for task in tasks:
        expected = task.seconds if study.built.get((task.name, task.size)) is None else 1.0
        if time.perf_counter() + expected > deadline:
            left += 1
            continue
        study.keep(study.run(task))
    if left:
        print(f"{left} rows left for want of time: --resume goes on")
    print(summary(study.rows))
    failed = [r for r in study.rows if r["failure"] and NOT_BUILT not in r["failure"]]
    return sum(r["implementation"].startswith(("cleave", "plan")) for r in failed)


def steps_for(size: int, target: str) -> int:
    """Steps of a run: 500, or as many as memory takes; a multiple of 20."""
    return max(20, min(500, MOST_ELEMENTS[target] // size) // 20 * 20)


def short(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300]


# ---------------------------------------------------------------- times


def timed(case: Case, target: str) -> dict[str, float]:
    """Seconds of a run: by events on a GPU, else by the clock; on a CPU by processor time too."""
    case.call()
    samples: list[tuple[float, float]] = []
    limit = POINT_SECONDS[target]
    start = time.perf_counter()
    while len(samples) < LEAST_RUNS or (time.perf_counter() - start < limit and len(samples) < MOST_RUNS):
        samples.append(_once(case, target))
        if time.perf_counter() - start > 4 * limit and len(samples) >= 2:
            break
    walls = [wall for wall, _ in samples]
    if target == "cuda":
        return {"microseconds_per_step": statistics.median(walls)}
    # Other work on a shared CPU only ever adds time.
    return {"microseconds_per_step": min(walls), "cpu_microseconds_per_step": min(cpu for _, cpu in samples)}


def _once(case: Case, target: str) -> tuple[float, float]:
    if target == "cuda" and not case.facts.get("blocks"):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        case.call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3, 0.0
    cpu, start = time.process_time(), time.perf_counter()
    case.call()
    return time.perf_counter() - start, time.process_time() - cpu


# ---------------------------------------------------------------- what is shown and kept


def line(r: Row) -> str:
    head = f"{r['environments']:>8} {r['implementation']:<44}"
    if "microseconds_per_step" not in r:
        return f"{head} {r['failure']}"
    facts = f"{r['microseconds_per_step']:>10.3f} us/step"
    if "launches_per_step" in r:
        facts += f"  {r['launches_per_step']:<6.3g} launches"
    if r.get("registers"):
        facts += f"  {max(x or 0 for x in r['registers'])} registers"
    if "compile_seconds" in r:
        facts += f"  built in {r['compile_seconds']:.1f} s"
    return f"{head} {facts}  {r.get('agrees', '')}  {r['failure']}"


def summary(rows: Sequence[Row]) -> str:
    """Speed-ups of the best of ours over JAX's baselines, eager and the kernel by hand, per size."""
    names = ("JAX B0", "JAX B1", "PyTorch eager", "by hand")
    lines = ["environments  best of ours              us/step   over B0  over B1  over eager  over by hand"]
    for size in sorted({r["environments"] for r in rows}):
        times = {
            r["implementation"]: r["microseconds_per_step"]
            for r in rows
            if r["environments"] == size and not r["failure"] and "microseconds_per_step" in r
        }
        ours = {k: t for k, t in times.items() if k.startswith("cleave")}
        if not ours:
            continue
        best = min(ours, key=lambda k: ours[k])
        read = min((t for k, t in ours.items() if " read " in k), default=float("nan"))
        ratios = [times.get(n, float("nan")) / (read if n == "by hand" else ours[best]) for n in names]
        figures = " ".join(f"{x:>8.2f}" for x in ratios)
        lines.append(f"{size:>12}  {best[7:]:<24} {ours[best]:>9.3f} {figures}")
    return "\n".join(lines)


def write(path: Path | None, target: str, rows: Sequence[Row], load: float) -> None:
    """Keep the raw results: a whole file at any moment. `load` is the machine's when the study began."""
    if path is None:
        return
    head = {"study": "cartpole", "target": target, "device": device_name(target), "torch": torch.__version__,
            "python": platform.python_version(), "threads": torch.get_num_threads(),
            "load": round(load, 2)}  # fmt: skip
    if "jax" in sys.modules:
        head["jax"] = sys.modules["jax"].__version__
    elif path.exists():  # of rows that an earlier run has measured
        head |= {key: known for key, known in json.loads(path.read_text()).items() if key == "jax"}
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps({**head, "rows": list(rows)}, indent=1))
    part.replace(path)
