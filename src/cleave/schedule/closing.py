"""Whether a loop needs no mask behind the end that a predicate gives it: what it would accumulate there is
nothing by a select, whatever else is computed there.

A support (`LoopPlan.supports`) says where a contribution is nothing over the reals, for which a factor 0
does. Behind the end of a tensor anything may be computed, and 0 times what has overflowed there is NaN. So
only selects count here, and what keeps their value: `exp(-inf - x)` is 0 for every x that a row may have (a
NaN or -inf of x is in all of the row as it is).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cleave.ir.dims import Index
from cleave.ir.ops import FLOATS
from cleave.schedule.affine import Affine, known
from cleave.schedule.values import (
    ComputeOf,
    ContractOf,
    FillOf,
    LoadOf,
    LocateOf,
    LoopPlan,
    MeasureOf,
    ReduceOf,
    StateOf,
    Value,
    Work,
    drive,
)

IDENTITIES = {"sum": 0.0, "max": -math.inf, "min": math.inf}


def closes(loop: LoopPlan, ending: Sequence[Affine]) -> bool:
    """Whether nothing is added to what a loop carries wherever one of these inequalities fails."""
    steps = [slot.step for slot in loop.slots if slot.step is not None]
    return bool(ending) and all(_adds_nothing(step, loop.index, form) for step in steps for form in ending)


def _adds_nothing(step: Value, index: Index, form: Affine) -> bool:
    """Whether all reductions over an index that a step is made of are of nothing where `form` is negative."""
    facts = ((form * -1).plus(-1),)
    seen: set[Value] = set()
    stack = [step]
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        match value.op:
            case ReduceOf(kind, over) if index in over:
                want = IDENTITIES.get(kind)
                if want is None or drive(_settled(value.args[0], index, facts)) != want:
                    return False
            case ContractOf(over) if index in over:
                found = [drive(_settled(arg, index, facts)) for arg in value.args]
                others = [a for a, x in zip(value.args, found, strict=True) if x != 0]
                if len(others) == len(found) or not all(isinstance(a.op, LoadOf) for a in others):
                    return False
            case ComputeOf():
                stack += value.args
            case StateOf() | FillOf() | MeasureOf():
                pass
            case _:
                if index in value.axes or not isinstance(value.op, LoadOf | LocateOf):
                    return False
    return True


def _settled(value: Value, index: Index, facts: Sequence[Affine]) -> Work[float | None]:
    """What a value is where facts hold, if that is one number whatever its other arguments are."""
    match value.op:
        case FillOf(number):
            return float(number)
        case ComputeOf("select"):
            which = known(value.args[0], facts)
            return None if which is None else (yield _settled(value.args[1 if which else 2], index, facts))
        case ComputeOf("id" | "cast") if value.dtype in FLOATS:
            return (yield _settled(value.args[0], index, facts))
        case ComputeOf(fn) if fn in ("exp", "exp2", "sub", "add", "mul", "div"):
            numbers: list[float | None] = []
            for arg in value.args:
                numbers.append((yield _settled(arg, index, facts)))
            return _applied(fn, value.args, numbers, index)
        case _:
            return None


def _applied(fn: str, args: Sequence[Value], numbers: Sequence[float | None], index: Index) -> float | None:
    """What a function of arguments is, of which some numbers are known."""
    first, *rest = numbers
    if fn in ("exp", "exp2"):
        return 0.0 if first == -math.inf else None
    (second,) = rest
    if fn in ("sub", "add"):
        for place in (0,) if fn == "sub" else (0, 1):
            other, number = args[1 - place], numbers[1 - place]
            row = index not in other.axes and (number is None or math.isfinite(number))
            if numbers[place] == -math.inf and row:
                return -math.inf
        return None
    pairs = [(first, second)] if fn == "div" else [(first, second), (second, first)]
    for number, factor in pairs:
        if number is None or factor is None or not math.isfinite(factor) or factor == 0:
            continue
        if number == 0 or (number == -math.inf and factor > 0):
            return number
    return None


__all__ = ["closes"]
