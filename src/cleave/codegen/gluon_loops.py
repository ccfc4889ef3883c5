"""Loops of a warp group: which products run beside what, and the lines for it.

A loop is written in one of four ways, by what its products need:

- `accumulate`: every product only adds tiles of shared memory to an accumulator, and nothing else is
  carried. One step's products are still running while the next one's start.
- `skewed`: some products come last, and only add to an accumulator (`late`). They are started in the next
  step, behind that step's first products, and run while what is between is computed.
  Where there are few steps nothing is left to a next one.
- `level`: the same, but for a tile that a first and a last product both read, of which shared memory holds
  too few to keep one for another step. Each step ends its own products; groups take turns to start the first
  ones, so that one multiplies while another computes.
- `plain`: every product is waited for where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cleave.codegen.gluon_given import Given
from cleave.codegen.gluon_plan import RowScope, depths_of
from cleave.codegen.gluon_skew import Skew, depending, names_read
from cleave.codegen.gluon_text import DEPTH
from cleave.codegen.triton_body import fused_dots
from cleave.codegen.triton_text import Line, Nested
from cleave.codegen.triton_tiles import Span, Tile, uses_of
from cleave.errors import Infeasible
from cleave.ir.dims import Index
from cleave.schedule.tiles import (
    AlignBound,
    Bound,
    Carry,
    Compute,
    ContractTile,
    LimitBound,
    Load,
    Loop,
    PartBound,
    SizeBound,
    SpanBound,
    Store,
)

if TYPE_CHECKING:
    from cleave.codegen.gluon_body import Rows, Running

FEW_STEPS = 2
"""Steps up to which a loop is written without a first and a last one of their own: it has fewer as a rule."""
HELD_TURNS = 3
"""Turns of a ring that a skewed loop wants where two are in use until a step's end."""


def write_loop(rows: Rows, scope: RowScope, statement: Loop) -> None:
    """A loop, in the way that its products allow."""
    index, tile = statement.index, statement.tile
    loads = {s.out for s in statement.body if isinstance(s, Load)}
    if any(value in loads for _, value in statement.updates):
        raise Infeasible(f"a loop over {index.dim} carries a tile as it was loaded")
    held = rows.memory.held
    kept = [name for name in names_read(statement) if name in held and held[name].free]
    if kept:
        raise Infeasible(f"{', '.join(sorted(kept))} of an outer loop is used in an inner one")
    name = scope.index_names[index]
    start, stop, full = scope.ends(statement)
    rows.memory.keep_operands(scope, statement)
    staying = {name: held for name, held in rows.memory.held.items() if held.slot}
    rows.depth += 1
    inner = scope.inner()
    at = name if tile == 1 else inner.names.take(f"{name}0")
    span = Span(tile, at, stop, full)
    kind, late = kind_of(rows, scope, statement, span)
    span = unmasked(rows, statement, span)
    step = f", {tile}" if tile > 1 else ""
    how = f"  # {index.dim}" + (", every tile full" if statement.exact and tile > 1 else "")
    steps = most_steps(statement, scope.tiles)
    if kind == "skewed" and steps is not None and 1 < steps <= FEW_STEPS:
        kind = "level"
    if kind == "skewed" and steps is not None and steps <= 1:
        single(rows, scope, statement, span, (start, stop), late)
    elif kind == "skewed":
        skewed(rows, scope, statement, span, (start, stop, step, how), late)
    else:
        assert isinstance(inner, RowScope)
        inner.enter({index: span})
        if kind == "accumulate":
            accumulate(rows, scope, inner, statement, (at, start, stop, step, how), late)
        else:
            parts = Skew(rows, statement, late) if kind == "level" else None
            stepwise(rows, scope, inner, statement, (at, start, stop, step, how), parts)
    rows.depth -= 1
    rows.memory.held |= staying


def unmasked(rows: Rows, loop: Loop, span: Span) -> Span:
    """The span of a loop's steps, as a full one where all that leaves it is nothing by a predicate
    (`closed`): copies, which alone may load there, are 0 behind a tensor's end."""
    loads = {s.out for s in loop.body if isinstance(s, Load)}
    inner = any(isinstance(s, Loop) for s in loop.body)
    full = loop.closed and not inner and loads <= rows.copies.loads.keys()
    return replace(span, full=True) if full else span


def stepwise(
    rows: Rows,
    scope: RowScope,
    inner: RowScope,
    statement: Loop,
    head: tuple[str, str, str, str, str],
    parts: Skew | None,
) -> None:
    """A loop whose steps each end their own products: a level one in `parts`."""
    at, start, stop, step, how = head
    given = Given(rows, parts) if parts is not None and rows.groups.split else None
    if given is not None:
        given.step(inner)
    elif parts is not None:
        parts.level(inner, alone=most_steps(statement, scope.tiles) is not None)
    else:
        rows.write(inner, statement.body)
        rows.read(inner, *(v for _, v in statement.updates))
        inner.lines += rows.updates(inner, statement.updates)
    rows.memory.free_rest(inner, statement.body)
    carried = tuple(scope.values[target].text for target, _ in statement.updates)
    loop = f"for {at} in range({start}, {stop}{step}):{how}"
    scope.lines.append(Nested(loop, inner.lines, (*carried, *rows.counters())))
    if given is not None:
        given.behind(scope)


def kind_of(rows: Rows, scope: RowScope, statement: Loop, span: Span) -> tuple[str, list[ContractTile]]:
    """How a loop is written, and its late products."""
    body = statement.body
    if any(isinstance(s, Loop | Store | Carry) for s in body):
        return "plain", []
    trial = rows.trial()
    known = scope.inner()
    assert isinstance(known, RowScope)
    known.enter({statement.index: span})
    counts = uses_of(body)
    for s in body:  # what is known of each value, its text aside
        if isinstance(s, Load):
            trial.memory.fetch(known, s, counts.get(s.out, 0), once=trial.depth == 0)
        elif not isinstance(s, Loop | Store | Carry):
            axes = () if not hasattr(s, "axes") else s.axes  # pyright: ignore
            known.values[s.out] = Tile("known", s.dtype, axes)
    products = [s for s in body if isinstance(s, ContractTile) and trial.roles(known, s)]
    if not products:
        return "plain", []
    fused = fused_dots(body)
    adds = {a: s for s in body if isinstance(s, Compute) and s.fn == "add" for a in s.args if a in fused}
    ends = {value: target for target, value in statement.updates}
    late = [p for p in products if p.out in fused and adds[p.out].out in ends]
    late = [p for p in late if adds[p.out].out not in counts]
    tails = {adds[p.out].out for p in late}
    targets = {ends[name] for name in tails}
    carried = {target for target, _ in statement.updates}
    leaning = depending(body, carried)
    early = [p for p in products if p not in late]
    in_memory = all(a in trial.memory.held for p in late for a in p.args)
    plain_sum = all(set(adds[p.out].args) == {p.out, ends[adds[p.out].out]} for p in late)
    alone = all(counts[t] == 1 for t in targets) and targets == carried
    if not early and late and in_memory and plain_sum and alone and not masked(rows, known, trial, late):
        return "accumulate", late
    if late and not any(a in leaning for p in early for a in p.args):
        return "level" if stays_too_long(rows, trial, late, counts) else "skewed", late
    return "plain", []


def stays_too_long(rows: Rows, trial: Rows, late: Sequence[ContractTile], counts: Mapping[str, int]) -> bool:
    """Whether a skewed loop would hold two of a ring's tiles at all times, so that nothing can be copied
    meanwhile: a late product's tile is one that something else of its step reads, and there are two turns."""
    rings = rows.copies.rings.values()
    names = {a for p in late for a in p.args if a in trial.memory.held}
    read = {name: sum(p.args.count(name) for p in late) for name in names}
    both = [name for name in names if counts[name] > read[name] and not rows.copies.loads[name].once]
    depth, _ = depths_of(list(rings), rows.memory.scratch_bytes(), rows.groups, rows.stages)
    return bool(both) and depth < HELD_TURNS


def masked(rows: Rows, scope: RowScope, trial: Rows, products: Sequence[ContractTile]) -> bool:
    """Whether an operand in shared memory holds more than its span."""
    return any(
        i not in trial.memory.held[a].tile.zero and bool(scope.spans[i].mask)
        for p in products
        for a in p.args
        for i in p.over
    )


def accumulate(
    rows: Rows,
    scope: RowScope,
    inner: RowScope,
    statement: Loop,
    head: tuple[str, str, str, str, str],
    late: Sequence[ContractTile],
) -> None:
    """A loop whose products run on into the next step."""
    at, start, stop, step, how = head
    ends = {value: target for target, value in statement.updates}
    running: list[Running] = []
    adds = {a: s.out for s in statement.body if isinstance(s, Compute) for a in s.args}
    counts = uses_of(statement.body)
    for s in statement.body:
        if isinstance(s, Load):
            rows.memory.fetch(inner, s, counts.get(s.out, 0), once=rows.depth == 0)
        elif isinstance(s, ContractTile) and s in late:
            roles = rows.roles(inner, s)
            assert roles is not None
            target = inner.value(ends[adds[s.out]])
            run, _ = rows.start(inner, s, roles, s.out, target, target.text)
            running.append(run)
        elif not isinstance(s, Loop | Store | Carry) and s.out not in ends:
            inner.values[s.out] = rows.tile(inner, s)
    rings = list(
        dict.fromkeys(rows.copies.loads[n].name for r in running for n in r.reads if rows.memory.held[n].free)
    )
    names = ", ".join(r.name for r in running)
    inner.lines.append(Line(f"{names} = warpgroup_mma_wait({len(running)}, deps=[{names}])"))
    for ring in rings:
        before = f"({ring}_at - 2) % {DEPTH}"
        inner.lines.append(
            Line(f"mbarrier.arrive({ring}_free.index({before}), count=1, pred={at} > {start})")
        )
    carried = tuple(scope.values[target].text for target, _ in statement.updates)
    loop = f"for {at} in range({start}, {stop}{step}):{how}"
    scope.lines.append(Nested(loop, inner.lines, (*carried, *rows.counters())))
    scope.lines.append(Line(f"{names} = warpgroup_mma_wait(0, deps=[{names}])"))
    for ring in rings:
        before = f"({ring}_at - 1) % {DEPTH}"
        scope.lines.append(
            Line(f"mbarrier.arrive({ring}_free.index({before}), count=1, pred={start} < {stop})")
        )


