"""Monomials around running values, written as program values.

A `View` says how the parts of a monomial are read: in the candidate itself, in one piece at a moment, or with
free running values in a proof. Everything is in the indices of one site.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cleave.algebra.bodies import Elem, Exp, Factors, Gate, Indicator, Poly, Run, Shift, Size
from cleave.algebra.build import Builder, literal
from cleave.algebra.frame import Site
from cleave.ir.dims import Index, Part, Parts
from cleave.ir.ops import Access, const, map_node, size


class View:
    """How elements, running values and shifts of a site's monomials are read."""

    def __init__(self, site: Site, dtype: str) -> None:
        self.site = site
        self.dtype = dtype
        self.loop = site.loop
        self.bound: tuple[Index, ...] = site.node.bound

    def elem(self, access: Access) -> Access:
        raise NotImplementedError

    def run(self, access: Access) -> Access:
        raise NotImplementedError

    def shift(self, run: Poly) -> Access:
        """A shift made of running values, all coefficients of one sign: the positive version."""
        raise NotImplementedError

    def ones(self) -> Access:
        """1 for each loop index."""
        return map_node("id", (self.loop,), (const(1.0, self.dtype),), self.dtype)(self.loop)


@dataclass(frozen=True, slots=True)
class Emission:
    """Writes monomials and polynomials with a builder."""

    build: Builder

    def sum(self, view: View, inside: Factors) -> Access:
        """The sum over the site's bound indices of a monomial."""
        factors = self.factors(view, inside)
        used = {i for f in factors for i in f.indices}
        if all(isinstance(g, Elem) and p == 1 for g, p in inside) and set(view.bound) <= used:
            return self.build.contract(view.bound, factors)
        # What runs inside a part comes first: how often differs from part to part.
        for index in sorted(view.bound, key=lambda i: not isinstance(i.dim, Part)):
            if index not in used:
                one = view.ones() if index == view.loop else self.times(index, view)
                factors = [*factors, one]
                used |= one.indices
        return self.build.product([i for i in view.bound if i in used or i == view.loop], factors)

    def times(self, index: Index, view: View) -> Access:
        """1 for each value of an index inside a part, else how many values it has."""
        each = each_of(index, (*view.site.node.axes, *view.site.node.bound), self.build.dtype)
        if each is None:
            return size(index.dim, self.build.dtype)
        return view.elem(each) if view.site.loop in each.indices else each

    def factors(self, view: View, inside: Factors) -> list[Access]:
        """The factors of a monomial as values; an indicator becomes a select, never a product."""
        build = self.build
        made: list[Access] = []
        for gen, power in inside:
            match gen:
                case Elem(access):
                    each = view.elem(access)
                    made += [each] * power if power > 0 else [build.power(each, power)]
                case Shift():
                    made.append(build.power(self.shifted(view, gen), power))
                case Exp(arg):
                    made.append(build.map("exp", self.poly(view, arg)))
                case Run(access):
                    made.append(build.power(view.run(access), power))
                case Size(dim):
                    made.append(build.power(size(dim, build.dtype), power))
                case Indicator() | Gate():
                    pass
        for gen, _ in inside:
            if isinstance(gen, Indicator):
                mask(build, made, view.elem(gen.access), gen.positive)
        return made

    def poly(self, view: View, total: Poly) -> Access:
        """A polynomial as a value."""
        build = self.build
        result = build.number(0.0)
        for coefficient, factors in total:
            value = build.number(1.0)
            for factor in self.factors(view, factors):
                value = build.mul(value, factor)
            if coefficient < 0 and literal(result) != 0:
                result = build.sub(result, build.mul(value, build.number(-coefficient)))
            else:
                result = build.add(result, build.mul(value, build.number(coefficient)))
        return result

    def shifted(self, view: View, gen: Shift) -> Access:
        """`base + run`."""
        base = self.poly(view, gen.base)
        sign, run = signed(gen.run)
        value = view.shift(run)
        return self.build.sub(base, value) if sign < 0 else self.build.add(base, value)


def each_of(index: Index, known: Iterable[Index], dtype: str) -> Access | None:
    """1 for each value of an index that runs inside a part, whose number is one of the known indices."""
    if not isinstance(index.dim, Part):
        return None
    parts = Parts(index.dim.of, index.dim.level)
    owners = list(dict.fromkeys(i for i in known if i.dim == parts))
    if len(owners) != 1:
        return None
    axes = (owners[0], index)
    return map_node("id", axes, (const(1.0, dtype),), dtype)(*axes)


def signed(run: Poly) -> tuple[int, Poly]:
    """A shift as a sign and a polynomial, so that `x - u` is written as that."""
    sign = -1 if all(c < 0 for c, _ in run) else 1
    return sign, tuple((c * sign, f) for c, f in run)


def mask(build: Builder, made: list[Access], condition: Access, positive: bool) -> None:
    """Put a condition on the first factor that has all its indices."""
    at = next((n for n, f in enumerate(made) if condition.indices <= f.indices), None)
    value = build.number(1.0) if at is None else made[at]
    zero = build.number(0.0)
    masked = build.select(condition, value, zero) if positive else build.select(condition, zero, value)
    if at is None:
        made.append(masked)
    else:
        made[at] = masked
