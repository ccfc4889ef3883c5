"""Row kernels and products of few rows in the C++ backend: what memory-bound programs are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_cpp import assert_close, check_example, padded, program, shifted, sliced, to_torch, transposed

import tile_examples as te
from candidates import CASES, arguments
from cleave import knobs
from cleave.codegen import cpp
from cleave.ir.dims import Atom, Index
from cleave.ir.reference import evaluate
from cleave.runtime import build
from cleave.runtime.launch import Launcher
from cleave.schedule.machine import CPU
from cleave.schedule.select import best
from cleave.schedule.tiles import GridAxis, Kernel, TileProgram
from tile_builder import Block, tensor


@pytest.fixture(scope="module", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with knobs.scope(cache_dir=folder, compiler=f"{build.compiler()[0]} -O1"):
        yield folder


def test_a_block_runs_row_by_row() -> None:
    text = cpp.emit(te.softmax_keep(n_tile=4).tiles).text
    assert "rows_each(" in text
    assert text.count("for (i64 n = 0; n < n_n; ++n) {") == 1


def test_what_is_no_row_stays_in_its_block() -> None:
    """A contraction wants its rows together."""
    assert "rows_each(" not in cpp.emit(te.matmul().tiles).text
    assert "rows_each(" not in cpp.emit(te.norm_linear().tiles).text


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("layer_norm", {"N": 70, "K": 2500}),
        pytest.param("layer_norm", {"N": 1, "K": 5000}, marks=pytest.mark.slow),
        pytest.param("layer_norm", {"N": 3, "K": 64}, marks=pytest.mark.slow),
        pytest.param("softmax", {"N": 70, "K": 2500}, marks=pytest.mark.slow),
    ],
)
def test_long_rows_in_every_shape_of_loop(name: str, sizes: dict[str, int]) -> None:
    """Rows that a block keeps and rows in pieces: each has running states of its own (counts, too, which do
    not depend on the row)."""
    case = replace(CASES[name], sizes=(sizes,))
    bound = case.bound(0)
    inputs = arguments(case.candidate.program, bound, 1)
    expected = evaluate(case.candidate.program, inputs, bound)
    shapes: dict[object, None] = {}
    for ranked in best([case.candidate], bound, CPU, 6):
        kernels = tuple((len(k.body), len(k.whole)) for k in ranked.tiles.kernels)
        if kernels in shapes or len(shapes) == 2:
            continue
        shapes[kernels] = None
        args = [to_torch(inputs[t.name], t.dtype) for t in ranked.tiles.inputs]
        args = [
            a.item() if t.role == "scalar" and isinstance(a, torch.Tensor) else a
            for t, a in zip(ranked.tiles.inputs, args, strict=True)
        ]
        for t, got in zip(ranked.tiles.outputs, Launcher(ranked.tiles)(*args), strict=True):
            assert_close(got.double().numpy(), expected[t.name], 5e-6, f"{name} {sizes} {t.name}")


def test_products_of_few_rows() -> None:
    """Nothing is packed for up to four rows; what is left of a vector or a group of columns counts too."""
    example = te.matmul(n_tile=8, o_tile=40, k_tile=48)
    for rows in (1, 2, 3, 4, 5):
        for o, k in ((1, 1), (7, 9), (40, 48), (53, 101)):
            check_example(example, {"N": rows, "O": o, "K": k})


@pytest.mark.parametrize("view", [transposed, sliced, shifted, padded], ids=lambda f: f.__name__)
def test_products_of_few_rows_in_every_layout(view: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
    for dtype in ("f32", "bf16"):
        check_example(te.matmul(8, 40, 48, dtype), {"N": 3, "O": 53, "K": 101}, view=view)


def test_large_outputs_are_written_whole() -> None:
    """Memory of many pages, taken in large ones, is filled to its ends."""
    x = torch.randn(70, 65_537)
    launcher = Launcher(te.softmax_loops(n_tile=4, k_tile=1024).tiles)
    (got,) = launcher(x)
    assert got.numel() * 4 > cpp.LARGE
    np.testing.assert_allclose(got.numpy(), torch.softmax(x.double(), -1).numpy(), rtol=2e-5)


def test_bf16_is_rounded_once_and_nan_stays_nan() -> None:
    """To nearest even, infinities where the largest is passed; a NaN whose payload stands in the low half."""
    n = Index(Atom("N"), 0)
    x, y = tensor("x", "input", "f32", n.dim), tensor("y", "output", "bf16", n.dim)
    b = Block()
    b.load("x1", (n,), x, n)
    b.store(y, b.compute("y1", (n,), "cast", "x1", dtype="bf16"), n)
    launcher = Launcher(
        TileProgram(
            "narrow", (x,), (y,), (), (Kernel("main", (x, y), (GridAxis(n, 8),), (), (), tuple(b.body), ()),)
        )
    )
    bits = torch.randint(-(2**31), 2**31, (100_003,), generator=torch.Generator().manual_seed(0)).to(
        torch.int32
    )
    bits[:6] = torch.tensor([0x7F800001, 0x7F7FFFFF, 0x7F800000, 0x00008000, 0x00018000, -0x007FFFFF])
    value = bits.view(torch.float32)
    (got,) = launcher(value)
    torch.testing.assert_close(got, value.to(torch.bfloat16), rtol=0, atol=0, equal_nan=True)
    assert "cut_bf16(" in launcher.source.text


@pytest.mark.parametrize(("rows", "columns"), [(1100, 4099), (65, 70001), (70000, 61)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_what_no_cache_keeps_is_written_past_them(rows: int, columns: int, dtype: str) -> None:
    """Rows of a large output at every offset: those that fit in a line of the thread's own, longer ones and
    shorter ones; the same numbers as in an output of a few rows, which is written in place."""
    n, k = Index(Atom("N"), 0), Index(Atom("K"), 1)
    x = tensor("x", "input", dtype, Atom("N"), Atom("K"))
    y = tensor("y", "output", dtype, Atom("N"), Atom("K"))
    b = Block()
    b.load("x1", (n, k), x, n, k)
    b.store(y, b.compute("y1", (n, k), "add", "x1", "x1", dtype=dtype), n, k)
    tiles = program("twice", (x, y), b, [(n, 4), (k, 1 << 17)])
    text = cpp.emit(tiles).text
    assert text.count("line_of<0>(y") == text.count("put_line(y") == 1
    values = torch.randn(rows, columns, dtype={"f32": torch.float32, "bf16": torch.bfloat16}[dtype])
    launcher = Launcher(tiles)
    assert torch.equal(launcher(values)[0], 2 * values)
    assert torch.equal(launcher(values[:3])[0], 2 * values[:3])


def test_what_a_cache_keeps_is_written_in_place() -> None:
    small = replace(te.softmax_keep(n_tile=4).tiles, sizes=((Atom("N"), 64), (Atom("K"), 1024)))
    assert "line_of" in cpp.emit(te.softmax_keep(n_tile=4).tiles).text
    assert "line_of" not in cpp.emit(small).text
