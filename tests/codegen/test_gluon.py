"""Kernels with warp groups: their text, what they compile to for compute capability 9, and what is refused.

Nothing here runs them: `test_gluon_model.py` does, in a model of Gluon, and `tests/test_gpu.py` on a GPU.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cleave.codegen.gluon_divided import SCALE_UP, SMALL_DIVISOR
from cleave.codegen.gluon_skew import depending, needed
from cleave.codegen.gluon_text import LEAN, helpers_for, layouts_for, translated
from cleave.codegen.triton import emit
from cleave.codegen.triton_grid import snaked
from cleave.codegen.triton_text import render
from cleave.errors import Infeasible
from cleave.knobs import scope
from cleave.pipeline import MINOR_SPILLS
from cleave.runtime.triton_build import compile_for
from cleave.schedule.parse import parse_tiles
from cleave.schedule.text import print_tiles
from cleave.schedule.tiles import ContractTile, Loop, TileProgram

FOLDER = Path(__file__).parents[1] / "cases" / "groups"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.tiles")))


def program(name: str) -> TileProgram:
    return parse_tiles((FOLDER / f"{name}.tiles").read_text())


def text_of(tiles: TileProgram) -> str:
    return emit(tiles, described=True, grouped=True).text


def changed(name: str, old: str, new: str) -> TileProgram:
    text = (FOLDER / f"{name}.tiles").read_text()
    assert old in text
    return parse_tiles(text.replace(old, new))


@pytest.mark.parametrize("name", NAMES)
def test_groups_are_part_of_the_text_form(name: str) -> None:
    tiles = program(name)
    assert tiles.kernels[0].groups == (3 if name == "thirds" else 2)
    assert parse_tiles(print_tiles(tiles)) == tiles


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_becomes_three_functions_and_the_same_text_twice(name: str) -> None:
    text = text_of(program(name))
    assert text == text_of(program(name))
    warps = "], [4, 4, 1], [160, 160, 24])" if name == "thirds" else "], [4, 1], [240, 24])"
    assert "gl.warp_specialize([" in text and warps in text
    for function in ("main_rows", "main_copies", "main"):
        assert len(re.findall(rf"^def {function}\(", text, re.M)) == 1
    compile(text, name, "exec")
    assert "tl.dot" not in text and "DEPTH" not in text


@pytest.mark.parametrize("name", NAMES)
def test_every_slot_that_is_waited_for_is_freed_and_filled(name: str) -> None:
    """A ring's reader waits on `full` and frees; its writer waits on `free` and fills."""
    rows, copies = re.split(r"^def main_copies\(", text_of(program(name)), flags=re.M)
    rings = set(re.findall(r"(\w+_ring)_free\.index", rows))
    assert rings
    for ring in rings:
        assert f"mbarrier.wait({ring}_full.index(" in rows
        assert f"mbarrier.arrive({ring}_free.index(" in rows
        assert f"mbarrier.wait({ring}_free.index(" in copies
        assert re.search(rf"copy_in\(\s*\w+,\s*\[.*\],\s*{ring}_full\.index\(", copies)


def steps(text: str) -> dict[str, list[int]]:
    """For each ring and depth of indentation: how often a function counts, waits and frees (or fills)."""
    found: dict[str, list[int]] = {}
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        for place, pattern in enumerate(
            (r"(\w+_ring\w*)_at \+= 1", r"wait\((\w+_ring\w*)_full", r"arrive\((\w+_ring\w*)_free")
        ):
            for ring in re.findall(pattern, line):
                found.setdefault(f"{ring} {depth}", [0, 0, 0])[place] += 1
    return found


