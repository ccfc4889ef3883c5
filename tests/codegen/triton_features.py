"""Tile programs that try one feature of the Triton emitter each: operations, reductions, contractions, loops,
index terms, strides. `own_cases` lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from cleave.ir.dims import Atom, Dim, Index, Inject, Lookup, Union, extent, term, var
from cleave.ir.ops import COARSE_ERROR, FLOATS, MAPS
from cleave.schedule.tiles import (
    ZERO,
    AlignBound,
    GridAxis,
    Kernel,
    LimitBound,
    SizeBound,
    SpanBound,
    Tensor,
    TileProgram,
    Whole,
)
from tile_examples import Block, tensor

A, B, C, D, E = (Atom(name) for name in "ABCDE")
TORCH = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8,
    "bool": torch.bool,
}  # fmt: skip
NUMPY = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32,
         "i16": np.int16, "i8": np.int8, "u8": np.uint8, "bool": np.bool_}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A tile program and one call. `view` makes the tensors that are passed from dense ones."""

    name: str
    tiles: TileProgram
    inputs: Mapping[str, Any]
    parts: Mapping[Dim, int] = field(default_factory=dict)
    view: Callable[[str, torch.Tensor], torch.Tensor] = lambda name, value: value
    tolerance: float | None = None


def program(
    name: str,
    tensors: Sequence[Tensor],
    body: Block,
    grid: Sequence[tuple[Index, int]],
    whole: Sequence[tuple[Index, int]] = (),
    lanes: Sequence[tuple[Index, ...]] = (),
    names: Sequence[tuple[Index, str]] = (),
    sizes: Sequence[tuple[Atom, int]] = (),
    limits: Sequence[tuple[Atom, int]] = (),
) -> TileProgram:
    """A tile program of one kernel."""
    kernel = Kernel(
        "main",
        tuple(tensors),
        tuple(GridAxis(*g) for g in grid),
        tuple(Whole(*w) for w in whole),
        tuple(lanes),
        tuple(body.body),
        tuple(names),
    )
    inputs = tuple(t for t in tensors if t.role in ("input", "scalar"))
    outputs = tuple(t for t in tensors if t.role == "output")
    return TileProgram(name, inputs, outputs, (), (kernel,), tuple(sizes), tuple(limits))


def random(shape: Sequence[int], dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype == "u8":
        return rng.integers(0, 9, shape).astype(np.uint8)
    if dtype not in FLOATS:
        return rng.integers(-9, 9, shape).astype(NUMPY[dtype])
    return rng.standard_normal(shape).astype(NUMPY[dtype])


# ---------------------------------------------------------------- pointwise operations

BOOLEAN = ("not", "and", "or", "xor")
COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-4, 0.62, -0.63, 3.0, -7.0, 9.0, 80.0)


def maps_case(dtype: str) -> Case:
    """Every pointwise operation that a dtype has, one output each."""
    n = Index(A, 0)
    args = [tensor(name, "input", dtype, A) for name in "xyz"]
    b = Block()
    for t in args:
        b.load(t.name + "1", (n,), t, n)
    outputs: list[Tensor] = []
    for fn, count in MAPS.items():
        if not _has(fn, dtype) or fn == "tanh_coarse":  # `coarse_case`: a GPU's results are not as near
            continue
        given = ["x1", "y1", "z1"][:count]
        if fn == "log" or fn in ("sqrt", "rsqrt", "pow"):
            given[0] = b.compute(f"positive_{fn}", (n,), "abs", "x1", dtype=dtype)
        if fn == "pow" and dtype not in FLOATS:
            given[1] = b.compute("exponent", (n,), "abs", "y1", dtype=dtype)
        if fn in ("shl", "shr"):
            given[1] = b.fill(f"places_{fn}", (), 3, dtype)
        if fn in ("div", "floordiv", "mod") and dtype not in FLOATS:
            null, three = b.fill(f"null_{fn}", (), 0, dtype), b.fill(f"three_{fn}", (), 3, dtype)
            zero = b.compute(f"zero_{fn}", (n,), "eq", "y1", null, dtype="bool")
            given[1] = b.compute(f"nonzero_{fn}", (n,), "select", zero, three, "y1", dtype=dtype)
        out = "bool" if fn in (*COMPARE, "isnan") else dtype
        outputs.append(tensor(f"out_{fn}", "output", out, A))
        b.store(outputs[-1], b.compute(f"v_{fn}", (n,), fn, *given, dtype=out), n)
    for other in ("f32", "i32", "bool") if dtype != "f64" else ("f32", "i64"):
        outputs.append(tensor(f"out_to_{other}", "output", other, A))
        b.store(outputs[-1], b.compute(f"to_{other}", (n,), "cast", "x1", dtype=other), n)
    values = {name: random((37,), dtype, seed) for seed, name in enumerate("xyz")}
    if dtype in FLOATS:
        values["x"] = values["x"] * 3
        values["x"][: len(SPECIAL)] = SPECIAL if dtype != "f16" else np.minimum(SPECIAL, 9)
        values["y"][values["y"] == 0] = 1
        values["x"][20], values["y"][21], values["x"][22] = np.nan, np.nan, -np.inf
    return Case(f"maps_{dtype}", program(f"maps_{dtype}", (*args, *outputs), b, [(n, 8)]), values)


