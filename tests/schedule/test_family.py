"""Kernels that are filled in from a family are those that would be written one by one, and cost the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from candidates import CASES
from cleave.ir.dims import Dim, Extent
from cleave.schedule.cost import costs, kernel_cost
from cleave.schedule.counting import column
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


def test_most_tilings_share_a_family() -> None:
    """Writing statements is what planning costs; it is done for few of the tilings that are compared."""
    sizes = CASES["attention"].bound()
    built, order = built_ones("attention", H200)[0]
    families = Families(built)
    every = tilings(built, sizes, H200)
    assert len({families.of(tiling, H200, order) for tiling in every}) * 3 <= len(every)
