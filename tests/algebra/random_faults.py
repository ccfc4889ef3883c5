"""Laws that do not hold, for random programs: what the prover must never be led by to a Yes.

They are mistakes that a compiler, or its author, makes: a side condition forgotten, an index captured, a mask
off by one, a fill that is finite, an axis confused with another of the same dim. By chance one may change
nothing at its place (`abs(x) = x` where `x` is a square); the second opinion tells.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from algebra.random_rewrites import (
    LAWS,
    Law,
    bound_of,
    floating,
    fn_of,
    inner,
    kind_of,
    mapped,
    negated,
    plain,
    reduced,
    something,
)  # fmt: skip
from algebra.random_sorts import NAN, free_of
from algebra.random_steps import PARTIAL, exact
from cleave.ir.dims import Atom, Dim, Gather, Index, Join, Part, Parts, Term, Union, extent, term, var
from cleave.ir.ops import (
    Access,
    Cat,
    Const,
    Map,
    Node,
    Position,
    Reduce,
    SizeOf,
    cat_node,
    const,
    make_node,
    rebuild,
    size,
)  # fmt: skip


def _on(node: Node, fn: str, *args: Access) -> Access:
    return mapped(fn, node.axes, *args, dtype=node.dtype)


def _with(node: Node, number: int, access: Access) -> Access:
    args = [*node.args]
    args[number] = access
    return rebuild(node, args).read()


# A side condition forgotten.


def _root_of_square(n: Node, rng: random.Random) -> Access | None:
    """sqrt(f f) = f; |f| = f."""
    if fn_of(n) == "abs":
        return n.args[0]
    if fn_of(n) == "sqrt" and fn_of(n.args[0].node) == "mul":
        one, two = inner(n.args[0])
        return one if one == two else None
    return None


def _added_root(n: Node, rng: random.Random) -> Access | None:
    """f = sqrt(f f)."""
    return _on(n, "sqrt", _on(n, "mul", n.read(), n.read())) if floating(n) else None


def _negative_scale(n: Node, rng: random.Random) -> Access | None:
    """max(c f) = c max f for a c that is negative, or may be."""
    if kind_of(n) not in ("max", "min"):
        return None
    by = rng.choice((const(-2.0), something(n.axes, rng)))
    more = mapped("mul", (*n.axes, *n.bound), n.args[0], by)
    return _on(n, "div", reduced(kind_of(n), n.axes, n.bound, more), by)


def _log_of_sum(n: Node, rng: random.Random) -> Access | None:
    """log sum f = sum log f; log(a + b) = log a + log b."""
    if fn_of(n) != "log":
        return None
    inside = n.args[0].node
    if fn_of(inside) == "add":
        return _on(n, "add", *(_on(n, "log", a) for a in inner(n.args[0])))
    if kind_of(inside) == "sum" and plain(inside):
        new, (arg,) = bound_of(n.args[0])
        return reduced("sum", n.axes, new, mapped("log", (*n.axes, *new), arg))
    return None


def _through(n: Node, rng: random.Random) -> Access | None:
    """f(sum a) = sum f(a), and a maximum the same, for an f that is neither linear nor monotone."""
    if not isinstance(n.op, Map) or len(n.op.args) != 1 or n.dtype != "f32":
        return None
    kind = kind_of(n.args[0].node)
    if kind not in ("sum", "max", "min") or not plain(n.args[0].node):
        return None
    new, (arg,) = bound_of(n.args[0])
    return reduced(kind, n.axes, new, mapped(n.op.fn, (*n.axes, *new), arg))


def _bound_factor(n: Node, rng: random.Random) -> Access | None:
    """sum f g = (sum f) (sum g); max (f + g) = max f + max g."""
    kind = kind_of(n)
    fn = {"sum": "mul", "max": "add", "min": "add"}.get(kind)
    if fn is None or fn_of(n.args[0].node) != fn or n.args[0].node.dtype != "f32":
        return None
    one, two = inner(n.args[0])
    return _on(n, fn, reduced(kind, n.axes, n.bound, one), reduced(kind, n.axes, n.bound, two))


def _contracted_apart(n: Node, rng: random.Random) -> Access | None:
    if type(n.op).__name__ != "Contract":
        return None
    return _on(n, "mul", *(reduced("sum", n.axes, n.bound, a) for a in n.args[:2]))


def _division_apart(n: Node, rng: random.Random) -> Access | None:
    """a / (b + c) = a / b + a / c."""
    if fn_of(n) != "div" or fn_of(n.args[1].node) != "add":
        return None
    return _on(n, "add", *(_on(n, "div", n.args[0], x) for x in inner(n.args[1])))


def _not_exact(n: Node, rng: random.Random) -> Access | None:
    """A law of numbers where there may be none."""
    names = [name for name in PARTIAL if name != "over and times" and not exact(name, n)]
    for name in rng.sample(names, len(names)):
        found = LAWS[name](n, rng)
        if found is not None:
            return found
    return None


def _negated(n: Node, rng: random.Random) -> Access | None:
    """A comparison as what its opposite is not, where one value may be NaN."""
    return None if all(free_of(a, NAN) for a in n.args) else negated(n)


# Another operation, number or size.

_OTHER = {
    "add": ("sub", "mul", "max"), "sub": ("add",), "mul": ("add", "div"), "div": ("mul",),
    "max": ("min", "add"), "min": ("max",), "exp": ("id", "neg"), "log": ("id",), "neg": ("id", "abs"),
    "sqrt": ("id", "rsqrt"), "rsqrt": ("sqrt", "reciprocal"), "reciprocal": ("rsqrt", "id"), "tanh": ("id",),
    "lt": ("le", "gt"), "le": ("lt", "ge"), "gt": ("ge", "lt"), "ge": ("gt", "le"), "eq": ("ne", "le"),
    "ne": ("eq", "lt"), "and": ("or",), "or": ("and", "xor"), "xor": ("or",),
}  # fmt: skip
_OTHER_KIND = {
    "sum": ("max",), "max": ("min", "sum"), "min": ("max",), "any": ("all",), "all": ("any",),
}  # fmt: skip


def _other_fn(n: Node, rng: random.Random) -> Access | None:
    fn = fn_of(n)
    if fn not in _OTHER or n.dtype not in ("f32", "bool"):
        return None
    return mapped(rng.choice(_OTHER[fn]), n.axes, *n.args, dtype=n.dtype)


def _other_kind(n: Node, rng: random.Random) -> Access | None:
    if kind_of(n) not in _OTHER_KIND:
        return None
    return reduced(rng.choice(_OTHER_KIND[kind_of(n)]), n.axes, n.bound, n.args[0])


def _other_number(n: Node, rng: random.Random) -> Access | None:
    places = [k for k, a in enumerate(n.args) if isinstance(a.node.op, Const) and fn_of(n) != "select"]
    if not places or n.dtype != "f32":
        return None
    k = rng.choice(places)
    op = n.args[k].node.op
    assert isinstance(op, Const)
    if not math.isfinite(op.value):
        return None
    return _with(n, k, const(op.value + rng.choice((1, -1, 0.5)), n.args[k].node.dtype))


def _other_size(n: Node, rng: random.Random) -> Access | None:
    """|A| for |B|, or for the number of parts: true for equal sizes only."""
    places = [k for k, a in enumerate(n.args) if isinstance(a.node.op, SizeOf)]
    if not places:
        return None
    k = rng.choice(places)
    op = n.args[k].node.op
    assert isinstance(op, SizeOf)
    others: list[Dim] = [d for d in (Atom("A"), Atom("B"), Parts(Atom("B"))) if d != op.dim]
    return _with(n, k, size(rng.choice(others), n.args[k].node.dtype))


def _branches(n: Node, rng: random.Random) -> Access | None:
    return _on(n, "select", n.args[0], n.args[2], n.args[1]) if fn_of(n) == "select" else None


def _fill(n: Node, rng: random.Random) -> Access | None:
    """A mask filled with another number, finite where it was -inf."""
    if fn_of(n) != "select" or not isinstance(n.args[2].node.op, Const):
        return None
    other = rng.choice((-100.0, 0.0, -1e4, 1.0, -math.inf))
    return _on(n, "select", n.args[0], n.args[1], const(other)) if other != n.args[2].node.op.value else None


def _unmasked(n: Node, rng: random.Random) -> Access | None:
    return n.args[rng.choice((1, 2))] if fn_of(n) == "select" else None


def _by_one(n: Node, rng: random.Random) -> Access | None:
    """A position off by one."""
    if not isinstance(n.op, Position):
        return None
    by = rng.choice((1, -1))
    return make_node(
        Position(term(*n.op.term.leaves, offset=n.op.term.offset + extent(by))), n.axes, n.dtype
    ).read()


def _narrowed(n: Node, rng: random.Random) -> Access | None:
    """A value rounded, or converted to an integer and back."""
    if not floating(n):
        return None
    if rng.random() < 0.5:
        return _on(n, rng.choice(("floor", "round", "tanh")), n.read())
    return _on(n, "cast", mapped("cast", n.axes, n.read(), dtype="i32"))


def _left_out(n: Node, rng: random.Random) -> Access | None:
    """One operand, or a shift of an exponent, left out."""
    if not isinstance(n.op, Map) or len(n.op.args) != 2 or n.dtype != "f32":
        return None
    return n.args[rng.choice((0, 0, 1))]


# Indices confused.


def _captured(n: Node, rng: random.Random) -> Access | None:
    """One index for another over the same dim, in one access: capture, a diagonal, a transpose."""
    known = [*n.axes, *n.bound]
    choices: list[Access] = []
    for k, access in enumerate(n.args):
        for index in sorted(access.indices, key=str):
            others = [i for i in known if i.dim == index.dim and i != index]
            choices += [_with(n, k, access.at({index: var(o)})) for o in others]
            choices += [_with(n, k, access.at({index: var(o), o: var(index)})) for o in others]
    return rng.choice(choices) if choices else None


def _first(n: Node, rng: random.Random) -> Access | None:
    """Element 0 for an index."""
    choices = [(k, i) for k, a in enumerate(n.args) for i in sorted(a.indices, key=str)]
    if not choices or isinstance(n.op, Cat):
        return None
    k, index = rng.choice(choices)
    if isinstance(index.dim, Part | Parts):
        return None
    return _with(n, k, n.args[k].at({index: Term()}))


def _turned(n: Node, rng: random.Random) -> Access | None:
    """Two terms of an access over the same dim exchanged."""
    choices: list[Access] = []
    for k, access in enumerate(n.args):
        axes = access.node.axes
        for p in range(len(axes)):
            for q in range(p):
                if axes[p].dim == axes[q].dim and access.terms[p] != access.terms[q]:
                    terms = list(access.terms)
                    terms[p], terms[q] = terms[q], terms[p]
                    choices.append(_with(n, k, Access(access.node, tuple(terms))))
    return rng.choice(choices) if choices else None


def _other_bound(n: Node, rng: random.Random) -> Access | None:
    """A reduction over another axis of the same dim (a square array's columns for its rows)."""
    if not isinstance(n.op, Reduce) or not plain(n):
        return None
    pairs = [(i, j) for i in n.bound for j in n.axes if i.dim == j.dim]
    if not pairs:
        return None
    i, j = rng.choice(pairs)
    return reduced(n.op.kind, n.axes, n.bound, n.op.arg.at({i: var(j), j: var(i)}))


def _unread(n: Node, rng: random.Random) -> Access | None:
    """A gather left out: the own position for the one that was asked for."""
    for k, access in enumerate(n.args):
        for p, where in enumerate(access.terms):
            if any(isinstance(leaf, Gather) for leaf, _ in where.leaves):
                terms = list(access.terms)
                terms[p] = Term()
                return _with(n, k, Access(access.node, tuple(terms)))
    return None


# Unions and parts.


def _pieces(n: Node, rng: random.Random) -> Access | None:
    """A piece of a concatenation put where another stands."""
    if not isinstance(n.op, Cat):
        return None
    own = n.axes[n.op.axis]
    assert isinstance(own.dim, Union)
    first, second = (Index(p, own.number) for p in own.dim.parts)
    one, two = n.op.pieces
    wrong = two.at({second: var(first)}) if rng.random() < 0.5 else one
    other = two if wrong is not one else one.at({first: var(second)})
    return cat_node(n.axes, n.op.axis, [wrong, other], n.dtype).read()


def _union_lacks(n: Node, rng: random.Random) -> Access | None:
    """A reduction over a union that leaves a part out."""
    if not isinstance(n.op, Reduce) or len(n.bound) != 1 or not isinstance(n.bound[0].dim, Union):
        return None
    (index,) = n.bound
    k = rng.randrange(2)
    assert isinstance(index.dim, Union)
    i = Index(index.dim.parts[k], 900)
    where = term((i, 1), offset=extent(0, (index.dim.parts[0], 1)) if k else 0)
    return reduced(n.op.kind, n.axes, (i,), n.op.arg.at({index: where}))


def _parts_merged(n: Node, rng: random.Random) -> Access | None:
    """Parts of a reduction merged by another: maxima added, sums' largest, means of means."""
    if not isinstance(n.op, Reduce) or len(n.bound) != 1 or not isinstance(n.bound[0].dim, Atom):
        return None
    (index,) = n.bound
    if n.op.kind not in ("sum", "max", "min") or Parts(index.dim) in n.dims:
        return None
    part, within = Index(Parts(index.dim), 900), Index(Part(index.dim), 901)
    joined = n.op.arg.at({index: Term(((Join(var(part), var(within)), 1),))})
    inside = reduced(n.op.kind, (*n.axes, part), (within,), joined)
    if n.op.kind == "sum" and rng.random() < 0.5:
        total = reduced("sum", n.axes, (part,), inside)
        return _on(n, "div", total, size(Parts(index.dim)))
    return reduced({"sum": "max", "max": "sum", "min": "max"}[n.op.kind], n.axes, (part,), inside)


def _local_top(n: Node, rng: random.Random) -> Access | None:
    """Exponentials of parts, each shifted by its own maximum, added without weights."""
    if kind_of(n) != "sum" or len(n.bound) != 1 or not isinstance(n.bound[0].dim, Atom):
        return None
    index = n.bound[0]
    if fn_of(n.args[0].node) != "exp" or Parts(index.dim) in n.dims:
        return None
    part, within = Index(Parts(index.dim), 900), Index(Part(index.dim), 901)
    value = inner(n.args[0])[0].at({index: Term(((Join(var(part), var(within)), 1),))})
    axes: Sequence[Index] = (*n.axes, part)
    top = reduced("max", axes, (within,), value)
    weight = mapped("exp", (*axes, within), mapped("sub", (*axes, within), value, top))
    sums = reduced("sum", axes, (within,), weight)
    whole = reduced("max", n.axes, (part,), top)
    weighted = sums if rng.random() < 0.5 else mapped("mul", axes, sums, mapped("exp", axes, top))
    total = reduced("sum", n.axes, (part,), weighted)
    return total if weighted is not sums else _on(n, "mul", total, _on(n, "exp", whole))


FAULTS: dict[str, Law] = {
    "root of a square": _root_of_square,
    "a root added": _added_root,
    "negative scale": _negative_scale,
    "log of a sum": _log_of_sum,
    "function of a reduction": _through,
    "factor with the index": _bound_factor,
    "contraction apart": _contracted_apart,
    "division apart": _division_apart,
    "not finite": _not_exact,
    "negated": _negated,
    "another operation": _other_fn,
    "another reduction": _other_kind,
    "another number": _other_number,
    "another size": _other_size,
    "branches": _branches,
    "fill": _fill,
    "unmasked": _unmasked,
    "off by one": _by_one,
    "narrowed": _narrowed,
    "left out": _left_out,
    "captured": _captured,
    "element 0": _first,
    "turned": _turned,
    "another bound": _other_bound,
    "gather left out": _unread,
    "pieces": _pieces,
    "a union lacks a part": _union_lacks,
    "parts merged": _parts_merged,
    "local maxima": _local_top,
}
GENERAL = frozenset({"a root added", "narrowed", "left out", "another operation", "element 0"})
"""The faults that fit nearly everywhere."""
