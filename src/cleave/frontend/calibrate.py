"""`cleave calibrate`: what the device at hand can do, measured with kernels of our own.

Each probe is a small program whose time is decided by one constant of the cost model
(`cleave.schedule.machine.Machine`): streams for the bandwidths, chains of pointwise operations for the
arithmetic, a square product for the matrix rates, an all but empty kernel for a launch. What is measured
replaces the built-in figure; the rest stays. The result is a text file (`cleave.runtime.machines`) that the
cost model reads from then on.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from cleave.codegen.source import Argument, Entry, Source
from cleave.errors import BuildError, Infeasible, Invalid
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Atom, Dim
from cleave.ir.parse import parse_program
from cleave.ir.program import Program
from cleave.pipeline import launcher_for, plan
from cleave.runtime import machines
from cleave.runtime.build import build
from cleave.runtime.clock import Clock
from cleave.runtime.judge import Value, make_inputs
from cleave.runtime.launch import Launcher
from cleave.runtime.written import check_writable, write_whole
from cleave.schedule.machine import Machine
from cleave.schedule.select import Ranked, best
from cleave.version import VERSION

CHAIN = 32
"""Operations per element in the chains: enough that memory does not matter."""
TRIED = {"cpu": 1, "cuda": 4}
"""Tile programs that are tried for a probe; the fastest counts."""
STREAM = {"cpu": 1 << 23, "cuda": 1 << 26}
SQUARE = {"cpu": 640, "cuda": 4096}
FARTHEST = 30.0
"""A figure that is so many times more or less than the built-in one is not believed."""
IN_GRAPH = 20
ASLEEP = 0.01
"""Seconds after which threads that wait for work are asleep."""


@dataclass(slots=True)
class Calibrated:
    """The fitted machine, the one it started from, and where it is kept. `notes` says what was left out."""

    machine: Machine
    before: Machine
    path: Path
    notes: list[str] = field(default_factory=list[str])

    def rows(self) -> list[tuple[str, float, float]]:
        """What changed: name, before, now."""
        return [
            (name, old, new)
            for (name, old), (_, new) in zip(_figures(self.before), _figures(self.machine), strict=True)
            if old != new
        ]

    def text(self) -> str:
        """For people."""
        lines = [f"{self.machine.name}", f"{'constant':16} {'built in':>12} {'measured':>12}"]
        lines += [f"{name:16} {old:12.4g} {new:12.4g}" for name, old, new in self.rows()]
        lines += [f"left as it was: {note}" for note in self.notes]
        return "\n".join([*lines, f"kept in {self.path}"]) + "\n"

    def data(self) -> dict[str, object]:
        """The same for `--json`."""
        constants = {name: {"before": old, "measured": new} for name, old, new in self.rows()}
        return {
            "device": self.machine.name,
            "path": str(self.path),
            "constants": constants,
            "notes": self.notes,
        }


def calibrate(target: str, *, budget: float = 60.0, out: Path | None = None) -> Calibrated:
    """Fit the constants of a target's device and keep them. `Invalid` if there is no such device, or if the
    file cannot be written."""
    if target not in TRIED:
        raise Invalid(f"target {target!r} cannot be measured", hint=f"one of {', '.join(TRIED)}")
    if target == "cuda" and not torch.cuda.is_available():
        raise Invalid("target cuda: torch finds no GPU here", hint="target cpu")
    path = out if out is not None else machines.machine_file(target)
    check_writable(path, head="cleave machine", made=True)
    before = _device(target)
    fit = _Fit(target, before, time.monotonic() + budget)
    fitted = fit.run()
    notes = {
        "made": f"cleave {VERSION}, torch {torch.__version__}, {datetime.date.today()}",
        "device": machines.device_name(target),
    }
    try:
        write_whole(path, machines.print_machine(fitted, notes))
    except OSError as error:
        raise Invalid(f"{path} cannot be written: {error.strerror}") from error
    machines.forget()
    return Calibrated(fitted, before, path, fit.notes)


def _device(target: str) -> Machine:
    """The built-in machine with what the device says of itself."""
    base = machines.built_in(target, torch.get_num_threads())
    if target == "cpu":
        return replace(base, name=machines.device_name(target))
    known = torch.cuda.get_device_properties(0)
    shared = getattr(known, "shared_memory_per_block_optin", 0) or base.core_bytes
    return replace(
        base,
        name=known.name,
        cores=known.multi_processor_count,
        near_bytes=known.L2_cache_size or base.near_bytes,
        core_bytes=shared,
    )


def _figures(machine: Machine) -> list[tuple[str, float]]:
    plain = ("cores", "near_bytes", "core_bytes", "launch", "gathering")
    plain = (*plain, "memory", "near", "vector", "special", "division")
    found = [(name, float(getattr(machine, name))) for name in plain]
    return found + [(f"matrix.{dtype}", rate) for dtype, rate in sorted(machine.matrix.items())]


# ---------------------------------------------------------------- probes


def chain(fn: str) -> Program:
    """A chain of `CHAIN` times one operation for each element."""
    one = {
        "exp": "  v{n}[i: N]: f32 = exp(u{n}[i])\n  u{m}[i: N]: f32 = neg(v{n}[i])\n",
        "div": "  v{n}[i: N]: f32 = add(u{n}[i], 1.5)\n  u{m}[i: N]: f32 = div(x[i], v{n}[i])\n",
        "mul": "  v{n}[i: N]: f32 = mul(u{n}[i], x[i])\n  u{m}[i: N]: f32 = add(v{n}[i], x[i])\n",
    }[fn]
    lines = [one.format(n=n, m=n + 1) for n in range(CHAIN)]
    first = "  u0[i: N]: f32 = add(x[i], 0.25)\n"
    return parse_program(
        f"program chain_{fn}(x: f32[N]) {{\n{first}{''.join(lines)}  return u{CHAIN}[i]\n}}\n"
    )


def stream() -> Program:
    """One number more for each element."""
    return parse_program("program stream(x: f32[N]) {\n  y[i: N]: f32 = add(x[i], 1.5)\n  return y[i]\n}\n")


def product(dtype: str, size: int) -> Program:
    """A square product."""
    return parse_program(
        f"program product(x: {dtype}[M, K], w: {dtype}[K, L]) where K = {size}, L = {size} {{\n"
        f"  y[m: M, l: L]: {dtype} = contract[k: K](x[m, k], w[k, l])\n  return y[m, l]\n}}\n"
    )


def gathering() -> Source:
    """A kernel of one empty block for each thread."""
    text = """#include "cpp_runtime.h"