def _has(fn: str, dtype: str) -> bool:
    if dtype == "bool":
        return fn in (*BOOLEAN, "eq", "ne", "select", "id", "cast", "max", "min")
    if fn in (*BOOLEAN, "shl", "shr"):
        return dtype not in FLOATS
    if dtype in FLOATS:
        return not (fn == "pow" and dtype == "f64")
    plain = (
        "id",
        "cast",
        "neg",
        "abs",
        "sign",
        "floor",
        "ceil",
        "round",
        "trunc",
        "add",
        "sub",
        "mul",
        "pow",
    )
    return fn in (*plain, "max", "min", "floordiv", "mod", "select", *COMPARE)


def coarse_case(dtype: str) -> Case:
    """Functions that need not be exact to the last places, which a GPU makes use of."""
    n = Index(A, 0)
    x, y = tensor("x", "input", dtype, A), tensor("y", "output", dtype, A)
    b = Block()
    b.load("x1", (n,), x, n)
    b.store(y, b.compute("v", (n,), "tanh_coarse", "x1", dtype=dtype), n)
    value = random((61,), dtype) * 3
    value[: len(SPECIAL)] = SPECIAL if dtype != "f16" else np.minimum(SPECIAL, 9)
    value[20:25] = np.nan, -np.inf, np.inf, 3e-5, -3e-5
    tolerance = {"f64": 1e-12, "f32": COARSE_ERROR, "f16": COARSE_ERROR + 2.0**-11}[dtype]
    return Case(f"coarse_{dtype}", program(f"coarse_{dtype}", (x, y), b, [(n, 8)]), {"x": value},
                tolerance=tolerance)  # fmt: skip


def powers_case() -> Case:
    """Powers with literal exponents, and literals beside tiles of each float dtype."""
    n = Index(A, 0)
    x, h = tensor("x", "input", "f32", A), tensor("h", "input", "f16", A)
    b = Block()
    b.load("x1", (n,), x, n)
    b.load("h1", (n,), h, n)
    outputs: list[Tensor] = []
    for place, value in enumerate((2, 3.0, 0.5, -0.5, -1, 1.7, 0)):
        outputs.append(tensor(f"o{place}", "output", "f32", A))
        b.fill(f"e{place}", (), value)
        b.store(outputs[-1], b.compute(f"p{place}", (n,), "pow", "x1", f"e{place}"), n)
    b.fill("tenth", (), 0.1, "f64")
    b.compute("wide", (n,), "cast", "x1", dtype="f64")
    outputs.append(tensor("d", "output", "f64", A))
    b.store(outputs[-1], b.compute("dd", (n,), "max", "wide", "tenth", dtype="f64"), n)
    b.compute("neg", (n,), "lt", "h1", "tenth", dtype="bool")
    b.fill("half", (), 0.5, "f16")
    outputs.append(tensor("s", "output", "f16", A))
    b.store(outputs[-1], b.compute("ss", (n,), "select", "neg", "half", "h1", dtype="f16"), n)
    b.compute("both", (), "add", "half", "tenth")
    outputs.append(tensor("l", "output", "f32", A))
    b.store(outputs[-1], b.compute("ll", (n,), "mul", "x1", "both"), n)
    values = {"x": np.abs(random((21,), "f32")) + np.float32(0.1), "h": random((21,), "f16", 1)}
    return Case("powers", program("powers", (x, h, *outputs), b, [(n, 8)]), values)


