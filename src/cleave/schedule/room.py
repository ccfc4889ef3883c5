"""What a block of a tiling takes of a core: operands of products in fast memory, accumulators and other
values in registers or the first caches. `fits` says whether that is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cleave.ir.dims import Index
from cleave.schedule.groups import LEAST_STAGES, shares_columns
from cleave.schedule.kernels import Built
from cleave.schedule.machine import Machine, width
from cleave.schedule.tiling import Tiling
from cleave.schedule.values import ContractOf, Graph, LoadOf, Value


def elements(axes: Sequence[Index], tiling: Tiling) -> int:
    """How many elements a tile over some indices has, padding included."""
    total = 1
    for index in axes:
        total *= tiling.tiles[index]
    return total


@dataclass(frozen=True, slots=True)
class Room:
    """What takes room in a block, by the axes of tiles: operands of contractions (`loaded` in loops, one for
    each stage, or `kept`, of which `parked` are made outside of loops), what operands are computed from
    (`behind` them, loaded in loops, too), accumulators, and other values; each with the bytes of an
    element."""

    loaded: Sequence[tuple[tuple[Index, ...], int]]
    kept: Sequence[tuple[tuple[Index, ...], int]]
    parked: Sequence[tuple[tuple[Index, ...], int]]
    behind: Sequence[tuple[tuple[Index, ...], int]]
    carried: Sequence[tuple[tuple[Index, ...], int]]
    other: Sequence[tuple[tuple[Index, ...], int]]
    every: Sequence[tuple[Index, ...]]


def room_of(built: Built) -> Room:
    room = built.kept.get("room")
    if not isinstance(room, Room):
        room = built.kept["room"] = _measured(built)
    return room


def _measured(built: Built) -> Room:
    graph, home = built.graph, built.places.home
    operands = _operands(graph)
    loads = {v for v in operands if isinstance(v.op, LoadOf)}
    inside = {v for v in loads if home[v] is not None}
    # A tile that has an accumulator's indices is on its way into it and takes no room of its own.
    carried = {frozenset(s.axes) for s in graph.slots}
    other = [v for v in graph.values if v not in loads and frozenset(v.axes) not in carried]
    return Room(
        [(v.axes, width(v.dtype)) for v in operands if v in inside],
        [(v.axes, width(v.dtype)) for v in operands if v not in inside],
        [(v.axes, width(v.dtype)) for v in operands if v not in inside and home[v] is None],
        [(v.axes, width(v.dtype)) for v in _behind(operands) if home[v] is not None],
        [(s.axes, width(s.dtype)) for s in graph.slots],
        list(dict.fromkeys((v.axes, width(v.dtype)) for v in other)),
        list(dict.fromkeys(v.axes for v in graph.values)),
    )


def shared_bytes(built: Built, tiling: Tiling) -> int:
    """Shared memory of a block: operands of contractions, several stages of those loaded in loops."""
    room = room_of(built)
    if tiling.groups:  # the emitter takes as many stages as fit, and room for operands that stay
        return bytes_of(room.loaded, tiling) * LEAST_STAGES + kept_bytes(built, tiling)
    staged = bytes_of(room.loaded, tiling) + bytes_of(room.behind, tiling)
    return staged * tiling.stages + bytes_of(room.kept, tiling)


def kept_bytes(built: Built, tiling: Tiling) -> int:
    """Shared memory of operands that stay. Warp groups have what a loop computes in registers, unless one
    computes it for all."""
    room = room_of(built)
    alone = tiling.groups and not shares_columns(tiling)
    return bytes_of(room.parked if alone else room.kept, tiling)


def register_bytes(built: Built, tiling: Tiling) -> int:
    """Registers of a block: accumulators, and the largest value that is computed beside them."""
    return sum(registers_of(built, tiling))


def registers_of(built: Built, tiling: Tiling, most: int = 8) -> tuple[int, int]:
    """Bytes of a block's accumulators, and of the largest value that is computed beside them, of which an
    element takes `most` bytes."""
    room = room_of(built)
    largest = max((elements(axes, tiling) * min(one, most) for axes, one in room.other), default=0)
    return bytes_of(room.carried, tiling), largest


def bytes_of(tiles: Sequence[tuple[tuple[Index, ...], int]], tiling: Tiling) -> int:
    return sum(elements(axes, tiling) * one for axes, one in tiles)


def _operands(graph: Graph) -> list[Value]:
    found: dict[Value, None] = {}
    for value in graph.values:
        if isinstance(value.op, ContractOf):
            found.update(dict.fromkeys(value.args))
    return list(found)


def _behind(operands: Sequence[Value]) -> list[Value]:
    """The loads from which operands are computed: Triton has these on their way for as many stages."""
    found: dict[Value, None] = {}
    known = set(operands)
    below = [a for v in operands for a in v.args]
    while below:
        value = below.pop()
        if value not in known:
            known.add(value)
            below += value.args
            if isinstance(value.op, LoadOf):
                found[value] = None
    return list(found)


def only_loads(graph: Graph) -> bool:
    """Whether a graph multiplies what it loads as it is."""
    operands = _operands(graph)
    return bool(operands) and all(isinstance(v.op, LoadOf) for v in operands)


def chained(graph: Graph) -> bool:
    """Whether a product's operand is computed from another product."""
    after: set[Value] = set()
    for value in graph.values:  # what is read stands before what reads it
        inside = any(a in after or isinstance(a.op, ContractOf) for a in value.args)
        if inside and isinstance(value.op, ContractOf):
            return True
        if inside:
            after.add(value)
    return False


def pressure(built: Built, tiling: Tiling, machine: Machine) -> float:
    """How far a block is beyond what the machine holds (1 is full)."""
    registers = register_bytes(built, tiling)
    if machine.kind == "cuda":
        room = min(machine.register_bytes, tiling.warps * 32 * 255 * 4) * 0.9
        return max(registers / room, shared_bytes(built, tiling) / machine.core_bytes)
    room = room_of(built)
    operands = bytes_of(room.loaded, tiling) + bytes_of(room.kept, tiling)
    return (registers + operands) / (2 * machine.core_bytes)


def streamed(built: Built, tiling: Tiling, machine: Machine) -> bool:
    """Whether a block on a CPU holds all but what its contractions read once, as it lies in memory."""
    operands = bytes_of(room_of(built).loaded, tiling) + bytes_of(room_of(built).kept, tiling)
    return register_bytes(built, tiling) <= machine.core_bytes and operands <= machine.near_bytes


def fits(built: Built, tiling: Tiling, machine: Machine) -> bool:
    """Whether a block of this tiling can run well on the machine."""
    return pressure(built, tiling, machine) <= 1
