"""One case in one dtype on one device: compiled once, then checked and timed at its points.

`Runner.prepare` does everything that needs no measuring device (capture, search, planning, building for all
points), so that many cases can prepare side by side while one is measured. `Runner.measure` gives one
record an implementation; whatever fails is a record that says so.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

import cleave
from benchmarks.case import Case, Sizes, Tensors, pieces
from benchmarks.compiling import Phases, ablated, captured, compiled, meta
from benchmarks.harness import (
    Clock,
    Outputs,
    Row,
    judge,
    quick_time,
    reference,
    shown,
    time_all,
)
from benchmarks.memory import launches_of, peak_bytes
from benchmarks.peers import NotInstalled, Peer, Setting, peers_of, settings_in_turn
from benchmarks.peers_jax import JaxCall
from benchmarks.reused import Record, with_reused
from cleave.ir.dims import Dim
from cleave.ir.program import Program
from cleave.ir.text import print_program
from cleave.pipeline import TARGETS, Compiled, Launched
from cleave.report.schedule import bytes_text

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SETS = 3
MOST_SET_BYTES, MOST_KEPT_BYTES = 4 << 30, 1 << 30
"""Of larger inputs there is one set; of smaller ones what the next point can use again is kept."""
LEAST_FREE = 0.4
"""The share of a GPU's memory that is kept free between implementations."""
TUNED = " tuned"
"""Ends the name of a peer's row at its best setting."""

MOST_COMPILES = 100
"""Of one function by torch.compile in one process: FlexAttention is compiled for each of its settings."""


@dataclass(frozen=True)
class Options:
    """What a run is asked for. `peers` is none, quick or full; `sweep` are seconds for the settings of one
    peer at one point; `ablations` are what to leave out, each as an implementation of its own; where `only`
    names peers, no others are measured."""

    target: str
    peers: str = "quick"
    budget: float = 0.5
    sweep: float = 0.0
    ablations: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    repeats: int = 50

    @property
    def effort(self) -> str:
        """What the peers that are measured may take: those named are found among all there are."""
        return "full" if self.only else self.peers

    @property
    def device(self) -> str:
        return "cuda" if self.target == "cuda" else "cpu"


@dataclass
class Kept:
    """A compile of ours for some fixed sizes, or why there is none."""

    phases: Phases = field(default_factory=Phases)
    whole: Compiled | None = None
    jit: Callable[..., object] | None = None
    failure: str = ""


@dataclass
class Point:
    """One point while it is measured. Row 0 is eager's, whose error sets the tolerance."""

    sizes: Sizes
    sets: list[Tensors]
    references: list[Outputs]
    rows: list[Row] = field(default_factory=list[Row])
    calls: dict[str, Callable[..., object]] = field(default_factory=dict[str, Callable[..., object]])

    def check(self, name: str, call: Callable[..., object]) -> Row:
        """Add the row of an implementation that runs, right or not."""
        self.rows.append(self.judged(name, call, len(self.sets)))
        self.calls[name] = call
        return self.rows[-1]

    def judged(self, name: str, call: Callable[..., object], sets: int) -> Row:
        """Whether an implementation is right on so many input sets."""
        eager = self.rows[0].error if self.rows else math.nan
        return judge(name, call, self.sets[:sets], self.references[:sets], eager, max(self.sizes.values()))

    def fail(self, name: str, why: str) -> None:
        self.rows.append(Row(name, failure=why))


