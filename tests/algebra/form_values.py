"""The value of a form at a point, in many digits: tests compare it with the value of the node it is of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mpmath

from cleave.algebra import opinion
from cleave.algebra.digits import TooFar, exp, power
from cleave.algebra.forms import (
    Apply,
    Element,
    Entry,
    Factor,
    Log,
    Masked,
    Max,
    Mono,
    Place,
    Poly,
    Power,
    Predicate,
    Prod,
    Size,
    Some,
    Sum,
)  # fmt: skip
from cleave.algebra.normal import normal_forms
from cleave.algebra.opinion import Meaning
from cleave.algebra.parts import owner_of
from cleave.errors import Unsupported
from cleave.ir.dims import Index, Part
from cleave.ir.ops import Access, Node, Reduce
from cleave.ir.program import Program

Scope = Mapping[Index, int]


class Opaque(Exception):
    """The form has a function that stands only for itself."""


class FormValue:
    """Evaluates forms with the input values of a program's meaning."""

    def __init__(self, meaning: Meaning) -> None:
        self.meaning = meaning
        self.largest = mpmath.mpf(0)
        """The largest magnitude seen: what rounding errors are measured by."""

    def poly(self, value: Poly, scope: Scope) -> Any:
        parts = [self.mono(m, scope) * c.numerator / c.denominator for m, c in value.terms.items()]
        self.largest = max([self.largest, *(abs(p) for p in parts if mpmath.isfinite(p))])
        return sum(parts, mpmath.mpf(0))

    def mono(self, mono: Mono, scope: Scope) -> Any:
        # Predicates first: where one is 0 the rest is not looked at.
        total = mpmath.mpf(1)
        for f, e in mono.factors:
            if isinstance(f, Predicate | Some) or (isinstance(f, Element) and f.node.dtype == "bool"):
                truth = self.factor(f, scope)
                if not truth:
                    return mpmath.nan if e < 0 else mpmath.mpf(0)
        for f, e in mono.factors:
            value = self.factor(f, scope)
            if e.denominator == 1:
                if value == 0 and e < 0:
                    return mpmath.nan
                total *= value ** int(e)
            else:
                if not value >= 0 or (value == 0 and e < 0):
                    return mpmath.nan
                total *= power(value, mpmath.mpf(e.numerator) / e.denominator)
        if mono.exponent.terms:
            exponent = self.poly(mono.exponent, scope)
            total *= mpmath.nan if mpmath.isinf(exponent) else exp(exponent)
        return total

    def factor(self, factor: Factor, scope: Scope) -> Any:
        match factor:
            case Element():
                where = [self.place(t, scope) for t in factor.terms]
                if any(w is None for w in where):
                    return mpmath.nan
                return self.meaning.node(factor.node, tuple(w for w in where if w is not None))
            case Size(dim=dim, part=None):
                return mpmath.mpf(self.meaning.point.extent(dim))
            case Size(dim=dim, part=part):
                which = self.place(part, scope)
                assert isinstance(dim, Part) and which is not None
                sizes = self.meaning.point.partition(dim)
                return mpmath.mpf(sizes[which])
            case Place():
                return mpmath.mpf(self.place(factor.term, scope) or 0)
            case Sum():
                runs = self.run(factor.binders, factor.body, scope)
                return sum((self.mono(factor.body, s) for s in runs), mpmath.mpf(0))
            case Prod():
                runs = self.run(factor.binders, factor.body, scope)
                return mpmath.fprod(self.poly(factor.body, s) for s in runs)
            case Max():
                values = [v for e in factor.entries for v in self.entry(e, scope)]
                return mpmath.nan if any(map(mpmath.isnan, values)) else max(values, default=-mpmath.inf)
            case Some():
                return mpmath.mpf(any(True for e in factor.entries for _ in self.entry(e, scope)))
            case Masked():
                return self.poly(factor.value, scope) if self.poly(factor.guard, scope) else -mpmath.inf
            case Power():
                return self.poly(factor.base, scope)
            case Log():
                base = self.poly(factor.base, scope)
                return mpmath.log(base) if base > 0 else mpmath.nan
            case Apply():
                return self.apply(factor, scope)
            case Predicate():
                value = self.poly(factor.value, scope)
                if mpmath.isnan(value):
                    return mpmath.nan
                # Values that are 0 but for rounding are 0.
                value = mpmath.mpf(0) if abs(value) < mpmath.mpf(10) ** -30 else value
                return mpmath.mpf({"=": value == 0, ">": value > 0, ">=": value >= 0}[factor.rel])
            case _:
                raise TypeError(type(factor))

    def apply(self, factor: Apply, scope: Scope) -> Any:
        args = [self.poly(a, scope) for a in factor.args]
        if any(mpmath.isnan(a) for a in args):
            return mpmath.nan
        if factor.fn not in ("tanh", "floor", "sin"):
            raise Opaque(factor.fn)
        return {"tanh": mpmath.tanh, "floor": mpmath.floor, "sin": mpmath.sin}[factor.fn](*args)

    def entry(self, entry: Entry, scope: Scope) -> Iterator[Any]:
        for inner in self.run(entry.binders, entry, scope):
            guard = self.poly(entry.guard, inner)
            if mpmath.isnan(guard):  # a product of it and what is 0 there, multiplied out
                raise Opaque("a guard that reads outside of a tensor")
            if guard:
                yield self.poly(entry.value, inner)

    def run(
        self, binders: Sequence[Index], body: Mono | Poly | Entry, scope: Scope
    ) -> Iterator[dict[Index, int]]:
        extent = self.meaning.point.extent
        for values in itertools.product(*(range(extent(i.dim)) for i in binders)):
            inner = {**scope, **dict(zip(binders, values, strict=True))}
            if all(self.inside(i, body, inner) for i in binders if isinstance(i.dim, Part)):
                yield inner

    def inside(self, index: Index, body: Mono | Poly | Entry, scope: Scope) -> bool:
        if isinstance(body, Entry):
            owner = owner_of(body.guard, index) or owner_of(body.value, index)
        else:
            owner = owner_of(body, index)
        assert owner is not None and isinstance(index.dim, Part)
        which = self.place(owner, scope)
        return which is not None and scope[index] < self.meaning.point.partition(index.dim)[which]

    def place(self, term: Any, scope: Scope) -> int | None:
        return self.meaning.place(term, scope, None)


