"""States of a loop that are several values side by side, taken apart.

A state that is stacked (`torch.stack` at the end of the body, `state[:, k]` at its start) is read at fixed
positions of an axis of known size. It becomes as many states, each without that axis: they then stay in
registers, and nothing is put together between two steps. The last state is put together behind the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cleave.ir.candidate import Candidate, Step
from cleave.ir.dims import Dim, Extent, Gather, Index, Term, Union, atoms_of, size_of, substitute, term, var
from cleave.ir.loops import Loop, loop_of, scan_nodes
from cleave.ir.ops import (
    Access,
    Const,
    Input,
    Map,
    Node,
    Number,
    Position,
    Scan,
    const,
    input_node,
    make_node,
    map_node,
    position,
    rebuild,
)
from cleave.ir.program import Output, Program, sort_nodes
from cleave.ir.rewrite import Replaced, replace_access, replace_arguments, replace_nodes, rewrite

MOST_PARTS = 16
"""Positions that an axis may have and be taken apart."""


def take_apart(program: Program) -> Program:
    """The same program, its stacked states taken apart; the program itself if there are none."""
    sizes = _known(program)
    new: dict[Loop, Sequence[Access]] = {}

    def visit(node: Node, replaced: Replaced) -> Access:
        fresh = replace_arguments(node, replaced)
        if not isinstance(fresh.op, Scan):
            return fresh.read()
        loop = loop_of(fresh.op)
        if loop not in new:
            new[loop] = _parted(loop, sizes)
        return new[loop][fresh.op.result]

    if not any(isinstance(node.op, Scan) for node in program.nodes):
        return program
    replaced = rewrite((*program.inputs, *(o.node for o in program.outputs)), visit)
    if all(access.node is node for node, access in replaced.items()):
        return program
    return replace_nodes(program, replaced)


def _known(program: Program) -> dict[Dim, int]:
    """The sizes that are fixed, and those that follow from fixed ones; others wait for a call."""
    known: dict[Dim, int] = {atom: value for atom, value in program.sizes if isinstance(value, int)}
    for atom, value in program.sizes:
        if isinstance(value, Extent) and all(a in known for d, _ in value.terms for a in atoms_of(d)):
            known[atom] = value.at(known)
    return known


def states_apart(candidate: Candidate) -> Candidate:
    """The candidate with its stacked states taken apart: bit by bit the same values."""
    apart = candidate.program if candidate.folds else take_apart(candidate.program)
    if apart is candidate.program:
        return candidate
    law = Step("a stacked state is as many states", "loop", "state[:, k]", "state_k")
    return replace(candidate, program=apart, derivation=(*candidate.derivation, law), form="states apart")


def _parted(loop: Loop, sizes: Mapping[Dim, int]) -> Sequence[Access]:
    """All results of a loop, its stacked states taken apart one after the other."""
    results: list[Access] = [loop.result(n).read() for n in range(len(loop.body.outputs))]
    where = list(range(loop.states))
    for number in range(loop.states):
        found = _stacked(loop, where[number], sizes)
        if found is None:
            continue
        place, (axis, count) = where[number], found
        loop = _split(loop, place, axis, count)
        where = [n + count - 1 if n > place else n for n in where]
        results = _joined(loop, results, number, where, axis, count)
    return results


def _joined(
    loop: Loop, results: Sequence[Access], number: int, where: Sequence[int], axis: int, count: int
) -> list[Access]:
    """The old results, read from the new loop; `where` says at which state each old one begins now."""
    states = len(where)
    shift = loop.states - states
    found: list[Access] = []
    for n, old in enumerate(results):
        if n >= states:
            found.append(loop.result(n + shift).read())
        elif n == number:
            parts = [loop.result(where[n] + c) for c in range(count)]
            found.append(_together(parts, old.node, axis).read())
        elif isinstance(old.node.op, Scan):
            found.append(loop.result(where[n]).read())
        else:
            found.append(_rebased(old, loop, where[n]))
    return found


def _rebased(old: Access, loop: Loop, first: int) -> Access:
    """What put an earlier state together, reading the results of the new loop."""
    parts = [node for node in sort_nodes([old.node]) if isinstance(node.op, Scan)]
    order = sorted(parts, key=lambda node: node.op.result if isinstance(node.op, Scan) else 0)
    swap = {node: loop.result(first + c).read() for c, node in enumerate(order)}

    def visit(node: Node, replaced: Replaced) -> Access:
        return swap[node] if node in swap else replace_arguments(node, replaced).read()

    return rewrite([old.node], visit)[old.node]


def _together(parts: Sequence[Node], old: Node, axis: int) -> Node:
    """The stacked state from its parts: which one, by the position on the axis."""
    own = [Index(dim, n) for n, dim in enumerate(old.dims)]
    rest = [i for n, i in enumerate(own) if n != axis]
    here = position([own[axis]], own[axis])
    value = parts[-1](*rest)
    for c in reversed(range(len(parts) - 1)):
        same = map_node("eq", [own[axis]], [here(own[axis]), const(c, "i64")], "bool")
        value = map_node("select", own, [same(own[axis]), parts[c](*rest), value], old.dtype)(*own)
    return value.node


# ---------------------------------------------------------------- what may be taken apart


def _stacked(loop: Loop, number: int, sizes: Mapping[Dim, int]) -> tuple[int, int] | None:
    """The axis of a state that the body reads at fixed positions only, and its size."""
    state = loop.body.inputs[number]
    if any(output.node is state for output in loop.body.outputs):
        return None
    reads = [a for node in loop.body.nodes for a in node.reads if a.node is state]
    direct = [a for node in loop.body.nodes for a in node.args if a.node is state]
    if not reads or len(direct) != len(reads):
        return None
    for axis, dim in enumerate(state.dims):
        if isinstance(dim, Union):
            continue
        try:
            count = size_of(dim, sizes)
        except KeyError:
            continue
        places = [_fixed(a.terms[axis]) for a in reads]
        if 1 < count <= MOST_PARTS and all(p is not None and 0 <= p < count for p in places):
            return axis, count
    return None


def _fixed(value: Term) -> int | None:
    return value.offset.const if not value.leaves and not value.offset.terms else None


def _split(loop: Loop, number: int, axis: int, count: int) -> Loop:
    """The loop with one state as `count` states."""
    body, state = loop.body, loop.body.inputs[number]
    assert isinstance(state.op, Input)
    rest = [dim for n, dim in enumerate(state.dims) if n != axis]
    taken = {*loop.names, *(o.name for o in body.outputs)}
    names = [_free(f"{state.op.name}{c}", taken) for c in range(count)]
    parts = [input_node(name, [[dim] for dim in rest], state.dtype) for name in names]
    replaced = _reading_parts(body, state, axis, parts)
    outputs: list[Output] = []
    for n, output in enumerate(body.outputs):
        access = replaced[output.node]
        if n != number:
            outputs.append(replace(output, node=access.node))
            continue
        for c, name in enumerate(names):
            node = _part_of(access.node, axis, c)
            outputs.append(Output(name, node, tuple((k,) for k in range(len(node.axes)))))
    inputs = (*body.inputs[:number], *parts, *body.inputs[number + 1 :])
    kept = {replaced[node].node: name for node, name in body.names.items() if node in replaced}
    lines = {replaced[node].node: line for node, line in body.lines.items() if node in replaced}
    fresh = Program(body.name, inputs, tuple(outputs), (), kept, lines)
    first: list[Access] = []
    for c in range(count):
        old = loop.args[number]
        own = [Index(dim, k) for k, dim in enumerate(rest)]
        places: list[Term] = [var(i) for i in own]
        places.insert(axis, term(offset=c))
        first.append(old.at(dict(zip(state.axes, places, strict=True))))
    args = (*loop.args[:number], *first, *loop.args[number + 1 :])
    nodes = scan_nodes(loop.over, fresh, loop.states + count - 1, args)
    op = nodes[0].op
    assert isinstance(op, Scan)
    return loop_of(op)


def _reading_parts(body: Program, state: Node, axis: int, parts: Sequence[Node]) -> dict[Node, Access]:
    """What each value of a body becomes where it reads the parts of a state and not the state."""

    def visit(node: Node) -> Access:
        if not any(a.node is state for a in node.args):
            return replace_arguments(node, replaced).read()
        args: list[Access] = []
        for a in node.args:
            if a.node is not state:
                args.append(replace_access(a, replaced))
                continue
            terms = [t for n, t in enumerate(a.terms) if n != axis]
            place = _fixed(a.terms[axis])
            assert place is not None
            args.append(Access(parts[place], tuple(terms)))
        return rebuild(node, args).read()

    replaced: dict[Node, Access] = {}
    for node in sort_nodes(o.node for o in body.outputs):
        if node is not state:
            replaced[node] = visit(node)
    return replaced


def _free(wish: str, taken: set[str]) -> str:
    while wish in taken:
        wish += "_"
    taken.add(wish)
    return wish


def _part_of(node: Node, axis: int, place: int) -> Node:
    """The part of a stacked value at one position: selects by the position are decided."""
    own = [Index(dim, k) for k, dim in enumerate(d for n, d in enumerate(node.dims) if n != axis)]
    terms: list[Term] = [var(i) for i in own]
    terms.insert(axis, term(offset=place))
    access = _decided(Access(node, tuple(terms)))
    plain = access.node.dims == tuple(i.dim for i in own) and access.terms == tuple(map(var, own))
    if plain and not isinstance(access.node.op, Input | Const | Scan):
        return access.node
    return make_node(Map("id", (access,)), own, node.dtype)


def _decided(access: Access) -> Access:
    """What a chain of selects reads, where the position says which branch; else the access itself."""
    while True:
        node = access.node
        inner = dict(zip(node.axes, access.terms, strict=True))
        if isinstance(node.op, Map) and node.op.fn == "select":
            holds = _number(node.op.args[0].at(inner))
            if holds is None:
                return access
            chosen = node.op.args[1 if holds else 2]
        elif isinstance(node.op, Map) and node.op.fn == "id" and node.op.args[0].node.dtype == node.dtype:
            chosen = node.op.args[0]
        else:
            return access
        if chosen.node.dtype != node.dtype:
            return access
        access = chosen.at(inner)


def _number(access: Access) -> Number | None:
    """The value of an access to positions and literals, if it is known."""
    node = access.node
    inner = dict(zip(node.axes, access.terms, strict=True))
    match node.op:
        case Const(value):
            return value
        case Position(place):
            if any(isinstance(leaf, Gather) for leaf, _ in place.leaves):
                return None
            return _fixed(substitute(place, inner))
        case Map("eq", (a, b)):
            one, two = _number(a.at(inner)), _number(b.at(inner))
            return None if one is None or two is None else one == two
        case _:
            return None