def scalars_case() -> Case:
    """Run-time scalars of every dtype."""
    n = Index(A, 0)
    x, y = tensor("x", "input", "f32", A), tensor("y", "output", "f32", A)
    f, d, i, t = (tensor(f"s_{k}", "scalar", k) for k in ("f32", "f64", "i64", "bool"))
    w = tensor("w", "output", "i64", A)
    b = Block()
    b.load("x1", (n,), x, n)
    for s in (f, d, i, t):
        b.load(f"v_{s.dtype}", (), s)
    b.compute("a", (n,), "mul", "x1", "v_f32")
    b.compute("c", (n,), "add", "a", "v_f64")
    b.compute("e", (n,), "select", "v_bool", "c", "x1")
    b.store(y, "e", n)
    b.locate("at", (n,), n)
    b.compute("far", (n,), "mul", "at", "v_i64", dtype="i64")
    b.compute("over", (n,), "gt", "at", "v_i64", dtype="bool")
    b.compute("out", (n,), "select", "over", "far", "at", dtype="i64")
    b.store(w, "out", n)
    values = {"x": random((19,), "f32"), "s_f32": 2.5, "s_f64": 1, "s_i64": 7, "s_bool": True}
    return Case("scalars", program("scalars", (x, f, d, i, t, y, w), b, [(n, 8)]), values)


# ---------------------------------------------------------------- reductions


def reductions_case(dtype: str, tile: int = 8) -> Case:
    """Every reduction: over a padded whole index, over one that the argument lacks, with NaN."""
    n, k, absent = Index(A, 0), Index(B, 1), Index(C, 2)
    x = tensor("x", "input", dtype, A, B)
    extra = tensor("z", "input", "f32", C)
    b = Block()
    b.load("x1", (n, k), x, n, k)
    b.load("row", (n,), x, n, term(offset=0))
    outputs: list[Tensor] = []
    kinds = ("sum", "max", "min", "prod", "any", "all") if dtype != "bool" else ("any", "all", "max", "min")
    for kind in kinds:
        out = "bool" if kind in ("any", "all") else dtype
        outputs.append(tensor(f"o_{kind}", "output", out, A))
        b.store(outputs[-1], b.reduce(f"r_{kind}", (n,), kind, (k,), "x1", dtype=out), n)
        outputs.append(tensor(f"m_{kind}", "output", out, A))
        b.store(outputs[-1], b.reduce(f"q_{kind}", (n,), kind, (absent,), "row", dtype=out), n)
    values = {"x": random((5, 11), dtype), "z": random((3,), "f32")}
    if dtype in FLOATS:
        values["x"] = (values["x"] / 2).astype(NUMPY[dtype])
        values["x"][2, 3] = np.nan
    tiles = program(f"reductions_{dtype}", (x, extra, *outputs), b, [(n, tile)], [(k, 16), (absent, 4)],
                    limits=[(B, 16), (C, 4)])  # fmt: skip
    return Case(f"reductions_{dtype}", tiles, values)


def lanes_case() -> Case:
    """Two indices in one lane: reduce one of them, both, and one that the argument lacks."""
    n, g, s = Index(A, 0), Index(B, 1), Index(C, 2)
    x, u = tensor("x", "input", "f32", A, B, C), tensor("u", "input", "f32", C)
    one, both = tensor("one", "output", "f32", A, B), tensor("both", "output", "f32", A)
    other, total = tensor("other", "output", "f32", A, C), tensor("total", "output", "f32")
    wide = tensor("wide", "output", "f32", A, B, C)
    b = Block()
    b.load("x1", (n, g, s), x, n, g, s)
    b.load("u1", (s,), u, s)
    b.store(one, b.reduce("r1", (n, g), "sum", (s,), "x1"), n, g)
    b.store(other, b.reduce("r2", (n, s), "max", (g,), "x1"), n, s)
    b.store(both, b.reduce("r3", (n,), "sum", (g, s), "x1"), n)
    b.store(total, b.reduce("r4", (), "sum", (s,), "u1"), first=(n,))
    b.store(wide, b.compute("w", (n, g, s), "mul", "x1", "u1"), n, g, s)
    tiles = program("lanes", (x, u, one, both, other, total, wide), b, [(n, 2)], [(g, 4), (s, 8)], [(g, s)],
                    limits=[(B, 4), (C, 8)])  # fmt: skip
    return Case("lanes", tiles, {"x": random((3, 3, 7), "f32"), "u": random((7,), "f32", 1)})


# ---------------------------------------------------------------- contractions


