"""What the cost model counts, and that it ranks the plain cases the right way round."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from pathlib import Path

import pytest

from candidates import CASES
from cleave.ir.dims import Atom, Dim
from cleave.schedule.cost import cost_of, held_bytes, in_turn, kernel_cost, streams
from cleave.schedule.cuts import plans
from cleave.schedule.family import Families
from cleave.schedule.kernels import build, forms, input_tensors, output_roots
from cleave.schedule.machine import CPU, H200, Machine, width
from cleave.schedule.merging import apart
from cleave.schedule.parse import parse_tiles
from cleave.schedule.room import bytes_of, only_loads, room_of, shared_bytes
from cleave.schedule.select import Ranked, best, choose_parts
from cleave.schedule.space import tilings
from cleave.schedule.tiles import Kernel


def ranked(name: str, machine: Machine, **sizes: int) -> tuple[tuple[Ranked, ...], dict[Dim, int]]:
    candidate = CASES[name].candidate
    bound = candidate.program.bind({Atom(a): n for a, n in sizes.items()})
    return best([candidate], bound, machine), bound


def test_flops_of_a_product_are_counted_once() -> None:
    found, _ = ranked("matmul", CPU, M=256, K=512, N=128)
    assert all(r.cost.flops == 2 * 256 * 512 * 128 for r in found)


def test_causal_attention_costs_half() -> None:
    found, _ = ranked("attention", CPU, S=4096, T=4096)
    full = 2 * 2 * 8 * 4096 * 4096 * 16
    assert 0.45 * full < found[0].cost.flops < 0.6 * full


def test_memory_is_at_least_what_goes_in_and_out() -> None:
    for machine in (CPU, H200):
        found, _ = ranked("rms_linear", machine, N=256, K=2048, O=2048)
        least = 4 * (256 * 2048 + 2048 + 2048 * 2048 + 256 * 2048)
        for r in found:
            assert r.cost.memory >= 0.99 * least
            assert r.cost.seconds >= least / machine.memory


def test_small_tiles_of_a_large_product_are_dearer() -> None:
    from dataclasses import replace

    found, sizes = ranked("matmul", H200, M=4096, K=4096, N=4096)
    kernel = found[0].tiles.kernels[0]
    small = replace(kernel, grid=tuple(replace(a, tile=16) for a in kernel.grid))
    assert kernel_cost(small, sizes, H200, {}).seconds > 2 * kernel_cost(kernel, sizes, H200, {}).seconds


def test_decode_is_split_on_a_gpu_and_prefill_is_not() -> None:
    decode, _ = ranked("attention", H200, S=1, T=8192)
    prefill, _ = ranked("attention", H200, S=8192, T=8192)
    assert decode[0].tiles.splits
    assert not prefill[0].tiles.splits


@pytest.mark.parametrize("name", ["attention_split", "softmax", "layer_norm", "low_rank", "total"])
def test_the_program_costs_what_its_kernels_cost(name: str) -> None:
    case = CASES[name]
    sizes = case.bound()
    for r in best([case.candidate], sizes, H200, 3):
        parts = choose_parts(r.tiles, sizes, H200)
        each = [kernel_cost(k, sizes, H200, parts) for k in r.tiles.kernels]
        total = cost_of(apart(r.tiles), sizes, H200, parts)
        following = H200.following * (len(each) - 1)
        assert total.seconds == pytest.approx(sum(c.seconds for c in each) - following)
        assert total.launches == len(each)
        assert r.cost.launches == sum(not k.merged for k in r.tiles.kernels)


def test_empty_grids_cost_a_launch() -> None:
    found, sizes = ranked("matmul", CPU, M=64, K=64, N=64)
    nothing = {**sizes, Atom("M"): 0}
    assert kernel_cost(found[0].tiles.kernels[0], nothing, CPU, {}).seconds == CPU.launch


def test_one_row_reads_whole_rows_of_the_weight() -> None:
    """Rows of memory that lie one behind the other are read faster than pieces of them, so that the depth is
    split and not the columns (measured: 8 KiB runs take 0.75 of the time of 4 KiB)."""
    found, sizes = ranked("matmul", CPU, M=1, K=2048, N=2048)
    first = found[0].tiles
    assert first.splits == (Atom("K"),)
    assert {a.index.dim: a.tile for a in first.kernels[0].grid}[Atom("N")] == 2048
    halves = next(r for r in found if not r.tiles.splits and r.cost.blocks >= 2)
    assert 1.1 < halves.cost.seconds / found[0].cost.seconds < 1.6
    assert halves.cost.memory > 1.2 * cost_of(first, sizes, CPU, choose_parts(first, sizes, CPU)).memory


def test_the_last_block_may_be_short_and_the_others_then_go_on_without_it() -> None:
    """3072 columns in tiles of 2048: one core reads two thirds, at first with the other one beside it."""
    found, sizes = ranked("matmul", CPU, M=1, K=256, N=3072)
    blocks = {t: k for r in found for k in r.tiles.kernels for t in [tile_of(k, "N")] if len(k.grid) == 2}
    kernel, machine = blocks[1536], replace(CPU, short_run=0.0)
    grid = tuple(replace(a, tile=2048) if a.index.dim == Atom("N") else a for a in kernel.grid)
    even = kernel_cost(kernel, sizes, machine, {})
    uneven = kernel_cost(replace(kernel, grid=grid), sizes, machine, {})
    assert even.flops == 2 * 256 * 3072 and uneven.flops == 2 * 256 * 4096  # as long as the longest takes
    assert uneven.memory == pytest.approx(even.memory, rel=0.01)
    assert uneven.seconds / even.seconds == pytest.approx(1 + (2 * CPU.drawing - 1) / 3, rel=0.05)


def tile_of(kernel: Kernel, dim: str) -> int:
    """The tile of a grid's dim; 0 without it."""
    return next((a.tile for a in kernel.grid if a.index.dim == Atom(dim)), 0)