extern "C" int gathering(cleave::i64 threads) {
  #pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (cleave::i64 block = 0; block < threads; ++block) asm volatile("");
  return 0;
}
"""
    return Source("c++", text, (Entry("gathering", "gathering", (Argument("threads", "threads"),), ()),))


class _Fit:
    """The probes of one device, one after the other while there is time."""

    def __init__(self, target: str, before: Machine, deadline: float) -> None:
        self.target, self.before, self.deadline = target, before, deadline
        self.machine = before
        self.clock = Clock(target)
        self.notes: list[str] = []

    def run(self) -> Machine:
        cores, n = self.before.cores, STREAM[self.target]
        if self.target == "cpu" and cores > 1:
            self._probe("gathering", self._gathering)
        self._probe("launch", self._launch)
        self._probe("memory", lambda: 8 * n / self._work(stream(), n))
        self._probe("near", self._near)
        self._probe("vector", lambda: 2 * CHAIN * n / self._work(chain("mul"), n) / cores)
        self._probe("special", lambda: CHAIN * n / self._work(chain("exp"), n) / cores)
        self._probe("division", self._division)
        for dtype in self.before.matrix:
            if dtype != "f64":
                self._probe(f"matrix.{dtype}", lambda dtype=dtype: self._matrix(dtype))
        return self.machine

    def _probe(self, name: str, measure: Callable[[], float]) -> None:
        """Measure one constant; what fails or cannot be believed stays as it was."""
        if time.monotonic() > self.deadline:
            self.notes.append(f"{name} (no time left)")
            return
        try:
            value = measure()
        except (BuildError, Infeasible) as error:
            self.notes.append(f"{name} ({str(error).splitlines()[0]})")
            return
        head, _, key = name.partition(".")
        old = self.before.matrix[key] if key else float(getattr(self.before, head))
        if not old / FARTHEST < value < old * FARTHEST:
            self.notes.append(f"{name} (measured {value:.4g}, which is not to be believed)")
            return
        new = {**self.machine.matrix, key: value} if key else value
        self.machine = replace(self.machine, **{head: new})

    # ------------------------------------------------------------ single ones

    def _launch(self) -> float:
        launcher, args = self._made(stream(), {Atom("N"): 8})[0]
        if self.target == "cpu":  # one thread does so little alone
            return self.clock.least(lambda: launcher(*args), 0.2, most=2000) + self.machine.gathering
        launcher(*args)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(IN_GRAPH):
                launcher(*args)
        return self.clock.least(graph.replay, 0.2) / IN_GRAPH

    def _gathering(self) -> float:
        """What the threads take to wake up and to meet. Between two calls of a program they have gone on
        waiting, or have begun to sleep, which takes up to a hundred times as long: the geometric mean."""
        function = build(gathering()).functions["gathering"]
        alone = self.clock.least(lambda: function(1), 0.1, most=2000)
        awake = self.clock.least(lambda: function(self.before.cores), 0.2, most=2000)
        slept: list[float] = []
        for _ in range(20):
            time.sleep(ASLEEP)
            began = time.perf_counter()
            function(self.before.cores)
            slept.append(time.perf_counter() - began)
        return math.sqrt(max(awake - alone, 1e-9) * max(min(slept) - alone, 1e-9))

    def _near(self) -> float:
        """A stream that stays in the last shared cache."""
        n = max(1 << 16, min(self.before.near_bytes // 32, 1 << 22))
        launcher, args = self._made(stream(), {Atom("N"): n})[0]
        repeats = 8

        def several() -> None:
            for _ in range(repeats):
                launcher(*args)

        seconds = self.clock.least(several, 0.2) / repeats
        return 8 * n / max(seconds - self.machine.launch, 1e-7)

    def _division(self) -> float:
        n = STREAM[self.target]
        return self._work(chain("div"), n) / (CHAIN * n / (self.machine.special * self.before.cores))

    def _matrix(self, dtype: str) -> float:
        size = SQUARE[self.target]
        return 2 * size**3 / self._work(product(dtype, size), size, "M") / self.before.cores

    # ------------------------------------------------------------ running

    def _work(self, program: Program, size: int, dim: str = "N") -> float:
        """Seconds of a program beyond a launch."""
        made = self._made(program, {Atom(dim): size})
        times = [self.clock.least(lambda run=run, args=args: run(*args), 0.3) for run, args in made]
        return max(min(times) - self.machine.launch, 1e-7)

    def _made(self, program: Program, sizes: Mapping[Dim, int]) -> list[tuple[Launcher, list[Value]]]:
        """The likeliest tile programs of a program, built, with arguments."""
        device = "cuda" if self.target == "cuda" else "cpu"
        args = make_inputs(program, program.bind(sizes), device)
        found: list[tuple[Launcher, list[Value]]] = []
        refused: list[str] = []
        for choice in self._ranked(program, sizes):
            try:
                found.append((launcher_for(choice.tiles, self.target), args))
            except (BuildError, Infeasible) as error:
                refused.append(str(error))
            if len(found) == TRIED[self.target]:
                break
        if not found:
            raise Infeasible(f"no kernel for {program.name}: {'; '.join(refused[:1])}")
        return found

    def _ranked(self, program: Program, sizes: Mapping[Dim, int]) -> tuple[Ranked, ...]:
        if any(node.bound for node in program.nodes):
            return plan(program, target=self.target, sizes=sizes).ranked[0]
        # Nothing to rearrange, and the algebra would not leave a long chain alone.
        return best([Candidate(program, ())], program.bind(sizes), self.before)