def batched_case(dtype: str, tile: int = 16) -> Case:
    """A product with a batch index in the block, K whole and not a power of two."""
    h, i, j, k = Index(A, 0), Index(B, 1), Index(C, 2), Index(D, 3)
    x, y = tensor("x", "input", dtype, A, B, D), tensor("y", "input", dtype, A, D, C)
    o = tensor("o", "output", "f32", A, B, C)
    b = Block()
    b.load("x1", (h, i, k), x, h, i, k)
    b.load("y1", (h, k, j), y, h, k, j)
    b.store(o, b.contract("c", (h, i, j), (k,), "x1", "y1"), h, i, j)
    tiles = program(
        f"batched_{dtype}", (x, y, o), b, [(h, 2), (i, tile), (j, 16)], [(k, 20)], sizes=[(D, 20)]
    )
    values = {"x": random((3, 18, 20), dtype), "y": random((3, 20, 5), dtype, 1)}
    return Case(f"batched_{dtype}", tiles, values)


def contractions_case(dtype: str) -> Case:
    """Three operands, a vector times a matrix, K in one operand only, integers, and small tiles."""
    i, j, k = Index(A, 0), Index(B, 1), Index(C, 2)
    x, y, v = (
        tensor("x", "input", dtype, A, C),
        tensor("y", "input", dtype, C, B),
        tensor("v", "input", dtype, C),
    )
    out = "f32" if dtype in ("f16", "f32") else dtype
    axes = {"three": (A, B), "vector": (B,), "lone": (A, B), "swapped": (A, B)}
    o = {name: tensor(name, "output", out, *dims) for name, dims in axes.items()}
    b = Block()
    b.load("x1", (i, k), x, i, k)
    b.load("y1", (k, j), y, k, j)
    b.load("v1", (k,), v, k)
    b.load("x0", (i,), x, i, term(offset=0))
    b.store(o["three"], b.contract("c3", (i, j), (k,), "x1", "y1", "v1", dtype=out), i, j)
    b.store(o["vector"], b.contract("cv", (j,), (k,), "v1", "y1", dtype=out), j, first=(i,))
    b.store(o["lone"], b.contract("cl", (i, j), (k,), "x0", "y1", dtype=out), i, j)
    b.store(o["swapped"], b.contract("cs", (j, i), (k,), "y1", "x1", dtype=out), i, j)
    tiles = program(f"contractions_{dtype}", (x, y, v, *o.values()), b, [(i, 4)], [(j, 8), (k, 8)],
                    limits=[(B, 8), (C, 8)])  # fmt: skip
    values = {"x": random((6, 5), dtype), "y": random((5, 7), dtype, 1), "v": random((5,), dtype, 2)}
    return Case(f"contractions_{dtype}", tiles, values)


def orders_case() -> Case:
    """Contractions whose lanes cannot all be in order: x yᵀ, then y times that, then x again."""
    i, j, k = Index(A, 0), Index(B, 1), Index(C, 2)
    x, y = tensor("x", "input", "f32", A, C), tensor("y", "input", "f32", B, C)
    o, p = tensor("o", "output", "f32", A, C), tensor("p", "output", "f32", B, C)
    b = Block()
    b.load("x1", (i, k), x, i, k)
    b.load("y1", (j, k), y, j, k)
    b.contract("s", (i, j), (k,), "x1", "y1")
    b.store(o, b.contract("t", (i, k), (j,), "s", "y1"), i, k)
    b.store(p, b.contract("u", (j, k), (i,), "s", "x1"), j, k)
    tiles = program(
        "orders", (x, y, o, p), b, [], [(i, 16), (j, 16), (k, 16)], limits=[(A, 16), (B, 16), (C, 16)]
    )
    return Case("orders", tiles, {"x": random((5, 7), "f32"), "y": random((9, 7), "f32", 1)})


def poison_case() -> Case:
    """Padded keys must not matter even where the padding turns to NaN or infinity."""
    i, k, j = Index(A, 0), Index(B, 1), Index(C, 2)
    x, y, o = (
        tensor("x", "input", "f32", A, B),
        tensor("y", "input", "f32", B, C),
        tensor("o", "output", "f32", A, C),
    )
    b = Block()
    b.load("x1", (i, k), x, i, k)
    b.load("y1", (k, j), y, k, j)
    b.compute("lx", (i, k), "log", "x1")
    b.compute("ry", (k, j), "reciprocal", "y1")
    b.store(o, b.contract("c", (i, j), (k,), "lx", "ry"), i, j)
    tiles = program("poison", (x, y, o), b, [(i, 16)], [(k, 16), (j, 16)], limits=[(B, 16), (C, 16)])
    values = {"x": np.abs(random((5, 7), "f32")) + 1, "y": np.abs(random((7, 3), "f32", 1)) + 1}
    return Case("poison", tiles, values)


