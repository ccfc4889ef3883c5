"""Predicates as affine inequalities, `sum(c * index) + extent >= 0` over kernel indices and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cleave.ir.dims import NO_EXTENT, Extent, Index
from cleave.ir.ops import INTEGERS
from cleave.schedule.values import ComputeOf, FillOf, LocateOf, MeasureOf, Value


@dataclass(frozen=True, slots=True)
class Affine:
    """`sum(c * index) + offset`, indices sorted by number."""

    terms: tuple[tuple[Index, int], ...]
    offset: Extent

    def __add__(self, other: Affine) -> Affine:
        total = dict(self.terms)
        for index, c in other.terms:
            total[index] = total.get(index, 0) + c
        kept = sorted(((i, c) for i, c in total.items() if c), key=lambda item: item[0].number)
        return Affine(tuple(kept), self.offset + other.offset)

    def __mul__(self, factor: int) -> Affine:
        if factor == 0:
            return Affine((), NO_EXTENT)
        return Affine(tuple((i, c * factor) for i, c in self.terms), self.offset * factor)

    def __sub__(self, other: Affine) -> Affine:
        return self + other * -1

    def plus(self, const: int) -> Affine:
        """The same form and a number more."""
        return Affine(self.terms, self.offset + Extent(const))


def affine_of(value: Value) -> Affine | None:
    """The value as an affine form of positions and sizes, if it is an integer of that form."""
    if value.dtype not in INTEGERS:
        return None
    match value.op:
        case LocateOf(where):
            pairs = [(leaf, c) for leaf, c in where.leaves if isinstance(leaf, Index)]
            if len(pairs) != len(where.leaves):
                return None
            return Affine((), where.offset) + Affine(
                tuple(sorted(pairs, key=lambda item: item[0].number)), NO_EXTENT
            )
        case MeasureOf(size):
            return Affine((), size)
        case FillOf(number):
            return Affine((), Extent(int(number)))
        case ComputeOf(fn):
            return _affine_compute(fn, [affine_of(a) for a in value.args])
        case _:
            return None


def _affine_compute(fn: str, args: list[Affine | None]) -> Affine | None:
    known = [a for a in args if a is not None]
    if len(known) != len(args):
        return None
    match fn:
        case "id" | "cast":
            return known[0]
        case "neg":
            return known[0] * -1
        case "add":
            return known[0] + known[1]
        case "sub":
            return known[0] - known[1]
        case "mul":
            for a, b in (known, known[::-1]):
                if not a.terms and not a.offset.terms:
                    return b * a.offset.const
            return None
        case _:
            return None


def inequalities(value: Value, holds: bool = True) -> tuple[tuple[Affine, ...], bool]:
    """Affine inequalities that are true where the boolean value is `holds`, and whether they are all
    that is needed for it (the converse)."""
    if not isinstance(value.op, ComputeOf):
        if isinstance(value.op, FillOf) and bool(value.op.value) == holds:
            return (), True
        return (), False
    fn = value.op.fn
    if fn in ("id", "cast") and value.args[0].dtype == "bool":
        return inequalities(value.args[0], holds)
    if fn == "not":
        return inequalities(value.args[0], not holds)
    if (fn == "and" and holds) or (fn == "or" and not holds):
        left, right = (inequalities(a, holds) for a in value.args)
        return tuple(dict.fromkeys((*left[0], *right[0]))), left[1] and right[1]
    if fn not in ("lt", "le", "gt", "ge", "eq"):
        return (), False
    a, b = (affine_of(x) for x in value.args)
    if a is None or b is None:
        return (), False
    return _compared(fn, a, b, holds)


def _compared(fn: str, a: Affine, b: Affine, holds: bool) -> tuple[tuple[Affine, ...], bool]:
    match (fn, holds):
        case ("lt", True) | ("ge", False):
            return ((b - a).plus(-1),), True
        case ("le", True) | ("gt", False):
            return (b - a,), True
        case ("gt", True) | ("le", False):
            return ((a - b).plus(-1),), True
        case ("ge", True) | ("lt", False):
            return (a - b,), True
        case ("eq", True):
            return (a - b, b - a), True
        case _:
            return (), False


def known(value: Value, facts: Sequence[Affine]) -> bool | None:
    """Whether a boolean value is true, false, or not decided, given facts."""
    if not isinstance(value.op, ComputeOf):
        return bool(value.op.value) if isinstance(value.op, FillOf) else None
    fn = value.op.fn
    if fn == "not" or (fn in ("id", "cast") and value.args[0].dtype == "bool"):
        inner = known(value.args[0], facts)
        return inner if inner is None or fn != "not" else not inner
    if fn in ("and", "or"):
        sides = [known(a, facts) for a in value.args]
        decisive = fn == "or"
        if decisive in sides:
            return decisive
        return None if None in sides else not decisive
    for holds in (True, False):
        needed, complete = inequalities(value, holds)
        if complete and needed and all(_implied(n, facts) for n in needed):
            return holds
    return None


def _implied(needed: Affine, facts: Sequence[Affine]) -> bool:
    return any(fact.terms == needed.terms and _never_negative(needed.offset - fact.offset) for fact in facts)


def _never_negative(value: Extent) -> bool:
    return value.const >= 0 and all(c > 0 for _, c in value.terms)


__all__ = ["Affine", "affine_of", "inequalities", "known"]
