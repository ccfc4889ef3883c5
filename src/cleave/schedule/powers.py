"""Exponentials in the machine's own base (design.md, section 4, step 5).

A GPU raises 2 to a power; `exp` costs one more multiplication. In a loop that follows a product the
exponent is `c * p - m`: with `log2 e` drawn into `c` and into `m`, which has one value per row, it is one
fused multiply-add per element. And `max(c * p) = c * max(p)` for `c > 0`, to the last bit, since rounding
keeps order; a choice between `c * p` and infinity is `c` times one between `p` and infinity.

Only exponents that come from a contraction, or from a function within 1 times what keeps it small, change: a
tensor may hold the largest floats (masks filled with the lowest number do), whose product with `log2 e` is
infinite, where their difference is not. What a contraction gives, and a factor of it that only the call
knows, are taken to be no such numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cleave.ir.dims import Index, Inject, Join, Lookup, Term
from cleave.ir.ops import Number
from cleave.schedule.tiles import (
    Carry,
    Compute,
    ContractTile,
    Fill,
    Kernel,
    Load,
    Locate,
    Loop,
    Measure,
    ReduceTile,
    Statement,
    Store,
)

LOG2_E = 1.4426950408889634
_FAR = 2.0**30
"""How large an exponent may be before the maximum is taken off. `m * log2 e` is rounded, `p * log2 e` in the
multiply-add is not: up to here both differ by 64 at most where `p = m`, so that 2 to that power, which a
row's sum divides out again, and the sum of a long row of them are finite and not 0."""
_FACTORED = _FAR / 8
"""The same where a factor is drawn out: `c * p` was rounded as well, and so are `c * log2 e` and `log2 e`."""
_NEAR = 1e-30
"""How small a factor may be that is multiplied by `log2 e`: no number below the normal ones comes of it."""

Value = Load | Fill | Measure | Locate | Compute | ReduceTile | ContractTile | Carry


def in_base_two(kernel: Kernel) -> Kernel:
    """The kernel with exponentials of products' differences taken in base 2. Values equal to rounding, maxima
    to the bit."""
    pass_ = _Pass(kernel)
    body = pass_.body(kernel.body, {}, {})
    return replace(kernel, body=_live(body)[0]) if pass_.changed else kernel


