"""The C++ emitter: what its kernels compute, against the interpreter of tile programs, NumPy and PyTorch."""

from __future__ import annotations

import functools
import math
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton_cases as cases
from hypothesis import given, settings
from hypothesis import strategies as st
from triton_features import Case, program

import tile_examples as te
from candidates import CASES, arguments
from cleave import knobs
from cleave.codegen import cpp
from cleave.ir.dims import Atom, Dim, Index, Lookup
from cleave.ir.ops import FLOATS
from cleave.ir.reference import evaluate
from cleave.runtime import build
from cleave.runtime.launch import DTYPES, Launcher
from cleave.schedule.interpret import run
from cleave.schedule.machine import CPU
from cleave.schedule.select import best
from cleave.schedule.tiles import ZERO, TileProgram
from tile_attention import attention, attention_split
from tile_builder import Block, Example, size_bound, tensor

A, B, C, D, E = (Atom(name) for name in "ABCDE")
TOLERANCE = {"f64": 1e-13, "f32": 3e-6, "f16": 2e-3, "bf16": 1.6e-2}


@pytest.fixture(scope="module", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with knobs.scope(cache_dir=folder):
        yield folder


def to_torch(value: Any, dtype: str) -> Any:
    return torch.from_numpy(np.array(value)).to(DTYPES[dtype]) if isinstance(value, np.ndarray) else value


def assert_close(got: np.ndarray, want: np.ndarray, tolerance: float, what: str) -> None:
    """Same shape, same NaN and infinities, and close relative to the largest value."""
    assert got.shape == want.shape, what
    got, want = got.astype(np.float64), np.asarray(want, np.float64)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite], err_msg=what)
    if finite.any():
        error = np.abs(got[finite] - want[finite]).max()
        assert error <= tolerance * max(1e-30, np.abs(want[finite]).max()), f"{what}: {error}"


@functools.cache
def _launcher(tiles: TileProgram) -> tuple[Launcher, dict[Dim, int]]:
    parts: dict[Dim, int] = {}
    return Launcher(tiles, choose=lambda tiles, sizes: parts), parts


def launcher_of(example: Example) -> tuple[Launcher, dict[Dim, int]]:
    """The launcher of an example, built once, and the part counts that it will use."""
    return _launcher(example.tiles)


def check_example(
    example: Example,
    sizes: Mapping[str, int],
    parts: Mapping[Dim, int] | None = None,
    view: Callable[[str, torch.Tensor], torch.Tensor] = lambda name, value: value,
) -> None:
    """A call with inputs laid out by `view` gives what NumPy says."""
    inputs = example.make_inputs(sizes, np.random.default_rng(0))
    args = [to_torch(inputs[t.name], t.dtype) for t in example.tiles.inputs]
    args = [
        view(t.name, a) if isinstance(a, torch.Tensor) else a
        for t, a in zip(example.tiles.inputs, args, strict=True)
    ]
    launcher, chosen = launcher_of(example)
    chosen.clear()
    chosen.update(parts or {})
    launcher._bound.clear()  # pyright: ignore[reportPrivateUsage]
    expected = example.reference(inputs)
    for tensor_, result in zip(example.tiles.outputs, launcher(*args), strict=True):
        got = result.to(torch.float64).numpy()
        assert result.dtype == DTYPES[tensor_.dtype]
        assert_close(got, expected[tensor_.name], example.tolerance, f"{example.name} {sizes} {tensor_.name}")


EXAMPLES = te.EXAMPLES
QUICK = {
    "softmax_keep", "softmax_loops", "matmul_f32", "matmul_bf16", "matmul_split", "norm_linear_f16",
    "attention_whole_f32", "attention_whole_bf16", "attention_split_f32", "index_terms",
}  # fmt: skip


@pytest.mark.parametrize(
    "example",
    [pytest.param(e, marks=() if e.name in QUICK else pytest.mark.slow, id=e.name) for e in EXAMPLES],
)
def test_examples_agree_with_numpy(example: Example) -> None:
    for sizes in example.sizes:
        for parts in example.parts:
            check_example(example, sizes, parts)


def complaint(case: Case) -> str:
    """What is wrong with a case's results, by the interpreter in the program's own precision."""
    args, given = cases.arguments_of(case)
    with np.errstate(all="ignore"):
        expected = run(case.tiles, given, dict(case.parts), dtype=np.float32)
    if case.name.startswith("no_columns"):  # the interpreter runs no block where a grid index is empty
        expected["v"] = np.asarray(case.inputs["u"])
    launcher = Launcher(case.tiles, choose=lambda tiles, sizes: case.parts)
    for t, result in zip(case.tiles.outputs, launcher(*args), strict=True):
        got, want = result.numpy(), np.asarray(expected[t.name])
        if got.shape != want.shape or result.dtype != DTYPES[t.dtype]:
            return f"{t.name}: {result.dtype}{got.shape}, expected {t.dtype}{want.shape}"
        tolerance = (case.tolerance or TOLERANCE[t.dtype]) if t.dtype in FLOATS else 0
        scale = np.abs(want, where=np.isfinite(want), out=np.zeros(want.shape)).max(initial=0)
        close = np.isclose(got, want, rtol=tolerance, atol=tolerance * min(1.0, scale), equal_nan=True)
        if not close.all():
            at = tuple(np.argwhere(~close)[0])
            return f"{t.name}{at} is {got[at]}, expected {want[at]} ({(~close).sum()} wrong)"
    return ""


@pytest.mark.parametrize("case", cases.own_cases(), ids=lambda case: case.name)
def test_features_agree_with_the_interpreter(case: Case) -> None:
    with knobs.scope(compiler=f"{build.compiler()[0]} -O1"):
        assert complaint(case) == ""


QUICK_CASES = ("layer_norm", "mla")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK_CASES else pytest.mark.slow) for n in CASES]
)
def test_scheduled_programs_agree_with_the_reference(name: str) -> None:
    """The best tile programs of the scheduler for each candidate of its tests."""
    case = CASES[name]
    for number in range(min(2, len(case.sizes))):
        sizes = case.bound(number)
        inputs = arguments(case.candidate.program, sizes, number)
        with np.errstate(all="ignore"):
            expected = evaluate(case.candidate.program, inputs, sizes)
        for ranked in best([case.candidate], sizes, CPU, 3):
            args = [to_torch(inputs[t.name], t.dtype) for t in ranked.tiles.inputs]
            args = [a.item() if t.role == "scalar" and isinstance(a, torch.Tensor) else a
                    for t, a in zip(ranked.tiles.inputs, args, strict=True)]  # fmt: skip
            with knobs.scope(compiler=f"{build.compiler()[0]} -O1"):
                launcher = Launcher(ranked.tiles)
            for t, got in zip(ranked.tiles.outputs, launcher(*args), strict=True):
                tolerance = TOLERANCE.get(t.dtype, 0) * 8
                assert_close(got.to(torch.float64).numpy(), expected[t.name], tolerance, f"{name} {t.name}")


# ---------------------------------------------------------------- tiles and layouts


@settings(max_examples=4, deadline=None)
@given(st.tuples(*(st.integers(1, 40) for _ in range(3))), st.tuples(*(st.integers(1, 50) for _ in range(3))))
def test_matmul_over_any_tiles_and_sizes(tiles: tuple[int, int, int], sizes: tuple[int, int, int]) -> None:
    with knobs.scope(compiler=f"{build.compiler()[0]} -O1"):
        check_example(te.matmul(*tiles), dict(zip("NOK", sizes, strict=True)))


def test_attention_over_odd_tiles() -> None:
    example = attention(s_tile=5, t_tile=7, g_tile=3, width=24)
    check_example(example, {"KV": 2, "G": 3, "S": 9, "T": 40, "D": 24})
    check_example(example, {"KV": 1, "G": 2, "S": 23, "T": 23, "D": 24})


def transposed(name: str, value: torch.Tensor) -> torch.Tensor:
    return (
        value.t().contiguous().t()
        if value.ndim == 2
        else value.transpose(0, -1).contiguous().transpose(0, -1)
    )


def sliced(name: str, value: torch.Tensor) -> torch.Tensor:
    """Every second element of a larger tensor, from an offset that no vector register likes."""
    big = torch.full([2 * n + 1 for n in value.shape], math.nan, dtype=value.dtype)
    view = big[tuple(slice(1, None, 2) for _ in value.shape)]
    view.copy_(value)
    return view


def shifted(name: str, value: torch.Tensor) -> torch.Tensor:
    """Dense, one element behind an aligned address."""
    base = torch.empty(value.numel() + 1, dtype=value.dtype)
    view = base[1:].view(value.shape)
    view.copy_(value)
    return view


def padded(name: str, value: torch.Tensor) -> torch.Tensor:
    """Rows with NaN behind them."""
    big = torch.full((*value.shape[:-1], value.shape[-1] + 3), math.nan, dtype=value.dtype)
    big[..., : value.shape[-1]] = value
    return big[..., : value.shape[-1]]


@pytest.mark.parametrize("view", [transposed, sliced, shifted, padded], ids=lambda f: f.__name__)
def test_layouts_of_inputs(view: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
    """U17, U19: one compiled function reads every layout in place."""
    check_example(EXAMPLES[0], {"N": 5, "K": 37}, view=view)
    check_example(matmul_f32(), {"N": 33, "O": 21, "K": 64}, view=view)
    check_example(attention_f32(), {"KV": 2, "G": 2, "S": 17, "T": 33, "D": 16}, view=view)


PRODUCTS = ("matmul_bf16", "norm_linear_f16", "attention_whole_bf16")


@pytest.mark.parametrize("flags", ["-O1 -DCLEAVE_PAIRS", "-O1 -march=x86-64"], ids=["pairs", "x86-64"])
def test_products_by_other_instructions(flags: str) -> None:
    """bfloat16 by pairs, with the instruction written out, and vectors of 16 bytes without fused products."""
    if platform.machine() != "x86_64":
        pytest.skip("the flags are those of an x86-64 compiler")
    with knobs.scope(compiler=f"{build.compiler()[0]} {flags}"):
        _launcher.cache_clear()
        for example in (e for e in EXAMPLES if e.name in PRODUCTS):
            check_example(example, example.sizes[0], example.parts[0])
    _launcher.cache_clear()


@pytest.mark.parametrize(
    ("machine", "name", "instruction"),
    [
        ("sapphirerapids", "matmul_bf16", "vdpbf16ps"),
        ("skylake-avx512", "matmul_f32", "zmm"),
        ("haswell", "matmul_f32", "vfmadd231ps"),
        ("x86-64", "matmul_f32", "mulps"),
    ],
)
def test_products_use_what_the_compiler_builds_for(machine: str, name: str, instruction: str) -> None:
    example = next(e for e in EXAMPLES if e.name == name)
    flags = [f for f in build.FLAGS if f not in ("-march=native", "-shared", "-O3")]
    command = [build.compiler()[0], *flags, "-O1", f"-march={machine}", f"-I{build.INCLUDE}", "-S", "-o", "-"]
    text = cpp.emit(example.tiles).text
    done = subprocess.run(
        [*command, "-x", "c++", "-"], input=text, capture_output=True, text=True, check=False
    )
    if "bad value" in done.stderr or "unknown target CPU" in done.stderr:
        pytest.skip(f"the compiler does not know {machine}")
    assert done.returncode == 0, done.stderr
    assert instruction in done.stdout


def test_expanded_inputs_are_read_with_stride_0() -> None:
    example = attention_f32()
    launcher, _ = launcher_of(example)
    k = torch.randn(1, 33, 16)
    q, v = torch.randn(4, 17, 16), torch.randn(2, 33, 16)
    wide = k.expand(2, 33, 16)
    assert wide.stride(0) == 0
    for got, want in zip(launcher(q, wide, v, 0.25), launcher(q, wide.contiguous(), v, 0.25), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


@functools.cache
def matmul_f32() -> Example:
    return next(e for e in EXAMPLES if e.name == "matmul_f32")


@functools.cache
def attention_f32() -> Example:
    return next(e for e in EXAMPLES if e.name == "attention_whole_f32")


def test_same_tensor_and_overlapping_views_as_inputs() -> None:
    """U47: inputs are told apart by position."""
    launcher, _ = launcher_of(matmul_f32())
    base = torch.randn(40, 16)
    for x, w in ((base, base), (base[:30], base[10:]), (base[10:], base[:30])):
        torch.testing.assert_close(launcher(x, w)[0], x @ w.t())


def test_batched_products_with_several_columns() -> None:
    """Roles of several indices: batch in front, rows and columns of two indices each, depth of two."""
    h, i, g, j, e, k = (Index(Atom(n), number) for number, n in enumerate("HIGJEK"))
    x = tensor("x", "input", "f32", h.dim, i.dim, g.dim, e.dim, k.dim)
    y = tensor("y", "input", "f32", h.dim, e.dim, k.dim, j.dim)
    z = tensor("z", "input", "f32", h.dim, j.dim, k.dim, e.dim)
    o, p = (tensor(n, "output", "f32", h.dim, i.dim, g.dim, j.dim) for n in "op")
    b = Block()
    b.load("x1", (h, i, g, e, k), x, h, i, g, e, k)
    b.load("y1", (h, e, k, j), y, h, e, k, j)
    b.load("z1", (h, j, k, e), z, h, j, k, e)
    b.store(o, b.contract("c", (h, i, g, j), (e, k), "x1", "y1"), h, i, g, j)
    b.compute("sum", (h, i, g, j), "add", b.contract("d", (h, i, g, j), (k, e), "x1", "z1"), "c")
    b.store(p, "sum", h, i, g, j)
    whole = [(e, 3), (k, 5), (g, 4)]
    limits = [(Atom("E"), 3), (Atom("K"), 5), (Atom("G"), 4)]
    tiles = program("roles", (x, y, z, o, p), b, [(h, 2), (i, 3), (j, 8)], whole, limits=limits)
    x1, y1, z1 = torch.randn(3, 7, 4, 3, 5), torch.randn(3, 3, 5, 19), torch.randn(3, 19, 5, 3)
    o1, p1 = Launcher(tiles)(x1, y1, z1)
    expected = torch.einsum("higek,hekj->higj", x1, y1)
    torch.testing.assert_close(o1, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(p1, expected + torch.einsum("higek,hjke->higj", x1, z1), rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- values


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


# ---------------------------------------------------------------- sizes 0 and 1, full outputs


def test_empty_and_single_sizes() -> None:
    """U13, U14: no rows, no columns, depth 0, one element."""
    softmax, matmul_ = launcher_of(EXAMPLES[0])[0], launcher_of(matmul_f32())[0]
    assert softmax(torch.empty(0, 5))[0].shape == (0, 5)
    assert softmax(torch.empty(5, 0))[0].shape == (5, 0)
    assert softmax(torch.ones(1, 1))[0].item() == 1
    assert matmul_(torch.empty(3, 0), torch.empty(4, 0))[0].equal(torch.zeros(3, 4))
    assert matmul_(torch.empty(0, 7), torch.randn(4, 7))[0].shape == (0, 4)


def test_rank_0() -> None:
    x, y, m = tensor("x", "input", "f32"), tensor("y", "output", "f32"), tensor("m", "output", "i64")
    b = Block()
    b.load("x1", (), x)
    b.store(y, b.compute("y1", (), "rsqrt", "x1"))
    b.store(m, b.compute("m1", (), "cast", "x1", dtype="i64"))
    got, whole = Launcher(program("rank0", (x, y, m), b, []))(torch.tensor(4.0))
    assert got.shape == () and got.item() == 0.5 and whole.item() == 4


def test_an_output_without_an_empty_grid_index_is_still_written() -> None:
    n, k = Index(A, 0), Index(B, 1)
    x, y, z = (
        tensor("x", "input", "f32", A, B),
        tensor("y", "output", "f32", A, B),
        tensor("z", "output", "f32", A),
    )
    b = Block()
    b.load("x1", (n, k), x, n, k)
    b.store(y, "x1", n, k)
    b.locate("at", (n,), n)
    b.store(z, b.compute("z1", (n,), "cast", "at"), n, first=(k,))
    _, got = Launcher(program("first", (x, y, z), b, [(n, 4), (k, 4)]))(torch.empty(6, 0))
    assert got.tolist() == [0, 1, 2, 3, 4, 5]


def test_every_element_of_an_output_is_written() -> None:
    """U34: results do not depend on what the allocator hands out."""
    example = attention_f32()
    sizes = {"KV": 2, "G": 3, "S": 33, "T": 47, "D": 16}
    inputs = example.make_inputs(sizes, np.random.default_rng(0))
    args = [to_torch(inputs[t.name], t.dtype) for t in example.tiles.inputs]
    launcher = Launcher(example.tiles)
    first = launcher(*args)
    for _ in range(3):
        poison = [torch.full(o.shape, math.nan) for o in first]
        del poison
        for got, want in zip(launcher(*args), first, strict=True):
            assert got.equal(want)


def test_gathers_never_leave_the_table() -> None:
    """An id outside the table reads the load's other value, not memory that is not ours."""
    n, d = Index(A, 0), Index(B, 1)
    table, ids = tensor("table", "input", "f32", C, B), tensor("ids", "input", "i64", A)
    y = tensor("y", "output", "f32", A, B)
    b = Block()
    b.load("i1", (n,), ids, n)
    b.store(y, b.load("r", (n, d), table, Lookup("i1"), d, other=0), n, d)
    launcher = Launcher(program("gather", (table, ids, y), b, [(n, 4), (d, 8)]))
    values = torch.randn(5, 11)
    picked = launcher(values, torch.tensor([4, 0, 2**40, -1, 2]))[0]
    assert picked[[0, 1, 4]].equal(values[[4, 0, 2]])
    assert picked[[2, 3]].eq(0).all()


# ---------------------------------------------------------------- accumulators


def test_updates_that_cannot_share_their_accumulators_room() -> None:
    """A swap, an accumulator read after its update is made, one value for two accumulators."""
    n, k = Index(A, 0), Index(B, 1)
    x = tensor("x", "input", "f32", A, B)
    outs = [tensor(name, "output", "f32", A) for name in "pqrst"]
    b = Block()
    b.fill("zero", (n,), 0.0)
    b.fill("one", (n,), 1.0)
    for name, start in zip("pqrst", ("zero", "one", "zero", "one", "zero"), strict=True):
        b.carry(name, (n,), start)
    s = Block()
    s.load("x1", (n,), x, n, k)
    s.compute("r1", (n,), "add", "r", "x1")
    s.compute("late", (n,), "mul", "r1", "r")
    s.reduce("all", (), "sum", (n,), "late")
    s.compute("s1", (n,), "add", "s", "all")
    b.loop(k, 1, ZERO, size_bound(B), s, p="q", q="p", r="r1", s="s1", t="r1")
    for out, name in zip(outs, "pqrst", strict=True):
        b.store(out, name, n)
    tiles = program("updates", (x, *outs), b, [], [(n, 8)], limits=[(A, 8)])
    values = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    expected = run(tiles, {"x": values})
    for t, got in zip(tiles.outputs, Launcher(tiles)(torch.from_numpy(values)), strict=True):
        assert_close(got.numpy(), expected[t.name], 1e-6, t.name)


def test_both_summands_are_products() -> None:
    """a @ b + c @ d: one product starts from the other, and none is lost."""
    i, j, k = Index(A, 0), Index(B, 1), Index(C, 2)
    w, x, y, z = (
        tensor(n, "input", "f32", *d) for n, d in (("w", (A, C)), ("x", (C, B)), ("y", (A, C)), ("z", (B, C)))
    )
    o = tensor("o", "output", "f32", A, B)
    b = Block()
    b.load("w1", (i, k), w, i, k)
    b.load("x1", (k, j), x, k, j)
    b.load("y1", (i, k), y, i, k)
    b.load("z1", (j, k), z, j, k)
    b.contract("p", (i, j), (k,), "w1", "x1")
    b.contract("q", (i, j), (k,), "y1", "z1")
    b.store(o, b.compute("s", (i, j), "add", "p", "q"), i, j)
    tiles = program("pair", (w, x, y, z, o), b, [(i, 8), (j, 16)], [(k, 16)], limits=[(C, 16)])
    w1, x1, y1, z1 = torch.randn(9, 11), torch.randn(11, 21), torch.randn(9, 11), torch.randn(21, 11)
    torch.testing.assert_close(
        Launcher(tiles)(w1, x1, y1, z1)[0], w1 @ x1 + y1 @ z1.t(), rtol=1e-5, atol=1e-5
    )


def test_accumulators_without_indices() -> None:
    """A new value that is read where it is made stands in the old one's variable afterwards only."""
    k = Index(A, 0)
    x = tensor("x", "input", "f32", A)
    m, t = tensor("m", "output", "f32"), tensor("t", "output", "f32")
    b = Block()
    b.fill("none", (), -math.inf)
    b.fill("zero", (), 0.0)
    b.carry("top", (), "none")
    b.carry("total", (), "zero")
    s = Block()
    s.load("x1", (k,), x, k)
    s.reduce("mt", (), "max", (k,), "x1")
    s.compute("top1", (), "max", "top", "mt")
    s.compute("gap", (), "sub", "top", "top1")
    s.compute("back", (), "exp", "gap")
    s.compute("old", (), "mul", "total", "back")
    s.compute("c", (k,), "sub", "x1", "top1")
    s.compute("e", (k,), "exp", "c")
    s.reduce("lt", (), "sum", (k,), "e")
    s.compute("total1", (), "add", "old", "lt")
    b.loop(k, 8, ZERO, size_bound(A), s, top="top1", total="total1")
    b.store(m, "top")
    b.store(t, "total")
    launcher = Launcher(program("scalars", (x, m, t), b, []))
    values = torch.randn(37) * 5
    top, total = launcher(values)
    assert top == values.max()
    torch.testing.assert_close(total, (values - values.max()).exp().sum())


def test_a_product_adds_into_its_accumulator() -> None:
    """Online rescaling costs one pass over the accumulator: no tile of its own for the contraction."""
    text = cpp.emit(attention_f32().tiles).text
    assert "acc1[g, s, d2] += sum over t of e[g, s, t] * v1[t, d2]" in text
    assert "acc = tile<float>(memory" in text
    assert "ev = tile<float>" not in text


# ---------------------------------------------------------------- text


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_equal_programs_give_equal_text(example: Example) -> None:
    first, second = cpp.emit(example.tiles), cpp.emit(example.tiles)
    assert first == second
    assert "/home" not in first.text and "0x" not in first.text
    for entry in first.entries:
        assert f'extern "C" int {entry.function}(' in first.text
        assert entry.arguments[-1].kind == "threads"


def test_text_names_dims_and_folds_known_sizes() -> None:
    text = cpp.emit(attention(width=64).tiles).text
    assert "// q: f32[KV * G, S, D] input" in text
    assert "// sizes: D = 64" in text
    assert "i64 D" not in text
    assert text.count("{") == text.count("}")


def test_names_that_are_words_of_cpp() -> None:
    n = Index(Atom("class"), 0)
    x, y = tensor("float", "input", "f32", n.dim), tensor("new value", "output", "f32", n.dim)
    b = Block()
    b.load("int", (n,), x, n)
    b.store(y, b.compute("memory", (n,), "exp", "int"), n)
    tiles = program("for", (x, y), b, [(n, 8)], names=[(n, "while")])
    values = torch.randn(19)
    torch.testing.assert_close(Launcher(tiles)(values)[0], values.exp())


@pytest.mark.slow
def test_large_positions_do_not_overflow() -> None:
    """U11: rows that start past element 2^31 of their storage."""
    x = torch.zeros(1, dtype=torch.int8).expand(4, 8)
    far = next(c for c in cases.own_cases() if c.name == "far")
    assert complaint(far) == ""
    assert Launcher(far.tiles)(x.contiguous())[0].shape == (4, 8)


def test_split_attention_with_empty_parts() -> None:
    example = attention_split(t_tile=8, part_tile=2)
    for parts in (1, 2, 5, 40):
        check_example(example, {"KV": 2, "G": 2, "S": 5, "T": 21, "D": 16}, {Atom("T"): parts})
