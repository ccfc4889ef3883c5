"""Laws that hold, for random programs: what the prover must never deny.

A law is a function from a node, and a source of chance, to an access that stands for the node from then on,
or nothing if it says nothing about the node. `random_steps` says where a law is applied.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from algebra.random_programs import INPUTS
from algebra.random_sorts import NAN, free_of
from cleave.ir.dims import Atom, Index, Join, Part, Parts, Term, Union, extent, term, var
from cleave.ir.ops import (
    Access,
    Cat,
    Const,
    Contract,
    Map,
    Node,
    Position,
    Reduce,
    const,
    contract_node,
    map_node,
    position,
    reduce_node,
    size,
)  # fmt: skip

Law = Callable[[Node, random.Random], Access | None]


def fn_of(node: Node) -> str:
    return node.op.fn if isinstance(node.op, Map) else ""


def kind_of(node: Node) -> str:
    return node.op.kind if isinstance(node.op, Reduce) else ""


def inner(access: Access) -> list[Access]:
    """What the accessed node reads, where it is accessed."""
    where = dict(zip(access.node.axes, access.terms, strict=True))
    return [a.at(where) for a in access.node.args]


def mapped(fn: str, axes: Sequence[Index], *args: Access, dtype: str = "f32") -> Access:
    """A pointwise operation, read at its own axes (which need not be numbered in order)."""
    return map_node(fn, axes, args, dtype)(*axes)


def reduced(kind: str, axes: Sequence[Index], bound: Sequence[Index], arg: Access) -> Access:
    dtype = "bool" if kind in ("any", "all") else "f32"
    return reduce_node(kind, axes, bound, arg, dtype)(*axes)


def bound_of(access: Access) -> tuple[list[Index], list[Access]]:
    """New indices for what the accessed reduction binds, and what it reads at them."""
    node = access.node
    new = [Index(i.dim, 900 + n) for n, i in enumerate(node.bound)]
    where = dict(zip(node.axes, access.terms, strict=True))
    where |= {old: var(index) for old, index in zip(node.bound, new, strict=True)}
    return new, [a.at(where) for a in node.args]


def plain(node: Node) -> bool:
    """Is nothing bound over the range of a part?"""
    return not any(isinstance(i.dim, Part | Parts) for i in node.bound)


def something(axes: Sequence[Index], rng: random.Random) -> Access:
    """A finite value over some of the axes."""
    found: list[Access] = [const(1.5), INPUTS[5].read(), size(rng.choice((Atom("A"), Atom("B"))))]
    x, a, y = INPUTS[0], INPUTS[1], INPUTS[2]
    one, two = ([i for i in axes if i.dim == Atom(name)] for name in "AB")
    found += [y(i) for i in two] + [x(i, j) for i in one for j in two] + [a(i, j) for i in one for j in one]
    return rng.choice(found)


def floating(node: Node) -> bool:
    return node.dtype == "f32" and not isinstance(node.op, Const | Position)


def _pointwise(fn: str, law: Callable[[Node, list[Access], random.Random], Access | None]) -> Law:
    def apply(node: Node, rng: random.Random) -> Access | None:
        if fn_of(node) != fn or not (node.dtype == "f32" or node.dtype == "bool"):
            return None
        return law(node, list(node.args), rng)

    return apply


def _on(node: Node, fn: str, *args: Access) -> Access:
    return mapped(fn, node.axes, *args, dtype=node.dtype)


def _not(access: Access, node: Node) -> Access:
    return mapped("not", node.axes, access, dtype="bool")


# Laws of pointwise operations.


def _power_opened(n: Node, a: list[Access], r: random.Random) -> Access | None:
    op = a[1].node.op
    if not isinstance(op, Const):
        return None
    fn = {0.5: "sqrt", -1.0: "reciprocal", -0.5: "rsqrt"}.get(float(op.value))
    if fn:
        return _on(n, fn, a[0])
    if op.value in (2.0, 3.0):
        square = _on(n, "mul", a[0], a[0])
        return square if op.value == 2.0 else _on(n, "mul", a[0], square)
    return None


def _exp_of_sum(n: Node, a: list[Access], r: random.Random) -> Access | None:
    if fn_of(a[0].node) not in ("add", "sub"):
        return None
    one, two = (_on(n, "exp", x) for x in inner(a[0]))
    return _on(n, "mul" if fn_of(a[0].node) == "add" else "div", one, two)


def _exp_shifted(n: Node, a: list[Access], r: random.Random) -> Access:
    by = something(n.axes, r)
    return _on(n, "mul", _on(n, "exp", _on(n, "sub", a[0], by)), _on(n, "exp", by))


def _distributed(n: Node, a: list[Access], r: random.Random) -> Access | None:
    fn = fn_of(a[1].node)
    if fn not in ("add", "sub") or a[1].node.dtype != "f32":
        return None
    one, two = inner(a[1])
    return _on(n, fn, _on(n, "mul", a[0], one), _on(n, "mul", a[0], two))


def _pushed(n: Node, a: list[Access], r: random.Random) -> Access | None:
    """A factor goes into a sum."""
    if kind_of(a[0].node) != "sum" or not plain(a[0].node):
        return None
    new, (arg,) = bound_of(a[0])
    return reduced("sum", n.axes, new, mapped("mul", (*n.axes, *new), arg, a[1]))


def _pair(n: Node, a: list[Access], r: random.Random) -> Access:
    both, gap = _on(n, "add", a[0], a[1]), _on(n, "abs", _on(n, "sub", a[0], a[1]))
    return _on(n, "mul", _on(n, "add", both, gap), const(0.5))


def _blended(n: Node, a: list[Access], r: random.Random) -> Access:
    p = mapped("cast", n.axes, a[0])
    rest = _on(n, "sub", const(1.0), p)
    return _on(n, "add", _on(n, "mul", p, a[1]), _on(n, "mul", rest, a[2]))


_FLIPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


def _flipped(n: Node, rng: random.Random) -> Access | None:
    fn = fn_of(n)
    return mapped(_FLIPPED[fn], n.axes, *n.args[::-1], dtype="bool") if fn in _FLIPPED else None


def negated(n: Node) -> Access | None:
    """A comparison as what its opposite is not. With NaN both are false."""
    fn = fn_of(n)
    return _not(mapped(_OPPOSITE[fn], n.axes, *n.args, dtype="bool"), n) if fn in _OPPOSITE else None


def _negated(n: Node, rng: random.Random) -> Access | None:
    return negated(n) if all(free_of(a, NAN) for a in n.args) else None


def _morgan(n: Node, rng: random.Random) -> Access | None:
    other = {"and": "or", "or": "and", "any": "all", "all": "any"}
    if n.dtype != "bool" or (fn_of(n) or kind_of(n)) not in other:
        return None
    if fn_of(n):
        return _not(mapped(other[fn_of(n)], n.axes, *(_not(a, n) for a in n.args), dtype="bool"), n)
    body = mapped("not", (*n.axes, *n.bound), n.args[0], dtype="bool")
    return _not(reduced(other[kind_of(n)], n.axes, n.bound, body), n)


# Laws of any value.


def _doubled(n: Node, rng: random.Random) -> Access | None:
    return _on(n, "mul", _on(n, "add", n.read(), n.read()), const(0.5)) if floating(n) else None


def _log_exp(n: Node, rng: random.Random) -> Access | None:
    return _on(n, "log", _on(n, "exp", n.read())) if floating(n) else None


def _plus_minus(n: Node, rng: random.Random) -> Access | None:
    if not floating(n):
        return None
    by = something(n.axes, rng)
    return _on(n, "sub", _on(n, "add", n.read(), by), by)


def _times_over(n: Node, rng: random.Random) -> Access | None:
    if not floating(n):
        return None
    by = _on(n, "exp", something(n.axes, rng))
    return _on(n, "div", _on(n, "mul", n.read(), by), by)


def _over_any(n: Node, rng: random.Random) -> Access | None:
    """By a value that may be 0: a condition of the equality."""
    if not floating(n):
        return None
    by = something(n.axes, rng)
    return _on(n, "mul", _on(n, "div", n.read(), by), by)


def _mean(n: Node, rng: random.Random) -> Access | None:
    if not floating(n):
        return None
    dim = rng.choice((Atom("A"), Atom("B")))
    total = reduced("sum", n.axes, (Index(dim, 900),), n.read())
    return _on(n, "div", total, size(dim))


def _top(n: Node, rng: random.Random) -> Access | None:
    if not floating(n):
        return None
    return reduced(
        rng.choice(("max", "min")), n.axes, (Index(rng.choice((Atom("A"), Atom("B"))), 900),), n.read()
    )


def _hot(n: Node, rng: random.Random) -> Access | None:
    """A sum, or a maximum, over where a position is the own one."""
    places = [k for k, i in enumerate(n.axes) if isinstance(i.dim, Atom)]
    if not floating(n) or not places:
        return None
    at = rng.choice(places)
    own = n.axes[at]
    new = Index(own.dim, 900)
    axes = (*n.axes, new)
    hit = mapped("eq", axes, position((own,), own)(own), position((new,), new)(new), dtype="bool")
    kind, other = rng.choice((("sum", 0.0), ("max", -math.inf)))
    value = n.read().at({own: var(new)})
    return reduced(kind, n.axes, (new,), mapped("select", axes, hit, value, const(other)))


def _either_way(n: Node, rng: random.Random) -> Access | None:
    """Where something holds and where not."""
    if not floating(n):
        return None
    test = mapped("lt", n.axes, something(n.axes, rng), something(n.axes, rng), dtype="bool")
    return _on(n, "select", test, n.read(), n.read())


# Laws of reductions.


def _as_sum(n: Node, rng: random.Random) -> Access | None:
    if not isinstance(n.op, Contract):
        return None
    product = map_node("mul", (*n.axes, *n.bound), n.op.args, n.dtype)
    return reduce_node("sum", n.axes, n.bound, product.read(), n.dtype).read()


def _as_contract(n: Node, rng: random.Random) -> Access | None:
    if kind_of(n) != "sum" or fn_of(n.args[0].node) != "mul" or n.args[0].node.dtype != "f32":
        return None
    return contract_node(n.axes, n.bound, inner(n.args[0]), n.dtype).read()


def _swapped(n: Node, rng: random.Random) -> Access | None:
    if isinstance(n.op, Contract):
        return contract_node(n.axes, n.bound, n.op.args[::-1], n.dtype).read()
    if isinstance(n.op, Reduce) and len(n.bound) == 2:
        return reduce_node(n.op.kind, n.axes, n.bound[::-1], n.op.arg, n.dtype).read()
    return None


def _pulled(n: Node, rng: random.Random) -> Access | None:
    """A factor without the bound indices leaves a sum."""
    if kind_of(n) != "sum" or fn_of(n.args[0].node) != "mul":
        return None
    one, two = inner(n.args[0])
    for stays, leaves in ((one, two), (two, one)):
        if leaves.indices.isdisjoint(n.bound):
            return _on(n, "mul", reduced("sum", n.axes, n.bound, stays), leaves)
    return None


def _sum_of_sum(n: Node, rng: random.Random) -> Access | None:
    if kind_of(n) != "sum" or fn_of(n.args[0].node) not in ("add", "sub") or n.args[0].node.dtype != "f32":
        return None
    parts = [reduced("sum", n.axes, n.bound, a) for a in inner(n.args[0])]
    return _on(n, fn_of(n.args[0].node), *parts)


def _shifted_top(n: Node, rng: random.Random) -> Access | None:
    if kind_of(n) not in ("max", "min"):
        return None
    by = something(n.axes, rng)
    less = mapped("sub", (*n.axes, *n.bound), n.args[0], by)
    return _on(n, "add", reduced(kind_of(n), n.axes, n.bound, less), by)


def _scaled_top(n: Node, rng: random.Random) -> Access | None:
    if kind_of(n) not in ("max", "min"):
        return None
    by = mapped("exp", n.axes, something(n.axes, rng)) if rng.random() < 0.5 else const(3.0)
    more = mapped("mul", (*n.axes, *n.bound), n.args[0], by)
    return _on(n, "div", reduced(kind_of(n), n.axes, n.bound, more), by)


def _top_of_exp(n: Node, rng: random.Random) -> Access | None:
    if kind_of(n) not in ("max", "min") or fn_of(n.args[0].node) != "exp" or not plain(n):
        return None
    return _on(n, "exp", reduced(kind_of(n), n.axes, n.bound, inner(n.args[0])[0]))


def _nested(n: Node, rng: random.Random) -> Access | None:
    if not isinstance(n.op, Reduce) or len(n.bound) != 2:
        return None
    one, two = n.bound if rng.random() < 0.5 else n.bound[::-1]
    within = reduced(n.op.kind, (*n.axes, one), (two,), n.op.arg)
    return reduced(n.op.kind, n.axes, (one,), within)


def _split(n: Node, rng: random.Random) -> Access | None:
    if not isinstance(n.op, Reduce) or len(n.bound) != 1 or not isinstance(n.bound[0].dim, Atom):
        return None
    if n.op.kind == "prod":
        return None
    (index,) = n.bound
    level = rng.choice([k for k in (0, 0, 1, 2) if Parts(index.dim, k) not in n.dims])
    part, within = Index(Parts(index.dim, level), 900), Index(Part(index.dim, level), 901)
    joined = n.op.arg.at({index: Term(((Join(var(part), var(within)), 1),))})
    inside = reduced(n.op.kind, (*n.axes, part), (within,), joined)
    return reduced(n.op.kind, n.axes, (part,), inside)


def _split_exp(n: Node, rng: random.Random) -> Access | None:
    """A sum of exponentials by parts, each shifted by its own maximum."""
    if kind_of(n) != "sum" or len(n.bound) != 1 or not isinstance(n.bound[0].dim, Atom):
        return None
    index = n.bound[0]
    if fn_of(n.args[0].node) != "exp" or Parts(index.dim) in n.dims:
        return None
    part, within = Index(Parts(index.dim), 900), Index(Part(index.dim), 901)
    value = inner(n.args[0])[0].at({index: Term(((Join(var(part), var(within)), 1),))})
    axes, all_axes = (*n.axes, part), (*n.axes, part, within)
    top = reduced("max", axes, (within,), value)
    none = mapped("eq", axes, top, const(-math.inf), dtype="bool")
    by = mapped("select", axes, none, const(0.0), top)
    term_ = mapped("exp", all_axes, mapped("sub", all_axes, value, by))
    sums = reduced("sum", axes, (within,), term_)
    weighted = mapped("mul", axes, sums, mapped("exp", axes, by))
    return reduced("sum", n.axes, (part,), weighted)


def _union(n: Node, rng: random.Random) -> Access | None:
    if not isinstance(n.op, Reduce) or len(n.bound) != 1 or not isinstance(n.bound[0].dim, Union):
        return None
    if n.op.kind not in ("sum", "max", "min"):
        return None
    index = n.bound[0]
    first, second = index.dim.parts  # type: ignore[union-attr]
    i, j = Index(first, 900), Index(second, 901)
    one = reduced(n.op.kind, n.axes, (i,), n.op.arg.at({index: var(i)}))
    moved = n.op.arg.at({index: term((j, 1), offset=extent(0, (first, 1)))})
    two = reduced(n.op.kind, n.axes, (j,), moved)
    return _on(n, "add" if n.op.kind == "sum" else n.op.kind, one, two)


def _as_min(n: Node, rng: random.Random) -> Access | None:
    if kind_of(n) != "max":
        return None
    negative = mapped("neg", (*n.axes, *n.bound), n.args[0])
    return _on(n, "neg", reduced("min", n.axes, n.bound, negative))


def _chosen(n: Node, rng: random.Random) -> Access | None:
    """A concatenation as a choice by position."""
    if not isinstance(n.op, Cat):
        return None
    own = n.axes[n.op.axis]
    assert isinstance(own.dim, Union)
    first, second = own.dim.parts
    before = mapped("lt", n.axes, position((own,), own)(own), size(first), dtype="bool")
    one = n.op.pieces[0].at({Index(first, own.number): var(own)})
    two = n.op.pieces[1].at({Index(second, own.number): term((own, 1), offset=extent(0, (first, -1)))})
    return _on(n, "select", before, one, two)


LAWS: dict[str, Law] = {
    "add commutes": _pointwise("add", lambda n, a, r: _on(n, "add", a[1], a[0])),
    "mul commutes": _pointwise("mul", lambda n, a, r: _on(n, "mul", a[1], a[0])),
    "max by min": _pointwise(
        "max", lambda n, a, r: _on(n, "neg", _on(n, "min", _on(n, "neg", a[0]), _on(n, "neg", a[1])))
    ),
    "max by magnitude": _pointwise("max", _pair),
    "sub by add": _pointwise("sub", lambda n, a, r: _on(n, "add", a[0], _on(n, "mul", a[1], const(-1.0)))),
    "div by mul": _pointwise("div", lambda n, a, r: _on(n, "mul", a[0], _on(n, "reciprocal", a[1]))),
    "exp inverted": _pointwise(
        "exp", lambda n, a, r: _on(n, "reciprocal", _on(n, "exp", _on(n, "neg", a[0])))
    ),
    "exp of a sum": _pointwise("exp", _exp_of_sum),
    "exp shifted": _pointwise("exp", _exp_shifted),
    "abs by max": _pointwise("abs", lambda n, a, r: _on(n, "max", a[0], _on(n, "neg", a[0]))),
    "abs by root": _pointwise("abs", lambda n, a, r: _on(n, "sqrt", _on(n, "mul", a[0], a[0]))),
    "sqrt by pow": _pointwise("sqrt", lambda n, a, r: _on(n, "pow", a[0], const(0.5))),
    "rsqrt by sqrt": _pointwise("rsqrt", lambda n, a, r: _on(n, "reciprocal", _on(n, "sqrt", a[0]))),
    "reciprocal by pow": _pointwise("reciprocal", lambda n, a, r: _on(n, "pow", a[0], const(-1.0))),
    "pow opened": _pointwise("pow", _power_opened),
    "select turned": _pointwise("select", lambda n, a, r: _on(n, "select", _not(a[0], n), a[2], a[1])),
    "select blended": _pointwise("select", _blended),
    "distributed": _pointwise("mul", _distributed),
    "pushed into a sum": _pointwise("mul", _pushed),
    "comparison flipped": _flipped,
    "comparison negated": _negated,
    "de Morgan": _morgan,
    "doubled": _doubled,
    "log of exp": _log_exp,
    "plus and minus": _plus_minus,
    "times and over": _times_over,
    "over and times": _over_any,
    "mean of copies": _mean,
    "largest of copies": _top,
    "one-hot": _hot,
    "either way": _either_way,
    "contraction as sum": _as_sum,
    "sum as contraction": _as_contract,
    "swapped": _swapped,
    "pulled out of a sum": _pulled,
    "sum of a sum": _sum_of_sum,
    "top shifted": _shifted_top,
    "top scaled": _scaled_top,
    "top of exp": _top_of_exp,
    "nested": _nested,
    "split": _split,
    "split with local maxima": _split_exp,
    "union": _union,
    "max by min over a dim": _as_min,
    "cat as a choice": _chosen,
}  # fmt: skip

# The laws that say something of any value.
GENERAL = frozenset({
    "doubled", "log of exp", "plus and minus", "times and over", "over and times", "mean of copies",
    "largest of copies", "one-hot", "either way",
})  # fmt: skip
