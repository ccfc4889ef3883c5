"""Parts of whole tiles: their steps, and which loops over borders never run."""

from __future__ import annotations

from dataclasses import replace

import tile_examples as te
from cleave.ir.dims import Atom, Dim, Index, Parts
from cleave.schedule.parts import ends_with_dim, split_steps, without_borders
from cleave.schedule.tiles import AlignBound, GridAxis, Kernel, Loop, PartBound, TileProgram

K, T = Atom("K"), Atom("T")

P, KI = Index(Parts(K), 0), Index(K, 1)


def loops(size: int | None, tile: int = 64) -> list[Loop]:
    """The loops over K of a product split along K, which has a known size or none."""
    start, end = PartBound(P, False), PartBound(P, True)
    border = AlignBound(end, tile, False, start)
    body = (Loop(KI, tile, start, border, True, (), ()), Loop(KI, tile, border, end, False, (), ()))
    kernel = Kernel("main", (), (GridAxis(P, 1),), (), (), body, ())
    sizes = () if size is None else ((K, size),)
    tiles = TileProgram("product", (), (), (), (kernel,), sizes, (), (K,))
    return [s for s in without_borders(tiles, kernel).body if isinstance(s, Loop)]


def test_parts_are_made_of_whole_tiles() -> None:
    tiles = te.attention_split(t_tile=32).tiles
    assert [(str(dim), step) for dim, step in split_steps(tiles).items()] == [("parts(T)", 32)]
    assert T in tiles.splits


def test_no_loop_over_a_border_where_every_part_is_whole_tiles() -> None:
    (left,) = loops(4096)
    assert left.exact and left.start == PartBound(P, False) and left.stop == PartBound(P, True)
    assert len(loops(4100)) == 2, "the last part has a border"
    assert len(loops(None)) == 2, "nothing is known of the size"


def test_borders_stay_where_parts_are_not_cut_by_whole_tiles() -> None:
    """A loop that starts at a predicate's bound says nothing of the parts' lengths."""
    tiles = te.attention_split(t_tile=32).tiles
    sized = replace(tiles, sizes=(*tiles.sizes, (T, 4096)))
    assert without_borders(sized, tiles.kernels[0]) is tiles.kernels[0]


def test_where_the_last_tile_of_a_part_ends() -> None:
    """Parts are whole tiles, so that only the dim's end cuts one off; what a descriptor reads there is 0."""
    steps: dict[Dim, int] = {Parts(K): 64}
    full, border = loops(4100)
    assert ends_with_dim(full, steps) is False, "it stops before the border"
    assert ends_with_dim(border, steps)
    assert not ends_with_dim(border, {Parts(K): 32}), "parts are not made of its tiles"
    assert not ends_with_dim(border, {})
    for tiles in (te.attention_split(t_tile=32).tiles, te.matmul(64, 64, 32).tiles):
        for loop in (s for s in tiles.kernels[0].body if isinstance(s, Loop)):
            assert not ends_with_dim(loop, split_steps(tiles))


def test_what_is_not_split_stays_as_it_is() -> None:
    tiles = te.matmul(64, 64, 32).tiles
    assert without_borders(tiles, tiles.kernels[0]) is tiles.kernels[0]
