"""Symbolic cost: polynomials in the sizes of the dims, with whole coefficients.

`operations` counts one for each value of a pointwise operation and one for each term and factor of a sum;
`elements` those of inputs, outputs and results of reductions (what is moved if nothing but pointwise work is
fused), `intermediates` those of results of reductions that are no outputs; `depth` is the longest chain of
reductions. Bytes need the dtypes' widths, which algebra does not know: `bytes_of` is given them. One cost is
at most another if it is for all sizes of at least 1, and `reasons` says why (design.md, section 3).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cleave.ir.dims import Dim, Union
from cleave.ir.ops import Cat, Const, Contract, Input, Map, Node, Position, Reduce, Scalar, Scan, SizeOf
from cleave.ir.program import Program

Monomial = tuple[str, ...]
"""The names of dims, sorted, with repetition."""


@dataclass(frozen=True, slots=True)
class Count:
    """A polynomial in sizes; negative coefficients occur in differences only."""

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

    def __sub__(self, other: Count) -> Count:
        return self + other * Count((((), -1),))

    def at_most(self, other: Count) -> bool:
        """Is this at most the other for all sizes of at least 1?"""
        return self.gap(other) is not None

    def gap(self, other: Count) -> Count | None:
        """What the other has more: their difference, if it has no negative coefficient, or else written in
        the sizes less one, if it has none then (`N*K - N` is `(N - 1)*(K - 1) + (K - 1)`); None if neither:
        there may be sizes for which this is more."""
        return _gap(self, other)

    @property
    def leading(self) -> frozenset[Monomial]:
        """The monomials that no other one is a multiple of: the class of growth."""
        return frozenset(m for m, _ in self.terms if not any(m != n and divides(m, n) for n, _ in self.terms))

    def __str__(self) -> str:
        ordered = sorted(self.terms, key=lambda t: (-len(t[0]), t[0]))
        text = ""
        for monomial, c in ordered:
            sign = " - " if c < 0 else " + "
            text += (sign if text else sign.strip(" +")) + "*".join(
                ([str(abs(c))] if abs(c) != 1 or not monomial else []) + list(monomial)
            )
        return text or "0"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a program costs, for all sizes."""

    operations: Count
    elements: Count
    intermediates: Count
    depth: int

    @property
    def counts(self) -> tuple[tuple[str, Count], ...]:
        return (
            ("operations", self.operations),
            ("elements", self.elements),
            ("intermediates", self.intermediates),
        )

    def at_most(self, other: Cost) -> bool:
        """Is no part of this more than the other's, for any sizes?"""
        pairs = zip(self.counts, other.counts, strict=True)
        return self.depth <= other.depth and all(mine.at_most(theirs) for (_, mine), (_, theirs) in pairs)

    def reasons(self, other: Cost) -> tuple[str, ...]:
        """Why this is at most the other: a line for each part that differs, and one for those that do not."""
        lines: list[str] = []
        equal: list[str] = []
        for (name, mine), (_, theirs) in zip(self.counts, other.counts, strict=True):
            gap = mine.gap(theirs)
            assert gap is not None, "asked only where `at_most` holds"
            if mine == theirs:
                equal.append(name)
            else:
                lines.append(_reason(name, mine, theirs, gap))
        if self.depth < other.depth:
            lines.append(f"depth: {self.depth} < {other.depth}")
        else:
            equal.append("depth")
        return (*lines, *([f"the same {', '.join(equal)}"] if equal else []))

    @property
    def texts(self) -> tuple[tuple[str, str], ...]:
        return (*((name, str(count)) for name, count in self.counts), ("depth", str(self.depth)))


def _reason(name: str, mine: Count, theirs: Count, gap: Count) -> str:
    shifted = any(part.endswith(LESS_ONE) for monomial, _ in gap.terms for part in monomial)
    why = " and sizes are at least 1" if shifted else ""
    return f"{name}: {mine} <= {theirs}, as the difference is {gap}{why}"


LESS_ONE = " - 1)"
MOST_FACTORS = 12
"""A monomial of more factors is not written in the sizes less one: that takes a term for each subset."""


