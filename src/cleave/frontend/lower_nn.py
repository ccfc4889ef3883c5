"""Lowerings of torch.nn.functional: norms, attention and losses, in primitive operations.

Intermediate dtypes as eager's: norms, softmax and attention scores of half precisions are float32 inside.
"""

# ruff: noqa: A002  (parameters have PyTorch's names)
from __future__ import annotations

from typing import Any

import torch

from cleave.errors import Unsupported
from cleave.frontend import views
from cleave.frontend.axes import Ix, hint_of
from cleave.frontend.emit import (
    apply,
    axes_of,
    cast,
    choose,
    compare,
    constant,
    contract,
    count_of,
    infinity,
    lowers,
    out_dtype,
    out_shape,
    reduce,
    wide,
)
from cleave.frontend.lower_create import positions, positions_along
from cleave.frontend.lower_index import gather, gather_at
from cleave.frontend.lower_reduce import mean_wide, softmax_parts, softmax_wide, variance
from cleave.frontend.trace import Tracer
from cleave.frontend.values import Value


@lowers("rms_norm")
def rms_norm(
    t: Tracer, input: Value, normalized_shape: Any, weight: Value | None = None, eps: Any = None
) -> Value:
    w = wide(input.dtype)
    x = cast(t, input, w)
    dims = list(range(x.rank - len(normalized_shape), x.rank))
    if eps is None:
        eps = torch.finfo(t.result.dtype if w == input.dtype else torch.float32).eps
    square = mean_wide(t, apply(t, "mul", w, x, x), dims, True)
    y = apply(t, "mul", w, x, apply(t, "rsqrt", w, apply(t, "add", w, square, eps)))
    if weight is not None:
        y = apply(t, "mul", w, y, weight)
    return cast(t, y, out_dtype(t))


def _standardised(t: Tracer, x: Value, dims: list[int], eps: Any) -> Value:
    w = x.dtype
    centre = apply(t, "sub", w, x, mean_wide(t, x, dims, True))
    spread = apply(t, "rsqrt", w, apply(t, "add", w, variance(t, x, dims, 0, True), eps))
    return apply(t, "mul", w, centre, spread)


@lowers("layer_norm")
def layer_norm(
    t: Tracer, input: Value, normalized_shape: Any, weight: Value | None = None, bias: Value | None = None,
    eps: Any = 1e-5, *rest: Any,
) -> Value:  # fmt: skip
    w = wide(input.dtype)
    y = _standardised(t, cast(t, input, w), list(range(input.rank - len(normalized_shape), input.rank)), eps)
    y = apply(t, "mul", w, y, weight) if weight is not None else y
    y = apply(t, "add", w, y, bias) if bias is not None else y
    return cast(t, y, out_dtype(t))


