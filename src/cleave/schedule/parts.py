"""Parts of whole tiles: where a launcher rounds the length of a part up to a loop's tile, only the last part
of a split dim has a border, and none has where the dim's size is a multiple of the tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cleave.ir.dims import NO_EXTENT, Dim, Index, Parts, size_of
from cleave.schedule.tiles import (
    AlignBound,
    Bound,
    Kernel,
    LimitBound,
    Loop,
    PartBound,
    Statement,
    TileProgram,
)


def split_steps(tiles: TileProgram) -> dict[Dim, int]:
    """The tile by which a part of each split dim is looped over: parts of whole tiles have no border."""
    found: dict[Dim, int] = {}

    def visit(body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                if isinstance(statement.start, PartBound):
                    dim = statement.start.part.dim
                    found[dim] = max(found.get(dim, 1), statement.tile)
                visit(statement.body)

    for kernel in tiles.kernels:
        visit(kernel.body)
    return found


def without_borders(tiles: TileProgram, kernel: Kernel) -> Kernel:
    """A kernel of a tile program whose parts are a multiple of `split_steps` long, without the loops over
    what whole tiles leave of a part, where that is nothing for every part: the dim's size is known and a
    multiple, too."""
    steps = split_steps(tiles)
    sizes: dict[Dim, int] = {dim: size for dim, size in tiles.sizes if isinstance(size, int)}
    body = _loops_without(kernel.body, steps, sizes)
    return kernel if body == kernel.body else replace(kernel, body=body)


def ends_with_dim(loop: Loop, steps: Mapping[Dim, int]) -> bool:
    """Whether a loop up to the end of a part, where parts are a multiple of `steps` long, has a tile that is
    not full only at the end of the whole dim: tiles are counted from where the part starts, and divide it."""
    part = _end_of(loop.stop)
    if part is None or steps.get(part.dim, 1) % loop.tile:
        return False
    starts = loop.start.bounds if isinstance(loop.start, LimitBound) else (loop.start,)
    return all(_counted_from(start, part, loop.tile) for start in starts)


def _end_of(bound: Bound) -> Index | None:
    """The index of the part whose end a bound is."""
    if isinstance(bound, PartBound) and bound.end and bound.offset == NO_EXTENT:
        return bound.part
    return None


def _counted_from(bound: Bound, part: Index, tile: int) -> bool:
    """Whether a bound is some tiles behind a part's start."""
    if isinstance(bound, AlignBound):
        return bound.tile % tile == 0 and bound.origin == PartBound(part, False)
    return bound == PartBound(part, False)


def _loops_without(
    body: tuple[Statement, ...], steps: Mapping[Dim, int], sizes: Mapping[Dim, int]
) -> tuple[Statement, ...]:
    found: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop):
            part = _whole(statement.start, steps, sizes)
            if part is not None and statement.stop == PartBound(part, True):
                continue
            end = _whole(statement.stop, steps, sizes)
            stop = statement.stop if end is None else PartBound(end, True)
            statement = replace(statement, stop=stop, body=_loops_without(statement.body, steps, sizes))
        found.append(statement)
    return tuple(found)


def _whole(bound: Bound, steps: Mapping[Dim, int], sizes: Mapping[Dim, int]) -> Index | None:
    """The index of the part whose end a bound is, rounded down to tiles that divide every part."""
    match bound:
        case AlignBound(inner, tile, False, origin) if (part := _end_of(inner)) is not None:
            if origin != PartBound(part, False):
                return None
            assert isinstance(part.dim, Parts)
            known = part.dim.of in sizes
            if known and size_of(part.dim.of, sizes) % tile == 0 and steps.get(part.dim, 1) % tile == 0:
                return part
            return None
        case _:
            return None


__all__ = ["ends_with_dim", "split_steps", "without_borders"]
