"""Products where each way of `cpp_products.h`, `cpp_streams.h` and `cpp_pairs.h` begins and ends."""

from __future__ import annotations

import platform

import pytest
import torch
from test_cpp import _launcher, check_example, padded, program, shifted, sliced, transposed

import tile_examples as te
from cleave import knobs
from cleave.ir.dims import Atom, Index
from cleave.runtime import build
from cleave.runtime.launch import Launcher
from tile_builder import Block, tensor

TURNED = [12, 13, 16, 17, 26, 31, 32, 33]
"""Rows around those for which the columns take the place of the rows, with 8, 16 and 32 lanes."""


@pytest.mark.parametrize("depth", [7, 64, 300])
def test_few_rows_times_columns_that_lie_by_themselves(depth: int) -> None:
    """Tails of rows, columns and depth, and sums that go on where a loop has begun them."""
    example = te.matmul(40, 128, 64)
    for rows in TURNED:
        for columns in (2 * rows - 1, 2 * rows, 97, 130):
            check_example(example, {"N": rows, "O": columns, "K": depth}, view=shifted)


def test_a_depth_of_several_panels_in_one_product() -> None:
    for rows in (16, 30):
        check_example(te.matmul(32, 128, 600), {"N": rows, "O": 100, "K": 600}, view=padded)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("columns", [5, 127, 128, 300, 1031])
def test_single_rows_times_lines(dtype: str, columns: int) -> None:
    """Lines shorter and longer than what is asked for ahead, with and without whole vectors."""
    example = te.matmul(4, 2048, 32, dtype)
    for rows in (1, 2, 3, 4):
        check_example(example, {"N": rows, "O": columns, "K": 37}, view=transposed)


ENDS = [
    (rows, columns, depth)
    for rows, columns in ((1, 9), (3, 37), (5, 1), (6, 8), (7, 31), (11, 33), (13, 17), (23, 40))
    for depth in (1, 2, 7, 8, 9, 15, 40)
]
"""Sizes around those of vectors of any width, of register blocks and of the transposition of 8 by 8."""
FLAGS = ["", "-DCLEAVE_PAIRS", "-march=x86-64", "-march=x86-64 -DCLEAVE_PAIRS"]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("flags", FLAGS, ids=["native", "pairs", "x86-64", "x86-64-pairs"])
def test_every_end_of_rows_columns_and_depth(flags: str, dtype: str) -> None:
    """Parts of vectors, whichever instructions make them; NaN stands behind every line of `padded`."""
    if "x86-64" in flags and platform.machine() != "x86_64":
        pytest.skip("the flags are those of an x86-64 compiler")
    if "PAIRS" in flags and dtype != "bf16":
        pytest.skip("pairs are of bfloat16")
    with knobs.scope(compiler=f"{build.compiler()[0]} -O1 {flags}"):
        _launcher.cache_clear()
        example = te.matmul(32, 64, 48, dtype)
        for rows, columns, depth in ENDS:
            for view in (padded, transposed, sliced):
                check_example(example, {"N": rows, "O": columns, "K": depth}, view=view)
    _launcher.cache_clear()


@pytest.mark.parametrize("flags", FLAGS, ids=["native", "pairs", "x86-64", "x86-64-pairs"])
def test_products_of_bfloat16_in_several_parts(flags: str) -> None:
    """More rows than the second-level cache is to hold, depths of several parts, odd ones, and few rows of so
    many elements that they are widened in parts."""
    if "x86-64" in flags and platform.machine() != "x86_64":
        pytest.skip("the flags are those of an x86-64 compiler")
    with knobs.scope(compiler=f"{build.compiler()[0]} -O1 {flags}"):
        _launcher.cache_clear()
        for tiles, rows, columns, depth in (
            ((300, 64, 1200), 300, 40, 1200), ((300, 64, 1201), 277, 33, 1201), ((4, 8, 17000), 3, 8, 17000),
        ):  # fmt: skip
            example = te.matmul(*tiles, "bf16")
            for view in (padded, sliced):
                check_example(example, {"N": rows, "O": columns, "K": depth}, view=view)
    _launcher.cache_clear()


@pytest.mark.parametrize("flags", ["", "-march=x86-64"], ids=["native", "x86-64"])
def test_every_end_in_float64(flags: str) -> None:
    if flags and platform.machine() != "x86_64":
        pytest.skip("the flags are those of an x86-64 compiler")
    i, j, k = Index(Atom("I"), 0), Index(Atom("J"), 1), Index(Atom("K"), 2)
    x, w = tensor("x", "input", "f64", i.dim, k.dim), tensor("w", "input", "f64", k.dim, j.dim)
    y = tensor("y", "output", "f64", i.dim, j.dim)
    b = Block()
    b.load("x1", (i, k), x, i, k)
    b.load("w1", (k, j), w, k, j)
    b.store(y, b.contract("c", (i, j), (k,), "x1", "w1", dtype="f64"), i, j)
    tiles = program("wide", (x, w, y), b, [(i, 32), (j, 64)], [(k, 48)], limits=[(k.dim, 48)])
    with knobs.scope(compiler=f"{build.compiler()[0]} -O1 {flags}"):
        launcher = Launcher(tiles)
    for rows, columns, depth in ENDS:
        for view in (padded, transposed, sliced):
            a, c = torch.randn(rows, depth).double(), torch.randn(depth, columns).double()
            (got,) = launcher(view("x", a), view("w", c))
            torch.testing.assert_close(got, a @ c, rtol=1e-13, atol=1e-13)


def test_a_load_is_guarded_only_where_it_may_leave() -> None:
    """An index stays inside its own dim, and a short one inside a longer dim; a shifted one may not."""
    n, k = Index(Atom("N"), 0), Index(Atom("K"), 1)
    x, y = tensor("x", "input", "f32", n.dim, Atom("L")), tensor("y", "output", "f32", n.dim, k.dim)
    b = Block()
    b.load("x1", (n, k), x, n, k, guarded=True, other=7)
    b.store(y, "x1", n, k)
    for size, guarded in ((40, False), (30, True)):
        known = [(k.dim, 33), (Atom("L"), size)]
        tiles = program("short", (x, y), b, [(n, 4)], [(k, 33)], names=[(n, "n"), (k, "k")], sizes=known)
        launcher = Launcher(tiles)
        assert ("inside(k" in launcher.source.text) == guarded and "inside(n" not in launcher.source.text
        value = torch.randn(5, size)
        wanted = torch.full((5, 33), 7.0)
        wanted[:, : min(33, size)] = value[:, :33]
        assert launcher(value)[0].equal(wanted)
