"""Maxima that nothing needs: stabilisers of exponentials whose exponents have bounds anyway.

`exp(f - max f)` never overflows; where the range of `f` is known to be small, neither does `exp(f)`, and the
maximum need not be found. Only for `numerics="fast"`: the bound is listed as a condition, and the pipeline
compares it with the limit of the dtype.
"""

from __future__ import annotations

from cleave.algebra.frame import at_axes
from cleave.algebra.ranges import range_of
from cleave.algebra.stability import below_zero
from cleave.ir.ops import FLOATS, Access, Map, Node, map_node
from cleave.ir.program import Program
from cleave.ir.rewrite import Replaced, replace_arguments, replace_nodes, rewrite

LAW = "exp(f - u) / sum exp(f - u) = exp(f) / sum exp(f): u is not needed where f has bounds"


def without_maxima(program: Program) -> Program | None:
    """The program with `exp(f)` for `exp(f - max f)` wherever `f` has bounds; None where there is none."""
    changed: list[Node] = []

    def visit(node: Node, replaced: Replaced) -> Access:
        new = replace_arguments(node, replaced)
        entry = bounded_entry(node)
        if entry is None:
            return new.read()
        changed.append(node)
        assert isinstance(new.op, Map)
        inner = new.op.args[0]
        assert isinstance(inner.node.op, Map)
        shifted = inner.node.op.args[0].at(at_axes(inner))
        return map_node("exp", node.axes, (shifted,), node.dtype).read()

    made = replace_nodes(program, rewrite((o.node for o in program.outputs), visit))
    return made if changed else None


def bounded_entry(node: Node) -> Access | None:
    """`f`, if a node is `exp(f - max f)` and `f` has bounds."""
    op = node.op
    if not isinstance(op, Map) or op.fn != "exp" or node.dtype not in FLOATS:
        return None
    argument = op.args[0]
    inner = argument.node.op
    if not isinstance(inner, Map) or inner.fn != "sub" or not below_zero(argument):
        return None
    entry = inner.args[0].at(at_axes(argument))
    return entry if range_of(entry).bounded else None
