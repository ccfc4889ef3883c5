"""The vocabulary of the lowerings: literals, casts, pointwise maps, reductions and contractions of `Value`s.

Numbers keep PyTorch's rules: a tensor with axes outranks one without, which outranks a Python number.
`wide` is the dtype in which eager computes internally (float32 for half precisions).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as symbolic

from cleave.errors import Unsupported
from cleave.frontend.axes import Ix, leaves_of
from cleave.frontend.fold import literal
from cleave.frontend.trace import Tracer
from cleave.frontend.values import (
    DTYPE_NAMES,
    TORCH_DTYPES,
    Value,
    common_axes,
    fresh_like,
    read,
    scalar,
    swap,
    whole,
)

TABLE: dict[str, Callable[..., Any]] = {}
"""Lowerings by the name of the torch function, method or property."""


def lowers(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a lowering under the names of torch functions."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            TABLE[name] = function
        return function

    return register


def is_float(dtype: str) -> bool:
    return dtype in ("f64", "f32", "f16", "bf16")


def wide(dtype: str) -> str:
    """The dtype eager computes in."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def as_float(dtype: str) -> str:
    """Integers become the default float dtype."""
    return dtype if is_float(dtype) else DTYPE_NAMES[torch.get_default_dtype()]


def out_dtype(t: Tracer) -> str:
    """The dtype of the (first) result in eager."""
    result = t.result if isinstance(t.result, torch.Tensor) else t.result[0]
    if result.dtype not in DTYPE_NAMES:
        raise Unsupported(f"the result has dtype {result.dtype}")
    return DTYPE_NAMES[result.dtype]


def out_shape(t: Tracer) -> tuple[int, ...]:
    """The sizes of the (first) result in this call."""
    result = t.result if isinstance(t.result, torch.Tensor) else t.result[0]
    return tuple(result.shape)


# ---------------------------------------------------------------- promotion


def promote(*args: Any) -> str:
    """The dtype in which operands meet (`torch.result_type`)."""
    ranks: list[torch.dtype | None] = [None, None, None]
    for arg in args:
        if isinstance(arg, Value):
            place, dtype = (0 if arg.rank else 1), TORCH_DTYPES[arg.dtype]
        elif isinstance(arg, bool | torch.SymBool):
            place, dtype = 2, torch.bool
        elif isinstance(arg, int | torch.SymInt):
            place, dtype = 2, torch.int64
        elif isinstance(arg, float | torch.SymFloat):
            place, dtype = 2, torch.get_default_dtype()
        else:
            raise Unsupported(f"an operand of type {type(arg).__name__}")
        old = ranks[place]
        ranks[place] = dtype if old is None else torch.promote_types(old, dtype)
    result = ranks[0]
    for lower in ranks[1:]:
        result = _combine(result, lower)
    assert result is not None
    return DTYPE_NAMES[result]


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher if lower is None else lower
    if higher.is_floating_point:
        return higher
    if higher == torch.bool or lower.is_floating_point:
        return torch.promote_types(higher, lower)
    return higher


# ---------------------------------------------------------------- values


def constant(t: Tracer, value: Any, dtype: str) -> Value:
    """A literal."""
    return scalar(t.recorder.node("const", literal(value, dtype), (), dtype))


def lift(t: Tracer, arg: Any, dtype: str) -> Value:
    """An operand as a value of this dtype."""
    if isinstance(arg, Value):
        return cast(t, arg, dtype)
    if isinstance(arg, torch.SymInt | torch.SymFloat):
        return cast(t, number(t, t.expr(arg)), dtype)
    if isinstance(arg, bool | int | float):
        return constant(t, arg, dtype)
    raise Unsupported(f"an operand of type {type(arg).__name__}")


def cast(t: Tracer, value: Value, dtype: str) -> Value:
    """Convert; literals are converted at once."""
    if value.dtype == dtype:
        return value
    if value.node.kind == "const":
        return constant(t, value.node.data, dtype)
    return pointwise(t, "cast", dtype, value)


