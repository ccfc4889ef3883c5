"""The second opinion: what a program gives at a random point, in many digits (design.md, section 3).

Knows the IR and nothing of the normal form. A `Point` binds sizes (1 to 5, often coprime), partitions (with
empty parts) and input values of all magnitudes and signs; values are computed one element at a time with
mpmath and remembered. At some points most values are one of a few numbers, exact zeros among them: what is
compared, or the largest, is often level. A read outside a tensor is NaN (a program may only do that where a
`select` drops it). `compare` looks for an element where both programs are defined and differ.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import cast

from cleave.algebra.digits import COMPARE, MAPS, OF_FLOATS, REDUCE, TooFar, Value, convert, mpmath, number
from cleave.errors import Bug, Unsupported
from cleave.ir.dims import (
    Atom,
    Dim,
    Extent,
    Gather,
    Index,
    Inject,
    Join,
    Part,
    Parts,
    Term,
    Union,
    indices_of,
)  # fmt: skip
from cleave.ir.ops import (
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
    Scan,
    SizeOf,
)  # fmt: skip
from cleave.ir.program import Output, Program

DIGITS = 50
"""How many digits values are computed with; differences are looked at again with 4 and 40 times as many."""

FIXED = 1000
"""Sizes that programs fix are kept if their product is at most this; else they are cut to 5 or less."""

VOLUME = 120
"""The product of all sizes is at most this, so that a point takes milliseconds."""

FEW = (0, 0, 1, 1, -1, 2, -2, Fraction(1, 2))
"""What most values are at a point with ties, times a power of 10."""

Where = tuple[int, ...]


@dataclass(frozen=True)
class Point:
    """Sizes, partitions and a seed: input values follow from the seed, the name and the position."""

    sizes: Mapping[Dim, int]
    partitions: Mapping[Dim, tuple[int, ...]] = field(default_factory=dict[Dim, tuple[int, ...]])
    seed: int = 0
    exact: bool = True
    """Are the sizes that the programs fix kept? Else a difference refutes nothing."""
    magnitude: int = 0
    """Values are about `10 ** magnitude`; 0 mixes magnitudes from 1/8 to 8."""
    ties: bool = False
    """Are most values one of `FEW` numbers, so that some are 0, and many equal?"""

    def extent(self, dim: Dim) -> int:
        """The size of a dim; for a `Part`, of the largest part."""
        match dim:
            case Union(parts):
                return sum(map(self.extent, parts))
            case Parts():
                return len(self.partition(dim))
            case Part():
                return max(self.partition(dim), default=0)
            case Atom():
                return self.sizes[dim]

    def partition(self, dim: Parts | Part) -> tuple[int, ...]:
        """The sizes of the parts of the partition that a dim belongs to."""
        return self.partitions.get(Parts(dim.of, dim.level)) or self.partitions[dim.of]

    def describe(self) -> str:
        """The sizes and partitions, for a counterexample."""
        sizes = [f"|{d}| = {n}" for d, n in self.sizes.items()]
        parts = [f"parts of {d}: {list(p)}" for d, p in self.partitions.items()]
        return ", ".join(sizes + parts) or "no sizes"


@dataclass(frozen=True)
class Difference:
    """An element of an output where two programs differ (or only the first is defined)."""

    point: Point
    output: str
    where: Where
    a: Value
    b: Value
    inputs: tuple[str, ...]

    @property
    def defined(self) -> bool:
        """Are both values finite?"""
        return bool(mpmath.isfinite(self.a) and mpmath.isfinite(self.b))

    def __str__(self) -> str:
        a, b = told_apart(self.a, self.b)
        values = f"{a} against {b}"
        inputs = "; ".join(self.inputs)
        return f"{self.point.describe()}: {self.output}{list(self.where)} is {values}, with {inputs}"


def told_apart(a: Value, b: Value) -> tuple[str, str]:
    """Two numbers in as many digits, 12 at least, as show that they differ."""
    for digits in (12, 24, 48, 96):
        texts = mpmath.nstr(a, digits), mpmath.nstr(b, digits)
        if texts[0] != texts[1]:
            return texts
    return texts


def points(*programs: Program, count: int = 8, seed: int = 0, first: int = 0) -> Iterator[Point]:
    """Random points for programs over the same dims, from number `first` on: number 0 is small, odd ones have
    empty parts, and of four in turn each has values of another magnitude."""
    atoms: dict[Atom, None] = {}
    splits: dict[Parts, None] = {}
    for program in programs:
        atoms.update(dict.fromkeys(program.dims))
        for node in program.nodes:
            sized = (node.op.dim,) if isinstance(node.op, SizeOf) else ()
            for dim in (*(i.dim for i in (*node.axes, *node.bound)), *sized):
                if isinstance(dim, Parts | Part):
                    splits[Parts(dim.of, dim.level)] = None
    for turn in range(first, first + count):
        rng = random.Random(f"{seed} {turn}")
        free: dict[Atom, int] = {a: rng.choice((2, 3) if turn == 0 else (1, 2, 2, 3, 3, 4, 5)) for a in atoms}
        fixed = {a: v for program in programs for a, v in program.sizes if isinstance(v, int)}
        exact = math.prod(fixed.values()) <= FIXED
        free |= fixed if exact else {a: min(v, 5) for a, v in fixed.items()}
        while math.prod(free.values()) > max(VOLUME, 4 * math.prod(fixed.values()) if exact else 0):
            largest = max((a for a in free if not (exact and a in fixed)), key=lambda a: free[a])
            if free[largest] == 1:
                break
            free[largest] -= 1
        sizes: dict[Dim, int] = {**free}
        for program in programs:
            for atom, value in program.sizes:
                if isinstance(value, Extent):
                    sizes[atom] = max(0, value.at(sizes))
        blank = Point(sizes)
        parts = {p: _cut(blank.extent(p.of), rng, empty=turn % 2 == 1) for p in splits}
        cut = cast(Mapping[Dim, tuple[int, ...]], parts)
        values = rng.randrange(1 << 30)
        yield Point(sizes, cut, values, exact, turn % 4, rng.random() < 0.35)


def _cut(size: int, rng: random.Random, *, empty: bool) -> tuple[int, ...]:
    """A random partition, with empty parts or without."""
    if empty:
        cuts = sorted(rng.randint(0, size) for _ in range(rng.randint(0, 3)))
    else:
        cuts = sorted(rng.sample(range(1, size), rng.randint(0, size - 1))) if size > 1 else []
    return tuple(b - a for a, b in itertools.pairwise([0, *cuts, size]))


@dataclass(slots=True)
class Look:
    """What was seen at a point: a difference, or none; how many elements were looked at, and how many left
    out because a value is made of numbers that are out of reach."""

    difference: Difference | None = None
    seen: int = 0
    skipped: int = 0


def compare(a: Program, b: Program, point: Point) -> Difference | None:
    """The first element where the outputs differ, matched by position; undefined elements of `a` do not
    count. A value of `b` that is not finite where `a`'s is counts as a difference that is not `defined`."""
    return look(a, b, point).difference


