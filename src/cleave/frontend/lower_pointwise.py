"""Lowerings of pointwise operations: arithmetic, comparisons, `where`, clamps and casts.

In the dtype that PyTorch's operands promote to. docs/semantics.md lists each form.
"""

# ruff: noqa: A002  (parameters have PyTorch's names)
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from cleave.errors import Unsupported
from cleave.frontend.emit import (
    apply,
    as_float,
    cast,
    choose,
    compare,
    constant,
    infinity,
    is_float,
    lift,
    lowers,
    out_dtype,
    pointwise,
    promote,
    wide,
)
from cleave.frontend.trace import Tracer
from cleave.frontend.values import Value


def binary(fn: str) -> Callable[..., Value]:
    """Arithmetic in the dtype that the operands promote to."""

    def lower(t: Tracer, a: Any, b: Any) -> Value:
        dtype = promote(a, b)
        if dtype == "bool" and fn in ("add", "mul", "max", "min"):
            return apply(t, "or" if fn in ("add", "max") else "and", "bool", a, b)
        return apply(t, fn, dtype, a, b)

    return lower


def unary(fn: str) -> Callable[..., Value]:
    """A float function; integers become the default float dtype."""

    def lower(t: Tracer, a: Any) -> Value:
        return apply(t, fn, as_float(a.dtype), a)

    return lower


for _names, _fn in (
    (("maximum",), "max"), (("minimum",), "min"),
):  # fmt: skip
    lowers(*_names)(binary(_fn))
for _names, _fn in (
    (("exp", "special_exp"), "exp"), (("log", "special_log"), "log"), (("sqrt",), "sqrt"),
    (("rsqrt",), "rsqrt"), (("reciprocal",), "reciprocal"), (("tanh",), "tanh"),
    (("erf", "special_erf"), "erf"), (("sin",), "sin"), (("cos",), "cos"),
):  # fmt: skip
    lowers(*_names)(unary(_fn))


@lowers("add", "__add__", "__radd__", "__iadd__")
def add(t: Tracer, a: Any, b: Any, *, alpha: Any = 1) -> Value:
    if not (isinstance(alpha, int | float) and alpha == 1):
        b = binary("mul")(t, b, alpha)
    return binary("add")(t, a, b)


@lowers("sub", "subtract", "__sub__", "__isub__")
def sub(t: Tracer, a: Any, b: Any, *, alpha: Any = 1) -> Value:
    if not (isinstance(alpha, int | float) and alpha == 1):
        b = binary("mul")(t, b, alpha)
    return binary("sub")(t, a, b)


@lowers("__rsub__", "rsub")
def rsub(t: Tracer, a: Any, b: Any, *, alpha: Any = 1) -> Value:
    return sub(t, b, a, alpha=alpha)


@lowers("mul", "multiply", "__mul__", "__rmul__", "__imul__")
def mul(t: Tracer, a: Any, b: Any) -> Value:
    return binary("mul")(t, a, b)