def pointwise(t: Tracer, fn: str, dtype: str, *args: Value) -> Value:
    """A pointwise operation over the common axes of its operands."""
    axes = common_axes(t.space, args)
    flat = [ix for axis in axes for ix in axis]
    node = t.recorder.node("map", fn, flat, dtype, [read(a, axes) for a in args])
    return whole(node, axes)


def apply(t: Tracer, fn: str, dtype: str, *args: Any) -> Value:
    """A pointwise operation whose operands and result all have `dtype`."""
    return pointwise(t, fn, dtype, *(lift(t, a, dtype) for a in args))


def compare(t: Tracer, fn: str, a: Any, b: Any) -> Value:
    """A comparison, in the dtype in which both operands meet: a number beside half precision is rounded."""
    dtype = promote(a, b)
    if dtype in ("f16", "bf16"):
        a, b = (_rounded(x, TORCH_DTYPES[dtype]) for x in (a, b))
    return pointwise(t, fn, "bool", lift(t, a, dtype), lift(t, b, dtype))


def _rounded(arg: Any, dtype: torch.dtype) -> Any:
    """A number as a tensor of this dtype has it: what a kernel compares with is a literal of 32 bits."""
    return torch.tensor(arg, dtype=dtype, device="cpu").item() if type(arg) in (int, float) else arg


def choose(t: Tracer, condition: Value, a: Any, b: Any, dtype: str) -> Value:
    """`a` where the condition holds, else `b`."""
    return pointwise(t, "select", dtype, lift(t, condition, "bool"), lift(t, a, dtype), lift(t, b, dtype))


def infinity(sign: int = 1) -> float:
    return sign * float("inf")


def axis_of(t: Tracer, dim: Any, rank: int) -> int:
    """A non-negative axis number."""
    number_ = t.fixed(dim)
    return number_ + max(rank, 1) if number_ < 0 else number_


def axes_of(t: Tracer, dims: Any, rank: int) -> list[int]:
    """Axis numbers from `None` (all), an int, or a list."""
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return list(range(rank))
    many = dims if isinstance(dims, list | tuple) else [dims]
    return [axis_of(t, d, rank) for d in many if rank]


def reduce(t: Tracer, kind: str, value: Value, dims: Sequence[int], keepdim: bool, dtype: str) -> Value:
    """A reduction over tensor axes; the operand is converted to `dtype` first."""
    value = cast(t, value, dtype)
    axes = [fresh_like(axis) for axis in value.axes]
    kept = [() if n in dims else axis for n, axis in enumerate(axes)]
    shown = [axis for n, axis in enumerate(kept) if keepdim or n not in dims]
    bound = [ix for n, axis in enumerate(axes) if n in dims for ix in axis]
    if not bound:
        return Value(value.node, swap(value.digits, _renamed(value, axes)), tuple(shown))
    flat = [ix for axis in kept for ix in axis]
    node = t.recorder.node("reduce", kind, flat, dtype, [read(value, axes)], bound)
    return whole(node, shown)


def _renamed(value: Value, axes: Sequence[Sequence[Ix]]) -> dict[Ix, Any]:
    old = [ix for axis in value.axes for ix in leaves_of(axis)]
    return dict(zip(old, [ix for axis in axes for ix in axis], strict=True))


def count_of(t: Tracer, value: Value, dims: Sequence[int], dtype: str) -> Value:
    """How many elements a reduction over tensor axes takes."""
    total: Value | None = None
    for n in dims:
        for ix in leaves_of(value.axes[n]):
            here = scalar(t.recorder.node("size", ix.var, (), "i64"))
            total = here if total is None else pointwise(t, "mul", "i64", total, here)
    return cast(t, total, dtype) if total is not None else constant(t, 1, dtype)


