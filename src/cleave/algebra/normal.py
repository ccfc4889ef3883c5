"""The normal form of every node of a program (design.md, section 3).

`normal_forms(program)` gives each node as a polynomial in terms of the node's own axes: its free indices are
`node.axes`. Nodes in `leaves` are not looked into; they are elements named by the node. `form_of` reads a
form through an access. Casts among floats are the identity; casts to narrower integers, `floor`, `round`,
`floordiv`, `mod`, `tanh`, `erf`, `sin`, `cos` and the like are uninterpreted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from cleave.algebra import arithmetic as ar
from cleave.algebra import laws, maxima, powers, predicates, rewrite, sums
from cleave.algebra.facts import positive
from cleave.algebra.forms import (
    ONE,
    ZERO,
    Apply,
    Element,
    Poly,
    Size,
    constant,
    fresh,
    of_factor,
    size_extent,
)  # fmt: skip
from cleave.algebra.parts import at_home
from cleave.errors import Bug, Unsupported
from cleave.ir.dims import (
    Dim,
    Gather,
    Index,
    Inject,
    Join,
    Leaf,
    Part,
    Parts,
    Term,
    Union,
    indices_of,
    term,
    var,
)  # fmt: skip
from cleave.ir.ops import (
    FLOATS,
    Access,
    Cat,
    Const,
    Contract,
    Input,
    Map,
    Node,
    Number,
    Position,
    Reduce,
    Scalar,
    Scan,
    SizeOf,
)  # fmt: skip
from cleave.ir.program import Program, sort_nodes

Forms = Mapping[Node, Poly]

WIDTH = {"bool": 1, "u8": 9, "i8": 8, "i16": 16, "i32": 32, "i64": 64}
"""How wide the integers are: a cast to no fewer bits keeps the value (u8 needs 9 signed bits)."""


KEPT = 8192
"""So many forms of nodes are kept for programs that share nodes."""

_known: dict[Node, Poly] = {}


def normal_forms(
    program: Program | Iterable[Node], leaves: frozenset[Node] = frozenset()
) -> dict[Node, Poly]:
    """The form of every node of a program (or below some nodes), nodes in `leaves` not looked into."""
    forms: dict[Node, Poly] = {}
    nodes = program.nodes if isinstance(program, Program) else sort_nodes(program)
    names: Mapping[Node, str] = program.names if isinstance(program, Program) else {}
    known = _known if laws.usual() and not leaves else {}
    if len(known) > KEPT:
        known.clear()
    for node in nodes:
        form = known.get(node)
        if form is None:
            laws.at(names.get(node, ""))
            form = known[node] = element(node) if node in leaves else node_form(node, forms)
        forms[node] = form
    return forms


def element(node: Node) -> Poly:
    """A node as an element that is not looked into, at its own axes."""
    return of_factor(Element(node, tuple(var(axis) for axis in node.axes)))


def form_of(access: Access, forms: Forms) -> Poly:
    """The form of an access: the node's form with its axes replaced by the terms."""
    return read(access.node, access.terms, forms)


def read(node: Node, terms: Sequence[Term], forms: Forms) -> Poly:
    """The form of a node at index terms."""
    where = [resolve(rewrite.flatten(t, axis.dim), forms) for t, axis in zip(terms, node.axes, strict=True)]
    moved = {axis: t for axis, t in zip(node.axes, where, strict=True) if t.variable != axis}
    return rewrite.substitute(forms[node], moved) if moved else forms[node]


def resolve(value: Term, forms: Forms) -> Term:
    """The term with gathers through computed nodes as terms in places and integer inputs, if they are."""
    if not any(isinstance(leaf, Gather | Join) for leaf, _ in value.leaves):
        return value
    leaves: list[tuple[Leaf, int]] = []
    offset = value.offset
    for leaf, c in value.leaves:
        match leaf:
            case Gather(access):
                inner = tuple(resolve(t, forms) for t in access.terms)
                form = None if isinstance(access.node.op, Input) else read(access.node, inner, forms)
                at = rewrite.to_term(form) if form is not None else None
                if at is None:
                    leaves.append((Gather(Access(access.node, inner)), c))
                else:
                    leaves += [(x, k * c) for x, k in at.leaves]
                    offset = offset + at.offset * c
            case Join(part, within):
                leaves.append((Join(resolve(part, forms), resolve(within, forms)), c))
            case _:
                leaves.append((leaf, c))
    return term(*leaves, offset=offset)