class Runner:
    """Runs the points of one case; see the module."""

    def __init__(self, case: Case, dtype: str, options: Options) -> None:
        self.case, self.dtype, self.options = case, dtype, options
        self.kept: dict[tuple[tuple[str, int], ...], Kept] = {}
        self.tensors: dict[tuple[Any, ...], torch.Tensor] = {}
        self.reduced: dict[tuple[Any, ...], Launched | str] = {}
        self.winners: dict[str, list[str]] = {}
        self.clock: Clock | None = None

    # ------------------------------------------------------------ before the device is needed

    def prepare(self, points: Sequence[Sizes]) -> None:
        """Compile for all points."""
        if self.options.device == "cuda":
            self._wake()
        for sizes in points:
            kept = self._kept(sizes)
            if kept.whole is None:
                continue
            began = time.perf_counter()
            try:
                kept.whole.prepare(*meta(self.case, sizes, DTYPES[self.dtype]))
            except Exception as error:  # noqa: BLE001  the point's row will show it
                kept.failure = kept.failure or shown(error)
            further = time.perf_counter() - began
            kept.phases.seconds["further"] = kept.phases.seconds.get("further", 0.0) + further
            for what in self.options.ablations:
                with suppress(RuntimeError):  # the point's row will show it
                    self._ablated(sizes, what)

    def _wake(self) -> None:
        """What each process pays once: a context, cuBLAS, torch.compile's modules. Other children may be
        measuring meanwhile, which a median does not notice."""
        x = torch.ones(16, 16, device="cuda")
        self.clock = Clock("cuda")
        if self.options.effort != "none":
            try:
                torch.compile(lambda t: t @ t + 1.0)(x)
            except Exception:  # noqa: BLE001  the peers' rows will show it
                return
        torch.cuda.synchronize()

    def _kept(self, sizes: Sizes) -> Kept:
        """The compile that serves a point's fixed sizes."""
        key = self.case.key(sizes)
        if key not in self.kept:
            kept = self.kept[key] = Kept()
            dtype = DTYPES[self.dtype]
            try:
                program = kept.phases.timed("capture", lambda: captured(self.case, sizes, dtype))
                kept.whole = compiled(program, self.options.target, bound(program, sizes), kept.phases)
            except Exception as error:  # noqa: BLE001  shown as the row's failure
                kept.failure = shown(error)
        return self.kept[key]

    def _ablated(self, sizes: Sizes, what: str) -> Launched:
        """Ours with something left out, for one point's sizes; `RuntimeError`, each time, if none is."""
        kept = self._kept(sizes)
        if kept.whole is None:
            raise RuntimeError(kept.failure)
        program = kept.whole.plan.program
        key = (what, tuple(sorted(sizes.items())))
        if key not in self.reduced:
            try:
                self.reduced[key] = ablated(program, self.options.target, bound(program, sizes), what)
            except Exception as error:  # noqa: BLE001  remembered, so that it is not planned again
                self.reduced[key] = shown(error)
        found = self.reduced[key]
        if isinstance(found, str):
            raise RuntimeError(found)
        return found

    # ------------------------------------------------------------ on the device

    def ours(self, sizes: Sizes) -> tuple[Callable[..., object], Tensors]:
        """Our function at a point and inputs for it, as they are timed."""
        self.prepare([sizes])
        inputs = self._sets(sizes)[0]
        return self._jit(sizes, inputs), inputs

    def measure(self, phase: str, sizes: Sizes, reused: Sequence[Record] = ()) -> list[Record]:
        """The records of one point. `reused` are a peer's records from an earlier run on such a device."""
        began = time.perf_counter()
        torch._dynamo.reset()
        torch._dynamo.config.recompile_limit = MOST_COMPILES
        self.clock = self.clock or Clock(self.options.device)
        sets = self._sets(sizes)
        with torch.no_grad():
            point = Point(sizes, sets, [self._reference(sizes, inputs) for inputs in sets])
            point.check("eager", self.case.function)
            self._free()
            for peer in self._peers(sizes, {r["implementation"] for r in reused}):
                self._peer(peer, point)
                self._free()
            for what in self.options.ablations:
                self._ours(point, f"cleave {what}", lambda what=what: self._without(sizes, sets[0], what))
            self._ours(point, "cleave", lambda: self._jit(sizes, sets[0]))
            self._time(point)
            records = [self._record(phase, r, point) for r in point.rows]
        records = with_reused(records, reused)
        records[-1]["point_seconds"] = time.perf_counter() - began
        del point
        self._forget(sets)
        return records

    def _peers(self, sizes: Sizes, known: set[str]) -> list[Peer]:
        """The peers to measure now: those asked for by name, or all that no earlier run knows."""
        only = self.options.only
        every = peers_of(self.case, sizes, self.options.target, self.options.effort)
        return [p for p in every if (p.name in only if only else p.name not in known)]

    def _ours(self, point: Point, name: str, made: Callable[[], Callable[..., object]]) -> None:
        try:
            call = made()
        except Exception as error:  # noqa: BLE001  shown as the row's failure
            point.fail(name, shown(error))
            return
        first = self._first_call(call, point.sets[0]) if name == "cleave" else math.nan
        row = point.check(name, call)
        if name == "cleave" and not row.failure:
            row.notes["first_call_seconds"] = first
            self._footprint(row, call)

    def _first_call(self, call: Callable[..., object], inputs: Tensors) -> float:
        """Seconds of the first call at a point, until the device has finished; one that raises is judged
        later."""
        began = time.perf_counter()
        try:
            call(*inputs)
            if self.options.device == "cuda":
                torch.cuda.synchronize()
        except Exception:  # noqa: BLE001  shown when it is judged
            return math.nan
        return time.perf_counter() - began

    def _jit(self, sizes: Sizes, inputs: Tensors) -> Callable[..., object]:
        """Our function as a user has it; it takes what `prepare` has made."""
        kept = self._kept(sizes)
        if kept.whole is None:
            raise RuntimeError(kept.failure)
        if kept.jit is None:
            kept.jit = cleave.compile(
                self.case.function, inputs, dynamic=self.case.marks, compile_program=self._taken(kept)
            )
        return kept.jit

    def _without(self, sizes: Sizes, inputs: Tensors, what: str) -> Callable[..., object]:
        """Ours with something left out, called as ours is."""
        launcher = self._ablated(sizes, what)
        take = lambda *_, **__: launcher  # noqa: E731
        return cleave.compile(self.case.function, inputs, dynamic=self.case.marks, compile_program=take)

    def _taken(self, kept: Kept) -> Callable[..., Compiled]:
        def take(program: Program, *, target: str, sizes: Mapping[Dim, int]) -> Compiled:
            assert kept.whole is not None
            if print_program(program) == print_program(kept.whole.plan.program):
                return kept.whole
            kept.phases = Phases()
            return compiled(program, target, sizes, kept.phases)

        return take

    def _footprint(self, row: Row, jit: Callable[..., object]) -> None:
        """Launches and workspace of our own row; a row that ran in PyTorch is a failure, not a result."""
        assert isinstance(jit, cleave.Jit)
        if jit.fallbacks or len(jit.compiled) != 1:
            reasons = "; ".join(str(f) for f in jit.fallbacks) or f"{len(jit.compiled)} programs"
            row.failure = f"not compiled as one program: {reasons}"

    def _peer(self, peer: Peer, point: Point) -> None:
        """A peer at its defaults, and, within the budget, at the best of its settings."""
        try:
            settings = peer.settings()
            _, call = next(settings)
        except NotInstalled as error:
            point.fail(peer.name, str(error))
            return
        except Exception as error:  # noqa: BLE001  a peer that fails is a row, whatever it raises
            point.fail(peer.name, shown(error))
            return
        first = point.check(peer.name, call)
        if not self.options.sweep:
            return
        others = settings_in_turn(settings, self.winners.get(peer.name, []))
        best, tried = self._swept(call if first.correct else None, others, point)
        first.notes["swept"] = tried
        if best is not None:
            setting, call = best
            point.check(f"{peer.name}{TUNED}", call).notes |= {"setting": setting, "tried": tried}
            self.winners[peer.name] = [setting, *self.winners.get(peer.name, [])]

    def _swept(
        self, first: Callable[..., object] | None, settings: Sequence[Setting], point: Point
    ) -> tuple[Setting | None, int]:
        """The fastest correct setting that beats the defaults, and how many were tried."""
        assert self.clock is not None
        deadline = time.perf_counter() + self.options.sweep
        inputs = point.sets[0]
        least = quick_time(first, inputs, self.clock) if first is not None else math.inf
        found: Setting | None = None
        tried = 0
        for setting, call in settings:
            if time.perf_counter() > deadline:
                break
            tried += 1
            if not point.judged("", call, 1).correct:
                continue
            seconds = quick_time(call, inputs, self.clock)
            if seconds < least:
                least, found = seconds, (setting, call)
        return found, tried

    def _time(self, point: Point) -> None:
        """Fill in the times of what is right."""
        assert self.clock is not None
        right = {r.implementation: point.calls[r.implementation] for r in point.rows if r.correct}
        own = {name: call for name, call in right.items() if isinstance(call, JaxCall)}
        others = {n: c for n, c in right.items() if n not in own}
        options = self.options
        timed = time_all(others, point.sets, self.clock, options.budget, options.repeats)
        for row in point.rows:
            name = row.implementation
            if name in own:
                row.seconds, row.notes["runs"] = own[name].seconds(point.sets, options.repeats)
                row.notes["timed"] = "wall clock, calls queued in a row"
            elif name in timed:
                row.seconds = timed[name].seconds
                row.notes |= {"warm_seconds": timed[name].warm, "runs": timed[name].runs}
            if row.correct and self.case.memory:
                row.notes["peak_bytes"] = peak_bytes(point.calls[name], point.sets[0], options.device)
            if row.correct and options.effort == "full" and options.device == "cuda":
                row.notes["launches"] = launches_of(point.calls[name], point.sets[0])

    def _record(self, phase: str, row: Row, point: Point) -> Record:
        sizes, inputs, outputs = point.sizes, point.sets[0], point.references[0]
        if row.implementation == "cleave":
            phases = self._kept(sizes).phases
            row.notes["phases"] = {k: round(v, 4) for k, v in phases.seconds.items()}
            row.notes["compile_seconds"] = phases.total - phases.seconds.get("further", 0.0)
            jit = point.calls.get("cleave")
            if row.correct and isinstance(jit, cleave.Jit):
                row.notes |= footprint(jit, inputs)
        floor, limit = floor_of(self.case, sizes, self.dtype, self.options.target, inputs, outputs)
        known = row.seconds == row.seconds
        return {
            "case": self.case.name,
            "row": self.case.row,
            "phase": phase,
            "sizes": dict(sizes),
            "dtype": self.dtype,
            "implementation": row.implementation,
            "error": row.error,
            "allowed": row.allowed,
            "seconds": row.seconds,
            "failure": row.failure,
            **row.notes,
            "tflops": self.case.flops(sizes) / row.seconds / 1e12 if known else None,
            "floor_seconds": floor,
            "limit": limit,
            "fraction": floor / row.seconds if known else None,
            "date": time.strftime("%Y-%m-%d"),
        }

    # ------------------------------------------------------------ inputs, references, floors

    def _sets(self, sizes: Sizes) -> list[Tensors]:
        """Input sets; what the point before has made and this one needs as well is taken again."""
        dtype, device = DTYPES[self.dtype], self.options.device
        kept, self.tensors = self.tensors, {}
        width = dtype.itemsize
        total = sum(width * math.prod(self.case.shape(n, sizes)) for n in self.case.inputs)
        sets: list[Tensors] = []
        for seed in range(SETS if total <= MOST_SET_BYTES else 1):
            made: list[torch.Tensor] = []
            for name in self.case.inputs:
                key = (
                    name,
                    seed,
                    *self.case.shape(name, sizes),
                    sizes.get(self.case.integers.get(name, ""), 0),
                )
                if key not in kept:
                    kept[key] = self.case.one(name, sizes, dtype, device, seed)
                self.tensors[key] = kept[key]
                made.append(kept[key])
            sets.append(tuple(made))
        return sets

    def _forget(self, sets: list[Tensors]) -> None:
        sets.clear()
        if sum(t.numel() * t.element_size() for t in self.tensors.values()) > MOST_KEPT_BYTES:
            self.tensors.clear()
        if self.options.device == "cuda":
            torch.cuda.empty_cache()

    def _free(self) -> None:
        """Give memory back where it is getting scarce: other children hold some, too."""
        if self.options.device == "cuda":
            free, total = torch.cuda.mem_get_info()
            if free < LEAST_FREE * total:
                gc.collect()
                torch.cuda.empty_cache()

    def _reference(self, sizes: Sizes, inputs: Tensors) -> Outputs:
        """The function in float64 on the device, piece by piece where it is large."""
        rows, keys = sizes.get("S", 1), sizes.get("T", 1)
        if not self.case.independent or rows * keys < 1 << 22:
            return reference(self.case.function, inputs)
        parts = [reference(self.case.function, piece) for piece in pieces(self.case, sizes, inputs)]
        return tuple(torch.cat(each, self.case.joined) for each in zip(*parts, strict=True))


