"""The fusion suite: what each strategy makes of six programs; checked, then timed.

Each plan's kernels run through our own scheduler and emitters, so that rows differ in the plan alone. A row
has launches, modelled bytes, peak memory and time, and what the launches of the run really were. A result is
compared with float64 first; a wrong one has no time. Strategies that come to the same kernels are run once.
On a GPU a row's launches are captured in one CUDA graph: what is timed is the device's work. `cleave` is
held against the best of the others (issue 5): at most 3 % slower.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.harness import Clock, allowed_error, as_tuple, errors, reference
from benchmarks.raw import earlier
from cleave.frontend.capture import capture
from cleave.fusion.from_program import graph_of
from cleave.fusion.pieces import Piece, pieces_of
from cleave.fusion.planning import Plan, plan_fusion
from cleave.fusion.rules import Rules, device_named
from cleave.ir.candidate import Candidate
from cleave.ir.program import Program
from cleave.pipeline import assigned, usable
from cleave.report.found import named
from cleave.runtime.machines import device_name
from cleave.runtime.planned import Planned, Workshop
from cleave.runtime.search_store import search

STRATEGIES = (
    ("none", "X26"), ("vertical", "X23"), ("vertical-dup", "X23"), ("vertical-dup+merger", "X22"),
    ("vertical-dup+merger", "X23"), ("multi-output", "X26"), ("horizontal", "X23"), ("priority", "X26"),
    ("xla", "X22"), ("xla", "X23"), ("xla", "X26"), ("cleave", "X26"),
)  # fmt: skip
SLACK = 1.03
"""What `cleave` may take of the best other strategy's time."""
MOST_LAUNCHES = 400
"""Plans with more kernels are not built."""
LEAST_RUNS, MOST_RUNS = 7, 200

MEASURED = (
    "launches", "microseconds", "least_us", "runs", "error", "allowed", "failure", "scheduled_us",
    "peak_bytes",
)  # fmt: skip
"""What rows with the same kernels share."""
MANY = {
    "cuda": ((1024, 1024), (1024,), (4096, 256), (4096,)),
    "cpu": ((128, 128), (128,), (512, 64), (512,)),
}
"""Shapes of the optimiser's tensors."""

Tensor = torch.Tensor
Row = dict[str, Any]
clock = time.perf_counter


@dataclass(frozen=True)
class Subject:
    """A program of the suite and its inputs on a target."""

    name: str
    function: Callable[..., Any]
    inputs: Callable[[str, Callable[..., Tensor]], tuple[Tensor, ...]]
    length: int = 1
    """Elements that are summed for one result, for the tolerance of float32."""


def softmax(x):
    return torch.softmax(x, -1)


def layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b)


def gelu_mlp(x, w, b):
    return F.gelu(F.linear(x, w, b), approximate="tanh")


def optimiser(*tensors):
    """Adam, one step, over many tensors: parameters, gradients, both moments."""
    count = len(tensors) // 4
    results = []
    for k in range(count):
        p, g, m, v = tensors[k::count]
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        results += [p - 0.001 * m / (v.sqrt() + 1e-8), m, v]
    return tuple(results)


def residual_norm_quantise(x, r, w):
    y = x + r
    z = y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-6) * w
    s = z.abs().amax(-1, keepdim=True) / 127
    return y, torch.round(z / s), s


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


def _wide(target: str, draw: Callable[..., Tensor], *more: int) -> tuple[Tensor, ...]:
    rows, columns = (4096, 2048) if target == "cuda" else (512, 1024)
    return (*(draw(rows, columns) for _ in range(more[0])), *(draw(columns) for _ in range(more[1])))


