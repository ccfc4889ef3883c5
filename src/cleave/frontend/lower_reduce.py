"""Lowerings of reductions: sums, extrema, means, variances, softmax and norms over axes.

Safe forms as eager computes them: softmax subtracts the maximum, a variance is the mean of squared
deviations. Half precisions are computed in float32 and converted at the end.
"""

# ruff: noqa: A002  (parameters have PyTorch's names)
from __future__ import annotations

from typing import Any

import torch

from cleave.errors import Unsupported
from cleave.frontend.emit import (
    apply,
    as_float,
    axes_of,
    axis_of,
    cast,
    choose,
    compare,
    count_of,
    infinity,
    is_float,
    lowers,
    out_dtype,
    pointwise,
    reduce,
    wide,
)
from cleave.frontend.lower_pointwise import truth
from cleave.frontend.recorded import Poison
from cleave.frontend.trace import Tracer
from cleave.frontend.values import Value


def wide_of(x: Value) -> str:
    """The dtype in which eager reduces."""
    return wide(as_float(x.dtype))


@lowers("sum")
def sum_(
    t: Tracer, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, axis: Any = None
) -> Value:
    out = out_dtype(t)
    inner = wide(out)
    dims = axes_of(t, dim if axis is None else axis, x.rank)
    return cast(t, reduce(t, "sum", cast(t, x, inner), dims, keepdim, inner), out)


@lowers("mean")
def mean(
    t: Tracer, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, axis: Any = None
) -> Value:
    out = out_dtype(t)
    return cast(
        t,
        mean_wide(t, cast(t, x, wide(out)), axes_of(t, dim if axis is None else axis, x.rank), keepdim),
        out,
    )


