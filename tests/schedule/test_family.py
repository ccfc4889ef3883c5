"""Kernels that are filled in from a family are those that would be written one by one, and cost the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tile_examples as te
from candidates import CASES
from cleave.ir.dims import Atom, Dim, Extent
from cleave.schedule.cost import costs, kernel_cost
from cleave.schedule.counting import Counts, Sheet, Stretch, column, sheet_of
from cleave.schedule.cuts import plans
from cleave.schedule.family import Families, Family
from cleave.schedule.kernels import Built, build, forms, input_tensors, output_roots, split, splittable
from cleave.schedule.machine import CPU, H200, Machine
from cleave.schedule.powers import in_base_two
from cleave.schedule.space import tilings
from cleave.schedule.specs import Spec
from cleave.schedule.tiles import ContractTile, Loop, Statement
from cleave.schedule.tiling import Tiling, write_kernel

MACHINES = {"cpu": CPU, "cuda": H200}
NAMES = (
    "attention",
    "attention_split",
    "rms_linear",
    "layer_norm",
    "cross_entropy",
    "mla",
    "softmax",
    "total",
)


def built_ones(name: str, machine: Machine) -> list[tuple[Built, list[str]]]:
    """The kernels of a case's first plan in their forms, split ones too, with the names of all tensors."""
    case = CASES[name]
    sizes = case.bound()
    plan = plans(case.candidate, sizes, machine)[0]
    program = case.candidate.program
    order = [*input_tensors(program), *(r.tensor.name for r in output_roots(program))]
    order += [space.name for space in plan.workspaces]
    found: list[tuple[Built, list[str]]] = []
    for form in forms(plan.specs[0], sizes, machine):
        built = build(form)
        found.append((built, order))
        for members in splittable(built)[:1]:
            pieces: tuple[Spec, Spec]
            *pieces, spaces = split(form, members, order)
            found += [(build(spec), [*order, *(s.name for s in spaces)]) for spec in pieces]
    return found


def multiplies(body: tuple[Statement, ...]) -> bool:
    return any(isinstance(s, ContractTile) or (isinstance(s, Loop) and multiplies(s.body)) for s in body)


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("name", NAMES)
def test_a_family_is_its_kernels(name: str, kind: str) -> None:
    machine, sizes = MACHINES[kind], CASES[name].bound()
    for built, order in built_ones(name, machine):
        families = Families(built)
        known: dict[Dim, int] = {a: s for a, s in built.spec.program.sizes if not isinstance(s, Extent)}
        members: dict[Family, list[Tiling]] = {}
        for tiling in tilings(built, sizes, machine):
            members.setdefault(families.of(tiling, machine, order), []).append(tiling)
        for family, every in members.items():
            parts = {d.of: 3 for d in (a.index.dim for a in family.first.grid) if hasattr(d, "of")}
            together = costs(
                family.sheet(every), sizes, machine, {d: column([3] * len(every)) for d in parts}
            )
            for row, tiling in [*enumerate(every)][:: max(1, len(every) // 4)]:
                kernel = family.kernel(tiling)
                alone = write_kernel(built.spec.name, built.graph, built.places, tiling, known, order)
                if kind == "cuda":
                    alone = in_base_two(
                        replace(alone, group=kernel.group, descriptors=multiplies(alone.body))
                    )
                assert kernel == alone
                cost = kernel_cost(kernel, sizes, machine, parts)
                assert together.row(row).seconds == pytest.approx(cost.seconds, rel=1e-12)
                assert together.row(row).blocks == cost.blocks
                assert together.row(row).flops == pytest.approx(cost.flops, rel=1e-12)


def test_a_tiling_costs_the_same_whatever_else_is_compared() -> None:
    """Of two depths of a product's steps one reads whole rows, which lie one behind the other in memory."""
    kernels = [te.matmul(n_tile=1, o_tile=256, k_tile=k).tiles.kernels[0] for k in (512, 64)]
    sizes: dict[Dim, int] = {Atom("N"): 1, Atom("O"): 4096, Atom("K"): 512}
    sheets = [sheet_of(kernel) for kernel in kernels]

    def both(part: Callable[[Sheet], Counts]) -> Counts:
        return np.concatenate([part(sheet) for sheet in sheets])

    one, two = sheets
    loops = tuple(
        Stretch(np.concatenate([a.tiles, b.tiles]), (*a.ends, *b.ends))
        for a, b in zip(one.loops, two.loops, strict=True)
    )
    tiles = {index: both(lambda s, i=index: s.tiles[i]) for index in one.tiles}
    widths = (both(lambda s: s.warps), both(lambda s: s.stages), both(lambda s: s.groups))
    together = costs(Sheet(kernels[0], 2, tiles, loops, *widths), sizes, CPU, {})
    alone = [kernel_cost(kernel, sizes, CPU, {}) for kernel in kernels]
    for row, cost in enumerate(alone):
        assert together.row(row).seconds == pytest.approx(cost.seconds, rel=1e-12)
        assert together.row(row).memory == pytest.approx(cost.memory, rel=1e-12)
    assert alone[0].memory < 0.75 * alone[1].memory, "whole rows are no piece each"


def test_most_tilings_share_a_family() -> None:
    """Writing statements is what planning costs; it is done for few of the tilings that are compared."""
    sizes = CASES["attention"].bound()
    built, order = built_ones("attention", H200)[0]
    families = Families(built)
    every = tilings(built, sizes, H200)
    assert len({families.of(tiling, H200, order) for tiling in every}) * 3 <= len(every)
