"""Loops one behind the other that share a pipeline: late products of the last step of one run beside the
first step of the next.

The border of a loop (the edge of a causal mask, say) has few steps, and each of them alone would leave the
matrix units idle while it computes. Where borders come first and are never empty
(`schedule.bounds.segments`), a chain has one step's code for each loop and nothing else. Little code matters:
what the instruction caches do not hold from the call before comes from memory, 6 to 16 us for 120 KB of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cleave.codegen.gluon_loops import kind_of, most_steps, unmasked
from cleave.codegen.gluon_plan import RowScope
from cleave.codegen.gluon_skew import Skew
from cleave.codegen.triton_text import Line, Nested
from cleave.codegen.triton_tiles import Span
from cleave.schedule.tiles import (
    AlignBound,
    Bound,
    ContractTile,
    LimitBound,
    Load,
    Loop,
    PartBound,
    SizeBound,
    SpanBound,
    Statement,
)

if TYPE_CHECKING:
    from cleave.codegen.gluon_body import Rows


@dataclass(frozen=True, slots=True)
class Chain:
    """Two loops with one pipeline. `late` are the products of each that run on, in one order of their
    accumulators."""

    first: Loop
    second: Loop
    late: tuple[tuple[ContractTile, ...], tuple[ContractTile, ...]]


def chain_at(rows: Rows, scope: RowScope, body: Sequence[Statement]) -> Chain | None:
    """The chain that starts with the loop in front of `body`, if there is one."""
    first, second = body[0], body[1] if len(body) > 1 else None
    assert isinstance(first, Loop)
    if not isinstance(second, Loop) or rows.groups.split:
        return None
    if {target for target, _ in first.updates} != {target for target, _ in second.updates}:
        return None
    if (first.index, first.tile) != (second.index, second.tile) or not leads(first, second):
        return None
    if any(isinstance(s, Loop) for s in (*first.body, *second.body)):
        return None
    for loop in (first, second):
        rows.memory.keep_operands(scope, loop)
    late = [_late(rows, scope, loop) for loop in (first, second)]
    if None in late or not _alike(rows, first, second, late[0] or {}, late[1] or {}):
        return None
    order = list(late[0] or {})
    one, two = (tuple(found[target] for target in order) for found in late if found is not None)
    return Chain(first, second, (one, two))


def _late(rows: Rows, scope: RowScope, loop: Loop) -> dict[str, ContractTile] | None:
    """The late products of a loop that leaves them to its next step, by accumulator."""
    probe = scope.inner()
    assert isinstance(probe, RowScope)
    rows.depth += 1
    kind, late = kind_of(rows, probe, loop, _placed(probe, loop)[0])
    rows.depth -= 1
    if kind != "skewed":
        return None
    parts = Skew(rows, loop, late)
    return {parts.targets[p.out]: p for p in late}


def _alike(
    rows: Rows, first: Loop, second: Loop, one: dict[str, ContractTile], two: dict[str, ContractTile]
) -> bool:
    """Whether the late products of two loops have the same accumulators, left operands in registers, and
    right ones from the same rings."""
    if one.keys() != two.keys():
        return False
    loads = [{s.out for s in loop.body if isinstance(s, Load)} for loop in (first, second)]
    if any(a in rows.memory.held for p in (*one.values(), *two.values()) for a in p.args):
        return False  # it stays in shared memory while the loops run
    for target, product in one.items():
        rings = [
            [rows.copies.loads[a] for a in p.args if a in own]
            for p, own in zip((product, two[target]), loads, strict=True)
        ]
        if any(len(found) != 1 or found[0].once for found in rings) or rings[0] != rings[1]:
            return False
        if (product.dtype, product.axes, product.over) != (
            two[target].dtype,
            two[target].axes,
            two[target].over,
        ):
            return False
    return True


def leads(first: Loop, second: Loop) -> bool:
    """Whether the first loop has a step wherever the second one has: it starts where that stops, or where
    that starts if that has none, and goes on behind it."""
    ends = {second.start, second.stop}
    starts = set(first.start.bounds) if isinstance(first.start, LimitBound) else {first.start}
    known = starts == ends and isinstance(first.start, LimitBound) and first.start.kind == "max"
    return (known or starts == {second.stop}) and below(second.stop, first.stop)


def below(low: Bound, high: Bound) -> bool:
    """Whether one bound is surely less than another."""
    match low, high:
        case _, LimitBound("min", bounds):
            return all(below(low, b) for b in bounds)
        case LimitBound("max", bounds), _:
            return all(below(b, high) for b in bounds)
        case AlignBound(inner, _, up), _:
            return not up and below(inner, high)
        case LimitBound("min", bounds), _:
            return any(below(b, high) for b in bounds)
        case _, LimitBound("max", bounds):
            return any(below(low, b) for b in bounds)
        case SizeBound(one), SizeBound(two):
            gap = two + -one
            return not gap.terms and gap.const >= 1
        case PartBound(part, end, one), PartBound(other, other_end, two) if (part, end) == (other, other_end):
            gap = two + -one
            return not gap.terms and gap.const >= 1
        case SpanBound(index, end, one), SpanBound(other, other_end, two) if index == other:
            gap = two + -one
            longer = int(other_end) - int(end)  # a span has one position at least
            return not gap.terms and longer >= 0 and gap.const + longer >= 1
        case _:
            return False


def write_chain(rows: Rows, scope: RowScope, chain: Chain) -> None:
    """Both loops: the last step of the first one starts what all steps of the second one go on with."""
    first, second = chain.first, chain.second
    span, start, stop, how = _placed(scope, first)
    span = unmasked(rows, first, span)
    later, low, high, also = _placed(scope, second)
    staying = {name: held for name, held in rows.memory.held.items() if held.slot}
    rows.depth += 1
    opening = scope.inner()
    assert isinstance(opening, RowScope)
    lefts = [opening.names.take(f"{p.out}_left") for p in chain.late[0]]
    one, two = ({p.out: left for p, left in zip(late, lefts, strict=True)} for late in chain.late)
    carried = tuple(scope.values[target].text for target, _ in first.updates)
    parts = Skew(rows, first, chain.late[0], waits=True)
    if most_steps(first, scope.tiles) == 1:
        where = opening.names.take(span.start)
        opening.lines.append(Line(f"{where} = {start}", where))
        opening.enter({first.index: replace(span, start=where)})
        parts.step(opening, one, None)
    else:
        head = f"range({start}, {stop}{_step(span)}):{how}"
        _ending_in_turn(opening, parts, one, replace(span, start=opening.names.take(span.start)), head, start)
    rows.memory.held |= staying  # where a step has found them anew is known to that step alone
    going = Skew(rows, second, chain.late[1], waits=True)
    going.take_over(parts)
    inner = scope.inner(opening.names)
    assert isinstance(inner, RowScope)
    at = inner.names.take(later.start)
    inner.enter({second.index: replace(later, start=at)})
    going.step(inner, two, going.pending)
    head = f"for {at} in range({low}, {high}{_step(later)}):{also}"
    names = (*carried, *lefts, *parts.befores(), *rows.counters())
    opening.lines.append(Nested(head, inner.lines, names))
    going.drain(opening)
    scope.lines.append(Nested(f"if {start} < {stop}:", opening.lines, (*carried, *rows.counters())))
    rows.depth -= 1
    rows.memory.held |= staying


def _ending_in_turn(
    opening: RowScope, parts: Skew, lefts: dict[str, str], span: Span, head: str, start: str
) -> None:
    """Steps of a loop of few, each of which ends what the one before has left before it starts: one copy of
    the code for all, and for the last one, which leaves its late products to another loop."""
    rows, loop = parts.rows, parts.loop
    body = opening.inner()
    assert isinstance(body, RowScope)
    body.enter({loop.index: span})
    parts.step(body, lefts, None)
    ending = opening.inner(body.names)
    assert isinstance(ending, RowScope)
    parts.drain(ending)
    for p in parts.pending:
        opening.lines.append(Line(f"{p.left} = {p.nothing}", p.left, kept=True))
    opening.lines += [Line(f"{name} = gl.to_tensor(0)", name, kept=True) for name in parts.befores()]
    targets = tuple(opening.values[p.target].text for p in parts.pending)
    carried = tuple(opening.values[target].text for target, _ in loop.updates)
    ended = Nested(f"if {span.start} > {start}:", ending.lines, targets)
    names = (*carried, *lefts.values(), *parts.befores(), *rows.counters())
    opening.lines.append(Nested(f"for {span.start} in {head}", [ended, *body.lines], names))


def _step(span: Span) -> str:
    return f", {span.tile}" if span.tile > 1 else ""


def _placed(scope: RowScope, loop: Loop) -> tuple[Span, str, str, str]:
    """The span of a loop's steps, where it starts and stops, and what is said of it."""
    start, stop, full = scope.ends(loop)
    name = scope.index_names[loop.index]
    at = name if loop.tile == 1 else scope.inner().names.take(f"{name}0")
    how = f"  # {loop.index.dim}" + (", every tile full" if loop.exact and loop.tile > 1 else "")
    return Span(loop.tile, at, stop, full), start, stop, how
