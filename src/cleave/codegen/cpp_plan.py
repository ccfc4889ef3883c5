"""In which loops a C++ kernel runs its operations, and where its tiles stand.

Operations are gathered into items: a `Nest` takes every operation over one set of indices that may run at
its place, a `Product` is a contraction for the micro-kernel, a `Pass` is a loop of the tile program. Tiles
that one nest makes and uses live in registers; the others get rooms in one block of scratch memory, shared
by tiles that do not live at the same time. An accumulator and the value that updates it are one room where
nothing reads the old value any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cleave.codegen.cpp_math import COSTLY
from cleave.codegen.cpp_roles import roles_of
from cleave.codegen.cpp_text import MEMORY_TYPES, TILE_BYTES
from cleave.codegen.cpp_tiles import Item, Nest, Op, Pass, Product, Room, Tile, is_linear, resolve
from cleave.ir.dims import Dim
from cleave.ir.ops import FLOATS
from cleave.schedule.tiles import (
    Carry,
    Compute,
    ContractTile,
    Fill,
    Kernel,
    Load,
    Locate,
    Measure,
    ReduceTile,
    Store,
)

PANEL_BYTES = 32 * 1024
"""Scratch of a product: `kDepth * kColumns` doubles at most (cpp_runtime.h)."""

INLINE_LIMIT = 8
"""Operations that are written again at each use rather than kept in a tile."""

SMALL_LOAD = 2048
"""Elements that a load may have and be moved to the front of its body."""


@dataclass(slots=True)
class Plan:
    """The items of a kernel, its tiles in memory in the order of their making, and the scratch it needs."""

    items: list[Item]
    kept: list[Tile]
    rooms: dict[Tile, Room]
    scratch: int


def plan(kernel: Kernel, known: Callable[[Dim], int | None]) -> Plan:
    """Gather the operations of a kernel and place its tiles. `known` gives the sizes that are fixed."""
    ops = resolve(kernel, known)
    scalars = {t.name for t in kernel.tensors if t.role == "scalar"}
    written = {op.statement.tensor for op in _all(ops) if isinstance(op.statement, Store)}
    types = {t.name: MEMORY_TYPES[t.dtype] for t in kernel.tensors}
    gather = _Gatherer(scalars, written, types)
    gather.choose_inline(ops)
    gather.choose_products(ops)
    items = gather.run(ops, None)
    kept = _keep(items)
    _share(items)
    _reuse(items, set())
    rooms, size = _place(items)
    return Plan(items, kept, rooms, size)


def _all(ops: Iterable[Op | Pass]) -> Iterable[Op]:
    for op in ops:
        if isinstance(op, Pass):
            yield from _all(op.ops)
        else:
            yield op


class _Gatherer:
    def __init__(self, scalars: set[str], written: set[str], types: dict[str, str]) -> None:
        self.scalars, self.written, self.types = scalars, written, types
        self.starts: dict[Op, tuple[Op, Tile]] = {}
        """An addition that a contraction absorbs: the contraction and the other summand."""
        self.products: dict[Op, Tile] = {}
        """A contraction for the micro-kernel, and the tile that it makes."""

    # ------------------------------------------------------------ decisions

    def choose_inline(self, ops: Sequence[Op | Pass]) -> None:
        """Literals, sizes, positions and what is cheap to make of them are written where they are used."""
        weight: dict[Tile, int] = {}
        for op in _all(ops):
            tile = op.out
            if tile is None or any(_wants_memory(user) for user in tile.users):
                continue
            match op.statement:
                case Fill() | Measure():
                    weight[tile] = 0
                case Locate() if not op.lookups:
                    weight[tile] = 1
                case Load(tensor=tensor) if tensor in self.scalars:
                    weight[tile] = 0
                case Compute(fn=fn) if tile.axes and fn not in COSTLY:
                    if not all(a in weight for a in op.args):
                        continue
                    total = 1 + sum(weight[a] for a in op.args)
                    if total > INLINE_LIMIT:
                        continue
                    weight[tile] = total
                case _:
                    continue
            tile.where = "inline"

    def choose_products(self, ops: Sequence[Op | Pass]) -> None:
        for op in ops:
            if isinstance(op, Pass):
                self.choose_products(op.ops)
            elif isinstance(op.statement, ContractTile) and op.out is not None:
                self._choose_product(op, op.out, ops)
        for op in ops:
            if isinstance(op, Op) and op.out is not None and self._reads_directly(op, op.out, ops):
                op.out.where = "direct"

    def _choose_product(self, op: Op, out: Tile, ops: Sequence[Op | Pass]) -> None:
        statement = op.statement
        assert isinstance(statement, ContractTile)
        if statement.dtype not in FLOATS:
            return
        first, second = op.args
        user = out.users[0]
        between = ops[ops.index(op) : ops.index(user)] if user in ops else ()
        settled = user in ops and not any(isinstance(other, Pass) for other in between)
        alone = len(out.users) == 1 and user not in self.starts
        if alone and isinstance(user, Op) and settled and _adds(user, out):
            target = user.out
            assert target is not None
            if roles_of(target.axes, first.axes, second.axes, statement.over):
                other = user.args[1] if user.args[0] is out else user.args[0]
                self.products[op] = target
                self.starts[user] = (op, other)
                return
        if roles_of(out.axes, first.axes, second.axes, statement.over):
            self.products[op] = out

    def _reads_directly(self, op: Op, tile: Tile, ops: Sequence[Op | Pass]) -> bool:
        """May the products that use a load read the tensor themselves?"""
        statement = op.statement
        if not isinstance(statement, Load) or statement.guarded or not all(map(is_linear, statement.terms)):
            return False
        if statement.tensor in self.scalars | self.written or tile.where != "register":
            return False
        for user in tile.users:
            if not isinstance(user, Op) or user not in self.products or user not in ops:
                return False
            contract = user.statement
            assert isinstance(contract, ContractTile)
            target = self.products[user]
            roles = roles_of(target.axes, user.args[0].axes, user.args[1].axes, contract.over)
            assert roles is not None
            if user.args[roles.left] is tile and self.types[statement.tensor] != target.kind:
                return False
        return True

    # ------------------------------------------------------------ items

    def run(self, ops: Sequence[Op | Pass], around: Pass | None) -> list[Item]:
        """The items of a body."""
        items: list[Item] = []
        made: dict[Tile, int] = {}
        stored: dict[str, int] = {}
        loaded: dict[str, int] = {}
        inside = set(_all(ops))

        def join(op: Op) -> None:
            if op.out is not None and op.out.where in ("inline", "direct"):
                return
            after = max((made.get(t, -1) + _is_total(t) for t in _leaves(op.reads)), default=-1)
            statement = op.statement
            if isinstance(statement, Load):
                after = max(after, stored.get(statement.tensor, -1) + 1)
            if isinstance(statement, Store):
                after = max(after, stored.get(statement.tensor, -1) + 1, loaded.get(statement.tensor, -1) + 1)
            first = statement.first if isinstance(statement, Store) else ()
            space = op.space
            for number in range(len(items) - 1, max(after, 0) - 1, -1):
                item = items[number]
                if isinstance(item, Nest) and item.space == space and item.first == first:
                    break
            else:
                items.append(Nest(space, first))
                number = len(items) - 1
            nest = items[number]
            assert isinstance(nest, Nest)
            nest.ops.append(op)
            if op.out is not None:
                made[op.out] = number
            if isinstance(statement, Load):
                loaded[statement.tensor] = max(number, loaded.get(statement.tensor, -1))
            if isinstance(statement, Store):
                stored[statement.tensor] = number

        for op in self._loads_first(ops):
            if isinstance(op, Pass):
                op.items = self.run(op.ops, op)
                items.append(op)
                made.update({carried: len(items) - 1 for carried in _carried(op)})
            elif op in self.products and self.products[op] is op.out:
                items.append(Product(op, self.products[op]))
                made[self.products[op]] = len(items) - 1
            elif op in self.starts:
                contract, start = self.starts[op]
                assert op.out is not None
                if not self._same_room(op, op.out, start, around, inside):
                    start = _copy(start, op, op.out)
                    join(start.maker)
                items.append(Product(contract, op.out, start))
                made[op.out] = len(items) - 1
            elif op not in self.products:
                join(op)
        return items

    def _loads_first(self, ops: Sequence[Op | Pass]) -> list[Op | Pass]:
        """Small loads that depend on nothing go to the front: they then part no nests that could be one."""

        def is_free(op: Op | Pass) -> bool:
            if isinstance(op, Pass) or not isinstance(op.statement, Load) or op.out is None:
                return False
            return (
                not op.lookups and op.statement.tensor not in self.written and op.out.capacity <= SMALL_LOAD
            )

        return [*(op for op in ops if is_free(op)), *(op for op in ops if not is_free(op))]

    def _same_room(self, op: Op, out: Tile, start: Tile, around: Pass | None, inside: set[Op]) -> bool:
        """May a product add into the very tile that it starts from?"""
        if start.axes != out.axes or start.dtype != out.dtype or start.where in ("inline", "direct"):
            return False
        readers = [user for user in start.users if user in inside or isinstance(user, Pass)]
        if isinstance(start.maker.statement, Carry):
            updates = around is not None and (start, out) in around.updates
            in_here = [r for r in readers if isinstance(r, Op)]
            return updates and in_here == [op] and not _read_in_passes(start, around)
        return start.maker in inside and start.users == [op]


def _read_in_passes(tile: Tile, around: Pass | None) -> bool:
    """Does a loop inside this one use the tile, or another update of this one?"""
    assert around is not None
    if any(value is tile for _, value in around.updates):
        return True
    return any(isinstance(op, Pass) and (op in tile.users or _uses(op, tile)) for op in around.ops)


def _uses(loop: Pass, tile: Tile) -> bool:
    return any(
        tile in op.reads if isinstance(op, Op) else op in tile.users or _uses(op, tile) for op in loop.ops
    )


def _adds(op: Op, summand: Tile) -> bool:
    statement = op.statement
    if not isinstance(statement, Compute) or statement.fn != "add" or statement.dtype != summand.dtype:
        return False
    other = op.args[1] if op.args[0] is summand else op.args[0]
    return other is not summand and other.dtype == summand.dtype and set(statement.axes) == set(summand.axes)


def _copy(tile: Tile, user: Op, out: Tile) -> Tile:
    """A tile with the axes of `out` that holds what `tile` does."""
    statement = Compute(f"{out.name}_start", out.axes, out.dtype, "id", (tile.name,))
    copy = Tile(statement.out, out.axes, out.dtype, out.capacity, users=[user])
    copy.maker = Op(statement, (tile,), out=copy, space=frozenset(out.axes))
    tile.users[tile.users.index(user)] = copy.maker
    return copy


def _wants_memory(user: Op | Pass) -> bool:
    return isinstance(user, Pass) or isinstance(user.statement, ContractTile)


def _is_total(tile: Tile) -> bool:
    """Is a tile complete only after the nest that makes it?"""
    return isinstance(tile.maker.statement, ReduceTile | ContractTile)


def _leaves(tiles: Iterable[Tile]) -> Iterable[Tile]:
    """Tiles, and those below inline ones."""
    for tile in tiles:
        if tile.where == "inline":
            yield from _leaves(tile.maker.reads)
        else:
            yield tile


def _carried(loop: Pass) -> list[Tile]:
    """All accumulators that a loop, and the loops inside it, change."""
    inner = [tile for op in loop.ops if isinstance(op, Pass) for tile in _carried(op)]
    return [*(carried for carried, _ in loop.updates), *inner]


# ---------------------------------------------------------------- rooms


def _keep(items: Sequence[Item]) -> list[Tile]:
    """Decide which tiles stand in memory: all in the order of their making."""
    kept: list[Tile] = []

    def keep(tile: Tile) -> None:
        tile.where = "memory"
        kept.append(tile)

    for item in items:
        match item:
            case Nest(ops=ops):
                for op in ops:
                    tile = op.out
                    if tile is None:
                        continue
                    total = isinstance(op.statement, ReduceTile | ContractTile | Carry)
                    if total or any(isinstance(u, Pass) or u not in ops for u in tile.users):
                        keep(tile)
            case Product(out=out):
                keep(out)
            case Pass():
                kept += _keep(item.items)
    return kept


def _share(items: Sequence[Item]) -> None:
    """Give updates the room of their accumulators, and products that of their starts."""
    for item in items:
        if isinstance(item, Product) and item.start and not isinstance(item.start.maker.statement, Carry):
            item.start.same = item.out
        if not isinstance(item, Pass):
            continue
        _share(item.items)
        taken: set[Tile] = set()
        for carried, value in item.updates:
            if value not in taken and _overwrites(item, carried, value):
                value.same = carried.root
                taken.add(value)
            else:
                item.copies.append((carried, value))


def _reuse(items: Sequence[Item], before: set[Op | Pass]) -> None:
    """Let a nest write a tile over one that it reads for the last time, element by element."""
    done = set(before)
    for item in items:
        match item:
            case Pass():
                _reuse(item.items, set())
                done |= {item, *_all(item.ops)}
            case Product(op=op, out=out):
                done |= {op, out.maker}
            case Nest(space=space, ops=ops):
                done |= set(ops)
                free = [
                    tile
                    for op in ops
                    for tile in op.args
                    if tile.where == "memory"
                    and tile.axes
                    and frozenset(tile.axes) == space
                    and set(tile.users) <= done
                    and not isinstance(tile.maker.statement, Carry)
                    and tile.maker in done - set(ops)
                ]
                for op in ops:
                    out = op.out
                    if out is None or out.where != "memory" or out.same is not None or _is_total(out):
                        continue
                    for tile in free:
                        if tile.axes == out.axes and tile.kind == out.kind and out.root is not tile.root:
                            out.same = tile.root
                            free = [other for other in free if other.root is not tile.root]
                            break


def _overwrites(loop: Pass, carried: Tile, value: Tile) -> bool:
    """May the value be written where the accumulator stands?"""
    if value.axes != carried.axes or value.kind != carried.kind or value.same is not None:
        return False
    if any(v is carried for _, v in loop.updates):
        return False
    written = _first_write(loop.items, value)
    if written is None:
        return False
    for number, item in enumerate(loop.items):
        if number < written or not _item_reads(item, carried):
            continue
        if number > written:
            return False
        if isinstance(item, Nest):
            maker = value.maker if value.maker in item.ops else None
            pointwise = maker is None or isinstance(maker.statement, Compute)
            if item.space != frozenset(carried.axes) or not pointwise:
                return False
        elif not (isinstance(item, Product) and item.start is carried):
            return False
    return True


def _first_write(items: Sequence[Item], value: Tile) -> int | None:
    """The number of the item that first writes the room of a value."""
    for number, item in enumerate(items):
        if isinstance(item, Nest) and any(op.out is not None and op.out.root is value for op in item.ops):
            return number
        if isinstance(item, Product) and item.out is value:
            return number
    return None


def _item_reads(item: Item, tile: Tile) -> bool:
    match item:
        case Nest(ops=ops):
            return any(tile in _leaves(op.reads) for op in ops)
        case Product(op=op, start=start):
            return tile in op.reads or tile is start
        case Pass(items=items, updates=updates):
            return any(tile in pair for pair in updates) or any(_item_reads(i, tile) for i in items)


def _place(items: Sequence[Item]) -> tuple[dict[Tile, Room], int]:
    """Rooms for the tiles in memory, and the size of the whole block."""
    rooms: dict[Tile, Room] = {}
    panels: list[Room] = []
    clock = 0

    def touch(tile: Tile) -> None:
        root = tile.root
        if tile.where != "memory" or not root.axes:
            return
        if root not in rooms:
            rooms[root] = Room(_aligned(root.capacity * TILE_BYTES[root.kind]), clock, clock)
        rooms[root].last = clock

    def walk(body: Sequence[Item]) -> None:
        nonlocal clock
        for item in body:
            clock += 1
            match item:
                case Nest(ops=ops):
                    for op in ops:
                        for tile in (*_leaves(op.reads), *([op.out] if op.out is not None else [])):
                            touch(tile)
                case Product(op=op, out=out, start=start):
                    for tile in (*op.reads, out, *([start] if start is not None else [])):
                        touch(tile)
                    item.panel = Room(PANEL_BYTES, clock, clock)
                    panels.append(item.panel)
                case Pass(items=inner, updates=updates):
                    begin = clock
                    walk(inner)
                    clock += 1
                    for pair in updates:
                        for tile in pair:
                            touch(tile)
                    for room in rooms.values():
                        if room.first < begin < room.last:
                            room.last = clock

    walk(items)
    return rooms, _pack([*rooms.values(), *panels])


def _aligned(size: int) -> int:
    return (size + 63) // 64 * 64


def _pack(rooms: list[Room]) -> int:
    """First fit by time; returns the size of the block."""
    placed: list[Room] = []
    for room in sorted(rooms, key=lambda r: r.first):
        near = sorted(
            (r for r in placed if r.first <= room.last and room.first <= r.last), key=lambda r: r.offset
        )
        offset = 0
        for other in near:
            if offset + room.size <= other.offset:
                break
            offset = max(offset, other.offset + other.size)
        room.offset = offset
        placed.append(room)
    return max((r.offset + r.size for r in placed), default=0)