# ---------------------------------------------------------------- loops


def loops_case(rows: int = 12, step: int = 3) -> Case:
    """Nested loops, tiles that are no powers of two, a scalar accumulator, a swap, a loop over single
    positions, bounds of every kind."""
    n, k, m = Index(A, 0), Index(B, 1), Index(C, 2)
    x, y = tensor("x", "input", "f32", A, B, C), tensor("y", "output", "f32", A)
    z = tensor("z", "output", "f32", A)
    b = Block()
    b.fill("zero", (), 0.0)
    b.fill("one", (), 1.0)
    b.carry("p", (), "zero")
    b.carry("q", (), "one")
    b.carry("total", (n,), "zero")
    outer = Block()
    outer.carry("part", (n,), "zero")
    inner = Block()
    inner.load("x1", (n, k, m), x, n, k, m)
    inner.reduce("r", (n,), "sum", (k, m), "x1")
    inner.compute("part1", (n,), "add", "part", "r")
    start = LimitBound("max", (ZERO, AlignBound(SpanBound(k, False, extent(-4)), 2, up=False)))
    stop = LimitBound("min", (SizeBound(extent(0, (C, 1))), SpanBound(k, True, extent(2))))
    outer.loop(m, 5, start, stop, inner, part="part1")
    outer.compute("t1", (n,), "add", "total", "part")
    b.loop(k, step, ZERO, SizeBound(extent(0, (B, 1))), outer, total="t1", p="q", q="p")
    b.compute("y1", (n,), "add", "total", "p")
    b.store(y, "y1", n)
    single = Block()
    k2, m2 = Index(B, 3), Index(C, 4)
    single.load("x2", (n,), x, n, k2, term(offset=0))
    single.compute("s1", (n,), "add", "seen", "x2")
    b.carry("seen", (n,), "zero")
    up = AlignBound(SizeBound(extent(-1, (B, 1))), 4, up=True, origin=SizeBound(extent(1)))
    b.loop(
        k2, 1, SizeBound(extent(1)), LimitBound("min", (up, SizeBound(extent(0, (B, 1))))), single, seen="s1"
    )
    b.store(z, "seen", n)
    assert m2.dim == C
    tiles = program("loops", (x, y, z), b, [(n, rows)], names=[(n, "n"), (k, "k"), (m, "m"), (k2, "k")])
    return Case("loops", tiles, {"x": random((14, 8, 11), "f32")})


def static_case() -> Case:
    """Known sizes only: no size is a parameter, no mask where tiles are full, masks where they are not."""
    n, k = Index(A, 0), Index(B, 1)
    x, y = tensor("x", "input", "f32", A, B), tensor("y", "output", "f32", B, A)
    b = Block()
    b.load("x1", (n, k), x, n, k)
    b.store(y, b.compute("e", (n, k), "exp", "x1"), k, n)
    tiles = program("static", (x, y), b, [(n, 4), (k, 8)], sizes=[(A, 12), (B, 20)])
    return Case("static", tiles, {"x": random((12, 20), "f32")})


# ---------------------------------------------------------------- index terms and layouts


