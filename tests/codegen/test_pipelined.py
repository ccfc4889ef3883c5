"""Loops as Triton pipelines them: no copy overwrites what a product still reads."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from pipelined import Ring, compiled, rings

from cleave.codegen.triton import emit
from cleave.schedule.parse import parse_tiles
from cleave.schedule.tiles import TileProgram

FOLDER = Path(__file__).parents[1] / "cases" / "groups"
OVERWRITTEN = """
  %c2_i32 = arith.constant 2 : i32
  %c-1_i32 = arith.constant -1 : i32
  %r:4 = scf.for %i = %a to %b step %c iter_args(%d = %z, %put = %c2_i32, %take = %c-1_i32) -> (f) {
    %next = arith.addi %take, %c1_i32 : i32
    %from = arith.select %over, %c0_i32, %next : i32
    %x = ttg.memdesc_index %ring[%from] : !ttg.memdesc<SLOTSx128x64xbf16> -> !ttg.memdesc<128x64xbf16>
    %dot = ttng.warp_group_dot %x, %w, %d {inputPrecision = 0 : i32, isAsync = true} : a * b -> c
    %on:2 = ttng.warp_group_dot_wait %dot, %x {pendings = 1 : i32} : c
    %further = arith.addi %put, %c1_i32 : i32
    %into = ttg.memdesc_index %ring[%further] : !ttg.memdesc<SLOTSx128x64xbf16> -> !ttg.memdesc<128x64xbf16>
    ttng.async_tma_copy_global_to_local %tiles[%s, %k] %into, %full, %yes : d, e, f
    scf.yield %on#0, %further, %from : f32, i32, i32
  }
"""


def plain(name: str, stages: int) -> TileProgram:
    """A tile program without warp groups."""
    tiles = parse_tiles((FOLDER / f"{name}.tiles").read_text())
    return replace(tiles, kernels=tuple(replace(k, groups=0, stages=stages) for k in tiles.kernels))


@pytest.mark.parametrize(("slots", "overwritten"), [(3, True), (4, False)])
def test_the_reader_sees_an_overwritten_slot(slots: int, overwritten: bool) -> None:
    (ring,) = rings(OVERWRITTEN.replace("SLOTS", str(slots)))
    assert ring == Ring("ring", slots, 3, True) and ring.overwritten is overwritten


@pytest.mark.parametrize("stages", [2, 3])
def test_a_tile_that_a_product_and_a_sum_read(stages: int, tmp_path: Path) -> None:
    """Each has a load of its own: the sum's keeps Triton from giving the product's ring the slot more that it
    needs (3.6 to 3.9)."""
    tiles = plain("normed", stages)
    text = emit(tiles, described=True, overlapped=True).text
    assert len(re.findall(r"x\w* = x_tiles.load", text)) == len(re.findall("evict_last", text)) == 2
    found = rings(compiled(tiles, tmp_path, S=1024, T=4096))
    assert found and not [r for r in found if r.overwritten], found


@pytest.mark.parametrize(("name", "stages"), [("attention", 3), ("latent", 2), ("gate", 3)])
def test_tiles_that_only_products_read(name: str, stages: int, tmp_path: Path) -> None:
    """Also one that two products read, the one lying as the other does not."""
    tiles = plain(name, stages)
    assert "evict_last" not in emit(tiles, described=True, overlapped=True).text
    found = rings(compiled(tiles, tmp_path, S=1024, T=4096))
    assert found and not [r for r in found if r.overwritten], found