class _Pass:
    def __init__(self, kernel: Kernel) -> None:
        self.taken = set(_names(kernel.body))
        self.changed = False

    def fresh(self, wish: str) -> str:
        name, number = wish, 1
        while name in self.taken:
            number += 1
            name = f"{wish}_{number}"
        self.taken.add(name)
        return name

    def body(
        self, body: Sequence[Statement], known: Mapping[str, Value], scaled: Mapping[str, str]
    ) -> tuple[Statement, ...]:
        """Rewrite statements in order. `known` is what defines each name in scope, `scaled` the names that
        hold another value times `log2 e`."""
        known, scaled = dict(known), dict(scaled)
        done: list[Statement] = []
        for statement in body:
            match statement:
                case Loop(updates=updates):
                    for name, _ in updates:  # means another value in the loop, and behind it
                        scaled.pop(name, None)
                    done.append(replace(statement, body=self.body(statement.body, known, scaled)))
                case Store():
                    done.append(statement)
                case _:
                    written = self.rewritten(statement, known, scaled)
                    known.update({s.out: s for s in written})
                    done += written
        return tuple(done)

    def rewritten(self, statement: Value, known: Mapping[str, Value], scaled: dict[str, str]) -> list[Value]:
        match statement:
            case ReduceTile(_, _, "f32", "max" | "min", _, arg):
                return self.extreme(statement, known.get(arg), known)
            case Compute(_, _, "f32", "select", _):
                return self.chosen(statement, known)
            case Compute(_, _, "f32", "exp", (arg,)):
                return self.power(statement, known.get(arg), known, scaled)
            case _:
                return [statement]

    def chosen(self, statement: Compute, known: Mapping[str, Value]) -> list[Value]:
        """A positive factor behind a choice between what it multiplies and an infinite number, which stays
        as it is: no element is multiplied where the factor goes on behind a maximum and into an exponent."""
        cond, *sides = statement.args
        for place, name in enumerate(sides):
            factor, other = _factor(known.get(name), known), _literal(known.get(sides[1 - place]))
            by = _literal(known.get(factor.by)) if factor else None
            if factor is None or by is None or other is None:
                continue
            if 0 < by < math.inf and math.isinf(other) and _axes(known, factor.of) == _axes(known, name):
                sides[place] = factor.of
                first = replace(statement, out=self.fresh(statement.out), args=(cond, *sides))
                return [
                    first,
                    Compute(statement.out, statement.axes, "f32", factor.fn, (first.out, factor.by)),
                ]
        return [statement]

    def extreme(self, statement: ReduceTile, arg: Value | None, known: Mapping[str, Value]) -> list[Value]:
        """The factor behind the maximum."""
        factor = _factor(arg, known)
        amount = _literal(known.get(factor.by)) if factor else None
        if factor is None or amount is None or not 0 < amount < math.inf:
            return [statement]
        self.changed = True
        first = replace(statement, out=self.fresh(statement.out), arg=factor.of)
        return [first, Compute(statement.out, statement.axes, "f32", factor.fn, (first.out, factor.by))]

    def power(
        self, statement: Compute, arg: Value | None, known: Mapping[str, Value], scaled: dict[str, str]
    ) -> list[Value]:
        """`exp(c a - b)` as `exp2(c' a + b')`."""
        if not (isinstance(arg, Compute) and arg.fn == "sub" and arg.dtype == "f32"):
            return [statement]
        left, right = arg.args
        factor = _factor(known.get(left), known) or _Factor(left)
        if len(_axes(known, right)) >= len(_axes(known, left)):
            return [statement]
        if _reach(left, known) > (_FACTORED if factor.by else _FAR):
            return [statement]
        self.changed = True
        made: list[Value] = []
        by = self.scale(factor, known, made, scaled)
        offset = self.times(right, known, made, scaled)
        gap = Compute(self.fresh("gap"), arg.axes, "f32", "fma", (factor.of, by, offset))
        return [*made, gap, Compute(statement.out, statement.axes, "f32", "exp2", (gap.out,))]

    def scale(
        self, factor: _Factor, known: Mapping[str, Value], made: list[Value], scaled: dict[str, str]
    ) -> str:
        """The name of a factor times `log2 e`."""
        value = _literal(known[factor.by]) if factor.by else 1.0
        if value is not None:
            return self.literal(LOG2_E / value if factor.fn == "div" else LOG2_E * value, made, scaled)
        key = f"{factor.fn} {factor.by}"
        if key not in scaled:
            base = self.literal(LOG2_E, made, scaled)
            made.append(Compute(self.fresh("factor"), (), "f32", factor.fn, (base, factor.by)))
            scaled[key] = made[-1].out
        return scaled[key]

    def times(self, name: str, known: Mapping[str, Value], made: list[Value], scaled: dict[str, str]) -> str:
        """The name of a value times `-log2 e`."""
        if name not in scaled:
            by = self.literal(-LOG2_E, made, scaled)
            made.append(Compute(self.fresh("scaled"), _axes(known, name), "f32", "mul", (name, by)))
            scaled[name] = made[-1].out
        return scaled[name]

    def literal(self, value: float, made: list[Value], scaled: dict[str, str]) -> str:
        """The name of a number, written once in a scope."""
        key = f"{value}"
        if key not in scaled:
            made.append(Fill(self.fresh("c"), (), "f32", value))
            scaled[key] = made[-1].out
        return scaled[key]


@dataclass(frozen=True, slots=True)
class _Factor:
    """The value `of`, times (or over, where `fn` is `div`) the value `by`, which has no indices."""

    of: str
    fn: str = "mul"
    by: str = ""


def _factor(value: Value | None, known: Mapping[str, Value]) -> _Factor | None:
    """A product or quotient with a value that has no indices."""
    if not (isinstance(value, Compute) and value.fn in ("mul", "div") and value.dtype == "f32"):
        return None
    pairs = (value.args, value.args[::-1]) if value.fn == "mul" else (value.args,)
    for of, by in pairs:
        factor = known.get(by)
        if isinstance(factor, Fill | Compute | Load) and not factor.axes and factor.dtype == "f32":
            return _Factor(of, value.fn, by) if _dtype(known, of) == "f32" and _literal(factor) != 0 else None
    return None


