"""Where tiles of kernels with warp groups lie in shared memory, how long, and how results leave."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cleave.codegen.gluon_memory import GroupMemory
from cleave.codegen.triton import emit
from cleave.schedule.parse import parse_tiles
from cleave.schedule.tiles import TileProgram

FOLDER = Path(__file__).parents[1] / "cases" / "groups"


def program(name: str) -> TileProgram:
    return parse_tiles((FOLDER / f"{name}.tiles").read_text())


def text_of(tiles: TileProgram) -> str:
    return emit(tiles, described=True, grouped=True).text


def changed(name: str, old: str, new: str) -> TileProgram:
    text = (FOLDER / f"{name}.tiles").read_text()
    assert old in text
    return parse_tiles(text.replace(old, new))


def test_a_tile_that_comes_once_is_freed_behind_the_last_loop_that_reads_it() -> None:
    """Then the copying warp loads the next tile's while the groups end this one."""
    rows = text_of(program("short")).split("def main_copies(")[0]
    assert "q_room" not in rows and "q_ring.index(q_ring_slot * 2 + group)" in rows
    freed = rows.index("mbarrier.arrive(q_ring_free")
    assert rows.rindex("warpgroup_mma(") < freed < rows.index("copy_out(")
    read = text_of(program("causal")).split("def main_copies(")[0]  # it is scaled: one load, and it is free
    assert read.index("mbarrier.arrive(q_ring_free") < read.index("warpgroup_mma(")


def test_results_without_other_room_leave_where_the_query_lay() -> None:
    """The first group alone multiplied with it, and the others have had what they need of that."""
    rows, rest = text_of(program("latent")).split("def main_copies(")
    assert "out_room = lend(q_ring, gl.bfloat16, [2, 1, 64, 256], out_tiles.layout)" in rest
    order = [
        "max = given_room",
        "out_room.index(group).reshape([64, 256]).store(cast_3)",
        "copy_out(out_tiles, [q0, s0, group * 256], out_room.index(group))",
        "tma.store_wait(0)  # the next tile comes to this place",
        "mbarrier.arrive(q_ring_free.",
    ]
    places = [rows.rindex(x) for x in order]
    assert places == sorted(places) and rows.count("arrive(q_ring_free.") == 1
    assert rows.index("arrive(q_rope_ring_free.") < places[1], "a tile that lends nothing is free before"


def test_a_tile_that_is_read_again_lends_nothing() -> None:
    """The query is added to the result, too."""
    old = "    store out[q0, s, q2] = cast_3\n"
    new = "    more[s, q2]: bf16 = add(cast_3, q)\n    store out[q0, s, q2] = more\n"
    assert "lend(" not in text_of(changed("latent", old, new)).split("def main_rows(")[1]


def test_wide_operands_that_stay_are_located_anew_in_each_step() -> None:
    """A compiler would keep a number for every 16 columns of them in registers."""
    rows = text_of(program("latent")).split("def main_copies(")[0]
    loops = re.split(r"^ +for t0\w* in ", rows, flags=re.M)[1:]
    assert loops and all(re.search(r"q_here = anew\(q_ring_slot\)", loop) for loop in loops)
    assert "def anew(" in rows
    for name in ("gate", "short", "attention"):  # a few numbers are better kept
        assert "anew(" not in text_of(program(name))


def test_a_residual_leaves_the_rings_their_turns() -> None:
    """What is added to a result is loaded by the groups, 16 bytes of a thread at a time, where a ring of it
    would leave the loop two turns."""
    text = text_of(program("residual"))
    assert "r_ring" not in text and "WIDE_ROWS_64_256" in text
    assert "w_ring = gl.allocate_shared_memory(gl.bfloat16, [3, 64, 256]" in text
    single = (FOLDER / "residual.tiles").read_text().replace("r: bf16", "r: f32")
    single = text_of(parse_tiles(single.replace("r[s, w1]: bf16", "r[s, w1]: f32")))
    assert "r_ring" in single and "r_tiles.load" not in single, "threads trade 16 bits"
    narrow = text_of(changed("residual", "w1: W1 by 256", "w1: W1 by 64"))
    assert "r_ring" in narrow and "WIDE" not in narrow


def test_results_without_room_in_shared_memory_leave_in_pieces_of_16_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "out_room = lend(q_ring, " in text_of(program("deep"))
    monkeypatch.setattr(GroupMemory, "lender", lambda *_: "")  # as where all tiles are read to the end
    text = text_of(program("deep"))
    assert "copy_out(out" not in text and "div4_wide = gl.convert_layout(div4, WIDE_64_256)" in text
    assert "gl.store(" in text and "copy_out(out" in text_of(program("short"))