def test_two_loads_of_one_tensor_in_a_step_have_rings_of_their_own() -> None:
    text = (FOLDER / "chain.tiles").read_text()
    line = next(x for x in text.splitlines() if "= contract[q2](" in x)
    load = next(x for x in text.splitlines() if "= load k[" in x)
    name, dot = load.split("[")[0].strip(), line.split("[")[0].strip()
    second = [
        load.replace(name, "other", 1),
        line.replace(dot, "dot_other", 1).replace(f", {name})", ", other)"),
    ]
    both = f"      both{line.split(dot)[1].split(' =')[0]} = add({dot}, dot_other)"
    rest = text.replace(load + "\n", f"{load}\n{second[0]}\n", 1)
    rest = rest.replace(line + "\n", f"{line}\n{second[1]}\n{both}\n", 1)
    head, tail = rest.split(both, 1)
    used = tail.replace(f"({dot})", "(both)", 1)
    rows = text_of(parse_tiles(head + both + used)).split("def main_copies(")[0]
    rings = set(re.findall(r"(k_ring\w*)_at \+= 1", rows))
    assert len(rings) == 2
    for ring, (counts, waits, frees) in steps(rows).items():
        if ring.startswith("k_ring"):
            assert counts == waits == frees, ring


def seen_by(group: int, rows: str) -> str:
    """The lines of a function that a group runs."""
    kept: list[str] = []
    left = -1
    for line in rows.splitlines():
        depth = len(line) - len(line.lstrip())
        if line.strip() and depth <= left:
            left = -1
        text = line.strip()
        if text in ("if group == 0:", "else:", "if group > 0:"):
            left = depth if (text == "if group == 0:") == (group > 0) and left < 0 else left
            continue
        if left < 0:
            kept.append(line)
    return "\n".join(kept)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("group", [0, 1])
def test_a_step_counts_waits_and_frees_alike(name: str, group: int) -> None:
    rows = seen_by(group, text_of(program(name)).split("def main_copies(")[0])
    totals: dict[str, list[int]] = {}
    for key, counts in steps(rows).items():
        own = totals.setdefault(key.split()[0], [0, 0, 0])
        for place, count in enumerate(counts):
            own[place] += count
    assert totals
    running = name in (
        "gate",
        "residual",
    )  # there a step frees what the one before read, and the end frees the last
    for ring, (counts, waits, frees) in totals.items():
        once = (0, 1, 0)  # a tile that comes once is waited for and kept
        unread = (counts, 0, counts) if name == "latent" and group else once  # and what the first one reads
        fine = (once, unread, (counts, counts, counts * (1 + running)))
        if name in ("deep", "edge") and ring == "v_ring":  # a step of the edge may end the one before it
            fine = ((counts, counts + 1, counts + 1),)
        assert (counts, waits, frees) in fine, ring
    if name == "latent":
        rows = rows.split("for t0 in ", 1)[1]
        full, free = ("arrive", "wait") if group == 0 else ("wait", "arrive")
        for call in (f"mbarrier.{full}(given_full", f"mbarrier.{free}(given_free"):
            assert rows.count(call) == rows.count("given_at += 1") == 4, call


def test_a_dim_may_have_any_name() -> None:
    tiles = parse_tiles(re.sub(r"\bT\b", "DEPTH", (FOLDER / "attention.tiles").read_text()))
    text = text_of(tiles)
    compile(text, "depth", "exec")
    assert "DEPTH" in text and "@" not in text.replace("@gluon", "").replace("@triton", "")


def test_three_groups_fall_back_to_a_power_of_two_of_warps() -> None:
    tiles = program("thirds")
    (entry,) = emit(tiles, described=True, grouped=True).entries
    assert entry.groups == 3
    (plain,) = emit(tiles).entries
    assert plain.groups == 0 and plain.warps == 8


def test_without_groups_or_descriptors_the_kernel_is_plain_triton() -> None:
    tiles = program("attention")
    plain = emit(tiles, described=True).text
    assert "warp_specialize" not in plain and "tl.dot" in plain
    alone = replace(tiles, kernels=tuple(replace(k, groups=0) for k in tiles.kernels))
    assert emit(alone, described=True, grouped=True).text == plain
    assert emit(tiles, grouped=True).text == emit(alone).text


