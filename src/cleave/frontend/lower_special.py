"""Lowerings of functions that are made of others: `log1p`, `expm1`, hyperbolic ones, remainders, and those
that pass over NaN. Each form keeps the accuracy of eager's, near 0 too; docs/semantics.md lists them.

Forms that are right by a rounding alone (`log(1 + x)` corrected by what `1 + x` lost) do not do: to the
algebra that correction is nothing. So the forms here lose nothing that they would have to win back.
"""

from __future__ import annotations

import math
from typing import Any

from cleave.errors import Unsupported
from cleave.frontend.emit import (
    apply,
    as_float,
    cast,
    choose,
    compare,
    infinity,
    is_float,
    lift,
    lowers,
    pointwise,
    promote,
    wide,
)
from cleave.frontend.trace import Tracer
from cleave.frontend.values import Value

NEAR_ZERO = 0.25
"""Where `log1p` is a series. Beyond it `1 + x` costs the logarithm less than 5 units of 2^-24 (float32)."""
TERMS = {"f32": 5, "f64": 10}
"""Terms of the series of `atanh` up to 1/7: what is left is far below a unit in the last place."""


def log1p_wide(t: Tracer, x: Value) -> Value:
    """`log(1 + x)`: near 0 `2 atanh(s)` with `s = x / (2 + x)`, as a series."""
    w = x.dtype
    s = apply(t, "div", w, x, apply(t, "add", w, x, 2))
    square = apply(t, "mul", w, s, s)
    series: Any = 1 / (2 * TERMS[w] - 1)
    for k in range(TERMS[w] - 2, 0, -1):
        series = apply(t, "add", w, apply(t, "mul", w, square, series), 1 / (2 * k + 1))
    twice = apply(t, "mul", w, s, 2)
    inside = apply(t, "add", w, twice, apply(t, "mul", w, twice, apply(t, "mul", w, square, series)))
    outside = apply(t, "log", w, apply(t, "add", w, x, 1))
    return choose(t, compare(t, "lt", apply(t, "abs", w, x), NEAR_ZERO), inside, outside, w)


def expm1_wide(t: Tracer, x: Value) -> Value:
    """`exp(x) - 1` as `tanh(x / 2) (exp(x) + 1)`, in which nothing cancels."""
    w = x.dtype
    above = apply(t, "add", w, apply(t, "exp", w, x), 1)
    return apply(t, "mul", w, apply(t, "tanh", w, apply(t, "mul", w, x, 0.5)), above)


def cosh_wide(t: Tracer, x: Value) -> Value:
    """`(exp(x) + exp(-x)) / 2`."""
    w = x.dtype
    both = apply(t, "add", w, apply(t, "exp", w, x), apply(t, "exp", w, apply(t, "neg", w, x)))
    return apply(t, "mul", w, both, 0.5)


def _wide(form: Any) -> Any:
    """A function of floats by its form in the wide dtype; integers become the default float dtype."""

    def lower(t: Tracer, x: Value) -> Value:
        dtype = as_float(x.dtype)
        return cast(t, form(t, cast(t, x, wide(dtype))), dtype)

    return lower


def _sinh(t: Tracer, x: Value) -> Value:
    """`tanh(x) cosh(x)`, in which nothing cancels."""
    return apply(t, "mul", x.dtype, apply(t, "tanh", x.dtype, x), cosh_wide(t, x))


def _tan(t: Tracer, x: Value) -> Value:
    return apply(t, "div", x.dtype, apply(t, "sin", x.dtype, x), apply(t, "cos", x.dtype, x))


for _names, _form in (
    (("log1p", "special_log1p"), log1p_wide), (("expm1", "special_expm1"), expm1_wide),
    (("cosh",), cosh_wide), (("sinh",), _sinh), (("tan",), _tan),
):  # fmt: skip
    lowers(*_names)(_wide(_form))


def _scaled(factor: float) -> Any:
    return _wide(lambda t, x: apply(t, "mul", x.dtype, x, factor))


