"""What warp groups that share columns need not all compute: the first one does, and gives it to the others.

In a step of a loop the first group computes whatever has none of the shared columns, and puts into shared
memory what the columns' part needs: left operands of its products, and vectors along the rows. Behind the
loop it gives what the loop carries besides. `given_full` says that the places hold something, `given_free`
that the others have read it; `given_at` counts both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cleave.codegen.gluon_plan import RowScope
from cleave.codegen.gluon_skew import Skew, names_read, needed
from cleave.codegen.triton_maps import HALVES, TYPES
from cleave.codegen.triton_text import Line, Lines, Nested
from cleave.codegen.triton_tiles import Roles, Tile, uses_of
from cleave.errors import Infeasible
from cleave.schedule.tiles import (
    Compute,
    ContractTile,
    Fill,
    Load,
    Locate,
    Measure,
    ReduceTile,
    Statement,
)

if TYPE_CHECKING:
    from cleave.codegen.gluon_body import Rows, Running

Value = Load | Fill | Measure | Locate | Compute | ReduceTile | ContractTile
VECTOR = "gl.SwizzledSharedLayout(1, 1, 1, [0])"
"""The layout of a vector in shared memory."""


class Given:
    """Writes the steps of a loop whose first group computes for the others."""

    def __init__(self, rows: Rows, parts: Skew) -> None:
        self.rows, self.parts = rows, parts
        self.first: Lines = []
        self.others: Lines = []
        self.places: dict[tuple[tuple[int, ...], str], int] = {}
        rows.gives = True

    # ------------------------------------------------------------ a step

    def step(self, scope: RowScope) -> None:
        """One step: what the first group does, what the others wait for, and the columns of each."""
        rows, parts = self.rows, self.parts
        body = [s for s in (*parts.heads, *parts.middle, *parts.after) if isinstance(s, Value)]
        tiles = [s for s in body if isinstance(s, Load) and rows.copies.ring_of(scope, s, once=False)]
        for s in tiles:
            rows.memory.fetch(scope, s, parts.counts[s.out], once=False)
        own = [s for s in body if s not in tiles and rows.groups.split & set(lanes_of(scope, s))]
        if any(s in own for s in parts.heads):
            raise Infeasible("a product needs a part of the columns that warp groups share")
        common = self.scalars(scope, [s for s in body if s not in tiles and s not in own])
        late = {a for p in parts.late for a in p.args}
        if any(s.out in late and s.out in names_read(other) for s in tiles for other in common):
            raise Infeasible("what is multiplied with the columns that warp groups share is read otherwise")
        parts.heads = [s for s in parts.heads if s in common]
        for name, count in uses_of([*common, *parts.early]).items():
            rows.memory.firsts[name] = rows.memory.firsts.get(name, 0) + count
        states = {s.out: (rows.memory.held[s.out].wait, rows.memory.held[s.out].free) for s in tiles}
        known, outer, scope.lines = dict(scope._shared), scope.lines, self.first
        parts.finish_early(scope, parts.start_early(scope, False), 0, False)
        made = {s.out for s in (*common, *parts.early, *parts.onto.values())}
        wanted = {name for s in own for name in names_read(s)} | {a for p in parts.late for a in p.args}
        soon = needed(common, wanted & made)
        rest = [s for s in common if s not in parts.heads and s.out not in soon]
        parts.write(scope, [s for s in common if s not in parts.heads and s not in rest])
        lefts = self.give_step(scope, own, made)
        later: Lines = []
        scope.lines = later
        parts.write(scope, rest)
        later += parts.others(scope)
        scope._shared, scope.lines = known, outer
        for name, (wait, free) in states.items():
            if free and not rows.memory.held[name].free:
                self.others.append(Line(free))
            elif wait and not rows.memory.held[name].wait:
                self.others.append(Line(wait))
        self.exchange(scope)
        parts.write(scope, own)
        running = [self.start(scope, product, lefts.get(product.out, "")) for product in parts.late]
        scope.lines.append(Nested("if group == 0:", later))
        rows.finish(scope, running, 0)
        scope.lines.append(Nested("if group > 0:", [free_line()]))

    def scalars(self, scope: RowScope, body: Sequence[Value]) -> list[Value]:
        """Write what is no block for all groups; returns the rest."""
        rest: list[Value] = []
        made = {s.out for s in (*self.parts.early, *self.parts.onto.values())}
        for s in body:
            if lanes_of(scope, s) or names_read(s) & made:
                rest.append(s)
                made.add(s.out)
            else:
                self.parts.write(scope, [s])
        return rest

    def start(self, scope: RowScope, product: ContractTile, left: str) -> Running:
        """Start a late product for a group's columns."""
        rows, parts = self.rows, self.parts
        roles = rows.roles(scope, product)
        assert roles is not None
        onto, target = parts.base(scope, product), scope.value(parts.targets[product.out])
        if not left:
            return rows.start(scope, product, roles, product.out, onto, target.text)[0]
        right = product.args[1 - roles.left]
        operands = (left, rows.right(scope, product, roles, right), [right])
        return rows.launch(scope, product, roles, operands, onto, target.text)[0]

    # ------------------------------------------------------------ giving

    def give_step(self, scope: RowScope, own: Sequence[Statement], common: set[str]) -> dict[str, str]:
        """Give what a step's columns need; returns the left operands of late products."""
        rows, parts = self.rows, self.parts
        self.first.append(wait_free())
        lefts: dict[str, str] = {}
        needed = dict.fromkeys(name for s in own for name in names_read(s))
        carried = {target for target, _ in parts.loop.updates} - set(parts.targets.values())
        if carried & set(needed):
            raise Infeasible("columns need what a loop carries beside them, as it was")
        for name in sorted(needed.keys() & common):
            self.vector(scope, scope.value(name), name)
        for product in parts.late:
            roles = rows.roles(scope, product)
            assert roles is not None
            name = product.args[roles.left]
            if name in common:
                lefts[product.out] = self.left(scope, product, roles, name)
        self.first += [Line("fence_async_shared()"), full_line()]
        return lefts

    def left(self, scope: RowScope, product: ContractTile, roles: Roles, name: str) -> str:
        """Give a left operand: the first group keeps it in registers."""
        rows, value = self.rows, scope.value(name)
        if value.dtype not in HALVES:
            raise Infeasible(f"{product.out} multiplies {value.dtype}; warp groups want 16 bits")
        lanes = (roles.m, roles.k)
        made = scope.line(f"{name}_given", rows.operand(scope, product, value, lanes, value.dtype))
        height, columns = scope.lengths(lanes)
        word = TYPES[value.dtype].removeprefix("tl.")
        place = self.place((height, columns), value.dtype, f"SHARED_{height}_{columns}_{word}")
        variable = scope.names.take(f"{product.out}_left")
        own = f"gl.convert_layout({made}, LEFT_{scope.lengths([roles.n])[0]})"
        self.first += [Line(f"{place}.store({made})"), Line(f"{variable} = {own}", variable)]
        self.others.append(Line(f"{variable} = {place}", variable))
        return variable

    def vector(self, scope: RowScope, value: Tile, name: str) -> None:
        """Give a vector along the rows under its name."""
        if value.literal is not None:
            return
        if value.lanes != (self.rows.groups.rows,) or value.dtype == "bool" or not value.text.isidentifier():
            raise Infeasible(f"{name} is no vector along the rows that one warp group can give another")
        place = self.place(scope.lengths(value.lanes), value.dtype, VECTOR)
        self.first.append(Line(f"{place}.store({value.text})"))
        text = f"{value.text} = {place}.load({scope.layout(value.lanes)})"
        self.others.append(Line(text, value.text, kept=True))

    def place(self, shape: tuple[int, ...], dtype: str, layout: str) -> str:
        """Where a block is given: the next place of its kind, each in turn for all loops."""
        number = self.places.get((shape, dtype), 0)
        self.places[shape, dtype] = number + 1
        rooms = self.rows.places.setdefault((shape, dtype), [])
        if number == len(rooms):
            rooms.append(self.rows.memory.room("given", shape, dtype, layout, 1))
        return f"{rooms[number]}.index(0)"

    def exchange(self, scope: RowScope) -> None:
        """Write both parts, and begin anew."""
        wait = Line("mbarrier.wait(given_full.index(0), given_at & 1)")
        scope.lines.append(Nested("if group == 0:", self.first))
        scope.lines.append(Nested("else:", [wait, *self.others]))
        scope.lines.append(Line("given_at += 1"))
        self.first, self.others, self.places = [], [], {}

    def behind(self, scope: RowScope) -> None:
        """Behind the loop: give what it carries beside the columns."""
        self.first.append(wait_free())
        for target, _ in self.parts.loop.updates:
            if target not in self.parts.targets.values():
                self.vector(scope, scope.value(target), target)
        self.first.append(full_line())
        self.others.append(free_line())
        self.exchange(scope)


def lanes_of(scope: RowScope, statement: Statement) -> tuple[int, ...]:
    """The lanes of a statement's value."""
    return scope.lanes.over(getattr(statement, "axes", ()), scope.tiles)


def wait_free() -> Line:
    return Line("mbarrier.wait(given_free.index(0), given_at & 1 ^ 1)")


def full_line() -> Line:
    return Line("mbarrier.arrive(given_full.index(0), count=1)")


def free_line() -> Line:
    return Line("mbarrier.arrive(given_free.index(0), count=1)")
