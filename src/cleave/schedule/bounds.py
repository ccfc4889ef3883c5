"""Where a loop is alive, and where it needs no mask: interval arithmetic on affine predicates.

A predicate is read as a conjunction of inequalities `sum(c * index) + extent >= 0` over kernel indices and
sizes. Over the current spans of all other indices each gives a range of the loop's index in which it holds
for some element (*live*), and one in which it holds for all (*full*). Tiles that are not live are never
visited, tiles that are full carry no mask (design.md, section 4, step 4). Everything that is not affine, or
not expressible as a `Bound`, narrows nothing and stays masked.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from cleave.errors import Bug
from cleave.ir.dims import NO_EXTENT, Dim, Extent, Index, Union, extent
from cleave.schedule.affine import Affine, inequalities
from cleave.schedule.closing import closes
from cleave.schedule.tiles import AlignBound, Bound, LimitBound, PartBound, SizeBound, SpanBound
from cleave.schedule.values import LoopPlan


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a loop. `facts` hold for every element of every tile in it; `exact`: all tiles full;
    `closed`: none of what the loop accumulates goes on behind its stop."""

    start: Bound
    stop: Bound
    exact: bool
    facts: tuple[Affine, ...]
    closed: bool = False


@dataclass(frozen=True, slots=True)
class _Range:
    """Bounds of a loop's index: below and above, for some element, and for all."""

    live_low: tuple[Bound, ...] = ()
    live_high: tuple[Bound, ...] = ()
    full_low: tuple[Bound, ...] = ()
    full_high: tuple[Bound, ...] = ()
    facts: tuple[Affine, ...] = ()
    ending: tuple[Affine, ...] = ()
    """Those of the facts that end the loop."""


def _range_of(form: Affine, index: Index) -> _Range | None:
    """What one inequality says of `index`; None if it can't be written as bounds."""
    factors = dict(form.terms)
    factor = factors.pop(index, 0)
    if factor not in (1, -1) or len(factors) > 1:
        return None
    size = form.offset
    other, sign = next(iter(factors.items())) if factors else (None, 0)
    if factor == -1:
        if other is None:
            bound = SizeBound(size + Extent(1))
            return _Range(live_high=(bound,), full_high=(bound,), facts=(form,))
        if sign != 1:
            return None
        live, full = SpanBound(other, True, size), SpanBound(other, False, size + Extent(1))
        return _Range(live_high=(live,), full_high=(full,), facts=(form,))
    if other is None:
        return _Range(live_low=(SizeBound(-size),), full_low=(SizeBound(-size),), facts=(form,))
    if sign != -1:
        return None
    live, full = SpanBound(other, False, -size), SpanBound(other, True, -size - Extent(1))
    return _Range(live_low=(live,), full_low=(full,), facts=(form,))


def range_of(loop: LoopPlan) -> _Range:
    """The live and full ranges of a loop from the supports of all that it accumulates. A loop is
    narrowed only by what all of them share."""
    index = loop.index
    if not loop.supports or any(s is None for s in loop.supports):
        return _Range()
    shared: list[Affine] | None = None
    for support in loop.supports:
        assert support is not None
        forms = inequalities(support)[0]
        shared = list(forms) if shared is None else [f for f in shared if f in forms]
    found = [r for r in (_range_of(form, index) for form in shared or []) if r is not None]
    return _Range(
        tuple(dict.fromkeys(b for r in found for b in r.live_low)),
        tuple(dict.fromkeys(b for r in found for b in r.live_high)),
        tuple(dict.fromkeys(b for r in found for b in r.full_low)),
        tuple(dict.fromkeys(b for r in found for b in r.full_high)),
        tuple(dict.fromkeys(f for r in found for f in r.facts)),
        tuple(dict.fromkeys(f for r in found if r.live_high for f in r.facts)),
    )


class Order(enum.Enum):
    """In which order the stretches of loops come: first to last, last to first, or the latter only where a
    predicate ends the loop."""

    FORWARDS = 0
    BACKWARDS = 1
    BACKWARDS_IF_ENDED = 2