lowers("rad2deg")(_scaled(180 / math.pi))
lowers("deg2rad")(_scaled(math.pi / 180))


@lowers("logit", "special_logit")
def logit(t: Tracer, x: Value, eps: Any = None) -> Value:
    dtype = as_float(x.dtype)
    w = wide(dtype)
    y = cast(t, x, w)
    if eps is not None:
        y = apply(t, "min", w, apply(t, "max", w, y, eps), apply(t, "sub", w, 1, lift(t, eps, w)))
    odds = apply(t, "div", w, y, apply(t, "sub", w, 1, y))
    return cast(t, apply(t, "log", w, odds), dtype)


@lowers("xlogy", "special_xlogy")
def xlogy(t: Tracer, x: Any, y: Any) -> Value:
    """`x log(y)`: 0 where `x` is 0, but NaN where `y` is."""
    dtype = as_float(promote(x, y))
    w = wide(dtype)
    a, b = lift(t, x, w), lift(t, y, w)
    product = apply(t, "mul", w, a, apply(t, "log", w, b))
    product = choose(t, compare(t, "eq", a, 0), 0, product, w)
    return cast(t, choose(t, pointwise(t, "isnan", "bool", b), b, product, w), dtype)


@lowers("hypot")
def hypot(t: Tracer, a: Value, b: Value) -> Value:
    """The larger, times the root of one and the square of the ratio: squares alone would overflow."""
    dtype = promote(a, b)
    if not is_float(dtype):
        raise Unsupported("hypot of integers")
    w = wide(dtype)
    sizes = [apply(t, "abs", w, x) for x in (a, b)]
    large, small = apply(t, "max", w, *sizes), apply(t, "min", w, *sizes)
    endless = apply(
        t, "or", "bool", *(compare(t, "eq", size, infinity()) for size in sizes)
    )  # beside NaN too
    none = compare(t, "eq", large, 0)
    ratio = apply(t, "div", w, small, choose(t, none, 1, large, w))
    root = apply(t, "sqrt", w, apply(t, "add", w, apply(t, "mul", w, ratio, ratio), 1))
    return cast(t, choose(t, endless, infinity(), apply(t, "mul", w, large, root), w), dtype)


# ---------------------------------------------------------------- remainders, and what passes over NaN


@lowers("fix")
def fix(t: Tracer, x: Value) -> Value:
    return apply(t, "trunc", x.dtype, x) if is_float(x.dtype) else x


@lowers("frac")
def frac(t: Tracer, x: Value) -> Value:
    return apply(t, "sub", x.dtype, x, apply(t, "trunc", x.dtype, x))


@lowers("fmod")
def fmod(t: Tracer, a: Any, b: Any) -> Value:
    """The remainder with the sign of the dividend: that of the sizes, which is exact."""
    dtype = promote(a, b)
    if not is_float(dtype):
        raise Unsupported("fmod of integers")  # the least one has no size
    x = lift(t, a, dtype)
    rest = apply(t, "mod", dtype, apply(t, "abs", dtype, x), apply(t, "abs", dtype, b))
    return choose(t, compare(t, "lt", x, 0), apply(t, "neg", dtype, rest), rest, dtype)


def _over_nan(fn: str) -> Any:
    def lower(t: Tracer, a: Any, b: Any) -> Value:
        dtype = promote(a, b)
        x, y = lift(t, a, dtype), lift(t, b, dtype)
        both = apply(t, fn, dtype, x, y)
        if not is_float(dtype):
            return both
        without_x = choose(t, pointwise(t, "isnan", "bool", x), y, both, dtype)
        return choose(t, pointwise(t, "isnan", "bool", y), x, without_x, dtype)

    return lower


lowers("fmax")(_over_nan("max"))
lowers("fmin")(_over_nan("min"))


@lowers("isposinf")
def isposinf(t: Tracer, x: Value) -> Value:
    return compare(t, "eq", x, infinity())


@lowers("isneginf")
def isneginf(t: Tracer, x: Value) -> Value:
    return compare(t, "eq", x, infinity(-1))