def node_form(node: Node, forms: Forms) -> Poly:
    """The form of one node from the forms of what it reads."""
    match node.op:
        case Input() | Scalar():
            return element(node)
        case Const(value):
            return _cast(
                number_form(value), "f64" if isinstance(value, float | Fraction) else "i8", node.dtype
            )
        case SizeOf(dim):
            return size_form(dim)
        case Position(value):
            return _place(value, node.axes, forms)
        case Map(fn, args):
            return map_form(fn, args, node.dtype, [form_of(a, forms) for a in args])
        case Reduce(kind, bound, arg):
            return _reduce(kind, node, bound, _cast(form_of(arg, forms), arg.node.dtype, node.dtype))
        case Contract(bound, args):
            values = [_cast(form_of(a, forms), a.node.dtype, node.dtype) for a in args]
            return _reduce("sum", node, bound, ar.mul(*values))
        case Cat(axis, pieces):
            return _concatenate(node, axis, pieces, forms)
        case Scan():
            raise Unsupported("a loop with carried state has no normal form")


def number_form(value: Number) -> Poly:
    """A literal, exactly; -inf and inf are absence, NaN is uninterpreted."""
    if isinstance(value, float):
        if math.isnan(value):
            return of_factor(Apply("nan", ()))
        if math.isinf(value):
            return ar.ABSENT if value < 0 else ar.neg(ar.ABSENT)
    return constant(Fraction(value))


def size_form(dim: Dim) -> Poly:
    """The size of a dim; a `Part`'s own size needs to know which part, so alone it is uninterpreted."""
    return of_factor(Size(dim)) if isinstance(dim, Part) else rewrite.size(dim)


def _place(value: Term, axes: Sequence[Index], forms: Forms) -> Poly:
    used = [i for i in axes if i in indices_of(value)]
    dims = [leaf.part for leaf, _ in value.leaves if isinstance(leaf, Inject)]
    if dims and used:
        raise Bug(f"a position inside a part of a union has no union to be counted in: {value}")
    return rewrite.place(resolve(rewrite.flatten(value, axes[0].dim) if axes else value, forms))


def _concatenate(node: Node, axis: int, pieces: Sequence[Access], forms: Forms) -> Poly:
    own = node.axes[axis]
    assert isinstance(own.dim, Union)
    parts = own.dim.parts
    place = rewrite.place(var(own))
    result = ZERO
    for number in reversed(range(len(parts))):
        before = size_extent(parts[:number])
        local = {Index(parts[number], own.number): term((own, 1), offset=-before)}
        access = pieces[number].at(local)
        piece = form_of(access, forms)
        if number == len(parts) - 1:
            result = piece
        else:
            end = rewrite.of_extent(size_extent(parts[: number + 1]))
            result = ar.choose(predicates.compare("lt", place, end), piece, result)
    return result


def _reduce(kind: str, node: Node, bound: Sequence[Index], value: Poly) -> Poly:
    new = {i: fresh(i.dim) for i in bound}
    value = rewrite.rename(value, new)
    indices = list(new.values())
    owners = owners_of(node, new)
    for index, owner in owners.items():
        at_home(value, index, owner)
    if node.dtype == "bool":
        kind = {"sum": "any", "max": "any", "prod": "all", "min": "all"}.get(kind, kind)
    match kind:
        case "sum":
            return sums.total(value, indices, owners)
        case "max":
            return maxima.greatest(value, indices, owners)
        case "min":
            return ar.neg(maxima.greatest(ar.neg(value), indices, owners))
        case "any":
            return maxima.exists(indices, as_truth(value), owners)
        case "all":
            nowhere = maxima.exists(indices, predicates.complement(as_truth(value)), owners)
            return predicates.complement(nowhere)
        case _:
            return sums.outcome(value, indices)


def owners_of(node: Node, new: Mapping[Index, Index]) -> dict[Index, Term]:
    """For bound indices over a `Part`: the one index of the node over the matching `Parts`. `new` renames."""
    owners: dict[Index, Term] = {}
    for old, index in new.items():
        if isinstance(old.dim, Part):
            parts = Parts(old.dim.of, old.dim.level)
            found = [new.get(i, i) for i in (*node.axes, *node.bound) if i.dim == parts]
            if len(found) == 1:
                owners[index] = var(found[0])
    return owners


