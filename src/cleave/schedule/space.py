"""The tilings that a kernel is tried with: roles, tile sizes, what fits the machine.

For a contraction each index plays a role: row, column, inner or batch; rows of one contraction form a
*lane* and share one product of tiles: (group, query) of grouped-query decode, say. Tiles come from short
lists per role and machine; the enumeration is bounded and in a fixed order. `fits` drops what a block's
registers, shared memory or caches cannot hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from cleave.errors import Infeasible
from cleave.ir.dims import Atom, Dim, Index, Parts, atoms_of, size_of
from cleave.schedule.kernels import Built, fixed_atoms
from cleave.schedule.machine import Machine, width
from cleave.schedule.tiling import Tiling
from cleave.schedule.values import ContractOf, Graph, LoadOf, ReduceOf, Value

_LIMIT = 96

_ROWS = {"cpu": (64, 128), "cuda": (16, 32, 64, 128)}
_COLUMNS = {"cpu": (64, 128, 256), "cuda": (32, 64, 128, 256)}
_SHORT = (16, 32)
"""Tiles for a CPU where there are few rows or columns: two cores want some blocks."""
_INNER = {"cpu": (128, 256, 512), "cuda": (32, 64, 128)}
_BOTH = {"cpu": (64, 128), "cuda": (32, 64, 128)}
_STREAM = {"cpu": (256, 1024, 4096), "cuda": (256, 1024, 4096)}
_LINES = {"cpu": (1, 4, 16, 64), "cuda": (1, 2, 4, 16)}
_FLAT = {"cpu": (1024, 4096, 16384), "cuda": (512, 1024, 4096)}
_MERGE = {"cpu": (256, 1024), "cuda": (64, 256, 1024)}


@dataclass(frozen=True, slots=True)
class Roles:
    """What each index does in the kernel's contractions. `lanes` are groups of indices in one role."""

    lanes: tuple[tuple[Index, ...], ...]
    rows: frozenset[Index]
    columns: frozenset[Index]
    inner: frozenset[Index]
    batch: frozenset[Index]
    costly: frozenset[Index]
    """Indices that a contraction lacks which is not small beside those that have it: blocks that
    divide such an index among them compute that contraction again."""

    @property
    def matrix(self) -> bool:
        """Whether the kernel has a contraction at all."""
        return bool(self.rows or self.columns)


def roles_of(graph: Graph, sizes: Mapping[Dim, int]) -> Roles:
    """The roles of a graph's indices. An index that is a batch in one contraction is one everywhere."""
    rows: set[Index] = set()
    columns: set[Index] = set()
    inner: set[Index] = set()
    batch: set[Index] = set()
    groups: list[list[Index]] = []
    for value in graph.values:
        if not isinstance(value.op, ContractOf):
            continue
        left, right = value.args
        over = set(value.op.over)
        inner |= over
        batch |= (set(left.axes) & set(right.axes)) - over
        own = [i for i in left.axes if i not in right.axes and i not in over]
        other = [i for i in right.axes if i not in left.axes and i not in over]
        rows |= set(own)
        columns |= set(other)
        groups += [own, other]
    lanes = _merged([[i for i in group if i not in batch] for group in groups])
    return Roles(
        lanes,
        frozenset(rows - batch),
        frozenset(columns - batch),
        frozenset(inner),
        frozenset(batch),
        _costly(graph, sizes),
    )


def _costly(graph: Graph, sizes: Mapping[Dim, int]) -> frozenset[Index]:
    spans = [
        {i: size_of(i.dim, sizes) for i in (*v.axes, *v.op.over)}
        for v in graph.values
        if isinstance(v.op, ContractOf)
    ]
    found: set[Index] = set()
    for mine in spans:
        work = prod(mine.values())
        lacking = [prod(other.values()) for other in spans if other.keys() != mine.keys()]
        for index in mine:
            beside = [prod(o.values()) for o in spans if index not in o]
            if lacking and beside and max(beside) * 4 >= work:
                found.add(index)
    return frozenset(found)


