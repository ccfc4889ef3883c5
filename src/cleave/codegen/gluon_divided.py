"""Blocks of a warp group that are divided by one number a row: in a tenth of a division's instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cleave.codegen.triton_maps import number
from cleave.codegen.triton_scope import Scope
from cleave.codegen.triton_tiles import Tile
from cleave.knobs import knobs
from cleave.schedule.tiles import Compute

if TYPE_CHECKING:
    from cleave.codegen.gluon_body import Rows

SMALL_DIVISOR, SCALE_UP = 2.0**-120, 2.0**64


def by_reciprocal(rows: Rows, scope: Scope, statement: Compute) -> Tile | None:
    """A block divided by one number for each row (or column): multiplied by that number's reciprocal, a
    tenth of the instructions, within 4 units in the last place. Where the reciprocal would overflow both
    factors of it are near 2^64."""
    if statement.fn != "div" or statement.dtype != "f32" or knobs().numerics == "strict":
        return None
    value, by = (scope.value(name) for name in statement.args)
    if not (set(by.lanes) < set(value.lanes) and by.lanes) or {value.dtype, by.dtype} != {"f32"}:
        return None
    small, up = (number(x, "f32") for x in (SMALL_DIVISOR, SCALE_UP))
    scale = scope.line("scale", f"gl.where(gl.abs({by.text}) < {small}, {up}, 1.0)")
    part = scope.line("part", f"1.0 / ({by.text} * {scale})")
    wide = [scope.spread(text, by.lanes, value.lanes) for text in (part, scale)]
    text = f"{value.text} * {wide[0]} * {wide[1]}"
    return rows.made(scope, statement.out, text, "f32", statement.axes, value.lanes)
