"""Lowerings of activations: what a network applies to each element between its layers.

They are written in primitive operations, in the dtype in which eager computes them (float32 for half
precisions), so that the search sees algebra and not names. docs/semantics.md lists each form.
"""

from __future__ import annotations

import math
from typing import Any

from cleave.errors import Unsupported
from cleave.frontend import views
from cleave.frontend.axes import hint_of
from cleave.frontend.emit import apply, as_float, cast, choose, compare, lowers, wide
from cleave.frontend.lower_special import expm1_wide
from cleave.frontend.trace import Tracer
from cleave.frontend.values import Value


def _no_inplace(inplace: bool) -> None:
    if inplace:
        raise Unsupported("inplace=True")


@lowers("relu")
def relu(t: Tracer, x: Value, inplace: bool = False) -> Value:
    _no_inplace(inplace)
    return apply(t, "max", x.dtype, x, 0)


@lowers("relu6")
def relu6(t: Tracer, x: Value, inplace: bool = False) -> Value:
    return hardtanh(t, x, 0.0, 6.0, inplace)


@lowers("hardtanh")
def hardtanh(t: Tracer, x: Value, min_val: Any = -1.0, max_val: Any = 1.0, inplace: bool = False) -> Value:
    _no_inplace(inplace)
    return apply(t, "min", x.dtype, apply(t, "max", x.dtype, x, min_val), max_val)


@lowers("leaky_relu")
def leaky_relu(t: Tracer, x: Value, negative_slope: Any = 0.01, inplace: bool = False) -> Value:
    _no_inplace(inplace)
    w, wx = _wide(t, x)
    return cast(t, choose(t, compare(t, "gt", wx, 0), wx, apply(t, "mul", w, wx, negative_slope), w), x.dtype)


def _wide(t: Tracer, x: Value) -> tuple[str, Value]:
    dtype = wide(as_float(x.dtype))
    return dtype, cast(t, x, dtype)


def _logistic(t: Tracer, w: str, x: Value) -> Value:
    below = apply(t, "add", w, apply(t, "exp", w, apply(t, "neg", w, x)), 1)
    return apply(t, "div", w, 1, below)


@lowers("sigmoid", "special_expit", "expit")
def sigmoid(t: Tracer, x: Value) -> Value:
    w, wx = _wide(t, x)
    return cast(t, _logistic(t, w, wx), as_float(x.dtype))


@lowers("silu")
def silu(t: Tracer, x: Value, inplace: bool = False) -> Value:
    _no_inplace(inplace)
    w, wx = _wide(t, x)
    below = apply(t, "add", w, apply(t, "exp", w, apply(t, "neg", w, wx)), 1)
    return cast(t, apply(t, "div", w, wx, below), x.dtype)


@lowers("gelu")
def gelu(t: Tracer, x: Value, approximate: str = "none") -> Value:
    w, wx = _wide(t, x)
    half = apply(t, "mul", w, wx, 0.5)
    if approximate == "tanh":
        cube = apply(t, "mul", w, apply(t, "mul", w, wx, wx), wx)
        arg = apply(t, "add", w, wx, apply(t, "mul", w, cube, 0.044715))
        gate = apply(t, "tanh", w, apply(t, "mul", w, arg, math.sqrt(2 / math.pi)))
    else:
        gate = apply(t, "erf", w, apply(t, "mul", w, wx, math.sqrt(0.5)))
    return cast(t, apply(t, "mul", w, half, apply(t, "add", w, gate, 1)), x.dtype)


