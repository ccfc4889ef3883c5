"""A plan of a `Program` as programs of its own, one for each kernel, in the order to run them.

A piece reads arguments of the whole program and values that earlier pieces wrote, and writes what later
pieces or the caller need. Views are accesses again: they belong to whoever reads them. Each piece goes
through the same scheduler and emitters as any program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from cleave.errors import Bug, Invalid
from cleave.fusion.graph import Graph, sorted_by_need
from cleave.fusion.planning import Group, Plan
from cleave.ir.dims import Atom, Extent, Gather, Inject, atoms_of, size_of
from cleave.ir.ops import Access, Const, Input, Node, Position, Scalar, Scan, SizeOf, input_node
from cleave.ir.program import Output, Program, sort_nodes
from cleave.ir.rewrite import replace_arguments
from cleave.ir.sizes import infer_sizes

TRIED = 64
"""A size that is tried for a dynamic dim, and the next ones for further dims."""
EVERYWHERE = Const | SizeOf | Position
"""What every piece computes for itself."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One kernel's program. Its inputs and outputs go by name: `reads` are arguments of the whole program or
    values of earlier pieces; an output whose name is one of the whole program's is a result."""

    program: Program
    group: Group
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def pieces_of(plan: Plan, program: Program) -> tuple[Piece, ...]:
    """The pieces of a plan that was made for this program's graph, in the order to run them."""
    return pieces_of_groups(plan.groups, plan.graph, program)


def pieces_of_groups(every: Sequence[Group], graph: Graph, program: Program) -> tuple[Piece, ...]:
    """The pieces of a plan's groups."""
    groups = [g for g in every if any(_own(g))]
    owner: dict[Node, Group] = {}
    for group in groups:
        for node in (o.node for o in group.outputs if o.node is not None):
            owner.setdefault(node, group)
    for group in groups:
        for node in _own(group):
            owner.setdefault(node, group)
    needs = {group.name: _needs(group) for group in groups}
    read = {n for found in needs.values() for n in found}
    missing = [
        n
        for n in (*(o.node for o in program.outputs), *read)
        if n not in owner and not isinstance(n.op, Input | Scalar | EVERYWHERE)
    ]
    if missing:
        raise Bug(f"no kernel of the plan for {program.name} computes {missing[0].op}")
    order = sorted_by_need(
        {name: [owner[n].name for n in found if n in owner] for name, found in needs.items()},
        needs,
        f"the plan for {program.name}",
    )
    by_name = {g.name: g for g in groups}
    labels = _labels(graph)
    made = [_piece(program, by_name[name], read, owner, labels) for name in order]
    return tuple(p for p in made if p.writes)


def _own(group: Group) -> list[Node]:
    """The nodes that a group computes, arguments first."""
    members = [m for m in group.members if m.node is not None and not m.view]
    nodes = dict.fromkeys(n for m in members for n in (*reversed(m.inner), m.node) if n is not None)
    return [n for n in nodes if not isinstance(n.op, Input | Scalar | EVERYWHERE)]


def _needs(group: Group) -> tuple[Node, ...]:
    """The values that a group reads and does not compute."""
    own = set(_own(group))
    found: dict[Node, None] = {}
    waiting = [a.node for n in own for a in n.reads]
    seen: set[Node] = set()
    order = sort_nodes(_own(group))
    while waiting:
        node = waiting.pop()
        if node in seen or node in own:
            continue
        seen.add(node)
        if isinstance(node.op, EVERYWHERE):
            waiting += [a.node for a in node.reads]
        elif not isinstance(node.op, Input | Scalar):
            found[node] = None
    return tuple(n for n in order if n in found)


def _labels(graph: Graph) -> Mapping[Node, str]:
    return {v.node: "t_" + v.name.replace(".", "_") for v in graph.vertices if v.node is not None}


