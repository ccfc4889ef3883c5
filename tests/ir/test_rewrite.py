"""Rewriting a DAG bottom-up: sharing is kept, gathers inside terms follow, names move along."""

from __future__ import annotations

from cleave.ir.ops import Access, Map, Node, make_node
from cleave.ir.rewrite import Replaced, replace_arguments, replace_nodes, rewrite
from cleave.ir.text import parse_program, print_program

TEXT = """
program look(x: f32[N, D], ids: i64[T]) {
  up[t: T]: i64 = add(ids[t], 1)
  y[t: T, d: D]: f32 = exp(x[up[t], d])
  z[t: T, d: D]: f32 = add(y[t, d], y[t, d])
  return z[t, d]
}
"""


def test_a_rewrite_that_changes_nothing_gives_the_same_nodes() -> None:
    program = parse_program(TEXT)
    replaced = rewrite((o.node for o in program.outputs), lambda n, r: replace_arguments(n, r).read())
    assert all(new.node is old for old, new in replaced.items())
    assert print_program(replace_nodes(program, replaced)) == print_program(program)


def test_nodes_inside_gathers_are_replaced() -> None:
    program = parse_program(TEXT)

    def visit(node: Node, replaced: Replaced) -> Access:
        new = replace_arguments(node, replaced)
        if isinstance(new.op, Map) and new.op.fn == "add" and new.dtype == "i64":
            new = make_node(Map("sub", new.op.args), new.axes, new.dtype)
        return new.read()

    changed = replace_nodes(program, rewrite((o.node for o in program.outputs), visit))
    assert "up[t: T]: i64 = sub(ids[t], 1)" in print_program(changed)
    assert "x[up[t], d]" in print_program(changed)
