"""Tile programs for causal attention with grouped heads, in one kernel and split over the keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cleave.ir.dims import (
    Atom,
    Dim,
    Index,
    Parts,
    extent,
    term,
)
from cleave.schedule.tiles import (
    ZERO,
    AlignBound,
    GridAxis,
    Kernel,
    LimitBound,
    PartBound,
    SpanBound,
    Tensor,
    TileProgram,
    Whole,
)
from tile_builder import (
    INF,
    TOLERANCE,
    Block,
    Example,
    Inputs,
    Sizes,
    axis_of,
    number,
    rounded,
    size_bound,
    tensor,
)

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
    # The first row's last visible key is the last but one of a tile of 16: one too many, and it shows.
    {"KV": 1, "G": 2, "S": 18, "T": 32, "D": 16},
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
    if group == "whole":
        h, s, g, d, d2, t = number(KV, S, G, D, D, T)
    else:
        h, g, s, d, d2, t = number(KV, G, S, D, D, T)
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
    called = {h: "h", g: "g", s: "s", t: "t", d: "d", d2: "d2"}
    names = tuple((i, called[i]) for i in sorted(called, key=lambda i: i.number))
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
    p, h, s, g, d, d2, t = number(Parts(T), KV, S, G, D, D, T)
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
    names = ((p, "p"), (h, "h"), (s, "s"), (g, "g"), (d, "d"), (d2, "d2"), (t, "t"))
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
    h, s, g, d, p = number(KV, S, G, D, Parts(T))
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
    names = ((h, "h"), (s, "s"), (g, "g"), (d, "d"), (p, "p"))
    grid = (GridAxis(h, 1), GridAxis(s, s_tile))
    whole = (Whole(g, g_tile), Whole(d, width))
    return Kernel("merge", (ws_m, ws_l, ws_acc, o, lse), grid, whole, ((g, s),), tuple(b.body), names)
