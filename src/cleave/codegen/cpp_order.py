"""The order of the loops of a nest: which index is innermost, and which indices share a loop."""

from __future__ import annotations

from collections.abc import Sequence

from cleave.codegen.cpp_frame import Frame
from cleave.codegen.cpp_tiles import Nest, Op
from cleave.ir.dims import Index, indices_of
from cleave.schedule.tiles import ContractTile, Load, Locate, ReduceTile, Store


def loops_of(frame: Frame, nest: Nest) -> list[list[Index]]:
    """The indices of each loop, the outermost loop first."""
    return _merged(nest, _in_order(frame, nest))


def _in_order(frame: Frame, nest: Nest) -> list[Index]:
    """Innermost is the index over which most accesses are contiguous; the others as in the tiles."""
    tiles = [t for op in nest.ops for t in (*op.args, *([op.out] if op.out else []))]
    tiles = [t for t in tiles if t.axes]
    widest = max(tiles, key=lambda t: len(t.axes), default=None)
    order = list(widest.axes) if widest is not None else []
    order = [
        *sorted((i for i in nest.space if i not in order), key=lambda i: i.number),
        *order,
    ]
    votes = dict.fromkeys(order, 0)
    for op in nest.ops:
        statement = op.statement
        if isinstance(statement, Load | Store) and statement.terms:
            last = indices_of(statement.terms[-1])
            for index in last & nest.space:
                votes[index] += 3 if isinstance(statement, Store) else 1
        for tile in (*op.args, *([op.out] if op.out else [])):
            if tile.where == "memory" and len(tile.axes) == len(order) and order:
                votes[tile.axes[-1]] += 2
    if order:
        best = max(order, key=lambda i: (frame.count(i) != 1, votes[i], order.index(i)))
        order.remove(best)
        order.append(best)
    return order


def _merged(nest: Nest, order: Sequence[Index]) -> list[list[Index]]:
    """Neighbours in every tile become one loop."""
    pinned: set[Index] = set()
    accesses: list[tuple[Index, ...]] = []
    overs: list[frozenset[Index]] = []
    for op in nest.ops:
        _survey(op, pinned, accesses)
        if isinstance(op.statement, ReduceTile | ContractTile):
            overs.append(frozenset(op.statement.over))
    groups: list[list[Index]] = []
    for index in order:
        if groups and _neighbours(groups[-1][-1], index, pinned, accesses, overs):
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _survey(op: Op, pinned: set[Index], accesses: list[tuple[Index, ...]]) -> None:
    """Which indices an operation needs by themselves, and which tiles in memory it touches."""
    statement = op.statement
    if isinstance(statement, Load | Store):
        pinned.update(i for term in statement.terms for i in indices_of(term))
    if isinstance(statement, Locate):
        pinned.update(indices_of(statement.term))
    if op.out is not None and op.out.where == "memory":
        accesses.append(op.out.axes)
    for tile in op.reads:
        if tile.where == "memory":
            accesses.append(tile.axes)
        elif tile.where == "inline":
            _survey(tile.maker, pinned, accesses)


def _neighbours(
    a: Index,
    b: Index,
    pinned: set[Index],
    accesses: list[tuple[Index, ...]],
    overs: list[frozenset[Index]],
) -> bool:
    if a in pinned or b in pinned or any((a in over) != (b in over) for over in overs):
        return False
    for axes in accesses:
        if (a in axes) != (b in axes):
            return False
        if a in axes and axes.index(b) != axes.index(a) + 1:
            return False
    return True
