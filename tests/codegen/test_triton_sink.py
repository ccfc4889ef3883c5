"""Small tiles that stay for a loop are loaded in it, beside what its steps read anyway."""

from __future__ import annotations

from dataclasses import replace

from cleave.codegen.triton_sink import sunk
from cleave.ir.dims import Atom, Extent, Index, var
from cleave.schedule.tiles import (
    ZERO,
    Carry,
    ContractTile,
    Fill,
    GridAxis,
    Kernel,
    Load,
    Loop,
    SizeBound,
    Store,
)

S, D, T, E = (Index(Atom(name), n) for n, name in enumerate("SDTE"))


def kernel(rows: int, dtype: str = "bf16", stages: int = 3) -> Kernel:
    """Products of `rows` rows of q, which stay, with 128 rows of k and of v in each step."""
    q = Load("q", (S, D), dtype, "q", (var(S), var(D)))
    body = (
        Load("k", (T, D), dtype, "k", (var(T), var(D))),
        ContractTile("dot", (S, T), "f32", (D,), ("q", "k")),
        Load("v", (T, E), dtype, "v", (var(T), var(E))),
        ContractTile("more", (S, E), "f32", (T,), ("dot", "v")),
    )
    loop = Loop(T, 128, ZERO, SizeBound(Extent(4096)), True, body, (("acc", "more"),))
    start = (Fill("zero", (), "f32", 0.0), Carry("acc", (S, E), "f32", "zero"), q)
    grid = (GridAxis(S, rows), GridAxis(D, 128), GridAxis(E, 128))
    store = Store("out", (var(S), var(E)), "acc")
    return Kernel("main", (), grid, (), (), (*start, loop, store), (), 4, stages, descriptors=True)


def test_a_small_tile_is_loaded_in_the_loop() -> None:
    before = kernel(16)
    after = sunk(before)
    loop = next(s for s in after.body if isinstance(s, Loop))
    load = before.body[2]
    assert load not in after.body and loop.body[0] == load
    assert loop.body[1:] == before.body[3].body  # pyright: ignore
    assert [s for s in after.body if s is not loop] == [before.body[n] for n in (0, 1, 4)]


def test_a_large_tile_stays_where_it_is() -> None:
    assert sunk(kernel(64)) == kernel(64)
    assert sunk(kernel(16, "f32")) == kernel(16, "f32"), "float32 products take no tiles from descriptors"
    assert sunk(kernel(16, stages=4)) == kernel(16, stages=4), "its stages have no room"


def test_what_others_read_stays_where_it_is() -> None:
    one = kernel(16)
    also = Store("copy", (var(S), var(D)), "q")
    read = replace(one, body=(*one.body, also))
    assert sunk(read) == read
