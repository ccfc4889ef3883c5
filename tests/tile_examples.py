"""Tile programs written by hand, each with a NumPy reference: what interpreter and emitters are tested on.

Every builder takes tile sizes and returns an `Example`. `EXAMPLES` holds one of each with tiles that suit
a GPU (powers of two, 16 or more where matrix units want it). `make_inputs(sizes, rng)` gives the arguments
by name in the program's order: float arrays are float32 or float64 and hold values that the tensor's dtype
can hold exactly, ids are int64, scalars are Python numbers. `reference` works in float64 and returns outputs
in the caller's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cleave.ir.dims import (
    Atom,
    Dim,
    Extent,
    Index,
    Inject,
    Leaf,
    Lookup,
    Parts,
    Term,
    Union,
    extent,
    term,
    var,
)
from cleave.schedule.tiles import (
    ZERO,
    AlignBound,
    Bound,
    Carry,
    Compute,
    ContractTile,
    Fill,
    GridAxis,
    Kernel,
    LimitBound,
    Load,
    Locate,
    Loop,
    Measure,
    PartBound,
    ReduceTile,
    SizeBound,
    SpanBound,
    Statement,
    Store,
    Tensor,
    TileProgram,
    Whole,
)

Inputs = dict[str, Any]
Sizes = Mapping[str, int]
INF = float("inf")


@dataclass(frozen=True)
class Example:
    """A tile program, what it should compute, and calls it must survive. `sizes` maps atom names to sizes,
    fixed atoms included; `parts` lists part counts to try for the split dims."""

    name: str
    tiles: TileProgram
    reference: Callable[[Mapping[str, Any]], dict[str, np.ndarray]]
    make_inputs: Callable[[Sizes, np.random.Generator], Inputs]
    sizes: tuple[dict[str, int], ...]
    parts: tuple[dict[Dim, int], ...] = field(default_factory=lambda: ({},))
    tolerance: float = 1e-5
    """Allowed error, relative to the largest value, of an emitter that works in the program's dtypes."""


# ---------------------------------------------------------------- building blocks


def axis_of(*dims: Dim) -> tuple[Dim, ...]:
    return dims


def tensor(name: str, role: str, dtype: str, *layout: Dim | tuple[Dim, ...]) -> Tensor:
    groups = tuple(group if isinstance(group, tuple) else (group,) for group in layout)
    return Tensor(name, role, dtype, groups)


def to_term(where: Leaf | Term) -> Term:
    return where if isinstance(where, Term) else var(where)


class Block:
    """A list of statements under construction; each method appends one and returns the value's name."""

    def __init__(self) -> None:
        self.body: list[Statement] = []

    def _add(self, statement: Any) -> str:
        self.body.append(statement)
        return statement.out

    def load(
        self,
        out: str,
        axes: Sequence[Index],
        source: Tensor,
        *terms: Leaf | Term,
        guarded: bool = False,
        other: Any = 0,
    ) -> str:
        where = tuple(map(to_term, terms))
        return self._add(Load(out, tuple(axes), source.dtype, source.name, where, guarded, other))

    def fill(self, out: str, axes: Sequence[Index], value: Any, dtype: str = "f32") -> str:
        return self._add(Fill(out, tuple(axes), dtype, value))

    def measure(self, out: str, size: Extent, dtype: str = "f32") -> str:
        return self._add(Measure(out, dtype, size))

    def locate(self, out: str, axes: Sequence[Index], where: Leaf | Term, dtype: str = "i64") -> str:
        return self._add(Locate(out, tuple(axes), dtype, to_term(where)))

    def compute(self, out: str, axes: Sequence[Index], fn: str, *args: str, dtype: str = "f32") -> str:
        return self._add(Compute(out, tuple(axes), dtype, fn, args))

    def reduce(
        self, out: str, axes: Sequence[Index], kind: str, over: Sequence[Index], arg: str, dtype: str = "f32"
    ) -> str:
        return self._add(ReduceTile(out, tuple(axes), dtype, kind, tuple(over), arg))

    def contract(
        self, out: str, axes: Sequence[Index], over: Sequence[Index], *args: str, dtype: str = "f32"
    ) -> str:
        return self._add(ContractTile(out, tuple(axes), dtype, tuple(over), args))

    def carry(self, out: str, axes: Sequence[Index], init: str, dtype: str = "f32") -> str:
        return self._add(Carry(out, tuple(axes), dtype, init))

    def loop(
        self,
        index: Index,
        tile: int,
        start: Bound,
        stop: Bound,
        inner: Block,
        exact: bool = False,
        **updates: str,
    ) -> None:
        self.body.append(Loop(index, tile, start, stop, exact, tuple(inner.body), tuple(updates.items())))

    def store(self, target: Tensor, value: str, *terms: Leaf | Term, first: Sequence[Index] = ()) -> None:
        self.body.append(Store(target.name, tuple(map(to_term, terms)), value, tuple(first)))


