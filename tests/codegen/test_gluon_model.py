"""What kernels with warp groups compute, and whether their barriers hold, in a model of Gluon.

The interpreter of tile programs is the judge.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from pathlib import Path

import gluon_model
import numpy as np
import pytest

from cleave.codegen.triton import emit
from cleave.ir.dims import Atom, Dim, size_of
from cleave.schedule.interpret import run
from cleave.schedule.parse import parse_tiles
from cleave.schedule.tiles import TileProgram

FOLDER = Path(__file__).parents[1] / "cases" / "groups"


ONE_HEAD = (("B = 2", "B = 1"), ("K1 = 8", "K1 = 1"), ("N = 4", "N = 2"))
"""Less work for the same paths through a kernel."""


def changed(name: str, *changes: tuple[str, str]) -> TileProgram:
    text = (FOLDER / f"{name}.tiles").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_tiles(text)


def bound(tiles: TileProgram, sizes: dict[str, int]) -> dict[Dim, int]:
    known: dict[Dim, int] = {dim: size for dim, size in tiles.sizes if isinstance(size, int)}
    return known | {Atom(name): size for name, size in sizes.items()}


def made(tiles: TileProgram, known: dict[Dim, int]) -> dict[str, np.ndarray]:
    """Random inputs, and outputs of NaN."""
    random = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    for tensor in (*tiles.inputs, *tiles.outputs):
        shape = [prod(size_of(dim, known) for dim in group) for group in tensor.layout]
        values = random.standard_normal(shape).astype(np.float32)
        tensors[tensor.name] = gluon_model.rounded(values, tensor.dtype)
    for tensor in tiles.outputs:
        tensors[tensor.name][...] = np.nan
    return tensors


def worst(tiles: TileProgram, sizes: dict[str, int]) -> float:
    """The largest difference from the interpreter's result, as a share of the largest result."""
    known = bound(tiles, sizes)
    tensors = made(tiles, known)
    gluon_model.launch(tiles, emit(tiles, described=True, grouped=True), tensors, known)
    right = run(tiles, {t.name: tensors[t.name] for t in tiles.inputs}, dtype=np.float32)
    largest = 0.0
    for tensor in tiles.outputs:
        found, want = tensors[tensor.name], np.asarray(right[tensor.name])
        assert np.array_equal(np.isnan(found), np.isnan(want)), tensor.name
        ends = np.isinf(want)
        assert np.array_equal(found[ends], want[ends]), tensor.name
        found, want = np.where(ends, 0, found), np.where(ends, 0, want)
        difference = np.nanmax(np.abs(found - want)) / np.nanmax(np.abs(want), initial=1e-30)
        largest = max(largest, float(difference))
    return largest


@pytest.mark.parametrize(
    ("rows", "keys"),
    [(256, 256), (200, 330), (300, 100), (1, 513), (130, 20), (385, 385)],
    ids=lambda n: str(n),  # pyright: ignore[reportUnknownLambdaType]
)
def test_full_tiles_and_the_edge_of_a_mask(rows: int, keys: int) -> None:
    """Also where there are no full tiles, no edge, or none of both for some rows."""
    assert worst(changed("short", *ONE_HEAD), {"S": rows, "T": keys}) < 4e-3


@pytest.mark.parametrize("rows, keys", [(256, 256), (200, 330), (300, 100), (1, 513), (1, 512), (257, 640)])
def test_an_edge_that_comes_first_leaves_products_to_full_tiles(rows: int, keys: int) -> None:
    """Also where the last row of a mask ends with a tile, and where some rows see nothing."""
    assert worst(changed("edge", ("K0 = 8", "K0 = 1"), ("N = 4", "N = 2")), {"S": rows, "T": keys}) < 4e-3


@pytest.mark.parametrize(("rows", "keys"), [(300, 300), (200, 520), (520, 300)])
def test_the_three_loops_of_a_window(rows: int, keys: int) -> None:
    assert worst(changed("softcap", ("K1 = 16", "K1 = 1")), {"S": rows, "T": keys}) < 4e-3


