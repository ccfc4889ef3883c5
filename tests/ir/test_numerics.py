"""Pointwise operations against PyTorch on special values; dtypes; integers."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from cleave.ir.reference import evaluate
from cleave.ir.text import parse_program

SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.25, math.inf, -math.inf, math.nan]
UNARY = {
    "neg": torch.neg, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal, "abs": torch.abs, "tanh": torch.tanh, "tanh_coarse": torch.tanh,
    "erf": torch.erf, "sin": torch.sin, "cos": torch.cos, "floor": torch.floor, "ceil": torch.ceil,
    "round": torch.round, "trunc": torch.trunc, "sign": torch.sign,
}  # fmt: skip
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow,
    "max": torch.maximum, "min": torch.minimum,
}  # fmt: skip
COMPARE = {"lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "eq": torch.eq, "ne": torch.ne}


def pointwise(fn: str, *args: np.ndarray, dtype: str = "f32", kinds: str = "f32") -> np.ndarray:
    names = "abc"[: len(args)]
    inputs = ", ".join(f"{n}: {kinds}[N]" for n in names)
    reads = ", ".join(f"{n}[n]" for n in names)
    text = f"program p({inputs}) {{ y[n: N]: {dtype} = {fn}({reads}) return y[n] }}"
    return evaluate(parse_program(text), dict(zip(names, args, strict=True)))["y"]


def pairs(values: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    grid = np.meshgrid(np.array(values), np.array(values))
    return grid[0].ravel(), grid[1].ravel()


@pytest.mark.parametrize("fn", sorted(UNARY))
def test_unary_operation_agrees_with_pytorch_on_special_values(fn: str) -> None:
    x = np.array(SPECIAL)
    np.testing.assert_allclose(pointwise(fn, x), UNARY[fn](torch.from_numpy(x)), rtol=1e-14)


@pytest.mark.parametrize("fn", sorted(BINARY))
def test_binary_operation_agrees_with_pytorch_on_special_values(fn: str) -> None:
    x, y = pairs(SPECIAL)
    np.testing.assert_allclose(pointwise(fn, x, y), BINARY[fn](*map(torch.from_numpy, (x, y))), rtol=1e-14)


@pytest.mark.parametrize("fn", sorted(COMPARE))
def test_comparison_agrees_with_pytorch_on_special_values(fn: str) -> None:
    x, y = pairs(SPECIAL)
    ours = pointwise(fn, x, y, dtype="bool")
    assert ours.dtype == np.bool_
    assert ours.tolist() == COMPARE[fn](*map(torch.from_numpy, (x, y))).tolist()


@pytest.mark.parametrize("kind", ["f32", "i64"])
def test_floor_division_follows_the_divisor(kind: str) -> None:
    x, y = pairs([-7, -3, -1, 2, 5] if kind == "i64" else [-7.5, -3.0, -1.25, 2.0, 5.5])
    a, b = torch.from_numpy(x), torch.from_numpy(y)
    np.testing.assert_array_equal(
        pointwise("floordiv", x, y, dtype=kind, kinds=kind), torch.floor_divide(a, b)
    )
    np.testing.assert_array_equal(pointwise("mod", x, y, dtype=kind, kinds=kind), torch.remainder(a, b))


def test_casts_truncate_and_keep_dtypes() -> None:
    x = np.array([1.9, -1.9, 300.0, 0.0])
    assert pointwise("cast", x, dtype="i64").tolist() == [1, -1, 300, 0]
    assert pointwise("cast", x, dtype="i64").dtype == np.int64
    assert pointwise("cast", x, dtype="bool").tolist() == [True, True, True, False]
    assert pointwise("cast", x, dtype="f16").dtype == np.float64
    assert pointwise("cast", np.array([300, 255, -1]), dtype="u8", kinds="i64").tolist() == [44, 255, 255]


def test_integers_stay_integers() -> None:
    x, y = np.array([7, -3, 2**62]), np.array([2, 3, 1])
    assert pointwise("mul", x, y, dtype="i64", kinds="i64").tolist() == [14, -9, 2**62]
    assert pointwise("and", x, y, dtype="i64", kinds="i64").tolist() == [2, 1, 0]
    assert pointwise("pow", x[:2], y[:2], dtype="i64", kinds="i64").tolist() == [49, -27]
    assert pointwise("not", np.array([True, False]), dtype="bool", kinds="bool").tolist() == [False, True]


def test_comparison_of_large_integers_is_exact() -> None:
    x, y = np.array([2**53 + 1]), np.array([2**53])
    assert pointwise("gt", x, y, dtype="bool", kinds="i64").tolist() == [True]


def test_select_drops_what_is_not_chosen() -> None:
    text = """program p(x: f32[N]) {
      big[n: N]: bool = gt(x[n], 0.0)
      r[n: N]: f32 = log(x[n])
      y[n: N]: f32 = select(big[n], r[n], 7)
      return y[n]
    }"""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = evaluate(parse_program(text), {"x": np.array([1.0, 0.0, -1.0, math.nan])})["y"]
    assert y.tolist() == [0.0, 7.0, 7.0, 7.0]
