"""Lowerings that read a tensor where an integer tensor says: embedding, gather, index_select, subscripts.

Out-of-range positions are not checked (PyTorch raises); negative ones count from the end only in subscripts.
"""

# ruff: noqa: A002  (parameters have PyTorch's names)
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from cleave.errors import Unsupported
from cleave.frontend import views
from cleave.frontend.axes import Ix, hint_of, leaves_of, root
from cleave.frontend.emit import axis_of, is_float, lowers
from cleave.frontend.trace import Tracer
from cleave.frontend.values import Digit, Pick, Span, Value, common_axes, fresh_like, read, swap


def gather_at(t: Tracer, x: Value, where: Sequence[tuple[int, Value]]) -> Value:
    """`x` with some neighbouring axes replaced by the common axes of integer values that say the position."""
    if any(is_float(ids.dtype) or ids.dtype == "bool" for _, ids in where):
        raise Unsupported("a subscript that is not of integers")
    axes = common_axes(t.space, [ids for _, ids in where])
    new: dict[Ix, Digit] = {}
    for at, ids in where:
        ix = views.single(t.space, x.axes[at], "a gather")
        if ix is not None:
            new[ix] = Pick(root(ix.var), read(ids, axes), t.space.call)
    gone = [at for at, _ in where]
    kept = [axis for n, axis in enumerate(x.axes) if n not in gone]
    kept[gone[0] : gone[0]] = axes
    return Value(x.node, swap(x.digits, new), tuple(kept))


@lowers("embedding")
def embedding(
    t: Tracer,
    input: Value,
    weight: Value,
    padding_idx: Any = None,
    max_norm: Any = None,
    *rest: Any,
    **options: Any,
) -> Value:
    if max_norm is not None:
        raise Unsupported("embedding with max_norm")
    return gather_at(t, weight, [(0, input)])


@lowers("index_select")
def index_select(t: Tracer, x: Value, dim: int, index: Value) -> Value:
    return gather_at(t, x, [(axis_of(t, dim, x.rank), index)])


@lowers("gather", "take_along_dim")
def gather(t: Tracer, x: Value, dim: int, index: Value, **options: Any) -> Value:
    at = axis_of(t, dim, x.rank)
    axes = tuple(fresh_like(axis) for axis in index.axes)
    new: dict[Ix, Digit] = {}
    for n, axis in enumerate(x.axes):
        own = leaves_of(axis)
        if n == at:
            ix = views.single(t.space, axis, "a gather")
            if ix is not None:
                new[ix] = Pick(root(ix.var), read(index, axes), t.space.call)
            continue
        if not own:
            continue
        if all(root(i.var).hint == 1 for i in own) or hint_of(own) == hint_of(axes[n]):
            t.space.match(own, axes[n])
            new.update(zip(leaves_of(own), leaves_of(axes[n]), strict=True))
        elif len(own) == 1:
            width = t.space.sized(t.space.user_of(axes[n]), 0) if len(axes[n]) != 1 else root(axes[n][0].var)
            t.space.sliced(own[0].var, sympy.Integer(0), width)
            new[own[0]] = Span(root(own[0].var), sympy.Integer(0), 1, width, axes[n], t.space.call)
        else:
            raise Unsupported("a gather whose index is smaller along a merged axis")
    return Value(x.node, swap(x.digits, new), axes)