def test_products_of_two_steps_overlap_where_nothing_is_between() -> None:
    text = text_of(program("gate"))
    assert "warpgroup_mma_wait(2, deps=[sum, sum2])" in text
    assert "for tile in range(" in text, "blocks go on from tile to tile"


def test_groups_share_the_columns_of_sums_that_are_too_wide_for_one() -> None:
    """Each has all rows of its own columns: of a tile that both products read the first group multiplies all,
    and then each its columns."""
    rows, rest = text_of(program("latent")).split("def main_copies(")
    text = re.sub(r"\(\s+", "(", re.sub(r",\s+", ", ", rows))
    assert "sum2 = gl.full((64, 256), 0.0, gl.float32, MMA_256)" in text
    for tile in ("q_ring.index(q_here)", "kv_ring.index(kv_ring_slot)"):
        assert f"{tile}.reshape([64, 512])" in text
    assert text.count(".slice(group * 256, 256, 1), mul") == 2, "in both loops"
    assert len(re.findall(r"copy_in\(\s*kv_tiles", rest)) == 2, "each tile comes once for all"
    assert "kv_ring = gl.allocate_shared_memory(gl.bfloat16, [2, 1, 64, 512]" in rest
    assert "mbarrier.init(kv_ring_free.index(slot), count=2)" in rest


def branches(loop: str) -> tuple[str, str, str]:
    """What the first group does alone in a step, what the others do instead, and what all do then."""
    alone, rest = loop.split("if group == 0:", 1)[1].split("else:", 1)
    others, every = rest.split("given_at += 1", 1)
    return alone, others, every


def test_the_first_group_computes_what_has_no_shared_columns_and_gives_it() -> None:
    rows, rest = text_of(program("latent")).split("def main_copies(")
    loops = re.split(r"^ +for t0 in ", rows, flags=re.M)[1:]
    assert len(loops) == 2
    for loop in loops:
        alone, others, every = branches(loop)
        assert alone.count("warpgroup_mma(") == 2 and "gl.reduce(" in alone and "exp2_flushed(" in alone
        order = ["given_free.index(0), given_at & 1 ^ 1", ".store(exp", "fence_async_shared()", "given_full"]
        places = [alone.index(x) for x in order]
        assert places == sorted(places)
        assert "exp2_flushed" not in others and "warpgroup_mma(" not in others
        order = ["given_full.index(0), given_at & 1)", ".load(ROWS_64)", "_left = given_room_2.index(0)"]
        places = [others.index(x) for x in order]
        assert places == sorted(places)
        for ring in ("kv_ring_full", "k_rope_ring_free"):  # what the others wait for, and free unread
            assert others.count(ring) == alone.count(ring) == 1
        assert (
            every.index("warpgroup_mma(")
            < every.index("gl.sum(")
            < every.index("given_free.index(0), count=1")
        )
    behind = loops[0].split("given_at += 1")[1].split("else:")[-1]
    assert re.findall(r"(\w+) = given_room\w*\.index\(0\)\.load", behind) == ["max", "sum"]
    assert "mbarrier.init(given_full.index(0), count=1)" in rest
    assert "mbarrier.init(given_free.index(0), count=1)" in rest
    assert "turns" not in rows


def test_a_tile_of_first_and_last_products_is_not_held_for_another_step_where_there_are_two() -> None:
    """Else nothing could be copied meanwhile. Then groups take turns, and nothing is left to a next step."""
    shared = (FOLDER / "latent.tiles").read_text().replace("Q2 = 512", "Q2 = 256")
    shared = shared.replace("Q2 by 512", "Q2 by 256").replace("S by 64", "S by 128")
    rows = text_of(parse_tiles(shared)).split("def main_copies(")[0]
    assert "_before" not in rows and "_left" not in rows and "given" not in rows
    loop = rows[rows.index("for t0 in range(") :]
    loop = loop[: loop.index("for t0", 1)]
    places = [loop.index(x) for x in ("turns.index(group),", "turns.index((group + 1) % 2)", "gl.reduce(")]
    assert places == sorted(places)
    assert loop.count("warpgroup_mma_wait(0,") == 2
    small = shared.replace("Q2 = 256", "Q2 = 128").replace("Q2 by 256", "Q2 by 128")
    small = small.replace("stages 2", "stages 4")
    assert "_before" in text_of(parse_tiles(small)), "with more turns it may be held"