@lowers("div", "divide", "true_divide", "__truediv__", "__itruediv__")
def div(t: Tracer, a: Any, b: Any, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return floor_divide(t, a, b)
    if rounding_mode is not None:
        raise Unsupported(f"division with rounding_mode={rounding_mode!r}")
    return apply(t, "div", as_float(promote(a, b)), a, b)


@lowers("__rtruediv__", "__rdiv__")
def rdiv(t: Tracer, a: Any, b: Any) -> Value:
    return div(t, b, a)


@lowers("floor_divide", "__floordiv__")
def floor_divide(t: Tracer, a: Any, b: Any) -> Value:
    return apply(t, "floordiv", promote(a, b), a, b)


@lowers("__rfloordiv__")
def rfloor_divide(t: Tracer, a: Any, b: Any) -> Value:
    return floor_divide(t, b, a)


@lowers("remainder", "__mod__")
def remainder(t: Tracer, a: Any, b: Any) -> Value:
    return apply(t, "mod", promote(a, b), a, b)


@lowers("pow", "__pow__", "__ipow__")
def power(t: Tracer, a: Any, b: Any) -> Value:
    dtype = promote(a, b)
    if isinstance(b, int | float) and not isinstance(b, bool) and isinstance(a, Value):
        x = lift(t, a, dtype)
        if b in (1, 2, 3, 4):
            square = apply(t, "mul", dtype, x, x) if b > 1 else x
            return {1: x, 2: square}.get(int(b)) or apply(t, "mul", dtype, square, square if b == 4 else x)
        if is_float(dtype) and b in (0.5, -0.5, -1):
            return apply(t, {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}[float(b)], dtype, x)
    if not is_float(dtype):
        raise Unsupported("an integer power with an exponent that is not 1, 2, 3 or 4")
    return apply(t, "pow", dtype, a, b)


@lowers("__rpow__")
def rpower(t: Tracer, a: Any, b: Any) -> Value:
    return power(t, b, a)


@lowers("square")
def square(t: Tracer, a: Value) -> Value:
    return power(t, a, 2)


@lowers("neg", "negative", "__neg__")
def neg(t: Tracer, a: Value) -> Value:
    return apply(t, "neg", a.dtype, a)


@lowers("abs", "absolute", "__abs__")
def absolute(t: Tracer, a: Value) -> Value:
    return apply(t, "abs", a.dtype, a)


def _rounding(fn: str) -> Callable[..., Value]:
    def lower(t: Tracer, a: Value) -> Value:
        return a if not is_float(a.dtype) and fn != "sign" else apply(t, fn, a.dtype, a)

    return lower


for _fn in ("floor", "ceil", "round", "trunc", "sign"):
    lowers(_fn)(_rounding(_fn))


@lowers("exp2", "special_exp2")
def exp2(t: Tracer, a: Value) -> Value:
    dtype = as_float(a.dtype)
    inner = apply(t, "mul", wide(dtype), a, math.log(2))
    return cast(t, apply(t, "exp", wide(dtype), inner), dtype)


def _log_base(base: float) -> Callable[..., Value]:
    def lower(t: Tracer, a: Value) -> Value:
        dtype = as_float(a.dtype)
        return cast(
            t, apply(t, "mul", wide(dtype), apply(t, "log", wide(dtype), a), 1 / math.log(base)), dtype
        )

    return lower


lowers("log2")(_log_base(2.0))
lowers("log10")(_log_base(10.0))


# ---------------------------------------------------------------- comparisons and logic


for _names, _fn in (
    (("lt", "less", "__lt__"), "lt"), (("le", "less_equal", "__le__"), "le"),
    (("gt", "greater", "__gt__"), "gt"), (("ge", "greater_equal", "__ge__"), "ge"),
    (("eq", "__eq__"), "eq"), (("ne", "not_equal", "__ne__"), "ne"),
):  # fmt: skip

    def _comparison(t: Tracer, a: Any, b: Any, fn: str = _fn) -> Value:
        return compare(t, fn, a, b)

    lowers(*_names)(_comparison)

for _names, _fn in (
    (("logical_and",), "and"), (("logical_or",), "or"), (("logical_xor",), "xor"),
    (("bitwise_and", "__and__", "__rand__", "__iand__"), "and"),
    (("bitwise_or", "__or__", "__ror__", "__ior__"), "or"),
    (("bitwise_xor", "__xor__", "__rxor__"), "xor"),
):  # fmt: skip

    def _logic(
        t: Tracer, a: Any, b: Any, fn: str = _fn, strict: bool = not _names[0].startswith("logical")
    ) -> Value:
        if strict and promote(a, b) != "bool":
            return apply(t, fn, promote(a, b), a, b)
        return apply(t, fn, "bool", truth(t, a), truth(t, b))

    lowers(*_names)(_logic)


BITS = {"u8": 8, "i8": 8, "i16": 16, "i32": 32, "i64": 64}


def _shift(fn: str) -> Callable[..., Value]:
    """A shift by a number that is known and less than the width; others mean different things on each
    device."""

    def lower(t: Tracer, a: Any, b: Any) -> Value:
        dtype = promote(a, b)
        if not isinstance(b, int) or dtype not in BITS or not 0 <= b < BITS[dtype]:
            raise Unsupported("a shift of other than integers by a literal less than their width")
        return apply(t, fn, dtype, a, b)

    return lower


lowers("bitwise_left_shift", "__lshift__", "__ilshift__")(_shift("shl"))
lowers("bitwise_right_shift", "__rshift__", "__irshift__")(_shift("shr"))


def truth(t: Tracer, a: Any) -> Any:
    """A value as bool: what is not zero."""
    if isinstance(a, Value) and a.dtype != "bool":
        return compare(t, "ne", a, 0)
    return a


@lowers("logical_not", "bitwise_not", "__invert__")
def logical_not(t: Tracer, a: Value) -> Value:
    if a.dtype != "bool" and out_dtype(t) != "bool":
        return apply(t, "not", a.dtype, a)
    return apply(t, "not", "bool", truth(t, a))


@lowers("isnan")
def isnan(t: Tracer, a: Value) -> Value:
    return pointwise(t, "isnan", "bool", a)


@lowers("isinf")
def isinf(t: Tracer, a: Value) -> Value:
    return compare(t, "eq", absolute(t, a), infinity())


@lowers("isfinite")
def isfinite(t: Tracer, a: Value) -> Value:
    return compare(t, "lt", absolute(t, a), infinity())


@lowers("where")
def where(t: Tracer, condition: Value, a: Any = None, b: Any = None) -> Value:
    if a is None or b is None:
        raise Unsupported("where with a condition alone")
    return choose(t, condition, a, b, promote(a, b))


@lowers("Tensor.where")
def tensor_where(t: Tracer, x: Value, condition: Value, other: Any) -> Value:
    return where(t, condition, x, other)


@lowers("masked_fill")
def masked_fill(t: Tracer, x: Value, mask: Value, value: Any) -> Value:
    return choose(t, mask, value, x, x.dtype)


@lowers("nan_to_num")
def nan_to_num(t: Tracer, x: Value, nan: float = 0.0, posinf: Any = None, neginf: Any = None) -> Value:
    limits = torch.finfo(getattr(torch, str(t.result.dtype).removeprefix("torch.")))
    y = choose(t, isnan(t, x), nan if nan is not None else 0.0, x, x.dtype)
    y = choose(t, compare(t, "eq", x, infinity()), limits.max if posinf is None else posinf, y, x.dtype)
    return choose(t, compare(t, "eq", x, infinity(-1)), limits.min if neginf is None else neginf, y, x.dtype)


# ---------------------------------------------------------------- clamps and mixtures


@lowers("clamp", "clip")
def clamp(t: Tracer, x: Value, min: Any = None, max: Any = None) -> Value:
    operands = [x, *(limit for limit in (min, max) if limit is not None)]
    dtype = promote(*operands)
    y = lift(t, x, dtype)
    if min is not None:
        y = apply(t, "max", dtype, y, min)
    return apply(t, "min", dtype, y, max) if max is not None else y


@lowers("clamp_min")
def clamp_min(t: Tracer, x: Value, min: Any) -> Value:
    return clamp(t, x, min=min)


@lowers("clamp_max")
def clamp_max(t: Tracer, x: Value, max: Any) -> Value:
    return clamp(t, x, max=max)


@lowers("lerp")
def lerp(t: Tracer, a: Value, b: Value, weight: Any) -> Value:
    dtype = a.dtype
    gap, w = apply(t, "sub", dtype, b, a), lift(t, weight, dtype)
    low = apply(t, "add", dtype, a, apply(t, "mul", dtype, w, gap))
    high = apply(t, "sub", dtype, b, apply(t, "mul", dtype, gap, apply(t, "sub", dtype, 1, w)))
    return choose(t, compare(t, "lt", apply(t, "abs", dtype, w), 0.5), low, high, dtype)


@lowers("addcmul")
def addcmul(t: Tracer, a: Value, b: Value, c: Value, *, value: Any = 1) -> Value:
    dtype = promote(a, b, c)
    return apply(t, "add", dtype, a, apply(t, "mul", dtype, apply(t, "mul", dtype, b, value), c))


@lowers("addcdiv")
def addcdiv(t: Tracer, a: Value, b: Value, c: Value, *, value: Any = 1) -> Value:
    dtype = promote(a, b, c)
    return apply(t, "add", dtype, a, apply(t, "div", dtype, apply(t, "mul", dtype, b, value), c))


# ---------------------------------------------------------------- dtypes


@lowers("to")
def to(t: Tracer, x: Value, *args: Any, **kwargs: Any) -> Value:
    if t.result.device != _device_of(t, x):
        raise Unsupported("a move to another device")
    return cast(t, x, out_dtype(t))


def _device_of(t: Tracer, x: Value) -> torch.device:
    for fake, value in t.values.values():
        if value is x:
            return fake.device
    return t.result.device


for _name in (
    "float",
    "double",
    "half",
    "bfloat16",
    "long",
    "int",
    "short",
    "char",
    "byte",
    "bool",
    "type_as",
):

    @lowers(_name)
    def _convert(t: Tracer, x: Value, *others: Any, **kwargs: Any) -> Value:
        return truth(t, x) if out_dtype(t) == "bool" else cast(t, x, out_dtype(t))


@lowers("contiguous", "clone", "detach", "alias", "requires_grad_", "data", "resolve_conj", "resolve_neg",
        "positive", "__pos__")  # fmt: skip
def same(t: Tracer, x: Value, *args: Any, **kwargs: Any) -> Value:
    return x


@lowers("fill")
def fill(t: Tracer, x: Value, value: Any) -> Value:
    return choose(t, constant(t, True, "bool"), value, x, x.dtype)


@lowers("zero")
def zero(t: Tracer, x: Value) -> Value:
    return fill(t, x, 0)


@lowers("copy")
def copy(t: Tracer, x: Value, source: Value, non_blocking: bool = False) -> Value:
    return choose(t, constant(t, True, "bool"), source, x, x.dtype)
