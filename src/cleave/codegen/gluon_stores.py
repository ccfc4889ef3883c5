"""Results of a warp group on their way out: through shared memory and a bulk copy where that can be, else
from registers, 16 bytes of a thread at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from cleave.codegen.gluon_plan import RowScope, split_box, starts_of
from cleave.codegen.triton_maps import convert
from cleave.codegen.triton_memory import by_pointers, load
from cleave.codegen.triton_scope import Scope
from cleave.codegen.triton_text import Line, Names
from cleave.codegen.triton_tiles import Tile
from cleave.errors import Bug
from cleave.ir.dims import Index
from cleave.schedule.machine import width
from cleave.schedule.tiles import Load, Store

if TYPE_CHECKING:
    from cleave.codegen.gluon_body import Rows
    from cleave.codegen.gluon_memory import GroupMemory


Box = tuple[tuple[int, ...], tuple[int, ...], tuple[int, int]]


def box_out(rows: Rows, scope: RowScope, statement: Store) -> Box | None:
    """The box of a group's share of a store, as of `split_box`; None where a bulk copy cannot do it."""
    tensor = scope.params.tensors[statement.tensor]
    probe = Load("", (), tensor.dtype, statement.tensor, statement.terms)
    split = split_box(scope, probe, rows.groups.shares, rows.groups.count)
    if statement.first or split is None or split[1][0] != rows.groups.rows:
        return None
    spans = [(scope.spans[i], scope.params.size(i.dim)) for i in _indices(statement)]
    return None if any(not span.full and span.limit != size for span, size in spans) else split


def _indices(statement: Store) -> list[Index]:
    return [i for i in (term.variable for term in statement.terms) if i is not None]


def lender_of(rows: Rows, scope: RowScope, statement: Store) -> str:
    """The tile in whose place a store's block leaves where shared memory has no other room for it; none where
    it has, or nothing has such a place."""
    box = box_out(rows, scope, statement)
    if box is None or rows.depth > 0:
        return ""
    block, dtype = box[0], scope.params.tensors[statement.tensor].dtype
    if rows.memory.has_room(prod(block) * width(dtype) * rows.groups.count):
        return ""
    return rows.memory.lender(block, dtype, rows.uses)


def store_rows(rows: Rows, scope: RowScope, statement: Store) -> bool:
    """Store a block through shared memory and a bulk copy; whether that can be done."""
    dtype, tile = scope.params.tensors[statement.tensor].dtype, scope.value(statement.value)
    split = box_out(rows, scope, statement)
    if split is None or split[1] != tile.lanes:
        return False
    block, _, shape = split
    lender = lender_of(rows, scope, statement)
    if not lender and not rows.memory.has_room(prod(block) * width(dtype) * rows.groups.count):
        return False
    descriptor = scope.params.descriptor(statement.tensor, block)
    room = rows.memory.room(statement.tensor, block, dtype, f"{descriptor}.layout", lender=lender)
    where = f"{room}.index(group)"
    matrix = where if block == shape else f"{where}.reshape([{shape[0]}, {shape[1]}])"
    starts = starts_of(scope, _indices(statement), rows.groups.shares, rows.groups.count, "group")
    if not lender:
        scope.lines.append(Line("tma.store_wait(0)  # of the tile before"))
    scope.lines.append(Line(f"{matrix}.store({convert(tile, tile.text, dtype)})"))
    scope.lines.append(Line("fence_async_shared()"))
    scope.lines.append(Line(f"copy_out({descriptor}, [{', '.join(starts)}], {where})"))
    if lender:
        scope.lines.append(Line("tma.store_wait(0)  # the next tile comes to this place"))
        rows.memory.release(scope, [lender])
    rows.stored = True
    return True


WIDE_BYTES = 2
"""Of an element that threads trade."""
NARROWEST = 32
"""Columns of a block of which four threads have 16 bytes each."""


class WideScope(RowScope):
    """What a warp group knows of blocks of `columns` columns on their way from and to memory."""

    columns: int

    def opened(self, names: Names) -> RowScope:
        raise Bug("nothing is nested in a load or a store")

    def layout(self, lanes: Sequence[int]) -> str:
        own = f"{self.groups.height}_{self.columns}"
        if len(lanes) == 2:
            return f"WIDE_{own}"
        return f"WIDE_ROWS_{own}" if lanes[0] == self.groups.rows else f"WIDE_COLUMNS_{own}"

    def spread(self, text: str, have: Sequence[int], want: Sequence[int]) -> str:
        return Scope.spread(self, text, have, want)


def wide_scope(
    memory: GroupMemory, scope: RowScope, statement: Load | Store, lanes: Sequence[int], dtype: str
) -> WideScope | None:
    """A scope in which a statement reads or writes a block over some lanes, with the same indices anew; None
    where threads cannot trade their parts of a block for 16 bytes each."""
    plain = all(isinstance(leaf, Index) for term in statement.terms for leaf, _ in term.leaves)
    if width(dtype) != WIDE_BYTES or len(lanes) != 2 or lanes[0] != scope.groups.rows or not plain:
        return None
    columns = scope.lengths(lanes)[1]
    if columns < NARROWEST or not memory.may_trade():
        return None
    wide = WideScope(scope.params, scope.lanes, scope.index_names, scope.names)
    wide.groups, wide.columns = scope.groups, columns
    wide.values, wide.spans = dict(scope.values), dict(scope.spans)
    inside = [i for lane in lanes for i in scope.lanes.inside(lane, scope.tiles)]
    wide.enter({i: scope.spans[i] for i in inside if scope.spans[i].tile > 1})
    return wide


def widened(memory: GroupMemory, scope: RowScope, statement: Store) -> WideScope | None:
    """A scope that knows what a store writes in the layout in which a thread has 16 bytes at a time."""
    tile, dtype = scope.value(statement.value), scope.params.tensors[statement.tensor].dtype
    wide = None if tile.literal is not None else wide_scope(memory, scope, statement, tile.lanes, dtype)
    if wide is not None:
        text = f"gl.convert_layout({convert(tile, tile.text, dtype)}, {wide.layout(tile.lanes)})"
        made = wide.line(f"{statement.value}_wide", text)
        wide.values[statement.value] = replace(tile, text=made, dtype=dtype, weight=0)
    return wide


def load_here(scope: RowScope, statement: Load) -> Tile:
    """A load by the group itself, never through a descriptor: those are for copies into shared memory."""
    scalar = scope.params.tensors[statement.tensor].role == "scalar"
    return load(scope, statement) if scalar else by_pointers(scope, statement)


def load_wide(memory: GroupMemory, scope: RowScope, statement: Load) -> Tile | None:
    """Load a block in that layout and bring it into the one of products."""
    tensor = scope.params.tensors[statement.tensor]
    axes = [i for i in statement.axes if scope.spans[i].tile > 1]
    lanes = tuple(sorted({scope.lanes.of[i] for i in axes}))
    wide = None if tensor.role == "scalar" else wide_scope(memory, scope, statement, lanes, tensor.dtype)
    if wide is None:
        return None
    tile = by_pointers(wide, statement)
    scope.lines += wide.lines
    text = scope.line(statement.out, f"gl.convert_layout({tile.text}, {scope.layout(lanes)})")
    return replace(tile, text=text)