def look(a: Program, b: Program, point: Point) -> Look:
    """`compare`, and how many elements were looked at."""
    with mpmath.workdps(DIGITS):
        found = _compare(a, b, point, mpmath.mpf(10) ** -25)
    if found.difference is None:
        return found
    with mpmath.workdps(4 * DIGITS):
        found = _compare(a, b, point, mpmath.mpf(10) ** -40, mpmath.mpf(10) ** (-3 * DIGITS))
    if found.difference is None:
        return found
    with mpmath.workdps(
        40 * DIGITS
    ):  # 1 + exp(-1000) is not 1; a sum that rounds to 0 may be no number later
        return _compare(a, b, point, mpmath.mpf(10) ** -40, mpmath.mpf(10) ** (-36 * DIGITS))


def _compare(a: Program, b: Program, point: Point, tolerance: Value, cancels: Value = 0) -> Look:
    one, two = Meaning(a, point, cancels), Meaning(b, point, cancels)
    one.limits = two.limits = {**two.limits, **one.limits}
    found = Look()
    for left, right in zip(a.outputs, b.outputs, strict=True):
        for where in _places(point, left):
            try:
                x = one.at(left, where)
                y = two.at(right, where) if mpmath.isfinite(x) else x
            except TooFar:
                found.skipped += 1
                continue
            found.seen += 1
            if not mpmath.isfinite(x):
                continue
            defined = bool(mpmath.isfinite(y))
            if defined and not (abs(x - y) > tolerance * (abs(x) + abs(y)) and abs(x - y) > tolerance**2):
                continue
            if defined or found.difference is None:
                found.difference = Difference(point, left.name, where, x, y, one.describe())
            if defined:
                return found
    return found