@lowers("nansum")
def nansum(t: Tracer, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return sum_(t, _numbers(t, x)[0], dim, keepdim)


@lowers("nanmean")
def nanmean(t: Tracer, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    out = out_dtype(t)
    kept, seen = _numbers(t, x)
    w, dims = wide(out), axes_of(t, dim, x.rank)
    total = reduce(t, "sum", cast(t, kept, w), dims, keepdim, w)
    return cast(t, apply(t, "div", w, total, reduce(t, "sum", cast(t, seen, w), dims, keepdim, w)), out)


def _numbers(t: Tracer, x: Value) -> tuple[Value, Value]:
    """A value with 0 for NaN, and where it is a number."""
    if not is_float(x.dtype):
        raise Unsupported("NaN among integers")
    lost = pointwise(t, "isnan", "bool", x)
    return choose(t, lost, 0, x, x.dtype), apply(t, "not", "bool", lost)


def mean_wide(t: Tracer, x: Value, dims: list[int], keepdim: bool) -> Value:
    """A mean in the value's own dtype."""
    total = reduce(t, "sum", x, dims, keepdim, x.dtype)
    return apply(t, "div", x.dtype, total, count_of(t, x, dims, x.dtype))


@lowers("prod")
def prod(t: Tracer, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    out = out_dtype(t)
    inner = wide(out)
    return cast(t, reduce(t, "prod", cast(t, x, inner), axes_of(t, dim, x.rank), keepdim, inner), out)


@lowers("amax")
def amax(t: Tracer, x: Value, dim: Any = (), keepdim: bool = False) -> Value:
    return reduce(t, "max", x, axes_of(t, dim, x.rank), keepdim, x.dtype)


@lowers("amin")
def amin(t: Tracer, x: Value, dim: Any = (), keepdim: bool = False) -> Value:
    return reduce(t, "min", x, axes_of(t, dim, x.rank), keepdim, x.dtype)


def _extremum(kind: str) -> Any:
    def lower(t: Tracer, x: Value, dim: Any = None, keepdim: bool = False, **named: Any) -> Any:
        other = named.get("other")
        if isinstance(dim, Value) or other is not None:
            from cleave.frontend.lower_pointwise import binary

            return binary(kind)(t, x, other if other is not None else dim)
        if dim is None:
            return reduce(t, kind, x, list(range(x.rank)), False, x.dtype)
        return reduce(t, kind, x, [axis_of(t, dim, x.rank)] if x.rank else [], keepdim, x.dtype), Poison(
            t.count
        )

    return lower


lowers("max")(_extremum("max"))
lowers("min")(_extremum("min"))


@lowers("aminmax")
def aminmax(t: Tracer, x: Value, *, dim: Any = None, keepdim: bool = False) -> tuple[Value, Value]:
    dims = axes_of(t, dim, x.rank)
    return reduce(t, "min", x, dims, keepdim, x.dtype), reduce(t, "max", x, dims, keepdim, x.dtype)


@lowers("any")
def any_(t: Tracer, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return reduce(t, "any", truth(t, x), axes_of(t, dim, x.rank), keepdim, "bool")


@lowers("all")
def all_(t: Tracer, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return reduce(t, "all", truth(t, x), axes_of(t, dim, x.rank), keepdim, "bool")


@lowers("count_nonzero")
def count_nonzero(t: Tracer, x: Value, dim: Any = None) -> Value:
    return reduce(t, "sum", truth(t, x), axes_of(t, dim, x.rank), False, "i64")


# ---------------------------------------------------------------- variance


def _correction(unbiased: Any, correction: Any) -> Any:
    if isinstance(unbiased, bool):
        return 1 if unbiased else 0
    return 1 if correction is None else correction


def variance(t: Tracer, x: Value, dims: list[int], correction: Any, keepdim: bool) -> Value:
    """The mean of squared deviations, in the value's own dtype."""
    w = x.dtype
    deviation = apply(t, "sub", w, x, mean_wide(t, x, dims, True))
    total = reduce(t, "sum", apply(t, "mul", w, deviation, deviation), dims, keepdim, w)
    count = count_of(t, x, dims, w)
    if not (isinstance(correction, int | float) and correction == 0):
        count = apply(t, "max", w, apply(t, "sub", w, count, correction), 0)
    return apply(t, "div", w, total, count)


def _var_arguments(t: Tracer, x: Value, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    rest = list(args)
    dim = named.get("dim")
    unbiased = named.get("unbiased")
    if rest and isinstance(rest[0], bool):
        unbiased = rest.pop(0)
    elif rest:
        dim = rest.pop(0)
    if rest and isinstance(rest[0], bool):
        unbiased = rest.pop(0)
    keepdim = rest.pop(0) if rest else named.get("keepdim", False)
    return axes_of(t, dim, x.rank), _correction(unbiased, named.get("correction")), keepdim


@lowers("var")
def var(t: Tracer, x: Value, *args: Any, **named: Any) -> Value:
    dims, correction, keepdim = _var_arguments(t, x, args, named)
    return cast(t, variance(t, cast(t, x, wide_of(x)), dims, correction, keepdim), out_dtype(t))


@lowers("std")
def std(t: Tracer, x: Value, *args: Any, **named: Any) -> Value:
    dims, correction, keepdim = _var_arguments(t, x, args, named)
    w = wide_of(x)
    return cast(t, apply(t, "sqrt", w, variance(t, cast(t, x, w), dims, correction, keepdim)), out_dtype(t))


@lowers("var_mean")
def var_mean(t: Tracer, x: Value, *args: Any, **named: Any) -> tuple[Value, Value]:
    dims, correction, keepdim = _var_arguments(t, x, args, named)
    wx = cast(t, x, wide_of(x))
    pair = variance(t, wx, dims, correction, keepdim), mean_wide(t, wx, dims, keepdim)
    return cast(t, pair[0], out_dtype(t)), cast(t, pair[1], out_dtype(t))


@lowers("std_mean")
def std_mean(t: Tracer, x: Value, *args: Any, **named: Any) -> tuple[Value, Value]:
    dims, _, keepdim = _var_arguments(t, x, args, named)
    middle = mean_wide(t, cast(t, x, wide_of(x)), dims, keepdim)
    return std(t, x, *args, **named), cast(t, middle, out_dtype(t))


# ---------------------------------------------------------------- softmax


def softmax_parts(t: Tracer, x: Value, dims: list[int]) -> tuple[Value, Value, Value]:
    """`x - max`, its exponential, and the sum of that (kept as an axis of size 1)."""
    w = x.dtype
    shifted = apply(t, "sub", w, x, reduce(t, "max", x, dims, True, w))
    power = apply(t, "exp", w, shifted)
    return shifted, power, reduce(t, "sum", power, dims, True, w)


def softmax_wide(t: Tracer, x: Value, dims: list[int]) -> Value:
    """A softmax in the value's own dtype."""
    _, power, total = softmax_parts(t, x, dims)
    return apply(t, "div", x.dtype, power, total)


def _softmax_operand(t: Tracer, x: Value, dtype: Any) -> Value:
    if not is_float(out_dtype(t)):
        raise Unsupported("softmax of integers")
    return cast(t, x, wide(out_dtype(t)))


def _softmax_axis(t: Tracer, x: Value, dim: Any) -> list[int]:
    if dim is None:
        dim = 0 if x.rank in (0, 1, 3) else 1
    return [axis_of(t, dim, x.rank)] if x.rank else []


@lowers("softmax", "special_softmax")
def softmax(t: Tracer, input: Value, dim: Any = None, dtype: Any = None, *rest: Any, **options: Any) -> Value:
    dtype = rest[0] if rest else options.get("dtype", dtype if isinstance(dtype, torch.dtype) else None)
    return cast(
        t, softmax_wide(t, _softmax_operand(t, input, dtype), _softmax_axis(t, input, dim)), out_dtype(t)
    )


@lowers("softmin")
def softmin(t: Tracer, input: Value, dim: Any = None, **options: Any) -> Value:
    x = apply(t, "neg", input.dtype, input)
    return cast(t, softmax_wide(t, _softmax_operand(t, x, None), _softmax_axis(t, x, dim)), out_dtype(t))


@lowers("log_softmax", "special_log_softmax")
def log_softmax(t: Tracer, input: Value, dim: Any = None, *rest: Any, **options: Any) -> Value:
    x = _softmax_operand(t, input, None)
    return cast(t, log_softmax_wide(t, x, _softmax_axis(t, input, dim)), out_dtype(t))


def log_softmax_wide(t: Tracer, x: Value, dims: list[int]) -> Value:
    """A log-softmax in the value's own dtype."""
    shifted, _, total = softmax_parts(t, x, dims)
    return apply(t, "sub", x.dtype, shifted, apply(t, "log", x.dtype, total))


@lowers("logsumexp", "special_logsumexp")
def logsumexp(t: Tracer, x: Value, dim: Any, keepdim: bool = False) -> Value:
    wx = cast(t, x, wide(as_float(x.dtype)))
    w, dims = wx.dtype, axes_of(t, dim, x.rank)
    top = reduce(t, "max", wx, dims, True, w)
    endless = compare(t, "eq", apply(t, "abs", w, top), infinity())
    shift = choose(t, endless, 0, top, w)
    total = reduce(t, "sum", apply(t, "exp", w, apply(t, "sub", w, wx, shift)), dims, True, w)
    result = apply(t, "add", w, apply(t, "log", w, total), shift)
    if not keepdim:
        kept = tuple(axis for n, axis in enumerate(result.axes) if n not in dims)
        result = Value(result.node, result.digits, kept)
    return cast(t, result, out_dtype(t))


@lowers("logaddexp")
def logaddexp(t: Tracer, a: Value, b: Value) -> Value:
    out = out_dtype(t)
    if not is_float(out):
        raise Unsupported("logaddexp of integers")
    w = wide(out)
    top = apply(t, "max", w, a, b)
    shift = choose(t, compare(t, "eq", apply(t, "abs", w, top), infinity()), 0, top, w)
    powers = [apply(t, "exp", w, apply(t, "sub", w, x, shift)) for x in (a, b)]
    return cast(t, apply(t, "add", w, apply(t, "log", w, apply(t, "add", w, *powers)), shift), out)


# ---------------------------------------------------------------- norms of vectors


@lowers("linalg_norm")
def linalg_norm(
    t: Tracer, x: Value, ord: Any = None, dim: Any = None, keepdim: bool = False, *, out: Any = None,
    dtype: Any = None,
) -> Value:  # fmt: skip
    axes = axes_of(t, dim, x.rank)
    if isinstance(ord, int | float) and len(axes) == 2:
        raise Unsupported(f"a norm of order {ord} of matrices")
    return norm(t, x, ord, dim, keepdim)


@lowers("norm", "linalg_vector_norm")
def norm(
    t: Tracer, x: Value, p: Any = 2, dim: Any = None, keepdim: bool = False, out: Any = None,
    dtype: Any = None,
    *, ord: Any = None,
) -> Value:  # fmt: skip
    p = p if ord is None else ord
    p = 2 if p is None or p == "fro" else p
    if not isinstance(p, int | float):
        raise Unsupported(f"a norm of order {p}")
    w = wide(out_dtype(t))
    return cast(t, norm_wide(t, cast(t, x, w), p, axes_of(t, dim, x.rank), keepdim), out_dtype(t))


def norm_wide(t: Tracer, x: Value, p: float, dims: list[int], keepdim: bool) -> Value:
    """A vector norm in the value's own dtype."""
    w = x.dtype
    if p == 2:
        return apply(t, "sqrt", w, reduce(t, "sum", apply(t, "mul", w, x, x), dims, keepdim, w))
    size = apply(t, "abs", w, x)
    if p in (infinity(), infinity(-1)):
        return reduce(t, "max" if p > 0 else "min", size, dims, keepdim, w)
    if p == 1:
        return reduce(t, "sum", size, dims, keepdim, w)
    if p == 0:
        return reduce(t, "sum", compare(t, "ne", x, 0), dims, keepdim, w)
    return apply(t, "pow", w, reduce(t, "sum", apply(t, "pow", w, size, p), dims, keepdim, w), 1 / p)


@lowers("pairwise_distance")
def pairwise_distance(
    t: Tracer, x1: Value, x2: Value, p: Any = 2.0, eps: Any = 1e-6, keepdim: bool = False
) -> Value:
    w = wide_of(x1)
    gap = apply(t, "add", w, apply(t, "sub", w, x1, x2), eps)
    return cast(t, norm_wide(t, gap, t.fixed(p), [gap.rank - 1], keepdim), out_dtype(t))


@lowers("linalg_vecdot")
def vecdot(t: Tracer, x: Value, y: Value, *, dim: Any = -1) -> Value:
    w = wide(out_dtype(t))
    product = apply(t, "mul", w, x, y)
    return cast(t, reduce(t, "sum", product, axes_of(t, dim, product.rank), False, w), out_dtype(t))


@lowers("normalize")
def normalize(
    t: Tracer, input: Value, p: float = 2.0, dim: Any = 1, eps: Any = 1e-12, out: Any = None
) -> Value:
    w = wide(as_float(input.dtype))
    length = norm_wide(t, cast(t, input, w), p, axes_of(t, dim, input.rank), True)
    length = cast(t, length, input.dtype)
    return apply(t, "div", input.dtype, input, apply(t, "max", input.dtype, length, eps))
