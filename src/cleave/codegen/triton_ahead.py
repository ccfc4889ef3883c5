"""Loads of a sequential loop, asked for some steps ahead.

A step of a scan waits for the one before, so a block has nothing to do while its loads are on their way. What
a step reads from memory depends on the loop's position alone: it is loaded `depth` steps early and handed
on from step to step in registers. Positions beyond the last step read the last one again. Only tensors
that the kernel does not write are read early.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cleave.codegen.triton_scope import Scope, bracketed, is_number
from cleave.codegen.triton_text import Line, Nested, words_of
from cleave.ir.dims import Parts
from cleave.schedule.tiles import Compute, Fill, Load, Locate, Loop, Measure, Store

MOST_AHEAD = 4
"""Steps that a load may be ahead: each takes a register for every element."""

PLAIN = Load | Fill | Measure | Locate | Compute | Store


@dataclass(frozen=True, slots=True)
class Counter:
    """The variable of a loop that counts by one, and its bounds, as text."""

    name: str
    start: str
    stop: str


def may_run_ahead(loop: Loop) -> bool:
    """Whether a loop is one whose loads pay to be early: it goes step by step, carries state, and holds
    nothing but pointwise work."""
    steps = loop.tile == 1 and loop.exact and bool(loop.updates) and not isinstance(loop.index.dim, Parts)
    return steps and all(isinstance(s, PLAIN) for s in loop.body)


def run_ahead(
    scope: Scope,
    body: Sequence[Line | Nested],
    counter: Counter,
    depth: int,
    written: frozenset[str],
) -> tuple[list[Line], list[Line | Nested], tuple[str, ...]]:
    """The loads of a loop's body `depth` steps ahead. `written` has the pointers that the kernel stores to.
    Returns lines to go before the loop, the new body, and the names that it carries from step to step."""
    early = [line for line in body if isinstance(line, Line) and is_early(line, body, counter, written)]
    if not early or depth < 1:
        return [], list(body), ()
    depth = min(depth, MOST_AHEAD)
    last = str(int(counter.stop) - 1) if is_number(counter.stop) else f"{counter.stop} - 1"
    ahead = scope.names.take(f"{counter.name}_ahead")
    before: list[Line] = []
    then = f"{counter.name} + {depth}"
    top = [Line(f"{ahead} = tl.minimum({then}, {last})", ahead)]
    carried: list[str] = []
    for line in early:
        name, text = line.target, line.text.split(" = ", 1)[1]
        queue = [scope.names.take(f"{name}_in_{n}") for n in range(depth)]
        for n, waiting in enumerate(queue):
            at = _position(counter, n, last)
            early_text = _guarded(moved(text, counter.name, at), counter)
            before.append(Line(f"{waiting} = {early_text}", waiting))
        top.append(Line(f"{name} = {queue[0]}", name))
        top += [Line(f"{a} = {b}", a, kept=True) for a, b in itertools.pairwise(queue)]
        top.append(Line(f"{queue[-1]} = {moved(text, counter.name, ahead)}", queue[-1], kept=True))
        carried += queue
    rest = [line for line in body if line not in early]
    return before, [*top, *rest], tuple(carried)


def is_early(line: Line, body: Sequence[Line | Nested], counter: Counter, written: frozenset[str]) -> bool:
    """Whether a line loads what depends on nothing that the loop computes but its position."""
    _, equals, text = line.text.partition(" = ")
    if not equals or not line.target or not text.startswith("tl.load("):
        return False
    words = words_of(text)
    made = {other.target for other in body if isinstance(other, Line)}
    return counter.name in words and not words & made and not words & written


def _position(counter: Counter, number: int, last: str) -> str:
    """The position of step `number`, or of the last one."""
    if is_number(counter.start):
        first = str(int(counter.start) + number)
        if is_number(last):
            return str(min(int(first), int(last)))
    else:
        first = f"{counter.start} + {number}" if number else counter.start
    return bracketed(first) if not number else f"tl.minimum({first}, {last})"


def moved(text: str, name: str, at: str) -> str:
    """A text at another position; attributes and keywords are no names."""
    return re.sub(rf"(?<![\w.]){re.escape(name)}\b(?!\s*=(?!=))", at, text)


def _guarded(text: str, counter: Counter) -> str:
    """A load before the loop, which must read nothing where the loop has no step."""
    if is_number(counter.start) and is_number(counter.stop) and int(counter.start) < int(counter.stop):
        return text
    return masked(text, f"({counter.stop} > {counter.start})")


def masked(text: str, test: str) -> str:
    """A load that reads nothing unless a test holds."""
    if "mask=" in text:
        return text.replace("mask=", f"mask={test} & ", 1)
    call, cached, rest = text[:-1].partition(", cache_modifier")
    return f"{call}, mask={test}, other=0{cached}{rest})"
