"""Tile choices: roles, lanes, what fits, and that the space stays small."""

from __future__ import annotations

import pytest

from candidates import CASES
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Atom, Dim
from cleave.ir.parse import parse_program
from cleave.schedule.choices import MOST_LOOPS
from cleave.schedule.cuts import plans
from cleave.schedule.kernels import Built, build, forms
from cleave.schedule.machine import CPU, H200, Machine
from cleave.schedule.room import fits
from cleave.schedule.select import best
from cleave.schedule.space import limits_of, power, roles_of, spread, tilings
from cleave.schedule.walks import loops_of


def built(name: str, machine: Machine, **sizes: int) -> tuple[Built, dict[Dim, int]]:
    candidate = CASES[name].candidate
    bound = candidate.program.bind({Atom(a): n for a, n in sizes.items()})
    spec = plans(candidate, bound, machine)[0].specs[0]
    return build(forms(spec, bound, machine)[0]), bound


def test_roles_of_grouped_attention() -> None:
    graph, sizes = built("attention", CPU, S=64, T=64)
    roles = roles_of(graph.graph, sizes)
    kv, g, s, d = graph.roots
    assert roles.batch == {kv}
    assert (g, s) in roles.lanes
    assert {g, s} <= roles.rows
    assert d in roles.columns
    assert d in roles.costly
    assert s not in roles.costly


def test_a_product_has_no_costly_index() -> None:
    graph, sizes = built("swiglu", CPU, N=64, K=512, F=64)
    assert not roles_of(graph.graph, sizes).costly


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("machine", [CPU, H200], ids=lambda m: m.kind)
def test_the_space_is_small_and_every_index_has_a_tile(name: str, machine: Machine) -> None:
    case = CASES[name]
    sizes = case.bound()
    for plan in plans(case.candidate, sizes, machine):
        for spec in plan.specs:
            for form in forms(spec, sizes, machine):
                graph = build(form)
                found = tilings(graph, sizes, machine)
                assert 1 <= len(found) <= 200
                every = {*graph.roots, *graph.graph.whole, *(x.index for x in graph.graph.loops)}
                for tiling in found:
                    assert every <= tiling.tiles.keys()
                    if machine.kind == "cuda":
                        assert all(t & (t - 1) == 0 for t in tiling.tiles.values()), "not a power of two"


@pytest.mark.parametrize("machine", [CPU, H200], ids=lambda m: m.kind)
def test_chained_products_that_are_computed_again_and_again_have_few_tilings(machine: Machine) -> None:
    """Their kernel has a loop for every product of every operand, with four tiles to choose from each: 28
    loops took all memory of a machine."""
    lines, before = list[str](), "x"
    for number in range(4):
        made = f"p{number}[n: N, m: N]: f32 = contract[k: N]({before}[n, k], {before}[k, m])"
        lines, before = [*lines, made], f"p{number}"
    body = "\n".join(f"  {line}" for line in lines)
    candidate = Candidate(parse_program(f"program p(x: f32[N, N]) {{\n{body}\n  return p3[n, m]\n}}"), ())
    sizes = candidate.program.bind({Atom("N"): 130})
    most = 0
    for plan in plans(candidate, sizes, machine):
        for spec in plan.specs:
            for form in forms(spec, sizes, machine):
                graph = build(form)
                most = max(most, len(graph.graph.loops))
                assert 1 <= len(tilings(graph, sizes, machine)) <= 200
    assert most > MOST_LOOPS
    for found in best([candidate], sizes, machine, count=2):
        assert all(len({x.index for x in loops_of(k.body)}) <= MOST_LOOPS for k in found.tiles.kernels)


def test_products_on_a_gpu_have_sixteen_or_more_in_each_role() -> None:
    graph, sizes = built("attention", H200, S=1, T=4096)
    roles = roles_of(graph.graph, sizes)
    for tiling in tilings(graph, sizes, H200):
        for lane in roles.lanes:
            size = 1
            for index in lane:
                size *= tiling.tiles[index]
            assert size >= 16


def test_wide_heads_fit_by_smaller_tiles() -> None:
    graph, sizes = built("attention", H200, S=4096, T=4096)
    assert all(fits(graph, t, H200) for t in tilings(graph, sizes, H200))


def test_a_kept_row_limits_its_size() -> None:
    case = CASES["softmax"]
    sizes = case.bound(1)
    spec = plans(case.candidate, sizes, CPU)[0].specs[0]
    kept = next(f for f in forms(spec, sizes, CPU) if "whole" in f.spans)
    graph = build(kept)
    assert limits_of(tilings(graph, sizes, CPU)[0], graph) == {Atom("K"): 128}


def test_one_row_offers_every_core_of_a_cpu_columns_of_one_length() -> None:
    made, sizes = built("matmul", CPU, M=1, K=768, N=3072)
    tiles = {t.tiles[i] for t in tilings(made, sizes, CPU) for i in t.grid if i.dim == Atom("N")}
    assert 1536 in tiles
    made, sizes = built("matmul", CPU, M=1, K=768, N=3001)
    tiles = {t.tiles[i] for t in tilings(made, sizes, CPU) for i in t.grid if i.dim == Atom("N")}
    assert 1504 in tiles  # whole vectors


def test_spread_gives_to_the_innermost_first() -> None:
    graph, _ = built("attention", CPU, S=64, T=64)
    _, g, s, _ = graph.roots
    assert spread((g, s), 64, {g: 4, s: 1}) == {s: 1, g: 4}
    assert spread((g, s), 64, {g: 4, s: 100}) == {s: 64, g: 1}
    assert [power(n) for n in (0, 1, 2, 3, 64, 65)] == [1, 1, 2, 4, 64, 128]
