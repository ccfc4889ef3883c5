"""A `Program` as a planner's graph: each node a vertex, each movement in an access vertices of its own.

A program reads tensors through index terms; the rules speak of broadcasts, slices, transposes and gathers.
`graph_of` spells each access out as a chain of *views* (slice, then transpose, then broadcast), shared by
equal accesses, and binds the sizes. Views cost no kernel of their own: whoever reads them reads through them.
A stack, which a program writes as selects by position, is one concatenation (`stacks.py`). Loops become
one `while` with the body's graph and a `get-tuple-element` for each result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cleave.fusion.graph import Graph, Shape, Vertex, array
from cleave.fusion.stacks import Stack, inner_nodes, stacks_of
from cleave.ir.dims import Dim, Gather, Index, Inject, Term, Union, size_of, term_key
from cleave.ir.loops import Loop, loop_of
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
)
from cleave.ir.program import Program

TYPICAL = 1024
"""The size of a dynamic dim where nothing else is said."""
RENAMED = {"cast": "convert"}


def graph_of(program: Program, sizes: Mapping[Dim, int] | None = None) -> Graph:
    """The graph of a program at given sizes of its dynamic dims (`TYPICAL` where not given)."""
    given: dict[Dim, int] = dict.fromkeys(program.dynamic, TYPICAL)
    given.update(sizes or {})
    made = _Builder(program, program.bind(given)).graph()
    return replace(made, source=(program, given))


@dataclass(slots=True)
class _Builder:
    program: Program
    sizes: Mapping[Dim, int]
    vertices: list[Vertex] = field(default_factory=list[Vertex])
    of: dict[Node, Vertex] = field(default_factory=dict[Node, Vertex])
    views: dict[tuple[Any, ...], Vertex] = field(default_factory=dict[tuple[Any, ...], Vertex])
    loops: dict[Loop, Vertex] = field(default_factory=dict[Loop, Vertex])
    names: dict[str, int] = field(default_factory=dict[str, int])
    taken: set[str] = field(default_factory=set[str])

    def graph(self) -> Graph:
        stacks = stacks_of(self.program, self.sizes)
        inner = inner_nodes(self.program, stacks)
        for node in self.program.inputs:
            self.of[node] = self._node(node)
        for node in self.program.nodes:
            if node not in self.of and node not in inner:
                stack = stacks.get(node)
                self.of[node] = self._node(node) if stack is None else self._stack(node, stack)
        outputs = dict.fromkeys(self.of[o.node] for o in self.program.outputs)
        return Graph(self.program.name, tuple(self.vertices), tuple(outputs))

    # ------------------------------------------------------------ nodes

    def size(self, dim: Dim) -> int:
        return size_of(dim, self.sizes)

    def shape(self, node: Node) -> Shape:
        return array(node.dtype, [self.size(d) for d in node.dims])

    def add(
        self,
        opcode: str,
        operands: Sequence[Vertex],
        shape: Shape,
        node: Node | None,
        name: str = "",
        **more: Any,
    ) -> Vertex:
        label = (
            name or (self.program.names.get(node, "") if node is not None else "") or opcode.replace("-", "_")
        )
        unique = label
        while unique in self.taken:
            self.names[label] = self.names.get(label, 0) + 1
            unique = f"{label}.{self.names[label]}"
        self.taken.add(unique)
        line = self.program.lines.get(node, "") if node is not None else ""
        more.setdefault("line", line)
        made = Vertex(len(self.vertices), unique, opcode, tuple(operands), shape, node=node, **more)
        self.vertices.append(made)
        return made

    def _node(self, node: Node) -> Vertex:
        shape = self.shape(node)
        match node.op:
            case Input(name) | Scalar(name):
                return self.add("parameter", (), shape, node, name)
            case Const(value):
                number = value if isinstance(value, int | float) else float(value)
                return self.add("constant", (), shape, node, f"c{value}".replace("/", "_"), value=number)
            case SizeOf(dim):
                return self.add("constant", (), shape, node, f"size_{dim}", value=self.size(dim))
            case Position():
                reads = [self.of[a.node] for a in node.reads]
                return self.add("iota" if not reads else "gather", reads, shape, node)
            case Map(fn, args):
                views = [self.read(a, node.axes, node) for a in args]
                return self.add(RENAMED.get(fn, fn), views, shape, node)
            case Reduce(_, bound, arg):
                view, order = self.read_own(arg, (*node.axes, *bound), node)
                reduced = tuple(k for k, i in enumerate(order) if i in bound)
                return self.add("reduce", [view], shape, node, dims=reduced)
            case Contract(bound, args):
                views = [self.read_own(a, (*node.axes, *bound), node)[0] for a in args]
                return self.add("dot", views, shape, node, window=tuple(self.size(i.dim) for i in bound))
            case Cat(axis, pieces):
                views = [self._piece(node, axis, k, p) for k, p in enumerate(pieces)]
                return self.add("concat", views, shape, node, dims=(axis,))
            case Scan(result=result):
                return self._result(node, loop_of(node.op), result)

    def _piece(self, node: Node, axis: int, number: int, piece: Access) -> Vertex:
        dim = node.axes[axis].dim
        assert isinstance(dim, Union)
        axes = tuple(Index(dim.parts[number], axis) if k == axis else i for k, i in enumerate(node.axes))
        return self.read(piece, axes, node)

    def _stack(self, node: Node, stack: Stack) -> Vertex:
        rest = [i for k, i in enumerate(node.axes) if k != stack.axis]
        views: list[Vertex] = []
        for part in stack.parts:
            view = self.read(part, rest, node)
            dims = list(view.shape.dims)
            dims.insert(stack.axis, 1)
            views.append(self._view("reshape", [view], array(view.shape.dtype, dims), node))
        label = self.program.names.get(node, "") or "stack"
        return self.add("concat", views, self.shape(node), node, label, dims=(stack.axis,), inner=stack.inner)

    def _result(self, node: Node, loop: Loop, result: int) -> Vertex:
        if loop not in self.loops:
            body = _Builder(loop.body, {**self.sizes, **loop.body.bind(self.sizes)}).graph()
            inputs = [v for v in body.vertices if v.opcode == "parameter"]
            ends = [next(v for v in body.vertices if v.node is o.node) for o in loop.body.outputs]
            carried = tuple(zip(inputs, ends[: loop.states], strict=False))
            body = Graph(body.name, body.vertices, body.outputs, carried=carried)
            parts = tuple(self.shape(loop.result(k)) for k in range(len(loop.body.outputs)))
            reads = list(dict.fromkeys(self.of[a.node] for a in loop.args))
            line = self.program.lines.get(node, "")
            trips = self.size(loop.over)
            shape = Shape("", parts=parts)
            self.loops[loop] = self.add(
                "while", reads, shape, None, "loop", body=body, trips=trips, line=line
            )
        return self.add("get-tuple-element", [self.loops[loop]], self.shape(node), node, value=result)

    # ------------------------------------------------------------ accesses

    def read(self, access: Access, axes: Sequence[Index], reader: Node) -> Vertex:
        """The accessed values over exactly these axes."""
        view, order = self.read_own(access, axes, reader)
        missing = [i for i in axes if i not in order]
        if not missing and list(order) == list(axes):
            return view
        wanted = [i for i in axes if i in order]
        if list(order) != wanted:
            perm = tuple(order.index(i) for i in wanted)
            dims = [view.shape.dims[p] for p in perm]
            view = self._view("transpose", [view], array(view.shape.dtype, dims), reader, dims=perm)
        if missing:
            place = tuple(k for k, i in enumerate(axes) if i in order)
            dims = [self.size(i.dim) for i in axes]
            view = self._view("broadcast", [view], array(view.shape.dtype, dims), reader, dims=place)
        return view

    def read_own(
        self, access: Access, axes: Sequence[Index], reader: Node
    ) -> tuple[Vertex, tuple[Index, ...]]:
        """The accessed values over the indices that the access uses, in the accessed tensor's order where it
        can be had, with these indices."""
        base = self.of[access.node]
        plain = [t.variable for t in access.terms]
        whole = all(
            i is not None and self.size(i.dim) == self.size(d)
            for i, d in zip(plain, access.node.dims, strict=True)
        )
        if whole and len(set(plain)) == len(plain):
            return base, tuple(i for i in plain if i is not None)
        used = tuple(i for i in axes if i in access.indices)
        dims = [self.size(i.dim) for i in used]
        shape = array(access.node.dtype, dims)
        if self._slices(access, base):
            starts, strides = self._window(access)
            kept = [t for t in access.terms if t.leaves]
            lengths = [self._length(t) for t in access.terms]
            part = self._view(
                "slice", [base], array(access.node.dtype, lengths), reader, starts=starts, strides=strides
            )
            order = tuple(self._index(t) for t in kept)
            if len(kept) < len(access.terms):
                shape = array(access.node.dtype, [self.size(i.dim) for i in order])
                part = self._view("reshape", [part], shape, reader)
            return part, order
        tables = [self.of[a.node] for a in _gathered(access)]
        key = tuple(term_key(t) for t in access.terms)
        return self._view("gather", [base, *tables], shape, reader, extra=key), used

    def _view(
        self,
        opcode: str,
        operands: Sequence[Vertex],
        shape: Shape,
        reader: Node,
        extra: object = None,
        **more: Any,
    ) -> Vertex:
        key = (opcode, tuple(o.number for o in operands), shape, extra, *sorted(more.items()))
        if key not in self.views:
            base = next((o for o in operands if o.node is not None), operands[0])
            line = self.program.lines.get(reader, "")
            self.views[key] = self.add(
                opcode,
                operands,
                shape,
                None,
                f"{base.name.split('~')[0]}~{opcode}",
                view=True,
                line=line,
                **more,
            )
        return self.views[key]

    def _slices(self, access: Access, base: Vertex) -> bool:
        """Whether each term is an index with an offset and a step of its own, or one place."""
        seen: set[Index] = set()
        for value in access.terms:
            if not value.leaves:
                continue
            index = self._index(value)
            if index is None or index in seen:
                return False
            seen.add(index)
        return bool(base.shape.dims)

    def _index(self, value: Term) -> Any:
        if len(value.leaves) != 1:
            return None
        leaf, step = value.leaves[0]
        if isinstance(leaf, Inject):
            return leaf.term.variable
        return leaf if isinstance(leaf, Index) and step > 0 else None

    def _window(self, access: Access) -> tuple[tuple[int, ...], tuple[int, ...]]:
        starts, strides = [], []
        for value, dim in zip(access.terms, access.node.dims, strict=True):
            start, step = value.offset.at(self.sizes), 1
            if value.leaves:
                leaf, step = value.leaves[0]
                if isinstance(leaf, Inject) and isinstance(dim, Union):
                    start += sum(self.size(p) for p in dim.parts[: leaf.part])
            starts.append(start)
            strides.append(step)
        return tuple(starts), tuple(strides)

    def _length(self, value: Term) -> int:
        return self.size(self._index(value).dim) if value.leaves else 1


def _gathered(access: Access) -> list[Access]:
    found: list[Access] = []
    for value in access.terms:
        for leaf, _ in value.leaves:
            if isinstance(leaf, Gather):
                found.append(leaf.access)
                found += _gathered(leaf.access)
            elif isinstance(leaf, Inject):
                found += _gathered(Access(access.node, (leaf.term,)))
    return found
