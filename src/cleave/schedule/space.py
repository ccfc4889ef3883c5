"""The tilings that a kernel is tried with: roles, tile sizes, what fits the machine.

For a contraction each index plays a role: row, column, inner or batch; rows of one contraction form a
*lane* and share one product of tiles: (group, query) of grouped-query decode, say. Tiles come from short
lists per role and machine; the enumeration is bounded and in a fixed order. What a block cannot hold
(`room.py`) is dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from cleave.errors import Infeasible
from cleave.ir.dims import Atom, Dim, Index, Parts, atoms_of, size_of
from cleave.schedule.groups import (
    GROUP_ROWS,
    PIECE,
    grouped,
    has_registers,
    order_of,
    stored_bytes,
)
from cleave.schedule.kernels import Built, fixed_atoms
from cleave.schedule.machine import Machine
from cleave.schedule.merging import tied
from cleave.schedule.room import (
    bytes_of,
    chained,
    elements,
    fits,
    kept_bytes,
    pressure,
    registers_of,
    room_of,
    streamed,
)
from cleave.schedule.tiling import Tiling
from cleave.schedule.values import ContractOf, Graph, LoadOf, ReduceOf

_LIMIT, _MOST_LOOPED = 96, 4096

_ROWS = {"cpu": (64, 128, 256), "cuda": (16, 32, 64, 128)}
_COLUMNS = {"cpu": (64, 128, 256), "cuda": (32, 64, 128, 256)}
_SHORT = (16, 32)
"""Tiles for a CPU where there are few rows or columns: two cores want some blocks."""
_FEW_ROWS = 4
_WIDE = {"columns": (256, 1024, 4096), "inner": (512, 2048), "both": (128, 512)}
"""Tiles for a CPU where contractions have few rows: long runs of memory, each read once."""
_LONG = (512, 1024)
"""The same where they have a register block or some: what is packed is used by few rows."""
_INNER = {"cpu": (128, 256, 512), "cuda": (32, 64, 128)}
_BOTH = {"cpu": (64, 128), "cuda": (32, 64, 128)}
_STREAM = {"cpu": (256, 1024, 4096), "cuda": (256, 1024, 4096)}
_LINES = {"cpu": (1, 4, 16, 64), "cuda": (1, 2, 4, 16)}
_FLAT = {"cpu": (1024, 4096, 16384), "cuda": (512, 1024, 4096)}
_MERGE = {"cpu": (256, 1024), "cuda": (256, 64, 1024)}

MOST_WARPS = 32
"""Warps that a block can have."""

_ROOMY = 600
"""Bytes of a thread's registers for tiles up to which a warp for every 16 rows does."""

