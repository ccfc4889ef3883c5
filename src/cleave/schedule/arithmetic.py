"""Arithmetic on tiles: `cleave.ir.numerics`, with each dtype as precise as the caller asks.

A `Precision` says how floating-point dtypes are computed: `exact` has all of them in float64; otherwise
float64 is float64, float32 is float32, and float16 and bfloat16 are float32 arrays that are rounded to
their dtype after each operation. Integers and bools are themselves in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cleave.ir.numerics import Array, FloatType, apply, convert, literal, neutral_of, numpy_dtype, reduce
from cleave.ir.ops import FLOATS, MAPS, Number

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne", "isnan")
"""Operations that give a bool and work in the dtype of their arguments (`wider`)."""

_WIDTH = {
    "f64": 64, "f32": 32, "f16": 16, "bf16": 16, "i64": 64, "i32": 32, "i16": 16, "i8": 8, "u8": 8, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Precision:
    """How floating-point dtypes are computed: all in float64 (`exact`), or each as it is."""

    exact: bool

    def floats(self, dtype: str) -> FloatType:
        """The NumPy float type that `dtype` is computed in."""
        return np.float64 if self.exact or dtype == "f64" else np.float32

    def storage(self, dtype: str) -> np.dtype[Any]:
        """The NumPy dtype of arrays that hold `dtype`."""
        return numpy_dtype(dtype, self.floats(dtype))

    def array(self, value: Array, dtype: str) -> Array:
        """Values converted to `dtype`: to nearest, ties to even; to integers towards zero."""
        stored = convert(np.asarray(value), self.storage(dtype))
        if self.exact or dtype not in ("f16", "bf16"):
            return stored
        return (
            convert(convert(stored, np.dtype(np.float16)), stored.dtype)
            if dtype == "f16"
            else round_bf16(stored)
        )

    def literal(self, value: Number, dtype: str) -> Array:
        """A literal as an array without axes."""
        return self.array(literal(value, self.storage(dtype)), dtype)

    def poison(self, dtype: str) -> Any:
        """What elements hold that nobody has written: NaN, or the least value of integers and bools."""
        return np.nan if dtype in FLOATS else neutral_of("max", self.storage(dtype))

    def map(self, fn: str, args: Sequence[tuple[Array, str]], dtype: str) -> Array:
        """A pointwise operation on arrays that broadcast; each argument comes with its dtype."""
        assert MAPS[fn] == len(args)
        own = [value for value, _ in args]
        if fn not in COMPARISONS:
            keep = 1 if fn == "select" else 0
            own[keep:] = [self.array(value, dtype) for value in own[keep:]]
        floats = self.floats(wider([arg for _, arg in args]) if fn in COMPARISONS else dtype)
        return self.array(apply(fn, own, self.storage(dtype), floats), dtype)

    def reduce(self, kind: str, value: Array, count: int, dtype: str) -> Array:
        """Reduce the last `count` axes; over nothing the result is the operation's neutral element."""
        kept = value.ndim - count
        if kind not in ("any", "all"):
            value = self.array(value, dtype)
        done = reduce(kind, value, tuple(range(kept, value.ndim)), None, self.storage(dtype))
        return self.array(done.reshape(value.shape[:kept]), dtype)

    def contract(
        self, args: Sequence[tuple[Array, Sequence[int]]], out: Sequence[int], dtype: str, times: int
    ) -> Array:
        """A sum of products by axis labels, `times` over."""
        flat: list[Any] = []
        for value, labels in args:
            flat += [self.array(value, dtype), list(labels)]
        total = np.asarray(np.einsum(*flat, list(out)))
        return self.array(total * np.asarray(times, self.storage(dtype)), dtype)


def round_bf16(value: Array) -> Array:
    """Float32 values rounded to the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
    up = (bits >> np.uint32(16)) & np.uint32(1)
    near = ((bits + np.uint32(0x7FFF) + up) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(value), np.float32(np.nan), near.reshape(value.shape))


def wider(dtypes: Sequence[str]) -> str:
    """The dtype that comparisons of these dtypes work in: the wider one, floats before integers."""
    best = dtypes[0]
    for other in dtypes[1:]:
        if {best, other} == {"f16", "bf16"}:
            best = "f32"
        elif {best, other} == {"i8", "u8"}:
            best = "i16"
        else:
            best = max((best, other), key=lambda dtype: (dtype in FLOATS, _WIDTH[dtype]))
    return best