class Strict(Meaning):
    """Values that are NaN, truths too, wherever something that they are made of is."""

    def _map(self, fn: str, args: tuple[Access, ...], dtype: str, scope: Scope) -> Any:
        read = args[:1] if fn == "select" else args if dtype == "bool" else ()
        if any(mpmath.isnan(self.read(a, scope)) for a in read):
            return mpmath.nan
        return super()._map(fn, args, dtype, scope)

    def _compute(self, node: Node, where: tuple[int, ...], scope: dict[Index, int]) -> Any:
        op = node.op
        if node.dtype == "bool" and isinstance(op, Reduce):
            values = [self.read(op.arg, inner) for inner in self._inside(node, op.bound, scope)]
            if any(map(mpmath.isnan, values)):
                return mpmath.nan
        return super()._compute(node, where, scope)


def wrong_form(program: Program, seed: int, points: int = 2, digits: int = 60) -> str:
    """A node whose form has another value than the node; empty if there is none, or no form."""
    try:
        forms = normal_forms(program)
    except Unsupported:
        return ""
    for point in opinion.points(program, count=points, seed=seed):
        with mpmath.workdps(digits):
            meaning = Strict(program, point)
            for node in program.nodes:
                for where in itertools.product(*(range(point.extent(i.dim)) for i in node.axes)):
                    reader = FormValue(meaning)
                    try:
                        value = meaning.node(node, where)
                        if not mpmath.isfinite(value):
                            continue
                        form = reader.poly(forms[node], dict(zip(node.axes, where, strict=True)))
                    except (Opaque, TooFar):
                        continue
                    error = abs(form - value)
                    rounding = reader.largest * mpmath.mpf(10) ** (-digits // 2)
                    if digits >= 1000:  # less is what rounding left of 0
                        rounding = max(rounding, mpmath.mpf(10) ** -900)
                    if (
                        not mpmath.isnan(form)
                        and error > rounding
                        and error > mpmath.mpf(10) ** -20 * abs(value)
                    ):
                        if digits < 1000:
                            return wrong_form(program, seed, points, 2000)
                        return f"{forms[node]} at {where}, {point.describe()}: {value} but {form}"
    return ""
