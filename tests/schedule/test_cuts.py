"""Where programs are cut: operands that are worth a kernel of their own, and what is stored."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from candidates import CASES, arguments
from cleave.algebra.search import search
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Atom, Dim
from cleave.ir.program import Program
from cleave.ir.reference import evaluate
from cleave.ir.text import parse_program
from cleave.schedule.cuts import Plan, plans
from cleave.schedule.interpret import run
from cleave.schedule.machine import CPU, H200, Machine
from cleave.schedule.operands import operands
from cleave.schedule.select import _assembled, best
from cleave.schedule.text import parse_tiles, print_tiles
from cleave.schedule.verify import verify

CONVERTED = """
program converted(x: f32[S, K], w: i8[K, N]) {
  wide[k: K, n: N]: f32 = cast(w[k, n])
  out[s: S, n: N]: f32 = contract[k: K](x[s, k], wide[k, n])
  return out[s, n]
}
"""
LOW_RANK = """
program low_rank(x: f32[S, K], w: f32[K, N], a: f32[K, R], b: f32[R, N]) {
  wide[s: S, n: N]: f32 = contract[k: K](x[s, k], w[k, n])
  down[s: S, r: R]: f32 = contract[k: K](x[s, k], a[k, r])
  up[s: S, n: N]: f32 = contract[r: R](down[s, r], b[r, n])
  out[s: S, n: N]: f32 = add(wide[s, n], up[s, n])
  return out[s, n]
}
"""
GATED = """
program gated(x: f32[S, K], u: f32[K, F], w: f32[K, F], v: f32[F, N]) {
  square[s: S, k: K]: f32 = mul(x[s, k], x[s, k])
  total[s: S]: f32 = sum[k: K](square[s, k])
  factor[s: S]: f32 = rsqrt(total[s])
  y[s: S, k: K]: f32 = mul(x[s, k], factor[s])
  z[s: S, f: F]: f32 = contract[k: K](y[s, k], u[k, f])
  minus[s: S, f: F]: f32 = neg(z[s, f])
  grown[s: S, f: F]: f32 = exp(minus[s, f])
  more[s: S, f: F]: f32 = add(grown[s, f], 1)
  gate[s: S, f: F]: f32 = div(z[s, f], more[s, f])
  other[s: S, f: F]: f32 = contract[k: K](y[s, k], w[k, f])
  both[s: S, f: F]: f32 = mul(gate[s, f], other[s, f])
  out[s: S, n: N]: f32 = contract[f: F](both[s, f], v[f, n])
  return out[s, n]
}
"""
TURNED = """
program turned(q: f32[S, D], k: f32[T, D], v: f32[T, E], a: f32[S, H], c: f32[T, H])
where D = 10, H = 5, E = 8 {
  q1[s: S, h: H]: f32 = mul(q[s, h], a[s, h])
  q2[s: S, h: H]: f32 = mul(q[s, h + 5], a[s, h])
  qs[s: S, h: H]: f32 = sub(q1[s, h], q2[s, h])
  qa[s: S, h: H]: f32 = add(q1[s, h], q2[s, h])
  qt[s: S, g: (H | H)]: f32 = cat[g = h | j](qs[s, h], qa[s, j])
  k1[t: T, h: H]: f32 = mul(k[t, h], c[t, h])
  k2[t: T, h: H]: f32 = mul(k[t, h + 5], c[t, h])
  ks[t: T, h: H]: f32 = sub(k1[t, h], k2[t, h])
  ka[t: T, h: H]: f32 = add(k1[t, h], k2[t, h])
  joined[t: T, g: (H | H)]: f32 = cat[g = h | j](ks[t, h], ka[t, j])
  kt[t: T, g: (H | H)]: f32 = mul(joined[t, g], 0.5)
  score[s: S, t: T]: f32 = contract[g: (H | H)](qt[s, g], kt[t, g])
  top[s: S]: f32 = max[t: T](score[s, t])
  less[s: S, t: T]: f32 = sub(score[s, t], top[s])
  weight[s: S, t: T]: f32 = exp(less[s, t])
  total[s: S]: f32 = sum[t: T](weight[s, t])
  mean[s: S, e: E]: f32 = contract[t: T](weight[s, t], v[t, e])
  out[s: S, e: E]: f32 = div(mean[s, e], total[s])
  return out[s, e]
}
"""
LARGE: Mapping[str, int] = {"S": 2048, "T": 2048, "K": 2048, "N": 4096, "F": 4096, "R": 64}
SMALL: Mapping[str, tuple[str, tuple[Mapping[str, int], ...]]] = {
    "converted": (CONVERTED, ({"S": 5, "K": 3, "N": 17}, {"S": 33, "K": 20, "N": 1})),
    "low rank": (LOW_RANK, ({"S": 3, "K": 19, "N": 5, "R": 5}, {"S": 17, "K": 2, "N": 33, "R": 1})),
    "gated": (GATED, ({"S": 5, "K": 17, "F": 3, "N": 9}, {"S": 1, "K": 5, "F": 33, "N": 7})),
    "turned": (TURNED, ({"S": 5, "T": 9}, {"S": 17, "T": 3})),
}


def sized(program: Program, **sizes: int) -> dict[Dim, int]:
    """Large sizes for the dynamic dims, except for those given."""
    return program.bind({atom: {**LARGE, **sizes}[atom.name] for atom in program.dynamic})


def planned(text: str, machine: Machine = H200, **sizes: int) -> dict[str, Plan]:
    """The plans of a program with the Folds that algebra finds, by form."""
    candidate = candidate_of(text)
    return {plan.form: plan for plan in plans(candidate, sized(candidate.program, **sizes), machine)}


def candidate_of(text: str) -> Candidate:
    return search(parse_program(text)).candidates[0]


def stored(plan: Plan) -> list[list[str]]:
    """What each kernel of a plan stores."""
    return [[root.tensor.name for root in spec.roots] for spec in plan.specs]


def test_an_operand_that_is_converted_is_stored_where_many_tiles_read_it() -> None:
    many = planned(CONVERTED)
    assert stored(many["operands"]) == [["ws_wide"], ["out"]]
    assert many["operands"].workspaces[0].layout == ((Atom("K"),), (Atom("N"),))
    few = planned(CONVERTED, S=16)
    assert "operands" not in few
    cpu = planned(CONVERTED, CPU)
    assert stored(cpu["operands"]) == [["ws_wide"], ["out"]]


def test_an_operand_that_is_a_product_is_stored_where_computing_it_again_takes_time() -> None:
    many = planned(LOW_RANK)
    assert stored(many["operands and cut"]) == [["ws_down"], ["out"]]
    few = planned(LOW_RANK, S=16, R=16)
    assert "operands and cut" not in few


def test_on_a_cpu_a_product_of_products_may_be_one_kernel_or_two() -> None:
    """A norm that fits a block stays in it, and what both products make of a row is stored or not."""
    found = planned(GATED, CPU, S=1, K=1024)
    assert stored(found["products"]) == [["ws_both"], ["out"]]
    assert stored(found["one pass"]) == [["out"]]
    candidate = candidate_of(GATED)
    sizes = sized(candidate.program, S=1, K=1024, F=2816, N=1024)
    first = best([candidate], sizes, CPU)[0].tiles
    assert len([k for k in first.kernels if not k.name.endswith("_merge")]) == 2


def test_what_is_read_twice_is_stored_behind_its_last_reader() -> None:
    """x * sigmoid(x) of a product: one kernel with both products stores the operand of the next one."""
    for machine in (CPU, H200):
        found = planned(GATED, machine)
        assert stored(found["step by step"]) == [["ws_factor"], ["ws_both"], ["out"]]
    assert stored(found["operands and cut"]) == [["ws_y"], ["ws_both"], ["out"]]
    second = found["operands and cut"].specs[1]
    assert {second.program.names[node] for node in second.stored} == {"y"}


def test_folds_below_a_stored_operand_are_left_out_and_others_kept() -> None:
    """The softmax stays one loop; the Fold of a norm and the product behind it would compute it again."""
    found = planned(TURNED)
    main = found["operands"].specs[-1]
    assert any(len(fold.values) == 3 for fold in main.folds)
    gated = planned(GATED)
    product = gated["operands and cut"].specs[1]
    named = [{product.program.names[value.node] for value in fold.values} for fold in product.folds]
    assert all("z" not in names for names in named)
    assert all("total" not in names or len(names) == 1 for names in named)


def test_a_concatenation_is_stored_part_by_part() -> None:
    """Each part once, at its place: no part is computed at the places of the other ones."""
    found = planned(TURNED)
    plan = found["operands"]
    assert stored(plan) == [["ws_qt", "ws_qt"], ["ws_kt", "ws_kt"], ["out"]]
    assert [root.part for root in plan.specs[1].roots] == [(1, 0), (1, 1)]
    candidate = candidate_of(TURNED)
    ranked = _assembled(candidate, plan, sized(candidate.program), H200, 1)[0]
    text = print_tiles(ranked.tiles)
    assert "store ws_kt[t, h]" in text and "store ws_kt[t, h + H]" in text
    assert "select" not in text.split("kernel main")[0]
    steps = text.split("kernel main")[1].count("for t: ")
    assert text.split("kernel main")[1].count("contract[u](ws_qt, ws_kt") == steps, "it is read as one"


def test_an_operand_that_a_block_holds_is_not_computed_again() -> None:
    """Attention with scaled queries: a block loops over the keys with its queries at hand."""
    case = CASES["attention"]
    sizes = sized(case.candidate.program)
    assert operands(case.candidate.program, sizes, H200).plain == ()
    assert all(plan.form != "operands" for plan in plans(case.candidate, sizes, H200))


@pytest.mark.parametrize("name", SMALL)
def test_every_plan_is_right(name: str) -> None:
    """Planned at large sizes, run at small odd ones."""
    text, small = SMALL[name]
    candidate = candidate_of(text)
    bound = sized(candidate.program)
    checked: set[str] = set()
    for plan in plans(candidate, bound, H200):
        if plan.form == "one pass":
            continue
        for ranked in _assembled(candidate, plan, bound, H200, 2)[:2]:
            verify(ranked.tiles)
            assert parse_tiles(print_tiles(ranked.tiles)) == ranked.tiles
            for seed, given in enumerate(small):
                sizes = sized(candidate.program, **given)
                if any(sizes[atom] > limit for atom, limit in ranked.tiles.limits):
                    continue
                inputs = arguments(candidate.program, sizes, seed)
                found = run(ranked.tiles, inputs, parts=dict.fromkeys(ranked.tiles.splits, 3))
                wanted = evaluate(candidate.program, inputs, sizes)["out"]
                np.testing.assert_allclose(found["out"], wanted, rtol=1e-9, atol=1e-9)
                checked.add(plan.form)
    assert checked & {"operands", "operands and cut"}


@pytest.mark.parametrize("name", SMALL)
def test_storing_operands_pays_on_a_gpu(name: str) -> None:
    """By the cost model, where the operand is computed again hundreds of times."""
    candidate = candidate_of(SMALL[name][0])
    chosen = best([candidate], sized(candidate.program), H200, 1)[0].tiles
    assert any(space.name.startswith("ws_") for space in chosen.workspaces)
