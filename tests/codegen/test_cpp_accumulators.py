"""Accumulators of the C++ backend: which share a room, which start a product, and those without indices."""

from __future__ import annotations

import math

import numpy as np
import torch
from test_cpp import assert_close, attention_f32
from triton_features import program

from cleave.codegen import cpp
from cleave.ir.dims import Atom, Index
from cleave.runtime.launch import Launcher
from cleave.schedule.interpret import run
from cleave.schedule.tiles import ZERO
from tile_builder import Block, size_bound, tensor

A, B, C, D, E = (Atom(name) for name in "ABCDE")


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
