"""What each pointwise operation and reduction means, on NumPy arrays: one line each.

Floats are computed in one float type (float64, or what the caller asks for), integers and bools in their
own. Nothing raises on overflow, division by zero or NaN: run under `numpy.errstate(all="ignore")`.
As in PyTorch: `round` halves to even, `floordiv` and `mod` follow the divisor's sign, `max` and `min` pass
NaN on, `sign` of NaN is 0, a cast to an integer truncates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from cleave.ir.ops import FLOATS, Number
from cleave.ir.parse import COMPARISONS

Array = npt.NDArray[Any]
FloatType = type[np.float64] | type[np.float32]

_INTEGERS: Mapping[str, type[np.generic]] = {
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "u8": np.uint8, "bool": np.bool_,
}  # fmt: skip


def numpy_dtype(dtype: str, floats: FloatType) -> np.dtype[Any]:
    """The NumPy dtype that stands for a dtype of the program."""
    return np.dtype(floats if dtype in FLOATS else _INTEGERS[dtype])


def convert(array: Array, target: np.dtype[Any]) -> Array:
    """A cast: truncates towards zero, and to bool tells what is not 0."""
    if array.dtype == target:
        return array
    return array != 0 if target.kind == "b" else array.astype(target)


def literal(value: Number, target: np.dtype[Any]) -> Array:
    """A constant as an array without axes."""
    exact = float(value) if isinstance(value, Fraction) else value
    return convert(np.asarray(exact), target)


def apply(fn: str, args: list[Array], target: np.dtype[Any], floats: FloatType) -> Array:
    """`fn(args...)` of `cleave.ir.ops.MAPS`, in the dtype `target`; arguments broadcast."""
    if fn == "select":
        return np.where(args[0] != 0, convert(args[1], target), convert(args[2], target))
    if fn in ("cast", "id"):
        return convert(args[0], target)
    if fn in COMPARISONS:
        wide = _widest(args, floats)
        return convert(_COMPARE[fn](*(convert(a, wide) for a in args)), target)
    if fn == "isnan":
        return convert(np.isnan(args[0]), target)
    work = np.dtype(floats) if fn in _FLOATING and target.kind != "f" else target
    return convert(_POINTWISE[fn](*(convert(a, work) for a in args)), target)


def reduce(
    kind: str, array: Array, axes: tuple[int, ...], keep: Array | None, target: np.dtype[Any]
) -> Array:
    """A reduction over some axes, which stay with size 1, of the elements where `keep` holds (None: all)."""
    array = convert(array, target if kind not in ("any", "all") else np.dtype(np.bool_))
    neutral = neutral_of(kind, array.dtype)
    if keep is not None:
        array = np.where(keep, array, neutral)
    if kind == "sum":
        return convert(np.sum(array, axis=axes, keepdims=True, dtype=array.dtype), target)
    if kind == "prod":
        return convert(np.prod(array, axis=axes, keepdims=True, dtype=array.dtype), target)
    over = {"max": np.maximum, "min": np.minimum, "any": np.logical_or, "all": np.logical_and}[kind]
    return convert(over.reduce(array, axis=axes, keepdims=True, initial=neutral), target)


def neutral_of(kind: str, dtype: np.dtype[Any]) -> Any:
    """What a reduction gives over nothing."""
    if kind in ("sum", "any"):
        return dtype.type(0)
    if kind in ("prod", "all"):
        return dtype.type(1)
    if dtype.kind == "f":
        return dtype.type(-math.inf if kind == "max" else math.inf)
    if dtype.kind == "b":
        return np.bool_(kind == "min")
    bounds = np.iinfo(dtype)
    return dtype.type(bounds.min if kind == "max" else bounds.max)


def _widest(args: list[Array], floats: FloatType) -> np.dtype[Any]:
    if any(a.dtype.kind == "f" for a in args):
        return np.dtype(floats)
    return np.result_type(*(a.dtype for a in args))


def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(x.dtype)


def _rsqrt(x: Array) -> Array:
    return np.reciprocal(np.sqrt(x))


def _not(x: Array) -> Array:
    return np.logical_not(x) if x.dtype.kind in "bf" else np.invert(x)


def _sign(x: Array) -> Array:
    return np.where(x != x, x.dtype.type(0), np.sign(x))


def _power(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return np.power(x, y)
    below = np.where(x == 1, 1, np.where(x == -1, np.where(y % 2 == 0, 1, -1), 0))
    return np.where(y < 0, below, np.power(x, np.maximum(y, 0)))


def _fma(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


_COMPARE: dict[str, Callable[..., Array]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal,
}  # fmt: skip

_FLOATING = (
    "exp", "exp2", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "tanh_coarse", "erf", "sin", "cos", "div",
)  # fmt: skip
"""These work in floats even where the result is an integer."""

_POINTWISE: dict[str, Callable[..., Array]] = {
    "neg": np.negative,
    "exp": np.exp,
    "exp2": np.exp2,
    "fma": _fma,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": _rsqrt,
    "reciprocal": np.reciprocal,
    "abs": np.abs,
    "tanh": np.tanh,
    "tanh_coarse": np.tanh,
    "erf": _erf,
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "sign": _sign,
    "not": _not,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": _power,
    "max": np.maximum,
    "min": np.minimum,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
}
