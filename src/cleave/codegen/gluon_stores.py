"""Results of a warp group on their way out: through shared memory and a bulk copy where that can be."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from cleave.codegen.gluon_plan import RowScope, split_box, starts_of
from cleave.codegen.triton_maps import convert
from cleave.codegen.triton_text import Line
from cleave.schedule.machine import width
from cleave.schedule.tiles import Load, Store

if TYPE_CHECKING:
    from cleave.codegen.gluon_body import Rows


def store_rows(rows: Rows, scope: RowScope, statement: Store) -> bool:
    """Store a block through shared memory and a bulk copy; whether that can be done."""
    tensor, tile = scope.params.tensors[statement.tensor], scope.value(statement.value)
    probe = Load("", (), tensor.dtype, statement.tensor, statement.terms)
    shares, count = rows.groups.shares, rows.groups.count
    split = split_box(scope, probe, shares, count)
    if statement.first or split is None or split[1] != tile.lanes or tile.lanes[0] != rows.groups.rows:
        return False
    box = [i for i in (term.variable for term in statement.terms) if i is not None]
    spans = [(scope.spans[i], scope.params.size(i.dim)) for i in box]
    if any(not span.full and span.limit != size for span, size in spans):
        return False
    block, _, shape = split
    if not rows.memory.has_room(prod(block) * width(tensor.dtype) * count):
        return False
    descriptor = scope.params.descriptor(statement.tensor, block)
    where = f"{rows.memory.room(statement.tensor, block, tensor.dtype, f'{descriptor}.layout')}.index(group)"
    matrix = where if block == shape else f"{where}.reshape([{shape[0]}, {shape[1]}])"
    starts = ", ".join(starts_of(scope, box, shares, count, "group"))
    scope.lines.append(Line("tma.store_wait(0)  # of the tile before"))
    scope.lines.append(Line(f"{matrix}.store({convert(tile, tile.text, tensor.dtype)})"))
    scope.lines.append(Line("fence_async_shared()"))
    scope.lines.append(Line(f"copy_out({descriptor}, [{starts}], {where})"))
    rows.stored = True
    return True
