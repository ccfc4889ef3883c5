"""The values of a program's nodes in NumPy, each operation as it is written (`reference` has the rules).

An `Evaluation` holds one program at given sizes. Every operation is computed over a `Space`: one dimension
for each of its indices, bound ones last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from cleave.errors import Bug, Invalid
from cleave.ir.dims import (
    Dim,
    Extent,
    Gather,
    Index,
    Inject,
    Join,
    Lookup,
    Part,
    Parts,
    Term,
    Union,
    indices_of,
)
from cleave.ir.loops import Loop, loop_of
from cleave.ir.numerics import Array, FloatType, apply, convert, literal, numpy_dtype, reduce
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
from cleave.ir.program import Program, sort_nodes


class Space:
    """The indices of an operation with their ranges: index number d runs over `start + [0, count)` along
    dimension d of the arrays that are computed."""

    def __init__(self, ranges: Sequence[tuple[Index, int, int]]) -> None:
        self.where = {index: d for d, (index, _, _) in enumerate(ranges)}
        self.starts = [start for _, start, _ in ranges]
        self.shape = tuple(count for _, _, count in ranges)

    def along(self, index: Index) -> Array:
        """The values of an index, along its own dimension."""
        d = self.where[index]
        shape = [1] * len(self.shape)
        shape[d] = self.shape[d]
        return np.arange(self.starts[d], self.starts[d] + self.shape[d], dtype=np.int64).reshape(shape)


class Evaluation:
    """The values of a program's nodes for given sizes; each over its node's axes. `partitions` lists the
    sizes of the parts of dims, `floats` is the dtype of floats. Who makes one puts inputs into `values`."""

    def __init__(
        self,
        program: Program,
        sizes: Mapping[Dim, int],
        partitions: Mapping[Dim, tuple[int, ...]],
        floats: FloatType,
    ) -> None:
        self.program = program
        self.sizes = dict(sizes)
        self.partitions = partitions
        self.floats: FloatType = floats
        self.values: dict[Node, Array] = {}
        self.scans: dict[Loop, tuple[Array, ...]] = {}

    # ------------------------------------------------------------ sizes

    def partition(self, dim: Parts | Part) -> tuple[int, ...]:
        """The sizes of the parts of a partition."""
        for key in (Parts(dim.of, dim.level), dim.of):
            if key in self.partitions:
                return self.partitions[key]
        raise Invalid(f"no partition of {dim.of} is given", where=self._place, hint="partitions={dim: sizes}")

    def extent(self, dim: Dim) -> int:
        """How long an axis over a dim is: for `Part(K)`, as long as the largest part."""
        if dim in self.sizes:
            return self.sizes[dim]
        match dim:
            case Union(parts):
                return sum(map(self.extent, parts))
            case Parts():
                return len(self.partition(dim))
            case Part():
                return max(self.partition(dim), default=0)
            case _:
                raise Invalid(f"the size of {dim} is not known", where=self._place, hint="sizes={dim: size}")

    def exact(self, extent: Extent) -> int:
        """The value of a linear expression in sizes."""
        for dim, _ in extent.terms:
            if isinstance(dim, Part) and dim not in self.sizes and len(set(self.partition(dim))) > 1:
                raise Invalid(f"the parts of {dim.of} have no common size", where=self._place)
        return extent.const + sum(c * self.extent(dim) for dim, c in extent.terms)

    @property
    def _place(self) -> str:
        return f"program {self.program.name}"

    # ------------------------------------------------------------ reading

    def space(self, indices: Sequence[Index]) -> Space:
        """Whole axes over some indices."""
        return Space([(index, 0, self.extent(index.dim)) for index in indices])

    def read(self, access: Access, space: Space) -> Array:
        """An access for all values of the indices: a dimension per index, of size 1 where it is not used."""
        array = self.values[access.node]
        sliced = self._slice(array, access, space)
        if sliced is not None:
            return sliced
        places = [
            self._place_in(term, axis.dim, array.shape[d], access.node, space)
            for d, (term, axis) in enumerate(zip(access.terms, access.node.axes, strict=True))
        ]
        if 0 in array.shape:
            # Nothing is there to read; what depends on this is dropped, or is an empty array itself.
            shape = np.broadcast_shapes(*(place.shape for place in places))
            return np.full(shape, np.nan if array.dtype.kind == "f" else 0, array.dtype)
        return array[tuple(places)]

    def _slice(self, array: Array, access: Access, space: Space) -> Array | None:
        """The same without index arrays, where every term is an index of its own that stays inside."""
        order: list[int] = []
        cut: list[slice] = []
        for term, size in zip(access.terms, array.shape, strict=True):
            index = term.variable
            if index is None or space.where[index] in order:
                return None
            d = space.where[index]
            if space.starts[d] + space.shape[d] > size:
                return None
            order.append(d)
            cut.append(slice(space.starts[d], space.starts[d] + space.shape[d]))
        inner = np.transpose(array[tuple(cut)], sorted(range(len(order)), key=order.__getitem__))
        return np.expand_dims(inner, [d for d in range(len(space.shape)) if d not in order])

    def _place_in(self, term: Term, dim: Dim, size: int, node: Node, space: Space) -> Array:
        """Where a term reads on an axis, held inside it."""
        place = self.position(term, space, dim)
        gathers = any(isinstance(leaf, Gather) for leaf, _ in term.leaves)
        if gathers and place.size and (place.min() < 0 or place.max() >= size):
            bad = int(place.min() if place.min() < 0 else place.max())
            name = node.op.name if isinstance(node.op, Input) else self.program.names.get(node, "a value")
            raise Invalid(f"{name} is read at {bad} on axis {dim}, which has size {size}", where=self._place)
        return np.clip(place, 0, max(size - 1, 0))

    def position(self, term: Term, space: Space, dim: Dim | None) -> Array:
        """The value of a term, which may select from a union only where `dim`, the axis, is known."""
        total: Array = np.full([1] * len(space.shape), self.exact(term.offset), np.int64)
        for leaf, factor in term.leaves:
            match leaf:
                case Index():
                    value = space.along(leaf)
                case Gather(access):
                    value = self.read(access, space).astype(np.int64)
                case Inject(part, inner):
                    if not isinstance(dim, Union):
                        raise Invalid(f"in{part}(...) on axis {dim}, which is no union", where=self._place)
                    before = sum(map(self.extent, dim.parts[:part]))
                    value = before + self.position(inner, space, dim.parts[part])
                case Join(part, within):
                    starts = self._starts(part, dim)
                    number = np.clip(self.position(part, space, None), 0, max(len(starts) - 1, 0))
                    value = starts[number] if len(starts) else np.zeros_like(number)
                    value = value + self.position(within, space, None)
                case Lookup(name):
                    raise Bug(f"tile {name} is looked up in program {self.program.name}")
            total = total + factor * value
        return total

    def _starts(self, part: Term, dim: Dim | None) -> Array:
        """Where each part begins."""
        index = part.variable
        over = index.dim if index is not None else None
        if not isinstance(over, Parts):
            if dim is None:
                raise Invalid("join(...) with a part that has no partition", where=self._place)
            over = Parts(dim)
        sizes = self.partition(over)
        return np.array(list(accumulate(sizes, initial=0))[:-1], np.int64)

    # ------------------------------------------------------------ operations

    def compute(self, roots: Sequence[Node]) -> None:
        """Compute some nodes, and all that they read."""
        for node in sort_nodes(roots):
            if node not in self.values:
                shape = tuple(self.extent(dim) for dim in node.dims)
                self.values[node] = np.broadcast_to(self._operation(node), shape)

    def _operation(self, node: Node) -> Array:
        target = numpy_dtype(node.dtype, self.floats)
        space = self.space((*node.axes, *node.bound))
        match node.op:
            case Input(name) | Scalar(name):
                raise Bug(f"program {self.program.name} reads {name}, which has no value")
            case Const(value):
                return literal(value, target)
            case SizeOf(dim):
                return literal(self.exact(Extent(0, ((dim, 1),))), target)
            case Position(term):
                return convert(self.position(term, space, None), target)
            case Map(fn, args):
                return apply(fn, [self.read(arg, space) for arg in args], target, self.floats)
            case Reduce(kind, bound, arg):
                axes = tuple(range(len(node.axes), len(node.axes) + len(bound)))
                over = [*([1] * len(node.axes)), *space.shape[len(node.axes) :]]
                value = self.read(arg, space)
                value = np.broadcast_to(value, np.broadcast_shapes(value.shape, over))
                return np.squeeze(reduce(kind, value, axes, self._keep(node, space), target), axes)
            case Contract(bound, args):
                values = [convert(self.read(arg, space), target) for arg in args]
                return _contract(values, space, len(node.axes), self._keep(node, space))
            case Cat(axis, pieces):
                return self._cat(node, axis, pieces, target)
            case Scan(result=result):
                loop = loop_of(node.op)
                if loop not in self.scans:
                    self.scans[loop] = self._scan(loop)
                return self.scans[loop][result]

    def _scan(self, loop: Loop) -> tuple[Array, ...]:
        """All results of a loop, step by step."""
        body, steps = loop.body, self.extent(loop.over)

        def given(number: int, step: int) -> Array:
            node = body.inputs[number]
            ranges = [(index, 0, self.extent(index.dim)) for index in node.axes]
            space = Space([*ranges, (loop.time(number), step, 1)])
            array = np.broadcast_to(self.read(loop.args[number], space), space.shape)[..., 0]
            return convert(array, numpy_dtype(node.dtype, self.floats))

        state = [given(number, 0) for number in range(loop.states)]
        handed: list[list[Array]] = [[] for _ in body.outputs[loop.states :]]
        for step in range(steps):
            read = [given(number, step) for number in range(loop.states, len(body.inputs))]
            found = run_plain(
                body, dict(zip(loop.names, [*state, *read], strict=True)), self.sizes, self.floats
            )
            results = [found[output.name] for output in body.outputs]
            state = results[: loop.states]
            for column, value in zip(handed, results[loop.states :], strict=True):
                column.append(value)
        for column, output in zip(handed, body.outputs[loop.states :], strict=True):
            if not column:
                shape = tuple(map(self.extent, output.node.dims))
                column.append(np.zeros((0, *shape), numpy_dtype(output.node.dtype, self.floats)))
        stacked = [np.stack(c) if steps else c[0] for c in handed]
        return (*state, *stacked)

    def _cat(self, node: Node, axis: int, pieces: Sequence[Access], target: np.dtype[Any]) -> Array:
        dim = node.axes[axis].dim
        assert isinstance(dim, Union)
        found: list[Array] = []
        for part, piece in zip(dim.parts, pieces, strict=True):
            space = self.space([Index(part, axis) if n == axis else i for n, i in enumerate(node.axes)])
            found.append(np.broadcast_to(convert(self.read(piece, space), target), space.shape))
        return np.concatenate(found, axis)

    # ------------------------------------------------------------ partitions

    def _keep(self, node: Node, space: Space) -> Array | None:
        """Where the bound indices over parts are inside their parts; None if nothing bounds them."""
        keep: Array | None = None
        for index in node.bound:
            dim = index.dim
            if not isinstance(dim, Part) or dim in self.sizes:
                continue
            sizes = np.array(self.partition(dim), np.int64)
            if len(set(sizes.tolist())) <= 1:
                continue
            number = self.position(self._part_of(index, dim, node), space, None)
            inside = space.along(index) < sizes[np.clip(number, 0, len(sizes) - 1)]
            keep = inside if keep is None else keep & inside
        return keep

    def _part_of(self, index: Index, dim: Part, node: Node) -> Term:
        """In which part a bound index runs: what it is joined with, or what stands beside it in an access."""
        for access in node.reads:
            found = next((t for value in access.terms for t in _joined(value, index)), None)
            if found is not None:
                return found
        parts = Parts(dim.of, dim.level)
        for access in node.reads:
            where = dict(zip(access.node.dims, access.terms, strict=True))
            if dim in where and index in indices_of(where[dim]) and parts in where:
                return where[parts]
        known = [i for i in (*node.axes, *node.bound) if i.dim == parts]
        if len(known) == 1:
            return Term(((known[0], 1),))
        what = f"an index over {dim} is reduced, and nothing tells in which of the uneven parts it runs"
        raise Invalid(what, where=self._place)


def run_plain(
    program: Program, given: Mapping[str, Array], sizes: Mapping[Dim, int], dtype: FloatType
) -> dict[str, Array]:
    """Run a program on arrays over its nodes' axes; outputs come back over their nodes' axes."""
    meaning = Evaluation(program, program.bind(sizes), {}, dtype)
    for node in program.inputs:
        assert isinstance(node.op, Input | Scalar)
        if node.op.name not in given:
            raise Bug(f"program {program.name} reads {node.op.name}, given are {', '.join(sorted(given))}")
        array = np.asarray(given[node.op.name])
        shape = tuple(meaning.extent(dim) for dim in node.dims)
        if array.shape != shape:
            raise Bug(f"{node.op.name} of program {program.name} has shape {array.shape}, expected {shape}")
        meaning.values[node] = convert(array, numpy_dtype(node.dtype, dtype))
    meaning.compute([output.node for output in program.outputs])
    return {output.name: meaning.values[output.node] for output in program.outputs}


def _joined(value: Term, index: Index) -> list[Term]:
    """The parts with which a term joins an index, innermost first."""
    found: list[Term] = []
    for leaf, _ in value.leaves:
        match leaf:
            case Join(part, within):
                found += [*_joined(part, index), *_joined(within, index)]
                found += [part] if index in indices_of(within) else []
            case Inject(_, inner):
                found += _joined(inner, index)
            case _:
                pass
    return found


def _contract(values: list[Array], space: Space, axes: int, keep: Array | None) -> Array:
    """The sum over the dimensions from number `axes` on of the product of the values."""
    if keep is not None:
        # All operands: a NaN beyond a part must not meet a 0.
        values = [np.where(keep, value, value.dtype.type(0)) for value in values]
    # Every operand gets every bound index: else the sum would be taken before the product, which is another
    # value where a factor is infinite or NaN, or where nothing is summed.
    shape = [1] * axes + list(space.shape[axes:])
    values = [np.broadcast_to(value, np.broadcast_shapes(value.shape, shape)) for value in values]
    operands: list[Any] = []
    used: set[int] = set()
    for value in values:
        mine = [d for d in range(value.ndim) if value.shape[d] != 1]
        used.update(mine)
        operands += [np.squeeze(value, tuple(d for d in range(value.ndim) if d not in mine)), mine]
    left = [d for d in range(axes) if d in used]
    result = np.asarray(np.einsum(*operands, left, optimize=True))
    return np.expand_dims(result, [d for d in range(axes) if d not in left])
