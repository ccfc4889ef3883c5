"""What the shapes of a call say about the sizes of a tile program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cleave.errors import Invalid
from cleave.ir import sizes as ir_sizes
from cleave.ir.dims import Dim, Index, Parts
from cleave.ir.ops import input_node, scalar_node
from cleave.ir.program import Program
from cleave.schedule.tiles import Loop, Statement, TileProgram


def infer_sizes(tiles: TileProgram, shapes: Mapping[str, tuple[int, ...]]) -> dict[Dim, int]:
    """The size of every atom of the inputs and of `sizes`, from the shapes of the tensors by name.

    `Invalid` names the argument, the axis, the expected and the actual size; also where a size is greater
    than the program's limit for it."""
    inputs = tuple(
        scalar_node(t.name, t.dtype) if t.role == "scalar" else input_node(t.name, t.layout, t.dtype)
        for t in tiles.inputs
    )
    tensors = {t.name for t in tiles.inputs if t.role != "scalar"}
    given = {name: shape for name, shape in shapes.items() if name in tensors}
    sizes = ir_sizes.infer_sizes(Program(tiles.name, inputs, (), tiles.sizes), given)
    for atom, limit in tiles.limits:
        if sizes.get(atom, 0) > limit:
            raise Invalid(
                f"{atom} has size {sizes[atom]}, this variant of {tiles.name} takes {limit} at most"
            )
    return sizes


def parts_of(tiles: TileProgram) -> tuple[Parts, ...]:
    """Every `Parts` dim that a tile program uses, in order of first use."""
    found: dict[Parts, None] = {}
    for tensor in tiles.workspaces:
        found.update({dim: None for group in tensor.layout for dim in group if isinstance(dim, Parts)})
    for kernel in tiles.kernels:
        indices = [
            *(axis.index for axis in kernel.grid),
            *(w.index for w in kernel.whole),
            *looped(kernel.body),
        ]
        found.update({i.dim: None for i in indices if isinstance(i.dim, Parts)})
    return tuple(found)


def looped(body: Sequence[Statement]) -> Iterator[Index]:
    """The indices of all loops, outer before inner."""
    for statement in body:
        if isinstance(statement, Loop):
            yield statement.index
            yield from looped(statement.body)
