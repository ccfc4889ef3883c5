"""Arithmetic on literals while a program is built: `1 / sqrt(64)` becomes `0.125`.

Only nodes without axes whose arguments are all constants; anything that does not come out finite stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cleave.ir.ops import Const, Map, Node, Number, const

_FOLDS: dict[str, Callable[..., Number]] = {
    "id": lambda a: a,
    "neg": lambda a: -a,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
    "max": lambda a, b: max(a, b),
    "min": lambda a, b: min(a, b),
    "sqrt": math.sqrt,
    "rsqrt": lambda a: 1 / math.sqrt(a),
    "reciprocal": lambda a: 1 / a,
    "exp": math.exp,
    "log": math.log,
    "abs": lambda a: abs(a),
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
}


def literal(value: Number, dtype: str) -> Number:
    """A constant in one spelling: whole floats as integers (except -0.0), integers as they are."""
    if dtype == "bool":
        return bool(value)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < 2**53:
        return value if value == 0 and math.copysign(1, value) < 0 else int(value)
    if isinstance(value, float) and dtype[0] in "iu" and math.isfinite(value):
        return int(value)
    return value


def fold_constant(node: Node) -> Node:
    """The literal that a node of literals is, or the node itself."""
    op = node.op
    if node.axes or not isinstance(op, Map) or op.fn not in {*_FOLDS, "cast"}:
        return node
    values = [a.node.op.value for a in op.args if isinstance(a.node.op, Const)]
    if len(values) != len(op.args) or any(isinstance(v, float) and not math.isfinite(v) for v in values):
        return node
    if op.fn == "cast":
        return const(literal(values[0], node.dtype), node.dtype).node
    try:
        result = _FOLDS[op.fn](*values)
    except (ZeroDivisionError, ValueError, OverflowError):
        return node
    if not isinstance(result, bool | int | float) or (
        isinstance(result, float) and not math.isfinite(result)
    ):
        return node
    return const(literal(result, node.dtype), node.dtype).node