def _piece(
    program: Program, group: Group, read: set[Node], owner: Mapping[Node, Group], labels: Mapping[Node, str]
) -> Piece:
    own = _own(group)
    replaced: dict[Node, Access] = {}
    for node in sort_nodes(own):
        if node in own or isinstance(node.op, EVERYWHERE):
            replaced[node] = replace_arguments(node, replaced).read()
        elif isinstance(node.op, Input | Scalar):
            replaced[node] = node.read()
        elif node in labels:  # what stands inside an operation of another group is not read
            # A product of dims is an axis of the caller's alone: inside, each dim has an axis.
            replaced[node] = input_node(labels[node], [(d,) for d in node.dims], node.dtype).read()
    outputs: list[Output] = []
    for node in own:
        if owner[node] is not group:
            continue
        new = replaced[node].node
        outputs += [Output(o.name, new, o.layout) for o in program.outputs if o.node is node]
        if node in read:
            outputs.append(Output(labels[node], new, tuple((k,) for k in range(len(new.axes)))))
    reached = sort_nodes(o.node for o in outputs)
    inputs = dict.fromkeys(n for n in reached if isinstance(n.op, Input | Scalar))
    label = f"{program.name}_{labels[own[-1]]}"
    made = _sized(program, inputs, tuple(outputs), label)
    names = tuple(n.op.name for n in made.inputs if isinstance(n.op, Input | Scalar))
    return Piece(made, group, names, tuple(o.name for o in outputs))


def _sized(program: Program, inputs: Mapping[Node, None], outputs: tuple[Output, ...], label: str) -> Program:
    """A piece's program. Where the sizes of its dims do not follow from what it reads (positions, random
    numbers by their counters), it takes further arguments of the whole program, for their shapes alone."""
    reads = dict(inputs)
    nodes = sort_nodes(o.node for o in outputs)
    for node in (*program.inputs, None):
        used = _atoms((*reads, *nodes))
        made = Program(label, tuple(reads), outputs, _sizes(program, used))
        if node is None or _follows(made, program.dynamic, used):
            return made
        helps = {a for d in node.dims for a in atoms_of(d)} & used
        if isinstance(node.op, Input) and helps:
            reads[node] = None
    raise Bug(f"the sizes of {label} were not looked at")


def _follows(made: Program, dynamic: Sequence[Atom], used: set[Atom]) -> bool:
    """Whether the sizes that a piece uses follow from the shapes of its arguments, tried at some sizes of the
    whole program's dynamic dims."""
    asked = [dim for dim in dynamic if dim in used]
    if not asked:
        return True
    sizes = made.bind({dim: TRIED + n for n, dim in enumerate(asked)})
    shapes = {
        n.op.name: tuple(prod(size_of(d, sizes) for d in group) for group in n.op.layout)
        for n in made.inputs
        if isinstance(n.op, Input)
    }
    try:
        found = infer_sizes(made, shapes)
    except Invalid:
        return False
    return all(dim in found for dim in asked)


def _atoms(nodes: Iterable[Node]) -> set[Atom]:
    """The atoms whose sizes nodes use: of their axes, of places that they read at, as numbers, in loops."""
    found: set[Atom] = set()
    accesses: list[Access] = []
    for node in nodes:
        dims = [*node.dims, *(i.dim for i in node.bound)]
        if isinstance(node.op, SizeOf):
            dims.append(node.op.dim)
        elif isinstance(node.op, Scan):
            dims += [node.op.over, *node.op.body.dims]
        found.update(a for d in dims for a in atoms_of(d))
        accesses += node.reads
    while accesses:
        for term in accesses.pop().terms:
            found.update(a for d, _ in term.offset.terms for a in atoms_of(d))
            for leaf, _ in term.leaves:
                if isinstance(leaf, Gather):
                    accesses.append(leaf.access)
                elif isinstance(leaf, Inject):
                    found.update(a for d, _ in leaf.term.offset.terms for a in atoms_of(d))
    return found


def _sizes(program: Program, atoms: set[Atom]) -> tuple[tuple[Atom, int | Extent], ...]:
    """What the program knows of the sizes that are used. `atoms` takes in those that they follow from."""
    known = dict(program.sizes)
    waiting = sorted(atoms, key=str)
    while waiting:
        value = known.get(waiting.pop())
        if isinstance(value, Extent):
            more = {a for d, _ in value.terms for a in atoms_of(d)} - atoms
            atoms |= more
            waiting += sorted(more, key=str)
    return tuple((a, v) for a, v in program.sizes if a in atoms)