def as_truth(value: Poly) -> Poly:
    """A value as 0 or 1: is it not 0?"""
    if predicates.is_truth(value):
        return value
    return predicates.complement(predicates.is_zero(value))


def _same(a: Poly) -> Poly:
    return a


def _smaller(a: Poly, b: Poly) -> Poly:
    return ar.neg(maxima.maximum(ar.neg(a), ar.neg(b)))


_ROOTS = {"sqrt": Fraction(1, 2), "rsqrt": Fraction(-1, 2), "reciprocal": Fraction(-1)}

_POINTWISE: dict[str, Callable[..., Poly]] = {
    "id": _same,
    "neg": ar.neg,
    "exp": powers.exp,
    "log": powers.log,
    "abs": maxima.absolute,
    "add": ar.add,
    "sub": ar.sub,
    "mul": ar.mul,
    "div": powers.div,
    "max": maxima.maximum,
    "min": _smaller,
}

_EXACT = ("id", "neg", "abs", "add", "sub", "mul", "max", "min")
"""Operations that work in their own dtype, so that their arguments are converted to it first."""


def map_form(fn: str, args: Sequence[Access], dtype: str, values: Sequence[Poly]) -> Poly:
    """The form of a pointwise operation from the forms of its arguments."""
    dtypes = [a.node.dtype for a in args]
    if fn == "cast":
        return _cast(values[0], dtypes[0], dtype)
    if fn in ("lt", "le", "gt", "ge", "eq", "ne"):
        return predicates.compare(fn, *values)
    if fn == "select":
        a, b = (_cast(v, old, dtype) for v, old in zip(values[1:], dtypes[1:], strict=True))
        return ar.choose(as_truth(values[0]), a, b)
    if fn in ("not", "and", "or", "xor"):
        return _logic(fn, dtypes, values)
    if dtype not in FLOATS and fn in _EXACT:
        if dtype == "bool":
            return _boolean(fn, [as_truth(v) for v in values])
        values = [_cast(v, old, dtype) for v, old in zip(values, dtypes, strict=True)]
    elif dtype not in FLOATS:
        return powers.apply(f"{fn} {dtype}", *values)
    if fn == "pow":
        return _pow(*values)
    if fn in _ROOTS:
        return powers.power(values[0], _ROOTS[fn])
    if fn in _POINTWISE:
        return _POINTWISE[fn](*values)
    return powers.apply(fn, *values)


def _boolean(fn: str, values: Sequence[Poly]) -> Poly:
    """Arithmetic that is done on truths."""
    if fn in ("mul", "min"):
        return ar.mul(*values)
    if fn in ("add", "max"):
        return predicates.either(*values)
    return values[0] if fn in ("id", "abs") else powers.apply(f"{fn} bool", *values)


def _logic(fn: str, dtypes: Sequence[str], values: Sequence[Poly]) -> Poly:
    if any(d != "bool" for d in dtypes):
        return powers.apply(f"bits {fn}", *values)
    a, b = values[0], values[-1]
    match fn:
        case "not":
            return predicates.complement(a)
        case "and":
            return ar.mul(a, b)
        case "or":
            return predicates.either(a, b)
        case _:
            return ar.sub(ar.add(a, b), ar.scale(ar.mul(a, b), 2))


def _cast(value: Poly, old: str, new: str) -> Poly:
    if new == old or new in FLOATS or old == "bool":
        return value
    if new == "bool":
        return as_truth(value)
    if value.number is not None and value.number.denominator == 1:
        return value
    if old in WIDTH and WIDTH[new] >= WIDTH[old] and not (new == "u8" and old != "bool"):
        return value
    return powers.apply(f"cast {new}", value) if laws.on("widening") else value


def _pow(base: Poly, exponent: Poly) -> Poly:
    number = exponent.number
    if number is not None:
        return powers.power(base, number)
    if positive(base):
        return powers.exp(ar.mul(exponent, powers.log(base)))
    return powers.apply("pow", base, exponent)


__all__ = [
    "ONE", "Forms", "as_truth", "element", "form_of", "map_form", "node_form", "normal_forms", "number_form",
    "read", "resolve", "size_form",
]  # fmt: skip