def _mlp(target: str, draw: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    rows, inner, outer = (2048, 1024, 4096) if target == "cuda" else (128, 256, 512)
    made = draw(rows, inner), draw(outer, inner) * inner**-0.5, draw(outer)
    return tuple(t.half() for t in made) if target == "cuda" else made


def _many(target: str, draw: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    shapes = MANY[target]
    every = [shapes[k % len(shapes)] for k in range(16)]
    drawn = [[draw(*s) for s in every] for _ in range(4)]
    return (*drawn[0], *drawn[1], *drawn[2], *(v.abs() for v in drawn[3]))


def _heads(target: str, draw: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    shape = (8, 1024, 64) if target == "cuda" else (2, 256, 64)
    made = draw(*shape), draw(*shape), draw(*shape)
    return tuple(t.half() for t in made) if target == "cuda" else made


SUBJECTS = (
    Subject("softmax", softmax, lambda t, d: _wide(t, d, 1, 0), 2048),
    Subject("layer norm", layer_norm, lambda t, d: _wide(t, d, 1, 2), 2048),
    Subject("GELU MLP epilogue", gelu_mlp, _mlp, 1024),
    Subject("residual+norm+quantise", residual_norm_quantise, lambda t, d: _wide(t, d, 2, 1), 2048),
    Subject("attention unfused", attention, _heads, 1024),
    Subject("optimiser update", optimiser, _many),
)


# ---------------------------------------------------------------- one program


@dataclass
class _Built:
    """A strategy's plan with its kernels, and under which row it is run (itself, or an equal one)."""

    row: Row
    plan: Plan
    pieces: tuple[Piece, ...]
    planned: Planned | None = None
    call: Callable[[], Sequence[Tensor]] | None = None
    samples: list[float] | None = None


def planned_rows(subject: Subject, target: str, program: Program) -> list[_Built]:
    """What every strategy makes of a program; nothing is built yet."""
    graph = graph_of(named(program))
    device = device_named("h200" if target == "cuda" else "cpu")
    found: list[_Built] = []
    for strategy, epoch in STRATEGIES:
        start = clock()
        plan = plan_fusion(graph, strategy, Rules(epoch, device))
        totals = plan.totals
        row: Row = {
            "program": subject.name,
            "strategy": strategy,
            "epoch": epoch,
            "planned_launches": totals.launches,
            "modelled_bytes": totals.bytes,
            "modelled_peak_bytes": totals.peak,
            "modelled_us": totals.seconds * 1e6,
            "duplicated": totals.duplicated,
            "notes": list(plan.notes),
            "planning_ms": (clock() - start) * 1e3,
            "failure": "",
        }
        found.append(_Built(row, plan, pieces_of(plan, program)))
    return found


def others(program: Program) -> list[Candidate]:
    """What the algebra finds for a piece: ours may use it."""
    return list(assigned(usable(program, search(program).candidates), program))


class Run:
    """The suite on one target; keeps what is built, and writes all rows after each."""

    def __init__(self, target: str, json_file: Path | None, budget: float) -> None:
        self.target, self.json_file = target, json_file
        self.deadline = clock() + budget
        self.workshop = Workshop(target)
        self.rows: list[Row] = []

    def subject(self, subject: Subject, share: float) -> None:
        """Plan, build, check and time one program; `share` is its part of the time that is left."""
        until = clock() + max(0.0, self.deadline - clock()) * share
        device = "cuda" if self.target == "cuda" else "cpu"
        generator = torch.Generator(device).manual_seed(7)
        inputs = subject.inputs(self.target, lambda *s: torch.randn(*s, generator=generator, device=device))
        name = subject.name.split()[0].replace("+", "_")
        captured = capture(subject.function, inputs, dynamic={}, name=name)
        program = captured.program
        built = planned_rows(subject, self.target, program)
        self.rows += [b.row for b in built]
        expected = reference(subject.function, inputs)
        eager = errors(as_tuple(subject.function(*inputs)), expected)
        allowed = allowed_error(eager, inputs[0].dtype, subject.length)
        own = {id(b): _distinct(b, built) for b in built}
        firsts = [b for b in built if own[id(b)] is b]
        self._build_all(firsts, program)
        names = [n.op.name for n in program.inputs]  # type: ignore[union-attr]
        arguments = dict(zip(_parameters(captured, len(inputs)), inputs, strict=True))
        args = [arguments[n] for n in names]
        for b in firsts:
            self._checked(b, args, expected, allowed, until)
            self.write()
        self._timed([b for b in firsts if b.call is not None], subject, inputs, until)
        for b in built:
            first = own[id(b)]
            if first is not b:
                b.row |= {k: first.row[k] for k in MEASURED if k in first.row}
                b.row["same_as"] = f"{first.row['strategy']} {first.row['epoch']}"
        self._judged(built)
        self.write()
        for b in built:
            print(line(b.row), flush=True)

    def _build_all(self, firsts: Sequence[_Built], program: Program) -> None:
        def make(b: _Built) -> None:
            if len(b.pieces) > MOST_LAUNCHES:
                b.row["failure"] = f"{len(b.pieces)} kernels: not built"
                return
            if clock() > self.deadline:
                b.row["failure"] = "no time left"
                return
            start = clock()
            try:
                more = others if b.row["strategy"] == "cleave" else None
                b.planned = self.workshop.planned(program, b.pieces, {}, more)
                b.row["launches"] = b.planned.launches
                b.row["scheduled_us"] = b.planned.seconds * 1e6
            except Exception as error:  # noqa: BLE001  a strategy that fails is a row
                b.row["failure"] = _short(error)
            b.row["build_seconds"] = clock() - start

        # `cleave` first: where time runs out, the question is what it can do.
        order = sorted(firsts, key=lambda b: (b.row["strategy"] != "cleave", len(b.pieces)))
        if self.target == "cuda":
            with ThreadPoolExecutor(6) as pool:
                list(pool.map(make, order))
        else:
            for b in order:
                make(b)

    def _checked(
        self, b: _Built, args: Sequence[Tensor], expected: Sequence[Tensor], allowed: float, until: float
    ) -> None:
        if b.planned is None:
            return
        if clock() > max(until, self.deadline):
            b.row["failure"] = "no time left"
            return
        planned = b.planned
        try:
            found = self._measured(b.row, planned, args)
            b.row["error"], b.row["allowed"] = errors(found, tuple(expected)), allowed
            del found
            if b.row["error"] > allowed:
                b.row["failure"] = f"wrong: error {b.row['error']:.2e}, allowed {allowed:.2e}"
                return
            run = lambda: planned(*args)  # noqa: E731
            if self.target == "cuda":
                from benchmarks.cartpole_case import graphed

                run = graphed(run)
            b.call = run
        except Exception as error:  # noqa: BLE001  a strategy that fails is a row
            b.row["failure"] = _short(error)

    def _measured(self, row: Row, planned: Planned, args: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results of a call; on a GPU with the memory that it takes beside its arguments."""
        if self.target != "cuda":
            return planned(*args)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = planned(*args)
        torch.cuda.synchronize()
        row["peak_bytes"] = torch.cuda.max_memory_allocated() - before
        return found

    def _timed(
        self, ready: Sequence[_Built], subject: Subject, inputs: Sequence[Tensor], until: float
    ) -> None:
        """All rows interleaved; eager beside them."""
        eager: Row = {"program": subject.name, "strategy": "PyTorch eager", "epoch": "", "failure": ""}
        self.rows.append(eager)
        watch = Clock("cuda" if self.target == "cuda" else "cpu")
        calls = {id(b.row): b.call for b in ready if b.call is not None}
        rows = {id(b.row): b.row for b in ready} | {id(eager): eager}
        calls[id(eager)] = lambda: subject.function(*inputs)
        samples: dict[int, list[float]] = {key: [] for key in calls}
        for call in calls.values():
            watch.once(call)
        turn = 0
        while turn < MOST_RUNS and (turn < LEAST_RUNS or clock() < until):
            for key, call in calls.items():
                samples[key].append(watch.once(call))
            turn += 1
        for key, times in samples.items():
            rows[key]["microseconds"] = statistics.median(times) * 1e6
            rows[key]["runs"] = len(times)
            rows[key]["least_us"] = min(times) * 1e6

    def _judged(self, built: Sequence[_Built]) -> None:
        """How ours stands against the best of the others."""
        ours = next(b.row for b in built if b.row["strategy"] == "cleave")
        times = [b.row["microseconds"] for b in built if b.row is not ours and "microseconds" in b.row]
        if "microseconds" in ours and times:
            ours["of_best"] = ours["microseconds"] / min(times)

    def write(self) -> None:
        """All rows so far."""
        if self.json_file is None:
            return
        data = {
            "suite": "fusion",
            "target": self.target,
            "device": device_name(self.target),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "rows": self.rows,
        }
        self.json_file.write_text(json.dumps(data, indent=1) + "\n")


def _distinct(b: _Built, built: Sequence[_Built]) -> _Built:
    """The first row with the same kernels; `cleave` may use algebra and is always one of its own."""
    if b.row["strategy"] == "cleave":
        return b
    mine = {p.program for p in b.pieces}
    return next(o for o in built if o is b or {p.program for p in o.pieces} == mine)


def _parameters(captured: Any, count: int) -> list[str]:
    names = [n.op.name for n in captured.program.inputs]
    assert len(names) == count, f"{len(names)} arguments of {count} are read"
    return names


def _short(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def line(row: Row) -> str:
    """A row as a line of text."""
    time_text = f"{row['microseconds']:10.1f} us" if "microseconds" in row else " " * 13
    more = row["failure"] or (f"as {row['same_as']}" if "same_as" in row else "")
    more += f"{row['of_best']:.3f} of the best other" if "of_best" in row else ""
    launches = row.get("launches", "")
    return (
        f"{row['program']:<24}{row['strategy']:<22}{row['epoch']:<5}{row['planned_launches']:>4} planned"
        f"{launches:>5} launched {row['modelled_bytes'] / 1e6:9.2f} MB"
        f" {row['modelled_peak_bytes'] / 1e6:9.2f} MB{time_text}  {more}"
    )


def run_fusion(
    target: str,
    *,
    cases: Sequence[str] | None = None,
    json_file: Path | None = None,
    budget: float | None = None,
) -> int:
    """Run the suite on `cpu` or `cuda`; returns how many rows are wrong or where ours is too slow. With
    `cases`, rows of other programs that `json_file` has stay there."""
    run = Run(target, json_file, 90.0 if budget is None else budget)
    subjects = [s for s in SUBJECTS if not cases or any(c in s.name for c in cases)]
    if cases and json_file is not None and json_file.exists():  # the other programs' rows stand
        again = {s.name for s in subjects}
        run.rows += [r for r in earlier(json_file, target)["rows"] if r["program"] not in again]
    for number, subject in enumerate(subjects):
        run.subject(subject, 1 / (len(subjects) - number))
    slow = [r for r in run.rows if r.get("of_best", 0.0) > SLACK]
    wrong = [r for r in run.rows if r["failure"].startswith("wrong")]
    for r in slow:
        print(f"{r['program']}: cleave takes {r['of_best']:.3f} of the best other strategy's time")
    return len(slow) + len(wrong)
