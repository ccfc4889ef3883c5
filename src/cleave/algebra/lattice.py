"""Maxima and minima of values around running values (design.md, section 3, Folds).

`max_k g(b(k), u) = g(max_k b(k), u)` where `g` grows with `b`, and `g(min_k b(k), u)` where it falls: what is
reduced is `b`, which is free of running values, and `g` waits until the end. Shifts, proved-positive factors,
exponentials, logs and roots are such `g`; `|b|` is `max(b, -b)`. That is a law for every size of the dim but
0, where the value is the reduction's own over nothing. The sign of a factor is read off how it is made, or a
lift is proved as a whole by normal form. Anything else raises `Unsupported`, whose text is the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cleave.algebra.bodies import Body, is_constant
from cleave.algebra.build import Builder
from cleave.algebra.frame import Site, at_axes, plain
from cleave.algebra.rescaling import same_value
from cleave.errors import Unsupported
from cleave.ir.dims import var
from cleave.ir.ops import FLOATS, Access, Const, Contract, Map, Node, Reduce, SizeOf, map_node

FLIPPED = {"max": "min", "min": "max"}
RISING = ("exp", "log", "sqrt")
_IDENTITY = {"max": -math.inf, "min": math.inf}


@dataclass(frozen=True, slots=True)
class Leaf:
    """The reduction of a value that is free of running values."""

    kind: str
    access: Access


@dataclass(frozen=True, slots=True)
class Free:
    """A value that is the same for every loop index."""

    access: Access


@dataclass(frozen=True, slots=True)
class Apply:
    """A pointwise operation."""

    fn: str
    args: tuple[Lifted, ...]


Lifted = Leaf | Free | Apply


def lift(body: Body, kind: str, access: Access) -> Lifted:
    """A maximum or minimum with what depends on running values outside; `Unsupported` if there is no law."""
    unsigned: list[Access] = []
    found = _lift(body, kind, access, unsigned)
    if unsigned:
        whole = _written(Builder(body.site.node.dtype), body.site, found)
        if not same_value(body.site.node.read(), whole):
            raise Unsupported(f"a {kind} of values times a running value of unknown sign cannot be lifted")
    return found


def leaves(lifted: Lifted) -> list[Leaf]:
    """The reductions that a lift needs, in order, each once."""
    match lifted:
        case Leaf():
            return [lifted]
        case Free():
            return []
        case Apply(_, args):
            return list(dict.fromkeys(leaf for a in args for leaf in leaves(a)))


def frees(lifted: Lifted) -> list[Access]:
    """The values of a lift that wait until the end."""
    match lifted:
        case Leaf():
            return []
        case Free(access):
            return [access]
        case Apply(_, args):
            return [f for a in args for f in frees(a)]


def _lift(body: Body, kind: str, access: Access, unsigned: list[Access]) -> Lifted:
    return lift_once(body, kind, access, unsigned, lambda k, a: _lift(body, k, a, unsigned))


def lift_once(
    body: Body | _Everything,
    kind: str,
    access: Access,
    unsigned: list[Access],
    go: Callable[[str, Access], Lifted],
) -> Lifted:
    """One law at the root of a value, `go` for what is below; factors whose sign is not known are noted."""
    access = plain(access)
    if not access.indices & body.bound:
        return Free(access)
    if not body.uses(access.node):
        return Leaf(kind, access)
    op = access.node.op
    if not isinstance(op, Map):
        raise Unsupported("a running value is read at a bound index")
    args = [plain(a.at(at_axes(access))) for a in op.args]
    moving = [bool(a.indices & body.bound) for a in args]
    other = FLIPPED[kind]
    if op.fn in RISING:
        return Apply(op.fn, (go(kind, args[0]),))
    if op.fn == "neg":
        return Apply("neg", (go(other, args[0]),))
    if op.fn == "abs" and kind == "max":
        return Apply("max", (go(kind, args[0]), Apply("neg", (go(other, args[0]),))))
    if op.fn == kind and all(moving):
        return Apply(kind, tuple(go(kind, a) for a in args))
    if op.fn in ("add", "sub") and sum(moving) == 1:
        kinds = (kind, other if op.fn == "sub" else kind)
        return Apply(op.fn, tuple(go(k, a) for k, a in zip(kinds, args, strict=True)))
    if (op.fn == "mul" and sum(moving) == 1) or (op.fn == "div" and moving == [True, False]):
        factor = args[moving.index(False)]
        falls = _negative(factor)
        if not falls and not never_negative(factor):
            unsigned.append(factor)
        inner = other if falls else kind
        return Apply(op.fn, tuple(go(inner, a) for a in args))
    if op.fn == "select" and not body.uses(args[0].node) and is_constant(args[2], _IDENTITY[kind]):
        return _masked(go(kind, args[1]), args[0])
    raise Unsupported(f"a {kind} of {op.fn} of a running value cannot be lifted")


def _negative(access: Access) -> bool:
    op = access.node.op
    return isinstance(op, Const) and not isinstance(op.value, bool) and op.value < 0


def never_negative(access: Access) -> bool:
    """Whether a value is at least 0 wherever it is a number, as far as its operations tell."""
    access = plain(access)
    op = access.node.op
    args = [plain(a.at(at_axes(access))) for a in access.node.args]
    match op:
        case Const(value):
            return value >= 0
        case SizeOf():
            return True
        case Map(fn, _):
            if fn in ("exp", "abs", "sqrt", "rsqrt") or (fn in ("mul", "div") and args[0] == args[1]):
                return True
            if fn in ("add", "mul", "div", "min"):
                return all(never_negative(a) for a in args)
            if fn == "reciprocal":
                return never_negative(args[0])
            if fn == "select":
                return all(never_negative(a) for a in args[1:])
            return fn == "max" and any(never_negative(a) for a in args)
        case Reduce("sum" | "max" | "min", _, arg):
            return never_negative(arg)
        case Contract():
            pair = len(op.args) == 2 and op.args[0] == op.args[1]
            return pair or all(never_negative(a) for a in op.args)
        case _:
            return False


def _masked(lifted: Lifted, condition: Access) -> Lifted:
    """The lift with every reduced value absent where a condition fails."""
    match lifted:
        case Leaf(kind, access):
            build = Builder(access.node.dtype)
            return Leaf(kind, build.select(condition, access, build.number(_IDENTITY[kind])))
        case Free():
            return lifted
        case Apply(fn, args):
            return Apply(fn, tuple(_masked(a, condition) for a in args))


def _written(build: Builder, site: Site, lifted: Lifted) -> Access:
    match lifted:
        case Leaf(kind, access):
            return build.reduce(kind, site.node.bound, access)
        case Free(access):
            return access
        case Apply(fn, args):
            return build.map(fn, *(_written(build, site, a) for a in args))


class _Everything:
    """A body of which everything may be lifted out."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.bound = frozenset(site.node.bound)

    def uses(self, _node: Node) -> bool:
        return True


def pushed(node: Node) -> Node:
    """A maximum or minimum pushed inwards as far as the laws of this module go: an equal value, except over
    nothing."""
    op = node.op
    if not isinstance(op, Reduce) or op.kind not in FLIPPED or node.dtype not in FLOATS:
        return node
    site = Site(node, node.bound[0])
    access = _written(Builder(node.dtype), site, _deepest(_Everything(site), op.kind, op.arg))
    own = tuple(map(var, node.axes))
    return access.node if access.terms == own else map_node("id", node.axes, [access], node.dtype)


def _deepest(body: _Everything, kind: str, access: Access) -> Lifted:
    access = plain(access)
    unsigned: list[Access] = []
    try:
        found = lift_once(body, kind, access, unsigned, lambda k, a: _deepest(body, k, a))
    except Unsupported:
        return Leaf(kind, access)
    return Leaf(kind, access) if unsigned else found
