"""What values are called in print: the names that a program gives them, else names made of their operations.

A name that a program gives is kept where it is a word, no other value has it and no input is called so. Dims
are named by their atoms, of which a program declares those that its inputs do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cleave.errors import Bug
from cleave.ir.dims import Atom, Extent, Gather, Index, Inject, Join, Lookup, Term, Union, atoms_of
from cleave.ir.lexis import index_names, is_word, quote
from cleave.ir.loops import Loop, loops_in
from cleave.ir.ops import Cat, Const, Contract, Input, Map, Node, Position, Reduce, Scalar, Scan, SizeOf
from cleave.ir.program import Output, Program, sort_nodes


@dataclass(slots=True)
class Names:
    """What nodes and indices are called in one block. `taken` holds what an index must not be called,
    `texts` the names in backquotes where they need them."""

    nodes: dict[Node, str]
    inline: frozenset[Node]
    taken: set[str] = field(default_factory=set[str])
    texts: dict[Node, str] = field(default_factory=dict[Node, str])
    loops: dict[Loop, str] = field(default_factory=dict["Loop", str])

    def indices(self, node: Node) -> dict[Index, str]:
        """Names for the axes and bound indices of a node."""
        own = (*node.axes, *node.bound)
        return dict(zip(own, index_names((i.dim for i in own), self.taken), strict=True))


def names_of(program: Program, extra: Sequence[Node] = (), taken: Iterable[str] = ()) -> Names:
    """Names for a program's nodes, and for `extra` nodes which are defined beside it."""
    order = sort_nodes([*(o.node for o in program.outputs), *extra])
    inputs: dict[str, Node] = {}
    for node in program.inputs:
        name = input_name(node)
        if inputs.setdefault(name, node) is not node:
            raise Bug(f"program {program.name}: two inputs are named {name}")
    given = {n: program.names[n] for n in order if n in program.names and n not in program.inputs}
    counts: dict[str, int] = {}
    for name in given.values():
        counts[name] = counts.get(name, 0) + 1
    named = {n: t for n, t in given.items() if counts[t] == 1 and is_word(t) and t not in inputs}
    names = Names({n: t for t, n in inputs.items()} | named, _inline(program, extra, order, named))
    _make_up(names, order, program.outputs, taken)
    names.texts = {node: quote(name) for node, name in names.nodes.items()}
    atoms = (*program.dims, *(a for n in order for a in atoms_in(n)))
    names.taken = {*names.nodes.values(), *(a.name for a in atoms)}
    names.loops = {loop: f"loop{n}" for n, loop in enumerate(loops_in(order), 1)}
    return names


def _make_up(
    names: Names, order: Sequence[Node], outputs: Sequence[Output], taken: Iterable[str] = ()
) -> None:
    """Name what has no name yet: an output's node like the output, others after their operation."""
    used = {*names.nodes.values(), *taken}
    for output in outputs:
        if output.node not in names.nodes and is_word(output.name) and output.name not in used:
            names.nodes[output.node] = output.name
            used.add(output.name)
    used |= {output.name for output in outputs}
    last: dict[str, int] = {}
    for node in order:
        if node in names.nodes or node in names.inline:
            continue
        stem = _stem(node)
        name = ""
        while not name or name in used:
            last[stem] = last.get(stem, 0) + 1
            name = f"{stem}{last[stem]}"
        used.add(name)
        names.nodes[node] = name


def _inline(
    program: Program, extra: Sequence[Node], order: Sequence[Node], named: Mapping[Node, str]
) -> frozenset[Node]:
    """Literals and sizes that need no line of their own."""
    kept = {*(o.node for o in program.outputs), *extra}
    for node in order:
        direct = list(node.args)
        kept |= {a.node for a in node.reads if not any(a is d for d in direct)}
    return frozenset(
        n for n in order if isinstance(n.op, Const | SizeOf) and n not in named and n not in kept
    )


def _stem(node: Node) -> str:
    match node.op:
        case Map(fn, _):
            return fn
        case Reduce(kind, _, _):
            return kind
        case Contract():
            return "dot"
        case SizeOf():
            return "count"
        case Position():
            return "at"
        case Cat():
            return "joined"
        case Scan(body=body, result=result):
            return body.outputs[result].name if is_word(body.outputs[result].name) else "state"
        case _:
            return "value"


def input_name(node: Node) -> str:
    """The name of an input or a scalar; `Bug` for any other node."""
    if not isinstance(node.op, Input | Scalar):
        raise Bug(f"an input is a {type(node.op).__name__}")
    return node.op.name


# ---------------------------------------------------------------- atoms that must be declared


def atoms_in(node: Node) -> list[Atom]:
    """The atoms that a node's own line speaks of, in order, as often as it does."""
    found = [a for i in (*node.axes, *node.bound) for a in atoms_of(i.dim)]
    match node.op:
        case SizeOf(dim):
            found += atoms_of(dim)
        case Position(value):
            found += _atoms_in_terms([value])
        case Cat(axis, _):
            dim = node.axes[axis].dim
            assert isinstance(dim, Union)
            found += [a for part in dim.parts for a in atoms_of(part)]
        case Scan(over, body):
            found += [*atoms_of(over), *body.dims]
        case _:
            pass
    return found + [a for access in node.args for a in _atoms_in_terms(access.terms)]


def _atoms_in_terms(terms: Iterable[Term]) -> list[Atom]:
    found: list[Atom] = []
    for value in terms:
        for leaf, _ in value.leaves:
            match leaf:
                case Index(dim, _):
                    found += atoms_of(dim)
                case Gather(access):
                    found += _atoms_in_terms(access.terms)
                case Inject(_, inner):
                    found += _atoms_in_terms([inner])
                case Join(part, within):
                    found += _atoms_in_terms([part, within])
                case Lookup():
                    pass
        found += _atoms_in_extent(value.offset)
    return found


def _atoms_in_extent(value: Extent) -> list[Atom]:
    return [a for dim, _ in value.terms for a in atoms_of(dim)]
