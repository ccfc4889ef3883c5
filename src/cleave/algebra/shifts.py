"""Stabilising maxima, put in where they are missing (design.md, section 3, Search).

Every value is carried as `mantissa * exp(exponent)`. An exponential that is summed over an index that its
argument depends on becomes `exp(f - u) * exp(u)` with `u` the largest `f` over the summed indices; products
and sums carry `exp(u)` on, quotients cancel it, a logarithm adds it: `N / L` and `u + log L` come out.
What cannot carry an exponent multiplies it in again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cleave.algebra.build import Builder, literal
from cleave.algebra.clusters import is_sum
from cleave.algebra.frame import at_axes, plain
from cleave.algebra.read import whole
from cleave.ir.dims import Index
from cleave.ir.ops import FLOATS, Access, Map, Node
from cleave.ir.program import Program
from cleave.ir.rewrite import Replaced, replace_arguments, replace_nodes, rewrite


@dataclass(frozen=True, slots=True)
class Scaled:
    """`mantissa * exp(exponent)`, both over the axes of the node that they stand for."""

    mantissa: Access
    exponent: Access | None = None

    def at(self, access: Access) -> Scaled:
        where = at_axes(access)
        return Scaled(self.mantissa.at(where), self.exponent.at(where) if self.exponent else None)


def stabilise(program: Program, dtype: str) -> Program | None:
    """The program with maxima taken out of exponentials that are summed; None if there are none to take."""
    shifts = _Shifts(program, dtype)
    if not shifts.over:
        return None
    outputs = tuple(
        replace(output, node=whole(shifts.plain(output.node), output.node)) for output in program.outputs
    )
    names: dict[Node, str] = {}
    for node, made in shifts.made.items():
        if node in program.names and made.exponent is None:
            names.setdefault(made.mantissa.node, program.names[node])
    return replace(program, outputs=outputs, names=names)


def shifted(program: Program, dtype: str) -> Program:
    """The program with `exp(f - u) * exp(u)` for every exponential that is summed, nothing cancelled: the way
    to `stabilise`."""
    shifts = _Shifts(program, dtype)

    def visit(node: Node, replaced: Replaced) -> Access:
        made = replace_arguments(node, replaced)
        if node not in shifts.over:
            return made.read()
        assert isinstance(made.op, Map)
        return whole(shifts.join(shifts.without(made.op.args[0], shifts.over[node])), node).read()

    return replace_nodes(program, rewrite((o.node for o in program.outputs), visit))


class _Shifts:
    def __init__(self, program: Program, dtype: str) -> None:
        self.build = Builder(dtype)
        self.over = _summed(program)
        self.made: dict[Node, Scaled] = {}

    def plain(self, node: Node) -> Access:
        return self.join(self.scaled(node))

    def join(self, value: Scaled) -> Access:
        """A value with its exponent multiplied in."""
        if value.exponent is None:
            return value.mantissa
        return self.build.mul(value.mantissa, self.build.map("exp", value.exponent))

    def scaled(self, node: Node) -> Scaled:
        if node not in self.made:
            self.made[node] = self._make(node)
        return self.made[node]

    def _args(self, node: Node) -> list[Scaled]:
        return [self.scaled(a.node).at(a) for a in node.args]

    def _make(self, node: Node) -> Scaled:
        op, build = node.op, self.build
        if node in self.over:
            assert isinstance(op, Map)
            return self.without(self.join(self._args(node)[0]), self.over[node])
        if node.dtype in FLOATS and isinstance(op, Map):
            made = self._map(node, op)
            if made is not None:
                return made
        if is_sum(node):
            args = self._args(node)
            exponent = _total(build, [(1, a.exponent) for a in args])
            if exponent is not None and not exponent.indices & set(node.bound):
                mantissas = [a.mantissa for a in args]
                value = build.contract(node.bound, mantissas)
                return Scaled(value, exponent)
        replaced = {a.node: self.plain(a.node) for a in node.reads}
        return Scaled(replace_arguments(node, replaced).read())

    def without(self, argument: Access, axes: tuple[Index, ...]) -> Scaled:
        """An exponential without its largest value over some axes, and that."""
        build = self.build
        u = build.reduce("max", axes, argument)
        # What is infinite anyway, or masked all over, has nothing taken off: it stays what it is.
        infinite = build.map("eq", build.map("abs", u), build.number(math.inf), dtype="bool")
        u = build.select(infinite, build.number(0.0), u)
        return Scaled(build.map("exp", build.sub(argument, u)), u)

    def _map(self, node: Node, op: Map) -> Scaled | None:
        build = self.build
        args = self._args(node)
        if all(a.exponent is None for a in args):
            return None
        match op.fn:
            case "mul" | "div":
                sign = 1 if op.fn == "mul" else -1
                exponent = _total(build, [(1, args[0].exponent), (sign, args[1].exponent)])
                pair = (args[0].mantissa, args[1].mantissa)
                return Scaled(build.mul(*pair) if sign > 0 else build.div(*pair), exponent)
            case "neg" | "id" | "cast":
                fn = args[0].mantissa if op.fn != "neg" else build.map("neg", args[0].mantissa)
                return Scaled(fn, args[0].exponent)
            case "reciprocal":
                return Scaled(build.map("reciprocal", args[0].mantissa), _negated(build, args[0].exponent))
            case "log":
                assert args[0].exponent is not None
                return Scaled(build.add(args[0].exponent, build.map("log", args[0].mantissa)))
            case "add" | "sub" if args[0].exponent == args[1].exponent:
                value = build.map(op.fn, args[0].mantissa, args[1].mantissa)
                return Scaled(value, args[0].exponent)
            case "select":
                return self._select(node, args)
            case _:
                return None

    def _select(self, node: Node, args: list[Scaled]) -> Scaled | None:
        _, yes, no = args
        if (no.exponent is None and literal(no.mantissa) == 0) or yes.exponent == no.exponent:
            exponent = yes.exponent
        elif yes.exponent is None and literal(yes.mantissa) == 0:
            exponent = no.exponent
        else:
            return None
        return Scaled(self.build.select(args[0].mantissa, yes.mantissa, no.mantissa), exponent)


def _total(build: Builder, parts: list[tuple[int, Access | None]]) -> Access | None:
    """The signed sum of exponents; equal ones of opposite signs cancel."""
    kept = [(s, e) for s, e in parts if e is not None]
    for n, (s, e) in enumerate(kept):
        for m in range(n + 1, len(kept)):
            if kept[m] == (-s, e):
                return _total(build, [x for k, x in enumerate(kept) if k not in (n, m)])  # pyright: ignore
    total: Access | None = None
    for s, e in kept:
        if total is None:
            total = e if s > 0 else build.map("neg", e)
        else:
            total = build.add(total, e) if s > 0 else build.sub(total, e)
    return total


def _negated(build: Builder, exponent: Access | None) -> Access | None:
    return None if exponent is None else build.map("neg", exponent)


def _summed(program: Program) -> dict[Node, tuple[Index, ...]]:
    """The exponentials that are summed over axes that their argument depends on, and that nothing keeps from
    growing, with these axes."""
    found: dict[Node, tuple[Index, ...]] = {}
    refused: set[Node] = set()
    for node in program.nodes:
        if not is_sum(node):
            continue
        for access, axes in _exponentials(node):
            here = tuple(a for a in access.node.axes if a in axes)
            if not here or _bounded(access.node, here) or found.setdefault(access.node, here) != here:
                refused.add(access.node)
    return {n: axes for n, axes in found.items() if n not in refused}


def _exponentials(node: Node) -> list[tuple[Access, frozenset[Index]]]:
    """Exponentials that are factors of a summed body, with their axes that are summed over."""
    found: list[tuple[Access, frozenset[Index]]] = []
    stack = list(node.args)
    while stack:
        access = plain(stack.pop())
        op = access.node.op
        if not isinstance(op, Map):
            continue
        args = [a.at(at_axes(access)) for a in op.args]
        if op.fn == "exp":
            bound = frozenset(
                axis
                for axis, term in zip(access.node.axes, access.terms, strict=True)
                if term.variable in node.bound
            )
            found.append((access, bound))
        elif op.fn in ("mul", "neg"):
            stack += args
        elif op.fn == "div":
            stack.append(args[0])
        elif op.fn == "select":
            stack += args[1:]
    return found


def _bounded(node: Node, axes: tuple[Index, ...]) -> bool:
    """Has the user taken something off the exponent that does not depend on the summed axes?"""
    op = node.op
    assert isinstance(op, Map)
    stack = [plain(op.args[0])]
    while stack:
        access = stack.pop()
        inner = access.node.op
        if not isinstance(inner, Map):
            continue
        args = [plain(a.at(at_axes(access))) for a in inner.args]
        if inner.fn == "sub" and args[1].indices and not args[1].indices & set(axes):
            return True
        if inner.fn in ("mul", "div", "neg", "select"):
            stack += args
    return False
