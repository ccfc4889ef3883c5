"""Random rewrites of random programs by laws that hold: what the prover must never deny."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from algebra.random_programs import Drawn
from cleave.ir.dims import Atom, Index, Join, Part, Parts, Term, Union, extent, term, var
from cleave.ir.ops import (
    Access,
    Contract,
    Map,
    Node,
    Reduce,
    const,
    contract_node,
    map_node,
    reduce_node,
)  # fmt: skip
from cleave.ir.program import Program
from cleave.ir.rewrite import Replaced, replace_arguments, replace_nodes, rewrite

Law = Callable[[Node], Access]


def rewritten(seed: str, length: int = 9) -> tuple[Program, Program, list[str]]:
    """A random program, the same after random laws at random places, and the names of the laws."""
    rng = random.Random(seed)
    program = Drawn(seed).program(length)
    used: list[str] = []

    def visit(node: Node, replaced: Replaced) -> Access:
        new = replace_arguments(node, replaced)
        laws = _laws(new)
        if not laws or rng.random() < 0.5:
            return new.read()
        name, law = rng.choice(laws)
        used.append(name)
        return law(new)

    replaced = rewrite((o.node for o in program.outputs), visit)
    return program, replace_nodes(program, replaced), used


def _laws(node: Node) -> list[tuple[str, Law]]:
    op = node.op
    if isinstance(op, Map) and node.dtype == "f32":
        return [*((fn, partial(law, op.args)) for fn, law in _POINTWISE if fn == op.fn), ("double", _double)]
    if isinstance(op, Contract):
        return [("contract", _as_sum), ("swap", _swapped)]
    if isinstance(op, Reduce):
        return _reductions(op)
    return []


def _map(node: Node, fn: str, *args: Access) -> Access:
    return map_node(fn, node.axes, args, node.dtype).read()


def _double(node: Node) -> Access:
    return _map(node, "mul", _map(node, "add", node.read(), node.read()), const(0.5))


_Args = tuple[Access, ...]
_POINTWISE: tuple[tuple[str, Callable[[_Args, Node], Access]], ...] = (
    ("add", lambda a, n: _map(n, "add", a[1], a[0])),
    ("mul", lambda a, n: _map(n, "mul", a[1], a[0])),
    ("max", lambda a, n: _map(n, "neg", _map(n, "min", _map(n, "neg", a[0]), _map(n, "neg", a[1])))),
    ("sub", lambda a, n: _map(n, "add", a[0], _map(n, "mul", a[1], const(-1.0)))),
    ("div", lambda a, n: _map(n, "mul", a[0], _map(n, "reciprocal", a[1]))),
    ("exp", lambda a, n: _map(n, "reciprocal", _map(n, "exp", _map(n, "neg", a[0])))),
    ("abs", lambda a, n: _map(n, "max", a[0], _map(n, "neg", a[0]))),
    ("rsqrt", lambda a, n: _map(n, "reciprocal", _map(n, "sqrt", a[0]))),
    ("select", lambda a, n: _map(n, "select", _not(a[0]), a[2], a[1])),
)  # fmt: skip


def _not(access: Access) -> Access:
    return map_node("not", access.node.axes, [access.node.read()], "bool")(*access.terms)


def _as_sum(node: Node) -> Access:
    assert isinstance(node.op, Contract)
    product = map_node("mul", (*node.axes, *node.op.bound), node.op.args, node.dtype)
    return reduce_node("sum", node.axes, node.op.bound, product.read(), node.dtype).read()


def _swapped(node: Node) -> Access:
    assert isinstance(node.op, Contract)
    return contract_node(node.axes, node.op.bound, node.op.args[::-1], node.dtype).read()


def _reductions(op: Reduce) -> list[tuple[str, Law]]:
    found: list[tuple[str, Law]] = []
    if len(op.bound) == 2 and op.kind in ("sum", "max", "min"):
        found.append(("nest", partial(_nested, op)))
    if len(op.bound) == 1 and isinstance(op.bound[0].dim, Atom):
        found.append(("split", partial(_split, op)))
    if len(op.bound) == 1 and isinstance(op.bound[0].dim, Union) and op.kind in ("sum", "max", "min"):
        found.append(("union", partial(_union, op)))
    if op.kind == "max":
        found.append(("min", partial(_as_min, op)))
    return found


def _nested(op: Reduce, node: Node) -> Access:
    one, two = op.bound
    inner = reduce_node(op.kind, (*node.axes, one), (two,), op.arg, node.dtype)
    return reduce_node(op.kind, node.axes, (one,), inner(*node.axes, one), node.dtype).read()


def _split(op: Reduce, node: Node) -> Access:
    (index,), count = op.bound, len(node.axes)
    part, within = Index(Parts(index.dim), count), Index(Part(index.dim), count + 1)
    joined = op.arg.at({index: Term(((Join(var(part), var(within)), 1),))})
    inner = reduce_node(op.kind, (*node.axes, part), (within,), joined, node.dtype)
    return reduce_node(op.kind, node.axes, (part,), inner(*node.axes, part), node.dtype).read()


def _union(op: Reduce, node: Node) -> Access:
    (index,), count = op.bound, len(node.axes)
    assert isinstance(index.dim, Union)
    first, second = index.dim.parts
    i, j = Index(first, count), Index(second, count)
    one = reduce_node(op.kind, node.axes, (i,), op.arg.at({index: var(i)}), node.dtype)
    moved = op.arg.at({index: term((j, 1), offset=extent(0, (first, 1)))})
    two = reduce_node(op.kind, node.axes, (j,), moved, node.dtype)
    return _map(node, "add" if op.kind == "sum" else op.kind, one.read(), two.read())


def _as_min(op: Reduce, node: Node) -> Access:
    negative = map_node("neg", (*node.axes, *op.bound), [op.arg], node.dtype)
    return _map(node, "neg", reduce_node("min", node.axes, op.bound, negative.read(), node.dtype).read())
