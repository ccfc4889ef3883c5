"""Run a fusion plan: every kernel of the plan built and called in order.

`Workshop.planned` gives a `Planned`, called like a launcher: tensors and numbers in the program's input order
in, its outputs out. Each piece of the plan is scheduled as one kernel if there is such a schedule; kernels
that need nothing of each other become one launch. Pieces that differ only in names share what is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from cleave.algebra.folds import folds_of
from cleave.errors import Infeasible
from cleave.fusion.pieces import Piece
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Dim
from cleave.ir.precision import assign
from cleave.ir.program import Program
from cleave.ir.text import print_program
from cleave.runtime.launch import Launcher, Value
from cleave.runtime.machines import machine_of
from cleave.runtime.naming import canonical, digest_of
from cleave.runtime.triton_launch import TritonLauncher
from cleave.schedule.beside import independent, joined_seconds
from cleave.schedule.select import Ranked, best

Candidates = Callable[[Program], Sequence[Candidate]]
"""Other ways to compute a program, the program itself among them."""


def launches_of(ranked: Ranked) -> int:
    """How many launches a tile program takes."""
    tiles = ranked.tiles
    return 1 if independent(tiles) else len(tiles.kernels)


def as_written(program: Program) -> tuple[Candidate, ...]:
    """The program itself, with what can be reduced piece by piece."""
    return (assign(Candidate(program, folds_of(program)), program),)


@dataclass(frozen=True, slots=True)
class Step:
    """One piece, built: what it reads and writes by name."""

    launcher: Launcher | TritonLauncher
    ranked: Ranked
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class Planned:
    """A program as a sequence of steps. `last` says after which step a value is dropped."""

    def __init__(self, program: Program, steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)
        self.inputs = tuple(n.op.name for n in program.inputs)  # type: ignore[union-attr]
        self.outputs = tuple(o.name for o in program.outputs)
        keep = {*self.inputs, *self.outputs}
        last = {name: n for n, step in enumerate(self.steps) for name in (*step.reads, *step.writes)}
        self.dropped = [
            [name for name in dict.fromkeys((*s.reads, *s.writes)) if last[name] == n and name not in keep]
            for n, s in enumerate(self.steps)
        ]

    @property
    def launches(self) -> int:
        """Kernels (on a CPU: functions) that a call launches."""
        return sum(len(step.launcher.source.entries) for step in self.steps)

    @property
    def seconds(self) -> float:
        """The time of a call by the scheduler's model."""
        return sum(step.ranked.cost.seconds for step in self.steps)

    def __call__(self, *args: Value) -> tuple[torch.Tensor, ...]:
        values: dict[str, Value] = dict(zip(self.inputs, args, strict=True))
        for step, dropped in zip(self.steps, self.dropped, strict=True):
            made = step.launcher(*[values[name] for name in step.reads])
            values.update(zip(step.writes, made, strict=True))
            for name in dropped:
                values.pop(name, None)
        return tuple(values[name] for name in self.outputs)  # type: ignore[misc]


@dataclass(slots=True)
class Workshop:
    """Schedules and builds pieces for a target (`cpu`, `cuda`, `interpret`) and remembers them."""

    target: str
    precision: str = "highest"
    ranked: dict[str, Ranked] = field(default_factory=dict[str, Ranked])
    built: dict[str, Launcher | TritonLauncher] = field(
        default_factory=dict[str, "Launcher | TritonLauncher"]
    )

    def scheduled(
        self, program: Program, sizes: Mapping[Dim, int], others: Candidates | None = None
    ) -> tuple[str, Ranked]:
        """The tile program of a piece, and the key under which it is remembered. `others` says what else it
        may be computed as; then several kernels are fine, if that is faster."""
        plain = canonical(program)
        bound = plain.bind(dict(_paired(program, plain, sizes)))
        at = " ".join(sorted(f"{dim}={size}" for dim, size in bound.items()))
        machine = machine_of(self.target)
        key = digest_of(f"{print_program(plain)} {at} {others is not None} {machine.cores}")
        if key not in self.ranked:
            found = best((others or as_written)(plain), bound, machine, count=16)
            if others is None:
                least = min(map(launches_of, found))
                found = tuple(r for r in found if launches_of(r) == least)
            self.ranked[key] = min(found, key=lambda r: joined_seconds(r.tiles, r.cost, machine))
        return key, self.ranked[key]

    def step(self, piece: Piece, sizes: Mapping[Dim, int], others: Candidates | None = None) -> Step:
        """A piece, built. `Infeasible` if nothing can be scheduled."""
        key, ranked = self.scheduled(piece.program, sizes, others)
        if key not in self.built:
            self.built[key] = self._launcher(ranked)
        return Step(self.built[key], ranked, piece.reads, piece.writes)

    def _launcher(self, ranked: Ranked) -> Launcher | TritonLauncher:
        if self.target == "cpu":
            return Launcher(ranked.tiles, joined=True)
        return TritonLauncher(ranked.tiles, self.target, precision=self.precision, joined=True)

    def planned(
        self,
        program: Program,
        pieces: Sequence[Piece],
        sizes: Mapping[Dim, int],
        others: Candidates | None = None,
    ) -> Planned:
        """A plan's pieces, built. `sizes` binds the program's dynamic dims to what is typical."""
        bound = program.bind(sizes)
        if not pieces:
            raise Infeasible(f"the plan for {program.name} has no kernel")
        return Planned(program, [self.step(p, bound, others) for p in pieces])


def _paired(program: Program, plain: Program, sizes: Mapping[Dim, int]) -> list[tuple[Dim, int]]:
    """The sizes of the dynamic dims under their other names."""
    return [(b, sizes[a]) for a, b in zip(program.dynamic, plain.dynamic, strict=True)]


__all__ = ["Candidates", "Planned", "Step", "Workshop", "as_written", "launches_of"]
