"""Symbolic cost: polynomials in the sizes of the dims, with whole non-negative coefficients.

`operations` counts one for each value of a pointwise operation and one for each term and factor of a sum;
`values` counts the elements of inputs, outputs and results of reductions (what is moved if nothing but
pointwise work is fused); `depth` is the longest chain of reductions. Dominance holds for all sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from cleave.ir.dims import Dim, Union
from cleave.ir.ops import Const, Contract, Input, Map, Node, Position, Reduce, Scalar, SizeOf
from cleave.ir.program import Program

Monomial = tuple[str, ...]
"""The names of dims, sorted, with repetition."""


@dataclass(frozen=True, slots=True)
class Count:
    """A polynomial in sizes."""

    terms: tuple[tuple[Monomial, int], ...] = ()

    def __add__(self, other: Count) -> Count:
        total = dict(self.terms)
        for monomial, c in other.terms:
            total[monomial] = total.get(monomial, 0) + c
        return _count(total)

    def __mul__(self, other: Count) -> Count:
        total: dict[Monomial, int] = {}
        for m, c in self.terms:
            for n, d in other.terms:
                key = tuple(sorted((*m, *n)))
                total[key] = total.get(key, 0) + c * d
        return _count(total)

    def at_most(self, other: Count) -> bool:
        """Is this at most the other for all sizes of at least 1 (seen from the coefficients)?"""
        left = dict(other.terms)
        needs: dict[Monomial, int] = {}
        for monomial, c in self.terms:
            same = min(c, left.get(monomial, 0))
            left[monomial] = left.get(monomial, 0) - same
            needs[monomial] = c - same
        for monomial, need in needs.items():
            for bigger in sorted(left):
                if need and divides(monomial, bigger):
                    used = min(need, left[bigger])
                    left[bigger] -= used
                    need -= used
            if need:
                return False
        return True

    @property
    def leading(self) -> frozenset[Monomial]:
        """The monomials that no other one is a multiple of: the class of growth."""
        return frozenset(m for m, _ in self.terms if not any(m != n and divides(m, n) for n, _ in self.terms))

    def __str__(self) -> str:
        parts = [
            "*".join(([str(c)] if c != 1 or not m else []) + list(m))
            for m, c in sorted(self.terms, key=lambda t: (-len(t[0]), t[0]))
        ]
        return " + ".join(parts) or "0"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a program costs, for all sizes."""

    operations: Count
    values: Count
    depth: int

    def at_most(self, other: Cost) -> bool:
        return (
            self.depth <= other.depth
            and self.operations.at_most(other.operations)
            and self.values.at_most(other.values)
        )

    @property
    def texts(self) -> tuple[tuple[str, str], ...]:
        return (
            ("operations", str(self.operations)), ("bytes", str(self.values)), ("depth", str(self.depth)),
        )  # fmt: skip


def cost_of(program: Program) -> Cost:
    """The cost of a program."""
    operations, values = Count(), Count()
    depths: dict[Node, int] = {}
    outputs = {output.node for output in program.outputs}
    for node in program.nodes:
        below = max((depths[a.node] for a in node.reads), default=0)
        depths[node] = below + bool(node.bound)
        if isinstance(node.op, Const | SizeOf | Position | Scalar):
            continue
        elements = _elements(node.dims)
        match node.op:
            case Map(fn, _) if fn not in ("id", "cast"):
                operations = operations + elements
            case Reduce(_, bound, _):
                operations = operations + elements * _elements(i.dim for i in bound)
            case Contract(bound, args):
                each = elements * _elements(i.dim for i in bound)
                for _ in args:
                    operations = operations + each
            case _:
                pass
        if isinstance(node.op, Input | Reduce | Contract) or node in outputs:
            values = values + elements
    return Cost(operations, values, max(depths.values(), default=0))


def products_of(program: Program) -> Count:
    """The operations of sums alone: what the class of a program's cost goes by."""
    total = Count()
    for node in program.nodes:
        if isinstance(node.op, Reduce | Contract):
            total = total + _elements(node.dims) * _elements(i.dim for i in node.bound)
    return total


def size_count(dim: Dim) -> Count:
    """The size of a dim as a polynomial."""
    if isinstance(dim, Union):
        total = Count()
        for part in dim.parts:
            total = total + size_count(part)
        return total
    return Count((((str(dim),), 1),))


def _elements(dims: object) -> Count:
    total = Count((((), 1),))
    for dim in dims:  # pyright: ignore
        total = total * size_count(dim)  # pyright: ignore
    return total


def _count(total: dict[Monomial, int]) -> Count:
    return Count(tuple(sorted((m, c) for m, c in total.items() if c)))


def divides(small: Monomial, big: Monomial) -> bool:
    """Is the second monomial a multiple of the first?"""
    rest = list(big)
    for name in small:
        if name not in rest:
            return False
        rest.remove(name)
    return True
