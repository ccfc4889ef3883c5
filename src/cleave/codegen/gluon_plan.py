"""How a kernel is divided among warps that copy and warp groups that compute.

One warp copies tiles into rings of shared memory; warp groups of four warps each compute a share of the
block's rows, so that the products of one overlap the pointwise work of the other (FlashAttention-3, sections
3.1 and 3.2, for any kernel of this form). The rows are the one lane that every product keeps from its left
operand; whatever else a group needs is the same for all groups.

Where the rows are those of one group and the accumulators too wide for it, the groups share the columns of
these (`split`): each has all rows of its own columns, reads the rest of a tile in shared memory as the others
do, and computes by itself whatever has no such columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from cleave.codegen.gluon_text import DEPTH, ONCE
from cleave.codegen.triton_memory import box_of
from cleave.codegen.triton_scope import Scope, bracketed, is_number
from cleave.codegen.triton_text import Names
from cleave.codegen.triton_tiles import Lanes, Roles, first_tiles, lanes_of_dots
from cleave.errors import Infeasible
from cleave.ir.dims import Index
from cleave.schedule.groups import GROUP_ROWS
from cleave.schedule.machine import width
from cleave.schedule.tiles import Kernel, Load
from cleave.schedule.walks import loops_of

SHARED_ROOM = 227 * 1024
"""Bytes of shared memory of a block on compute capability 9."""
BARRIER_ROOM = 1024
LONGEST_ROW = 1024
"""Elements of a tile along the last dim: a copy is of as many boxes of 128 bytes as that takes."""
MATRIX_COLUMNS = (16, 32, 64, 128, 256)
"""How many columns a group's part of a product may have."""
LEAST_PIECE = 32
"""Elements: 64 bytes, of which a box in shared memory is made."""
PIECE = "@piece@"
"""Stands for the number of a piece in the text of a tile that has several."""
REGISTERS = {1: (240, 24), 2: (240, 24), 3: (160, 24)}
"""Registers per thread of computing and copying warps, by the number of warp groups."""
FLUSHING = 2
"""The most groups whose registers have room for flushed exponentials and for going on to a next tile: with
three, loops spill (a compiler sees through its own exponential, but not through an instruction)."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A kernel's rows: their lane, the number of warp groups, the rows of each, and the columns of the
    layout in which vectors along the rows are held. `split` are lanes of columns that the groups share
    instead of the rows: in registers a group has its part of them. `pieces` are lanes that products only sum
    over, of which shared memory holds as many pieces of so many elements as it takes: no power of two fits
    them."""

    rows: int
    count: int
    height: int
    columns: int
    split: frozenset[int] = frozenset()
    pieces: Mapping[int, int] = field(default_factory=dict[int, int])

    @property
    def shares(self) -> frozenset[int]:
        """The lanes of which each group has a part."""
        return self.split or frozenset({self.rows})

    @property
    def apart(self) -> frozenset[int]:
        """The lanes of which each group's part is copied by itself. Columns are copied for all groups."""
        return self.shares - self.split

    def own(self, lane: int, length: int) -> int:
        """How much of a lane's length is a group's own."""
        return length // self.count if lane in self.shares else length


def plan_groups(kernel: Kernel, lanes: Lanes) -> Groups:
    """The division of a kernel with `groups`; `Infeasible` where it does not fit."""
    dots = list(lanes_of_dots(kernel, lanes))
    if not dots:
        raise Infeasible(f"kernel {kernel.name} has no product that warp groups could share")
    rows = dots[0].m
    looped = {loop.index for loop in loops_of(kernel.body)} & set(lanes.members[rows])
    if looped or any(r.m != rows or r.batch for r in dots):
        raise Infeasible(f"kernel {kernel.name} has no lane that is the rows of all its products")
    tiles = first_tiles(kernel)
    total = prod(tiles[i] for i in lanes.members[rows] if i in tiles)
    every = tiles | {loop.index: loop.tile for loop in loops_of(kernel.body)}
    split = frozenset[int]()
    if total % (GROUP_ROWS * kernel.groups):
        split = _split(kernel, lanes, dots, every)
        if total != GROUP_ROWS or not split:
            raise Infeasible(
                f"{total} rows for {kernel.groups} warp groups; {GROUP_ROWS} or a multiple each, "
                "or these and columns of sums to share"
            )
    pieces = _pieces(lanes, dots, tiles)
    whole = Groups(rows, kernel.groups, total, lanes.length(dots[0].n, every), split, pieces)
    return replace(whole, height=whole.own(rows, total), columns=whole.own(dots[0].n, whole.columns))


