"""Lowerings of products: matmul and its family, linear, einsum.

Operands meet in their own dtype (eager refuses mixed ones); the result is rounded once.
"""

# ruff: noqa: A002  (parameters have PyTorch's names)
from __future__ import annotations

import string
from typing import Any

from cleave.errors import Unsupported
from cleave.frontend import views
from cleave.frontend.emit import apply, contract, is_float, lowers, out_dtype
from cleave.frontend.trace import Tracer
from cleave.frontend.values import Value

LETTERS = string.ascii_letters


def product(t: Tracer, a: Value, b: Value, dtype: str | None = None) -> Value:
    """`torch.matmul` of values, with its broadcasting."""
    out = dtype or out_dtype(t)
    if not is_float(out):
        raise Unsupported("a matrix product of integers")
    rank = max(a.rank, b.rank, 2)
    batch = LETTERS[: rank - 2]
    left = "x" if a.rank == 1 else batch[rank - a.rank :] + "vx"
    right = "x" if b.rank == 1 else batch[rank - b.rank :] + "xw"
    result = batch + ("v" if a.rank > 1 else "") + ("w" if b.rank > 1 else "")
    return contract(t, [(a, left), (b, right)], result, out)


@lowers("matmul", "linalg_matmul", "__matmul__", "mm", "bmm", "mv", "dot", "inner_1d", "vdot")
def matmul(t: Tracer, a: Value, b: Value, *rest: Any, **options: Any) -> Value:
    if rest or options:
        raise Unsupported("a matrix product with an output dtype")
    return product(t, a, b)


@lowers("__rmatmul__")
def rmatmul(t: Tracer, a: Value, b: Value) -> Value:
    return product(t, b, a)


@lowers("linear")
def linear(t: Tracer, input: Value, weight: Value, bias: Value | None = None) -> Value:
    out = out_dtype(t)
    order = [*range(weight.rank - 2), weight.rank - 1, weight.rank - 2] if weight.rank > 1 else [0]
    y = product(t, input, views.permute(weight, order), out)
    return y if bias is None else apply(t, "add", out, y, bias)


@lowers("outer", "ger")
def outer(t: Tracer, a: Value, b: Value) -> Value:
    return apply(t, "mul", out_dtype(t), views.insert(a, 1), b)


def _scaled(t: Tracer, x: Value, by: Any) -> Value:
    return x if isinstance(by, int | float) and by == 1 else apply(t, "mul", x.dtype, x, by)


@lowers("addmm", "baddbmm", "addmv")
def addmm(t: Tracer, bias: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    out = out_dtype(t)
    y = _scaled(t, product(t, a, b, out), alpha)
    if isinstance(beta, int | float) and beta == 0:
        return y
    return apply(t, "add", out, _scaled(t, bias, beta), y)


@lowers("einsum")
def einsum(t: Tracer, equation: Any, *operands: Any) -> Value:
    if not isinstance(equation, str):
        raise Unsupported("einsum in the form of sublists")
    values = (
        list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else list(operands)
    )
    if "->" in equation:
        left, result = equation.replace(" ", "").split("->")
    else:
        left, result = equation.replace(" ", ""), None
    letters = left.split(",")
    letters, result = _without_ellipsis(letters, result, values)
    if result is None:
        counts = "".join(letters)
        result = "".join(sorted(c for c in set(counts) if counts.count(c) == 1))
    pairs: list[tuple[Value, str]] = []
    for value, names in zip(values, letters, strict=True):
        while len(set(names)) != len(names):
            twice = next(c for c in names if names.count(c) > 1)
            first = names.index(twice)
            second = names.index(twice, first + 1)
            value = views.diagonal(t.space, value, 0, first, second)
            names = names[:first] + names[first + 1 : second] + names[second + 1 :] + twice
        pairs.append((value, names))
    out = out_dtype(t)
    if not is_float(out):
        raise Unsupported("an einsum of integers")
    return contract(t, pairs, result, out)


def _without_ellipsis(
    letters: list[str], result: str | None, values: list[Value]
) -> tuple[list[str], str | None]:
    if not any("..." in names for names in letters):
        return letters, result
    used = set("".join(letters))
    spare = [c for c in LETTERS if c not in used]
    most = max(v.rank - len(n.replace("...", "")) for v, n in zip(values, letters, strict=True) if "..." in n)
    batch = "".join(spare[:most])
    new: list[str] = []
    for value, names in zip(values, letters, strict=True):
        many = value.rank - len(names.replace("...", ""))
        new.append(names.replace("...", batch[most - many :]))
    if result is None:
        counts = "".join(letters).replace(".", "")
        return new, batch + "".join(sorted(c for c in set(counts) if counts.count(c) == 1))
    return new, result.replace("...", batch)


@lowers("tensordot")
def tensordot(t: Tracer, a: Value, b: Value, dims: Any = 2, out: Any = None) -> Value:
    if isinstance(dims, int):
        left, right = list(range(a.rank - dims, a.rank)), list(range(dims))
    else:
        left, right = ([d] if isinstance(d, int) else list(d) for d in dims)
    left, right = [d % a.rank for d in left], [d % b.rank for d in right]
    names_a = list(LETTERS[: a.rank])
    names_b = list(LETTERS[a.rank : a.rank + b.rank])
    for x, y in zip(left, right, strict=True):
        names_b[y] = names_a[x]
    result = [n for i, n in enumerate(names_a) if i not in left] + [
        n for i, n in enumerate(names_b) if i not in right
    ]
    return contract(t, [(a, "".join(names_a)), (b, "".join(names_b))], "".join(result), out_dtype(t))
