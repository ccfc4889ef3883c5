"""Where the tiles of a C++ kernel stand.

Tiles that one nest makes and uses live in registers; the others get rooms in one block of scratch memory,
shared by tiles that do not live at the same time. A room passes from tile to tile where that is element by
element: an accumulator and the value that updates it are one room where nothing reads the old value any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cleave.codegen.cpp_roles import roles_of
from cleave.codegen.cpp_text import TILE_BYTES
from cleave.codegen.cpp_tiles import (
    Item,
    Nest,
    Op,
    Pass,
    Product,
    Room,
    Rows,
    Tile,
    all_ops,
    is_bf16,
    is_total,
    leaves_of,
)
from cleave.schedule.tiles import Carry, Compute, ContractTile, ReduceTile

PANEL_BYTES = 32 * 1024 + 264 * 1024 + 64
"""Scratch of a product: a panel of the widest vectors, `kSliverBytes`, and some words (cpp_products.h)."""
WIDE_BYTES = 264 * 1024
"""What it needs beside that where its first operand may have to be widened (cpp_pairs.h)."""


def _may_widen(product: Op, out: Tile) -> bool:
    """Whether a product reads a first operand of bfloat16 as it lies in memory."""
    statement = product.statement
    assert isinstance(statement, ContractTile)
    roles = roles_of(out.axes, product.args[0].axes, product.args[1].axes, statement.over)
    return roles is not None and is_bf16(product) and product.args[roles.left].where == "direct"


@dataclass(slots=True)
class Plan:
    """The items of a kernel, its tiles in memory in the order of their making, and the scratch it needs."""

    items: list[Item]
    kept: list[Tile]
    rooms: dict[Tile, Room]
    scratch: int


def place(items: list[Item]) -> Plan:
    """Decide what stands in memory, and where."""
    kept = _keep(items)
    _share(items)
    _reuse(items)
    placer = _Placer()
    placer.walk(items)
    return Plan(items, kept, placer.rooms, _pack([*placer.rooms.values(), *placer.others]))


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
            case Pass() | Rows():
                kept += _keep(item.items)
    return kept


def _share(items: Sequence[Item]) -> None:
    """Give updates the room of their accumulators, and products that of their starts."""
    for item in items:
        if isinstance(item, Product) and item.start and not isinstance(item.start.maker.statement, Carry):
            item.start.same = item.out
        if isinstance(item, Rows):
            _share(item.items)
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


def _reuse(items: Sequence[Item]) -> None:
    """Let a nest write a tile over one that it reads for the last time, element by element."""
    done: set[Op | Pass] = set()
    for item in items:
        match item:
            case Rows():
                _reuse(item.items)
            case Pass():
                _reuse(item.items)
                done |= {item, *all_ops(item.ops)}
            case Product(op=op, out=out):
                done |= {op, out.maker}
            case Nest(ops=ops):
                _take_over(item, done)
                done |= set(ops)


def _take_over(nest: Nest, before: set[Op | Pass]) -> None:
    """`before`: the operations of the body that ran before this nest."""
    done = before | set(nest.ops)
    free = [
        tile
        for op in nest.ops
        for tile in op.args
        if tile.where == "memory"
        and tile.axes
        and frozenset(tile.axes) == nest.space
        and tile.maker in before
        and set(tile.users) <= done
        and not isinstance(tile.maker.statement, Carry)
    ]
    for op in nest.ops:
        out = op.out
        if out is None or out.where != "memory" or out.same is not None or is_total(out):
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
            return any(tile in leaves_of(op.reads) for op in ops)
        case Product(op=op, start=start):
            return tile in op.reads or tile is start
        case Pass(items=items, updates=updates):
            return any(tile in pair for pair in updates) or any(_item_reads(i, tile) for i in items)
        case Rows(items=items):
            return any(_item_reads(i, tile) for i in items)


class _Placer:
    """Walks the items and notes from when to when each room is needed."""

    def __init__(self) -> None:
        self.rooms: dict[Tile, Room] = {}
        self.others: list[Room] = []
        self.clock = 0

    def walk(self, items: Sequence[Item]) -> None:
        for item in items:
            self.clock += 1
            match item:
                case Nest(ops=ops):
                    for op in ops:
                        self._touch(*leaves_of(op.reads), op.out)
                case Product(op=op, out=out, start=start):
                    self._touch(*op.reads, out, start)
                    item.panel = self._extra(PANEL_BYTES + (WIDE_BYTES if _may_widen(op, out) else 0))
                case Pass():
                    self._pass(item)
                case Rows():
                    begin = self.clock
                    self.walk(item.items)
                    self._repeat(begin)

    def _pass(self, item: Pass) -> None:
        begin = self.clock
        self.walk(item.items)
        self.clock += 1
        changed = {carried.root for carried, _ in item.updates}
        for carried, value in item.updates:
            self._touch(carried, value)
        for carried, value in item.copies:
            root = value.root
            if root in changed and root is not carried.root and root not in item.held:
                item.held[root] = self._extra(root.capacity * TILE_BYTES[root.kind])
        self._repeat(begin)

    def _repeat(self, begin: int) -> None:
        """What was made before a loop and is of use inside it is so in every iteration."""
        for room in self.rooms.values():
            if room.first < begin < room.last:
                room.last = self.clock

    def _touch(self, *tiles: Tile | None) -> None:
        for tile in tiles:
            if tile is None or tile.where != "memory" or not tile.axes:
                continue
            root = tile.root
            if root not in self.rooms:
                size = _aligned(root.capacity * TILE_BYTES[root.kind])
                self.rooms[root] = Room(size, self.clock, self.clock)
            self.rooms[root].last = self.clock

    def _extra(self, size: int) -> Room:
        room = Room(_aligned(size), self.clock, self.clock)
        self.others.append(room)
        return room


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
