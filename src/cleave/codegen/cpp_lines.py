"""Lines of outputs that no cache keeps: made beside, then written past the caches.

A plain store to memory that is not in a cache has its line read first. Where the innermost loop of a nest
writes next to each other what may be large, it writes a line of the thread's own instead, and `put_line` has
it copied (`cpp_memory.h` decides at the call, by the sizes).
"""

from __future__ import annotations

from collections.abc import Callable

from cleave.codegen.cpp_frame import Frame
from cleave.codegen.cpp_text import TILE_BYTES, TILE_TYPES, Namer, Text, plus, times
from cleave.ir.dims import Index
from cleave.schedule.tiles import Store

FAR = 16 << 20
"""Bytes of an output of which a cache keeps little (`kFarBytes` of `cpp_memory.h`)."""
SHORTEST = 512
"""Bytes of a line that pays (`kShortestLine`)."""
MOST = 2
"""Lines that one nest may have: the thread has so many."""


def elements(frame: Frame, tensor: str) -> Text:
    """How many elements a tensor has."""
    return times(*(frame.size(dim) for group in frame.tensors[tensor].layout for dim in group))


def may_have(frame: Frame, tensor: str, least: int) -> bool:
    """Whether a tensor may have so many bytes."""
    size = elements(frame, tensor)
    return not isinstance(size, int) or size * TILE_BYTES[TILE_TYPES[frame.tensors[tensor].dtype]] >= least


def line_for(
    frame: Frame,
    statement: Store,
    offset: Text,
    inner: Index,
    variable: Callable[[Index], Text],
    count: Text,
    names: Namer,
    number: int,
) -> tuple[str, str, str] | None:
    """For a store at `offset` in a loop of `count` steps over the index `inner`: the name of its line, what
    is written before the loop, and after it. None if it is stored where it belongs: what cannot be large, is
    read again by a kernel, or does not lie next to each other. `number` counts the lines of the nest."""
    tensor = statement.tensor
    if (
        number >= MOST
        or statement.first
        or frame.tensors[tensor].role != "output"
        or not may_have(frame, tensor, FAR)
    ):
        return None
    width = TILE_BYTES[TILE_TYPES[frame.tensors[tensor].dtype]]
    if isinstance(count, int) and count * width < SHORTEST:
        return None

    def outside(index: Index) -> Text:
        return 0 if index == inner else variable(index)

    base = frame.place(tensor, statement.terms, outside, _no_lookup).offset
    if plus(base, variable(inner)) != offset:
        return None
    pointer = frame.pointer(tensor)
    line = names.name(f"{pointer}_line")
    start = f"{pointer} + {base}" if base else pointer
    before = f"auto* const {line} = line_of<{number}>({start}, {count}, {elements(frame, tensor)});"
    return line, before, f"put_line({start}, {line}, {count});"


def _no_lookup(name: str) -> str:
    raise AssertionError(f"{name} is looked up in a store that has no lookups")
