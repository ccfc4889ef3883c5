"""Tiles that stay for a whole loop, loaded anew in each of its steps.

Triton asks for the first tiles of a loop when all that stands before it is there, so a tile that a product
reads in every step costs a block the time that memory takes to answer once more. Loaded in the loop it is on
its way together with the first tiles; later steps find it in the last cache, and no registers hold it
meanwhile. That is for tiles that descriptors copy, few rows beside what a step reads anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from cleave.ir.dims import Index
from cleave.schedule.machine import width
from cleave.schedule.tiles import (
    Carry,
    Compute,
    ContractTile,
    Kernel,
    Load,
    Loop,
    ReduceTile,
    Statement,
    Store,
)

OPERANDS = frozenset({"f16", "bf16"})
SHARE = 8
"""How many times what a loop's step reads is larger, at least."""
MOST_BYTES = 216 << 10
"""Bytes of fast memory that all stages of a loop may take together."""


def sunk(kernel: Kernel) -> Kernel:
    """A kernel with loads of small tiles moved from before its loops into those that multiply them."""
    tiles = {axis.index: axis.tile for axis in (*kernel.grid, *kernel.whole)}
    loops = [s for s in kernel.body if isinstance(s, Loop)]
    moved = [s for s in kernel.body if isinstance(s, Load) and _sinks(s, kernel, loops, tiles)]
    if not moved:
        return kernel
    body: list[Statement] = []
    for statement in kernel.body:
        if isinstance(statement, Loop):
            used = [load for load in moved if load.out in _read(statement.body)]
            body.append(replace(statement, body=(*used, *statement.body)))
        elif statement not in moved:
            body.append(statement)
    return replace(kernel, body=tuple(body))


def _sinks(load: Load, kernel: Kernel, loops: list[Loop], tiles: Mapping[Index, int]) -> bool:
    """Whether a load before the loops is of a small tile that only products in them read."""
    outside = [s for s in kernel.body if not isinstance(s, Loop)]
    users = [loop for loop in loops if load.out in _read(loop.body)]
    if not users or load.out in _read(tuple(outside)) or len(load.axes) < 2 or load.dtype not in OPERANDS:
        return False
    size = _bytes(load, tiles)
    for loop in users:
        others = [s for s in loop.body if not isinstance(s, ContractTile)]
        if any(load.out in _args(s) for s in others) or any(load.out == name for _, name in loop.updates):
            return False
        own = sum(_bytes(s, {**tiles, loop.index: loop.tile}) for s in loop.body if isinstance(s, Load))
        if size * SHARE > own or (own + size) * kernel.stages > MOST_BYTES:
            return False
    return True


def _bytes(load: Load, tiles: Mapping[Index, int]) -> int:
    return width(load.dtype) * prod(tiles[i] for i in load.axes)


def _read(body: tuple[Statement, ...]) -> set[str]:
    """The names that statements read, those of loops in them too."""
    found: set[str] = set()
    for statement in body:
        found.update(_args(statement))
    return found


def _args(statement: Statement) -> set[str]:
    match statement:
        case Compute() | ContractTile():
            return set(statement.args)
        case ReduceTile():
            return {statement.arg}
        case Carry():
            return {statement.init}
        case Store():
            return {statement.value}
        case Loop():
            return _read(statement.body) | {name for _, name in statement.updates}
        case _:
            return set()


__all__ = ["sunk"]