def test_a_lane_that_products_only_sum_over_lies_in_pieces() -> None:
    """192 columns as three times 64, each copied and multiplied by itself: none are padded to 256."""
    rows, rest = text_of(program("pieces")).split("def main_copies(")
    for piece in range(3):
        left, right = (f"q_ring_slot * 2 + group) * 3 + {piece}", f"k_ring_slot) * 3 + {piece}")
        assert rows.count(left) == rows.count(right) == 3, "first step, loop and what full tiles have left"
    assert "k_ring = gl.allocate_shared_memory(gl.bfloat16, [3 * 2, 1, 128, 64]" in rest
    assert len(re.findall(r"\[q0, t0\w*, 128\]", rest)) == 2
    text = (FOLDER / "pieces.tiles").read_text()
    old = "contract[q2](q, k)"
    assert old in text
    halved = text.replace(old, "contract[q2](half, k)")
    halved = halved.replace("    c_5: f32", "    half[s, q2]: bf16 = add(q, q)\n    c_5: f32", 1)
    with pytest.raises(Infeasible, match="lies in pieces"):
        emit(parse_tiles(halved), described=True, grouped=True)


def test_products_that_are_only_added_have_one_accumulator() -> None:
    rows = text_of(program("latent")).split("def main_copies(")[0]
    assert "dot + dot_2" not in rows and "dot_2" not in rows
    assert len(re.findall(r"^ +dot = warpgroup_mma\(", rows, re.M)) == 2


def test_what_needs_all_columns_is_refused_where_groups_share_them() -> None:
    text = (FOLDER / "latent.tiles").read_text()
    old = "    store out[q0, s, q2] = cast_3\n"
    assert old in text
    new = "    top[s]: bf16 = reduce max[q2](cast_3)\n    all[s, q2]: bf16 = mul(cast_3, top)\n"
    tiles = parse_tiles(text.replace(old, new + old.replace("cast_3", "all")))
    with pytest.raises(Infeasible, match="reduces what warp groups share"):
        emit(tiles, described=True, grouped=True)
    scaled = text.replace("    c_5: f32", "    twice[s, q2]: bf16 = add(q, q)\n    c_5: f32")
    scaled = scaled.replace("contract[q2](q, kv", "contract[q2](twice, kv")
    with pytest.raises(Infeasible, match="summed over columns of which a group has a part"):
        emit(parse_tiles(scaled), described=True, grouped=True)


def test_two_groups_go_on_from_tile_to_tile_and_three_do_not() -> None:
    for name in NAMES:
        tiles = program(name)
        (entry,) = emit(tiles, described=True, grouped=True).entries
        assert entry.persistent == ("for tile in range(" in text_of(tiles)) == (name != "thirds")
        uneven = name in ("causal", "deep", "edge", "short", "softcap")
        assert [str(axis.index.dim) for axis in entry.uneven] == (["S"] if uneven else [])
        assert ("every other round backwards" in text_of(tiles)) == uneven