def test_one_thread_spares_the_meeting_and_draws_less_of_the_memory() -> None:
    found, sizes = ranked("matmul", CPU, M=1, K=2048, N=2048)
    single = next(r for r in found if r.cost.blocks == 1).tiles.kernels[0]
    two, one = (kernel_cost(single, sizes, replace(CPU, cores=n), {}).seconds for n in (2, 1))
    assert two == pytest.approx(one * 2 * CPU.drawing, rel=0.1)
    halves = next(r for r in found if r.cost.blocks == 2 and not r.tiles.splits).tiles.kernels[0]
    tiny = {**sizes, Atom("K"): 16, Atom("N"): 2048}
    assert kernel_cost(halves, tiny, CPU, {}).seconds < CPU.launch
    assert kernel_cost(halves, tiny, replace(CPU, gathering=0.0), {}).seconds > CPU.launch


@pytest.mark.parametrize("launch", [2e-6, 1e-7, 0.0])
def test_no_cost_is_negative_where_a_machine_launches_faster_than_it_gathers(launch: float) -> None:
    """A machine's file may give one of both alone: what a lone thread spares is a part of a launch."""
    found, sizes = ranked("matmul", CPU, M=1, K=16, N=64)
    quick = replace(CPU, launch=launch)
    for r in found:
        cost = cost_of(r.tiles, sizes, quick, choose_parts(r.tiles, sizes, quick))
        work = cost_of(r.tiles, sizes, replace(quick, launch=0.0, gathering=0.0), {}).seconds
        assert cost.seconds >= work > 0
    softmax, sizes = ranked("softmax", H200, N=4, K=16)
    many = in_turn(replace(softmax[0].cost, seconds=3 * launch, launches=3), replace(H200, launch=launch))
    assert many.seconds >= 0


def test_few_bytes_are_still_in_the_last_cache() -> None:
    found, _ = ranked("matmul", CPU, M=1, K=64, N=4096)
    assert all(r.cost.memory < 2 * 4 * 4096 and r.cost.loaded >= 4 * 64 * 4096 for r in found)


def test_widths() -> None:
    assert [width(d) for d in ("f64", "f32", "bf16", "i8", "bool")] == [8, 4, 2, 1, 1]


@pytest.mark.parametrize(("rows", "width_", "warps"), [(16, 32768, 32), (8192, 32768, 32), (4096, 4096, 8)])
def test_a_row_that_fits_is_kept_by_as_many_threads_as_keep_it_short(
    rows: int, width_: int, warps: int
) -> None:
    found, _ = ranked("softmax", H200, N=rows, K=width_)
    tiles = found[0].tiles
    (kernel,) = tiles.kernels
    assert [w.tile for w in kernel.whole] == [width_], "the row is read more than once"
    assert dict(tiles.limits) == {Atom("K"): width_}
    assert kernel.warps == warps


