"""The meaning of a tile program, in NumPy.

`run` walks every kernel, block, loop and tile as written and keeps tiles as small arrays, clipped to their
spans. It is the definition that emitters are tested against, so it is strict: whatever a generated kernel
could get wrong silently raises `Bug` here: an element written twice or by two blocks, an unguarded load
that leaves its tensor, an `exact` loop with a short tile, a workspace element read before it is written,
a value used outside its scope. Elements of outputs that nobody writes come back as NaN (integers: the
least value of the dtype). With `dtype=np.float64` all floating-point tiles are float64; with
`np.float32` each tile has its own precision (f16 and bf16 by rounding after each statement).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from cleave.errors import Bug, Invalid
from cleave.ir.dims import Dim, Gather, Index, Inject, Join, Leaf, Lookup, Parts, Term, Union, size_of
from cleave.ir.numerics import Array
from cleave.schedule.arithmetic import Precision
from cleave.schedule.shapes import infer_sizes, parts_of
from cleave.schedule.tiles import (
    AlignBound,
    Bound,
    Carry,
    Compute,
    ContractTile,
    Fill,
    Kernel,
    LimitBound,
    Load,
    Locate,
    Loop,
    Measure,
    PartBound,
    ReduceTile,
    SizeBound,
    SpanBound,
    Statement,
    Store,
    Tensor,
    TileProgram,
)
from cleave.schedule.walks import firsts_of

Span = tuple[int, int]


def run(
    tp: TileProgram,
    inputs: Mapping[str, Any],
    parts: Mapping[Dim, int] | None = None,
    dtype: npt.DTypeLike = np.float64,
    *,
    order: str = "forward",
    seed: int = 0,
    chunks: Mapping[Dim, int] | None = None,
) -> dict[str, Array]:
    """Run a tile program on arrays and numbers; returns the outputs by name, in the caller's layout.

    `parts` gives the part count of each split dim (1 where missing) and `chunks` its part length (the least
    that covers it where missing). `order` is the order of blocks: `forward`, `reverse` or `random`.
    float16 outputs are float16 and bfloat16 ones float32 when `dtype` is float32. `Invalid` for inputs that
    do not fit; `Bug` for programs that break a rule."""
    shapes = {t.name: np.shape(inputs[t.name]) for t in tp.inputs if t.name in inputs}
    sizes = infer_sizes(tp, shapes)
    lengths: dict[Dim, int] = {}
    for dim in parts_of(tp):
        count = _given(parts, dim, 1)
        least = -(-size_of(dim.of, sizes) // count)
        sizes[dim] = count
        lengths[dim] = _given(chunks, dim, max(1, least))
        if lengths[dim] < least:
            raise Invalid(f"{count} parts of {lengths[dim]} do not cover {dim.of}, which has {least * count}")
    precision = Precision(np.dtype(dtype) == np.float64)
    memories = _allocate(tp, inputs, sizes, precision)
    with np.errstate(all="ignore"):
        for number, kernel in enumerate(tp.kernels):
            _launch(kernel, number, _Call(sizes, lengths, memories, precision), order, seed)
    outputs = {tensor.name: memories[tensor.name].caller(sizes) for tensor in tp.outputs}
    if not precision.exact:
        half = {t.name for t in tp.outputs if t.dtype == "f16"}
        outputs = {n: a.astype(np.float16) if n in half else a for n, a in outputs.items()}
    return outputs


def _given(values: Mapping[Dim, int] | None, dim: Parts, default: int) -> int:
    value = default
    for key in (dim, dim.of):
        if values is not None and key in values:
            value = values[key]
            break
    if value < 1:
        raise Invalid(f"{dim} is {value}; a split dim needs one part of one element or more")
    return value


# ---------------------------------------------------------------- memory


@dataclass(slots=True)
class _Memory:
    """A tensor: `data` has one axis per dim of its layout; `written` says which elements hold a value."""

    tensor: Tensor
    data: Array
    written: Array

    def caller(self, sizes: Mapping[Dim, int]) -> Array:
        """The values with the caller's axes."""
        shape = [prod(size_of(dim, sizes) for dim in group) for group in self.tensor.layout]
        return self.data.reshape(shape)