@pytest.mark.parametrize("tiles", [1, 7, 8, 9, 16, 23, 24, 61])
def test_a_snake_does_every_tile_once_and_balances_them(tiles: int) -> None:
    blocks, done, load = 8, list[int](), [0] * 8
    text = "\n".join(render(snaked("total"), 0)).replace("tl.minimum", "min")
    text = text.replace("tl.num_programs(0)", str(blocks))
    for block in range(blocks):
        known = {"back": 0, "total": tiles}
        for tile in range(block, tiles, blocks):
            known["tile"] = tile
            exec(text.replace("tl.program_id(0)", str(block)), known)
            done.append(known["pid"])
            load[block] += 4 - known["pid"] % 4  # four lengths in turn, the longest first
    assert sorted(done) == list(range(tiles))
    if tiles % (2 * blocks) == 0:
        assert len(set(load)) == 1


def test_functions_in_few_instructions_unless_numerics_is_strict() -> None:
    text = text_of(program("softcap"))
    assert "= tanh_flushed(" in text and "exp_flushed(" in text and "gl.exp(" not in text
    order = [text.index(f"def {name}(") for name in LEAN]
    assert order == sorted(order), "each is defined before it is called"
    three = text_of(program("thirds"))
    assert "gl.exp2(" in three and "flushed" not in three  # it would spill
    with scope(numerics="strict"):
        strict = text_of(program("softcap"))
    assert "tanh_single_in_group(" in strict and "flushed" not in strict
    assert helpers_for(["tanh_flushed(x)"]) == [LEAN["exp2_flushed"], LEAN["tanh_flushed"]]


def test_the_lean_hyperbolic_tangent_is_within_five_units_in_the_last_place() -> None:
    """With the machine's bounds for its two approximations taken against it: 2^-22 and one unit (PTX ISA,
    ex2.approx and rcp.approx)."""
    one, whole = np.float32, np.float64
    body = LEAN["tanh_flushed"]
    c = [one(v) for v in re.findall(r"(-?\d\.\d{8,}e-\d)", body)]
    x = np.linspace(1e-3, 20, 400_001).astype(one)
    right = np.tanh(x.astype(whole))
    z = x * x

    def fma(a: np.ndarray, b: np.ndarray | np.float32, d: np.ndarray | np.float32) -> np.ndarray:
        return (a.astype(whole) * whole(b) + whole(d)).astype(one)

    near = fma(z, c[0], c[1])
    for value in c[2:]:
        near = fma(near, z, value)
    near = fma(near * z, x, x)
    unit = np.spacing(right.astype(one)).astype(whole)
    worst = 0.0
    for up in (-1, 1):
        raised = np.exp2((x * one(2.8853900817779268)).astype(whole)) * (1 + up * 2.0**-22)
        above = raised.astype(one) + one(1)
        part = (1 / above.astype(whole)).astype(one)
        part = part - up * np.spacing(part)
        far = fma(part, one(-2), one(1))
        off = np.abs(np.where(x < one(0.625), near, far) - right) / unit
        worst = max(worst, float(off.max()))
    assert worst < 5, worst


def test_a_block_is_divided_by_the_reciprocal_of_each_row() -> None:
    rows = text_of(program("short")).split("def main_copies(")[0]
    assert "part = 1.0 / (select_4 * scale)" in rows
    assert "= sum2 * part[:, None] * scale[:, None]" in rows
    with scope(numerics="strict"):
        assert "part = 1.0" not in text_of(program("short"))


def test_division_by_a_reciprocal_is_within_four_units_for_every_divisor() -> None:
    one = np.float32
    magnitudes = one(2.0) ** np.arange(-140, 127, dtype=one)
    by = np.concatenate([magnitudes, magnitudes * one(1.2345678), [one(0), one(np.inf), one(np.nan)]])
    factors = (one(1.0), one(3.3333333), one(0.77777), one(-1.9999999))
    with np.errstate(all="ignore"):
        for factor in factors:
            for value in (by * factor, np.full_like(by, factor)):
                scale = np.where(np.abs(by) < one(SMALL_DIVISOR), one(SCALE_UP), one(1))
                found = value * (one(1) / (by * scale)) * scale
                right = value.astype(np.float64) / by.astype(np.float64)
                near = np.abs(right) < 2.0**-126  # there a unit is not relative
                unit = np.where(near, 2.0**-126, np.spacing(np.abs(right).astype(one)))
                finite = np.isfinite(right.astype(one))
                assert (np.abs(found - right)[finite] <= 4 * unit[finite]).all()
                assert np.array_equal(found[~finite], right.astype(one)[~finite], equal_nan=True)


