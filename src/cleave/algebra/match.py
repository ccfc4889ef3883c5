"""Two programs over one set of dims: inputs are matched by name and their dims by position.

Dims of the second program take the names of the first's. If it needs two dims to be one that the first keeps
apart, that is a condition, not a match.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cleave.errors import Unsupported
from cleave.ir.dims import (
    Atom,
    Dim,
    Extent,
    Gather,
    Index,
    Inject,
    Join,
    Leaf,
    Part,
    Parts,
    Term,
    Union,
    extent,
    term,
)  # fmt: skip
from cleave.ir.ops import (
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
    Scan,
    SizeOf,
    input_node,
    make_node,
    size,
)  # fmt: skip
from cleave.ir.program import Program

Names = Mapping[Atom, Dim]


@dataclass(frozen=True)
class Match:
    """The second program over the first one's dims; `equal` lists sizes it needs to be equal that the first
    keeps apart; `problem` says why the two cannot be compared, if they cannot."""

    program: Program
    equal: tuple[tuple[Dim, Dim], ...] = ()
    problem: str = ""


def match(a: Program, b: Program) -> Match:
    """Program `b` with the dims of `a`; see `Match`."""
    names: dict[Atom, Dim] = {}
    equal: list[tuple[Dim, Dim]] = []
    ours = {_name(n): n for n in a.inputs}
    for node in b.inputs:
        mine = ours.get(_name(node))
        if mine is None:
            used = node in b.nodes
            if used:
                return Match(b, problem=f"the second program reads {_name(node)}, which the first lacks")
            continue
        if _kind(mine.dtype) != _kind(node.dtype):
            return Match(
                b, problem=f"{_name(node)} is {mine.dtype} in one program, {node.dtype} in the other"
            )
        if not _layouts(mine, node, names, equal):
            return Match(b, problem=f"{_name(node)} has another shape in the second program")
    if len(a.outputs) != len(b.outputs):
        return Match(b, problem=f"{len(a.outputs)} outputs against {len(b.outputs)}")
    for mine, other in zip(a.outputs, b.outputs, strict=True):
        one = tuple(tuple(mine.node.axes[n].dim for n in g) for g in mine.layout)
        two = tuple(tuple(other.node.axes[n].dim for n in g) for g in other.layout)
        if not _groups(one, two, names, equal):
            return Match(b, problem=f"output {mine.name} has another shape in the second program")
    taken = set(a.dims)
    for atom in b.dims:
        if atom not in names and atom in taken:
            new = next(x for k in range(1, 1000) if (x := Atom(f"{atom.name}_{k}")) not in taken)
            names[atom] = new
            taken.add(new)
    return Match(rename_dims(b, names), tuple(dict.fromkeys(equal)))


def _name(node: Node) -> str:
    assert isinstance(node.op, Input | Scalar)
    return node.op.name


def _kind(dtype: str) -> str:
    return "bool" if dtype == "bool" else "int" if dtype[0] in "iu" else "float"


def _layouts(a: Node, b: Node, names: dict[Atom, Dim], equal: list[tuple[Dim, Dim]]) -> bool:
    if isinstance(a.op, Scalar) or isinstance(b.op, Scalar):
        return isinstance(a.op, Scalar) and isinstance(b.op, Scalar)
    assert isinstance(a.op, Input) and isinstance(b.op, Input)
    return _groups(a.op.layout, b.op.layout, names, equal)


def _groups(
    a: tuple[tuple[Dim, ...], ...],
    b: tuple[tuple[Dim, ...], ...],
    names: dict[Atom, Dim],
    equal: list[tuple[Dim, Dim]],
) -> bool:
    if [len(g) for g in a] != [len(g) for g in b]:
        return False
    pairs = [(x, y) for one, two in zip(a, b, strict=True) for x, y in zip(one, two, strict=True)]
    return all(_unify(x, y, names, equal) for x, y in pairs)


def _unify(a: Dim, b: Dim, names: dict[Atom, Dim], equal: list[tuple[Dim, Dim]]) -> bool:
    match a, b:
        case _, Atom():
            before = names.setdefault(b, a)
            if before != a:
                equal.append((before, a))
            return True
        case Union(one), Union(two) if len(one) == len(two):
            return all(_unify(x, y, names, equal) for x, y in zip(one, two, strict=True))
        case (Parts(), Parts()) | (Part(), Part()) if a.level == b.level:
            return _unify(a.of, b.of, names, equal)
        case _:
            return False


def rename_dims(program: Program, names: Names) -> Program:
    """The program with atoms replaced by dims."""
    if all(atom == dim for atom, dim in names.items()):
        return program
    renamed = _Renamed(names)
    nodes = {node: renamed.node(node) for node in (*program.inputs, *program.nodes)}
    sizes = [(names.get(atom, atom), renamed.size(value)) for atom, value in program.sizes]
    return replace(
        program,
        inputs=tuple(nodes[n] for n in program.inputs),
        outputs=tuple(replace(o, node=nodes[o.node]) for o in program.outputs),
        sizes=tuple((atom, value) for atom, value in sizes if isinstance(atom, Atom)),
        names={nodes[n]: name for n, name in program.names.items() if n in nodes},
        lines={nodes[n]: line for n, line in program.lines.items() if n in nodes},
    )


class _Renamed:
    def __init__(self, names: Names) -> None:
        self.names = names
        self.nodes: dict[Node, Node] = {}

    def dim(self, dim: Dim) -> Dim:
        match dim:
            case Atom():
                return self.names.get(dim, dim)
            case Union(parts):
                return Union(tuple(map(self.dim, parts)))
            case Parts(of, level):
                return Parts(self.dim(of), level)
            case Part(of, level):
                return Part(self.dim(of), level)

    def index(self, index: Index) -> Index:
        return Index(self.dim(index.dim), index.number)

    def extent(self, value: Extent) -> Extent:
        return extent(value.const, *((self.dim(d), c) for d, c in value.terms))

    def size(self, value: int | Extent) -> int | Extent:
        return self.extent(value) if isinstance(value, Extent) else value

    def term(self, value: Term) -> Term:
        leaves: list[tuple[Leaf, int]] = []
        for leaf, c in value.leaves:
            match leaf:
                case Index():
                    leaves.append((self.index(leaf), c))
                case Gather(access):
                    leaves.append((Gather(self.access(access)), c))
                case Inject(part, inner):
                    leaves.append((Inject(part, self.term(inner)), c))
                case Join(part, within):
                    leaves.append((Join(self.term(part), self.term(within)), c))
                case _:
                    leaves.append((leaf, c))
        return term(*leaves, offset=self.extent(value.offset))

    def access(self, access: Access) -> Access:
        return Access(self.node(access.node), tuple(map(self.term, access.terms)))

    def node(self, node: Node) -> Node:
        found = self.nodes.get(node)
        if found is None:
            found = self.nodes[node] = self._node(node)
        return found

    def _node(self, node: Node) -> Node:
        axes = tuple(map(self.index, node.axes))
        match node.op:
            case Input(name, layout):
                return input_node(name, [[self.dim(d) for d in g] for g in layout], node.dtype)
            case Scalar() | Const():
                return node
            case SizeOf(dim):
                return size(self.dim(dim), node.dtype).node
            case Position(value):
                return make_node(Position(self.term(value)), axes, node.dtype)
            case Map(fn, args):
                return make_node(Map(fn, tuple(map(self.access, args))), axes, node.dtype)
            case Reduce(kind, bound, arg):
                return make_node(
                    Reduce(kind, tuple(map(self.index, bound)), self.access(arg)), axes, node.dtype
                )
            case Contract(bound, args):
                op = Contract(tuple(map(self.index, bound)), tuple(map(self.access, args)))
                return make_node(op, axes, node.dtype)
            case Cat(axis, pieces):
                return make_node(Cat(axis, tuple(map(self.access, pieces))), axes, node.dtype)
            case Scan():
                raise Unsupported("a loop with carried state is not compared with another program")