def terms_case() -> Case:
    """A gather through two ids with a guard on negative ones, an affine term, a merged axis, a diagonal."""
    n, h, d = Index(A, 0), Index(B, 1), Index(C, 2)
    table = tensor("table", "input", "f32", D, (B, C))
    rows, shift = tensor("rows", "input", "i64", A), tensor("shift", "input", "i32", A, B)
    mix = tensor("mix", "input", "bool", Union((B, C)))
    y = tensor("y", "output", "f32", A, (B, C))
    flags = tensor("flags", "output", "bool", A, C)
    b = Block()
    b.load("r1", (n,), rows, n)
    b.load("s1", (n, h), shift, n, h)
    spot = term((Lookup("s1"), 2), (d, 1), offset=-1)
    b.load("t1", (n, h, d), table, Lookup("r1"), h, spot, guarded=True, other=7.0)
    b.load("m1", (d,), mix, Inject(1, var(d)))
    b.load("mh", (h,), mix, Inject(0, var(h)))
    b.compute("chosen", (h, d), "and", "m1", "mh", dtype="bool")
    b.fill("none", (), -1.5)
    b.compute("y1", (n, h, d), "select", "chosen", "t1", "none")
    b.store(y, "y1", n, h, d)
    b.locate("at", (d,), term((d, 2), offset=extent(3, (C, -1))))
    b.locate("an", (n,), n, dtype="i32")
    b.compute("flag", (n, d), "lt", "at", "an", dtype="bool")
    b.store(flags, "flag", n, d, first=(h,))
    values = {
        "table": random((6, 15), "f32"),
        "rows": np.array([0, 5, -1, 3, 6, 2, 2], np.int64),
        "shift": random((7, 3), "i32", 1) % 3 - 1,
        "mix": random((8,), "bool", 2),
    }
    tiles = program("terms", (table, rows, shift, mix, y, flags), b, [(n, 4), (h, 1), (d, 4)])
    return Case("terms", tiles, values)


def strided(name: str, value: torch.Tensor) -> torch.Tensor:
    """The same values in memory that is neither dense nor aligned."""
    if name == "x":
        return value.t().contiguous().t()
    big = torch.zeros([*(2 * n for n in value.shape), 3], dtype=value.dtype)
    view = big[tuple(slice(1, 2 * n, 2) for n in value.shape)][..., 1]
    view.copy_(value)
    return view


def far(name: str, value: torch.Tensor) -> torch.Tensor:
    """Rows so far apart that the last one starts past element 2^31; untouched pages cost nothing."""
    rows, columns = value.shape
    step = (1 << 31) // (rows - 1) + 5
    buffer = torch.empty((rows - 1) * step + columns, dtype=value.dtype)
    view = buffer.as_strided(value.shape, (step, 1))
    view.copy_(value)
    return view


def copy_case(name: str, view: Callable[[str, torch.Tensor], torch.Tensor], shape: tuple[int, int]) -> Case:
    n, k = Index(A, 0), Index(B, 1)
    x, y = tensor("x", "input", "i8", A, B), tensor("y", "output", "i8", A, B)
    b = Block()
    b.load("x1", (n, k), x, n, k)
    b.store(y, "x1", n, k)
    return Case(name, program(name, (x, y), b, [(n, 2), (k, 8)]), {"x": random(shape, "i8")}, view=view)


def no_columns_case(tile: int) -> Case:
    """An output that lacks a grid index is written even where that index is empty."""
    n, k = Index(A, 0), Index(B, 1)
    x, u = tensor("x", "input", "f32", A, B), tensor("u", "input", "f32", A)
    y, v = tensor("y", "output", "f32", A, B), tensor("v", "output", "f32", A)
    b = Block()
    b.load("x1", (n, k), x, n, k)
    b.load("u1", (n,), u, n)
    b.store(y, "x1", n, k)
    b.store(v, "u1", n, first=(k,))
    tiles = program(f"no_columns_{tile}", (x, u, y, v), b, [(n, 2), (k, tile)])
    return Case(f"no_columns_{tile}", tiles, {"x": random((5, 0), "f32"), "u": random((5,), "f32")})


def stretched(name: str, value: torch.Tensor) -> torch.Tensor:
    """The first row, repeated with a stride of 0."""
    return value[:1].expand(value.shape)


# ---------------------------------------------------------------- all of them


def own_cases() -> list[Case]:
    return [
        *(maps_case(dtype) for dtype in ("f32", "f64", "f16", "i64", "i32", "i8", "bool")),
        *(coarse_case(dtype) for dtype in ("f32", "f64", "f16")),
        powers_case(),
        scalars_case(),
        *(reductions_case(dtype) for dtype in ("f32", "f64", "f16", "i64", "i8", "u8", "bool")),
        lanes_case(),
        *(batched_case(dtype) for dtype in ("f32", "f16")),
        batched_case("f32", 2),
        *(contractions_case(dtype) for dtype in ("f32", "f16", "f64", "i64")),
        orders_case(),
        poison_case(),
        loops_case(),
        static_case(),
        terms_case(),
        copy_case("far", far, (4, 13)),
        copy_case("stretched", stretched, (4, 13)),
        copy_case("empty", lambda name, value: value, (4, 0)),
        no_columns_case(8),
        no_columns_case(1),
    ]
