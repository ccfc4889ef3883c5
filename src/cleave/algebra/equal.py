"""Proofs of candidates: values that two programs share are put in as inputs first (design.md, section 3).

A value that both programs compute by the same node may be anything: if the programs are equal for every such
value, they are equal. So a proof looks only at what differs; if that is not enough, at everything.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cleave.algebra.proof import prove
from cleave.algebra.support import Zeros
from cleave.ir.ops import (
    Access,
    Const,
    Input,
    Node,
    Position,
    Reduce,
    Scalar,
    SizeOf,
    const,
    input_node,
    map_node,
)  # fmt: skip
from cleave.ir.program import Program, sort_nodes
from cleave.ir.rewrite import replace_arguments

Memo = dict[tuple[Node, ...], str]
"""Answers by the outputs of both programs, shared values replaced."""


def answer(a: Program, b: Program, memo: Memo | None = None) -> str:
    """`yes`, `yes-if`, `no` or `unknown`: is `b` equal to `a` for every size?"""
    if [o.node for o in a.outputs] == [o.node for o in b.outputs]:
        return "yes"
    one, two = abstracted(a, b)
    key = tuple(o.node for p in (one, two) for o in p.outputs)
    known = memo.get(key) if memo is not None else None
    if known is None:
        known = prove(one, two, points=0, steps=False).answer
        if memo is not None:
            memo[key] = known
    return known if known == "yes" else prove(a, b, points=0, steps=False).answer


def abstracted(a: Program, b: Program) -> tuple[Program, Program]:
    """Both programs with the values that they share as inputs, outputs that are one node left out."""
    common = {n for n in a.nodes if not isinstance(n.op, Const | SizeOf | Position | Scalar)}
    common &= set(b.nodes)
    leaves: dict[Node, Access] = {}
    differ = [n for n, (x, y) in enumerate(zip(a.outputs, b.outputs, strict=True)) if x.node is not y.node]
    return tuple(_abstract(p, differ, common, leaves) for p in (a, b))  # pyright: ignore[reportReturnType]


def _leaf(node: Node, number: int) -> Access:
    """An input in place of a value; where the value may be -inf, an input that any condition masks."""
    layout = [(d,) for d in node.dims]
    value = input_node(f"shared.{number}", layout, node.dtype)
    if not _may_be_low(node):
        return value.read()
    seen = input_node(f"seen.{number}", layout, "bool")
    args = (seen.read(), value.read(), const(-math.inf, node.dtype))
    return map_node("select", node.axes, args, node.dtype).read()


def _may_be_low(node: Node) -> bool:
    op = node.op
    if isinstance(op, Reduce) and op.kind == "max":
        return _may_be_low(op.arg.node)
    return bool(Zeros().low(node.read()))


def _abstract(program: Program, outputs: list[int], common: set[Node], leaves: dict[Node, Access]) -> Program:
    made: dict[Node, Access] = {}

    def visit(node: Node) -> Access:
        if node in common and node not in leaves:
            leaves[node] = node.read() if isinstance(node.op, Input) else _leaf(node, len(leaves))
        if node in leaves:
            return leaves[node]
        if node not in made:
            for access in node.reads:
                visit(access.node)
            made[node] = replace_arguments(node, {**leaves, **made}).read()
        return made[node]

    new = tuple(
        replace(program.outputs[number], node=visit(program.outputs[number].node).node) for number in outputs
    )
    added = [n for leaf in leaves.values() for n in sort_nodes([leaf.node]) if isinstance(n.op, Input)]
    return Program(program.name, tuple(dict.fromkeys([*program.inputs, *added])), new, program.sizes)
