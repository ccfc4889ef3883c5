"""How loops of warp groups are written: what their bounds say of their steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cleave.codegen.gluon_chain import below, leads
from cleave.codegen.gluon_loops import most_between, most_steps
from cleave.codegen.triton import emit
from cleave.ir.dims import Atom, Dim, Index, extent
from cleave.schedule.parse import parse_tiles
from cleave.schedule.tiles import AlignBound, LimitBound, Loop, SizeBound, SpanBound

FOLDER = Path(__file__).parents[1] / "cases" / "groups"
T: Dim = Atom("T")
ROW = Index(Atom("S"), 1)
TILES = {ROW: 128}
SIZE = SizeBound(extent(0, (T, 1)))
START = SpanBound(ROW, False, extent(1, (T, 1)))
END = SpanBound(ROW, True, extent(0, (T, 1)))


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("attention", [None, 1]),
        ("thirds", [None, 1]),
        ("causal", [None, 2]),
        ("edge", [2, None]),
        ("tail", [1, None]),
        ("short", [None, 2]),
        ("latent", [None, 1]),
    ],
)
def test_the_most_steps_of_a_loop(name: str, steps: list[int | None]) -> None:
    """A causal edge of 128 rows goes through two tiles of 128 keys where these are not aligned."""
    kernel = parse_tiles((FOLDER / f"{name}.tiles").read_text()).kernels[0]
    tiles = {axis.index: axis.tile for axis in kernel.grid}
    assert [most_steps(s, tiles) for s in kernel.body if isinstance(s, Loop)] == steps


@pytest.mark.parametrize(
    ("start", "stop", "most"),
    [
        (SIZE, SIZE, 0),
        (AlignBound(SIZE, 64, False), SIZE, 63),
        (AlignBound(SIZE, 64, True), SIZE, 0),
        (SIZE, AlignBound(SIZE, 64, True), 63),
        (SIZE, AlignBound(SIZE, 64, False), 0),
        (START, END, 127),
        (END, START, 1),
        (LimitBound("min", (SIZE, START)), LimitBound("min", (SIZE, END)), 127),
        (LimitBound("max", (SizeBound(extent(0)), START)), END, 127),
        (LimitBound("min", (SizeBound(extent(0)), START)), END, None),
        (START, LimitBound("max", (SIZE, END)), None),
        (SizeBound(extent(0)), SIZE, None),
        (SizeBound(extent(5)), SizeBound(extent(12)), 7),
    ],
)
def test_the_most_positions_between_two_bounds(start, stop, most) -> None:  # pyright: ignore
    assert most_between(start, stop, TILES) == most


def test_a_loop_of_one_step_is_a_condition() -> None:
    text = emit(parse_tiles((FOLDER / "attention.tiles").read_text()), described=True, grouped=True).text
    rows = text.split("def main_copies(")[0]
    assert len(re.findall(r"^ +for t0", rows, re.M)) == 1, "that of the full tiles"
    tail = rows[rows.index("if t_stop < T:") :]
    assert "turns.index" not in tail and "_before" not in tail
    assert tail.count("warpgroup_mma(") == 2


def test_a_loop_of_few_steps_has_no_first_and_last_one_of_their_own() -> None:
    text = emit(parse_tiles((FOLDER / "causal.tiles").read_text()), described=True, grouped=True).text
    rows = text.split("def main_copies(")[0]
    edge = rows[rows.rindex("for t0") :]
    assert edge.count("warpgroup_mma(") == 2 and "_before" not in edge
    assert "_before" in rows[: rows.rindex("for t0")], "that of the full tiles is skewed"


@pytest.mark.parametrize(
    ("low", "high", "surely"),
    [
        (SIZE, SIZE, False),
        (SizeBound(extent(-1, (T, 1))), SIZE, True),
        (AlignBound(SIZE, 64, False), SIZE, False),
        (AlignBound(SizeBound(extent(-1, (T, 1))), 64, False), SIZE, True),
        (AlignBound(SizeBound(extent(-1, (T, 1))), 64, True), SIZE, False),
        (SpanBound(ROW, False, extent(0, (T, 1))), END, True),
        (START, END, False),
        (END, SpanBound(ROW, False, extent(9, (T, 1))), False),
        (SpanBound(ROW, False, extent(0, (T, 1))), SpanBound(Index(Atom("S"), 2), True, extent(9)), False),
        (LimitBound("min", (SizeBound(extent(-1, (T, 1))), START)), LimitBound("min", (SIZE, END)), False),
        (LimitBound("max", (SizeBound(extent(-1, (T, 1))), SIZE)), SIZE, False),
        (SizeBound(extent(3)), SizeBound(extent(4)), True),
        (SizeBound(extent(3)), SIZE, False),
    ],
)
def test_what_is_surely_less(low, high, surely) -> None:  # pyright: ignore
    assert below(low, high) == surely


def test_full_tiles_go_on_with_what_an_edge_in_front_of_them_has_left() -> None:
    """One copy of an edge's step, no end between the loops, and one behind the last; and no mask but the
    predicate's own: it is closed."""
    tiles = parse_tiles((FOLDER / "edge.tiles").read_text())
    first, second = (s for s in tiles.kernels[0].body if isinstance(s, Loop))
    assert leads(first, second) and not leads(second, first)
    rows = emit(tiles, described=True, grouped=True).text.split("def main_copies(")[0]
    assert rows.count("warpgroup_mma(") == 2 + 2 + 1, "the edge, full tiles, the end"
    assert rows.count("v_before = v_ring_slot") == 2
    assert rows.index("every tile full") < rows.rindex("v_ring.index(v_before)")
    assert rows.count("warpgroup_mma_wait(0, deps=[sum])") == 3
    assert first.closed and "t_in" not in rows and "clear_rows(v_ring" not in rows


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("min(T - 1, start(s) - S + T)", "min(T, start(s) - S + T + 1)"),  # the edge may be empty
        ("from 0 to align_down(min(T - 1, start(s) - S + T), 128) exact", "from 0 to 0 exact"),
    ],
)
def test_loops_that_may_have_no_first_step_do_without_a_chain(old: str, new: str) -> None:
    text = (FOLDER / "edge.tiles").read_text()
    assert old in text
    rows = emit(parse_tiles(text.replace(old, new)), described=True, grouped=True).text
    assert "if t0 > " not in rows.split("def main_copies(")[0]
