"""What each node of a program means as a term (`ir.terms`): the symbolic twin of `ir.reference`.

A node is a pair (guard, value) over its axes: the value where the guard is 1, else -inf. `Meaning` computes
it from the pairs of what the node reads, and calls `need` for all that must hold for it to be defined:
denominators that are not 0, roots and logs of what is not negative, gathers in range, no inf - inf.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from cleave.errors import Unsupported
from cleave.ir.dims import Dim, Extent, Gather, Index, Inject, Join, Part, Parts, Term, Union
from cleave.ir.ops import (
    FLOATS,
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
    SizeOf,
)
from cleave.ir.terms import (
    ONE,
    ZERO,
    Binders,
    Poly,
    Var,
    close,
    const,
    exp,
    guarded,
    largest,
    log,
    lower,
    occupied,
    of,
    of_atom,
    plus,
    power,
    relate,
    size,
    subst,
    times,
)

Pair = tuple[Poly, Poly]
WIDTH = {"bool": 1, "u8": 9, "i8": 8, "i16": 16, "i32": 32, "i64": 64}
ROOTS = {"sqrt": Fraction(1, 2), "rsqrt": Fraction(-1, 2), "reciprocal": Fraction(-1)}
RELATIONS = {
    "lt": (">", -1),
    "le": (">=", -1),
    "gt": (">", 1),
    "ge": (">=", 1),
    "eq": ("=", 1),
    "ne": ("=", 1),
}
LOW = {"eq": (0, 1), "ne": (1, 0), "gt": (1, 0), "le": (0, 1), "lt": (0, 0), "ge": (1, 1)}
"""What comparing with -inf gives where the other value is there, and where it is not."""


def kind(dtype: str) -> str:
    return "bool" if dtype == "bool" else "int" if dtype[0] in "iu" else "float"


def axis(index: Index) -> Var:
    return (index.dim, ".", index.number)


def cast(value: Poly, old: str, new: str) -> Poly:
    """Casts to floats and to wider integers keep the value; others but that to bool are uninterpreted."""
    if new == old or new in FLOATS or old == "bool":
        return value
    if new == "bool":
        return ONE - relate("=", value)
    if value.number is not None and value.number.denominator == 1 and value.number >= 0:
        return value
    keeps = old in WIDTH and WIDTH[new] >= WIDTH[old] and new != "u8"
    return value if keeps else of("fn", f"cast {new}", value)


class Meaning:
    """The pairs of nodes, each computed from those before. Subclasses say what is done with needs."""

    def __init__(self) -> None:
        self.forms: dict[Node, tuple[Poly, ...]] = {}
        self.node: Node | None = None
        self.indices: tuple[Index, ...] = ()

    def need(self, value: Poly, rel: str) -> None:
        """`value rel`, for all axes of the node at hand, or the node is not defined."""

    def positive(self, value: Poly) -> bool:
        """Is a value known to be greater than 0?"""
        return False

    def pair(self, node: Node) -> Pair:
        """The pair of a node."""
        self.node = node
        self.indices = (*node.axes, *node.bound)
        match node.op:
            case Input() | Scalar():
                name = node.op.name
                places = [of("ix", axis(i)) for i in node.axes]
                return ONE, of("in", name if name.isidentifier() else repr(name), kind(node.dtype), *places)
            case Const(value):
                if isinstance(value, float) and (math.isnan(value) or value == math.inf):
                    raise Unsupported(f"the constant {value}")
                return (
                    (ZERO, ZERO)
                    if value == -math.inf
                    else (ONE, cast(const(Fraction(value)), "f64", node.dtype))
                )
            case SizeOf(dim):
                return ONE, size(dim)
            case Position(value):
                return ONE, self.place(value, node.axes[0].dim if node.axes else None, {})
            case Map(fn, args):
                return self.map(fn, [self.read(a) for a in args], [a.node.dtype for a in args], node.dtype)
            case Reduce(how, bound, arg):
                guard, value = self.read(arg)
                return self.reduce(how, node, bound, guard, cast(value, arg.node.dtype, node.dtype))
            case Contract(bound, args):
                values = [cast(self.finite(self.read(a)), a.node.dtype, node.dtype) for a in args]
                return self.reduce("sum", node, bound, ONE, times(*values))
            case Cat(number, pieces):
                own = node.axes[number]
                assert isinstance(own.dim, Union)
                here, found = of("ix", axis(own)), (ZERO, ZERO)
                for k in range(len(pieces) - 1, -1, -1):
                    before = plus(ZERO, *map(size, own.dim.parts[:k]))
                    piece = self.read(pieces[k], {Index(own.dim.parts[k], number): here - before})
                    inside = relate(">", before + size(own.dim.parts[k]) - here)
                    found = piece if k == len(pieces) - 1 else choose(inside, piece, found)
                return found
            case _:
                raise Unsupported(f"a {type(node.op).__name__.lower()}", where="certificates")

    # ------------------------------------------------------------ reading

    def read(self, access: Access, at: Mapping[Index, Poly] | None = None) -> Pair:
        """A node at index terms. What is computed must be read inside; inputs at the nearest element."""
        where = {
            axis(i): self.place(t, i.dim, at or {})
            for t, i in zip(access.terms, access.node.axes, strict=True)
        }
        for t, i in zip(access.terms, access.node.axes, strict=True):
            gathered = any(isinstance(leaf, Gather) for leaf, _ in t.leaves)
            own = t.variable is not None and t.variable.dim == i.dim
            if isinstance(access.node.op, Input) or own or gathered or isinstance(i.dim, Part):
                continue
            if any(
                (lower(x) or 0) < 0 or lower(x) is None
                for x in (where[axis(i)], size(i.dim) - where[axis(i)] - ONE)
            ):
                raise Unsupported(
                    f"a computed value is read at {where[axis(i)].text}, which may be outside of {i.dim}"
                )
        for i in access.node.axes:
            if isinstance(i.dim, Part):  # it must run over the part that is read
                parts = Parts(i.dim.of, i.dim.level)
                there = [where[axis(j)].text for j in access.node.axes if j.dim == parts]
                here = [of("ix", axis(j)).text for j in self.indices if j.dim == parts]
                plain = where[axis(i)].atom
                if there != here or len(here) != 1 or not plain or plain.head != "ix":
                    raise Unsupported(f"an index over {i.dim} that is in no part, or in another one")
        guard, value = self.forms[access.node][:2]
        return subst(guard, where), subst(value, where)

    def place(self, term: Term, dim: Dim | None, at: Mapping[Index, Poly]) -> Poly:
        """The integer value of an index term that reads an axis over `dim`."""
        found = [self.extent(term.offset)]
        for leaf, c in term.leaves:
            match leaf:
                case Index():
                    value = at.get(leaf) or of("ix", axis(leaf))
                case Gather(access):
                    value = self.finite(self.read(access, at))
                case Inject(number, inner) if isinstance(dim, Union):
                    value = plus(self.place(inner, dim.parts[number], at), *map(size, dim.parts[:number]))
                case Join(part, within) if within.variable and isinstance(within.variable.dim, Part):
                    value = of(
                        "join", within.variable.dim, self.place(part, None, at), self.place(within, None, at)
                    )
                case _:
                    raise Unsupported(f"the index term {term}")
            found.append(value * c)
        place = plus(*found)
        if dim is not None and any(isinstance(leaf, Gather) for leaf, _ in term.leaves):
            self.need(relate(">=", place), "= 1")
            self.need(relate(">", size(dim) - place), "= 1")
        return place

    def extent(self, value: Extent) -> Poly:
        return plus(const(value.const), *(size(d) * c for d, c in value.terms))

    def finite(self, pair: Pair) -> Poly:
        """The value of a pair, whose guard must be 1."""
        if not pair[0].terms:
            raise Unsupported("-inf where a number is needed")
        self.need(pair[0], "= 1")
        return pair[1]

    # ------------------------------------------------------------ operations

    def reduce(self, how: str, node: Node, bound: Sequence[Index], guard: Poly, value: Poly) -> Pair:
        own: list[tuple[Var, Poly | None]] = []
        for index in bound:
            parts = Parts(index.dim.of, index.dim.level) if isinstance(index.dim, Part) else None
            owners = [of("ix", axis(i)) for i in (*node.axes, *bound) if i.dim == parts]
            if parts and len(owners) != 1:
                raise Unsupported(f"an index over {index.dim} that is in no part")
            own.append((axis(index), owners[0] if owners else None))
        b: Binders = tuple(own)
        if node.dtype == "bool":
            how = {"sum": "any", "max": "any", "prod": "all", "min": "all"}.get(how, how)
        match how:
            case "sum":
                return ONE - close("some", b, ONE - guard), close("sum", b, value)
            case "max":
                return close("some", b, guard), largest([(b, guard, value)])
            case "min":
                self.need(guard, "= 1")
                self.need(close("some", b, ONE), "= 1")
                return ONE, largest([(b, ONE, value * -1)]) * -1
            case "any" | "all":
                asked = value if node.op.arg.node.dtype == "bool" else cast(value, "f64", "bool")  # type: ignore[union-attr]
                return ONE, close("some", b, asked) if how == "any" else ONE - close("some", b, ONE - asked)
            case _:
                return ONE, close("prod", b, self.finite((guard, value)))

    def map(self, fn: str, args: Sequence[Pair], dtypes: Sequence[str], dtype: str) -> Pair:
        (g, a), (h, b) = args[0], args[-1]
        if fn in RELATIONS:
            for (one, _), (other, _), name in (
                (args[0], args[1], fn),
                (args[1], args[0], fn.translate(str.maketrans("lg", "gl"))),
            ):
                if not other.terms:
                    there, nowhere = LOW[name]
                    return ONE, one * there + (ONE - one) * nowhere
            rel, sign = RELATIONS[fn]
            found = relate(rel, (self.finite(args[0]) - self.finite(args[1])) * sign)
            return ONE, ONE - found if fn == "ne" else found
        if fn == "select":
            test = (
                self.finite(args[0]) if dtypes[0] == "bool" else cast(self.finite(args[0]), dtypes[0], "bool")
            )
            one, two = ((g, cast(v, old, dtype)) for (g, v), old in zip(args[1:], dtypes[1:], strict=True))
            return choose(test, one, two)
        if fn in ("cast", "id"):
            return g, cast(a, dtypes[0], dtype)
        logic = dtype == "bool" or (fn in ("not", "and", "or", "xor") and all(d == "bool" for d in dtypes))
        exact = fn in ("neg", "abs", "add", "sub", "mul", "max", "min")
        if logic and (exact or fn in ("not", "and", "or", "xor")):
            a, b = (
                cast(self.finite(p), d, "bool") for p, d in ((args[0], dtypes[0]), (args[-1], dtypes[-1]))
            )
            found = {
                "not": ONE - a,
                "and": a * b,
                "mul": a * b,
                "min": a * b,
                "abs": a,
                "xor": a + b - a * b * 2,
                "or": a + b - a * b,
                "add": a + b - a * b,
                "max": a + b - a * b,
            }
            if fn in found:
                return ONE, found[fn]
        elif (dtype in FLOATS or exact) and fn not in ("not", "and", "or", "xor"):
            if dtype not in FLOATS:
                a, b = cast(a, dtypes[0], dtype), cast(b, dtypes[-1], dtype)
            found = self.number(fn, (g, a), (h, b))
            if found is not None:
                return found
        return ONE, of("fn", fn if dtype in FLOATS else f"{fn} {dtype}", *map(self.finite, args))

    def number(self, fn: str, one: Pair, two: Pair) -> Pair | None:
        """A pointwise operation on numbers; None for those that are uninterpreted."""
        (g, a), (h, b) = one, two
        match fn:
            case "add":
                return g * h, a + b
            case "sub":
                return g, a - self.finite(two)
            case "neg":
                return ONE, self.finite(one) * -1
            case "mul":
                if self.positive(b) or self.positive(a):
                    return g * h, a * b
                return ONE, self.finite(one) * self.finite(two)
            case "div" | "reciprocal":
                below = self.finite(two)
                self.need(below, "!= 0")
                return ONE, (self.finite(one) if fn == "div" else ONE) * power(below, -1)
            case "sqrt" | "rsqrt" | "pow":
                e = b.number if fn == "pow" else ROOTS[fn]
                base = self.finite(one)
                if e is None and not self.positive(base):
                    return None
                if e is None:
                    return ONE, exp(log(base) * self.finite(two))
                if e.denominator != 1:
                    self.need(base, "> 0" if e < 0 else ">= 0")
                elif e < 0:
                    self.need(base, "!= 0")
                return ONE, power(base, e)
            case "exp":
                return ONE, g * exp(a)
            case "log":
                return self.log(self.finite(one))
            case "abs":
                return ONE, largest([((), ONE, self.finite(one)), ((), ONE, a * -1)])
            case "max":
                return g + h - g * h, largest([((), g, a), ((), h, b)])
            case "min":
                return ONE, largest([((), ONE, self.finite(one) * -1), ((), ONE, self.finite(two) * -1)]) * -1
            case _:
                return None

    def log(self, value: Poly) -> Pair:
        """-inf where the value is 0: where a predicate that it is a product with is, or nothing is summed."""
        self.need(value, ">= 0")
        guard, rest = guarded(value) if value.single else (ONE, value)
        for a, e in rest.single[0] if rest.single else ():
            there = occupied(a, self.positive) if e == 1 else None
            if there is not None and self.positive(rest * of_atom(a, -1)):
                return guard * there, log(rest)
        return (guard if self.positive(rest) else guard * relate(">", rest)), log(rest)


def choose(p: Poly, one: Pair, two: Pair) -> Pair:
    """The first pair where `p` is 1, else the second."""
    if not two[0].terms or not one[0].terms:
        return p * one[0] + (ONE - p) * two[0], one[1] if not two[0].terms else two[1]
    return p * (one[0] - two[0]) + two[0], p * (one[1] - two[1]) + two[1]
