"""Tile programs written by hand, each with a NumPy reference: what interpreter and emitters are tested on.

Every builder takes tile sizes and returns an `Example`. `EXAMPLES` holds one of each with tiles that suit
a GPU (powers of two, 16 or more where matrix units want it). `make_inputs(sizes, rng)` gives the arguments
by name in the program's order: float arrays are float32 or float64 and hold values that the tensor's dtype
can hold exactly, ids are int64, scalars are Python numbers. `reference` works in float64 and returns outputs
in the caller's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cleave.ir.dims import (
    Atom,
    Dim,
    Index,
    Inject,
    Lookup,
    Parts,
    Union,
    extent,
    term,
    var,
)
from cleave.schedule.tiles import (
    ZERO,
    AlignBound,
    GridAxis,
    Kernel,
    PartBound,
    TileProgram,
    Whole,
)
from tile_attention import attention, attention_split
from tile_builder import (
    INF,
    TOLERANCE,
    Block,
    Example,
    Inputs,
    Sizes,
    rounded,
    size_bound,
    tensor,
)

# ---------------------------------------------------------------- (a) row softmax

N, K, OUT = Atom("N"), Atom("K"), Atom("O")


def _softmax_inputs(sizes: Sizes, rng: np.random.Generator) -> Inputs:
    return {"x": rng.standard_normal((sizes["N"], sizes["K"])).astype(np.float32) * 4}


def _softmax_reference(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    x = inputs["x"].astype(np.float64)
    e = np.exp(x - x.max(axis=1, keepdims=True, initial=-INF))
    return {"y": e / e.sum(axis=1, keepdims=True)}


_SOFTMAX_SIZES = (
    {"N": 5, "K": 37},
    {"N": 1, "K": 1},
    {"N": 33, "K": 64},
    {"N": 4, "K": 17},
    {"N": 0, "K": 3},
)


def softmax_keep(n_tile: int = 4, limit: int = 128) -> Example:
    """Row softmax that keeps a row in registers: `K` is whole, up to a limit."""
    x, y = tensor("x", "input", "f32", N, K), tensor("y", "output", "f32", N, K)
    n, k = Index(N, 0), Index(K, 1)
    b = Block()
    b.load("x1", (n, k), x, n, k)
    b.reduce("m", (n,), "max", (k,), "x1")
    b.compute("c", (n, k), "sub", "x1", "m")
    b.compute("e", (n, k), "exp", "c")
    b.reduce("l", (n,), "sum", (k,), "e")
    b.compute("y1", (n, k), "div", "e", "l")
    b.store(y, "y1", n, k)
    kernel = Kernel(
        "rows", (x, y), (GridAxis(n, n_tile),), (Whole(k, limit),), (), tuple(b.body), ((n, "n"), (k, "k"))
    )
    tiles = TileProgram("softmax_keep", (x,), (y,), (), (kernel,), (), ((K, limit),))
    return Example("softmax_keep", tiles, _softmax_reference, _softmax_inputs, _SOFTMAX_SIZES)


def softmax_loops(n_tile: int = 4, k_tile: int = 16) -> Example:
    """Row softmax in two loops: one carries the running maximum and sum, the other maps."""
    x, y = tensor("x", "input", "f32", N, K), tensor("y", "output", "f32", N, K)
    n, k, k2 = Index(N, 0), Index(K, 1), Index(K, 2)
    b = Block()
    b.fill("zero", (), 0.0)
    b.fill("none", (), -INF)
    b.fill("m0", (n,), -INF)
    b.fill("l0", (n,), 0.0)
    b.carry("m", (n,), "m0")
    b.carry("l", (n,), "l0")
    s = Block()
    s.load("x1", (n, k), x, n, k)
    s.reduce("mt", (n,), "max", (k,), "x1")
    s.compute("m1", (n,), "max", "m", "mt")
    s.compute("unseen", (n,), "eq", "m1", "none", dtype="bool")
    s.compute("safe", (n,), "select", "unseen", "zero", "m1")
    s.compute("c", (n, k), "sub", "x1", "safe")
    s.compute("e", (n, k), "exp", "c")
    s.reduce("lt", (n,), "sum", (k,), "e")
    s.compute("back", (n,), "sub", "m", "safe")
    s.compute("r", (n,), "exp", "back")
    s.compute("lr", (n,), "mul", "l", "r")
    s.compute("l1", (n,), "add", "lr", "lt")
    b.loop(k, k_tile, ZERO, size_bound(K), s, m="m1", l="l1")
    s = Block()
    s.load("x2", (n, k2), x, n, k2)
    s.compute("c2", (n, k2), "sub", "x2", "m")
    s.compute("e2", (n, k2), "exp", "c2")
    s.compute("y1", (n, k2), "div", "e2", "l")
    s.store(y, "y1", n, k2)
    b.loop(k2, k_tile, ZERO, size_bound(K), s)
    names = ((n, "n"), (k, "k"), (k2, "k2"))
    kernel = Kernel("rows", (x, y), (GridAxis(n, n_tile),), (), (), tuple(b.body), names)
    tiles = TileProgram("softmax_loops", (x,), (y,), (), (kernel,))
    return Example("softmax_loops", tiles, _softmax_reference, _softmax_inputs, _SOFTMAX_SIZES)


# ---------------------------------------------------------------- (b), (c) matmul


def _matmul_inputs(dtype: str) -> Callable[[Sizes, np.random.Generator], Inputs]:
    def make(sizes: Sizes, rng: np.random.Generator) -> Inputs:
        x = rng.standard_normal((sizes["N"], sizes["K"]))
        w = rng.standard_normal((sizes["O"], sizes["K"]))
        return {"x": rounded(x, dtype), "w": rounded(w, dtype)}

    return make


def _matmul_reference(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {"y": inputs["x"].astype(np.float64) @ inputs["w"].astype(np.float64).T}


_MATMUL_SIZES = (
    {"N": 5, "O": 7, "K": 37},
    {"N": 1, "O": 1, "K": 1},
    {"N": 33, "O": 32, "K": 64},
    {"N": 16, "O": 17, "K": 13},
    {"N": 3, "O": 4, "K": 0},
)


def matmul(n_tile: int = 16, o_tile: int = 16, k_tile: int = 16, dtype: str = "f32") -> Example:
    """y[n, o] = sum_k x[n, k] w[o, k]: an exact interior loop over k and a tail."""
    x, w = tensor("x", "input", dtype, N, K), tensor("w", "input", dtype, OUT, K)
    y = tensor("y", "output", dtype, N, OUT)
    n, o, k = Index(N, 0), Index(OUT, 1), Index(K, 2)
    b = Block()
    b.fill("acc0", (n, o), 0.0)
    b.carry("acc", (n, o), "acc0")
    s = Block()
    s.load("x1", (n, k), x, n, k)
    s.load("w1", (o, k), w, o, k)
    s.contract("xw", (n, o), (k,), "x1", "w1")
    s.compute("acc1", (n, o), "add", "acc", "xw")
    whole_tiles = AlignBound(size_bound(K), k_tile, up=False)
    b.loop(k, k_tile, ZERO, whole_tiles, s, exact=True, acc="acc1")
    b.loop(k, k_tile, whole_tiles, size_bound(K), s, acc="acc1")
    last = b.compute("y1", (n, o), "cast", "acc", dtype=dtype) if dtype != "f32" else "acc"
    b.store(y, last, n, o)
    grid = (GridAxis(n, n_tile), GridAxis(o, o_tile))
    kernel = Kernel("main", (x, w, y), grid, (), (), tuple(b.body), ((n, "n"), (o, "o"), (k, "k")), 4, 3)
    name = f"matmul_{dtype}"
    tiles = TileProgram(name, (x, w), (y,), (), (kernel,))
    return Example(
        name, tiles, _matmul_reference, _matmul_inputs(dtype), _MATMUL_SIZES, tolerance=TOLERANCE[dtype]
    )


def matmul_split(n_tile: int = 16, o_tile: int = 16, k_tile: int = 16, part_tile: int = 1) -> Example:
    """The same, split over blocks along k: partial sums in a workspace, a second kernel adds them up."""
    x, w, y = (
        tensor("x", "input", "f32", N, K),
        tensor("w", "input", "f32", OUT, K),
        tensor("y", "output", "f32", N, OUT),
    )
    part = tensor("sums", "workspace", "f32", Parts(K), N, OUT)
    p, n, o, k = Index(Parts(K), 0), Index(N, 1), Index(OUT, 2), Index(K, 3)
    b = Block()
    b.fill("acc0", (n, o), 0.0)
    b.carry("acc", (n, o), "acc0")
    s = Block()
    s.load("x1", (n, k), x, n, k)
    s.load("w1", (o, k), w, o, k)
    s.contract("xw", (n, o), (k,), "x1", "w1")
    s.compute("acc1", (n, o), "add", "acc", "xw")
    b.loop(k, k_tile, PartBound(p, end=False), PartBound(p, end=True), s, acc="acc1")
    b.store(part, "acc", p, n, o)
    grid = (GridAxis(p, 1), GridAxis(n, n_tile), GridAxis(o, o_tile))
    names = ((p, "p"), (n, "n"), (o, "o"), (k, "k"))
    main = Kernel("main", (x, w, part), grid, (), (), tuple(b.body), names)

    n, o, p = Index(N, 0), Index(OUT, 1), Index(Parts(K), 2)
    b = Block()
    b.fill("acc0", (n, o), 0.0)
    b.carry("acc", (n, o), "acc0")
    s = Block()
    s.load("a", (p, n, o), part, p, n, o)
    s.reduce("a1", (n, o), "sum", (p,), "a")
    s.compute("acc1", (n, o), "add", "acc", "a1")
    b.loop(p, part_tile, ZERO, size_bound(Parts(K)), s, acc="acc1")
    b.store(y, "acc", n, o)
    grid = (GridAxis(n, n_tile), GridAxis(o, o_tile))
    merge = Kernel("merge", (part, y), grid, (), (), tuple(b.body), ((n, "n"), (o, "o"), (p, "p")))
    tiles = TileProgram("matmul_split", (x, w), (y,), (part,), (main, merge), splits=(K,))
    parts: tuple[dict[Dim, int], ...] = ({K: 1}, {K: 3}, {K: 50})
    return Example(
        "matmul_split",
        tiles,
        _matmul_reference,
        _matmul_inputs("f32"),
        _MATMUL_SIZES,
        parts,
        TOLERANCE["f32"],
    )


# ---------------------------------------------------------------- (d) norm and projection in one loop


def norm_linear(n_tile: int = 16, o_tile: int = 16, k_tile: int = 16, dtype: str = "f32") -> Example:
    """y[n, o] = sum_k x[n, k] g[k] w[o, k] / sqrt(mean_k x[n, k]² + eps): one loop carries both sums."""
    x, g, w = (
        tensor("x", "input", dtype, N, K),
        tensor("g", "input", dtype, K),
        tensor("w", "input", dtype, OUT, K),
    )
    eps, y = tensor("eps", "scalar", "f32"), tensor("y", "output", dtype, N, OUT)
    n, o, k = Index(N, 0), Index(OUT, 1), Index(K, 2)
    b = Block()
    b.fill("acc0", (n, o), 0.0)
    b.fill("sq0", (n,), 0.0)
    b.carry("acc", (n, o), "acc0")
    b.carry("sq", (n,), "sq0")
    s = Block()
    s.load("x1", (n, k), x, n, k)
    s.load("g1", (k,), g, k)
    s.load("w1", (o, k), w, o, k)
    s.compute("xg", (n, k), "mul", "x1", "g1", dtype=dtype)
    s.contract("xw", (n, o), (k,), "xg", "w1")
    s.compute("acc1", (n, o), "add", "acc", "xw")
    s.compute("xx", (n, k), "mul", "x1", "x1")
    s.reduce("xs", (n,), "sum", (k,), "xx")
    s.compute("sq1", (n,), "add", "sq", "xs")
    b.loop(k, k_tile, ZERO, size_bound(K), s, acc="acc1", sq="sq1")
    b.measure("size", extent(0, (K, 1)))
    b.load("eps1", (), eps)
    b.compute("mean", (n,), "div", "sq", "size")
    b.compute("shifted", (n,), "add", "mean", "eps1")
    b.compute("r", (n,), "rsqrt", "shifted")
    b.compute("y1", (n, o), "mul", "acc", "r")
    last = b.compute("y2", (n, o), "cast", "y1", dtype=dtype) if dtype != "f32" else "y1"
    b.store(y, last, n, o)
    grid = (GridAxis(n, n_tile), GridAxis(o, o_tile))
    names = ((n, "n"), (o, "o"), (k, "k"))
    kernel = Kernel("main", (x, g, w, eps, y), grid, (), (), tuple(b.body), names)

    def make(sizes: Sizes, rng: np.random.Generator) -> Inputs:
        shapes = {"x": ("N", "K"), "g": ("K",), "w": ("O", "K")}
        made: Inputs = {
            name: rounded(rng.standard_normal([sizes[d] for d in dims]), dtype)
            for name, dims in shapes.items()
        }
        return {**made, "eps": 1e-5}

    def reference(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        x, g, w = (inputs[name].astype(np.float64) for name in "xgw")
        r = 1 / np.sqrt((x * x).mean(axis=1, keepdims=True) + inputs["eps"])
        return {"y": (x * g * r) @ w.T}

    name = f"norm_linear_{dtype}"
    tiles = TileProgram(name, (x, g, w, eps), (y,), (), (kernel,))
    return Example(name, tiles, reference, make, _MATMUL_SIZES[:-1], tolerance=TOLERANCE[dtype])


# ---------------------------------------------------------------- (g) index terms

A, J, V = Atom("A"), Atom("J"), Atom("V")


def index_terms(a_tile: int = 8, j_tile: int = 16, shift: int = 3) -> Example:
    """y[j, a] = table[ids[a], j] + 2 * z[a, j - shift] (0 outside) + c[a, |J| + j], c's last axis being
    J ⊔ J; and a second output n[a] = ids[a] * |J|, stored by the blocks where j is 0. A gather, a guarded
    shift, an injection, a transposed store, integers."""
    table, ids = tensor("table", "input", "f32", V, J), tensor("ids", "input", "i64", A)
    z, c = tensor("z", "input", "f32", A, J), tensor("c", "input", "f32", A, Union((J, J)))
    y, count = tensor("y", "output", "f32", J, A), tensor("n", "output", "i64", A)
    a, j = Index(A, 0), Index(J, 1)
    b = Block()
    b.load("ids1", (a,), ids, a)
    b.load("row", (a, j), table, Lookup("ids1"), j)
    b.load("z1", (a, j), z, a, term((j, 1), offset=-shift), guarded=True)
    b.load("c1", (a, j), c, a, Inject(1, var(j)))
    b.fill("two", (), 2.0)
    b.compute("z2", (a, j), "mul", "z1", "two")
    b.compute("rz", (a, j), "add", "row", "z2")
    b.compute("y1", (a, j), "add", "rz", "c1")
    b.store(y, "y1", j, a)
    b.measure("jsize", extent(0, (J, 1)), dtype="i64")
    b.compute("n1", (a,), "mul", "ids1", "jsize", dtype="i64")
    b.store(count, "n1", a, first=(j,))
    grid = (GridAxis(a, a_tile), GridAxis(j, j_tile))
    kernel = Kernel("main", (table, ids, z, c, y, count), grid, (), (), tuple(b.body), ((a, "a"), (j, "j")))

    def make(sizes: Sizes, rng: np.random.Generator) -> Inputs:
        shapes = {"table": ("V", "J"), "z": ("A", "J")}
        made = {
            n: rounded(rng.standard_normal([sizes[d] for d in dims]), "f32") for n, dims in shapes.items()
        }
        picks = rng.integers(0, sizes["V"], sizes["A"])
        extra = rounded(rng.standard_normal((sizes["A"], 2 * sizes["J"])), "f32")
        return {"table": made["table"], "ids": picks, "z": made["z"], "c": extra}

    def reference(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        z, ids = inputs["z"].astype(np.float64), inputs["ids"]
        width = z.shape[1]
        shifted = np.zeros_like(z)
        shifted[:, shift:] = z[:, : max(0, width - shift)]
        y = inputs["table"].astype(np.float64)[ids] + 2 * shifted + inputs["c"][:, width:]
        return {"y": y.T, "n": ids * width}

    sizes = ({"A": 5, "J": 19, "V": 11}, {"A": 1, "J": 1, "V": 1}, {"A": 17, "J": 32, "V": 3})
    tiles = TileProgram("index_terms", (table, ids, z, c), (y, count), (), (kernel,))
    return Example("index_terms", tiles, reference, make, sizes)


EXAMPLES: tuple[Example, ...] = (
    softmax_keep(),
    softmax_loops(),
    *(matmul(dtype=dtype) for dtype in ("f32", "f16", "bf16")),
    matmul_split(),
    *(norm_linear(dtype=dtype) for dtype in ("f32", "f16", "bf16")),
    *(attention(group=group) for group in ("whole", "grid", "one")),
    *(attention(dtype=dtype) for dtype in ("f16", "bf16")),
    *(attention_split(dtype=dtype) for dtype in ("f32", "f16", "bf16")),
    index_terms(),
)
