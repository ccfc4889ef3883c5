"""Parts of whole tiles: where a launcher rounds the length of a part up to a loop's tile, only the last part
of a split dim has a border, and none has where the dim's size is a multiple of the tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cleave.ir.dims import Dim, Index, Parts, size_of
from cleave.schedule.tiles import AlignBound, Bound, Kernel, Loop, PartBound, Statement, TileProgram


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
    match loop.start, loop.stop:
        case (
            PartBound(first, False) | AlignBound(_, _, _, PartBound(first, False)),
            PartBound(part, True),
        ) if first == part:
            aligned = not isinstance(loop.start, AlignBound) or loop.start.tile % loop.tile == 0
            return aligned and steps.get(part.dim, 1) % loop.tile == 0
        case _:
            return False


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
        case AlignBound(PartBound(part, True), tile, False, PartBound(other, False)) if part == other:
            assert isinstance(part.dim, Parts)
            known = part.dim.of in sizes
            if known and size_of(part.dim.of, sizes) % tile == 0 and steps.get(part.dim, 1) % tile == 0:
                return part
            return None
        case _:
            return None


__all__ = ["ends_with_dim", "split_steps", "without_borders"]
