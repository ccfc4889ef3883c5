"""Row by row: which kernels of the C++ backend run all their operations for one row before the next.

A block of a kernel without contractions covers several positions of its grid's indices. If no reduction runs
over such an index, and it is not the one along which memory is contiguous, the positions are independent
rows: `rows_of` finds these indices, and `in_rows` puts what depends on them into one loop. What a row's
operations hand on to each other is then one row, which the first-level cache holds, and not a block of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from cleave.codegen.cpp_tiles import Item, Nest, Op, Pass, Product, Rows, Tile, all_ops, leaves_of
from cleave.ir.dims import Dim, Index, Term, indices_of
from cleave.schedule.tiles import (
    AlignBound,
    Bound,
    ContractTile,
    Kernel,
    LimitBound,
    Load,
    Locate,
    Loop,
    PartBound,
    ReduceTile,
    SpanBound,
    Statement,
    Store,
)

SHORT = 16
"""A row of fewer elements is not worth a loop of its own."""


def rows_of(kernel: Kernel, known: Callable[[Dim], int | None]) -> tuple[Index, ...]:
    """The grid's indices whose positions are rows, outermost first; none where rows do not pay."""
    body = list(_all(kernel.body))
    reductions = [s for s in body if isinstance(s, ReduceTile)]
    stored = {s.tensor for s in body if isinstance(s, Store)}
    if any(isinstance(s, ContractTile) for s in body) or not reductions:
        return ()
    if any(isinstance(s, Load) and s.tensor in stored for s in body):
        return ()
    if any(_is_short(known(i.dim)) for s in reductions for i in s.over):
        return ()
    reduced = {i for s in reductions for i in s.over}
    wide = {a.index for a in kernel.grid if a.tile > 1 and known(a.index.dim) != 1}
    return tuple(
        a.index for a in kernel.grid if a.index in wide - reduced and not _runs_along(a.index, body, wide)
    )


def _is_short(size: int | None) -> bool:
    return size is not None and size < SHORT


def _runs_along(index: Index, body: Sequence[Statement], wide: set[Index]) -> bool:
    """Do tiles lie in memory along an index, or is it stored once for all blocks?"""
    for statement in body:
        if isinstance(statement, Store) and index in statement.first:
            return True
        if not isinstance(statement, Load | Store) or not statement.terms:
            continue
        others = {i for t in statement.terms for i in indices_of(t)} - {index}
        spans = {i for i in others if i in wide or (isinstance(statement, Load) and i in statement.axes)}
        if index in indices_of(statement.terms[-1]) and spans:
            return True
    return False


def in_rows(items: Sequence[Item], rows: tuple[Index, ...]) -> list[Item]:
    """The items, those that depend on `rows` in a loop of their own after the others."""
    inside = {n for n, item in enumerate(items) if _depends(item, set(rows))}
    while True:
        made = {t for n in inside for t in _made(items[n])}
        changed = {t for n in inside for t in _updated(items[n])}
        more = {
            n
            for n, item in enumerate(items)
            if n not in inside and (made & set(_read(item)) or changed & set(_made(item)))
        }
        if not more:
            break
        inside |= more
    outside = [item for n, item in enumerate(items) if n not in inside]
    return [*outside, Rows(rows, [items[n] for n in sorted(inside)])] if inside else outside


def _ops(item: Item) -> Iterator[Op]:
    match item:
        case Nest(ops=ops):
            yield from ops
        case Product(op=op):
            yield op
        case Pass(ops=ops):
            yield from all_ops(ops)
        case Rows(items=items):
            for inner in items:
                yield from _ops(inner)


def _made(item: Item) -> list[Tile]:
    return [op.out for op in _ops(item) if op.out is not None]


def _read(item: Item) -> list[Tile]:
    return [t for op in _ops(item) for t in leaves_of(op.reads)] + _updated(item)


def _updated(item: Item) -> list[Tile]:
    """The accumulators that the loops of an item change: each row has its own."""
    if not isinstance(item, Pass):
        return []
    inner = [t for op in item.ops if isinstance(op, Pass) for t in _updated(op)]
    return [*(carried for carried, _ in item.updates), *inner]


def _depends(item: Item, rows: set[Index]) -> bool:
    match item:
        case Nest(ops=ops):
            return any(_touches(op, rows) for op in ops)
        case Product(op=op):
            return _touches(op, rows)
        case Pass(statement=loop, ops=ops):
            return any(_touches(op, rows) for op in all_ops(ops)) or _bounded(loop, rows)
        case Rows():
            return True


def _touches(op: Op, rows: set[Index]) -> bool:
    statement = op.statement
    terms: tuple[Term, ...] = ()
    if isinstance(statement, Load | Store):
        terms = statement.terms
    elif isinstance(statement, Locate):
        terms = (statement.term,)
    return bool(op.space & rows) or any(set(indices_of(t)) & rows for t in terms)


def _bounded(loop: Loop, rows: set[Index]) -> bool:
    """Do the bounds of a loop, or of one inside it, follow rows?"""
    loops = [loop, *(s for s in _all(loop.body) if isinstance(s, Loop))]
    return any(i in rows for x in loops for b in (x.start, x.stop) for i in _followed(b))


def _followed(bound: Bound) -> Iterator[Index]:
    match bound:
        case SpanBound(index):
            yield index
        case PartBound(part):
            yield part
        case AlignBound(inner, _, _, origin):
            yield from _followed(inner)
            yield from _followed(origin)
        case LimitBound(_, bounds):
            for each in bounds:
                yield from _followed(each)
        case _:
            pass


def _all(body: Iterable[Statement]) -> Iterator[Statement]:
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from _all(statement.body)
