"""Lowerings of losses between two tensors of one shape, in primitive operations.

Half precisions are computed in float32 and converted at the end. `cross_entropy` and `nll_loss`: `lower_nn`.
"""

# ruff: noqa: A002  (parameters have PyTorch's names)
from __future__ import annotations

from typing import Any

from cleave.errors import Unsupported
from cleave.frontend.emit import (
    apply,
    cast,
    choose,
    compare,
    count_of,
    lift,
    lowers,
    out_dtype,
    promote,
    wide,
)
from cleave.frontend.emit import reduce as reduced
from cleave.frontend.lower_reduce import mean_wide
from cleave.frontend.lower_special import log1p_wide, xlogy
from cleave.frontend.trace import Tracer
from cleave.frontend.values import Value


def _both(t: Tracer, a: Value, b: Value, *old: Any) -> tuple[str, Value, Value]:
    """Both operands in the dtype in which the loss is computed."""
    if any(argument is not None for argument in old):
        raise Unsupported("a loss with weights or the old reduction arguments")
    w = wide(promote(a, b))
    return w, cast(t, a, w), cast(t, b, w)


def _all(t: Tracer, loss: Value, reduction: str) -> Value:
    """The loss of each element, their mean or their sum."""
    dims = list(range(loss.rank))
    if reduction == "mean":
        loss = mean_wide(t, loss, dims, False)
    elif reduction == "sum":
        loss = reduced(t, "sum", loss, dims, False, loss.dtype)
    elif reduction != "none":
        raise Unsupported(f"a loss with reduction={reduction!r}")
    return cast(t, loss, out_dtype(t))


@lowers("mse_loss")
def mse_loss(
    t: Tracer, input: Value, target: Value, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", weight: Any = None,
) -> Value:  # fmt: skip
    w, a, b = _both(t, input, target, size_average, reduce, weight)
    gap = apply(t, "sub", w, a, b)
    return _all(t, apply(t, "mul", w, gap, gap), reduction)


@lowers("l1_loss")
def l1_loss(
    t: Tracer, input: Value, target: Value, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", weight: Any = None,
) -> Value:  # fmt: skip
    w, a, b = _both(t, input, target, size_average, reduce, weight)
    return _all(t, apply(t, "abs", w, apply(t, "sub", w, a, b)), reduction)


def _huber(t: Tracer, a: Value, b: Value, delta: Any) -> Value:
    """Half the square up to `delta`, linear beyond; `smooth_l1_loss` is this over `delta`."""
    w = a.dtype
    size = apply(t, "abs", w, apply(t, "sub", w, a, b))
    inside = apply(t, "mul", w, apply(t, "mul", w, size, size), 0.5)
    half = apply(t, "mul", w, lift(t, delta, w), 0.5)
    outside = apply(t, "mul", w, apply(t, "sub", w, size, half), delta)
    return choose(t, compare(t, "lt", size, delta), inside, outside, w)


@lowers("huber_loss")
def huber_loss(
    t: Tracer, input: Value, target: Value, reduction: str = "mean", delta: Any = 1.0, weight: Any = None
) -> Value:
    _, a, b = _both(t, input, target, weight)
    return _all(t, _huber(t, a, b, delta), reduction)


@lowers("smooth_l1_loss")
def smooth_l1_loss(
    t: Tracer, input: Value, target: Value, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", beta: Any = 1.0,
) -> Value:  # fmt: skip
    w, a, b = _both(t, input, target, size_average, reduce)
    beta = t.fixed(beta)  # a loss of its own where it is 0
    if beta == 0:
        return _all(t, apply(t, "abs", w, apply(t, "sub", w, a, b)), reduction)
    return _all(t, apply(t, "div", w, _huber(t, a, b, beta), beta), reduction)


LEAST_LOG = -100
"""Eager's `binary_cross_entropy` takes no logarithm for smaller, so that a loss is finite."""


@lowers("binary_cross_entropy")
def binary_cross_entropy(
    t: Tracer, input: Value, target: Value, weight: Value | None = None, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean",
) -> Value:  # fmt: skip
    w, x, y = _both(t, input, target, size_average, reduce)
    is_one = apply(t, "max", w, apply(t, "log", w, x), LEAST_LOG)
    is_not = apply(t, "max", w, log1p_wide(t, apply(t, "neg", w, x)), LEAST_LOG)
    loss = apply(
        t, "sub", w, apply(t, "mul", w, apply(t, "sub", w, y, 1), is_not), apply(t, "mul", w, y, is_one)
    )
    return _all(t, apply(t, "mul", w, loss, weight) if weight is not None else loss, reduction)


@lowers("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    t: Tracer, input: Value, target: Value, weight: Value | None = None, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean", pos_weight: Value | None = None,
) -> Value:  # fmt: skip
    w, x, y = _both(t, input, target, size_average, reduce)
    decay = apply(t, "exp", w, apply(t, "neg", w, apply(t, "abs", w, x)))
    below = apply(t, "max", w, apply(t, "neg", w, x), 0)
    loss = apply(t, "add", w, log1p_wide(t, decay), below)  # -log(sigmoid(x))
    if pos_weight is not None:
        more = apply(t, "mul", w, apply(t, "sub", w, pos_weight, 1), y)
        loss = apply(t, "mul", w, apply(t, "add", w, more, 1), loss)
    loss = apply(t, "add", w, apply(t, "mul", w, apply(t, "sub", w, 1, y), x), loss)
    return _all(t, apply(t, "mul", w, loss, weight) if weight is not None else loss, reduction)


@lowers("kl_div")
def kl_div(
    t: Tracer, input: Value, target: Value, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", log_target: bool = False,
) -> Value:  # fmt: skip
    w, x, y = _both(t, input, target, size_average, reduce)
    if log_target:
        loss = apply(t, "mul", w, apply(t, "exp", w, y), apply(t, "sub", w, y, x))
    else:
        loss = apply(t, "sub", w, xlogy(t, y, y), apply(t, "mul", w, y, x))
    if reduction != "batchmean":
        return _all(t, loss, reduction)
    total = reduced(t, "sum", loss, list(range(loss.rank)), False, w)
    return cast(t, apply(t, "div", w, total, count_of(t, x, [0] if x.rank else [], w)), out_dtype(t))