@lowers("group_norm")
def group_norm(
    t: Tracer, input: Value, num_groups: int, weight: Value | None = None, bias: Value | None = None,
    eps: Any = 1e-5, *rest: Any,
) -> Value:  # fmt: skip
    w = wide(input.dtype)
    groups = t.fixed(num_groups)
    sizes = [t.space.user_of(axis) for axis in input.axes]
    hints = [hint_of(axis) for axis in input.axes]
    split = [sizes[0], groups, -1, *sizes[2:]]
    grouped = views.reshape(
        t.space, cast(t, input, w), split, [hints[0], groups, hints[1] // groups, *hints[2:]]
    )
    y = _standardised(t, grouped, list(range(2, grouped.rank)), eps)
    y = views.reshape(t.space, y, sizes, out_shape(t))
    for fn, parameter in (("mul", weight), ("add", bias)):
        if parameter is not None:
            y = apply(t, fn, w, y, _by_channel(input, parameter))
    return cast(t, y, out_dtype(t))


def _by_channel(x: Value, parameter: Value) -> Value:
    """A parameter for each channel of `x`, which is axis 1."""
    for _ in range(x.rank - 2):
        parameter = views.insert(parameter, parameter.rank)
    return parameter


@lowers("batch_norm")
def batch_norm(
    t: Tracer, input: Value, running_mean: Value | None, running_var: Value | None,
    weight: Value | None = None, bias: Value | None = None, training: bool = False, momentum: Any = 0.1,
    eps: Any = 1e-5,
) -> Value:  # fmt: skip
    if training or running_mean is None or running_var is None:
        raise Unsupported("batch_norm with the statistics of its batch")
    w = wide(input.dtype)
    spread = apply(t, "rsqrt", w, apply(t, "add", w, running_var, eps))
    y = apply(t, "sub", w, input, _by_channel(input, running_mean))
    y = apply(t, "mul", w, y, _by_channel(input, spread))
    for fn, parameter in (("mul", weight), ("add", bias)):
        if parameter is not None:
            y = apply(t, fn, w, y, _by_channel(input, parameter))
    return cast(t, y, out_dtype(t))


# ---------------------------------------------------------------- attention


@lowers("scaled_dot_product_attention")
def scaled_dot_product_attention(
    t: Tracer, query: Value, key: Value, value: Value, attn_mask: Value | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: Any = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    if dropout_p:
        raise Unsupported("attention with dropout")
    w = wide(query.dtype)
    if enable_gqa:
        key, value = _grouped(t, query, key), _grouped(t, query, value)
    batch = "abcdefgh"[: query.rank - 2]
    scores = contract(t, [(query, f"{batch}ve"), (key, f"{batch}we")], f"{batch}vw", w)
    if scale is None:
        scale = apply(t, "rsqrt", w, count_of(t, query, [query.rank - 1], w))
    scores = apply(t, "mul", w, scores, scale)
    keep: Value | None = None
    if is_causal:
        rows, columns = positions_along(t, scores, -2), positions_along(t, scores, -1)
        rows = views.insert(rows, 1)
        scores = choose(t, compare(t, "le", columns, rows), scores, infinity(-1), w)
    if attn_mask is not None and attn_mask.dtype == "bool":
        keep = attn_mask
        scores = choose(t, attn_mask, scores, infinity(-1), w)
    elif attn_mask is not None:
        keep = compare(t, "ne", attn_mask, infinity(-1))
        scores = apply(t, "add", w, scores, attn_mask)
    weights = cast(t, softmax_wide(t, scores, [scores.rank - 1]), value.dtype)
    out = contract(t, [(weights, f"{batch}vw"), (value, f"{batch}we")], f"{batch}ve", out_dtype(t))
    if keep is None:
        return out
    seen = reduce(t, "any", keep, [keep.rank - 1] if keep.rank else [], True, "bool")
    return choose(t, seen, out, 0, out.dtype)


def _grouped(t: Tracer, query: Value, x: Value) -> Value:
    """Each key/value head serves a group of neighbouring query heads."""
    heads, own = hint_of(query.axes[-3]), hint_of(x.axes[-3])
    if heads == own:
        return x
    times = t.space.share(_merged(t, query, -3), _merged(t, x, -3))
    axes = list(x.axes)
    axes[-3] = (*axes[-3], Ix(times))
    return Value(x.node, x.digits, tuple(axes))


def _merged(t: Tracer, x: Value, at: int) -> Any:
    return t.space.sized(t.space.user_of(x.axes[at]), hint_of(x.axes[at]))


# ---------------------------------------------------------------- losses


@lowers("cross_entropy")
def cross_entropy(
    t: Tracer, input: Value, target: Value, weight: Value | None = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Value:  # fmt: skip
    if label_smoothing or size_average is not None or reduce is not None:
        raise Unsupported("cross_entropy with label smoothing or the old reduction arguments")
    if target.dtype not in ("i64", "u8", "i32"):
        raise Unsupported("cross_entropy with class probabilities")
    w = wide(input.dtype)
    at = 1 if input.rank > 1 else 0
    x = cast(t, input, w)
    shifted, _, total = softmax_parts(t, x, [at])
    lost = apply(t, "log", w, total)
    lost = Value(lost.node, lost.digits, lost.axes[:at] + lost.axes[at + 1 :])
    return _nll(t, shifted, lost, target, weight, ignore_index, reduction, at)


@lowers("nll_loss")
def nll_loss(
    t: Tracer, input: Value, target: Value, weight: Value | None = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean",
) -> Value:  # fmt: skip
    if size_average is not None or reduce is not None:
        raise Unsupported("nll_loss with the old reduction arguments")
    at = 1 if input.rank > 1 else 0
    w = wide(input.dtype)
    return _nll(t, cast(t, input, w), constant(t, 0, w), target, weight, ignore_index, reduction, at)


def _nll(
    t: Tracer,
    scores: Value,
    lost: Value,
    target: Value,
    weight: Value | None,
    ignore: int,
    reduction: str,
    at: int,
) -> Value:
    """`lost - scores[target]` per row, 0 where the target is ignored; a mean divides by what was counted."""
    w = scores.dtype
    valid = compare(t, "ne", target, t.fixed(ignore))
    index = choose(t, valid, target, 0, target.dtype)
    picked = _pick_class(t, scores, index, at)
    loss = apply(t, "sub", w, lost, picked)
    per_row: Value | int = 1
    if weight is not None:
        per_row = cast(t, gather_at(t, weight, [(0, index)]), w)
        loss = apply(t, "mul", w, loss, per_row)
    loss = choose(t, valid, loss, 0, w)
    if reduction == "none":
        return cast(t, loss, out_dtype(t))
    dims = list(range(loss.rank))
    total = reduce(t, "sum", loss, dims, False, w)
    if reduction == "mean":
        counted = choose(t, valid, per_row, 0, w)
        total = apply(t, "div", w, total, reduce(t, "sum", counted, dims, False, w))
    return cast(t, total, out_dtype(t))


def _pick_class(t: Tracer, scores: Value, index: Value, at: int) -> Value:
    indexed = views.insert(index, at)
    picked = gather(t, scores, at, indexed)
    return Value(picked.node, picked.digits, picked.axes[:at] + picked.axes[at + 1 :])


@lowers("one_hot")
def one_hot(t: Tracer, tensor: Value, num_classes: Any = -1) -> Value:
    if isinstance(num_classes, int) and num_classes < 0:
        raise Unsupported("one_hot without a number of classes")
    classes = positions(t, t.space.sized(t.size(num_classes), out_shape(t)[-1]))
    return cast(t, compare(t, "eq", views.insert(tensor, tensor.rank), classes), "i64")


@lowers("cosine_similarity")
def cosine_similarity(t: Tracer, x1: Value, x2: Value, dim: int = 1, eps: float = 1e-8) -> Value:
    w = wide(x1.dtype)
    a, b = cast(t, x1, w), cast(t, x2, w)
    dims = axes_of(t, dim, max(a.rank, b.rank))
    lengths: list[Value] = []
    for v in (a, b):
        square = reduce(t, "sum", apply(t, "mul", w, v, v), dims, True, w)
        lengths.append(apply(t, "max", w, apply(t, "sqrt", w, square), eps))
    unit = [apply(t, "div", w, v, n) for v, n in zip((a, b), lengths, strict=True)]
    return cast(t, reduce(t, "sum", apply(t, "mul", w, unit[0], unit[1]), dims, False, w), out_dtype(t))