def test_a_row_that_no_block_can_keep_is_read_again() -> None:
    found, _ = ranked("softmax", H200, N=8192, K=131072)
    assert not any(w.index.dim == Atom("K") for r in found for k in r.tiles.kernels for w in k.whole)


def test_what_is_held_and_multiplied_as_loaded_is_the_same_of_kernel_and_tiling() -> None:
    """So that a kernel gets the part count at launch that it was ranked with."""
    for name in ("matmul", "attention", "rms_linear", "swiglu", "low_rank"):
        candidate = CASES[name].candidate
        sizes = CASES[name].bound()
        plan = plans(candidate, sizes, H200)[0]
        order = [*input_tensors(candidate.program), *(s.name for s in plan.workspaces)]
        order += [r.tensor.name for r in output_roots(candidate.program)]
        for spec in plan.specs:
            made = build(forms(spec, sizes, H200)[0])
            for tiling in tilings(made, sizes, H200):
                kernel = Families(made).of(tiling, H200, order)
                written = kernel.kernel(tiling)
                assert streams(written) == only_loads(made.graph)
                if not tiling.groups and streams(written):
                    assert held_bytes(written) == shared_bytes(made, tiling), name


def test_what_an_operand_is_computed_from_takes_as_many_stages() -> None:
    """Triton loads ahead whatever a product is made of: a normed row, and what it is normed with."""
    candidate, sizes = CASES["rms_linear"].candidate, CASES["rms_linear"].bound()
    found = 0
    for spec in plans(candidate, sizes, H200)[0].specs:
        made = build(forms(spec, sizes, H200)[0])
        behind = room_of(made).behind
        for tiling in tilings(made, sizes, H200):
            if behind and not tiling.groups:
                more = replace(tiling, stages=tiling.stages + 1)
                one = bytes_of(room_of(made).loaded, tiling) + bytes_of(behind, tiling)
                assert shared_bytes(made, more) - shared_bytes(made, tiling) == one
                found += 1
    assert found


def test_a_second_loop_over_a_dim_waits_for_its_first_tiles() -> None:
    """Plain kernels begin to load anew at the edge of a mask; warp groups go on in one pipeline."""
    folder = Path(__file__).parents[1] / "cases" / "groups"
    (kernel,) = parse_tiles((folder / "causal.tiles").read_text()).kernels
    known = {"S": 512, "T": 512, "K0": 8, "N": 4, "Q2": 128, "V2": 128}
    sizes: dict[Dim, int] = {Atom(name): size for name, size in known.items()}
    slow = replace(H200, reopening=H200.reopening + 1.0)
    for groups, least, most in ((0, 0.5, 4.0), (2, 0.0, 0.0)):
        own = replace(kernel, groups=groups)
        before, after = (kernel_cost(own, sizes, machine, {}).seconds for machine in (H200, slow))
        assert least <= after - before <= most, "once for each of a core's blocks"


def test_blocks_that_only_multiply_are_no_more_than_have_room() -> None:
    """64 columns of 4096 in 64 blocks, 128 rows of each operand a step and four steps on their way: a core
    holds one, so two parts make one wave; a block that computes an operand wants another one beside."""
    found, sizes = ranked("matmul", H200, M=64, K=4096, N=4096)
    split = next(r for r in found if r.tiles.splits)
    kernel = split.tiles.kernels[0]
    blocks = kernel_cost(kernel, sizes, H200, choose_parts(split.tiles, sizes, H200)).blocks
    room = H200.core_bytes // held_bytes(kernel)
    assert blocks <= H200.cores * max(1, min(2, room))


@pytest.mark.parametrize("machine", [CPU, H200], ids=lambda m: m.kind)
@pytest.mark.parametrize("name", ["attention", "attention_split"])
def test_loops_that_never_run_cost_nothing_odd(name: str, machine: Machine) -> None:
    """Causal rows before the first key read nothing: no amount is divided by that."""
    for keys in (1, 16):
        found, sizes = ranked(name, machine, S=512, T=keys)
        for r in found:
            parts = choose_parts(r.tiles, sizes, machine)
            costs = [r.cost, *(kernel_cost(k, sizes, machine, parts) for k in r.tiles.kernels)]
            for cost in costs:
                amounts = (cost.seconds, cost.memory, cost.loaded, cost.flops, cost.specials, cost.vectors)
                assert all(isfinite(a) and a >= 0 for a in amounts), amounts
                assert cost.seconds > 0
