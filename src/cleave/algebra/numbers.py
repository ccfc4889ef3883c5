"""Which values are finite wherever they are defined, whatever their normal form looks like.

An input is finite, and so is what is made of finite values but by a logarithm, which is -inf of 0, and by the
maximum of a part that may be empty. Where a quotient by 0 and the like keep a value from being a number,
another need says so (`needs`). What `infinite` says of forms is finer; this holds for forms of any length.
"""

from __future__ import annotations

import math

from cleave.algebra import laws
from cleave.ir.dims import Part
from cleave.ir.ops import FLOATS, Cat, Const, Contract, Input, Map, Node, Position, Reduce, Scalar, SizeOf

KEPT = 8192
"""So many nodes are remembered."""

MAPS = (
    "id", "neg", "abs", "exp", "sqrt", "rsqrt", "reciprocal", "tanh", "tanh_coarse", "erf", "sin", "cos",
    "floor", "ceil", "round", "trunc", "sign", "cast", "add", "sub", "mul", "div", "floordiv", "mod", "max",
    "min", "pow",
)  # fmt: skip
"""Operations that make finite values of finite ones, or nothing that is a number."""

_known: dict[Node, bool] = {}


def always_finite(node: Node) -> bool:
    """Is every element of a node finite where what it is made of is defined?"""
    if not laws.on("finite"):
        return False
    if len(_known) > KEPT:
        _known.clear()
    return _finite(node)


def _finite(node: Node) -> bool:
    todo = [node]
    while todo:  # what is read comes first; a program may be thousands of nodes deep
        one = todo[-1]
        unknown = [a.node for a in one.reads if a.node not in _known]
        if one in _known or not unknown:
            todo.pop()
            _known.setdefault(one, one.dtype not in FLOATS or _computed(one))
        else:
            todo += unknown
    return _known[node]


def _computed(node: Node) -> bool:
    match node.op:
        case Input() | Scalar() | SizeOf() | Position():
            return True
        case Const(value):
            return math.isfinite(value)
        case Map("select", (_, one, two)):
            return _known[one.node] and _known[two.node]
        case Map(fn, args):
            return fn in MAPS and all(_known[a.node] for a in args)
        case Reduce("sum" | "prod", _, arg):
            return _known[arg.node]
        case Reduce("max" | "min", bound, arg):
            return _known[arg.node] and not any(isinstance(i.dim, Part) for i in bound)
        case Contract(_, args) | Cat(_, args):
            return all(_known[a.node] for a in args)
        case _:
            return False
