"""The stages in order: program, candidates, dtypes, tile programs, source, kernels.

The one place that knows the order; each stage is a function of the one before and all of them are kept on
the result, so that `explain` can show what was found, chosen and rejected.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from cleave.algebra.search import Found, search
from cleave.codegen import cpp, triton
from cleave.codegen.source import Source
from cleave.errors import Infeasible, Invalid, Unsupported
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Atom, Dim
from cleave.ir.precision import assign
from cleave.ir.program import Program
from cleave.knobs import knobs
from cleave.runtime.launch import Launcher
from cleave.schedule.machine import CPU, H200, Machine
from cleave.schedule.select import Ranked, best, estimate
from cleave.schedule.tiles import TileProgram

TARGETS: Mapping[str, Machine] = {"cpu": CPU, "cuda": H200, "interpret": H200}
"""What can be compiled for; `interpret` runs the GPU's kernels on CPU tensors, slowly."""

MOST_VARIANTS = 3
SMALL, LARGE = 16, 2048


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known before anything is built. `ranked` has, for each representative size, the best tile
    programs, best first."""

    program: Program
    target: str
    found: Found
    candidates: tuple[Candidate, ...]
    representatives: tuple[Mapping[Dim, int], ...]
    ranked: tuple[tuple[Ranked, ...], ...]

    @property
    def variants(self) -> tuple[Ranked, ...]:
        """The best tile program of each representative, without repetitions."""
        chosen: dict[TileProgram, Ranked] = {}
        for ranked in self.ranked:
            chosen.setdefault(ranked[0].tiles, ranked[0])
        return tuple(chosen.values())[:MOST_VARIANTS]


def plan(program: Program, *, target: str, sizes: Mapping[Dim, int] | None = None, count: int = 8) -> Plan:
    """Search, give dtypes, schedule. `sizes` binds dynamic dims to what is typical (512 where not given)."""
    if target not in TARGETS:
        raise Invalid(f"unknown target {target!r}", hint=f"one of {', '.join(TARGETS)}")
    found = search(program, reassociate=knobs().reassociate, numerics=knobs().numerics)
    candidates = tuple(assign(candidate, program) for candidate in usable(found.candidates))
    points = representatives(program, sizes or {})
    machine = TARGETS[target]
    ranked = tuple(best(candidates, point, machine, count=count) for point in points)
    if not all(ranked):
        raise Unsupported(f"no schedule for program {program.name} on {target}")
    return Plan(program, target, found, candidates, points, ranked)


def usable(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Those that the settings allow: stable ones unless numerics is `fast`; the user's own always."""
    fast, reassociate = knobs().numerics == "fast", knobs().reassociate
    first, *others = candidates
    if knobs().numerics == "strict":
        return (first,)
    kept = [c for c in others if (fast or c.stable) and (reassociate or not c.reassociated)]
    return (first, *kept)


def representatives(program: Program, sizes: Mapping[Dim, int]) -> tuple[Mapping[Dim, int], ...]:
    """The sizes to schedule for: the given ones, then each dynamic dim at the other end of its range."""
    given: dict[Dim, int] = {atom: sizes.get(atom, 512) for atom in program.dynamic}
    points = [given]
    for atom in program.dynamic:
        other = SMALL if given[atom] > 4 * SMALL else LARGE
        points.append({**given, atom: other})
    return tuple(program.bind(point) for point in points)


def emit(tiles: TileProgram, target: str) -> Source:
    """The source of a tile program for a target."""
    if target == "cpu":
        return cpp.emit(tiles)
    return triton.emit(tiles, precision=torch.get_float32_matmul_precision())


@dataclass(slots=True)
class Compiled:
    """A compiled program: call it with tensors and numbers in the program's input order; it returns a tuple of
    fresh tensors. Which variant serves which sizes is decided once per combination of sizes."""

    plan: Plan
    launchers: dict[int, Launcher] = field(default_factory=dict[int, Launcher])
    chosen: dict[tuple[tuple[int, ...], ...], Launcher] = field(
        default_factory=dict[tuple[tuple[int, ...], ...], Launcher]
    )
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, *args: torch.Tensor | float) -> tuple[torch.Tensor, ...]:
        key = tuple(a.shape for a in args if isinstance(a, torch.Tensor))
        launcher = self.chosen.get(key)
        if launcher is None:
            launcher = self._choose(key, args)
        return launcher(*args)

    def _choose(self, key: tuple[tuple[int, ...], ...], args: Sequence[torch.Tensor | float]) -> Launcher:
        with self.lock:
            variants = self.plan.variants
            if len(variants) == 1:
                launcher = self.launcher(0)
            else:
                sizes = self.launcher(0).sizes_of(*args)
                machine = TARGETS[self.plan.target]
                costs = [estimate(v.tiles, sizes, machine) for v in variants]
                launcher = self.launcher(min(range(len(costs)), key=lambda n: costs[n]))
            self.chosen[key] = launcher
            return launcher

    def launcher(self, number: int) -> Launcher:
        """The launcher of a variant, built on first use. A tile program that the target refuses gives way to
        the next best one of its representative."""
        if number not in self.launchers:
            self.launchers[number] = self._build(self.plan.variants[number])
        return self.launchers[number]

    def _build(self, first: Ranked) -> Launcher:
        ranked = next(r for r in self.plan.ranked if r[0].tiles == first.tiles)
        refused: list[str] = []
        for choice in ranked:
            try:
                return Launcher(choice.tiles, target=self.plan.target)
            except Infeasible as error:
                refused.append(str(error))
        raise Unsupported(
            f"no schedule of program {self.plan.program.name} could be built for {self.plan.target}",
            hint="; ".join(refused),
        )


def compile_program(
    program: Program, *, target: str, sizes: Mapping[Dim, int] | None = None, everything: bool = False
) -> Compiled:
    """Compile a program for a target; `everything` builds all variants now instead of on first use."""
    compiled = Compiled(plan(program, target=target, sizes=sizes))
    for number in range(len(compiled.plan.variants) if everything else 1):
        compiled.launcher(number)
    return compiled


def dims_by_name(program: Program, sizes: Mapping[str, int]) -> dict[Dim, int]:
    """Sizes given by the names of dims; `Invalid` names the dims that there are."""
    known = {atom.name for atom in program.dims}
    for name in sizes:
        if name not in known:
            raise Invalid(f"program {program.name} has no dim {name!r}", hint=f"it has {', '.join(sorted(known))}")
    return {Atom(name): value for name, value in sizes.items()}
