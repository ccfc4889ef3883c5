"""Neighbours of a tile program: the same tiles with other wishes for the machine.

The cost model ranks tiles; how many warps share a block, how many stages a loop loads ahead and whether loads
go through tensor descriptors it knows only roughly. A tuner measures these.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from cleave.schedule.machine import Machine
from cleave.schedule.tiles import ContractTile, Kernel, Loop, Statement, TileProgram

MOST_STAGES = 5


def neighbours(tiles: TileProgram, machine: Machine) -> tuple[TileProgram, ...]:
    """The tile programs that differ from this one in the wishes of its kernels that multiply tiles, this one
    first. Nothing but itself on a CPU."""
    if machine.kind != "cuda":
        return (tiles,)
    places = [n for n, kernel in enumerate(tiles.kernels) if multiplies(kernel.body)]
    found = {tiles: None}
    for place in places:
        for kernel in _wishes(tiles.kernels[place], machine):
            kernels = (*tiles.kernels[:place], kernel, *tiles.kernels[place + 1 :])
            found[replace(tiles, kernels=kernels)] = None
    return tuple(found)


def _wishes(kernel: Kernel, machine: Machine) -> list[Kernel]:
    stages = range(machine.stages[0], MOST_STAGES)
    return [
        replace(kernel, warps=w, stages=s, descriptors=d)
        for w, s, d in itertools.product(machine.warps, stages, (True, False))
    ]


def multiplies(body: tuple[Statement, ...]) -> bool:
    """Whether statements contract tiles."""
    return any(isinstance(s, ContractTile) or (isinstance(s, Loop) and multiplies(s.body)) for s in body)
