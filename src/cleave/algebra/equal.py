"""Proofs of candidates: a proof looks only at what differs between two programs (design.md, section 3).

From above: where both programs do the same to two values, it is enough that these are equal. From below: a
value that both compute by the same node may be anything; it is put in as an input. If that is not enough,
the proof looks at everything.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cleave.algebra.bodies import unguarded
from cleave.algebra.lattice import never_negative
from cleave.algebra.proof import prove
from cleave.algebra.support import Zeros
from cleave.ir.dims import Part
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
    const,
    input_node,
    map_node,
)  # fmt: skip
from cleave.ir.program import Output, Program, sort_nodes
from cleave.ir.rewrite import replace_arguments

MOST_NODES = 48
"""Programs with more values are compared only with what they share put in as inputs: the forms of values that
are made of many others grow faster than these."""

Memo = dict[tuple[Node, ...], str]
"""Answers by the outputs of both programs, shared values replaced."""


def answer(a: Program, b: Program, memo: Memo | None = None) -> str:
    """`yes`, `yes-if`, `no` or `unknown`: is `b` equal to `a` for every size?"""
    if [o.node for o in a.outputs] == [o.node for o in b.outputs]:
        return "yes"
    memo = {} if memo is None else memo
    inner = differences(a, b)
    known = ""
    for one, two in [pair for pair in (inner, (a, b)) if pair is not None]:
        known = _proved(*abstracted(one, two), memo)
        if known == "yes":
            return known
    # How a shared value is made may be needed: that it is positive, say.
    return _proved(a, b, memo) if max(len(a.nodes), len(b.nodes)) <= MOST_NODES else known


def _proved(one: Program, two: Program, memo: Memo) -> str:
    key = tuple(o.node for p in (one, two) for o in p.outputs)
    if key not in memo:
        memo[key] = prove(one, two, points=0, steps=False).answer
    return memo[key]


def differences(a: Program, b: Program) -> tuple[Program, Program] | None:
    """Both programs up to the first values, seen from the outputs, that they compute by different operations,
    or by the same one from other places; None if these are the outputs themselves."""
    pairs: dict[tuple[Node, Node], None] = {}
    seen: set[tuple[Node, Node]] = set()
    stack = [(x.node, y.node) for x, y in zip(a.outputs, b.outputs, strict=True)]
    roots = set(stack)
    while stack:
        one, two = stack.pop()
        if one is two or (one, two) in seen:
            continue
        seen.add((one, two))
        below = _alike(one, two)
        if below is None:
            pairs[one, two] = None
        else:
            stack += below
    if pairs.keys() <= roots or any(x.axes != y.axes for x, y in pairs):
        return None
    return tuple(_up_to(p, [pair[n] for pair in pairs]) for n, p in enumerate((a, b)))  # pyright: ignore


def _alike(one: Node, two: Node) -> list[tuple[Node, Node]] | None:
    """The values that two nodes read, in pairs, if they do the same to them at the same places."""
    if one.axes != two.axes or one.dtype != two.dtype or not one.args or len(one.args) != len(two.args):
        return None
    pairs = [(x.node, y.node) for x, y in zip(one.args, two.args, strict=True)]
    if any(x.axes != y.axes or x.dtype != y.dtype for x, y in pairs):
        return None
    # The same node results if each value is put in place of the other.
    swapped = replace_arguments(one, {x: y.read() for x, y in pairs})
    return pairs if swapped is two else None


def _up_to(program: Program, nodes: list[Node]) -> Program:
    """The program with some of its values as outputs."""
    outputs = [
        Output(f"value{n}", node, tuple((k,) for k in range(len(node.axes)))) for n, node in enumerate(nodes)
    ]
    return replace(program, outputs=tuple(outputs))


def abstracted(a: Program, b: Program) -> tuple[Program, Program]:
    """Both programs with values that they share as inputs, outputs that are one node left out."""
    ends = Ends()
    common = {n for n in a.nodes if not isinstance(n.op, Const | SizeOf | Position | Scalar)}
    common = {n for n in common & set(b.nodes) if not ends.high(n)}
    differ = [n for n, (x, y) in enumerate(zip(a.outputs, b.outputs, strict=True)) if x.node is not y.node]
    leaves = {n: _leaf(n, k, ends) for k, n in enumerate(_border(a, b, differ, common))}
    return tuple(_abstract(p, differ, leaves) for p in (a, b))  # pyright: ignore[reportReturnType]


def _border(a: Program, b: Program, differ: list[int], common: set[Node]) -> list[Node]:
    """The shared values that the rest of one program reads. None depends on another one but for inputs: where
    one does, it is computed from it, so that a proof may use how."""
    order = {n: k for k, n in enumerate(sort_nodes(p.outputs[k].node for p in (a, b) for k in differ))}
    border: dict[Node, None] = {}
    for node in order:
        if node not in common:
            border.update(dict.fromkeys(r.node for r in node.reads if r.node in common))
    below: dict[Node, bool] = {}
    """Whether a shared value is in the border, or depends on one that is."""
    for node in sorted(order, key=order.__getitem__):
        if node in common:
            inner = any(below.get(r.node, False) for r in node.reads)
            if inner and node in border:
                del border[node]
            below[node] = inner or (node in border and not isinstance(node.op, Input))
    return list(border)


def _leaf(node: Node, number: int, ends: Ends) -> Access:
    """An input in place of a value; where the value may be -inf, an input that any condition masks."""
    if isinstance(node.op, Input):
        return node.read()
    layout = [(d,) for d in node.dims]
    value = input_node(f"shared.{number}", layout, node.dtype)
    if not ends.low(node):
        return value.read()
    seen = input_node(f"seen.{number}", layout, "bool")
    args = (seen.read(), value.read(), const(-math.inf, node.dtype))
    return map_node("select", node.axes, args, node.dtype).read()


class Ends:
    """Which values may be infinite: maxima of parts, what is masked, and what is made of these."""

    def __init__(self) -> None:
        self._low: dict[Node, bool] = {}
        self._high: dict[Node, bool] = {}

    def low(self, node: Node) -> bool:
        """May a value be -inf?"""
        if node not in self._low:
            self._low[node] = node.dtype in FLOATS and self._is_low(node)
        return self._low[node]

    def high(self, node: Node) -> bool:
        """May a value be inf, or an infinity of a sign that is not known?"""
        if node not in self._high:
            self._high[node] = node.dtype in FLOATS and self._is_high(node)
        return self._high[node]

    def _is_low(self, node: Node) -> bool:
        below = [a.node for a in node.args]
        match node.op:
            case Const(value):
                return value == -math.inf
            case Reduce("max", bound, _):
                return self.low(below[0]) or any(isinstance(i.dim, Part) for i in bound)
            case Map("select", _):
                # What a guard puts a number in place of is not -inf.
                return not unguarded(node.read())[1] and any(map(self.low, below[1:]))
            case Map("max", _):
                return all(map(self.low, below))
            case Map("log", args):
                return self.low(below[0]) or bool(Zeros().zero(args[0]))
            case Map("id" | "cast" | "add" | "min" | "mul" | "div", _) | Reduce("sum" | "min", _, _) | Cat():
                return any(map(self.low, below))
            case Map("sub", _):
                return self.low(below[0])
            case _:
                return False

    def _is_high(self, node: Node) -> bool:
        below = [a.node for a in node.args]
        match node.op:
            case Const(value):
                return value == math.inf
            case Reduce("min", bound, _):
                return self.high(below[0]) or any(isinstance(i.dim, Part) for i in bound)
            case Map("neg" | "abs", _):
                return self.low(below[0]) or self.high(below[0])
            case Map("sub", _):
                return self.low(below[1]) or any(map(self.high, below))
            case Map("mul", args):
                signed = any(self.low(below[n]) and not never_negative(args[1 - n]) for n in (0, 1))
                return signed or any(map(self.high, below))
            case Map("div", args):
                return (self.low(below[0]) and not never_negative(args[1])) or self.high(below[0])
            case Contract():
                return any(self.low(n) or self.high(n) for n in below)
            case Map("min", _):
                return all(map(self.high, below))
            case Map("select", _):
                return any(map(self.high, below[1:]))
            case Map("id" | "cast" | "add" | "max" | "exp" | "log" | "sqrt" | "pow", _) | Reduce() | Cat():
                return any(map(self.high, below))
            case _:
                return False


def _abstract(program: Program, outputs: list[int], leaves: dict[Node, Access]) -> Program:
    made: dict[Node, Access] = dict(leaves)

    def visit(node: Node) -> Access:
        if node not in made:
            for access in node.reads:
                visit(access.node)
            made[node] = replace_arguments(node, made).read()
        return made[node]

    new = tuple(
        replace(program.outputs[number], node=visit(program.outputs[number].node).node) for number in outputs
    )
    added = [n for leaf in leaves.values() for n in sort_nodes([leaf.node]) if isinstance(n.op, Input)]
    return Program(program.name, tuple(dict.fromkeys([*program.inputs, *added])), new, program.sizes)