def size_bound(*dims: Dim) -> SizeBound:
    return SizeBound(extent(0, *((d, 1) for d in dims)))


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Float32 values that `dtype` holds exactly."""
    if dtype == "f64":
        return values.astype(np.float64)
    if dtype == "f16":
        return values.astype(np.float16).astype(np.float32)
    narrow = values.astype(np.float32)
    if dtype == "bf16":
        bits = narrow.view(np.uint32)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return bits.astype(np.uint32).view(np.float32)
    return narrow


TOLERANCE = {"f64": 1e-12, "f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}


# ---------------------------------------------------------------- (a) row softmax

N, K, O = Atom("N"), Atom("K"), Atom("O")


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
    x, w = tensor("x", "input", dtype, N, K), tensor("w", "input", dtype, O, K)
    y = tensor("y", "output", dtype, N, O)
    n, o, k = Index(N, 0), Index(O, 1), Index(K, 2)
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
        tensor("w", "input", "f32", O, K),
        tensor("y", "output", "f32", N, O),
    )
    part = tensor("part", "workspace", "f32", Parts(K), N, O)
    p, n, o, k = Index(Parts(K), 0), Index(N, 1), Index(O, 2), Index(K, 3)
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

    n, o, p = Index(N, 0), Index(O, 1), Index(Parts(K), 2)
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
        tensor("w", "input", dtype, O, K),
    )
    eps, y = tensor("eps", "scalar", "f32"), tensor("y", "output", dtype, N, O)
    n, o, k = Index(N, 0), Index(O, 1), Index(K, 2)
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


# ---------------------------------------------------------------- (e), (f) causal attention, grouped heads

KV, G, S, T, D = Atom("KV"), Atom("G"), Atom("S"), Atom("T"), Atom("D")


def _attention_inputs(dtype: str) -> Callable[[Sizes, np.random.Generator], Inputs]:
    def make(sizes: Sizes, rng: np.random.Generator) -> Inputs:
        kv, g, s, t, d = (sizes[name] for name in ("KV", "G", "S", "T", "D"))
        q = rounded(rng.standard_normal((kv * g, s, d)) * 2, dtype)
        k = rounded(rng.standard_normal((kv, t, d)), dtype)
        v = rounded(rng.standard_normal((kv, t, d)), dtype)
        return {"q": q, "k": k, "v": v, "scale": d**-0.5}

    return make


def _attention_reference(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Softmax of masked scores, as written: a row that sees nothing is NaN, its log-sum-exp is -inf."""
    q, k, v = (inputs[name].astype(np.float64) for name in "qkv")
    kv, t, d = k.shape
    heads, s, _ = q.shape
    q = q.reshape(kv, heads // kv, s, d)
    scores = np.einsum("hgsd,htd->hgst", q, k) * inputs["scale"]
    seen = np.arange(t)[None, :] <= np.arange(s)[:, None] + t - s
    scores = np.where(seen, scores, -INF)
    with np.errstate(invalid="ignore", divide="ignore"):
        m = scores.max(axis=-1, keepdims=True, initial=-INF)
        p = np.exp(scores - np.where(m == -INF, 0, m))
        total = p.sum(axis=-1, keepdims=True)
        o = np.einsum("hgst,htd->hgsd", p / total, v) if t else np.full(q.shape, np.nan)
        o = np.where(total == 0, np.nan, o)
        lse = (m + np.log(total))[..., 0]
    return {"o": o.reshape(heads, s, d), "lse": lse.reshape(heads, s)}


_ATTENTION_SIZES = (
    {"KV": 2, "G": 3, "S": 5, "T": 37, "D": 16},
    {"KV": 1, "G": 1, "S": 1, "T": 1, "D": 16},
    {"KV": 2, "G": 2, "S": 33, "T": 33, "D": 16},
    {"KV": 1, "G": 4, "S": 17, "T": 64, "D": 16},
    {"KV": 3, "G": 2, "S": 20, "T": 7, "D": 16},
)


def _attention_tensors(dtype: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        tensor("q", "input", dtype, axis_of(KV, G), S, D),
        tensor("k", "input", dtype, KV, T, D),
        tensor("v", "input", dtype, KV, T, D),
        tensor("scale", "scalar", "f32"),
        tensor("o", "output", dtype, axis_of(KV, G), S, D),
        tensor("lse", "output", "f32", axis_of(KV, G), S),
    )


def _attention_step(
    h: Index,
    rows: tuple[Index, ...],
    s: Index,
    t: Index,
    d: Index,
    d2: Index,
    k: Tensor,
    v: Tensor,
    *,
    masked: bool,
) -> Block:
    """One tile of keys: the accumulators `m`, `l`, `acc` become `m1`, `l1`, `acc1`."""
    b = Block()
    b.load("k1", (t, d), k, h, t, d)
    b.contract("qk", (*rows, t), (d,), "q1", "k1")
    last = b.compute("sc", (*rows, t), "mul", "qk", "scale1")
    if masked:
        b.locate("tpos", (t,), t)
        b.locate("spos", (s,), term((s, 1), offset=extent(0, (T, 1), (S, -1))))
        b.compute("seen", (s, t), "le", "tpos", "spos", dtype="bool")
        last = b.compute("sm", (*rows, t), "select", "seen", "sc", "none")
    b.reduce("mt", rows, "max", (t,), last)
    b.compute("m1", rows, "max", "m", "mt")
    b.compute("unseen", rows, "eq", "m1", "none", dtype="bool")
    b.compute("safe", rows, "select", "unseen", "zero", "m1")
    b.compute("c", (*rows, t), "sub", last, "safe")
    b.compute("e", (*rows, t), "exp", "c")
    b.compute("back", rows, "sub", "m", "safe")
    b.compute("r", rows, "exp", "back")
    b.reduce("lt", rows, "sum", (t,), "e")
    b.compute("lr", rows, "mul", "l", "r")
    b.compute("l1", rows, "add", "lr", "lt")
    b.load("v1", (t, d2), v, h, t, d2)
    weights = b.compute("ec", (*rows, t), "cast", "e", dtype=v.dtype) if v.dtype != "f32" else "e"
    b.contract("ev", (*rows, d2), (t,), weights, "v1")
    b.compute("ar", (*rows, d2), "mul", "acc", "r")
    b.compute("acc1", (*rows, d2), "add", "ar", "ev")
    return b


def _attention_start(b: Block, rows: tuple[Index, ...], d2: Index) -> None:
    b.fill("zero", (), 0.0)
    b.fill("none", (), -INF)
    b.fill("m0", rows, -INF)
    b.fill("l0", rows, 0.0)
    b.fill("acc0", (*rows, d2), 0.0)
    b.carry("m", rows, "m0")
    b.carry("l", rows, "l0")
    b.carry("acc", (*rows, d2), "acc0")


def _attention_finish(
    b: Block, rows: tuple[Index, ...], d2: Index, h: Index, g: Index, s: Index, o: Tensor, lse: Tensor
) -> None:
    b.compute("o1", (*rows, d2), "div", "acc", "l")
    last = b.compute("o2", (*rows, d2), "cast", "o1", dtype=o.dtype) if o.dtype != "f32" else "o1"
    b.compute("ll", rows, "log", "l")
    b.compute("lse1", rows, "add", "m", "ll")
    b.store(o, last, h, g, s, d2)
    b.store(lse, "lse1", h, g, s)


def attention(
    s_tile: int = 16,
    t_tile: int = 16,
    g_tile: int = 4,
    width: int = 16,
    *,
    group: str = "whole",
    dtype: str = "f32",
) -> Example:
    """Causal attention (aligned at the bottom right) with grouped heads and the log-sum-exp as a second
    output: an exact interior loop with no mask, then the border. `group` says how the heads of a group are
    spread: `whole` (each block has all of them: (g, s) are rows together), `grid` (tiles of g, rows
    together) or `one` (a head per block)."""
    q, k, v, scale, o, lse = tensors = _attention_tensors(dtype)
    h, g, s, t, d, d2 = Index(KV, 0), Index(G, 1), Index(S, 2), Index(T, 3), Index(D, 4), Index(D, 5)
    rows = (g, s)
    b = Block()
    b.load("q1", (g, s, d), q, h, g, s, d)
    b.load("scale1", (), scale)
    _attention_start(b, rows, d2)
    seen_by_first = SpanBound(s, end=False, offset=extent(1, (T, 1), (S, -1)))
    interior = LimitBound("max", (ZERO, AlignBound(seen_by_first, t_tile, up=False)))
    stop = LimitBound("min", (SpanBound(s, end=True, offset=extent(0, (T, 1), (S, -1))), size_bound(T)))
    carried = {"m": "m1", "l": "l1", "acc": "acc1"}
    step = _attention_step(h, rows, s, t, d, d2, k, v, masked=False)
    b.loop(t, t_tile, ZERO, interior, step, exact=True, **carried)
    step = _attention_step(h, rows, s, t, d, d2, k, v, masked=True)
    b.loop(t, t_tile, interior, stop, step, **carried)
    _attention_finish(b, rows, d2, h, g, s, o, lse)
    whole = (Whole(d, width), Whole(d2, width))
    limits: tuple[tuple[Atom, int], ...] = ()
    if group == "whole":
        grid, whole, limits = (
            (GridAxis(h, 1), GridAxis(s, s_tile)),
            (Whole(g, g_tile), *whole),
            ((G, g_tile),),
        )
    else:
        grid = (GridAxis(h, 1), GridAxis(g, g_tile if group == "grid" else 1), GridAxis(s, s_tile))
    names = ((h, "h"), (g, "g"), (s, "s"), (t, "t"), (d, "d"), (d2, "d2"))
    kernel = Kernel("main", tensors, grid, whole, ((g, s),), tuple(b.body), names)
    name = f"attention_{group}_{dtype}"
    tiles = TileProgram(name, (q, k, v, scale), (o, lse), (), (kernel,), ((D, width),), limits)
    sizes = tuple({**call, "D": width} for call in _ATTENTION_SIZES)
    return Example(
        name, tiles, _attention_reference, _attention_inputs(dtype), sizes, tolerance=TOLERANCE[dtype]
    )


def attention_split(
    s_tile: int = 16,
    t_tile: int = 16,
    g_tile: int = 4,
    width: int = 16,
    part_tile: int = 1,
    *,
    dtype: str = "f32",
) -> Example:
    """The same, split over blocks along the keys: state in workspaces, a second kernel merges."""
    q, k, v, scale, o, lse = _attention_tensors(dtype)
    ws_m, ws_l = (tensor(f"ws_{name}", "workspace", "f32", Parts(T), KV, G, S) for name in "ml")
    ws_acc = tensor("ws_acc", "workspace", "f32", Parts(T), KV, G, S, D)
    p, h, g, s = Index(Parts(T), 0), Index(KV, 1), Index(G, 2), Index(S, 3)
    t, d, d2 = Index(T, 4), Index(D, 5), Index(D, 6)
    rows = (g, s)
    b = Block()
    b.load("q1", (g, s, d), q, h, g, s, d)
    b.load("scale1", (), scale)
    _attention_start(b, rows, d2)
    first, last = PartBound(p, end=False), PartBound(p, end=True)
    seen_by_first = LimitBound("min", (SpanBound(s, end=False, offset=extent(1, (T, 1), (S, -1))), last))
    interior = LimitBound("max", (first, AlignBound(seen_by_first, t_tile, up=False, origin=first)))
    stop = LimitBound("min", (SpanBound(s, end=True, offset=extent(0, (T, 1), (S, -1))), last))
    carried = {"m": "m1", "l": "l1", "acc": "acc1"}
    step = _attention_step(h, rows, s, t, d, d2, k, v, masked=False)
    b.loop(t, t_tile, first, interior, step, exact=True, **carried)
    step = _attention_step(h, rows, s, t, d, d2, k, v, masked=True)
    b.loop(t, t_tile, interior, stop, step, **carried)
    b.store(ws_m, "m", p, h, g, s)
    b.store(ws_l, "l", p, h, g, s)
    b.store(ws_acc, "acc", p, h, g, s, d2)
    grid = (GridAxis(p, 1), GridAxis(h, 1), GridAxis(s, s_tile))
    whole = (Whole(g, g_tile), Whole(d, width), Whole(d2, width))
    names = ((p, "p"), (h, "h"), (g, "g"), (s, "s"), (t, "t"), (d, "d"), (d2, "d2"))
    reads = (q, k, v, scale, ws_m, ws_l, ws_acc)
    main = Kernel("main", reads, grid, whole, ((g, s),), tuple(b.body), names)
    merge = _attention_merge(s_tile, g_tile, width, part_tile, (ws_m, ws_l, ws_acc), o, lse)
    tiles = TileProgram(
        f"attention_split_{dtype}", (q, k, v, scale), (o, lse), (ws_m, ws_l, ws_acc), (main, merge),
        ((D, width),), ((G, g_tile),), (T,),
    )  # fmt: skip
    sizes = tuple({**call, "D": width} for call in _ATTENTION_SIZES)
    parts: tuple[dict[Dim, int], ...] = ({T: 1}, {T: 3}, {T: 40})
    return Example(
        tiles.name, tiles, _attention_reference, _attention_inputs(dtype), sizes, parts, TOLERANCE[dtype]
    )


def _attention_merge(
    s_tile: int,
    g_tile: int,
    width: int,
    part_tile: int,
    state: tuple[Tensor, Tensor, Tensor],
    o: Tensor,
    lse: Tensor,
) -> Kernel:
    ws_m, ws_l, ws_acc = state
    h, g, s, p, d = Index(KV, 0), Index(G, 1), Index(S, 2), Index(Parts(T), 3), Index(D, 4)
    rows = (g, s)
    b = Block()
    _attention_start(b, rows, d)
    u = Block()
    u.load("bm", (p, *rows), ws_m, p, h, g, s)
    u.load("bl", (p, *rows), ws_l, p, h, g, s)
    u.load("bacc", (p, *rows, d), ws_acc, p, h, g, s, d)
    u.reduce("mt", rows, "max", (p,), "bm")
    u.compute("m1", rows, "max", "m", "mt")
    u.compute("unseen", rows, "eq", "m1", "none", dtype="bool")
    u.compute("safe", rows, "select", "unseen", "zero", "m1")
    u.compute("back", rows, "sub", "m", "safe")
    u.compute("r", rows, "exp", "back")
    u.compute("bback", (p, *rows), "sub", "bm", "safe")
    u.compute("br", (p, *rows), "exp", "bback")
    u.compute("blr", (p, *rows), "mul", "bl", "br")
    u.reduce("lt", rows, "sum", (p,), "blr")
    u.compute("lr", rows, "mul", "l", "r")
    u.compute("l1", rows, "add", "lr", "lt")
    u.compute("baccr", (p, *rows, d), "mul", "bacc", "br")
    u.reduce("at", (*rows, d), "sum", (p,), "baccr")
    u.compute("ar", (*rows, d), "mul", "acc", "r")
    u.compute("acc1", (*rows, d), "add", "ar", "at")
    b.loop(p, part_tile, ZERO, size_bound(Parts(T)), u, m="m1", l="l1", acc="acc1")
    _attention_finish(b, rows, d, h, g, s, o, lse)
    names = ((h, "h"), (g, "g"), (s, "s"), (p, "p"), (d, "d"))
    grid = (GridAxis(h, 1), GridAxis(s, s_tile))
    whole = (Whole(g, g_tile), Whole(d, width))
    return Kernel("merge", (ws_m, ws_l, ws_acc, o, lse), grid, whole, ((g, s),), tuple(b.body), names)


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