@functools.lru_cache(maxsize=4096)
def _gap(one: Count, two: Count) -> Count | None:
    difference = two - one
    if all(c > 0 for _, c in difference.terms):
        return difference
    if any(len(m) > MOST_FACTORS for m, _ in difference.terms):
        return None
    shifted = Count()
    for monomial, c in difference.terms:
        product = Count((((), c),))
        for name in monomial:
            product = product * Count((((), 1), ((f"({name}{LESS_ONE}",), 1)))
        shifted = shifted + product
    return shifted if all(c > 0 for _, c in shifted.terms) else None


def cost_of(program: Program) -> Cost:
    """The cost of a program."""
    operations, kept = Count(), Count()
    depths: dict[Node, int] = {}
    loops: set[tuple[object, ...]] = set()
    """Scans that are counted; each of their results is a node."""
    outputs = {output.node for output in program.outputs}
    for node in program.nodes:
        below = max((depths[a.node] for a in node.reads), default=0)
        depths[node] = below + (bool(node.bound) or isinstance(node.op, Scan))
        if isinstance(node.op, Const | SizeOf | Position | Scalar):
            continue
        elements = _elements(node.dims)
        match node.op:
            case Map(fn, _) if fn not in ("id", "cast"):
                operations = operations + elements
            case Cat():
                # Each element is chosen among the pieces.
                operations = operations + elements
            case Reduce(_, bound, _):
                operations = operations + elements * _elements(i.dim for i in bound)
            case Contract(bound, args):
                each = elements * _elements(i.dim for i in bound)
                for _ in args:
                    operations = operations + each
            case Scan(over, body, _, args, _) if (over, body, args) not in loops:
                loops.add((over, body, args))
                operations = operations + cost_of(body).operations * size_count(over)
            case _:
                pass
        if node.bound and node not in outputs:
            kept = kept + elements
    total = Count()
    for count in moved(program).values():
        total = total + count
    return Cost(operations, total, kept, max(depths.values(), default=0))


def moved(program: Program) -> dict[str, Count]:
    """The elements of inputs, outputs and results of reductions, by dtype."""
    outputs = {output.node for output in program.outputs}
    found: dict[str, Count] = {}
    for node in program.nodes:
        if isinstance(node.op, Input) or node.bound or node in outputs:
            found[node.dtype] = found.get(node.dtype, Count()) + _elements(node.dims)
    return found


def bytes_of(program: Program, width: Callable[[str], int]) -> Count:
    """`elements` in bytes; `width` gives the bytes of an element by dtype."""
    total = Count()
    for dtype, count in moved(program).items():
        total = total + count * Count((((), width(dtype)),))
    return total


def products_of(program: Program) -> Count:
    """The operations of sums alone: what the class of a program's cost goes by. Dims of size 1 are no
    factors."""
    single = {atom.name for atom, size in program.sizes if size == 1}
    total = Count()
    for node in program.nodes:
        if isinstance(node.op, Reduce | Contract):
            total = total + _elements(node.dims) * _elements(i.dim for i in node.bound)
    return _count_without(total, single) if single else total


def _count_without(count: Count, names: set[str]) -> Count:
    """The polynomial with some sizes set to 1."""
    total: dict[Monomial, int] = {}
    for monomial, c in count.terms:
        key = tuple(name for name in monomial if name not in names)
        total[key] = total.get(key, 0) + c
    return _count(total)


def growth_of(program: Program, user: Program) -> tuple[str, ...]:
    """How the operations of the sums of a program grow, and of the user's: what tells their classes apart."""
    pairs = (("its products and sums", program), ("the user's", user))
    return tuple(f"{who} grow as {_sorted_text(products_of(p).leading)}" for who, p in pairs)


def _sorted_text(leading: frozenset[Monomial]) -> str:
    return ", ".join(sorted("*".join(m) or "1" for m in leading))


def size_count(dim: Dim) -> Count:
    """The size of a dim as a polynomial."""
    if isinstance(dim, Union):
        total = Count()
        for part in dim.parts:
            total = total + size_count(part)
        return total
    return Count((((str(dim),), 1),))


def _elements(dims: Iterable[Dim]) -> Count:
    total = Count((((), 1),))
    for dim in dims:
        total = total * size_count(dim)
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
