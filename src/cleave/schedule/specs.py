"""What is asked of one kernel: its roots, what it reads from memory, and how it spans its dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cleave.errors import Bug
from cleave.ir.candidate import Fold
from cleave.ir.dims import Dim, Index, Inject, Term, Union, var
from cleave.ir.loops import loops_in
from cleave.ir.ops import Node, Reduce, contract_node, reduce_node
from cleave.ir.program import Program, sort_nodes
from cleave.schedule.horizontal import Source
from cleave.schedule.terms import lower
from cleave.schedule.tiles import Tensor


@dataclass(frozen=True, slots=True)
class Root:
    """What a kernel stores: a node of the program, or a state of a source, into `tensor`. `order` lists
    the root's axes as the tensor's layout has them (behind the axis of the parts, for a state). Where `part`
    is given, that axis of the root is only the part of this number of what the tensor has there."""

    tensor: Tensor
    order: tuple[int, ...]
    node: Node | None = None
    state: tuple[Source, str] | None = None
    part: tuple[int, int] | None = None

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dims of the root's own axes."""
        if self.node is not None:
            return self.node.dims
        assert self.state is not None
        source, name = self.state
        if source.fold is None:
            assert source.node is not None
            return source.node.dims
        return output_of(source.fold.init, name).dims

    def places(self, indices: Sequence[Index]) -> tuple[Term, ...]:
        """Where in the tensor it is stored, one term per dim of the layout, for the indices of its axes."""
        dims = [dim for group in self.tensor.layout for dim in group]
        found: list[Term] = []
        for n, dim in zip(self.order, dims[len(dims) - len(self.order) :], strict=True):
            place = var(indices[n])
            if self.part is not None and self.part[0] == n:
                place = lower(var(Inject(self.part[1], place)), dim)
            found.append(place)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Split:
    """The loop of `members` (source keys) split over blocks: `phase` is `part` or `merge`; `tensors` maps
    (source key, state) to the workspace that holds the states of all parts."""

    members: frozenset[str]
    phase: str
    tensors: Mapping[tuple[str, str], Tensor]


@dataclass(frozen=True, slots=True)
class Spec:
    """One kernel to be: its roots, what it reads from memory (`stored`), the dims whose bound indices it
    spans in full, and for each index of the roots `grid`, `whole` or `loop`."""

    name: str
    program: Program
    folds: tuple[Fold, ...]
    roots: tuple[Root, ...]
    stored: Mapping[Node, Tensor]
    tensors: Mapping[str, Tensor]
    whole: frozenset[Dim] = frozenset()
    spans: tuple[str, ...] = ()
    split: Split | None = None
    axes: tuple[tuple[int, ...], ...] | None = None
    dims: tuple[Dim, ...] = ()
    """Once known (`kernels.unify`): for each root the numbers of its axes' indices, and the indices' dims."""


def default_spans(spec: Spec, dims: Sequence[Dim]) -> tuple[str, ...]:
    """How a kernel spans the indices of its roots if nothing else is asked for: spread over blocks; but the
    dims along which a scan runs in a loop, since its steps follow each other, and beside a scan small ones in
    full."""
    nodes = sort_nodes(n for root in spec.roots for n in root_nodes(root))
    known: dict[Dim, int] = {dim: size for dim, size in spec.program.sizes if isinstance(size, int)}
    times = {loop.over for loop in loops_in(n for n in nodes if n not in spec.stored)}
    times = {dim for dim in times if known.get(dim) != 1}
    small = {dim for dim, size in known.items() if size <= 16} if times else set[Dim]()
    return tuple("loop" if d in times else "whole" if d in small and len(dims) > 1 else "grid" for d in dims)


def output_of(program: Program, name: str) -> Node:
    """The node of a small program's output, by name."""
    found = next((o.node for o in program.outputs if o.name == name), None)
    if found is None:
        raise Bug(f"program {program.name} of a fold has no output {name}")
    return found


def root_nodes(root: Root) -> list[Node]:
    """The nodes of the program that a root needs."""
    if root.node is not None:
        return [root.node]
    assert root.state is not None
    source = root.state[0]
    if source.node is not None:
        return [source.node]
    assert source.fold is not None
    return [value.node for value in source.fold.values]


def pieces_of(node: Node, whole: frozenset[Dim]) -> list[Node]:
    """A reduction over a union that its kernel spans in full, as one reduction per part; else nothing."""
    for n, index in enumerate(node.bound):
        if not isinstance(index.dim, Union) or index.dim not in whole:
            continue
        found: list[Node] = []
        for number, part in enumerate(index.dim.parts):
            own = Index(part, len(node.axes) + len(node.bound))
            args = [a.at({index: var(Inject(number, var(own)))}) for a in node.args]
            bound = [*node.bound[:n], own, *node.bound[n + 1 :]]
            if isinstance(node.op, Reduce):
                found.append(reduce_node(node.op.kind, node.axes, bound, args[0], node.dtype))
            else:
                found.append(contract_node(node.axes, bound, args, node.dtype))
        return found
    return []
