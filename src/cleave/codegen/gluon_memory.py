"""Tiles in shared memory, as a warp group sees them: those that the copying warp brings, and its own.

`Copies` says in which ring a load's tile comes; a group waits for it before the first use and frees its slot
behind the last. What products read again and again is parked beside the rings, in a part for each group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from cleave.codegen.gluon_plan import Copies, Groups, Ring, RowScope, fits_beside, split_box
from cleave.codegen.gluon_stores import WIDE_BYTES, load_here, load_wide
from cleave.codegen.triton_maps import HALVES, TYPES
from cleave.codegen.triton_scope import Scope
from cleave.codegen.triton_text import Line
from cleave.codegen.triton_tiles import Tile
from cleave.errors import Infeasible
from cleave.schedule.machine import width
from cleave.schedule.tiles import ContractTile, Load, Loop, Statement

WIDE_OPERAND = 256
"""Columns."""
TRADED = 2048
"""Bytes: 16 of each thread of a warp group."""
WANTED_TURNS = 3
"""Turns of the loops' rings that a tile which comes once must leave (docs/decisions/0009: a product with its
residual waited for copies with two)."""


@dataclass(slots=True)
class Held:
    """A tile in shared memory: its matrix as text, the lanes in memory order, the barrier line to wait on
    before the first use, the line that frees the slot, and how many uses are left before that, `products` of
    them as operands."""

    text: str
    order: tuple[int, ...]
    tile: Tile
    wait: str = ""
    free: str = ""
    uses: int = 0
    products: int = 0
    slot: str = ""
    """The number of its place in its buffer, where it stays there while loops run."""


class GroupMemory:
    """What a warp group has in shared memory while a kernel's statements are written: `held` tiles by name,
    and `scratch`, the buffers that are no rings (shape, dtype, layout, parts). `products` counts the
    contractions that read each value."""

    def __init__(self, groups: Groups, copies: Copies) -> None:
        self.groups, self.copies = groups, copies
        self.held: dict[str, Held] = {}
        self.scratch: dict[str, tuple[tuple[int, ...], str, str, int]] = {}
        self.products: dict[str, int] = {}
        self.traded = 0
        """Bytes in which threads trade: the compiler takes them."""
        self.last: dict[str, str] = {}
        """Of tiles that come once for each tile of the grid: the lines that free them."""
        self.idle: set[str] = set()
        """Of these tiles: those that nothing reads any more."""
        self.lent: dict[str, str] = {}
        """Of the scratch: what lies where a tile lay that nothing reads any more, and that tile's ring."""
        self.firsts: dict[str, int] = {}
        """How many of a value's uses are the first group's alone, where groups share columns."""

    def fetch(self, scope: RowScope, statement: Load, uses: int, *, once: bool) -> None:
        """A load: from the ring that the copying warp fills, or by the group itself. A tile comes `once` for
        each tile of the grid where no loop asks for it."""
        ring = None
        if uses and not (once and self.shortens(scope, statement)):
            ring = self.copies.ring_of(scope, statement, once=once)
        if ring is None:
            wide = load_wide(self, scope, statement) if once else None
            scope.values[statement.out] = wide or load_here(scope, statement)
            return
        slot, phase = f"{ring.name}_slot", f"{ring.name}_phase"
        scope.lines.append(Line(f"{slot} = {ring.name}_at % {ring.turns}", slot))
        scope.lines.append(Line(f"{phase} = {ring.name}_at // {ring.turns} & 1", phase))
        scope.lines.append(Line(f"{ring.name}_at += 1"))
        self.hold(scope, statement, ring, slot, phase, uses)
        if ring.once:
            self.await_tile(scope, statement.out)
            held = self.held[statement.out]
            self.last[statement.out], held.free = held.free, ""
            held.slot = slot

    def shortens(self, scope: RowScope, statement: Load) -> bool:
        """Whether a tile that no product reads, such as what is added to a result, would take from the loops'
        rings turns that they want: a group then loads it itself."""
        box = split_box(scope, statement, self.groups.apart, self.groups.count)
        if box is None or self.products.get(statement.out) or width(statement.dtype) != WIDE_BYTES:
            return False
        rings = [ring for ring in self.copies.rings.values() if not ring.once]
        size = prod(box[0]) * width(statement.dtype) * self.groups.count
        taken = self.scratch_bytes() + 2 * size  # the result's room is as large, as a rule
        return not fits_beside(self.copies.rings.values(), taken, self.groups, WANTED_TURNS) and bool(rings)

    def hold(self, scope: RowScope, statement: Load, ring: Ring, slot: str, phase: str, uses: int) -> None:
        """A tile that a ring's slot holds, or will hold."""
        lanes = tuple(sorted(ring.order))
        made = tuple(scope.lanes.inside(lane, scope.tiles) for lane in lanes)
        tensor = scope.params.tensors[statement.tensor]
        box = [i for i in (term.variable for term in statement.terms) if i is not None]
        ends = ((i, scope.spans[i], scope.params.size(i.dim)) for i in box)
        zero = frozenset(i for i, span, size in ends if span.full or span.limit == size)
        tile = Tile("", tensor.dtype, statement.axes, lanes, made, zero)
        wait = f"mbarrier.wait({ring.name}_full.index({slot}), {phase})"
        free = f"mbarrier.arrive({ring.name}_free.index({slot}), count=1)"
        self.held[statement.out] = Held(
            ring.buffer(slot, self.groups.count),
            ring.order,
            tile,
            wait,
            free,
            uses,
            min(uses, self.products.get(statement.out, 0)),
        )
        scope.values[statement.out] = tile

    def await_tile(self, scope: Scope, name: str) -> None:
        """Wait for a tile in shared memory, once."""
        held = self.held[name]
        if held.wait:
            scope.lines.append(Line(held.wait))
            held.wait = ""

    def used(self, scope: Scope, name: str, times: int, *, loaded: bool = False) -> None:
        """A tile in shared memory was read; behind its last use its slot is free. One that was `loaded` into
        registers is fenced from the copy that comes next."""
        held = self.held.get(name)
        if held is None:
            return
        held.uses -= times
        if held.uses <= 0 and held.free:
            if loaded:
                scope.lines.append(Line("fence_async_shared()"))
            scope.lines.append(Line(held.free))
            held.free = ""

    def release(self, scope: Scope, names: Sequence[str]) -> None:
        """Free tiles that came once for this tile of the grid."""
        for name in names:
            scope.lines.append(Line("fence_async_shared()"))
            scope.lines.append(Line(self.last.pop(name)))

    def free_rest(self, scope: Scope, body: Sequence[Statement]) -> None:
        """Free what a step loaded and is still held."""
        for statement in body:
            held = self.held.get(statement.out) if isinstance(statement, Load) else None
            if held is not None and held.free:
                if held.wait:
                    scope.lines.append(Line(held.wait))
                scope.lines.append(Line("fence_async_shared()"))
                scope.lines.append(Line(held.free))
                held.free = ""

    def keep_operands(self, scope: RowScope, statement: Loop) -> None:
        """Put left operands that a loop's products read again and again into shared memory."""
        for product in statement.body:
            if not isinstance(product, ContractTile):
                continue
            for name in product.args:
                value = scope.values.get(name)
                if value is None or name in self.held or value.dtype not in HALVES:
                    continue
                if len(value.lanes) == 2 and value.lanes[0] == self.groups.rows and value.literal is None:
                    self.park(scope, name, value)

    def park(self, scope: RowScope, name: str, value: Tile) -> None:
        """Move a value to shared memory, where products read it."""
        if self.groups.split & set(value.lanes):
            raise Infeasible(f"{name} is summed over columns of which a group has a part in its registers")
        rows, columns = scope.lengths(value.lanes)
        word = TYPES[value.dtype].removeprefix("tl.")
        buffer = self.room(name, (rows, columns), value.dtype, f"SHARED_{rows}_{columns}_{word}")
        text = f"{buffer}.index(group)"
        scope.lines.append(Line(f"{text}.store({value.text})"))
        scope.lines.append(Line("fence_async_shared()"))
        self.held[name] = Held(text, value.lanes, value, slot="group")
        scope.values[name] = replace(value, text="")

    def look_again(self, scope: RowScope, names: Iterable[str]) -> None:
        """Let a step of a loop find out anew where wide operands lie that stay there: else the compiler does
        that before the loop, and keeps a number for every 16 columns in registers. Narrow ones are better off
        so (1% at 128 columns)."""
        for name in names:
            held = self.held.get(name)
            if held is None or not held.slot:
                continue
            if max(scope.lanes.length(lane, scope.tiles) for lane in held.order) >= WIDE_OPERAND:
                here = scope.line(f"{name}_here", f"anew({held.slot})")
                text = re.sub(rf"\b{held.slot}\b", here, held.text, count=1)
                self.held[name] = replace(held, text=text, slot=here)

    def room(
        self, wish: str, shape: tuple[int, ...], dtype: str, layout: str, count: int = 0, lender: str = ""
    ) -> str:
        """A buffer of shared memory with a part for each group, or `count` parts; of its own, or where the
        tile `lender` lay."""
        name = self.copies.names.take(f"{wish}_room")
        self.scratch[name] = (shape, dtype, layout, count or self.groups.count)
        if lender:
            self.lent[name] = self.copies.loads[lender].name
        return name

    def lender(self, shape: Sequence[int], dtype: str, uses: Mapping[str, int]) -> str:
        """A tile that came once for this tile of the grid, that nothing reads any more, and whose place takes
        such a block of each group; else nothing. Where each group has its own, no other reads it; one for all
        is lent where only the first group did, of which the others have what they need."""
        size = prod(shape) * width(dtype)
        for name in self.last:
            ring = self.copies.loads[name]
            if name not in self.idle or ring.pieces > 1 or width(ring.dtype) != width(dtype):
                continue
            own = not ring.shared and ring.bytes(1) == size
            first = ring.shared and self.firsts.get(name) == uses[name]
            if own or (first and ring.bytes(1) >= self.groups.count * size):
                return name
        return ""

    def has_room(self, size: int) -> bool:
        """Whether shared memory takes so many bytes more beside the least turns of every ring."""
        return fits_beside(self.copies.rings.values(), self.scratch_bytes() + size, self.groups)

    def may_trade(self) -> bool:
        """Whether there is room in which a group's threads trade parts of a block; it is taken."""
        size = TRADED * self.groups.count
        if not self.traded and self.has_room(size):
            self.traded = size
        return self.traded > 0

    def scratch_bytes(self) -> int:
        """Bytes of the buffers that are no rings."""
        total = self.traded
        for name, (shape, dtype, _, count) in self.scratch.items():
            if name not in self.lent:
                total += width(dtype) * count * prod(shape)
        return total