_SCAN_STAGES = (3, 2)
"""What a scan reads is on its way for so many steps, the one at work counted: a step waits for the one
before, and memory takes about two steps to answer; one step ahead is enough where other blocks fill in."""


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
        own = self.roles.rows - self.roles.columns
        rows = prod(self.sizes.get(i, 1) for i in own)
        self.few = self.kind == "cpu" and rows <= _FEW_ROWS
        self.thin = self.kind == "cpu" and rows <= _SHORT[-1]

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
        if columns and self.few:
            targets = [min(t, max(64, total // self.machine.cores)) for t in _WIDE["columns"]]
            targets.append(min(_WIDE["columns"][-1], total))  # whole rows, where a split feeds the cores
            targets.append(self._even(lane))
        elif columns and self.thin:  # long runs of memory here as well
            targets += [t for t in _LONG if t * self.machine.cores <= total]
        if len(lane) == 1 and not columns:
            targets += [GROUP_ROWS * n for n in self.machine.groups]
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

    def _even(self, lane: tuple[Index, ...]) -> int:
        """Whole vectors for which every core of a CPU has one tile of the same length."""
        each = -(-prod(self.sizes[i] for i in lane) // self.machine.cores)
        vector = self.machine.vector_bytes // 2  # two of them: what a product's registers hold of a row
        return -(-each // vector) * vector

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
            if self.kind == "cuda" and not loops:  # a block for every core, an element for every thread
                total = prod(self.sizes[i] for i in self.grid)
                targets = (max(128, min(targets[0], power(total // self.machine.cores))), *targets[1:])
        if loops and self.grid and len(self.grid) == len(self.built.roots) and not self.built.graph.whole:
            targets = (*targets, 256)
        grid, across = self._across() if loops and not merge and self.kind == "cuda" else (self.grid, 1)
        found: list[dict[Index, int]] = []
        for target in targets:
            tiles = spread(grid, target * across, self.sizes)
            if tiles not in found:
                found.append(tiles)
        return found

    def _across(self) -> tuple[Sequence[Index], int]:
        """The grid's indices, those last that a reduction lacks, and how many positions these have: blocks
        that share them out compute the reduction again. Nothing is put last if a block cannot span them."""
        graph = self.built.graph
        reduced = [s.axes for s in graph.slots] + [v.axes for v in graph.values if isinstance(v.op, ReduceOf)]
        lacking = [i for i in self.grid if any(i not in axes for axes in reduced)]
        across = prod(power(self.sizes[i]) for i in lacking)
        if across > self.machine.whole_limit:
            return self.grid, 1
        return [*(i for i in self.grid if i not in lacking), *lacking], across

    def _scan_target(self) -> int:
        """Elements of a block whose states stay in it for a whole scan. On a CPU few enough to give every
        core some blocks, since a step waits for the one before; on a GPU one to a thread, a warp to a block
        while there are few, and two to a thread where there are more than the machine has threads: then
        memory is what it waits for, and wider loads ask for more at once."""
        total, cores = prod(self.sizes[i] for i in self.grid), self.machine.cores
        if self.kind == "cuda":
            return 256 if self.crowded else 128 if total > 512 * cores else 32
        return max(64, min(512, power(total // (2 * cores))))

    @property
    def crowded(self) -> bool:
        """Whether a GPU has fewer threads than there are elements."""
        return prod(self.sizes[i] for i in self.grid) > 2048 * self.machine.cores

    def loops(self) -> list[dict[Index, int]]:
        """Tiles for the loops' indices. Of many loops those with the same to choose from get the same."""
        options: list[list[tuple[Index, int]]] = []
        for loop in self.built.graph.loops:
            index = loop.index
            if loop.mode == "merge" or loop.sequential:
                options.append([(index, 1)])
                continue
            outer = index in self.roles.rows or index in self.roles.columns
            if index in self.roles.inner or outer:
                wanted = (_BOTH if outer else _INNER)[self.kind]
                if self.few:
                    wanted = _WIDE["both" if outer else "inner"]
                least = max(2, self.machine.dot_min)
            else:
                wanted, least = _STREAM[self.kind], 2
                if self.roles.matrix:
                    wanted = _INNER[self.kind]
            limit = max(least, power(self.sizes[index]))
            options.append([(index, t) for t in sorted({min(limit, t) for t in wanted})])
        each = [tuple(tile for _, tile in option) for option in options]
        kinds = list(dict.fromkeys(each))
        if prod(map(len, each)) <= _MOST_LOOPED:
            return [dict(choice) for choice in itertools.product(*options)]
        chosen = (dict(zip(kinds, tiles, strict=True)) for tiles in itertools.product(*kinds))
        indices = [option[0][0] for option in options]
        return [{i: own[kind] for i, kind in zip(indices, each, strict=True)} for own in chosen]

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
    fitting = [t for t in found if fits(built, t, machine) or (space.few and streamed(built, t, machine))]
    if not fitting:
        space.tight = True
        found = _all(space)
        fitting = [t for t in found if fits(built, t, machine)]
    if fitting:
        return fitting
    return sorted(found, key=lambda t: pressure(built, t, machine))[:1]


def merged_tiling(
    part: Built, merge: Built, tiling: Tiling, sizes: Mapping[Dim, int], machine: Machine
) -> Tiling | None:
    """The tiling with which a merging kernel does what one set of the blocks of `part` has left, for a tiling
    of these; none where they do not suit, or a block holds too little."""
    space = _Space(merge, sizes, machine)
    stores = {s.tensor.name: s.terms for s in part.graph.stores}
    loads = {v.op.tensor.name: v.op.terms for v in merge.graph.values if isinstance(v.op, LoadOf)}
    ties = tied(stores, loads)
    if tiling.groups or any(i not in ties for i in space.grid):
        return None
    tiles = {i: tiling.tiles[ties[i]] for i in space.grid}
    whole = space.whole(tiles)
    grid = tuple(i for i in space.grid if i not in whole)
    loops = {x.index: 1 for x in merge.graph.loops if x.mode == "merge"}
    if len(loops) < len(merge.graph.loops) or any(ties[i] not in tiling.grid for i in grid):
        return None
    made = Tiling(grid, {**tiles, **loops, **whole}, tuple(whole), (), tiling.warps, tiling.stages)
    return made if fits(merge, made, machine) else None


def _all(space: _Space) -> list[Tiling]:
    built = space.built
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
        found += _wishes(Tiling(grid, tiles, tuple(whole), lanes), space)
    return found


def _is_scan(graph: Graph) -> bool:
    """Whether a kernel does nothing but run scans, element by element."""
    reduces = any(isinstance(v.op, ReduceOf | ContractOf) for v in graph.values)
    return bool(graph.loops) and all(x.sequential for x in graph.loops) and not reduces


def limits_of(tiling: Tiling, built: Built) -> dict[Atom, int]:
    """Upper bounds of dynamic atoms that a tiling relies on."""
    if not tiling.whole:
        return {}
    fixed = fixed_atoms(built.spec.program)
    found: dict[Atom, int] = {}
    for index in tiling.whole:
        if isinstance(index.dim, Atom) and index.dim not in fixed:
            found[index.dim] = min(tiling.tiles[index], found.get(index.dim, tiling.tiles[index]))
    return found


def _wishes(tiling: Tiling, space: _Space) -> list[Tiling]:
    """The tiling with warps and stages: eight warps where the largest product is large, and as many stages as
    fit, for a block by itself and for two that share a core."""
    built, machine = space.built, space.machine
    if machine.kind != "cuda":
        return [Tiling(tiling.grid, tiling.tiles, tiling.whole, tiling.lanes, 1, 1)]
    if _is_scan(built.graph):
        block = max((elements(s.axes, tiling) for s in built.graph.slots), default=1)
        warps = max(1, min(8, block // (64 if space.crowded else 32)))
        stages = _SCAN_STAGES[space.crowded]
        return [Tiling(tiling.grid, tiling.tiles, tiling.whole, tiling.lanes, warps, stages)]
    held = room_of(built)
    largest = max((elements(axes, tiling) for axes in held.every), default=1)
    if not space.roles.matrix and any(isinstance(v.op, ReduceOf) for v in built.graph.values):
        return [
            Tiling(tiling.grid, tiling.tiles, tiling.whole, tiling.lanes, warps, machine.stages[-1])
            for warps in _row_warps(largest, machine)
        ]
    warps = machine.warps[-1] if largest >= 128 * 128 else machine.warps[0]
    if _repeated(space, tiling, warps):
        warps = machine.warps[0]
    loaded, kept = bytes_of(held.loaded, tiling), bytes_of(held.kept, tiling)
    depths: dict[int, None] = {}
    for room in (machine.core_bytes, machine.core_bytes // 2):
        fitting = [stages for stages in machine.stages if loaded * stages + kept <= room]
        depths.update(dict.fromkeys(fitting[-1:]))
    wished = depths or machine.stages[:1]
    alike = [Tiling(tiling.grid, tiling.tiles, tiling.whole, tiling.lanes, warps, n) for n in wished]
    if any(power(tiling.tiles[i]) != tiling.tiles[i] for i in tiling.grid):
        alike = []  # a block that no group shares has lanes of powers of two
    return [*_grouped(tiling, space), *alike]


def _repeated(space: _Space, tiling: Tiling, warps: int) -> bool:
    """Whether warps would repeat each other's work: Triton gives the rows of a product whose result another
    one multiplies to all warps, 16 to each, from the 64 rows on that a warp group multiplies. With fewer rows
    warps share columns, and those that have few wait for each other more than they work."""
    rows = prod(tiling.tiles[i] for i in space.roles.rows - space.roles.columns)
    room = (_ROOMY if rows >= GROUP_ROWS else _ROOMY // 2) * 2 * max(rows, GROUP_ROWS)
    held = sum(registers_of(space.built, tiling))
    return rows < 16 * warps and held <= room and chained(space.built.graph)


def _row_warps(largest: int, machine: Machine) -> list[int]:
    """Warps for a block that reduces a tile of so many elements: 16 of them to a thread, and half as many,
    which pays where a core has one block."""
    least = max(machine.warps[0], min(MOST_WARPS, largest // (16 * 32)))
    return sorted({least, min(MOST_WARPS, 2 * least)})


def _grouped(tiling: Tiling, space: _Space) -> list[Tiling]:
    """The tiling with warp groups, where it can be, and as many stages as fit beside what is stored."""
    machine = space.machine
    found: list[Tiling] = []
    held = room_of(space.built)
    for one in grouped(space.built, tiling, machine, space.roles.rows - space.roles.columns):
        one = replace(one, tiles={**one.tiles, **_narrow(one, space)})
        loaded, room = bytes_of(held.loaded, one), machine.core_bytes - kept_bytes(space.built, one)
        beside = room - stored_bytes(space.built.graph, one)
        fitting = [stages for stages in machine.stages if loaded * stages <= beside]
        if not fitting:  # wide results leave from registers
            fitting = [stages for stages in machine.stages if loaded * stages <= room]
        taken = registers_of(space.built, one, most=4)  # positions have 32 bits
        if not has_registers(space.built.graph, one, *taken):
            continue
        order = order_of(space.built.graph, one)
        found += [replace(one, stages=n, order=order) for n in fitting[-1:]]
    return found


def _narrow(tiling: Tiling, space: _Space) -> dict[Index, int]:
    """The tiles of indices that products only sum over and a block spans: warp groups have these in shared
    memory, in pieces if they must, and need no power of two."""
    roles, found = space.roles, dict[Index, int]()
    for index in tiling.whole:
        size = space.sizes[index]
        alone = not any(index in lane and len(lane) > 1 for lane in tiling.lanes)
        static = all(a in space.fixed for a in atoms_of(index.dim))
        if static and alone and index in roles.inner - roles.rows - roles.columns and size % PIECE == 0:
            found[index] = size
    return found
