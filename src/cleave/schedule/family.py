"""Kernels that differ in numbers only: written once, counted together, and filled in where one is chosen.

What the statements of a kernel are depends on a tiling only through the indices whose tile is one position,
the indices that every block spans, and the stretches into which borders cut its loops. All tilings that agree
in these make a `Family`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cleave.ir.dims import Dim, Extent, Index
from cleave.knobs import knobs
from cleave.schedule.bounds import Order, Segment, segments
from cleave.schedule.counting import Sheet, Stretch, Tally, column, statements
from cleave.schedule.kernels import Built
from cleave.schedule.machine import Machine
from cleave.schedule.powers import in_base_two
from cleave.schedule.tiles import ContractTile, GridAxis, Kernel, Loop, Statement, Whole
from cleave.schedule.tiling import Tiling, write_kernel

Stretches = tuple[Segment, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Kernels of one form. `first` is one of them; `stretches` says, for each loop's index and tile, where
    its segments run."""

    first: Kernel
    groups: int
    """Rows of blocks that run side by side, where tiles of two axes share what they load."""
    stretches: Mapping[tuple[Index, int], Stretches]
    loops: int
    """Loops in the text, those in loops too."""
    tallies: dict[int, Tally] = field(default_factory=dict[int, Tally])

    def kernel(self, tiling: Tiling) -> Kernel:
        """The kernel of a tiling."""
        grid = tuple(GridAxis(i, tiling.tiles[i]) for i in tiling.grid)
        whole = tuple(Whole(i, tiling.tiles[i]) for i in tiling.whole)
        shared = len(grid) > 1 and min(a.tile for a in grid[-2:]) > 1
        return replace(
            self.first,
            grid=grid,
            whole=whole,
            body=self._filled(self.first.body, tiling),
            warps=tiling.warps,
            stages=tiling.stages,
            group=self.groups if shared else 1,
            groups=tiling.groups,
        )

    def _filled(self, body: Sequence[Statement], tiling: Tiling) -> tuple[Statement, ...]:
        seen: dict[Index, int] = {}
        found: list[Statement] = []
        for statement in body:
            if isinstance(statement, Loop):
                index, tile = statement.index, tiling.tiles[statement.index]
                number = seen[index] = seen.get(index, -1) + 1
                segment = self.stretches[index, tile][number]
                inner = self._filled(statement.body, tiling)
                ends = {"start": segment.start, "stop": segment.stop}
                statement = replace(statement, tile=tile, body=inner, **ends)
            found.append(statement)
        return tuple(found)

    def sheet(self, tilings: Sequence[Tiling]) -> Sheet:
        """The numbers of several tilings."""
        indices = [x.index for x in (*self.first.grid, *self.first.whole)]
        tiles = {index: column([t.tiles[index] for t in tilings]) for index in indices}
        stretches: list[Stretch] = []
        self._stretches(self.first.body, tilings, stretches)
        warps, stages = column([t.warps for t in tilings]), column([t.stages for t in tilings])
        groups = column([t.groups for t in tilings])
        return Sheet(self.first, len(tilings), tiles, tuple(stretches), warps, stages, groups, self.tallies)

    def _stretches(self, body: Sequence[Statement], tilings: Sequence[Tiling], found: list[Stretch]) -> None:
        seen: dict[Index, int] = {}
        for statement in body:
            if not isinstance(statement, Loop):
                continue
            index = statement.index
            number = seen[index] = seen.get(index, -1) + 1
            tiles = [t.tiles[index] for t in tilings]
            ends = [(t, self.stretches[index, t][number]) for t in dict.fromkeys(tiles)]
            found.append(Stretch(column(tiles), tuple((t, s.start, s.stop) for t, s in ends)))
            self._stretches(statement.body, tilings, found)


class Families:
    """The families of a built kernel, each made when its first tiling is asked for."""

    def __init__(self, built: Built) -> None:
        self._built = built
        self._known: dict[Dim, int] = {a: s for a, s in built.spec.program.sizes if not isinstance(s, Extent)}
        self._stretches: dict[Order, dict[tuple[Index, int], Stretches]] = {order: {} for order in Order}
        self._forms: dict[Index, list[object]] = {}
        self._form: dict[tuple[Index, int, Order], int] = {}
        self._made: dict[object, Family] = {}

    def of(self, tiling: Tiling, machine: Machine, order: Sequence[str]) -> Family:
        """The family of a tiling. `order` lists the names of all tensors of the tile program."""
        plans = self._built.graph.loops
        loops = tuple(self._cut(loop.index, tiling.tiles[loop.index], tiling.order) for loop in plans)
        single = tuple(tiling.tiles[i] == 1 for i in tiling.grid)
        strict = knobs().numerics == "strict"
        key = (machine.kind, machine.group, strict, tuple(order), tiling.grid, tiling.whole, tiling.lanes)
        key = (*key, tiling.order)
        family = self._made.get((key, single, loops))
        if family is None:
            family = self._made[key, single, loops] = self._write(tiling, machine, order, strict)
        return family

    def _cut(self, index: Index, tile: int, order: Order) -> int:
        """Which of the forms that a loop can have it has with this tile, as a number."""
        form = self._form.get((index, tile, order))
        if form is None:
            loop = next(x for x in self._built.graph.loops if x.index == index)
            found = self._stretches[order][index, tile] = segments(loop, tile, self._known, order)
            forms = self._forms.setdefault(index, [])
            shape = tuple((s.exact, s.facts, s.closed) for s in found)
            if shape not in forms:
                forms.append(shape)
            form = self._form[index, tile, order] = forms.index(shape)
        return form

    def _write(self, tiling: Tiling, machine: Machine, order: Sequence[str], strict: bool) -> Family:
        built = self._built
        kernel = write_kernel(built.spec.name, built.graph, built.places, tiling, self._known, order)
        groups = 1
        if machine.kind == "cuda":
            if any(isinstance(s, ContractTile) for s in statements(kernel.body)):
                kernel, groups = replace(kernel, descriptors=True), machine.group
            kernel = kernel if strict else in_base_two(kernel)
        loops = sum(isinstance(s, Loop) for s in statements(kernel.body))
        return Family(kernel, groups, self._stretches[tiling.order], loops)
