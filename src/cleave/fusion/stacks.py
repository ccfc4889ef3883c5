"""Stacks in a program: values put side by side along an axis, which a program writes as selects by position.

`torch.stack` is captured as `select(i == 0, a, select(i == 1, b, c))`. For a planner that is one operation, a
concatenation of parts of one element each: XLA has it so, and its rules speak of it. `stacks_of` finds these
chains; their inner selects and comparisons belong to the operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cleave.ir.dims import Dim, Index, size_of, substitute
from cleave.ir.ops import Access, Const, Map, Node, Position
from cleave.ir.program import Program


@dataclass(frozen=True, slots=True)
class Stack:
    """The parts of a stacked node along its axis number `axis`, each read at the node's other axes, and the
    nodes that only say which part stands where."""

    axis: int
    parts: tuple[Access, ...]
    inner: tuple[Node, ...]


def stacks_of(program: Program, sizes: Mapping[Dim, int]) -> dict[Node, Stack]:
    """The stacked nodes of a program, each by the outermost select of its chain."""
    users: dict[Node, set[Node]] = {}
    for node in program.nodes:
        for access in node.reads:
            users.setdefault(access.node, set()).add(node)
    alone = {n for n, readers in users.items() if len(readers) == 1} - {o.node for o in program.outputs}
    found: dict[Node, Stack] = {}
    inside: set[Node] = set()
    for node in reversed(program.nodes):
        stack = None if node in inside else _stack(node, alone, sizes)
        if stack is not None:
            found[node] = stack
            inside |= set(stack.inner)
    return found


def inner_nodes(program: Program, stacks: Mapping[Node, Stack]) -> set[Node]:
    """The nodes that nothing but stacks reads: no operations of their own."""
    found = {n for stack in stacks.values() for n in stack.inner}
    found |= {a.node for n in found for a in n.reads if isinstance(a.node.op, Position | Const)}
    found -= {o.node for o in program.outputs}
    for node in reversed(program.nodes):  # readers first
        if node in stacks:
            found -= {a.node for a in stacks[node].parts}
        elif node not in found:
            found -= {a.node for a in node.reads}
    return found


def _stack(node: Node, alone: set[Node], sizes: Mapping[Dim, int]) -> Stack | None:
    """The chain that begins at a select: position 0 first, a value for each position of the axis."""
    parts: list[Access] = []
    inner: list[Node] = []
    index: Index | None = None
    here = node
    while (place := _place(here)) is not None and place[1] == len(parts) and index in (None, place[0]):
        index = place[0]
        which, part, rest = here.args
        parts.append(part)
        inner.append(which.node)
        goes_on = rest.node in alone and rest.node.axes == node.axes and _is_whole(rest)
        if len(parts) + 1 == size_of(index.dim, sizes) or not goes_on:
            parts.append(rest)
            break
        inner.append(rest.node)
        here = rest.node
    if index is None or len(parts) != size_of(index.dim, sizes):
        return None
    if any(index in part.indices or part.node.dtype != node.dtype for part in parts):
        return None
    return Stack(node.axes.index(index), tuple(parts), tuple(dict.fromkeys(inner)))


def _place(node: Node) -> tuple[Index, int] | None:
    """The index and the number that a select compares it with."""
    if not isinstance(node.op, Map) or node.op.fn != "select":
        return None
    which = node.op.args[0]
    if not isinstance(which.node.op, Map) or which.node.op.fn != "eq":
        return None
    left, right = (a.at(dict(zip(which.node.axes, which.terms, strict=True))) for a in which.node.op.args)
    if not isinstance(left.node.op, Position) or not isinstance(right.node.op, Const):
        return None
    index = substitute(left.node.op.term, dict(zip(left.node.axes, left.terms, strict=True))).variable
    number = right.node.op.value
    return (index, number) if isinstance(index, Index) and isinstance(number, int) else None


def _is_whole(access: Access) -> bool:
    return tuple(t.variable for t in access.terms) == access.node.axes
