"""Which tilings warp groups take: shares of the rows, or of the columns of sums that are too wide for one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cleave.frontend.capture import capture
from cleave.ir.dims import Atom, Dim
from cleave.pipeline import Plan, plan
from cleave.schedule.cost import kernel_cost
from cleave.schedule.groups import COLUMN_REGISTERS, GROUP_ROWS
from cleave.schedule.machine import H200
from cleave.schedule.tiles import Kernel, Loop


def planned(width: int, rows: int) -> Plan:
    """Attention whose keys are its values, of a width, on a GPU."""

    def latent(q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return torch.softmax((q @ kv.transpose(-1, -2)) * 0.1, -1) @ kv

    with FakeTensorMode():
        q = torch.empty(64, rows, width, dtype=torch.bfloat16)
        kv = torch.empty(64, 2048, width, dtype=torch.bfloat16)
        marks = {"q": (None, "S", None), "kv": (None, "T", None)}
        found = capture(latent, (q, kv), {}, dynamic=marks)
    sizes: dict[Dim, int] = {Atom("S"): rows, Atom("T"): 2048}
    return plan(found.program, target="cuda", sizes=sizes)


def kernels(made: Plan) -> list[Kernel]:
    return [r.tiles.kernels[0] for r in made.ranked[0]]


def rows_of(kernel: Kernel) -> int:
    total = 1
    for axis in kernel.grid:
        total *= axis.tile
    return total


def test_groups_share_columns_where_sums_are_too_wide_for_one() -> None:
    first = kernels(planned(512, 128))[0]
    assert first.groups in COLUMN_REGISTERS and rows_of(first) == GROUP_ROWS
    assert first.warps == 4 * first.groups


@pytest.mark.parametrize(("width", "rows"), [(128, 128), (256, 64), (512, 16)])
def test_narrow_sums_and_few_rows_are_not_shared_by_columns(width: int, rows: int) -> None:
    for kernel in kernels(planned(width, rows)):
        assert not kernel.groups or rows_of(kernel) >= GROUP_ROWS * kernel.groups


def test_sums_of_256_columns_fit_beside_scores_of_64_keys() -> None:
    first = kernels(planned(256, 2048))[0]
    assert first.groups == 2 and rows_of(first) == 2 * GROUP_ROWS
    loops = [s for s in first.body if isinstance(s, Loop)]
    assert {loop.tile for loop in loops} == {64}


def test_an_index_that_products_only_sum_over_needs_no_power_of_two() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax((q @ k.transpose(-1, -2)) * 0.1, -1) @ v

    with FakeTensorMode():
        q, k, v = (torch.empty(64, 2048, n, dtype=torch.bfloat16) for n in (192, 192, 128))
        marks = {"q": (None, "S", None), "k": (None, "T", None), "v": (None, "T", None)}
        found = capture(attention, (q, k, v), {}, dynamic=marks)
    made = plan(found.program, target="cuda", sizes={Atom("S"): 2048, Atom("T"): 2048})
    tiles = {k.groups: sorted(w.tile for w in k.whole) for k in reversed(kernels(made))}
    assert tiles[2] == [128, 192] and tiles[0] == [128, 256]


def test_what_one_group_computes_for_all_is_counted_once() -> None:
    sizes: dict[Dim, int] = {Atom("S"): 128, Atom("T"): 2048}
    made = planned(512, 128)
    bound = made.program.bind(sizes)
    shared = kernels(made)[0]
    assert shared.groups
    cost, alone = (kernel_cost(k, bound, H200, {}) for k in (shared, replace(shared, groups=0)))
    assert (cost.flops, cost.specials) == (alone.flops, alone.specials)


def test_a_choice_without_groups_is_always_kept() -> None:
    """For calls whose tensors no descriptor takes."""
    made = planned(128, 2048)
    assert kernels(made)[0].groups
    assert any(not kernel.groups for kernel in kernels(made))


def test_three_groups_have_no_registers_for_sums_of_256_columns() -> None:
    """A kernel of 512 threads is assembled with 128 registers each, and such a product takes 154."""
    with FakeTensorMode():
        x, w = (torch.empty(4096, n, dtype=torch.bfloat16) for n in (4096, 6144))
        found = capture(lambda x, w: x @ w, (x, w), {}, dynamic={"x": ("S", None)})
    made = plan(found.program, target="cuda", sizes={Atom("S"): 4096}, count=64)
    shapes = {(k.groups, *(axis.tile for axis in k.grid)) for k in kernels(made) if k.groups}
    assert shapes and all(rows * columns // (groups * 128) <= 128 for groups, rows, columns in shapes)
    assert all(columns < 256 for groups, _, columns in shapes if groups == 3)


@pytest.mark.parametrize(("width", "first_is_full"), [(128, False), (512, True)])
def test_a_loop_without_predicate_begins_with_its_border_where_sums_are_wide(
    width: int, first_is_full: bool
) -> None:
    """128 columns: code for fewer steps is worth the masks. 512 columns are shared."""
    found = [kernel for kernel in kernels(planned(width, 2048)) if kernel.groups]
    assert found
    for kernel in found:
        loops = [s for s in kernel.body if isinstance(s, Loop)]
        assert [loop.exact for loop in loops] == [first_is_full, not first_is_full]
        assert not any(loop.closed for loop in loops)