def _merged(groups: Sequence[Sequence[Index]]) -> tuple[tuple[Index, ...], ...]:
    """Groups that share an index become one, in order of number."""
    found: list[set[Index]] = []
    for group in groups:
        together = set(group)
        rest: list[set[Index]] = []
        for other in found:
            if other & together:
                together |= other
            else:
                rest.append(other)
        found = [*rest, together] if together else rest
    ordered = (tuple(sorted(group, key=lambda i: i.number)) for group in found)
    return tuple(sorted(ordered, key=lambda group: group[0].number))


def power(size: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(0, size - 1).bit_length()


def spread(indices: Sequence[Index], target: int, sizes: Mapping[Index, int]) -> dict[Index, int]:
    """Tiles with a product of at most `target`, given out from the innermost index outwards."""
    found: dict[Index, int] = {}
    for index in reversed(indices):
        found[index] = max(1, min(target, power(sizes[index])))
        target //= found[index]
    return found


class _Space:
    def __init__(self, built: Built, sizes: Mapping[Dim, int], machine: Machine) -> None:
        self.built, self.machine = built, machine
        self.kind = machine.kind
        self.tight = False
        self.roles = roles_of(built.graph, sizes)
        self.fixed = fixed_atoms(built.spec.program)
        spans = built.spec.spans or ("grid",) * len(built.roots)
        self.grid = tuple(i for i, s in zip(built.roots, spans, strict=True) if s == "grid")
        every = [*built.roots, *built.graph.whole, *(x.index for x in built.graph.loops)]
        self.sizes = {i: 1 if isinstance(i.dim, Parts) else size_of(i.dim, sizes) for i in every}

    # ------------------------------------------------------------ options

    def grids(self) -> list[dict[Index, int]]:
        """Tiles for the grid's indices."""
        if not self.roles.matrix:
            return self._vector_grids()
        lanes = [tuple(i for i in lane if i in self.grid) for lane in self.roles.lanes]
        options = [self._lane_options(lane) for lane in lanes if lane]
        alone = dict.fromkeys(self.grid, 1)
        return [
            {**alone, **{i: t for part in choice for i, t in part.items()}}
            for choice in itertools.product(*options)
        ]

    def _lane_options(self, lane: tuple[Index, ...]) -> list[dict[Index, int]]:
        total = 1
        for index in lane:
            total *= power(self.sizes[index])
        columns = any(i in self.roles.columns for i in lane)
        targets = list((_COLUMNS if columns else _ROWS)[self.kind])
        if self.kind == "cpu" and total <= 256:
            targets += _SHORT
        if total <= self.machine.whole_limit and any(i in self.roles.costly for i in lane):
            targets = [total] if not self.tight else [*targets, total]
        least = self.machine.dot_min
        targets = sorted({max(least, min(t, total)) for t in targets})
        found: list[dict[Index, int]] = []
        for target in targets:
            tiles = spread(lane, target, self.sizes)
            product = 1
            for tile in tiles.values():
                product *= tile
            if product < least:
                tiles[lane[-1]] *= least // product
            if tiles not in found:
                found.append(tiles)
        return found

    def _vector_grids(self) -> list[dict[Index, int]]:
        loops = bool(self.built.graph.loops) or any(
            isinstance(v.op, ReduceOf) for v in self.built.graph.values
        )
        if _is_scan(self.built.graph):
            return [spread(self.grid, self._scan_target(), self.sizes)]
        merge = any(x.mode == "merge" for x in self.built.graph.loops)
        if merge and all(x.mode == "merge" for x in self.built.graph.loops):
            targets = _MERGE[self.kind]
        else:
            targets = (_LINES if loops else _FLAT)[self.kind]
        if loops and self.grid and len(self.grid) == len(self.built.roots) and not self.built.graph.whole:
            targets = (*targets, 256)
        found: list[dict[Index, int]] = []
        for target in targets:
            tiles = spread(self.grid, target, self.sizes)
            if tiles not in found:
                found.append(tiles)
        return found

    def _scan_target(self) -> int:
        """Elements of a block whose states stay in it for a whole scan: few enough to give every core some
        blocks, since a step waits for the one before; on a GPU one to a thread."""
        least, most, places = (32, 128, 4) if self.kind == "cuda" else (64, 512, 2)
        total = prod(self.sizes[i] for i in self.grid)
        return max(least, min(most, power(total // (places * self.machine.cores))))

    def loops(self) -> list[dict[Index, int]]:
        """Tiles for the loops' indices."""
        options: list[list[tuple[Index, int]]] = []
        for loop in self.built.graph.loops:
            index = loop.index
            if loop.mode == "merge" or loop.sequential:
                options.append([(index, 1)])
                continue
            outer = index in self.roles.rows or index in self.roles.columns
            if index in self.roles.inner or outer:
                wanted = (_BOTH if outer else _INNER)[self.kind]
                least = max(2, self.machine.dot_min)
            else:
                wanted, least = _STREAM[self.kind], 2
                if self.roles.matrix:
                    wanted = _INNER[self.kind]
            limit = max(least, power(self.sizes[index]))
            options.append([(index, t) for t in sorted({min(limit, t) for t in wanted})])
        return [dict(choice) for choice in itertools.product(*options)]

    def least(self, index: Index) -> int:
        """The least tile of a grid index. Where an output lacks the index its block 0 runs even if the dim is
        empty; with a tile of two or more what reads along it is then a loop of no iterations, while one
        position (a tile of one) would be read outside its tensor."""
        if self.kind != "cpu" or all(a in self.fixed for a in atoms_of(index.dim)):
            return 1
        graph = self.built.graph
        lacking = any(all(index not in graph.term_indices(t) for t in s.terms) for s in graph.stores)
        return 2 if lacking else 1

    def whole(self, tiles: Mapping[Index, int]) -> dict[Index, int]:
        """Indices that every block spans: those of the graph, and grid indices that one tile covers."""
        found = {index: self._bound(index) for index in self.built.graph.whole}
        for index in self.grid:
            static = all(a in self.fixed for a in atoms_of(index.dim))
            if static and tiles[index] >= self.sizes[index] and self.sizes[index] > 1:
                found[index] = (
                    max(tiles[index], self._bound(index)) if self.kind == "cuda" else self._bound(index)
                )
        return found

    def _bound(self, index: Index) -> int:
        size = self.sizes[index]
        static = all(a in self.fixed for a in atoms_of(index.dim))
        if not static and not isinstance(index.dim, Atom):
            raise Infeasible(f"a block cannot span {index.dim}, whose size is only known at the call")
        if self.kind == "cpu" and static:
            return max(1, size)
        least = self.machine.dot_min if index in self.roles.inner else 1
        return max(least, power(size))


def tilings(built: Built, sizes: Mapping[Dim, int], machine: Machine) -> list[Tiling]:
    """All tilings to try, in a fixed order, at most a hundred or so; those that fit if any do."""
    space = _Space(built, sizes, machine)
    found = _all(space)
    if not any(fits(built, t, machine) for t in found):
        space.tight = True
        found = _all(space)
    fitting = [t for t in found if fits(built, t, machine)]
    if fitting:
        return fitting
    return sorted(found, key=lambda t: _pressure(built, t, machine))[:1]


def _all(space: _Space) -> list[Tiling]:
    built, machine = space.built, space.machine
    found: list[Tiling] = []
    choices = list(itertools.product(space.grids(), space.loops()))
    step = max(1, -(-len(choices) // _LIMIT))
    for chosen, loop_tiles in choices[::step]:
        grid_tiles = {i: max(t, space.least(i)) for i, t in chosen.items()}
        whole = space.whole(grid_tiles)
        grid = tuple(i for i in space.grid if i not in whole)
        tiles = {**grid_tiles, **loop_tiles, **whole}
        if built.parts is not None:
            grid = (built.parts, *grid)
            tiles[built.parts] = 1
        lanes = tuple(
            lane
            for lane in (tuple(i for i in lane if tiles.get(i, 1) > 1) for lane in space.roles.lanes)
            if len(lane) > 1
        )
        found += _wishes(Tiling(grid, tiles, tuple(whole), lanes), built, machine)
    return found


def _is_scan(graph: Graph) -> bool:
    """Whether a kernel does nothing but run scans, element by element."""
    reduces = any(isinstance(v.op, ReduceOf | ContractOf) for v in graph.values)
    return bool(graph.loops) and all(x.sequential for x in graph.loops) and not reduces


def limits_of(tiling: Tiling, built: Built) -> dict[Atom, int]:
    """Upper bounds of dynamic atoms that a tiling relies on."""
    fixed = fixed_atoms(built.spec.program)
    found: dict[Atom, int] = {}
    for index in tiling.whole:
        if isinstance(index.dim, Atom) and index.dim not in fixed:
            found[index.dim] = min(tiling.tiles[index], found.get(index.dim, tiling.tiles[index]))
    return found


# ---------------------------------------------------------------- resources


def elements(axes: Sequence[Index], tiling: Tiling) -> int:
    """How many elements a tile over some indices has, padding included."""
    total = 1
    for index in axes:
        total *= tiling.tiles[index]
    return total


def _wishes(tiling: Tiling, built: Built, machine: Machine) -> list[Tiling]:
    """The tiling with warps and stages: eight warps where the largest product is large, and as many stages as
    fit, for a block by itself and for two that share a core."""
    if machine.kind != "cuda":
        return [replace(tiling, warps=1, stages=1)]
    largest = max((elements(v.axes, tiling) for v in built.graph.values), default=1)
    warps = machine.warps[-1] if largest >= 128 * 128 else machine.warps[0]
    wishes = [replace(tiling, warps=warps, stages=stages) for stages in reversed(machine.stages)]
    found: list[Tiling] = []
    for room in (machine.core_bytes, machine.core_bytes // 2):
        fitting = [w for w in wishes if shared_bytes(built, w) <= room][:1]
        found += [w for w in fitting if w not in found]
    return found or wishes[-1:]


def shared_bytes(built: Built, tiling: Tiling) -> int:
    """Shared memory of a block: operands of contractions, several stages of those loaded in loops."""
    total = 0
    for value in _operands(built.graph):
        inside = built.places.home[value] is not None and isinstance(value.op, LoadOf)
        total += elements(value.axes, tiling) * width(value.dtype) * (tiling.stages if inside else 1)
    return total


def register_bytes(built: Built, tiling: Tiling) -> int:
    """Registers of a block: accumulators, and the largest value that is computed beside them."""
    carried = sum(elements(s.axes, tiling) * width(s.dtype) for s in built.graph.slots)
    loaded = {v for v in _operands(built.graph) if isinstance(v.op, LoadOf)}
    # A tile that has an accumulator's indices is on its way into it and takes no room of its own.
    inside = {frozenset(s.axes) for s in built.graph.slots}
    other = [
        elements(v.axes, tiling) * width(v.dtype)
        for v in built.graph.values
        if v not in loaded and frozenset(v.axes) not in inside
    ]
    return carried + max(other, default=0)


def _operands(graph: Graph) -> list[Value]:
    found: dict[Value, None] = {}
    for value in graph.values:
        if isinstance(value.op, ContractOf):
            found.update(dict.fromkeys(value.args))
    return list(found)


def _pressure(built: Built, tiling: Tiling, machine: Machine) -> float:
    """How far a block is beyond what the machine holds (1 is full)."""
    registers = register_bytes(built, tiling)
    if machine.kind == "cuda":
        room = min(machine.register_bytes, tiling.warps * 32 * 255 * 4) * 0.9
        return max(registers / room, shared_bytes(built, tiling) / machine.core_bytes)
    operands = sum(elements(v.axes, tiling) * width(v.dtype) for v in _operands(built.graph))
    return (registers + operands) / (2 * machine.core_bytes)


def fits(built: Built, tiling: Tiling, machine: Machine) -> bool:
    """Whether a block of this tiling can run well on the machine."""
    return _pressure(built, tiling, machine) <= 1