def segments(
    loop: LoopPlan, tile: int, sizes: Mapping[Dim, int], order: Order = Order.FORWARDS
) -> tuple[Segment, ...]:
    """The stretches of a loop: border, interior, border; those that are surely empty are left out. `sizes`
    holds what is known at compile time. Tiles are aligned to the loop's first position.

    Backwards, the last border comes first, and the interior leaves it one position at least: a border that is
    never empty can start what the interior goes on with."""
    start, stop = _ends(loop)
    size = _static(loop.index.dim, sizes) if loop.mode in ("whole", "map") else None
    if loop.mode == "merge" or loop.sequential:
        return (Segment(start, stop, True, ()),)
    where = range_of(loop)
    if size is not None and not where.facts:
        return _plain_segments(start, stop, tile, size)
    first = _align(_limit("max", (start, *where.live_low)), tile, False, start)
    last = _limit("min", (stop, *where.live_high))
    bordered = size is None or size % tile > 0 or bool(where.full_low or where.full_high)
    asked = order is Order.BACKWARDS or (order is Order.BACKWARDS_IF_ENDED and bool(where.full_high))
    backwards = asked and bordered
    ends = (stop, *where.full_high)
    ends = tuple(_before(bound) for bound in ends) if backwards else ends
    inner_stop = _align(_limit("min", ends), tile, False, start)
    within = any(_within(bound, loop.index.dim) for bound in where.live_high)
    closed = backwards and within and loop.mode != "part" and closes(loop, where.ending)
    found: list[Segment] = []
    inner_start = first
    if where.full_low:
        inner_start = _align(_limit("max", (start, *where.full_low)), tile, True, start)
        found.append(Segment(first, _limit("min", (inner_start, last)), False, (), closed))
    found.append(Segment(inner_start, inner_stop, True, where.facts))
    rest = inner_stop
    if where.full_low or where.full_high or backwards:
        rest = _limit("max", (inner_start, inner_stop))
    if bordered:
        found.append(Segment(rest, last, False, (), closed))
    return tuple(found[::-1] if backwards else found)


def _within(bound: Bound, dim: Dim) -> bool:
    """Whether a bound is surely at most the size of a dim."""
    match bound:
        case SizeBound(size):
            room = extent(0, (dim, 1)) - size
        case SpanBound(index, _, offset):
            room = extent(0, (dim, 1)) - extent(0, (index.dim, 1)) - offset
        case _:
            return False
    return not room.terms and room.const >= 0


def _before(bound: Bound) -> Bound:
    """The bound, one position earlier."""
    match bound:
        case SizeBound(size):
            return SizeBound(size - Extent(1))
        case SpanBound(index, end, offset):
            return SpanBound(index, end, offset - Extent(1))
        case PartBound(part, end, offset):
            return PartBound(part, end, offset - Extent(1))
        case _:
            raise Bug(f"no position comes before {bound}")


def _plain_segments(start: Bound, stop: Bound, tile: int, size: int) -> tuple[Segment, ...]:
    """The stretches of a loop of known size without a predicate."""
    if size % tile == 0:
        return (Segment(start, stop, True, ()),)
    if size < tile:
        return (Segment(start, stop, False, ()),)
    border = SizeBound(Extent(size // tile * tile))
    return (Segment(start, border, True, ()), Segment(border, stop, False, ()))


def _ends(loop: LoopPlan) -> tuple[Bound, Bound]:
    if loop.mode == "part":
        assert loop.part is not None
        return PartBound(loop.part, False), PartBound(loop.part, True)
    return SizeBound(NO_EXTENT), SizeBound(extent(0, (loop.index.dim, 1)))


def _limit(kind: str, bounds: tuple[Bound, ...]) -> Bound:
    """The least or greatest of bounds."""
    flat = tuple(dict.fromkeys(bounds))
    return flat[0] if len(flat) == 1 else LimitBound(kind, flat)


def _align(bound: Bound, tile: int, up: bool, origin: Bound) -> Bound:
    """The bound, rounded to whole tiles from `origin`; what is the origin itself stays."""
    if bound == origin:
        return bound
    if origin == SizeBound(NO_EXTENT):
        return AlignBound(bound, tile, up)
    return AlignBound(bound, tile, up, origin)


def _static(dim: Dim, sizes: Mapping[Dim, int]) -> int | None:
    if dim in sizes:
        return sizes[dim]
    if isinstance(dim, Union):
        parts = [_static(part, sizes) for part in dim.parts]
        known_parts = [p for p in parts if p is not None]
        return sum(known_parts) if len(known_parts) == len(parts) else None
    return None