def _allocate(
    tp: TileProgram, inputs: Mapping[str, Any], sizes: Mapping[Dim, int], precision: Precision
) -> dict[str, _Memory]:
    memories: dict[str, _Memory] = {}
    for tensor in (*tp.inputs, *tp.outputs, *tp.workspaces):
        shape = [size_of(dim, sizes) for group in tensor.layout for dim in group]
        if tensor.role in ("input", "scalar"):
            data = precision.array(np.asarray(inputs[tensor.name]), tensor.dtype).reshape(shape)
            memories[tensor.name] = _Memory(tensor, data, np.ones(shape, np.bool_))
        else:
            data = np.full(shape, precision.poison(tensor.dtype), precision.storage(tensor.dtype))
            memories[tensor.name] = _Memory(tensor, data, np.zeros(shape, np.bool_))
    return memories


# ---------------------------------------------------------------- blocks


@dataclass(frozen=True, slots=True)
class _Call:
    """What all blocks of a call share."""

    sizes: Mapping[Dim, int]
    lengths: Mapping[Dim, int]
    memories: Mapping[str, _Memory]
    precision: Precision


@dataclass(frozen=True, slots=True)
class _Tile:
    """A value: `data` has one axis per index, as long as that index' span was when it was made."""

    axes: tuple[Index, ...]
    spans: tuple[Span, ...]
    dtype: str
    data: Array


