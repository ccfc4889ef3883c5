"""The merge of the parts of a split, several at once.

Each part's state comes from the last cache, which takes 0.35 us to answer on an H200, longer than a merge
takes (docs/decisions/0010), and a loop that hands loads on from step to step waits for each: a move needs
what it moves. So one step of the loop asks for the states of several parts, then merges them in their order;
what lies beyond the last part is asked for by nobody and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from cleave.codegen.triton_ahead import Counter, is_early, masked, moved
from cleave.codegen.triton_scope import Scope
from cleave.codegen.triton_text import Line, Lines, Nested, assigned
from cleave.ir.dims import Index, Parts
from cleave.schedule.tiles import (
    Compute,
    Fill,
    Load,
    Locate,
    Loop,
    Measure,
    ReduceTile,
    Statement,
)

GROUP = 4
"""Parts that are merged in one piece of code; the next is left out if none of its own is there."""


def merges(loop: Loop) -> bool:
    """Whether a loop merges the states of parts, one after the other."""
    steps = loop.tile == 1 and bool(loop.updates) and isinstance(loop.index.dim, Parts)
    return steps and all(_is_plain(s, loop.index) for s in loop.body)


def _is_plain(statement: Statement, part: Index) -> bool:
    """Whether a statement is pointwise in a step, in which there is one part."""
    if isinstance(statement, ReduceTile):
        return statement.over == (part,)
    return isinstance(statement, Load | Fill | Measure | Locate | Compute)


def may_be_several(body: Sequence[Line | Nested], counter: Counter) -> bool:
    """Whether all that a step loads hangs on its position alone, so that parts that are not there can be
    left out."""
    return all(
        isinstance(s, Line) and ("tl.load(" not in s.text or is_early(s, body, counter, frozenset()))
        for s in body
    )


def several(
    scope: Scope,
    body: Sequence[Line | Nested],
    updates: Sequence[tuple[str, str]],
    counter: Counter,
    count: int,
    words: Collection[str],
) -> Lines:
    """The lines of a step for `count` parts, from those for one without its `updates`: accumulators and
    their new values as text. `words` are what is loaded in 32 bits."""
    # A kernel does not load what it stores: nothing here is written meanwhile.
    loads = [s for s in body if isinstance(s, Line) and is_early(s, body, counter, frozenset())]
    rest = [s for s in body if s not in loads]
    first: Lines = []
    steps: Lines = []
    asked: dict[str, list[str]] = {load.target: [] for load in loads}
    for n in range(count):
        at, inside = counter.name, ""
        if n:
            at = scope.names.take(f"{counter.name}_{n}")
            inside = scope.names.take(f"{at}_in")
            first.append(Line(f"{at} = {counter.name} + {n}", at))
            first.append(Line(f"{inside} = {at} < {counter.stop}", inside))
        renamed = {counter.name: at}
        for load in loads:
            name = scope.names.take(f"{load.target}_{n}")
            text = moved(load.text.split(" = ", 1)[1], counter.name, at)
            first.append(Line(f"{name} = {masked(text, inside) if inside else text}", name))
            renamed[load.target] = name
            asked[load.target].append(name)
        if n and n % GROUP == 0:
            steps.append(Nested(f"if {inside}:", [], tuple(into for into, _ in updates)))
        here = steps[-1].body if n >= GROUP and isinstance(steps[-1], Nested) else steps
        here += [_renamed(line, renamed) for line in rest]
        values = [(into, _text(value, renamed)) for into, value in updates]
        if n % GROUP:
            values = [(into, f"tl.where({inside}, {value}, {into})") for into, value in values]
        here += assigned(values)
    for load in loads:
        if load.target in words:
            first += _all_first(scope, asked[load.target], f"{load.target}_all")
    return [*first, *steps]


def _all_first(scope: Scope, names: Sequence[str], wish: str) -> Lines:
    """Lines that change nothing, but need all of some values of 32 bits before one of them can be used. Else
    an assembler moves every load to where it is needed, to have a few registers less."""
    bits = [f"{name}.to(tl.int32, bitcast=True)" for name in names]
    every = scope.names.take(wish)
    none = "(tl.num_programs(2) - 1)"  # 0, which no compiler knows
    lines: Lines = [Line(f"{every} = ({' | '.join(bits)}) & {none}", every)]
    for name, own in zip(names, bits, strict=True):
        lines.append(Line(f"{name} = ({own} ^ {every}).to(tl.float32, bitcast=True)", name))
    return lines


def _text(text: str, names: Mapping[str, str]) -> str:
    for name, other in names.items():
        text = moved(text, name, other)
    return text


def _renamed(line: Line | Nested, names: Mapping[str, str]) -> Line | Nested:
    assert isinstance(line, Line)
    return replace(line, text=_text(line.text, names))
