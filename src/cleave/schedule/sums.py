"""Reductions as statements over tiles: what they accumulate in, tile products, and their neutral elements.

A sum of a product becomes a tile product only if each operand has indices of its own; any other form is
multiplied and summed up. Operands beyond two are multiplied first.
"""

from __future__ import annotations

from cleave.ir.dims import Index
from cleave.ir.ops import Number
from cleave.schedule.values import ComputeOf, ContractOf, FillOf, Graph, ReduceOf, Value, joined_axes

IDENTITY: dict[str, Number] = {
    "sum": 0.0,
    "prod": 1.0,
    "max": float("-inf"),
    "min": float("inf"),
    "any": False,
    "all": True,
}
COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}
_BITS = {"i64": 63, "i32": 31, "i16": 15, "i8": 7}


def wide_dtype(dtype: str) -> str:
    """The dtype in which a sum of this dtype is accumulated."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def identity(kind: str, dtype: str) -> Number:
    """The value of a reduction over nothing."""
    value = IDENTITY[kind]
    if dtype in _BITS and kind in ("max", "min"):
        bits = _BITS[dtype]
        return -(2**bits) if kind == "max" else 2**bits - 1
    if dtype == "u8" and kind in ("max", "min"):
        return 0 if kind == "max" else 255
    if dtype not in ("f64", "f32", "bool"):
        return int(value)
    return value


def sum_up(graph: Graph, kind: str, over: tuple[Index, ...], arg: Value, dtype: str) -> Value:
    """A reduction over the current spans of `over`, accumulated wide; indices the argument lacks count."""
    missing = tuple(i for i in over if i not in arg.axes)
    if missing:
        arg = spread(graph, arg, (*arg.axes, *missing))
    axes = tuple(i for i in arg.axes if i not in over)
    return graph.value(ReduceOf(kind, over), axes, wide_dtype(dtype), (arg,))


def spread(graph: Graph, value: Value, axes: tuple[Index, ...]) -> Value:
    """The same values over more indices."""
    if isinstance(value.op, FillOf):
        return graph.value(value.op, axes, value.dtype)
    return graph.value(ComputeOf("id"), axes, value.dtype, (value,))


def product(graph: Graph, over: tuple[Index, ...], args: list[Value], dtype: str) -> Value:
    """A sum of a product. Two operands that each have indices of their own become a tile product;
    any other form is multiplied and summed up."""
    wide = wide_dtype(dtype)
    while len(args) > 2:
        small = min(args, key=lambda a: (len(a.axes), a.serial))
        others = [a for a in args if a is not small]
        host = min(others, key=lambda a: (len(set(small.axes) - set(a.axes)), len(a.axes), a.serial))
        both = graph.compute("mul", wide, (host, small))
        args = [both if a is host else a for a in others]
    left, right = args
    rows = set(left.axes) - set(right.axes) - set(over)
    columns = set(right.axes) - set(left.axes) - set(over)
    shared = set(left.axes) & set(right.axes) & set(over)
    if rows and columns and shared == set(over):
        axes = tuple(i for i in joined_axes((left, right)) if i not in over)
        ordered = tuple(i for i in (*left.axes, *right.axes) if i in axes)
        return graph.value(ContractOf(over), tuple(dict.fromkeys(ordered)), wide, (left, right))
    return sum_up(graph, "sum", over, graph.compute("mul", wide, (left, right)), dtype)


def narrowed(graph: Graph, value: Value, dtype: str) -> Value:
    """The value in the dtype of its node."""
    if value.dtype == dtype:
        return value
    return graph.compute("cast", dtype, (value,))