def _launch(kernel: Kernel, number: int, call: _Call, order: str, seed: int) -> None:
    kept = firsts_of(kernel)
    counts = [
        max(-(-size_of(axis.index.dim, call.sizes) // axis.tile), int(axis.index in kept))
        for axis in kernel.grid
    ]
    blocks = list(itertools.product(*map(range, counts)))
    if order == "reverse":
        blocks.reverse()
    elif order == "random":
        random.Random(f"{seed} {number}").shuffle(blocks)
    elif order != "forward":
        raise Invalid(f"unknown order of blocks {order!r}: use forward, reverse or random")
    for place in blocks:
        spans: dict[Index, Span] = {}
        for axis, at in zip(kernel.grid, place, strict=True):
            size = size_of(axis.index.dim, call.sizes)
            spans[axis.index] = (at * axis.tile, min(size, (at + 1) * axis.tile))
        for whole in kernel.whole:
            size = size_of(whole.index.dim, call.sizes)
            if size > whole.tile:
                raise Bug(
                    f"{whole.index.dim} has size {size}, kernel {kernel.name} spans {whole.tile} at most"
                )
            spans[whole.index] = (0, size)
        _Block(kernel, call, place, spans).run(kernel.body)


@dataclass(slots=True)
class _Block:
    """One block at work: the spans of indices and the values in scope, innermost scope last."""

    kernel: Kernel
    call: _Call
    place: tuple[int, ...]
    spans: dict[Index, Span]
    scopes: list[dict[str, _Tile]] = field(default_factory=lambda: [{}])
    carried: set[str] = field(default_factory=set[str])

    def bug(self, what: str, statement: Statement | None = None) -> Bug:
        """The error that a rule is broken here."""
        spans = ", ".join(f"{self.name(i)} in [{a}, {b})" for i, (a, b) in self.spans.items())
        where = f"kernel {self.kernel.name}, {spans}"
        if statement is not None:
            where += f", {type(statement).__name__} of {_subject(statement)}"
        return Bug(f"{what}\n  at {where}")

    def name(self, index: Index) -> str:
        return dict(self.kernel.names).get(index, str(index))

    # ------------------------------------------------------------ values

    def value(self, name: str) -> _Tile:
        for scope in reversed(self.scopes):
            if name in scope:
                tile = scope[name]
                for index, span in zip(tile.axes, tile.spans, strict=True):
                    if self.spans.get(index) != span:
                        now = self.spans.get(index)
                        raise self.bug(
                            f"{name} was made for {self.name(index)} in {span}, and is read at {now}"
                        )
                return tile
        raise self.bug(f"{name} is not in scope")

    def define(self, name: str, axes: tuple[Index, ...], dtype: str, data: Array) -> None:
        if any(name in scope for scope in self.scopes):
            raise self.bug(f"{name} is defined twice")
        self.scopes[-1][name] = self.tile(axes, dtype, data)

    def tile(self, axes: tuple[Index, ...], dtype: str, data: Array) -> _Tile:
        spans = tuple(self.span(index) for index in axes)
        shape = tuple(b - a for a, b in spans)
        return _Tile(axes, spans, dtype, np.array(np.broadcast_to(data, shape)))

    def span(self, index: Index) -> Span:
        if index not in self.spans:
            raise self.bug(f"index {self.name(index)} is not in scope")
        return self.spans[index]

    def spread(self, name: str, axes: tuple[Index, ...]) -> Array:
        """The data of a value with its axes in the given order, and axes of length 1 for those it lacks."""
        tile = self.value(name)
        extra = [self.name(i) for i in tile.axes if i not in axes]
        if extra:
            raise self.bug(f"{name} has axes {', '.join(extra)} that the result lacks")
        order = [tile.axes.index(i) for i in axes if i in tile.axes]
        lengths = [tile.data.shape[tile.axes.index(i)] if i in tile.axes else 1 for i in axes]
        return tile.data.transpose(order).reshape(lengths)

    # ------------------------------------------------------------ terms and bounds

    def positions(self, term: Term, dim: Dim, axes: tuple[Index, ...]) -> Array:
        """The positions that a term names, as an array that broadcasts over the axes."""
        total = np.asarray(term.offset.at(self.call.sizes), np.int64)
        for leaf, coefficient in term.leaves:
            total = total + coefficient * self.leaf(leaf, dim, axes)
        return total

    def leaf(self, leaf: Leaf, dim: Dim, axes: tuple[Index, ...]) -> Array:
        match leaf:
            case Index():
                first, last = self.span(leaf)
                if leaf in axes:
                    shape = [last - first if i == leaf else 1 for i in axes]
                    return np.arange(first, last, dtype=np.int64).reshape(shape)
                if last - first > 1:
                    raise self.bug(f"index {self.name(leaf)} is no axis and spans {last - first} positions")
                return np.asarray(first, np.int64)
            case Lookup(value):
                return self.spread(value, axes).astype(np.int64)
            case Inject(part, inner):
                if not isinstance(dim, Union) or part >= len(dim.parts):
                    raise self.bug(f"part {part} of {dim}")
                within = self.positions(inner, dim.parts[part], axes)
                size = size_of(dim.parts[part], self.call.sizes)
                if within.size and (within.min() < 0 or within.max() >= size):
                    raise self.bug(
                        f"a term leaves part {part} of {dim}: [0, {size}) does not hold {within.max()}"
                    )
                return within + sum(size_of(p, self.call.sizes) for p in dim.parts[:part])
            case Join(part, within):
                length = self.call.lengths[Parts(dim)]
                return self.positions(part, Parts(dim), axes) * length + self.positions(within, dim, axes)
            case Gather():
                raise self.bug("a term gathers from a node; a tile program looks values up by name")

    def bound(self, bound: Bound) -> int:
        match bound:
            case SizeBound(extent):
                return extent.at(self.call.sizes)
            case SpanBound(index, end, offset):
                return self.span(index)[end] + offset.at(self.call.sizes)
            case PartBound(part, end, offset):
                if not isinstance(part.dim, Parts):
                    raise self.bug(f"index {self.name(part)} counts no parts")
                length = self.call.lengths[part.dim]
                number = self.span(part)[0] + end
                limit = min(size_of(part.dim.of, self.call.sizes), number * length)
                return limit + offset.at(self.call.sizes)
            case AlignBound(inner, tile, up, origin):
                start = self.bound(origin)
                gap = self.bound(inner) - start
                return start + (-(-gap // tile) if up else gap // tile) * tile
            case LimitBound(kind, bounds):
                return (min if kind == "min" else max)(map(self.bound, bounds))

    # ------------------------------------------------------------ statements

    def run(self, body: Sequence[Statement]) -> None:
        for statement in body:
            match statement:
                case Loop():
                    self.loop(statement)
                case Store():
                    self.store(statement)
                case Carry(out, axes, dtype, init):
                    self.define(out, axes, dtype, self.spread(init, axes))
                    self.carried.add(out)
                case _:
                    self.define(
                        statement.out, getattr(statement, "axes", ()), statement.dtype, self.make(statement)
                    )

    def make(self, statement: Load | Fill | Measure | Locate | Compute | ReduceTile | ContractTile) -> Array:
        """The data of a statement's value."""
        how = self.call.precision
        match statement:
            case Load():
                return self.load(statement)
            case Fill(_, _, dtype, value):
                return how.literal(value, dtype)
            case Measure(_, dtype, extent):
                return how.literal(extent.at(self.call.sizes), dtype)
            case Locate(_, axes, dtype, term):
                leaf = next((leaf for leaf, _ in term.leaves if isinstance(leaf, Index)), None)
                return how.array(self.positions(term, leaf.dim if leaf else Union(()), axes), dtype)
            case Compute(_, axes, dtype, fn, args):
                return how.map(fn, [(self.spread(a, axes), self.value(a).dtype) for a in args], dtype)
            case ReduceTile(_, axes, dtype, kind, over, arg):
                every = (*axes, *over)
                shape = [b - a for a, b in map(self.span, every)]
                return how.reduce(kind, np.broadcast_to(self.spread(arg, every), shape), len(over), dtype)
            case ContractTile():
                return self.contract(statement)

    def contract(self, statement: ContractTile) -> Array:
        every = (*statement.axes, *statement.over)
        tiles = [self.value(name) for name in statement.args]
        for name in statement.args:
            self.spread(name, every)
        covered = {index for tile in tiles for index in tile.axes}
        out = [every.index(i) for i in statement.axes if i in covered]
        rest = prod(b - a for a, b in (self.span(i) for i in statement.over if i not in covered))
        args = [(tile.data, [every.index(i) for i in tile.axes]) for tile in tiles]
        total = self.call.precision.contract(args, out, statement.dtype, rest)
        return total.reshape(
            [b - a if i in covered else 1 for i in statement.axes for a, b in [self.span(i)]]
        )

    def load(self, load: Load) -> Array:
        memory, shape = self.memory(load.tensor, load), [b - a for a, b in map(self.span, load.axes)]
        where = self.elements(memory, load.terms, load.axes, load)
        inside = np.ones(shape, np.bool_)
        for at, size in zip(where, memory.data.shape, strict=True):
            inside = inside & (at >= 0) & (at < size)
        if not inside.all():
            if not load.guarded and not self.reads_nothing(load):
                sizes = ", ".join(map(str, memory.data.shape))
                raise self.bug(f"an unguarded load leaves {load.tensor}[{sizes}]", load)
            if not memory.data.size:
                return np.broadcast_to(self.call.precision.literal(load.other, load.dtype), shape)
        where = [
            np.broadcast_to(np.clip(at, 0, max(0, n - 1)), shape)
            for at, n in zip(where, memory.data.shape, strict=True)
        ]
        if not inside.size:
            return np.zeros(shape, memory.data.dtype)
        if (inside & ~memory.written[tuple(where)]).any():
            raise self.bug(f"elements of {load.tensor} are read before they are written", load)
        other = self.call.precision.literal(load.other, load.dtype)
        return np.where(inside, self.call.precision.array(memory.data[tuple(where)], load.dtype), other)

    def reads_nothing(self, load: Load) -> bool:
        """Whether it reads at an index that has no position, and a block only for what others store."""
        spans = (self.span(index) for term in load.terms for index in self.indices(term))
        return any(first == last for first, last in spans)

    def store(self, store: Store) -> None:
        if any(self.span(index)[0] for index in store.first):
            return
        memory = self.memory(store.tensor, store)
        axes = tuple(dict.fromkeys(i for term in store.terms for i in self.indices(term)))
        shape = [b - a for a, b in map(self.span, axes)]
        data = np.broadcast_to(self.spread(store.value, axes), shape)
        where = self.elements(memory, store.terms, axes, store)
        if not data.size:
            return
        for at, size in zip(where, memory.data.shape, strict=True):
            if at.min() < 0 or at.max() >= size:
                raise self.bug(f"a store leaves {store.tensor}: [0, {size}) does not hold {at.max()}", store)
        place = tuple(np.broadcast_to(at, shape) for at in where)
        if memory.written[place].any():
            raise self.bug(f"an element of {store.tensor} is written twice", store)
        memory.written[place] = True
        if place and len(np.unique(np.ravel_multi_index(place, memory.data.shape))) != data.size:
            raise self.bug(f"a store writes an element of {store.tensor} twice", store)
        memory.data[place] = self.call.precision.array(data, memory.tensor.dtype)

    def indices(self, term: Term) -> list[Index]:
        """The indices of a term, those of values that it looks up too, in order."""
        found: list[Index] = []
        for leaf, _ in term.leaves:
            match leaf:
                case Index():
                    found.append(leaf)
                case Lookup(value):
                    found += self.value(value).axes
                case Inject(_, inner):
                    found += self.indices(inner)
                case Join(part, within):
                    found += [*self.indices(part), *self.indices(within)]
                case Gather():
                    raise self.bug("a term gathers from a node; a tile program looks values up by name")
        return found

    def memory(self, name: str, statement: Statement) -> _Memory:
        if name not in {tensor.name for tensor in self.kernel.tensors}:
            raise self.bug(f"kernel {self.kernel.name} does not list {name}", statement)
        return self.call.memories[name]

    def elements(
        self, memory: _Memory, terms: tuple[Term, ...], axes: tuple[Index, ...], statement: Statement
    ) -> list[Array]:
        dims = [dim for group in memory.tensor.layout for dim in group]
        if len(dims) != len(terms):
            raise self.bug(f"{len(terms)} terms for the {len(dims)} dims of {memory.tensor.name}", statement)
        return [self.positions(term, dim, axes) for term, dim in zip(terms, dims, strict=True)]

    def loop(self, loop: Loop) -> None:
        if loop.index in self.spans:
            raise self.bug(f"a loop over {self.name(loop.index)}, which has a span already", loop)
        start, stop = self.bound(loop.start), self.bound(loop.stop)
        size = size_of(loop.index.dim, self.call.sizes)
        if start < stop and start < 0:
            raise self.bug(f"a loop starts at {start}", loop)
        if loop.exact and start < stop and (stop > size or (stop - start) % loop.tile):
            raise self.bug(
                f"an exact loop over [{start}, {stop}) of {size} by {loop.tile} has a short tile", loop
            )
        for first in range(start, min(stop, size), loop.tile):
            self.spans[loop.index] = (first, min(first + loop.tile, stop, size))
            self.scopes.append({})
            self.run(loop.body)
            self.update(loop)
            del self.spans[loop.index]

    def update(self, loop: Loop) -> None:
        """Set accumulators to values of the body, all at once, and leave the body's scope."""
        new: dict[str, _Tile] = {}
        for name, value in loop.updates:
            tile = self.scopes[-1].get(name)
            if name not in self.carried or tile is not None:
                raise self.bug(f"the loop updates {name}, which is no accumulator declared outside it", loop)
            old = self.value(name)
            if self.value(value).dtype != old.dtype:
                raise self.bug(
                    f"{name} is {old.dtype}, its update {value} is {self.value(value).dtype}", loop
                )
            new[name] = self.tile(old.axes, old.dtype, self.spread(value, old.axes))
        self.carried -= self.scopes.pop().keys()
        for name, tile in new.items():
            next(scope for scope in reversed(self.scopes) if name in scope)[name] = tile


def _subject(statement: Statement) -> str:
    match statement:
        case Store(tensor):
            return tensor
        case Loop(index):
            return str(index)
        case _:
            return statement.out


__all__ = ["run"]