def floor_of(
    case: Case, sizes: Sizes, dtype: str, target: str, inputs: Tensors, outputs: Outputs
) -> tuple[float, str]:
    """Seconds that the device's ceilings allow, and which one it is: memory or arithmetic. They are measured
    where `cleave calibrate` has left a machine, else built in."""
    machine, width = TARGETS[target], DTYPES[dtype].itemsize
    if case.bytes is not None:
        moved = case.bytes(sizes, width)
    else:
        read = sum(t.numel() * t.element_size() for t in inputs)
        moved = read + sum(t.numel() * width for t in outputs)
    work = case.flops(sizes) / (machine.rate(dtype) * machine.cores)
    return max((work, "arithmetic"), (moved / machine.memory, "memory"))


def bound(program: Program, sizes: Sizes) -> dict[Dim, int]:
    """A point's sizes by the program's dynamic dims."""
    return {atom: sizes[atom.name] for atom in program.dynamic}


def footprint(jit: cleave.Jit, inputs: Tensors) -> dict[str, object]:
    """Launches, workspace in bytes and as a formula in sizes and parts, and how often it was compiled."""
    program = jit.compiled[0]
    assert isinstance(program, Compiled)
    launches, workspace = program.footprint(*inputs)
    spaces = " + ".join(bytes_text(t) for t in program.serving(*inputs).workspaces) or "0"
    return {
        "launches": launches,
        "workspace_bytes": workspace,
        "workspace": spaces,
        "compiles": jit.compile_count,
    }
