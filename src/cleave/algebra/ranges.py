"""Ranges of values, by interval arithmetic over constants, for every size (design.md, "Numerical standing").

`tanh`, `sin`, comparisons and constants bound what is computed from them; inputs are unbounded. What a select
masks with `-inf` is left out of a range and marked: `exp` of it is 0, and a sum of it is a sum over what is
not masked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from cleave.algebra.frame import plain
from cleave.ir.ops import FLOATS, Access, Const, Map, Node, Reduce, SizeOf


@dataclass(frozen=True, slots=True)
class Range:
    """All values lie from `low` to `high`, but for those that are masked, if `masked` says that there may be
    any."""

    low: float = -math.inf
    high: float = math.inf
    masked: bool = False

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}" + (", or masked" if self.masked else "")

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    def __neg__(self) -> Range:
        return UNKNOWN if self.masked else Range(-self.high, -self.low)


UNKNOWN = Range()
BOUNDED = {
    "tanh": (-1.0, 1.0),
    "tanh_coarse": (-1.0, 1.0),
    "erf": (-1.0, 1.0),
    "sin": (-1.0, 1.0),
    "cos": (-1.0, 1.0),
    "sign": (-1.0, 1.0),
}
RISING: dict[str, Callable[[float], float]] = {
    "floor": math.floor, "ceil": math.ceil, "round": round, "trunc": math.trunc,
}  # fmt: skip


def range_of(access: Access) -> Range:
    """The range of a value at any of its elements."""
    return _of(plain(access).node)


def _of(top: Node) -> Range:
    known: dict[Node, Range] = {}
    stack = [top]
    while stack:
        node = stack[-1]
        waiting = [a.node for a in node.args if a.node not in known]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        if node not in known:
            known[node] = _made(node, [known[a.node] for a in node.args])
    return known[top]


def _made(node: Node, args: list[Range]) -> Range:
    match node.op:
        case Const(value):
            number = float(value)
            if number == -math.inf:
                return Range(math.inf, -math.inf, True)
            return UNKNOWN if math.isnan(number) else Range(number, number)
        case SizeOf():
            return Range(0.0, math.inf)
        case Map(fn, _):
            return _map(fn, args, node)
        case Reduce("max" | "min", _, _):
            return args[0]
        case Reduce("sum", _, _) if args[0].low >= 0:
            # At least one term is there and not masked, or the sum is that of nothing.
            return Range(args[0].low, math.inf, args[0].masked)
        case _:
            return Range(0.0, 1.0) if node.dtype == "bool" else UNKNOWN


def _map(fn: str, args: list[Range], node: Node) -> Range:
    first = args[0]
    if node.dtype == "bool":
        return Range(0.0, 1.0)
    if fn in ("id", "cast"):
        return first if node.dtype in FLOATS else UNKNOWN
    if fn == "select":
        return _either(args[1], args[2])
    if fn in BOUNDED:
        return UNKNOWN if first.masked else Range(*BOUNDED[fn])
    if fn == "exp":
        return Range(_exp(first.low), _exp(first.high), first.masked)
    if fn == "max":
        return _maximum(*args)
    if fn == "min":
        return -_maximum(-args[0], -args[1])
    if any(a.masked for a in args):
        # A mask passes through a sum with a number and a product with a positive one.
        return _with_mask(fn, args)
    return _unmasked(fn, args)


def _unmasked(fn: str, args: list[Range]) -> Range:
    first = args[0]
    match fn:
        case "neg":
            return -first
        case "abs":
            low = 0.0 if first.low <= 0 <= first.high else min(abs(first.low), abs(first.high))
            return Range(low, max(abs(first.low), abs(first.high)))
        case "add":
            return Range(first.low + args[1].low, first.high + args[1].high)
        case "sub":
            return _unmasked("add", [first, -args[1]])
        case "mul":
            return _product(first, args[1])
        case "div" if args[1].low > 0 or args[1].high < 0:
            ends = (_inverse(args[1].low), _inverse(args[1].high))
            return _product(first, Range(min(ends), max(ends)))
        case "sqrt":
            return Range(math.sqrt(max(first.low, 0.0)), math.sqrt(max(first.high, 0.0)))
        case "reciprocal" if first.low > 0:
            return Range(_inverse(first.high), _inverse(first.low))
        case _ if fn in RISING and first.bounded:
            return Range(float(RISING[fn](first.low)), float(RISING[fn](first.high)))
        case _:
            return UNKNOWN


def _with_mask(fn: str, args: list[Range]) -> Range:
    masked = [a for a in args if a.masked]
    if fn == "sub" and args[1].masked:
        return UNKNOWN
    if fn in ("add", "sub"):
        made = _unmasked(fn, [replace(a, masked=False) for a in args])
        return replace(made, masked=True)
    others = [a for a in args if not a.masked]
    if fn in ("mul", "div") and len(masked) == 1 and others[0].low > 0 and args[0] is masked[0]:
        made = _unmasked(fn, [replace(a, masked=False) for a in args])
        return replace(made, masked=True)
    return UNKNOWN


def _either(one: Range, two: Range) -> Range:
    return Range(min(one.low, two.low), max(one.high, two.high), one.masked or two.masked)


def _maximum(one: Range, two: Range) -> Range:
    if one.masked and two.masked:
        return _either(one, two)
    lows = [r.low for r in (one, two) if not r.masked]
    return Range(max(lows), max(one.high, two.high))


def _product(one: Range, two: Range) -> Range:
    if not (one.bounded and two.bounded):
        both = one.low >= 0 and two.low >= 0
        return Range(_times(one.low, two.low), _times(one.high, two.high)) if both else UNKNOWN
    ends = [a * b for a in (one.low, one.high) for b in (two.low, two.high)]
    return Range(min(ends), max(ends))


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _inverse(value: float) -> float:
    return math.inf if value == 0 else 1 / value


def _exp(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf
