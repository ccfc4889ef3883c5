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
from cleave.schedule.tiles import TileProgram
from tile_attention import attention, attention_split
from tile_builder import Block, Example, tensor

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