def contract(t: Tracer, operands: Sequence[tuple[Value, str]], result: str, dtype: str) -> Value:
    """A sum of products: operands with one letter per axis, as in einsum."""
    dtypes = sorted({value.dtype for value, _ in operands})
    if len(dtypes) > 1:
        raise Unsupported(f"a product of operands of dtypes {' and '.join(dtypes)}")
    axes: dict[str, tuple[Ix, ...]] = {}
    for _ in range(2):
        for value, letters in operands:
            for axis, letter in zip(value.axes, letters, strict=True):
                t.space.match(axes.get(letter, ()), axis)
                if not leaves_of(axes.get(letter, ())):
                    axes[letter] = axis
    new = {letter: fresh_like(axis) for letter, axis in axes.items()}
    shown = [new[letter] for letter in result]
    bound = [ix for letter in sorted(new) if letter not in result for ix in new[letter]]
    reads = [read(value, [new[letter] for letter in letters]) for value, letters in operands]
    flat = [ix for axis in shown for ix in axis]
    if len(reads) == 1:
        node = t.recorder.node("reduce", "sum", flat, dtype, reads, bound)
    else:
        node = t.recorder.node("contract", None, flat, dtype, reads, bound)
    return whole(node, shown)


# ---------------------------------------------------------------- numbers


def number(t: Tracer, expr: Any) -> Value:
    """A size or number expression as a value without axes: i64, or the dtype of float arguments."""
    floats = t.floats
    if isinstance(expr, sympy.Basic) and expr.has(symbolic.FloorDiv):
        expr = t.space.canon(expr)
    if isinstance(expr, sympy.Integer | int):
        return constant(t, int(expr), "i64")
    if isinstance(expr, sympy.Float | sympy.Rational | float):
        return constant(t, float(expr), floats)
    if isinstance(expr, sympy.Symbol):
        found = t.numbers.get(expr)
        if found is not None:
            return scalar(found.node)
        which = t.space.of_symbol.get(expr) or next(v for v in t.space.vars if v.symbol == expr)
        return scalar(t.recorder.node("size", which, (), "i64"))
    args = [number(t, a) for a in expr.args]
    whole_number = all(a.dtype == "i64" for a in args)
    dtype = "i64" if whole_number else floats
    match expr:
        case sympy.Add():
            return _sum(t, dtype, expr)
        case sympy.Mul():
            return _chain(t, "mul", dtype, args)
        case sympy.Pow():
            exponent = expr.args[1]
            if whole_number and isinstance(exponent, sympy.Integer) and 0 < int(exponent) < 5:
                return _chain(t, "mul", dtype, [args[0]] * int(exponent))
            return apply(t, "pow", floats, *args)
        case symbolic.FloorDiv():
            return apply(t, "floordiv", dtype, *args)
        case symbolic.Mod() | symbolic.PythonMod():
            return apply(t, "mod", dtype, *args)
        case symbolic.ToFloat():
            return lift(t, args[0], floats)
        case symbolic.FloatTrueDiv() | symbolic.IntTrueDiv():
            return apply(t, "div", floats, *args)
        case symbolic.FloatPow():
            if expr.args[1] == -0.5:
                return apply(t, "rsqrt", floats, args[0])
            return apply(
                t, "sqrt" if expr.args[1] == 0.5 else "pow", floats, *args[: 1 if expr.args[1] == 0.5 else 2]
            )
        case symbolic.Max() | symbolic.Min():
            return _chain(t, "max" if isinstance(expr, symbolic.Max) else "min", dtype, args)
        case _:
            if type(expr).__name__ == "OpaqueUnaryFn_sqrt":
                return apply(t, "sqrt", floats, *args)
            raise Unsupported(f"a number computed as {expr}")


def _sum(t: Tracer, dtype: str, expr: Any) -> Value:
    """A sum, with what is negative subtracted; constants come last."""
    parts = sorted(expr.args, key=lambda a: (a.is_number, a.could_extract_minus_sign(), str(a)))
    total = lift(t, number(t, parts[0]), dtype)
    for part in parts[1:]:
        negative = bool(part.could_extract_minus_sign())
        total = apply(t, "sub" if negative else "add", dtype, total, number(t, -part if negative else part))
    return total


def _chain(t: Tracer, fn: str, dtype: str, args: Sequence[Value]) -> Value:
    total = lift(t, args[0], dtype)
    for arg in args[1:]:
        total = apply(t, fn, dtype, total, arg)
    return total
