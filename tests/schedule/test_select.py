"""Every tile program that the scheduler returns computes what the candidate says: at sizes with tails, with
splits, in any order of blocks, against the float64 reference through the tile interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from candidates import CASES, Case, arguments
from cleave.errors import Infeasible
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Atom, Dim
from cleave.ir.reference import evaluate
from cleave.schedule.interpret import run
from cleave.schedule.machine import CPU, H200, Machine
from cleave.schedule.select import Ranked, best, choose_parts
from cleave.schedule.text import parse_tiles, print_tiles
from cleave.schedule.tiles import TileProgram
from cleave.schedule.verify import verify
from programs import program

MACHINES = {"cpu": CPU, "cuda": H200}


def check(tiles: TileProgram, candidate: Candidate, sizes: dict[Dim, int], seed: int, parts: int = 3) -> None:
    """Compare one tile program with the reference."""
    verify(tiles)
    assert parse_tiles(print_tiles(tiles)) == tiles
    inputs = arguments(candidate.program, sizes, seed)
    wanted = evaluate(candidate.program, inputs, sizes)
    order = ("forward", "reverse", "random")[seed % 3]
    found = run(tiles, inputs, parts=dict.fromkeys(tiles.splits, parts), order=order)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("name", CASES)
def test_every_program_is_right(name: str, kind: str) -> None:
    case = CASES[name]
    for number in range(min(2, len(case.sizes))):
        sizes = case.bound(number)
        for ranked in best([case.candidate], sizes, MACHINES[kind], 3):
            check(ranked.tiles, case.candidate, sizes, number)


@pytest.mark.parametrize("name", ["softmax", "attention", "attention_split", "rms_linear", "layer_norm"])
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_one_program_serves_all_sizes(name: str, data: st.DataObject) -> None:
    """Scheduled at one size, run at others: what has no limits must not depend on the size."""
    case = CASES[name]
    scheduled = case.bound(0)
    sizes = dict(scheduled)
    for atom in case.candidate.program.dynamic:
        sizes[atom] = data.draw(st.integers(1, 45), label=str(atom))
    if Atom("S") in sizes:
        sizes[Atom("T")] = max(sizes[Atom("T")], sizes[Atom("S")])
    parts = data.draw(st.integers(1, 5), label="parts")
    kind = data.draw(st.sampled_from(sorted(MACHINES)))
    free = [r for r in best([case.candidate], scheduled, MACHINES[kind], 3) if not r.tiles.limits]
    assert free
    check(free[0].tiles, case.candidate, sizes, parts, parts)


def test_masked_rows_and_empty_parts_keep_the_first_state() -> None:
    """More queries than keys: the first rows see nothing and parts at the end are empty."""
    case = CASES["attention_split"]
    sizes = case.candidate.program.bind({Atom("S"): 9, Atom("T"): 4})
    inputs = arguments(case.candidate.program, sizes)
    for ranked in best([case.candidate], sizes, CPU, 2):
        found = run(ranked.tiles, inputs, parts={Atom("T"): 7})
        assert np.all(np.isneginf(found["lse"][:, :5]))
        assert np.all(np.isfinite(found["lse"][:, 5:]))
        assert np.all(np.isfinite(found["o"][:, 5:]))


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("sizes", [{"N": 0, "K": 5}, {"N": 3, "K": 0}])
def test_empty_sizes(sizes: dict[str, int], kind: str) -> None:
    case = Case(CASES["softmax"].candidate, (sizes,))
    for ranked in best([case.candidate], case.bound(), MACHINES[kind], 3):
        check(ranked.tiles, case.candidate, case.bound(), 0)
    product = Case(CASES["matmul"].candidate, ({"M": 3, "N": 2, **sizes},))
    for ranked in best([product.candidate], product.bound(), MACHINES[kind], 3):
        check(ranked.tiles, product.candidate, product.bound(), 0)


def _kernels(name: str, machine: Machine = CPU, number: int = 0, **sizes: int) -> tuple[Ranked, ...]:
    case = CASES[name]
    bound = (
        case.candidate.program.bind({Atom(a): n for a, n in sizes.items()}) if sizes else case.bound(number)
    )
    return best([case.candidate], bound, machine)


@pytest.mark.parametrize(
    "name",
    ["softmax", "layer_norm", "rms_linear", "attention", "swiglu", "matmul_matmul", "matmul_rowsum", "mla"],
)
def test_is_one_kernel(name: str) -> None:
    assert [k.name for k in _kernels(name)[0].tiles.kernels] == ["main"]


def test_a_split_is_one_kernel_and_its_merge() -> None:
    tiles = _kernels("attention_split")[0].tiles
    assert [k.name for k in tiles.kernels] == ["main_part", "main_merge"]
    assert tiles.splits == (Atom("T"),)
    assert {w.name for w in tiles.workspaces} == {"part_m", "part_l", "part_acc"}


def test_a_chain_of_large_products_is_cut() -> None:
    tiles = _kernels("matmul_matmul", CPU, M=256, K=2048, L=4096, N=2048)[0].tiles
    assert len(tiles.kernels) == 2
    assert len(tiles.workspaces) == 1


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_rows_are_kept_or_read_twice(name: str) -> None:
    found = _kernels(name, CPU, N=4096, K=2048)
    assert any(r.tiles.limits for r in found), "no form that keeps the row"
    assert any(not r.tiles.limits for r in found), "no form that reads the row twice"


def test_is_deterministic() -> None:
    first = [print_tiles(r.tiles) for r in _kernels("attention", H200)]
    again = [print_tiles(r.tiles) for r in _kernels("attention", H200)]
    assert first == again


def test_parts_fill_the_machine_but_not_more() -> None:
    tiles = _kernels("attention_split", H200, 1, S=1, T=4096)[0].tiles
    few = choose_parts(tiles, tiles_sizes(S=1, T=8192), H200)[Atom("T")]
    many = choose_parts(tiles, tiles_sizes(S=4096, T=8192), H200)[Atom("T")]
    short = choose_parts(tiles, tiles_sizes(S=1, T=5), H200)[Atom("T")]
    assert few > 8
    assert many < few
    assert short == 1
    assert choose_parts(tiles, tiles_sizes(S=1, T=0), H200) == {Atom("T"): 1}


def test_on_the_cpu_parts_read_once_what_two_blocks_would_read_twice() -> None:
    """A block of rows for each core would be enough of them, but each would go through all of the weight."""
    from cleave.ir.parse import parse_program

    rows = parse_program(
        """program rowsum(x: f32[N, K], w: f32[K, O]) where K = 512, O = 32000 {
  p[n: N, o: O]: f32 = contract[k: K](x[n, k], w[k, o])
  out[n: N]: f32 = sum[o: O](p[n, o])
  return out[n]
}
"""
    )
    first = best([Candidate(rows, ())], rows.bind({Atom("N"): 64}), CPU, 8)[0].tiles
    assert [k.name for k in first.kernels] == ["main_part", "main_merge"]
    assert [axis.tile for axis in first.kernels[0].grid] == [1, 64]


def tiles_sizes(**sizes: int) -> dict[Dim, int]:
    """Sizes of the attention case."""
    return CASES["attention"].candidate.program.bind({Atom(a): n for a, n in sizes.items()})


def test_parts_written_out_are_refused_by_name() -> None:
    with pytest.raises(Infeasible, match=r"split_k is written over parts?\(K\)"):
        best([Candidate(program("split_k"), ())], {Atom("M"): 4, Atom("K"): 8, Atom("N"): 4}, CPU)


def test_the_way_that_always_works() -> None:
    """Behind every reduction a kernel: taken when nothing else can be scheduled."""
    from cleave.schedule.cuts import plans
    from cleave.schedule.select import _assembled

    for name in ("attention", "layer_norm", "cross_entropy", "mla"):
        case = CASES[name]
        sizes = case.bound()
        plan = next(p for p in plans(case.candidate, sizes, CPU) if p.form == "step by step")
        assert len(plan.specs) >= 2
        ranked = _assembled(replace(case.candidate, splits=()), plan, sizes, CPU, 1)
        check(ranked[0].tiles, case.candidate, sizes, 1)
