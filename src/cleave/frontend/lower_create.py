"""Lowerings of tensors made from nothing: `arange`, `full`, `ones`, `eye`, and triangles as index predicates.

A mask built from these never exists in memory: it is an expression of positions (design.md, section 2).
"""

from __future__ import annotations

from typing import Any

import sympy
import torch

from cleave.errors import Unsupported
from cleave.frontend.axes import Ix, Var
from cleave.frontend.emit import apply, cast, choose, compare, lift, lowers, out_dtype, out_shape
from cleave.frontend.trace import Tracer
from cleave.frontend.values import Span, Value, fresh_like, whole


def positions(t: Tracer, var: Var, dtype: str = "i64") -> Value:
    """The positions along a dim."""
    ix = Ix(var)
    return whole(t.recorder.node("position", (ix,), (ix,), dtype), ((ix,),))


@lowers("arange", "range")
def arange(t: Tracer, *bounds: Any, **options: Any) -> Value:
    start, end, step = options.get("start", 0), options.get("end"), options.get("step", 1)
    if len(bounds) == 1:
        end = bounds[0]
    elif bounds:
        start, end, step = (*bounds, step)[:3]
    whole_numbers = all(isinstance(b, int | torch.SymInt) for b in (start, end, step))
    if not whole_numbers:
        raise Unsupported("arange with bounds that are not integers")
    step = t.fixed(step)
    start, end = t.size(start), t.size(end)
    hint = out_shape(t)[0]
    if step == 1:
        length = sympy.sympify(end) - sympy.sympify(start)
    elif isinstance(start, int) and isinstance(end, int):
        length = hint
    else:
        raise Unsupported("arange with a step and a dynamic bound")
    var = t.space.sized(length, hint)
    ix = Ix(var)
    if start == 0 and step == 1:
        digits: Any = (ix,)
    else:
        digits = (Span(var, sympy.sympify(start), step, var, (ix,), t.space.call),)
    dtype = out_dtype(t)
    kind = dtype if dtype in ("i64", "i32", "i16") else "i64"
    return cast(t, whole(t.recorder.node("position", digits, (ix,), kind), ((ix,),)), dtype)


def _full(t: Tracer, shape: Any, value: Any) -> Value:
    sizes = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else list(shape)
    made = lift(t, value, out_dtype(t))
    axes = [(Ix(t.space.sized(t.size(s), hint)),) for s, hint in zip(sizes, out_shape(t), strict=True)]
    return Value(made.node, made.digits, tuple(axes))


@lowers("zeros")
def zeros(t: Tracer, *size: Any, **options: Any) -> Value:
    return _full(t, size or (options["size"],), 0)


@lowers("ones")
def ones(t: Tracer, *size: Any, **options: Any) -> Value:
    return _full(t, size or (options["size"],), 1)


@lowers("full")
def full(t: Tracer, size: Any, fill_value: Any, **options: Any) -> Value:
    return _full(t, (size,), fill_value)


@lowers("new_zeros")
def new_zeros(t: Tracer, x: Value, *size: Any, **options: Any) -> Value:
    return _full(t, size, 0)


@lowers("new_ones")
def new_ones(t: Tracer, x: Value, *size: Any, **options: Any) -> Value:
    return _full(t, size, 1)


@lowers("new_full")
def new_full(t: Tracer, x: Value, size: Any, fill_value: Any, **options: Any) -> Value:
    return _full(t, (size,), fill_value)


@lowers("zeros_like")
def zeros_like(t: Tracer, x: Value, **options: Any) -> Value:
    return _like(t, x, 0)


@lowers("ones_like")
def ones_like(t: Tracer, x: Value, **options: Any) -> Value:
    return _like(t, x, 1)


@lowers("full_like")
def full_like(t: Tracer, x: Value, fill_value: Any, **options: Any) -> Value:
    return _like(t, x, fill_value)


def _like(t: Tracer, x: Value, value: Any) -> Value:
    return _full(t, ([t.symint(t.space.user_of(axis), 0) for axis in x.axes],), value)


@lowers("scalar_tensor", "tensor", "as_tensor")
def tensor(t: Tracer, data: Any, **options: Any) -> Value:
    if isinstance(data, Value):
        return cast(t, data, out_dtype(t))
    if isinstance(data, list | tuple):
        raise Unsupported("a tensor made of a list")
    return lift(t, data, out_dtype(t))


@lowers("eye")
def eye(t: Tracer, n: Any, m: Any = None, **options: Any) -> Value:
    rows = positions(t, t.space.sized(t.size(n), out_shape(t)[0]))
    columns = positions(t, t.space.sized(t.size(n if m is None else m), out_shape(t)[1]))
    rows = Value(rows.node, rows.digits, (*rows.axes, ()))
    return cast(t, compare(t, "eq", rows, columns), out_dtype(t))


def _triangle(fn: str) -> Any:
    def lower(t: Tracer, x: Value, diagonal: Any = 0) -> Value:
        rows, columns = (positions_along(t, x, at) for at in (-2, -1))
        rows = Value(rows.node, rows.digits, (*rows.axes, ()))
        if not (isinstance(diagonal, int) and diagonal == 0):
            rows = apply(t, "add", "i64", rows, diagonal)
        keep = compare(t, fn, columns, rows)
        if x.node.kind == "const" and x.dtype == "bool" and x.node.data is True:
            return _spread(t, keep, x)
        if x.node.kind == "const" and x.node.data == 1:
            return _spread(t, cast(t, keep, x.dtype), x)
        return choose(t, keep, x, 0 if x.dtype != "bool" else False, x.dtype)

    return lower


def positions_along(t: Tracer, x: Value, at: int) -> Value:
    """The positions along an axis of a value; the axis may be a product of dims."""
    ixs = fresh_like(x.axes[at])
    return whole(t.recorder.node("position", ixs, ixs, "i64"), (ixs,))


def _spread(t: Tracer, keep: Value, x: Value) -> Value:
    return Value(keep.node, keep.digits, (*x.axes[:-2], *keep.axes))


lowers("tril")(_triangle("le"))
lowers("triu")(_triangle("ge"))
