"""Tile maps: which part of each tensor one tile of a level touches (design.md, section 4).

A level is the grid or a loop. At a level its own index and those of enclosing levels stand at one tile;
indices of loops further in range over all their tiles. A tile map gives, per axis of the tensor, where the
part starts and how far it extends (an upper bound: tails are clipped). Derived for people (`explain`),
never used to generate code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from cleave.ir.dims import Dim, Extent, Index, Inject, Join, Term, Union, extent, join_signed
from cleave.ir.lexis import dim_text, extent_text
from cleave.schedule.text import KernelText
from cleave.schedule.tiles import Bound, Kernel, Load, Loop, SizeBound, Statement, Store


@dataclass(frozen=True, slots=True)
class AxisMap:
    """The part of one axis: `[offset, offset + extent)`, as texts."""

    offset: str
    extent: str


@dataclass(frozen=True, slots=True)
class TileMap:
    """The part of `tensor` that one tile of `level` loads or stores; one `AxisMap` per dim of its layout."""

    level: str
    tensor: str
    stored: bool
    axes: tuple[AxisMap, ...]


def tile_maps(kernel: Kernel) -> tuple[TileMap, ...]:
    """The tile maps of a kernel: the grid's, then each loop's in order of text; equal ones once."""
    walk = _Walk(kernel)
    for axis in kernel.grid:
        walk.ranges[axis.index] = walk.tile(axis.index, axis.tile)
    for whole in kernel.whole:
        walk.ranges[whole.index] = _Range("0", extent(0, (whole.index.dim, 1)))
    walk.level("grid", kernel.body)
    return tuple(walk.found)


def print_maps(kernel: Kernel) -> str:
    """The tile maps as text, a line for each tensor and level: `k[h : 1, start(t) : 64, 0 : D]`."""
    lines: list[str] = []
    for level, group in groupby(tile_maps(kernel), lambda item: item.level):
        lines.append(f"{level}:")
        for item in group:
            axes = ", ".join(f"{axis.offset} : {axis.extent}" for axis in item.axes)
            lines.append(f"  {'stores' if item.stored else 'loads'} {item.tensor}[{axes}]")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Range:
    """The positions of an index at a level: `length` is a text where it is no linear expression in sizes."""

    start: str
    length: Extent | str


class _Walk:
    """A walk through the levels of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.text = KernelText(kernel.name, dict(kernel.names))
        self.layouts = {t.name: [dim for group in t.layout for dim in group] for t in kernel.tensors}
        self.ranges: dict[Index, _Range] = {}
        self.found: dict[TileMap, None] = {}

    def tile(self, index: Index, tile: int) -> _Range:
        name = self.text.index(index)
        return _Range(name if tile == 1 else f"start({name})", Extent(tile))

    def level(self, name: str, body: Sequence[Statement]) -> None:
        """The maps of a level whose indices stand in `ranges`, then those of its loops."""
        self.accesses(name, body, self.ranges)
        for statement in body:
            if isinstance(statement, Loop):
                index = statement.index
                outer = self.ranges
                self.ranges = {**outer, index: self.tile(index, statement.tile)}
                start, stop = self.text.bound(statement.start), self.text.bound(statement.stop)
                self.level(f"loop {self.text.index(index)} from {start} to {stop}", statement.body)
                self.ranges = outer

    def accesses(self, level: str, body: Sequence[Statement], ranges: Mapping[Index, _Range]) -> None:
        """Collect the maps of loads and stores, those of inner loops over their whole range."""
        first: dict[Index, Bound] = {}
        last: dict[Index, Bound] = {}
        for statement in body:
            # Loops over one index in sequence are pieces of one range.
            if isinstance(statement, Loop):
                first.setdefault(statement.index, statement.start)
                last[statement.index] = statement.stop
        for statement in body:
            match statement:
                case Loop(index):
                    whole = self.whole(first[index], last[index])
                    self.accesses(level, statement.body, {**ranges, index: whole})
                case Load(_, _, _, tensor, terms) | Store(tensor, terms):
                    dims = self.layouts[tensor]
                    axes = tuple(self.axis(t, dim, ranges) for t, dim in zip(terms, dims, strict=True))
                    self.found[TileMap(level, tensor, isinstance(statement, Store), axes)] = None
                case _:
                    pass

    def whole(self, first: Bound, last: Bound) -> _Range:
        start, stop = self.text.bound(first), self.text.bound(last)
        if isinstance(first, SizeBound) and isinstance(last, SizeBound):
            return _Range(start, last.extent - first.extent)
        return _Range(start, stop if start == "0" else f"{stop} - {start}")

    def axis(self, term: Term, dim: Dim, ranges: Mapping[Index, _Range]) -> AxisMap:
        """Where a term starts and how far it reaches, as texts."""
        offset: list[tuple[int, str]] = []
        fixed, reach, odd = term.offset, Extent(1), ""
        for leaf, coefficient in term.leaves:
            match leaf:
                case Index():
                    place = ranges[leaf]
                    offset += [(coefficient, place.start)] if place.start != "0" else []
                    if isinstance(place.length, str):
                        odd = place.length if len(term.leaves) == 1 and coefficient == 1 else "?"
                    else:
                        more = (place.length - Extent(1)) * abs(coefficient)
                        reach, fixed = reach + more, fixed - more if coefficient < 0 else fixed
                case Inject(part, inner) if isinstance(dim, Union):
                    within = self.axis(inner, dim.parts[part], ranges)
                    before = [(coefficient, dim_text(d)) for d in dim.parts[:part]]
                    offset += [*before, *([(coefficient, within.offset)] if within.offset != "0" else [])]
                    odd = within.extent
                case Join(part, within):
                    inside = self.axis(within, dim, ranges)
                    offset.append((coefficient, f"join({self.text.term(part)}, {inside.offset})"))
                    odd = inside.extent
                case _:
                    offset.append((coefficient, self.text.term(Term(((leaf, 1),)))))
                    odd = "scattered"
        offset += [(c, dim_text(d)) for d, c in fixed.terms]
        return AxisMap(join_signed(offset, fixed.const), odd or extent_text(reach))
