"""What sorts of values a node of a random program may have: no number, -inf, negative ones, 0, positive ones,
inf. A law that holds for some sorts only asks here whether it holds at its place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache

from cleave.ir.dims import Gather, Index, Join, Part, Union, extent
from cleave.ir.ops import (
    FLOATS,
    Access,
    Cat,
    Const,
    Contract,
    Input,
    Map,
    Node,
    Position,
    Reduce,
    Scalar,
    SizeOf,
)  # fmt: skip

NAN, LOW, MINUS, ZERO, PLUS, HIGH = "nan", "-inf", "-", "0", "+", "inf"
ORDER = (LOW, MINUS, ZERO, PLUS, HIGH)
ANY = frozenset({NAN, *ORDER})
NUMBER = frozenset({MINUS, ZERO, PLUS})
INFINITE = frozenset({LOW, HIGH})
NOT_FINITE = frozenset({NAN, LOW, HIGH})

Sorts = frozenset[str]


def sorts_of(access: Access) -> Sorts:
    """The sorts that what is read may have; no number among them if the read may lie outside."""
    found = _sorts(access.node)
    return found if _inside(access) else found | {NAN}


def free_of(access: Access, *sorts: str) -> bool:
    """Is what is read certainly of none of these sorts?"""
    return sorts_of(access).isdisjoint(sorts)


def _inside(access: Access) -> bool:
    for where, axis in zip(access.terms, access.node.axes, strict=True):
        if not where.leaves and where.offset == extent():
            continue
        leaf, times = where.leaves[0] if len(where.leaves) == 1 else (None, 0)
        if times != 1:
            return False
        if where.offset == extent() and isinstance(leaf, Gather | Join):
            continue
        parts = axis.dim.parts if isinstance(axis.dim, Union) else ()
        starts = {axis.dim: extent()}
        for k, part in reversed([*enumerate(parts)]):
            starts[part] = extent(0, *((p, 1) for p in parts[:k]))
        if not isinstance(leaf, Index) or starts.get(leaf.dim) != where.offset:
            return False
    return True


@lru_cache(maxsize=4096)
def _sorts(node: Node) -> Sorts:
    match node.op:
        case Input() | Scalar():
            return NUMBER
        case Const(value):
            return frozenset({_of_number(float(value))})
        case SizeOf():
            return frozenset({PLUS})
        case Position():
            return frozenset({ZERO, PLUS})
        case Cat(_, pieces):
            return frozenset[str]().union(*map(sorts_of, pieces))
        case Map("select", args):
            return sorts_of(args[1]) | sorts_of(args[2])
        case Map("cast", (arg,)):
            return sorts_of(arg) if arg.node.dtype in FLOATS and node.dtype in FLOATS else NUMBER
        case Map(fn, args):
            return _of_map(fn, args) if node.dtype in FLOATS else NUMBER
        case Reduce(kind, bound, arg) if node.dtype in FLOATS:
            return _of_reduction(kind, bound, sorts_of(arg))
        case Contract(bound, args):
            products = frozenset({PLUS})
            for arg in args:
                products = _all(_mul, products, sorts_of(arg))
            return _of_reduction("sum", bound, products)
        case _:
            return ANY if node.dtype in FLOATS else NUMBER


def _of_number(value: float) -> str:
    if math.isnan(value):
        return NAN
    if math.isinf(value):
        return HIGH if value > 0 else LOW
    return PLUS if value > 0 else MINUS if value < 0 else ZERO


def _of_map(fn: str, args: Sequence[Access]) -> Sorts:
    rule = RULES.get(fn)
    return ANY if rule is None else _all(rule, *map(sorts_of, args))


def _of_reduction(kind: str, bound: Sequence[Index], values: Sorts) -> Sorts:
    empty = any(isinstance(i.dim, Part) for i in bound)
    if kind == "sum":
        found = values | ({ZERO} if empty else set())
        while (more := found | _all(_add, found, found)) != found:
            found = more
        return found
    if kind in ("max", "min"):
        return values | ({LOW if kind == "max" else HIGH} if empty else set())
    return ANY


def _all(rule: Callable[..., set[str]], *args: Sorts) -> Sorts:
    """The sorts that a rule makes of all combinations; NaN of NaN."""
    return frozenset[str]().union(
        *({NAN} if NAN in chosen else rule(*chosen) for chosen in itertools.product(*args))
    )


def _negative(a: str) -> str:
    return ORDER[-1 - ORDER.index(a)]


def _add(a: str, b: str) -> set[str]:
    if {a, b} == INFINITE:
        return {NAN}
    for one in (a, b):
        if one in INFINITE:
            return {one}
    return {MINUS, ZERO, PLUS} if {a, b} == {MINUS, PLUS} else {b if a == ZERO else a}


def _mul(a: str, b: str) -> set[str]:
    if ZERO in (a, b):
        return {NAN} if a in INFINITE or b in INFINITE else {ZERO}
    negative = (a in (LOW, MINUS)) != (b in (LOW, MINUS))
    if a in INFINITE or b in INFINITE:
        return {LOW if negative else HIGH}
    return {MINUS if negative else PLUS}


def _reciprocal(a: str) -> set[str]:
    return {NAN} if a == ZERO else {ZERO} if a in INFINITE else {a}


def _div(a: str, b: str) -> set[str]:
    if b in INFINITE:
        return {NAN} if a in INFINITE else {ZERO}
    return {NAN} if b == ZERO else _mul(a, b)


RULES: dict[str, Callable[..., set[str]]] = {
    "id": lambda a: {a},
    "neg": lambda a: {_negative(a)},
    "abs": lambda a: {max(a, _negative(a), key=ORDER.index)},
    "exp": lambda a: {ZERO} if a == LOW else {HIGH} if a == HIGH else {PLUS},
    "log": lambda a: {NAN} if a in (LOW, MINUS) else {LOW} if a == ZERO else {a} if a == HIGH else NUMBER,
    "sqrt": lambda a: {NAN} if a in (LOW, MINUS) else {a},
    "rsqrt": lambda a: {PLUS} if a == PLUS else {ZERO} if a == HIGH else {NAN},
    "reciprocal": _reciprocal,
    "tanh": lambda a: {{LOW: MINUS, HIGH: PLUS}.get(a, a)},
    "add": _add,
    "sub": lambda a, b: _add(a, _negative(b)),
    "mul": _mul,
    "div": _div,
    "max": lambda a, b: {max(a, b, key=ORDER.index)},
    "min": lambda a, b: {min(a, b, key=ORDER.index)},
}  # fmt: skip