def _places(point: Point, output: Output) -> Iterator[Where]:
    """All positions of an output, by its axes in the caller's order."""
    order = [n for group in output.layout for n in group]
    return itertools.product(*(range(point.extent(output.node.axes[n].dim)) for n in order))


class Meaning:
    """The values of a program's nodes at a point, computed when asked for. A sum that is smaller than its
    terms by the factor `cancels` is 0."""

    def __init__(self, program: Program, point: Point, cancels: Value = 0) -> None:
        self.point = point
        self.cancels = cancels
        self.known: dict[tuple[Node, Where], Value] = {}
        self.limits = _limits(program, point)
        self.used: dict[tuple[str, Where], Value] = {}

    def at(self, output: Output, where: Where) -> Value:
        """An element of an output, by its axes in the caller's order."""
        order = [n for group in output.layout for n in group]
        place = dict(zip(order, where, strict=True))
        return self.node(output.node, tuple(place[n] for n in range(len(order))))

    def describe(self) -> tuple[str, ...]:
        """Some of the input values that were used."""
        shown = [f"{name}{list(w) if w else ''} = {mpmath.nstr(v, 6)}" for (name, w), v in self.used.items()]
        return (*shown[:12], *(["..."] if len(shown) > 12 else []))

    def node(self, node: Node, where: Where) -> Value:
        """An element of a node; NaN outside of it."""
        found = self.known.get((node, where))
        if found is None:
            if any(not 0 <= w < self.point.extent(i.dim) for w, i in zip(where, node.axes, strict=True)):
                return mpmath.nan
            scope = dict(zip(node.axes, where, strict=True))
            found = self.known[node, where] = self._compute(node, where, scope)
        return found

    def read(self, access: Access, scope: Mapping[Index, int]) -> Value:
        where: list[int] = []
        for term, axis in zip(access.terms, access.node.axes, strict=True):
            place = self.place(term, scope, axis.dim)
            if place is None:
                return mpmath.nan
            where.append(place)
        return self.node(access.node, tuple(where))

    def place(self, term: Term, scope: Mapping[Index, int], dim: Dim | None) -> int | None:
        """The value of a term; None if a gathered value is not defined."""
        total = term.offset.const + sum(c * self.point.extent(d) for d, c in term.offset.terms)
        for leaf, c in term.leaves:
            match leaf:
                case Index():
                    value: int | None = scope[leaf]
                case Gather(access):
                    gathered = self.read(access, scope)
                    value = int(gathered) if mpmath.isfinite(gathered) else None
                case Inject(part, inner):
                    assert isinstance(dim, Union)
                    value = self.place(inner, scope, dim.parts[part])
                    if value is not None:
                        value += sum(map(self.point.extent, dim.parts[:part]))
                case Join(part, within):
                    value = self._joined(part, within, scope)
                case _:
                    raise Bug("a tile is looked up in a program")
            if value is None:
                return None
            total += c * value
        return total

    def _joined(self, part: Term, within: Term, scope: Mapping[Index, int]) -> int | None:
        which, inside = self.place(part, scope, None), self.place(within, scope, None)
        dims = [i.dim for t in (part, within) for i in (t.variable,) if i is not None]
        over = next(d for d in dims if isinstance(d, Parts | Part))
        sizes = self.point.partition(over)
        if which is None or inside is None or not 0 <= which < len(sizes):
            return None
        return sum(sizes[:which]) + inside if 0 <= inside < sizes[which] else None

    def _compute(self, node: Node, where: Where, scope: dict[Index, int]) -> Value:
        match node.op:
            case Input(name) | Scalar(name):
                value = self._value(name, node.dtype, where)
                self.used[name, where] = value
                return value
            case Const(value):
                return number(value)
            case SizeOf(dim):
                return mpmath.mpf(self.point.extent(dim))
            case Position(term):
                place = self.place(term, scope, None)
                return mpmath.nan if place is None else mpmath.mpf(place)
            case Map(fn, args):
                return self._map(fn, args, node.dtype, scope)
            case Reduce(kind, bound, arg):
                values = [
                    convert(self.read(arg, inner), arg.node.dtype, node.dtype)
                    for inner in self._inside(node, bound, scope)
                ]
                return self._sum(values) if kind == "sum" else REDUCE[kind](values)
            case Contract(bound, args):
                products: list[Value] = []
                for inner in self._inside(node, bound, scope):
                    product = mpmath.mpf(1)
                    for arg in args:
                        product *= self.read(arg, inner)
                    products.append(product)
                return self._sum(products)
            case Cat(axis, pieces):
                return self._cat(node, axis, pieces, where)
            case Scan():
                raise Unsupported("a loop with carried state is not evaluated with many digits")

    def _sum(self, values: Sequence[Value]) -> Value:
        total = REDUCE["sum"](values)
        if self.cancels and mpmath.isfinite(total):
            most: Value = max((abs(v) for v in values), default=mpmath.mpf(0))
            return mpmath.mpf(0) if abs(total) < most * self.cancels else total
        return total

    def _cat(self, node: Node, axis: int, pieces: Sequence[Access], where: Where) -> Value:
        dim, left = node.axes[axis].dim, where[axis]
        assert isinstance(dim, Union)
        for part, piece in zip(dim.parts, pieces, strict=True):
            size = self.point.extent(part)
            if left < size:
                scope = dict(zip(node.axes, where, strict=True))
                return self.read(piece, {**scope, Index(part, axis): left})
            left -= size
        return mpmath.nan

    def _map(self, fn: str, args: tuple[Access, ...], dtype: str, scope: Mapping[Index, int]) -> Value:
        if fn == "select":
            chosen = args[1] if self.read(args[0], scope) != 0 else args[2]
            return convert(self.read(chosen, scope), chosen.node.dtype, dtype)
        values = [self.read(a, scope) for a in args]
        if fn == "cast":
            return convert(values[0], args[0].node.dtype, dtype)
        if fn in COMPARE:
            return mpmath.mpf(bool(COMPARE[fn](*values)))
        if fn not in OF_FLOATS:
            values = [convert(v, a.node.dtype, dtype) for v, a in zip(values, args, strict=True)]
        if any(mpmath.isnan(v) for v in values):
            return mpmath.mpf(1) if fn == "isnan" else mpmath.nan
        if fn in ("add", "sub") and self.cancels:
            return self._sum([values[0], values[1] if fn == "add" else -values[1]])
        try:
            result = MAPS[fn](*values)
        except (ZeroDivisionError, ValueError, OverflowError):
            return mpmath.nan
        return mpmath.nan if isinstance(result, mpmath.mpc) else result

    def _inside(
        self, node: Node, bound: Sequence[Index], scope: Mapping[Index, int]
    ) -> Iterator[dict[Index, int]]:
        """The scope with the bound indices running, those over a part inside their part."""
        ordered = sorted(bound, key=lambda i: isinstance(i.dim, Part))

        def run(left: list[Index], inner: dict[Index, int]) -> Iterator[dict[Index, int]]:
            if not left:
                yield inner
                return
            index, *rest = left
            size = self.point.extent(index.dim)
            if isinstance(index.dim, Part):
                owner = self._owner(node, index)
                which = self.place(owner, inner, None)
                sizes = self.point.partition(index.dim)
                size = sizes[which] if which is not None and 0 <= which < len(sizes) else 0
            for value in range(size):
                yield from run(rest, {**inner, index: value})

        return run(ordered, dict(scope))

    def _owner(self, node: Node, index: Index) -> Term:
        """In which part a bound index runs: what it is joined with, what stands beside it in a read, or the
        only part number that there is."""
        assert isinstance(index.dim, Part)
        for access in node.reads:
            found = next((p for term in access.terms for p in _joined_with(term, index)), None)
            if found is not None:
                return found
        parts = Parts(index.dim.of, index.dim.level)
        for access in node.reads:
            read = [*zip(access.node.dims, access.terms, strict=True)]
            beside = [t for dim, t in read if dim == parts]
            if len(beside) == 1 and any(d == index.dim and index in indices_of(t) for d, t in read):
                return beside[0]
        known = [i for i in (*node.axes, *node.bound) if i.dim == parts]
        if len(known) != 1:
            what = f"an index over {index.dim} is reduced, and nothing tells in which of the parts it runs"
            raise Unsupported(what, where="the second opinion", hint="read something at join(part, index)")
        return Term(((known[0], 1),))

    def _value(self, name: str, dtype: str, where: Where) -> Value:
        rng = random.Random(f"{self.point.seed} {name} {where}")
        if dtype == "bool":
            return mpmath.mpf(rng.random() < 0.6)
        if dtype[0] in "iu":
            low, high = self.limits.get(name, (-3, 4))
            return mpmath.mpf(rng.randint(low, max(low, high - 1)))
        if self.point.ties and rng.random() < 0.8:
            return number(rng.choice(FEW)) * mpmath.mpf(10) ** self.point.magnitude
        small = mpmath.mpf(rng.randint(1, 10**9)) / 10**9 + mpmath.mpf(1) / 8
        sign = rng.choice((-1, 1))
        scale = (
            mpmath.mpf(10) ** self.point.magnitude
            if self.point.magnitude
            else mpmath.mpf(2) ** rng.randint(-2, 2)
        )
        return sign * small * scale


def _joined_with(term: Term, index: Index) -> Iterator[Term]:
    """The part numbers that an index is joined with in a term, innermost first."""
    for leaf, _ in term.leaves:
        match leaf:
            case Join(part, within):
                yield from _joined_with(part, index)
                yield from _joined_with(within, index)
                if within.variable == index:
                    yield part
            case Gather(access):
                for inner in access.terms:
                    yield from _joined_with(inner, index)
            case Inject(_, inner):
                yield from _joined_with(inner, index)
            case _:
                pass


def _limits(program: Program, point: Point) -> dict[str, tuple[int, int]]:
    """The values for which integer inputs are valid where they are gathered through."""
    limits: dict[str, tuple[int, int]] = {}
    for node in program.nodes:
        for access in node.reads:
            for term, axis in zip(access.terms, access.node.axes, strict=True):
                for leaf, _ in term.leaves:
                    if isinstance(leaf, Gather) and isinstance(leaf.access.node.op, Input):
                        name = leaf.access.node.op.name
                        size = point.extent(axis.dim)
                        limits[name] = (0, min(size, limits.get(name, (0, size))[1]))
    return limits