def _reach(name: str, known: Mapping[str, Value]) -> float:
    """How large a value can be that is a sum of contractions, which count for nothing, or of functions within
    1, times factors, or absent. Infinite where that is not known: a number out of a tensor, or one that only
    the call knows times anything but contractions."""
    match known.get(name):
        case ContractTile(dtype="f32"):
            return 0.0
        case Compute(fn="tanh" | "tanh_coarse" | "erf" | "sin" | "cos", dtype="f32"):
            return 1.0
        case Compute(fn="add" | "sub", dtype="f32", args=args):
            return sum(_reach(a, known) for a in args)
        case Compute(fn="mul" | "div", dtype="f32") as value:
            factor = _factor(value, known)
            return math.inf if factor is None else _reach_times(_reach(factor.of, known), factor, known)
        case Compute(fn="select", dtype="f32", args=(_, one, other)):
            return max(min(_reach(a, known), _absent(known.get(a))) for a in (one, other))
        case _:
            return math.inf


def _reach_times(reach: float, factor: _Factor, known: Mapping[str, Value]) -> float:
    """How large what reaches so far is, times a factor."""
    by = _literal(known.get(factor.by))
    if by is None:  # a tensor's number or a computed one
        return math.inf if reach else 0.0
    amount = abs(1 / by if factor.fn == "div" else by)
    return reach * amount if _NEAR < amount <= _FAR else math.inf


def _absent(value: Value | None) -> float:
    """How large a literal is that stands for what is not there: infinity stays as it is and counts for
    nothing. Infinite for all other values."""
    amount = _literal(value)
    if amount is None or math.isnan(amount):
        return math.inf
    return 0.0 if math.isinf(amount) else abs(amount)


def _literal(value: Value | None) -> float | None:
    return _real(value.value) if isinstance(value, Fill) else None


def _real(value: Number) -> float:
    return float(value)


def _axes(known: Mapping[str, Value], name: str) -> tuple[Index, ...]:
    value = known[name]
    return () if isinstance(value, Measure) else value.axes


def _dtype(known: Mapping[str, Value], name: str) -> str:
    return known[name].dtype if name in known else ""


def _names(body: Sequence[Statement]) -> list[str]:
    found: list[str] = []
    for statement in body:
        if isinstance(statement, Loop):
            found += _names(statement.body)
        elif not isinstance(statement, Store):
            found.append(statement.out)
    return found


def _live(
    body: Sequence[Statement], wanted: frozenset[str] = frozenset()
) -> tuple[tuple[Statement, ...], set[str]]:
    """The statements whose values are read, and the names that they read from outside or before."""
    needed = set(wanted)
    kept: list[Statement] = []
    for statement in reversed(body):
        match statement:
            case Loop(updates=updates):
                names = {name for pair in updates for name in pair}
                inner, reads = _live(statement.body, frozenset(names))
                needed |= reads
                kept.append(replace(statement, body=inner))
            case Store():
                needed.add(statement.value)
                needed |= _looked_up(statement.terms)
                kept.append(statement)
            case _:
                if statement.out in needed:
                    needed |= _reads(statement)
                    kept.append(statement)
    return tuple(reversed(kept)), needed


def _reads(statement: Value) -> set[str]:
    """The names that a statement reads."""
    match statement:
        case Compute(args=args) | ContractTile(args=args):
            return set(args)
        case ReduceTile(arg=arg):
            return {arg}
        case Carry(init=init):
            return {init}
        case Load(terms=terms):
            return _looked_up(terms)
        case Locate(term=term):
            return _looked_up((term,))
        case _:
            return set()


def _looked_up(terms: Sequence[Term]) -> set[str]:
    """The names whose values are positions in some terms."""
    found: set[str] = set()
    for term in terms:
        for leaf, _ in term.leaves:
            match leaf:
                case Lookup(name):
                    found.add(name)
                case Inject(_, inner):
                    found |= _looked_up((inner,))
                case Join(part, within):
                    found |= _looked_up((part, within))
                case _:
                    pass
    return found


__all__ = ["in_base_two"]