def _split(kernel: Kernel, lanes: Lanes, dots: Sequence[Roles], tiles: Mapping[Index, int]) -> frozenset[int]:
    """The lanes of columns that groups can share: those of products that a loop does not go along; none where
    a group's part would be no matrix. Products whose columns are a loop's are done by every group."""
    looped = {lanes.of[loop.index] for loop in loops_of(kernel.body)}
    found = frozenset(r.n for r in dots if r.n not in looped)
    lengths = [lanes.length(lane, tiles) for lane in found]
    fine = all(n % kernel.groups == 0 and n // kernel.groups in MATRIX_COLUMNS for n in lengths)
    return found if fine else frozenset()


def _pieces(lanes: Lanes, dots: Sequence[Roles], tiles: Mapping[Index, int]) -> dict[int, int]:
    """Lanes that are only summed over, of one index that a block spans, whose tile is no power of two, and
    the largest one that divides it."""
    found: dict[int, int] = {}
    for lane in {r.k for r in dots} - {n for r in dots for n in (r.m, r.n)}:
        inside = [tiles[i] for i in lanes.members[lane] if tiles.get(i, 1) > 1]
        piece = inside[0] & -inside[0] if len(inside) == 1 else 0
        if piece >= LEAST_PIECE and piece != inside[0]:
            found[lane] = piece
    return found


# ---------------------------------------------------------------- copies


@dataclass(slots=True)
class Ring:
    """Buffers of shared memory that tiles of one tensor are copied into in turn. `block` is the box that one
    copy fills, `order` its lanes as they lie in memory, `shape` the lengths of these lanes, and `shared`
    whether all groups read it (else each has a box of its own). A tile copied outside loops comes `once` for
    each tile of the grid."""

    name: str
    tensor: str
    dtype: str
    descriptor: str
    block: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, int]
    shared: bool
    once: bool
    pieces: int = 1
    """Of a tile: each has a box of its own."""
    pieced: int = -1
    """Which dim of the box these are along."""

    def bytes(self, groups: int) -> int:
        """Bytes of one turn."""
        return self.pieces * prod(self.block) * width(self.dtype) * (1 if self.shared else groups)

    @property
    def turns(self) -> str:
        """How many tiles it holds."""
        return ONCE if self.once else DEPTH

    def buffer(self, slot: str, groups: int) -> str:
        """A group's matrix in a slot."""
        place = slot if self.shared else f"{slot} * {groups} + group"
        place = place if self.pieces == 1 else f"({place}) * {self.pieces} + {PIECE}"
        text = f"{self.name}.index({place})"
        return text if self.block == self.shape else f"{text}.reshape([{self.shape[0]}, {self.shape[1]}])"


@dataclass(slots=True)
class Copies:
    """The rings of a kernel and the loads that fill them, by the loads' names."""

    names: Names
    groups: Groups
    ordinals: dict[str, int] = field(default_factory=dict[str, int])
    """Which of the loads of its tensor in its body a load is: each has a ring of its own."""
    rings: dict[object, Ring] = field(default_factory=dict[object, Ring])
    loads: dict[str, Ring] = field(default_factory=dict[str, Ring])

    def ring_of(self, scope: Scope, load: Load, once: bool) -> Ring | None:
        """The ring of a load that the copying warp can do; None where it cannot."""
        split = split_box(scope, load, self.groups.apart, self.groups.count)
        if split is None:
            return None
        block, order, shape = split
        pieces, along = 1, -1
        for lane in self.groups.pieces.keys() & set(order):
            own = next(i for i in scope.lanes.inside(lane, scope.tiles) if scope.spans[i].tile > 1)
            along = next(n for n, term in enumerate(load.terms) if term.variable == own)
            size = self.groups.pieces[lane]
            pieces = block[along] // size
            block = (*block[:along], size, *block[along + 1 :])
            shape = (size, shape[1]) if order[0] == lane else (shape[0], size)
        shared = not self.groups.apart & set(order)
        key = (load.tensor, block, order, load.out if once else self.ordinals.get(load.out, 0))
        if key not in self.rings:
            name = self.names.take(f"{load.tensor}_ring")
            descriptor = scope.params.descriptor(load.tensor, block)
            self.rings[key] = Ring(
                name, load.tensor, load.dtype, descriptor, block, order, shape, shared, once, pieces, along
            )
        self.loads[load.out] = self.rings[key]
        return self.rings[key]


def split_box(
    scope: Scope, load: Load, shares: frozenset[int], count: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, int]] | None:
    """The box of one group's share of a load, of which `count` groups share some lanes: its extents, its
    lanes as they lie in memory, and the lengths of these; None where the load is no box, or a share of it is
    none."""
    tensor = scope.params.tensors[load.tensor]
    if width(tensor.dtype) > 4:
        return None
    box = box_of(scope, load, tensor, LONGEST_ROW)
    if box is None:
        return None
    block = [scope.spans[i].tile for i in box]
    lanes = tuple(dict.fromkeys(scope.lanes.of[i] for i in box if scope.spans[i].tile > 1))
    if len(lanes) != 2:
        return None
    lengths = [scope.lanes.length(lane, scope.tiles) for lane in lanes]
    for lane in shares & set(lanes):
        place = _outermost(scope, box, lane)
        if block[place] % count:
            return None
        block[place] //= count
        lengths[lanes.index(lane)] //= count
    return tuple(block), lanes, (lengths[0], lengths[1])


def _outermost(scope: Scope, box: Sequence[Index], lane: int) -> int:
    return next(n for n, i in enumerate(box) if scope.lanes.of[i] == lane and scope.spans[i].tile > 1)


