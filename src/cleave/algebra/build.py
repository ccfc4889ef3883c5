"""Build nodes over freely numbered indices: each node's axes are the indices that its arguments use.

A `Builder` works in one frame of indices, gives every new real value the dtype it is told, and drops
operations that change nothing (adding 0, multiplying by 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from cleave.ir.dims import Index
from cleave.ir.ops import Access, Const, Number, const, contract_node, map_node, reduce_node


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds accesses whose real values have dtype `dtype`."""

    dtype: str

    def number(self, value: Fraction | float) -> Access:
        """A literal: an exact float where there is one, else the fraction."""
        if isinstance(value, Fraction) and Fraction(float(value)) != value:
            return const(value, self.dtype)
        return const(float(value), self.dtype)

    def map(self, fn: str, *args: Access, dtype: str = "") -> Access:
        """A pointwise operation over the indices that the arguments use."""
        axes = axes_of(args)
        return map_node(fn, axes, args, dtype or self.dtype)(*axes)

    def add(self, a: Access, b: Access) -> Access:
        if literal(a) == 0:
            return b
        return a if literal(b) == 0 else self.map("add", a, b)

    def sub(self, a: Access, b: Access) -> Access:
        if literal(b) == 0:
            return a
        return self.map("neg", b) if literal(a) == 0 else self.map("sub", a, b)

    def mul(self, a: Access, b: Access) -> Access:
        if literal(a) == 1:
            return b
        if literal(b) == 1:
            return a
        if literal(a) == -1:
            return self.map("neg", b)
        return self.map("neg", a) if literal(b) == -1 else self.map("mul", a, b)

    def div(self, a: Access, b: Access) -> Access:
        return a if literal(b) == 1 else self.map("div", a, b)

    def select(self, condition: Access, yes: Access, no: Access) -> Access:
        return self.map("select", condition, yes, no)

    def power(self, a: Access, exponent: Fraction | int) -> Access:
        """`a` to a rational power, by products, roots and quotients where these say it."""
        exponent = Fraction(exponent)
        if exponent < 0:
            if exponent == Fraction(-1, 2):
                return self.map("rsqrt", a)
            return self.map("div", self.number(1.0), self.power(a, -exponent))
        if exponent == Fraction(1, 2):
            return self.map("sqrt", a)
        if exponent.denominator == 1 and exponent <= 8:
            result = a
            for _ in range(int(exponent) - 1):
                result = self.map("mul", result, a)
            return result if exponent else self.number(1.0)
        if exponent.denominator == 2 and exponent <= 8:
            whole = self.power(a, exponent - Fraction(1, 2))
            return self.map("mul", whole, self.map("sqrt", a))
        return self.map("pow", a, self.number(exponent))

    def reduce(self, kind: str, bound: Sequence[Index], arg: Access, dtype: str = "") -> Access:
        """A reduction over those of `bound`; the other indices of the argument stay."""
        axes = tuple(i for i in axes_of([arg]) if i not in bound)
        return reduce_node(kind, axes, bound, arg, dtype or self.dtype)(*axes)

    def contract(self, bound: Sequence[Index], args: Sequence[Access]) -> Access:
        """A sum of a product; of one operand, a plain sum."""
        if len(args) == 1:
            return self.reduce("sum", bound, args[0])
        axes = tuple(i for i in axes_of(args) if i not in bound)
        return contract_node(axes, bound, args, self.dtype)(*axes)

    def product(self, bound: Sequence[Index], factors: Sequence[Access]) -> Access:
        """The sum over `bound` of the product of `factors`, as a contraction of two operands if it can be: a
        factor whose indices another one has joins that one pointwise, until two are left. Operands with the
        same indices are multiplied pointwise."""
        groups: list[tuple[frozenset[Index], Access]] = [(f.indices, f) for f in factors]
        while True:
            pair = _joining(groups)
            if pair is None:
                return self.contract(bound, [value for _, value in groups])
            into, other = pair
            merged = self.mul(groups[into][1], groups[other][1])
            groups[into] = (groups[into][0], merged)
            del groups[other]


def _joining(groups: list[tuple[frozenset[Index], Access]]) -> tuple[int, int] | None:
    """Which group another one joins: the smallest one first, into the first that has its indices."""
    order = sorted(range(len(groups)), key=lambda n: (len(groups[n][0]), -n))
    for other in order:
        for into, (own, _) in enumerate(groups):
            if into == other or not groups[other][0] <= own:
                continue
            if len(groups) > 2 or groups[other][0] == own:
                return (into, other) if groups[other][0] != own else (min(into, other), max(into, other))
    return None


def literal(access: Access) -> Number | None:
    """The value, if an access reads a literal."""
    op = access.node.op
    return op.value if isinstance(op, Const) else None


def axes_of(args: Sequence[Access]) -> tuple[Index, ...]:
    """The indices that some accesses use, by number."""
    return tuple(sorted({i for a in args for i in a.indices}, key=lambda i: (i.number, str(i.dim))))
