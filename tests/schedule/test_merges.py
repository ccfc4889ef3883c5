"""Splits of attention over its keys on a GPU: how merges are spread, what they cost, and how many warps."""

from __future__ import annotations

from math import ceil

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cleave.frontend.capture import capture
from cleave.ir.dims import Atom, Dim, size_of
from cleave.pipeline import Plan, plan
from cleave.schedule.cost import kernel_cost
from cleave.schedule.machine import H200
from cleave.schedule.select import choose_parts
from cleave.schedule.tiles import Kernel, TileProgram

S, T = Atom("S"), Atom("T")


def planned(width: int, rows: int, shared: bool) -> Plan:
    """Attention of some rows in one head; `shared`: its keys are its values."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax((q @ k.transpose(-1, -2)) * 0.1, -1) @ (k if shared else v)

    with FakeTensorMode():
        q = torch.empty(rows, width, dtype=torch.bfloat16)
        k, v = (torch.empty(4096, width, dtype=torch.bfloat16) for _ in range(2))
        marks = {"q": ("S", None), "k": ("T", None), "v": ("T", None)}
        found = capture(attention, (q, k, v), {}, dynamic=marks)
    return plan(found.program, target="cuda", sizes={S: rows, T: 4096})


def blocks(kernel: Kernel, sizes: dict[Dim, int]) -> int:
    total = 1
    for axis in kernel.grid:
        total *= ceil(size_of(axis.index.dim, sizes) / axis.tile)
    return total


def splits(width: int, rows: int, shared: bool) -> list[tuple[TileProgram, dict[Dim, int]]]:
    """The ways that split the keys, and the sizes of all dims."""
    ranked = [r for r in planned(width, rows, shared).ranked[0] if r.tiles.splits]
    return [(r.tiles, r.candidate.program.bind({S: rows, T: 4096})) for r in ranked]


def test_a_merge_is_spread_over_what_blocks_of_its_parts_span() -> None:
    """A block of the parts has all columns of the keys, to multiply them twice; one that merges need not."""
    apart = [(tiles, sizes) for tiles, sizes in splits(512, 128, True) if not tiles.kernels[1].merged]
    assert apart and any(w.tile == 512 for w in apart[0][0].kernels[0].whole)
    for tiles, sizes in apart:
        assert blocks(tiles.kernels[1], sizes) >= 128


def test_parts_are_merged_several_at_a_time() -> None:
    first, sizes = splits(512, 128, True)[0]
    assert choose_parts(first, sizes, H200)[T] >= 32
    few, many = (kernel_cost(first.kernels[1], sizes, H200, {T: n}).seconds for n in (8, 32))
    assert few < many < few + 24 * 0.5 * H200.step


@pytest.mark.parametrize("rows", [16, 64])
def test_warps_do_not_repeat_the_rows_of_products_in_a_chain(rows: int) -> None:
    """Triton gives a product whose result is multiplied again 16 rows a warp."""
    for ranked in planned(128, rows, False).ranked[0]:
        kernel = ranked.tiles.kernels[0]
        assert kernel.groups or kernel.warps == 4


def test_wide_sums_have_the_registers_of_eight_warps() -> None:
    found = [r.tiles.kernels[0] for r in planned(512, 128, True).ranked[0]]
    wide = [k for k in found if not k.groups and any(axis.tile >= 32 for axis in k.grid)]
    assert wide and all(k.warps == 8 for k in wide)