def starts_of(
    scope: Scope, box: Sequence[Index], shares: frozenset[int], count: int, group: str
) -> list[str]:
    """Where a group's box starts, one text per dim."""
    texts: list[str] = []
    tiled = [i for i in box if scope.spans[i].tile > 1]
    first = {next((i for i in tiled if scope.lanes.of[i] == lane), None) for lane in shares}
    for index in box:
        span = scope.spans[index]
        text = span.start if span.tile > 1 else span.position
        if index in first and group != "0":
            step = span.tile // count
            own = str(step * int(group)) if is_number(group) else f"{group} * {step}"
            text = own if text == "0" else f"{text} + {own}"
        texts.append(text)
    return texts


class RowScope(Scope):
    """What one warp group knows at a point of a kernel: blocks have the group's share of the rows, and every
    block has a layout."""

    groups: Groups

    def opened(self, names: Names) -> RowScope:
        scope = RowScope(self.params, self.lanes, self.index_names, names)
        scope.groups = self.groups
        return scope

    def lengths(self, lanes: Sequence[int]) -> tuple[int, ...]:
        """The block lengths of some lanes."""
        own = self.groups
        tiles = self.tiles
        return tuple(
            own.height if lane == own.rows else own.own(lane, self.lanes.length(lane, tiles))
            for lane in lanes
        )

    def shape(self, lanes: Sequence[int]) -> str:
        lengths = self.lengths(lanes)
        return f"({', '.join(map(str, lengths))}{',' if len(lengths) == 1 else ''})"

    def layout(self, lanes: Sequence[int]) -> str:
        """The name of the layout of a block over some lanes."""
        rows = self.groups.rows
        others = [n for lane, n in zip(lanes, self.lengths(lanes), strict=True) if lane != rows]
        if len(others) > 1 or (others and others[0] < 8) or (rows in lanes and lanes[0] != rows):
            raise Infeasible(f"a block of {self.shape(lanes)} is no share of rows of a warp group")
        if rows not in lanes:
            return f"COLUMNS_{others[0]}"
        return f"MMA_{others[0]}" if others else f"ROWS_{self.groups.columns}"

    def matrix(self, text: str, order: Sequence[int], first: int, columns: int = -1) -> str:
        """A tile in shared memory, whose lanes lie in some order, with one of them in front; of `columns`
        that the groups share, a group's own."""
        if columns in self.groups.split:
            own = self.lengths([columns])[0]
            text = f"{text}.slice(group * {own}, {own}, {order.index(columns)})"
        return text if order[0] == first else f"{text}.permute((1, 0))"

    def block(self, lane: int, length: int) -> str:
        if lane == self.groups.rows:
            length = self.groups.height
        elif lane in self.groups.split:
            length = self.groups.own(lane, length)
        elif length < 8:
            return f"tl.arange(0, {length})"
        text = f"tl.arange(0, {length}, layout={self.layout([lane])})"
        return f"({text} + group * {length})" if lane in self.groups.shares else text

    def spread(self, text: str, have: Sequence[int], want: Sequence[int]) -> str:
        if tuple(have) == tuple(want) or not have:
            return text
        self.layout(want)
        if len(want) == 2 and len(have) == 1:
            rows = self.groups.rows
            other = next(lane for lane in want if lane != rows)
            columns = self.lengths([other])[0]
            if list(have) == [rows] and columns != self.groups.columns:
                text = f"gl.convert_layout({text}, ROWS_{columns})"
            pattern = ":, None" if list(have) == [rows] else "None, :"
            return f"{bracketed(text)}[{pattern}]"
        return super().spread(text, have, want)

    def filled(self, text: str, have: Sequence[int], want: Sequence[int]) -> str:
        if tuple(have) == tuple(want):
            return text
        zeros = f"gl.full({self.shape(want)}, 0, gl.int1, {self.layout(want)})"
        wide = self.spread(text, have, want)
        return f"gl.where({zeros}, {wide}, {wide})"


LEAST_DEPTH = 2


def fits_beside(rings: Iterable[Ring], scratch: int, groups: Groups, turns: int = LEAST_DEPTH) -> bool:
    """Whether so many turns of all rings fit in shared memory beside what is there once."""
    least = sum(ring.bytes(groups.count) * (1 if ring.once else turns) for ring in rings)
    return least + scratch <= SHARED_ROOM - BARRIER_ROOM


def depths_of(rings: Sequence[Ring], scratch: int, groups: Groups, stages: int) -> tuple[int, int]:
    """How many turns the rings take in shared memory beside what is there once, and how many those of tiles
    that come once for each tile of the grid: two where this takes nothing from the others."""
    once = sum(ring.bytes(groups.count) for ring in rings if ring.once)
    each = sum(ring.bytes(groups.count) for ring in rings if not ring.once)
    room = SHARED_ROOM - scratch - BARRIER_ROOM
    depth = (room - once) // each if each else stages
    depth = min(depth, max(stages, LEAST_DEPTH))
    if depth < LEAST_DEPTH:
        taken = once + scratch
        raise Infeasible(f"tiles of {taken} bytes and twice {each} do not fit {SHARED_ROOM} of shared memory")
    return depth, 2 if 2 * once + depth * each <= room else 1