def test_late_products_start_behind_the_next_steps_first() -> None:
    rows = text_of(program("attention"))
    loop = rows[rows.index("for t0_2 in range(") :]
    loop = re.sub(r"\(\s+", "(", re.sub(r",\s+", ", ", loop))
    first, late = loop.index("use_acc=False"), loop.index("_left, v_ring")
    assert first < late < loop.index("warpgroup_mma_wait(1,") < loop.index("warpgroup_mma_wait(0,")


def test_groups_take_turns_only_where_special_functions_take_as_long_as_products() -> None:
    assert "turns.index(group)" in text_of(program("attention"))  # 64 columns for each exponential
    assert "turns.index(group)" not in text_of(program("causal"))  # 128
    assert "turns.index(group)" not in text_of(program("chain"))  # none


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("s: S by 128", "s: S by 32", "32 rows for 2 warp groups"),
        ("groups 2", "groups 7", "asks for 7 warp groups"),
        ("bf16", "f32", "warp groups want 16 bits"),
        ("t: T by 128", "t: T by 512", "is no share of rows"),
    ],
)
def test_what_does_not_fit_is_refused(old: str, new: str, reason: str) -> None:
    with pytest.raises(Infeasible, match=reason):
        emit(changed("attention", old, new), described=True, grouped=True)


def test_a_computed_right_operand_is_refused() -> None:
    text = (FOLDER / "gate.tiles").read_text()
    old = "      dot[s, w11]: f32 = contract[x1](x, w1)\n"
    new = "      twice[x1, w11]: bf16 = add(w1, w1)\n      dot[s, w11]: f32 = contract[x1](x, twice)\n"
    assert old in text
    with pytest.raises(Infeasible, match="no rows and is used outside of products"):
        emit(parse_tiles(text.replace(old, new)), described=True, grouped=True)


@pytest.mark.parametrize(
    "name",
    ["gate", *(pytest.param(n, marks=pytest.mark.slow) for n in NAMES if n != "gate")],
)
def test_compiles_for_capability_9_without_spills(name: str) -> None:
    (report,) = compile_for(emit(program(name), described=True, grouped=True))
    assert report.wgmma >= 8
    assert report.shared <= 227 * 1024
    assert report.spills <= MINOR_SPILLS


def test_what_follows_and_what_is_needed() -> None:
    loop = next(s for s in program("attention").kernels[0].body if isinstance(s, Loop))
    scores = next(s.out for s in loop.body if isinstance(s, ContractTile))
    assert {target for target, _ in loop.updates}.isdisjoint(depending(loop.body, {scores}))
    assert needed(loop.body, {scores}) >= {scores}
    assert not any(name.startswith("exp") for name in needed(loop.body, {scores}))


def test_lines_of_triton_are_translated() -> None:
    assert translated("x = tl.reduce(y, 1, larger)") == "x = gl.reduce(y, 1, larger_in_group)"
    assert (
        translated("x = align_down(tl.minimum(T, s), 64)") == "x = align_down_in_group(gl.minimum(T, s), 64)"
    )
    same = "tl.PropagateNan.ALL"
    assert translated(same) == same


def test_layouts_are_defined_before_they_are_used() -> None:
    lines = layouts_for(["gl.convert_layout(x, LEFT_64)", "MMA_512", "SHARED_64_128_float16"])
    assert [line.split(" = ")[0] for line in lines] == [
        "MMA_64",
        "LEFT_64",
        "MMA_512",
        "SHARED_64_128_float16",
    ]
    assert "[16, 256, 16]" in lines[2], "an instruction has 256 columns at most"
