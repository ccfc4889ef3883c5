"""Which kernels of a tile program need nothing of each other: those may run side by side in one launch."""

from __future__ import annotations

from cleave.schedule.cost import Cost
from cleave.schedule.machine import Machine
from cleave.schedule.tiles import Load, Loop, Statement, Store, TileProgram


def independent(tiles: TileProgram) -> bool:
    """Whether no kernel of a tile program reads what another one writes."""
    written: dict[str, str] = {}
    for kernel in tiles.kernels:
        for tensor in sorted(_touched(kernel.body, Store)):
            if written.setdefault(tensor, kernel.name) != kernel.name:
                return False
    return all(
        written.get(tensor, kernel.name) == kernel.name
        for kernel in tiles.kernels
        for tensor in _touched(kernel.body, Load)
    )


def _touched(body: tuple[Statement, ...], kind: type[Load] | type[Store]) -> set[str]:
    found: set[str] = set()
    for statement in body:
        if isinstance(statement, Loop):
            found |= _touched(statement.body, kind)
        elif isinstance(statement, kind):
            found.add(statement.tensor)
    return found


def joined_seconds(tiles: TileProgram, cost: Cost, machine: Machine) -> float:
    """The modelled time with independent kernels in one launch."""
    spared = len(tiles.kernels) - 1 if independent(tiles) else 0
    return cost.seconds - spared * machine.launch
