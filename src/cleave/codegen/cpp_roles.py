"""Which role each index of a contraction of two tiles plays: batch, rows, columns or depth.

The micro-kernel wants the columns of the result next to each other, so the operand that has the result's
last index gives the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cleave.ir.dims import Index


@dataclass(frozen=True, slots=True)
class Roles:
    """`left` and `right` are operand numbers: of the rows and of the columns. Each role lists its indices in
    the result's order, `depth` in the order of the columns' operand. Without rows it is a vector times a
    matrix: one row."""

    left: int
    right: int
    batch: tuple[Index, ...]
    rows: tuple[Index, ...]
    columns: tuple[Index, ...]
    depth: tuple[Index, ...]


def roles_of(
    out: Sequence[Index], first: Sequence[Index], second: Sequence[Index], over: Sequence[Index]
) -> Roles | None:
    """The roles of `out = sum over of first * second`, or None if the micro-kernel cannot have it."""
    if not out or not over or not set(over) <= set(first) & set(second):
        return None
    if set(out) != (set(first) | set(second)) - set(over):
        return None
    last = out[-1]
    if (last in first) == (last in second):
        return None
    left, right = (0, 1) if last in second else (1, 0)
    rows_of, columns_of = (first, second) if right == 1 else (second, first)
    rows = tuple(i for i in out if i in rows_of and i not in columns_of)
    return Roles(
        left,
        right,
        batch=tuple(i for i in out if i in rows_of and i in columns_of),
        rows=rows,
        columns=tuple(i for i in out if i in columns_of and i not in rows_of),
        depth=tuple(i for i in columns_of if i in over),
    )
