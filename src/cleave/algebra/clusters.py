"""Sums of products, flat: the forms that programs are read off (design.md, section 3, Search).

A *cluster* is a maximal part of a program made of products, quotients and sums over indices. Flattened it is
`coefficient * sum over bound indices of a product of leaves`; nested sums have opened into one with several
bound indices. Leaves are what the laws of sum and product cannot rearrange, read as the user wrote them.
Bound indices get numbers that occur nowhere else in the cluster, so nothing is captured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from cleave.algebra.frame import at_axes, plain
from cleave.ir.dims import Index, Term, var
from cleave.ir.ops import FLOATS, Access, Const, Contract, Map, Node, Reduce
from cleave.ir.program import Program

PRODUCTS = ("mul", "div", "neg", "reciprocal")
SUMS = ("add", "sub")


@dataclass(frozen=True, slots=True)
class Product:
    """`coefficient * sum over bound of the product of factors ** powers`, in order of occurrence."""

    coefficient: Fraction
    bound: tuple[Index, ...]
    factors: tuple[tuple[Access, Fraction], ...]

    @property
    def free(self) -> tuple[tuple[Access, Fraction], ...]:
        """The factors without a bound index."""
        return tuple((a, p) for a, p in self.factors if not a.indices & set(self.bound))

    @property
    def inside(self) -> tuple[tuple[Access, Fraction], ...]:
        """The factors with a bound index."""
        return tuple((a, p) for a, p in self.factors if a.indices & set(self.bound))


def is_sum(node: Node) -> bool:
    """A real sum over indices, plain or of a product."""
    real = node.dtype in FLOATS
    return real and (isinstance(node.op, Contract) or (isinstance(node.op, Reduce) and node.op.kind == "sum"))


def is_product(node: Node) -> bool:
    """A pointwise product, quotient or sign change of reals."""
    return node.dtype in FLOATS and isinstance(node.op, Map) and node.op.fn in PRODUCTS


def is_linear(node: Node) -> bool:
    return is_sum(node) or is_product(node)


def uses_of(program: Program) -> dict[Node, int]:
    """How many accesses and outputs read each node."""
    uses: dict[Node, int] = {}
    for node in program.nodes:
        for access in node.reads:
            uses[access.node] = uses.get(access.node, 0) + 1
    for output in program.outputs:
        uses[output.node] = uses.get(output.node, 0) + 1
    return uses


class Flattener:
    """Flattens clusters of one program. Inner sums open only where nothing else reads them; pointwise
    products always do."""

    def __init__(self, program: Program) -> None:
        self.uses = uses_of(program)
        self._next = 1000
        self._forms: dict[Node, Product] = {}

    def form(self, node: Node) -> Product:
        """The flat form of a linear node over its own axes."""
        if node not in self._forms:
            self._forms[node] = self._node(node.read(), True, True)
        return self._forms[node]

    def of(self, access: Access, opens: bool = True) -> Product:
        """The flat form of a value; with `opens`, sums that nothing else reads open too."""
        access = plain(access)
        op = access.node.op
        if isinstance(op, Const):
            value = op.value
            if not isinstance(value, bool) and math.isfinite(value) and value != 0:
                return Product(Fraction(value), (), ())
        if is_linear(access.node):
            return self._node(access, False, opens)
        return leaf(access)

    def _node(self, access: Access, root: bool, opens: bool) -> Product:
        node = access.node
        opens = root or (opens and self.uses.get(node, 0) <= 1)
        if is_sum(node) and not opens:
            return leaf(access)
        where = at_axes(access)
        bound: list[Index] = []
        for index in node.bound:
            self._next += 1
            bound.append(Index(index.dim, self._next))
            where[index] = var(bound[-1])
        args = [self.of(a.at(where), opens) for a in node.args]
        total = Product(Fraction(1), tuple(bound), ())
        op = node.op
        for number, arg in enumerate(args):
            inverse = isinstance(op, Map) and (op.fn == "reciprocal" or (op.fn == "div" and number == 1))
            if inverse and (arg.bound or any(p != -1 and p != 1 for _, p in arg.factors)):
                arg = leaf(plain(node.args[number].at(where)))
            total = times(total, invert(arg) if inverse else arg)
        if isinstance(op, Map) and op.fn == "neg":
            total = Product(-total.coefficient, total.bound, total.factors)
        return total


def leaf(access: Access) -> Product:
    """The form of a value that does not open."""
    return Product(Fraction(1), (), ((access, Fraction(1)),))


def invert(form: Product) -> Product:
    """The reciprocal of a product without bound indices."""
    return Product(1 / form.coefficient, (), tuple((a, -p) for a, p in form.factors))


def times(a: Product, b: Product) -> Product:
    """The product; equal factors collect their powers."""
    powers: dict[Access, Fraction] = {}
    for access, power in (*a.factors, *b.factors):
        powers[access] = powers.get(access, Fraction(0)) + power
    kept = tuple((f, p) for f, p in powers.items() if p)
    return Product(a.coefficient * b.coefficient, (*a.bound, *b.bound), kept)


def rename(form: Product, where: dict[Index, Term]) -> Product:
    """The form with some indices replaced (bound ones too, by variables)."""
    bound = tuple(where[i].variable or i if i in where else i for i in form.bound)
    return Product(form.coefficient, bound, tuple((a.at(where), p) for a, p in form.factors))


def indices(factors: Iterable[tuple[Access, Fraction]]) -> frozenset[Index]:
    """All indices that some factors use."""
    return frozenset(i for a, _ in factors for i in a.indices)
