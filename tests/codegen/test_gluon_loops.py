"""How loops of warp groups are written: what their bounds say of their steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