def most_steps(loop: Loop, tiles: Mapping[Index, int]) -> int | None:
    """The most steps of a loop, where its bounds say so: what full tiles have left, or the tiles that a
    predicate's edge goes through. `tiles` are those of the indices around it."""
    gap = most_between(loop.start, loop.stop, tiles)
    return None if gap is None else max(0, -(-gap // loop.tile))


def most_between(start: Bound, stop: Bound, tiles: Mapping[Index, int]) -> int | None:
    """The most positions from one bound to another, if that follows from how they are made."""
    if start == stop:
        return 0
    match start, stop:
        case AlignBound(inner, tile, up), _:
            gap = most_between(inner, stop, tiles)
            return gap if gap is None or up else gap + tile - 1
        case LimitBound(kind, bounds), _:
            return _most([most_between(b, stop, tiles) for b in bounds], every=kind == "min")
        case _, AlignBound(inner, tile, up):
            gap = most_between(start, inner, tiles)
            return gap if gap is None or not up else gap + tile - 1
        case _, LimitBound(kind, bounds):
            return _most([most_between(start, b, tiles) for b in bounds], every=kind == "max")
        case SizeBound(first), SizeBound(last):
            gap = last + -first
            return None if gap.terms else gap.const
        case PartBound(part, ends, first), PartBound(other, end, last) if (part, ends) == (other, end):
            gap = last + -first
            return None if gap.terms else gap.const
        case SpanBound(index, ends, first), SpanBound(other, end, last) if index == other:
            gap = last + -first
            return None if gap.terms else gap.const + (tiles[index] if end and not ends else 0)
        case _:
            return None


def _most(gaps: Sequence[int | None], *, every: bool) -> int | None:
    """The largest of gaps that must `every` one be known, or the least of those that are."""
    known = [gap for gap in gaps if gap is not None]
    if not known or (every and len(known) < len(gaps)):
        return None
    return max(known) if every else min(known)


def single(
    rows: Rows,
    scope: RowScope,
    statement: Loop,
    span: Span,
    ends: tuple[str, str],
    late: Sequence[ContractTile],
) -> None:
    """A loop of at most one step, which leaves nothing to a next one."""
    start, stop = ends
    inner = scope.inner()
    assert isinstance(inner, RowScope)
    where = inner.names.take(span.start)
    inner.lines.append(Line(f"{where} = {start}", where))
    inner.enter({statement.index: replace(span, start=where)})
    Skew(rows, statement, late).level(inner, alone=True)
    rows.memory.free_rest(inner, statement.body)
    carried = tuple(scope.values[target].text for target, _ in statement.updates)
    scope.lines.append(Nested(f"if {start} < {stop}:", inner.lines, (*carried, *rows.counters())))


def skewed(
    rows: Rows,
    scope: RowScope,
    statement: Loop,
    span: Span,
    head: tuple[str, str, str, str],
    late: Sequence[ContractTile],
) -> None:
    """A loop whose late products run beside the next step."""
    start, stop, step, how = head
    parts = Skew(rows, statement, late)
    first = scope.inner()
    assert isinstance(first, RowScope)
    lefts = {p.out: first.names.take(f"{p.out}_left") for p in late}
    where = first.names.take(span.start)
    first.lines.append(Line(f"{where} = {start}", where))
    first.enter({statement.index: replace(span, start=where)})
    parts.step(first, lefts, None)
    inner = scope.inner(first.names)
    assert isinstance(inner, RowScope)
    at = inner.names.take(span.start)
    inner.enter({statement.index: replace(span, start=at)})
    parts.step(inner, lefts, parts.pending)
    carried = tuple(scope.values[target].text for target, _ in statement.updates)
    names = (*carried, *lefts.values(), *parts.befores(), *rows.counters())
    begin = f"{start} + {span.tile}" if start != "0" else str(span.tile)
    first.lines.append(Nested(f"for {at} in range({begin}, {stop}{step}):{how}", inner.lines, names))
    parts.drain(first)
    scope.lines.append(Nested(f"if {start} < {stop}:", first.lines, (*carried, *rows.counters())))
