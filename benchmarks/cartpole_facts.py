"""What is known of a tile program without running it: kernels, launches, bytes, registers.

`modelled` bytes are the cost model's: what a tensor's loads ask for, once where the caches hold it.
`touched` bytes are counted from the statements: every tensor, or the part of it at fixed positions, that a
kernel reads or writes, once per kernel, at the sizes of the call. No counter of the hardware is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from torch import Tensor as Torch

from cleave.ir.dims import Dim, Index, indices_of, size_of
from cleave.pipeline import TARGETS
from cleave.schedule.cost import cost_of
from cleave.schedule.machine import width
from cleave.schedule.shapes import infer_sizes
from cleave.schedule.tiles import Kernel, Load, Loop, Statement, Store, TileProgram


def sizes_of(tiles: TileProgram, args: Sequence[Any]) -> dict[Dim, int]:
    """The sizes that arguments give to the dims of a tile program."""
    names = [t.name for t in tiles.inputs]
    shapes = {n: tuple(a.shape) for n, a in zip(names, args, strict=True) if isinstance(a, Torch)}
    return infer_sizes(tiles, shapes)


def facts_of(
    tiles: TileProgram, sizes: Mapping[Dim, int], target: str, reports: Sequence[Any], steps: int
) -> dict[str, Any]:
    """A row's facts, per step where they are of `steps` steps."""
    cost = cost_of(tiles, sizes, TARGETS[target], {})
    reads, writes = touched(tiles, sizes)
    return {
        "kernels": len(tiles.kernels),
        "launches_per_step": len(tiles.kernels) / steps,
        "modelled_bytes_per_step": cost.memory / steps,
        "touched_bytes_per_step": (reads + writes) / steps,
        "read_bytes_per_step": reads / steps,
        "written_bytes_per_step": writes / steps,
        "modelled_us_per_step": cost.seconds / steps * 1e6,
        "registers": [r.registers for r in reports],
        "spills": [r.spills for r in reports],
        "tiles": [[(str(a.index.dim), a.tile) for a in k.grid] for k in tiles.kernels][:4],
        "warps": [k.warps for k in tiles.kernels][:4],
        "stages": [k.stages for k in tiles.kernels][:4],
    }


def touched(tiles: TileProgram, sizes: Mapping[Dim, int]) -> tuple[int, int]:
    """Bytes that the kernels read and write."""
    total = [0, 0]
    for kernel in tiles.kernels:
        for place, bytes_ in _parts(kernel, sizes).items():
            total[place[0] == "store"] += bytes_
    return total[0], total[1]


def _parts(kernel: Kernel, sizes: Mapping[Dim, int]) -> dict[tuple[Any, ...], int]:
    """Bytes of each part of a tensor that a kernel reads or writes, by how and where."""
    tensors = {t.name: t for t in kernel.tensors}
    found: dict[tuple[Any, ...], int] = {}

    def visit(body: Sequence[Statement]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                visit(statement.body)
            elif isinstance(statement, Load | Store) and tensors[statement.tensor].role != "scalar":
                kind = "store" if isinstance(statement, Store) else "load"
                places = tuple(None if indices_of(t) else t.offset.const for t in statement.terms)
                spans: dict[Index, int] = {
                    i: size_of(i.dim, sizes) for t in statement.terms for i in indices_of(t)
                }
                count = prod(spans.values()) * width(tensors[statement.tensor].dtype)
                found[kind, statement.tensor, places] = count

    visit(kernel.body)
    return found
