"""Rebuild a DAG bottom-up: the one loop behind every pass that replaces nodes by other values.

A pass is a function from a node, its arguments already replaced, to the access (over the node's own axes)
that stands for it from now on. Names and source lines follow the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from cleave.ir.dims import Gather, Inject, Join, Leaf, Term, term, var
from cleave.ir.ops import Access, Cat, Contract, Map, Node, Position, Reduce, Scan, make_node
from cleave.ir.program import Output, Program, sort_nodes

Replaced = Mapping[Node, Access]


def replace_access(access: Access, replaced: Replaced) -> Access:
    """The access that reads the replacement of a node, terms and gathers inside them included."""
    terms = tuple(replace_term(t, replaced) for t in access.terms)
    target = replaced.get(access.node)
    if target is None:
        return Access(access.node, terms)
    return target.at(dict(zip(access.node.axes, terms, strict=True)))


def replace_term(value: Term, replaced: Replaced) -> Term:
    """The term with the nodes that its gathers read replaced."""
    leaves: list[tuple[Leaf, int]] = []
    for leaf, coefficient in value.leaves:
        match leaf:
            case Gather(access):
                leaf = Gather(replace_access(access, replaced))
            case Inject(part, inner):
                leaf = Inject(part, replace_term(inner, replaced))
            case Join(part, within):
                leaf = Join(replace_term(part, replaced), replace_term(within, replaced))
            case _:
                pass
        leaves.append((leaf, coefficient))
    return term(*leaves, offset=value.offset)


def _stays(access: Access, replaced: Replaced) -> bool:
    """Is a node replaced by itself, read at its own axes? By identity: nearly all of a program stays."""
    target = replaced.get(access.node)
    if target is None:
        return True
    return target.node is access.node and all(
        len(t.leaves) == 1 and t.leaves[0][0] is axis and t.leaf is axis
        for axis, t in zip(access.node.axes, target.terms, strict=True)
    )


def replace_arguments(node: Node, replaced: Replaced, dtype: str | None = None) -> Node:
    """The node with its arguments replaced, and another dtype if one is given."""
    if dtype in (None, node.dtype) and all(_stays(access, replaced) for access in node.reads):
        return node
    op = node.op
    match op:
        case Position(value):
            op = Position(replace_term(value, replaced))
        case Map(fn, args):
            op = Map(fn, tuple(replace_access(a, replaced) for a in args))
        case Reduce(kind, bound, arg):
            op = Reduce(kind, bound, replace_access(arg, replaced))
        case Contract(bound, args):
            op = Contract(bound, tuple(replace_access(a, replaced) for a in args))
        case Cat(axis, pieces):
            op = Cat(axis, tuple(replace_access(a, replaced) for a in pieces))
        case Scan(over, body, states, args, result):
            # A body's dtypes are its own: what it reads is converted on the way in.
            dtype = None
            op = Scan(over, body, states, tuple(replace_access(a, replaced) for a in args), result)
        case _:
            pass
    return make_node(op, node.axes, dtype or node.dtype)


def rewrite(roots: Iterable[Node], visit: Callable[[Node, Replaced], Access]) -> dict[Node, Access]:
    """Replace all nodes below the roots, arguments first: `visit(node, replaced)` gives the successor."""
    replaced: dict[Node, Access] = {}
    for node in sort_nodes(roots):
        replaced[node] = visit(node, replaced)
    return replaced


def replace_nodes(program: Program, replaced: Replaced) -> Program:
    """The program with outputs, inputs, names and lines replaced. An output whose replacement is not read at
    its own axes in order gets a node of its own that copies it."""
    outputs = tuple(replace(o, node=_whole(o, replaced)) for o in program.outputs)
    inputs = tuple(replaced[n].node if n in replaced else n for n in program.inputs)
    names: dict[Node, str] = {}
    lines: dict[Node, str] = {}
    for old, new in replaced.items():
        if old in program.names:
            names.setdefault(new.node, program.names[old])
        if old in program.lines:
            lines.setdefault(new.node, program.lines[old])
    return replace(program, inputs=inputs, outputs=outputs, names=names, lines=lines)


def _whole(output: Output, replaced: Replaced) -> Node:
    old = output.node
    access = replaced.get(old, old.read())
    if access.node.dims == old.dims and access.terms == tuple(map(var, old.axes)):
        return access.node
    return make_node(Map("id", (access,)), old.axes, access.node.dtype)
