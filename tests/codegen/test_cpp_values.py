"""Values in the C++ backend: its mathematics over the whole range, rounding, NaN, and long reductions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from test_cpp import EXAMPLES, launcher_of
from triton_features import program

from cleave.ir.dims import Atom, Index
from cleave.runtime.launch import DTYPES, Launcher
from cleave.schedule.tiles import TileProgram
from tile_builder import Block, tensor

A, B = Atom("A"), Atom("B")


def pointwise(fn: str, dtype: str = "f32") -> TileProgram:
    n = Index(A, 0)
    x, y = tensor("x", "input", dtype, A), tensor("y", "output", dtype, A)
    b = Block()
    b.load("x1", (n,), x, n)
    b.store(y, b.compute("y1", (n,), fn, "x1", dtype=dtype), n)
    return program(f"point_{fn}", (x, y), b, [(n, 1 << 16)])


def float_patterns(step: int) -> torch.Tensor:
    """Float32 numbers of every sign and magnitude, subnormal ones, infinities and NaN among them."""
    raw = torch.arange(-(2**31), 2**31, step, dtype=torch.int64).to(torch.int32)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 88.72283, 88.72284, -87.33655, -103.97, -104.0]
    edges = [1e-45, 1.1754944e-38, 0.625, 0.921875, 1.0]
    return torch.cat([raw.view(torch.float32), torch.tensor([*special, *edges])])


ULPS = {
    "exp": 1.0, "exp2": 1.0, "log": 1.0, "tanh": 1.5, "tanh_coarse": 1.5, "erf": 1.1, "sin": 4.0, "cos": 4.0,
    "sqrt": 0.5, "rsqrt": 1.5, "reciprocal": 0.5,
}  # fmt: skip
"""The largest error in float32, in units in the last place, that the headers promise."""


@pytest.mark.parametrize(("fn", "ulps"), ULPS.items())
def test_vector_mathematics_over_the_whole_range(fn: str, ulps: float) -> None:
    x = float_patterns(4099)
    reference = {
        "erf": lambda v: torch.erf(torch.from_numpy(v)).numpy(),
        "rsqrt": lambda v: 1 / np.sqrt(v),
        "tanh_coarse": np.tanh,
    }
    with np.errstate(all="ignore"):
        want = reference.get(fn, getattr(np, fn, np.exp))(x.numpy().astype(np.float64))
        rounded = want.astype(np.float32)
    got = Launcher(pointwise(fn))(x)[0].numpy()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded))
    np.testing.assert_array_equal(got[np.isinf(rounded)], rounded[np.isinf(rounded)])
    finite = np.isfinite(rounded)
    ulp = np.maximum(np.spacing(np.abs(rounded[finite])).astype(np.float64), 2.0**-149)
    error = np.abs(got[finite].astype(np.float64) - want[finite]) / ulp
    assert error.max() <= ulps, f"{error.max()} ulp at {x.numpy()[finite][error.argmax()]!r}"


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_narrow_floats_round_to_nearest_even(dtype: str) -> None:
    n = Index(A, 0)
    x, y, z = tensor("x", "input", "f32", A), tensor("y", "output", dtype, A), tensor("z", "output", "f32", A)
    b = Block()
    b.load("x1", (n,), x, n)
    b.compute("c", (n,), "cast", "x1", dtype=dtype)
    b.store(y, "c", n)
    b.store(z, b.compute("back", (n,), "cast", "c"), n)
    launcher = Launcher(program(f"narrow_{dtype}", (x, y, z), b, [(n, 4096)]))
    extra = torch.tensor(
        [65504.0, 65519.0, 65519.996, 65520.0, 2.98e-8, 2.9802322e-8, 6.1e-5, 6.0976e-5, 3.4e38]
    )
    values = torch.cat([float_patterns(65537), extra])
    narrow, back = launcher(values)
    torch.testing.assert_close(narrow, values.to(DTYPES[dtype]), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(back, values.to(DTYPES[dtype]).float(), rtol=0, atol=0, equal_nan=True)
    wide = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(DTYPES[dtype])
    again = Launcher(_widen_program(dtype))(wide)[0]
    torch.testing.assert_close(again, wide.float(), rtol=0, atol=0, equal_nan=True)


def _widen_program(dtype: str) -> TileProgram:
    n = Index(A, 0)
    x, y = tensor("x", "input", dtype, A), tensor("y", "output", "f32", A)
    b = Block()
    b.load("x1", (n,), x, n)
    b.store(y, b.compute("y1", (n,), "cast", "x1"), n)
    return program(f"widen_{dtype}", (x, y), b, [(n, 4096)])


def test_no_multiplication_fuses_with_a_subtraction() -> None:
    """U71: x*c - max(x*c) is exactly 0 at the maximum."""
    n, k = Index(A, 0), Index(B, 1)
    x, y, s = (
        tensor("x", "input", "f32", A, B),
        tensor("y", "output", "f32", A, B),
        tensor("s", "scalar", "f32"),
    )
    b = Block()
    b.load("x1", (n, k), x, n, k)
    b.load("s1", (), s)
    b.compute("scaled", (n, k), "mul", "x1", "s1")
    b.reduce("m", (n,), "max", (k,), "scaled")
    b.store(y, b.compute("d", (n, k), "sub", "scaled", "m"), n, k)
    launcher = Launcher(program("exact", (x, s, y), b, [(n, 4)], [(k, 64)], limits=[(B, 64)]))
    for scale in (0.1, 0.125, 1 / 3):
        for values in (torch.full((3, 37), 1e20), torch.full((3, 37), 133120.0), torch.rand(5, 41) * 1e6):
            result = launcher(values, scale)[0]
            assert (result.amax(1) == 0).all()
            torch.testing.assert_close(
                result, values * scale - (values * scale).amax(1, True), rtol=0, atol=0
            )


@pytest.mark.parametrize("at", [0, 3, 8, 63, 64, 101, 127])
def test_maximum_passes_nan_on(at: int) -> None:
    """U25, for a NaN among those that are reduced at once, and behind them."""
    x = torch.randn(5, 128)
    x[2, at] = math.nan
    result = launcher_of(EXAMPLES[0])[0](x)[0]
    assert result[2].isnan().all()
    assert not result[[0, 1, 3, 4]].isnan().any()


REDUCED = [
    *((kind, dtype) for dtype in ("f32", "f64", "bf16", "i64", "i32", "u8") for kind in ("sum", "max")),
    *(("min", dtype) for dtype in ("f32", "f64", "i64", "u8")),
    ("prod", "f32"), ("prod", "f64"), ("any", "bool"), ("all", "bool"),
]  # fmt: skip
IN_TORCH = {
    "sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin, "any": torch.any,
    "all": torch.all,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "dtype"), REDUCED)
def test_reductions_of_rows_longer_and_shorter_than_what_is_reduced_at_once(kind: str, dtype: str) -> None:
    """The one value that counts stands first, last, at the end of what is done at once, or behind it."""
    n, k = Index(Atom("N"), 0), Index(Atom("K"), 1)
    x, y = tensor("x", "input", dtype, n.dim, k.dim), tensor("y", "output", dtype, n.dim)
    b = Block()
    b.load("x1", (n, k), x, n, k)
    b.store(y, b.reduce("r", (n,), kind, (k,), "x1", dtype=dtype), n)
    launcher = Launcher(program("reduced", (x, y), b, [(n, 4)], [(k, 256)], limits=[(k.dim, 256)]))
    torch_dtype = DTYPES[dtype]
    for size in (1, 15, 63, 64, 65, 127, 128, 200, 256):
        value = torch.full((5, size), 3 if dtype not in ("f32", "f64", "bf16") else 1.25).to(torch_dtype)
        value = torch.full((5, size), kind == "all") if dtype == "bool" else value
        for row, at in enumerate((0, size - 1, min(63, size - 1), min(64, size - 1), size // 2)):
            value[row, at] = {"max": 7, "min": 1, "any": True, "all": False}.get(kind, 2)
        wanted = IN_TORCH[kind](value, dim=1).to(torch_dtype)
        torch.testing.assert_close(launcher(value)[0], wanted, rtol=1e-2 if dtype == "bf16" else 1e-5, atol=0)
