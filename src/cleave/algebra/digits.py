"""Pointwise operations, comparisons and reductions in many digits, for the second opinion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import mpmath as _mpmath  # pyright: ignore[reportMissingTypeStubs]

from cleave.ir.ops import FLOATS

mpmath: Any = _mpmath

Value = Any
"""An mpmath number; integers and truths are exact ones."""

REACH = 1000
"""Exponentials, sines and integers are made of numbers below `2 ** REACH`: the digits before the point are
work, too, and a number that is an exponential of an exponential has more of them than there is memory."""


NEAREST = 6000
"""What is nearer to 0 than `2 ** -NEAREST` is nothing beside 1 in the most digits that are computed with."""


class TooFar(Exception):
    """A value is made of a number that is too large, or too near to 0, to compute with."""


def near(value: Value) -> Value:
    """The number, if it is within reach, or infinite; else `TooFar`."""
    if mpmath.isfinite(value) and value and mpmath.mag(value) > REACH:
        raise TooFar
    return value


def felt(value: Value) -> Value:
    """The number, if what is near 1 by so much is told from 1; else `TooFar`: `log(exp(x))` would be 0."""
    if value and mpmath.mag(value) < -NEAREST:
        raise TooFar
    return near(value)


def added(values: Sequence[Value]) -> Value:
    """The sum; `TooFar` where a number is nothing beside another one in the most digits that are computed
    with: `log((x + c) - c)` would be that of 0."""
    sizes = [mpmath.mag(v) for v in values if v and mpmath.isfinite(v)]
    if sizes and max(sizes) - min(sizes) > NEAREST:
        raise TooFar
    return sum(values, mpmath.mpf(0))


def number(value: Any) -> Value:
    if isinstance(value, Fraction):
        return mpmath.mpf(value.numerator) / value.denominator
    return mpmath.mpf(value)


def convert(value: Value, old: str, new: str) -> Value:
    if old == new or new in FLOATS or mpmath.isnan(value):
        return value
    if new == "bool":
        return mpmath.mpf(value != 0)
    if not mpmath.isfinite(value):
        return mpmath.nan
    whole = int(snapped(near(value)))
    bits = 8 if new == "u8" else int(new[1:])
    whole %= 1 << bits
    return mpmath.mpf(whole - (1 << bits) if new != "u8" and whole >> (bits - 1) else whole)


def snapped(value: Value) -> Value:
    """The integer that a number differs from by rounding alone, else the number: `x * (1 / x)` is 1."""
    if not mpmath.isfinite(value):
        return value
    whole = mpmath.nint(value)
    close = abs(value - whole) <= mpmath.mpf(10) ** (-mpmath.mp.dps * 4 // 5) * max(abs(value), 1)
    return whole if close else value


def _steps(round_: Callable[[Value], Value]) -> Callable[[Value], Value]:
    """A function that jumps at integers."""
    return lambda x: round_(snapped(x))


def _max(values: Sequence[Value]) -> Value:
    if any(mpmath.isnan(v) for v in values):
        return mpmath.nan
    return max(values, default=-mpmath.inf)


def _min(values: Sequence[Value]) -> Value:
    return -_max([-v for v in values])


def exp(x: Value) -> Value:
    """The exponential; 0 of -inf. `TooFar` where the argument is out of reach."""
    return mpmath.mpf(0) if x == -mpmath.inf else mpmath.exp(felt(x))


def _log(x: Value) -> Value:
    return -mpmath.inf if x == 0 else mpmath.log(x)


def power(x: Value, y: Value) -> Value:
    """A power; NaN of a negative number unless the exponent is an integer. `TooFar` where the log of the
    result is out of reach."""
    if mpmath.isfinite(x) and x and mpmath.isfinite(y):
        near(felt(y) * mpmath.mag(x))
    return mpmath.nan if x < 0 and y != mpmath.floor(y) else mpmath.power(x, y)


def _round(x: Value) -> Value:
    return mpmath.nint(snapped(2 * x) / 2)


def _bits(operation: Callable[[int, int], int]) -> Callable[[Value, Value], Value]:
    return lambda a, b: mpmath.mpf(operation(int(near(a)), int(near(b))))


_UNARY: dict[str, Callable[[Value], Value]] = {
    "id": lambda x: x,
    "neg": lambda x: -x,
    "exp": exp,
    "log": _log,
    "sqrt": lambda x: mpmath.nan if x < 0 else mpmath.sqrt(x),
    "rsqrt": lambda x: mpmath.nan if x <= 0 else 1 / mpmath.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "abs": abs,
    "tanh": lambda x: mpmath.tanh(near(x)),
    "erf": lambda x: mpmath.erf(near(x)),
    "sin": lambda x: mpmath.sin(near(x)),
    "cos": lambda x: mpmath.cos(felt(x)),
    "floor": _steps(mpmath.floor),
    "ceil": _steps(mpmath.ceil),
    "round": _round,
    "trunc": _steps(lambda x: mpmath.floor(x) if x >= 0 else mpmath.ceil(x)),
    "sign": mpmath.sign,
    "not": lambda x: mpmath.mpf(x == 0),
    "isnan": lambda x: mpmath.mpf(0),
}

_BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "add": lambda a, b: added((a, b)),
    "sub": lambda a, b: added((a, -b)),
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": power,
    "max": lambda a, b: _max((a, b)),
    "min": lambda a, b: _min((a, b)),
    "floordiv": lambda a, b: mpmath.floor(snapped(a / b)),
    "mod": lambda a, b: a - b * mpmath.floor(snapped(a / b)),
    "and": _bits(lambda a, b: a & b),
    "or": _bits(lambda a, b: a | b),
    "xor": _bits(lambda a, b: a ^ b),
}

MAPS: dict[str, Callable[..., Value]] = {**_UNARY, **_BINARY}
"""Pointwise operations on finite and infinite numbers (not NaN); `TooFar` where a number is out of reach."""

OF_FLOATS = ("exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "erf", "sin", "cos", "div", "isnan")
"""These take their arguments as they are, whatever the dtype of the result."""


def level(a: Value, b: Value) -> bool:
    """Are two numbers alike but for rounding? `log(exp(x))` is not above `x`."""
    if a == b or not (mpmath.isfinite(a) and mpmath.isfinite(b)):
        return bool(a == b)
    return bool(abs(a - b) <= mpmath.mpf(10) ** (-mpmath.mp.dps * 4 // 5) * max(abs(a), abs(b)))


COMPARE: dict[str, Callable[[Value, Value], bool]] = {
    "lt": lambda a, b: a < b and not level(a, b),
    "le": lambda a, b: a <= b or level(a, b),
    "gt": lambda a, b: a > b and not level(a, b),
    "ge": lambda a, b: a >= b or level(a, b),
    "eq": level,
    "ne": lambda a, b: not level(a, b),
}

REDUCE: dict[str, Callable[[Sequence[Value]], Value]] = {
    "sum": added,
    "prod": lambda values: mpmath.fprod(values),
    "max": _max,
    "min": _min,
    "any": lambda values: mpmath.mpf(any(v != 0 for v in values)),
    "all": lambda values: mpmath.mpf(all(v != 0 for v in values)),
}
