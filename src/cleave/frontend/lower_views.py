"""Lowerings of views: what PyTorch calls a new tensor here is another access (`views.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from cleave.errors import Unsupported
from cleave.frontend import views
from cleave.frontend.axes import Ix, hint_of, leaves_of, root
from cleave.frontend.emit import apply, axis_of, choose, compare, lowers, out_dtype, out_shape, promote
from cleave.frontend.emit import cast as cast_value
from cleave.frontend.lower_index import gather_at
from cleave.frontend.trace import Tracer
from cleave.frontend.values import Read, Value, common_axes, read, whole


def listed(sizes: tuple[Any, ...]) -> list[Any]:
    """`x.view(2, 3)` and `x.view((2, 3))` mean the same."""
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple | torch.Size):
        return list(sizes[0])
    return list(sizes)


@lowers("reshape", "view", "_unsafe_view")
def reshape(t: Tracer, x: Value, *shape: Any, **named: Any) -> Value:
    sizes = listed(shape or tuple(named.values()))
    if sizes and isinstance(sizes[0], torch.dtype):
        raise Unsupported("a view of the bits as another dtype")
    return views.reshape(t.space, x, [t.size(s) for s in sizes], out_shape(t))


@lowers("view_as", "reshape_as")
def view_as(t: Tracer, x: Value, other: Value) -> Value:
    return views.reshape(t.space, x, [t.space.user_of(axis) for axis in other.axes], out_shape(t))


@lowers("flatten")
def flatten(t: Tracer, x: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    if not x.rank:
        return Value(x.node, x.digits, ((),))
    a, b = axis_of(t, start_dim, x.rank), axis_of(t, end_dim, x.rank)
    merged = tuple(ix for axis in x.axes[a : b + 1] for ix in leaves_of(axis))
    return Value(x.node, x.digits, (*x.axes[:a], merged, *x.axes[b + 1 :]))


@lowers("ravel")
def ravel(t: Tracer, x: Value) -> Value:
    return flatten(t, x)


@lowers("unflatten")
def unflatten(t: Tracer, x: Value, dim: int, sizes: Sequence[Any]) -> Value:
    at = axis_of(t, dim, x.rank)
    new = [t.size(s) for s in sizes]
    whole_shape = [t.space.user_of(axis) for axis in x.axes]
    return views.reshape(t.space, x, [*whole_shape[:at], *new, *whole_shape[at + 1 :]], out_shape(t))


@lowers("permute")
def permute(t: Tracer, x: Value, *dims: Any) -> Value:
    return views.permute(x, [axis_of(t, d, x.rank) for d in listed(dims)])


@lowers("transpose", "swapaxes", "swapdims")
def transpose(t: Tracer, x: Value, dim0: int, dim1: int) -> Value:
    order = list(range(x.rank))
    if x.rank:
        a, b = axis_of(t, dim0, x.rank), axis_of(t, dim1, x.rank)
        order[a], order[b] = order[b], order[a]
    return views.permute(x, order)


@lowers("t", "T", "mT", "adjoint", "mH", "H")
def turned(t: Tracer, x: Value) -> Value:
    return transpose(t, x, -1, -2) if x.rank == 2 else _turned(t, x)


def _turned(t: Tracer, x: Value) -> Value:
    if x.rank < 2:
        return x
    expected = out_shape(t)
    swapped = transpose(t, x, -1, -2)
    if tuple(hint_of(a) for a in swapped.axes) == expected:
        return swapped
    return views.permute(x, list(reversed(range(x.rank))))


@lowers("movedim", "moveaxis")
def movedim(t: Tracer, x: Value, source: Any, destination: Any) -> Value:
    sources = [axis_of(t, d, x.rank) for d in listed((source,))]
    places = [axis_of(t, d, x.rank) for d in listed((destination,))]
    rest = iter(n for n in range(x.rank) if n not in sources)
    order = [sources[places.index(n)] if n in places else next(rest) for n in range(x.rank)]
    return views.permute(x, order)


@lowers("unsqueeze")
def unsqueeze(t: Tracer, x: Value, dim: int) -> Value:
    at = t.fixed(dim)
    return views.insert(x, at + x.rank + 1 if at < 0 else at)


@lowers("squeeze")
def squeeze(t: Tracer, x: Value, dim: Any = None) -> Value:
    chosen = range(x.rank) if dim is None else [axis_of(t, d, x.rank) for d in listed((dim,)) if x.rank]
    for at in sorted(chosen, reverse=True):
        leaves = leaves_of(x.axes[at])
        if hint_of(x.axes[at]) == 1:
            x = views.drop(t.space, x, at)
        elif leaves:
            t.space.checks[sympy.Ne(t.space.user_of(leaves), 1)] = None
    return x


@lowers("expand")
def expand(t: Tracer, x: Value, *sizes: Any, **named: Any) -> Value:
    wanted = listed(sizes or tuple(v for k, v in named.items() if k != "implicit"))
    return _expand(t, x, [t.size(s) for s in wanted])


def _expand(t: Tracer, x: Value, wanted: Sequence[Any]) -> Value:
    for _ in range(len(wanted) - x.rank):
        x = views.insert(x, 0)
    for at, (size, hint) in enumerate(zip(wanted, out_shape(t), strict=True)):
        if size != -1:
            x = views.expand_axis(t.space, x, at, size, hint)
    return x


@lowers("expand_as")
def expand_as(t: Tracer, x: Value, other: Value) -> Value:
    return _expand(t, x, [t.space.user_of(axis) for axis in other.axes])


@lowers("broadcast_to")
def broadcast_to(t: Tracer, x: Value, size: Any) -> Value:
    return _expand(t, x, [t.size(s) for s in size])


@lowers("repeat_interleave")
def repeat_interleave(
    t: Tracer, x: Value, repeats: Any, dim: Any = None, *, output_size: Any = None
) -> Value:
    if isinstance(repeats, Value):
        raise Unsupported("repeat_interleave by a tensor")
    if dim is None:
        x, dim = flatten(t, x), 0
    at = axis_of(t, dim, x.rank)
    times = t.size(repeats)
    return views.repeat_inner(t.space, x, at, times, t.concrete(repeats))


@lowers("repeat", "tile")
def repeat(t: Tracer, x: Value, *times: Any) -> Value:
    counts = listed(times)
    counts = [1] * (x.rank - len(counts)) + counts
    for _ in range(len(counts) - x.rank):
        x = views.insert(x, 0)
    for at, count in enumerate(counts):
        if not (isinstance(count, int) and count == 1):
            x = views.repeat_outer(t.space, x, at, t.size(count), t.concrete(count))
    return x


@lowers("diagonal")
def diagonal(t: Tracer, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    return views.diagonal(t.space, x, t.fixed(offset), axis_of(t, dim1, x.rank), axis_of(t, dim2, x.rank))


@lowers("flip")
def flip(t: Tracer, x: Value, *dims: Any) -> Value:
    for dim in listed(dims):
        if not x.rank:
            return x
        at = axis_of(t, dim, x.rank)
        size = t.space.user_of(x.axes[at])
        if leaves_of(x.axes[at]):
            x = views.narrow(t.space, x, at, size - 1, size, hint_of(x.axes[at]), step=-1)
    return x


@lowers("fliplr")
def fliplr(t: Tracer, x: Value) -> Value:
    return flip(t, x, 1)


@lowers("flipud")
def flipud(t: Tracer, x: Value) -> Value:
    return flip(t, x, 0)


# ---------------------------------------------------------------- pieces


def cut(t: Tracer, x: Value, at: int, start: Any, stop: Any, step: int = 1) -> Value:
    """A Python slice of one axis: bounds are clipped as Python does, by guards where they are symbolic."""
    size = t.symint(t.space.user_of(x.axes[at]), hint_of(x.axes[at]))
    if step < 1:
        raise Unsupported("a slice with a negative step")
    begin = 0 if start is None else start
    end = size if stop is None or (isinstance(stop, int) and stop >= 2**62) else stop
    begin = begin + size if begin < 0 else begin
    end = end + size if end is not size and end < 0 else end
    begin = 0 if begin < 0 else size if begin > size else begin
    if end is not size:
        end = 0 if end < 0 else size if end > size else end
    if end is not size and end < begin:
        end = begin
    length = end - begin
    if step != 1:
        length = (length + step - 1) // step
    return views.narrow(t.space, x, at, t.size(begin), t.size(length), t.concrete(length), step)


@lowers("narrow")
def narrow(t: Tracer, x: Value, dim: int, start: Any, length: Any) -> Value:
    return cut(t, x, axis_of(t, dim, x.rank), start, start + length)


@lowers("select")
def select(t: Tracer, x: Value, dim: int, index: Any) -> Value:
    return pick(t, x, axis_of(t, dim, x.rank), index)


def pick(t: Tracer, x: Value, at: int, index: Any) -> Value:
    """One element of an axis; negative positions count from the end."""
    if isinstance(index, torch.SymInt):
        free = [s for s in sympy.sympify(t.expr(index)).free_symbols if s in t.numbers]
        index = int(index) if free else index
    size = t.symint(t.space.user_of(x.axes[at]), hint_of(x.axes[at]))
    where = index + size if index < 0 else index
    return views.select(t.space, x, at, t.size(where))


@lowers("unbind")
def unbind(t: Tracer, x: Value, dim: int = 0) -> tuple[Value, ...]:
    at = axis_of(t, dim, x.rank)
    for ix in leaves_of(x.axes[at]):
        t.space.fix(ix.var, root(ix.var).hint)
    return tuple(views.select(t.space, x, at, n) for n in range(hint_of(x.axes[at])))


@lowers("split", "unsafe_split", "split_with_sizes", "unsafe_split_with_sizes")
def split(
    t: Tracer, x: Value, split_size_or_sections: Any = None, dim: int = 0, **named: Any
) -> tuple[Value, ...]:
    sections = named.get("split_size", named.get("split_sizes", split_size_or_sections))
    at = axis_of(t, dim, x.rank)
    if not isinstance(sections, list | tuple):
        return _equal_pieces(t, x, at, sections)
    start: Any = 0
    pieces: list[Value] = []
    for length in sections:
        pieces.append(cut(t, x, at, start, start + length))
        start = start + length
    return tuple(pieces)


def _equal_pieces(t: Tracer, x: Value, at: int, length: Any) -> tuple[Value, ...]:
    count = len(t.result)
    size = t.symint(t.space.user_of(x.axes[at]), hint_of(x.axes[at]))
    pieces: list[Value] = []
    for n in range(count):
        last = n == count - 1
        pieces.append(cut(t, x, at, n * length, size if last else (n + 1) * length))
    if not isinstance(size, int) and count:
        t.space.checks[sympy.Gt(t.expr(size), t.expr((count - 1) * length))] = None
        t.space.checks[sympy.Le(t.expr(size), t.expr(count * length))] = None
    return tuple(pieces)


@lowers("chunk", "unsafe_chunk", "tensor_split")
def chunk(t: Tracer, x: Value, chunks: Any, dim: int = 0) -> tuple[Value, ...]:
    count, at = t.fixed(chunks), axis_of(t, dim, x.rank)
    if not isinstance(count, int):
        raise Unsupported("tensor_split at positions")
    own = leaves_of(x.axes[at])
    size = hint_of(x.axes[at])
    if size % count:
        for ix in own:
            t.space.fix(ix.var, root(ix.var).hint)
        per = -(-size // count)
        return tuple(cut(t, x, at, n, min(n + per, size)) for n in range(0, size, per))
    if len(own) == 1 and root(own[0].var).value is None:
        width = t.space.user(views.halves(t.space, own[0].var, count))
        return tuple(views.narrow(t.space, x, at, n * width, width, size // count) for n in range(count))
    per = size // count
    return tuple(cut(t, x, at, n * per, (n + 1) * per) for n in range(count))


# ---------------------------------------------------------------- joining


@lowers("cat", "concat", "concatenate")
def cat(t: Tracer, tensors: Sequence[Value], dim: int = 0, *, axis: Any = None) -> Value:
    pieces = [x for x in tensors if not (x.rank == 1 and hint_of(x.axes[0]) == 0)] or list(tensors[:1])
    at = axis_of(t, dim if axis is None else axis, pieces[0].rank)
    dtype = out_dtype(t)
    pieces = [cast_value(t, x, dtype) for x in pieces]
    if len(pieces) == 1:
        return pieces[0]
    others = common_axes(t.space, [views.insert(_without(x, at), at) for x in pieces])
    owns = [views.single(t.space, x.axes[at], "a concatenation") for x in pieces]
    parts = [root(ix.var) if ix is not None else t.space.known(1) for ix in owns]
    union = t.space.fresh(sum(p.hint for p in parts), sympy.Add(*(t.space.user(p) for p in parts)))
    t.space.concatenate(union, parts)
    whole_ix = Ix(union)
    axes = [*others]
    axes[at] = (whole_ix,)
    reads: list[Read] = []
    part_ixs: list[Ix] = []
    for x, part in zip(pieces, parts, strict=True):
        ix = Ix(part)
        part_ixs.append(ix)
        reads.append(read(x, [*axes[:at], (ix,), *axes[at + 1 :]]))
    flat = [ix for group in axes for ix in group]
    node = t.recorder.node("cat", (whole_ix, tuple(part_ixs)), flat, dtype, reads)
    return whole(node, axes)


def _without(x: Value, at: int) -> Value:
    return Value(x.node, x.digits, x.axes[:at] + x.axes[at + 1 :])


@lowers("stack")
def stack(t: Tracer, tensors: Sequence[Value], dim: int = 0) -> Value:
    """A few values along a new axis: which one is said by the position."""
    count = len(tensors)
    if count > 8:
        raise Unsupported("a stack of more than 8 tensors")
    at = t.fixed(dim)
    at = at + tensors[0].rank + 1 if at < 0 else at
    from cleave.frontend.lower_create import positions

    which = positions(t, t.space.known(count))
    which = Value(which.node, which.digits, (*which.axes, *(((),) * (tensors[0].rank - at))))
    dtype = promote(*tensors)
    wide = [views.insert(cast_value(t, x, dtype), at) for x in tensors]
    if count == 1:
        return wide[0]
    result = wide[-1]
    for n in reversed(range(count - 1)):
        result = choose(t, compare(t, "eq", which, n), wide[n], result, dtype)
    return result


@lowers("roll")
def roll(t: Tracer, x: Value, shifts: Any, dims: Any = None) -> Value:
    if (
        dims is None
        or not isinstance(t.fixed(shifts), int)
        or (isinstance(dims, list | tuple) and len(dims) != 1)
    ):
        raise Unsupported("roll over several axes")
    at = axis_of(t, listed((dims,))[0], x.rank)
    by = t.fixed(shifts)
    if by == 0:
        return x
    head, tail = cut(t, x, at, -by, None), cut(t, x, at, None, -by)
    return cat(t, [head, tail], at)


# ---------------------------------------------------------------- subscripts


@lowers("__getitem__")
def getitem(t: Tracer, x: Value, key: Any) -> Value:
    keys = list(key) if isinstance(key, tuple) else [key]
    taken = sum(1 for k in keys if k is not None and k is not Ellipsis and not isinstance(k, bool))
    if any(isinstance(k, bool) or (isinstance(k, Value) and k.dtype == "bool") for k in keys):
        raise Unsupported("a boolean subscript")
    if Ellipsis not in [k for k in keys if not isinstance(k, Value)]:
        keys.append(Ellipsis)
    place = next(n for n, k in enumerate(keys) if k is Ellipsis)
    keys[place : place + 1] = [slice(None)] * (x.rank - taken)
    at = 0
    gathers: list[tuple[int, Value]] = []
    first_list = -1
    apart = False
    for k in keys:
        if k is None:
            x = views.insert(x, at)
            at += 1
        elif isinstance(k, slice):
            if not (k.start is None and k.stop is None and k.step is None):
                step = 1 if k.step is None else t.fixed(k.step)
                x = cut(t, x, at, k.start, k.stop, step)
            apart = apart or bool(gathers)
            at += 1
        elif isinstance(k, Value):
            if gathers and apart:
                raise Unsupported("tensor subscripts with a slice between them")
            first_list = at if first_list < 0 else first_list
            gathers.append((at, k))
            at += 1
        elif isinstance(k, int | torch.SymInt):
            x = pick(t, x, at, k)
        else:
            raise Unsupported(f"a subscript of type {type(k).__name__}")
    if not gathers:
        return x
    gathers = [(axis, _wrapped(t, x, axis, ids)) for axis, ids in gathers]
    return gather_at(t, x, gathers)


def _wrapped(t: Tracer, x: Value, at: int, ids: Value) -> Value:
    """Negative subscripts count from the end."""
    if ids.node.kind == "position":
        return ids
    size = t.symint(t.space.user_of(x.axes[at]), hint_of(x.axes[at]))
    return choose(t, compare(t, "lt", ids, 0), apply(t, "add", ids.dtype, ids, size), ids, ids.dtype)
