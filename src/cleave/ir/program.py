"""A program: inputs, outputs and what is known of the sizes, over interned nodes.

Pure data. `Program.names` and `Program.lines` are for people: they say what a node is called in text and
which line of the user's source it came from, and are not part of a program's identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cleave.errors import Bug
from cleave.ir.dims import Atom, Dim, Extent, atoms_of
from cleave.ir.ops import Input, Node, Scalar, Scan


@dataclass(frozen=True, slots=True)
class Output:
    """A result. `layout` groups the node's axes, by number, into the axes of the tensor handed back,
    outermost first (`()` is an axis of size 1)."""

    name: str
    node: Node
    layout: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A pure tensor program. `inputs` holds every argument in order, used or not (`Input` and `Scalar`
    nodes). `sizes` fixes atoms whose size is known (an int) or follows from others (an `Extent`);
    all other atoms are dynamic. Sizes may be 0."""

    name: str
    inputs: tuple[Node, ...]
    outputs: tuple[Output, ...]
    sizes: tuple[tuple[Atom, int | Extent], ...] = ()
    names: Mapping[Node, str] = field(default_factory=dict[Node, str], compare=False, repr=False)
    lines: Mapping[Node, str] = field(default_factory=dict[Node, str], compare=False, repr=False)

    def __post_init__(self) -> None:
        for node in self.inputs:
            if not isinstance(node.op, Input | Scalar):
                raise Bug(f"program {self.name}: an input is a {type(node.op).__name__}")
        missing = [n for n in self.nodes if isinstance(n.op, Input | Scalar) and n not in self.inputs]
        if missing:
            raise Bug(f"program {self.name} reads {missing[0].op} without listing it as an input")
        for output in self.outputs:
            if sorted(n for g in output.layout for n in g) != list(range(len(output.node.axes))):
                raise Bug(f"output {output.name}: layout {output.layout} does not list each axis once")

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node, arguments before users, in a fixed order."""
        return sort_nodes(output.node for output in self.outputs)

    @property
    def dims(self) -> tuple[Atom, ...]:
        """Every atom of the program, in order of first use."""
        found: dict[Atom, None] = {}
        for node in (*self.inputs, *self.nodes):
            for dim in (*node.dims, *(i.dim for i in node.bound)):
                found.update(dict.fromkeys(atoms_of(dim)))
            if isinstance(node.op, Scan):
                found.update(dict.fromkeys((*atoms_of(node.op.over), *node.op.body.dims)))
        for atom, value in self.sizes:
            found[atom] = None
            if isinstance(value, Extent):
                found.update({a: None for d, _ in value.terms for a in atoms_of(d)})
        return tuple(found)

    @property
    def dynamic(self) -> tuple[Atom, ...]:
        """The atoms whose sizes only a call tells."""
        fixed = {atom for atom, _ in self.sizes}
        return tuple(atom for atom in self.dims if atom not in fixed)

    def bind(self, sizes: Mapping[Dim, int]) -> dict[Dim, int]:
        """Complete sizes of the dynamic atoms with the known and derived ones."""
        bound: dict[Dim, int] = dict(sizes)
        for atom, value in self.sizes:
            if isinstance(value, int):
                bound.setdefault(atom, value)
        for atom, value in self.sizes:
            if isinstance(value, Extent):
                bound.setdefault(atom, value.at(bound))
        return bound


def sort_nodes(roots: Iterable[Node]) -> tuple[Node, ...]:
    """All nodes below the roots, each after what it reads; depth-first in reading order."""
    order: dict[Node, None] = {}
    for root in roots:
        stack: list[tuple[Node, bool]] = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if node in order:
                continue
            if ready:
                order[node] = None
                continue
            stack.append((node, True))
            stack += [(a.node, False) for a in reversed(node.reads) if a.node not in order]
    return tuple(order)