@pytest.mark.parametrize(
    ("name", "sizes", "changes"),
    [
        ("attention", {"S": 200, "T": 330}, [("Q0 = 32", "Q0 = 2")]),
        ("causal", {"S": 200, "T": 330}, [("K0 = 8", "K0 = 1"), ("N = 4", "N = 1")]),
        ("chain", {"S": 300, "T": 330}, [("Q0 = 32", "Q0 = 2")]),
        ("deep", {"S": 200, "T": 330}, [("K1 = 8", "K1 = 1"), ("4096", "150")]),
        ("deep", {"S": 300, "T": 300}, [("K1 = 8", "K1 = 1"), ("4096", "20")]),
        ("deep", {"S": 100, "T": 400}, [("K1 = 8", "K1 = 1")]),
        ("gate", {"S": 130}, [("X1 = 4096", "X1 = 256"), ("W11 = 14336", "W11 = 256")]),
        ("latent", {"S": 100, "T": 330}, []),
        ("normed", {"S": 200, "T": 330}, [("N = 512", "N = 128")]),
        ("normed", {"S": 130, "T": 256}, [("N = 512", "N = 128")]),
        ("pieces", {"S": 200, "T": 330}, [("Q0 = 128", "Q0 = 2")]),
        ("residual", {"S": 130}, []),
        ("residual", {"S": 130}, [("r: bf16[S, W1]", "r: f32[S, W1]"), ("r[s, w1]: bf16", "r[s, w1]: f32")]),
        ("tail", {"S": 200, "T": 330}, [("Q0 = 32", "Q0 = 2")]),
        ("tail", {"S": 130, "T": 256}, [("Q0 = 32", "Q0 = 2")]),
        ("tail", {"S": 64, "T": 100}, [("Q0 = 32", "Q0 = 2")]),
        ("thirds", {"S": 200, "T": 330}, [("Q0 = 32", "Q0 = 2")]),
    ],
)
def test_kernels_compute_what_the_interpreter_does(
    name: str, sizes: dict[str, int], changes: list[tuple[str, str]]
) -> None:
    assert worst(changed(name, *changes), sizes) < 4e-3


@pytest.mark.parametrize("name, head", [("attention", "Q0 = 32"), ("edge", "K0 = 8"), ("short", "K1 = 8")])
def test_one_group_has_the_rows_of_a_tile_of_64(name: str, head: str) -> None:
    """Beside a warp that copies, and without turns: there is nobody to take them with."""
    heads = [(head, head.split(" = ")[0] + " = 1"), *([("N = 4", "N = 2")] if name != "attention" else [])]
    rows = [("s: S by 128", "s: S by 64"), ("warps 8", "warps 4"), ("groups 2", "groups 1")]
    tiles = changed(name, *heads, *rows)
    assert "turns" not in emit(tiles, described=True, grouped=True).text
    assert worst(tiles, {"S": 200, "T": 330}) < 4e-3


def test_sums_of_256_columns_stay_in_the_registers_of_two_groups() -> None:
    wide = [
        ("Q2 = 192, V2 = 128", "Q2 = 256, V2 = 256"),
        ("Q2 by 192", "Q2 by 256"),
        ("V2 by 128", "V2 by 256"),
    ]
    changes = [("Q0 = 128", "Q0 = 1"), *wide, ("t: T by 128", "t: T by 64"), ("(T, 128)", "(T, 64)")]
    tiles = changed("pieces", *changes)
    lent = r"lend\(q_ring, gl\.bfloat16, \[2, 1, 64, 256\]"
    assert re.search(lent, emit(tiles, described=True, grouped=True).text), "each group's own query"
    assert worst(tiles, {"S": 200, "T": 330}) < 4e-3


def test_the_model_sees_a_query_that_comes_before_the_result_has_left() -> None:
    tiles = changed("latent")
    source = emit(tiles, described=True, grouped=True)
    wait = "tma.store_wait(0)  # the next tile comes to this place"
    assert wait in source.text
    known = bound(tiles, {"S": 256, "T": 64})
    with pytest.raises(AssertionError, match="changed on its way out"):
        text = source.text.replace(wait, "pass")
        gluon_model.launch(tiles, replace(source, text=text), made(tiles, known), known)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("mbarrier.arrive(v_ring_free.index(v_before), count=1)", "pass", "a wait that nothing ends"),
        ("mbarrier.arrive(q_ring_free.index(q_ring_slot), count=1)", "pass", "a wait that nothing ends"),
        ("warpgroup_mma_wait(0, deps=[dot])", "dot", "nobody has waited for"),
        ("v_before = v_ring_slot", "v_before = 0", "changed under a product|a wait that nothing ends"),
    ],
)
def test_the_model_sees_what_is_wrong(
    old: str, new: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gluon_model, "PATIENCE", 0.5)
    tiles = changed("short", *ONE_HEAD)
    source = emit(tiles, described=True, grouped=True)
    assert old in source.text
    known = bound(tiles, {"S": 512, "T": 512})
    tensors = made(tiles, known)
    with pytest.raises(AssertionError, match=fault):
        gluon_model.launch(tiles, replace(source, text=source.text.replace(old, new)), tensors, known)
