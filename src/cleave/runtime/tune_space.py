"""What a tuner tries, and in which order: the likeliest of each kind first, what compiles slowly last; then
the best few with other warps, stages, block orders and ways to load; at last what won at other points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod

import torch

from cleave.ir.dims import Index
from cleave.runtime.naming import program_digest
from cleave.runtime.tune_point import Choice, Result, Tuned
from cleave.runtime.tune_store import RIGHT
from cleave.schedule.text import print_kernel
from cleave.schedule.tiles import ContractTile, Kernel, Loop, Statement, TileProgram

WARPS, STAGES, GROUPS = (2, 4, 8), (1, 2, 3, 4, 5), (1, 4, 8, 16)
ONE_GROUP = (2, 4)
"""Stages of a kernel with one warp group."""
ROW_WARPS, ROW_STAGES = (2, 4, 8, 16, 32), (4,)
"""The same for kernels without products, whose loads are not staged."""
HEAVY = 2048
"""Multiplications without matrix unit that a thread does for a tile, from which on a kernel compiles last:
they are written out one by one (8192 take over a minute, and spill)."""
LANES = 32


def ordered(choices: Sequence[Choice], target: str) -> list[Choice]:
    """The order in which to build: as they come, but the first of each form of kernels before those that
    differ from one of these by their candidate alone, and on a GPU heavy ones last. What the cost model likes
    best is first: without its time a point counts for nothing."""
    seen: set[object] = set()
    ranks: list[int] = []
    for choice in choices:
        form = tuple(_form(k) for k in choice.tiles.kernels)
        heavy = target == "cuda" and weight(choice.tiles) >= HEAVY
        ranks.append(2 * heavy + (form in seen))
        seen.add(form)
    return [choices[n] for n in sorted(range(len(choices)), key=lambda n: (n > 0, ranks[n], n))]


def _form(kernel: Kernel) -> object:
    loops = tuple(loop.tile for loop in _loops(kernel.body))
    tiles = tuple(axis.tile for axis in kernel.grid), tuple(w.tile for w in kernel.whole)
    how = kernel.warps, kernel.stages, kernel.group, kernel.descriptors, kernel.groups
    return tiles, loops, how


def weight(tiles: TileProgram) -> int:
    """The most multiplications that a thread does for one tile of a contraction without the matrix unit: in
    float64, and in float32 at full precision."""
    full = torch.get_float32_matmul_precision() == "highest"
    apart = {"f32", "f64"} if full else {"f64"}
    most = 0
    for kernel in tiles.kernels:
        extents: dict[Index, int] = {axis.index: axis.tile for axis in kernel.grid}
        extents |= {whole.index: whole.tile for whole in kernel.whole}
        extents |= {loop.index: loop.tile for loop in _loops(kernel.body)}
        operands = _dtypes(kernel.body)
        for statement in _flat(kernel.body):
            if isinstance(statement, ContractTile) and {operands.get(a, "") for a in statement.args} & apart:
                work = prod(extents.get(i, 1) for i in (*statement.axes, *statement.over))
                most = max(most, work // (LANES * kernel.warps))
    return most


def _flat(body: Sequence[Statement]) -> list[Statement]:
    found: list[Statement] = []
    for statement in body:
        found += _flat(statement.body) if isinstance(statement, Loop) else [statement]
    return found


def _loops(body: Sequence[Statement]) -> list[Loop]:
    found: list[Loop] = []
    for statement in body:
        if isinstance(statement, Loop):
            found += [statement, *_loops(statement.body)]
    return found


def _dtypes(body: Sequence[Statement]) -> dict[str, str]:
    """The dtype of each value."""
    return {s.out: s.dtype for s in _flat(body) if hasattr(s, "out")}  # pyright: ignore


def refinements(ranked: Sequence[Result], count: int = 3) -> list[Choice]:
    """The best few with other warps and stages, block orders and ways to load: of these the scheduler makes
    one choice per tiling. Changed is the kernel with the longest text, which does most of the work."""
    found: list[Choice] = []
    for result in ranked[:count]:
        if result.measured.status != RIGHT:
            continue
        kernels = result.choice.tiles.kernels
        dearest = max(range(len(kernels)), key=lambda n: len(print_kernel(kernels[n])))
        old = kernels[dearest]
        if old.groups:  # their number is that of the tile's rows; what can be changed is that there are any
            changed = [replace(old, stages=stages) for stages in STAGES] + [replace(old, groups=0, warps=8)]
        else:
            many = any(isinstance(s, ContractTile) for s in _flat(old.body))
            pairs = product(WARPS, STAGES) if many else product(ROW_WARPS, ROW_STAGES)
            changed = [replace(old, warps=warps, stages=stages) for warps, stages in pairs]
            # One group beside a warp that copies, for the rows of one: the scheduler knows of several only.
            changed += [
                replace(old, warps=4, stages=n, groups=1, descriptors=True) for n in ONE_GROUP if many
            ]
        changed += [] if old.groups else [replace(old, descriptors=not old.descriptors)]
        changed += [replace(old, group=group) for group in GROUPS if len(old.grid) > 1]
        for kernel in dict.fromkeys(changed):
            made = (*kernels[:dearest], kernel, *kernels[dearest + 1 :])
            found.append(replace(result.choice, tiles=replace(result.choice.tiles, kernels=made)))
    return found


def visitors(tuned: Sequence[Tuned]) -> list[tuple[Choice, ...]]:
    """For each point, what won at other points of its program and was not measured here."""
    winners: dict[tuple[str, str], dict[TileProgram, Choice]] = {}
    for one in tuned:
        if one.best is not None:
            own = winners.setdefault((program_digest(one.point.program), one.point.target), {})
            own.setdefault(one.best.choice.tiles, one.best.choice)
    found: list[tuple[Choice, ...]] = []
    for one in tuned:
        own = winners.get((program_digest(one.point.program), one.point.target), {})
        here = {r.choice.tiles for r in one.results}
        limits = [c for t, c in own.items() if t not in here]
        found.append(tuple(c for c in limits if all(one.point.sizes[a] <= n for a, n in c.tiles.limits)))
    return found