@lowers("softplus")
def softplus(t: Tracer, x: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    w, wx = _wide(t, x)
    scaled = apply(t, "mul", w, wx, beta)
    soft = apply(t, "div", w, apply(t, "log", w, apply(t, "add", w, apply(t, "exp", w, scaled), 1)), beta)
    return cast(t, choose(t, compare(t, "gt", scaled, threshold), wx, soft, w), x.dtype)


@lowers("log_sigmoid", "logsigmoid")
def log_sigmoid(t: Tracer, x: Value) -> Value:
    w, wx = _wide(t, x)
    low = apply(t, "min", w, wx, 0)
    decay = apply(t, "exp", w, apply(t, "neg", w, apply(t, "abs", w, wx)))
    return cast(t, apply(t, "sub", w, low, apply(t, "log", w, apply(t, "add", w, decay, 1))), x.dtype)


@lowers("elu")
def elu(t: Tracer, x: Value, alpha: Any = 1.0, inplace: bool = False) -> Value:
    _no_inplace(inplace)
    w, wx = _wide(t, x)
    low = apply(t, "mul", w, apply(t, "sub", w, apply(t, "exp", w, wx), 1), alpha)
    return cast(t, choose(t, compare(t, "gt", wx, 0), wx, low, w), x.dtype)


SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@lowers("selu")
def selu(t: Tracer, x: Value, inplace: bool = False) -> Value:
    _no_inplace(inplace)
    w, wx = _wide(t, x)
    low = apply(t, "mul", w, expm1_wide(t, wx), SELU_ALPHA * SELU_SCALE)
    high = apply(t, "mul", w, wx, SELU_SCALE)
    return cast(t, choose(t, compare(t, "gt", wx, 0), high, low, w), x.dtype)


@lowers("celu")
def celu(t: Tracer, x: Value, alpha: Any = 1.0, inplace: bool = False) -> Value:
    _no_inplace(inplace)
    w, wx = _wide(t, x)
    low = apply(t, "mul", w, expm1_wide(t, apply(t, "div", w, wx, alpha)), alpha)
    return cast(t, choose(t, compare(t, "gt", wx, 0), wx, low, w), x.dtype)


@lowers("softsign")
def softsign(t: Tracer, x: Value) -> Value:
    w, wx = _wide(t, x)
    below = apply(t, "add", w, apply(t, "abs", w, wx), 1)
    return cast(t, apply(t, "div", w, wx, below), as_float(x.dtype))


@lowers("tanhshrink")
def tanhshrink(t: Tracer, x: Value) -> Value:
    w, wx = _wide(t, x)
    return cast(t, apply(t, "sub", w, wx, apply(t, "tanh", w, wx)), as_float(x.dtype))


@lowers("softshrink")
def softshrink(t: Tracer, x: Value, lambd: Any = 0.5) -> Value:
    w, wx = _wide(t, x)
    near = compare(t, "le", apply(t, "abs", w, wx), lambd)
    high, low = apply(t, "sub", w, wx, lambd), apply(t, "add", w, wx, lambd)
    outside = choose(t, compare(t, "gt", wx, 0), high, low, w)
    return cast(t, choose(t, near, 0, outside, w), x.dtype)


@lowers("hardshrink")
def hardshrink(t: Tracer, x: Value, lambd: Any = 0.5) -> Value:
    near = compare(t, "le", apply(t, "abs", x.dtype, x), lambd)
    return choose(t, near, 0, x, x.dtype)


@lowers("threshold", "_threshold")
def threshold(t: Tracer, x: Value, threshold: Any, value: Any, inplace: bool = False) -> Value:
    _no_inplace(inplace)
    return choose(t, compare(t, "le", x, threshold), value, x, x.dtype)


@lowers("prelu")
def prelu(t: Tracer, x: Value, weight: Value) -> Value:
    if weight.rank == 1 and hint_of(weight.axes[0]) != 1:  # a slope for each channel, which is axis 1
        for _ in range(x.rank - 2):
            weight = views.insert(weight, weight.rank)
    w, wx = _wide(t, x)
    return cast(t, choose(t, compare(t, "gt", wx, 0), wx, apply(t, "mul", w, weight, wx), w), x.dtype)


@lowers("mish")
def mish(t: Tracer, x: Value, inplace: bool = False) -> Value:
    _no_inplace(inplace)
    w, wx = _wide(t, x)
    return cast(t, apply(t, "mul", w, wx, apply(t, "tanh", w, softplus(t, wx))), x.dtype)


@lowers("hardsigmoid")
def hardsigmoid(t: Tracer, x: Value, inplace: bool = False) -> Value:
    _no_inplace(inplace)
    w, wx = _wide(t, x)
    shifted = apply(t, "min", w, apply(t, "max", w, apply(t, "add", w, wx, 3), 0), 6)
    return cast(t, apply(t, "div", w, shifted, 6), x.dtype)


@lowers("hardswish")
def hardswish(t: Tracer, x: Value, inplace: bool = False) -> Value:
    w, wx = _wide(t, x)
    return cast(t, apply(t, "mul", w, wx, hardsigmoid(t, wx, inplace)), x.dtype)


@lowers("glu")
def glu(t: Tracer, x: Value, dim: int = -1) -> Value:
    from cleave.frontend.lower_views import chunk

    a, b = chunk(t, x, 2, dim)
    return apply(t, "mul", x.dtype, a, sigmoid(t, b))


@lowers("dropout")
def dropout(t: Tracer, x: Value, p: float = 0.5, training: bool = True, inplace: bool = False) -> Value:
    if training and p:
        raise Unsupported("random numbers")
    return x
