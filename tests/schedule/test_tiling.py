"""What the tile programs look like: loops that come out of Folds, hoisting, loads counted, names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from candidates import CASES
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Atom
from cleave.ir.program import Program
from cleave.schedule.cuts import plans
from cleave.schedule.kernels import build, forms, partition, unify
from cleave.schedule.machine import CPU, H200, Machine
from cleave.schedule.select import best
from cleave.schedule.text import print_tiles
from cleave.schedule.tiles import (
    Carry,
    Compute,
    ContractTile,
    Kernel,
    Load,
    Loop,
    Statement,
    Store,
    TileProgram,
)
from programs import program


def scheduled(name: str, machine: Machine = CPU, **sizes: int) -> TileProgram:
    """The best tile program of a case at given sizes."""
    candidate = CASES[name].candidate
    return best([candidate], candidate.program.bind({Atom(a): n for a, n in sizes.items()}), machine)[0].tiles


def all_of(body: Sequence[Statement]) -> Iterator[Statement]:
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from all_of(statement.body)


def loops_of(kernel: Kernel) -> list[Loop]:
    return [s for s in all_of(kernel.body) if isinstance(s, Loop)]


@pytest.mark.parametrize("machine", [CPU, H200], ids=lambda m: m.kind)
@pytest.mark.parametrize("name", ["attention", "attention_split"])
def test_decode_loads_each_key_and_value_once_for_all_heads_of_its_group(name: str, machine: Machine) -> None:
    kernel = scheduled(name, machine, S=1, T=4096).kernels[0]
    grid = {axis.index.dim for axis in kernel.grid}
    assert Atom("KV") in grid
    assert Atom("G") not in grid, "the heads of a group are in different blocks"
    assert Atom("D") not in grid, "blocks divide the value's columns and load all keys again"
    loops = loops_of(kernel)
    assert len(loops) == 2
    for loop in loops:
        loads = [s.tensor for s in loop.body if isinstance(s, Load)]
        assert sorted(loads) == ["k", "v"]
    assert not [s for s in kernel.body if isinstance(s, Load) and s.tensor in ("k", "v")]


def test_attention_is_one_loop_with_a_safe_running_maximum() -> None:
    kernel = scheduled("attention", S=512, T=512).kernels[0]
    interior, border = loops_of(kernel)
    assert interior.exact
    assert not border.exact
    assert len([s for s in kernel.body if isinstance(s, Carry)]) == 3
    for loop in (interior, border):
        assert len(loop.updates) == 3
        assert len([s for s in loop.body if isinstance(s, ContractTile)]) == 2
    masks = [s for s in interior.body if isinstance(s, Compute) and s.fn == "le"]
    assert not masks, "the interior carries mask code"
    assert [s for s in border.body if isinstance(s, Compute) and s.fn == "le"]


def test_what_does_not_vary_is_hoisted() -> None:
    kernel = scheduled("attention", S=512, T=512).kernels[0]
    outside = [s.tensor for s in kernel.body if isinstance(s, Load)]
    assert sorted(outside) == ["q", "scale"]


def test_two_products_of_one_input_share_a_loop() -> None:
    kernel = scheduled("swiglu", N=512, K=2048, F=1024).kernels[0]
    for loop in loops_of(kernel):
        assert sorted(s.tensor for s in loop.body if isinstance(s, Load)) == ["gate", "up", "x"]
        assert len(loop.updates) == 2


def test_a_norm_behind_a_product_rides_in_its_loop() -> None:
    kernel = scheduled("rms_linear", N=256, K=2048, O=2048).kernels[0]
    for loop in loops_of(kernel):
        assert sorted(s.tensor for s in loop.body if isinstance(s, Load)) == ["g", "w", "x"]
        assert len(loop.updates) == 2


def test_a_norm_before_a_product_runs_first() -> None:
    tiles = scheduled("rms_linear_first", N=2048, K=4096, O=6144)
    loops = loops_of(tiles.kernels[-1])
    indices = list(dict.fromkeys(loop.index for loop in loops))
    assert len(tiles.kernels) == 2 or [i.dim for i in indices] == [Atom("K"), Atom("K")]


def test_the_latent_of_mla_is_loaded_once_as_key_and_value() -> None:
    kernel = scheduled("mla", H=16, T=512).kernels[0]
    for loop in loops_of(kernel):
        loads = [s for s in loop.body if isinstance(s, Load) and s.tensor == "kv"]
        assert len(loads) == 2, "one load of the latent part, one of the rotary part"


def test_an_output_that_lacks_a_grid_index_is_stored_by_one_block() -> None:
    case = CASES["total"]
    sizes = case.bound(1)
    spec = plans(case.candidate, sizes, CPU)[0].specs[0]
    built = build(forms(spec, sizes, CPU)[0])
    from cleave.schedule.choices import tiled

    kernel = tiled(built, sizes, CPU, ["x", "t", "y"])[0].kernels[0]
    stores = {s.tensor: s.first for s in all_of(kernel.body) if isinstance(s, Store)}
    assert stores["y"] == ()
    assert set(stores["t"]) == {axis.index for axis in kernel.grid}


def test_outputs_share_the_indices_of_what_they_share() -> None:
    case = CASES["attention"]
    spec = plans(case.candidate, case.bound(), CPU)[0].specs[0]
    classes, dims, _ = unify(spec)
    assert classes == ((0, 1, 2, 3), (0, 1, 2))
    assert [str(d) for d in dims] == ["KV", "G", "S", "D"]
    pair = CASES["pair"]
    classes, _, _ = unify(plans(pair.candidate, pair.bound(), CPU)[0].specs[0])
    assert classes == ((0, 1), (1, 0)), "a transposed output has the same indices in another order"


def test_outputs_that_share_nothing_are_kernels_of_their_own() -> None:
    candidate = Candidate(program("slices"), ())
    plan = plans(candidate, candidate.program.bind({Atom("N"): 9, Atom("K"): 6}), CPU)[0]
    assert len(plan.specs) == 3
    together = replace(plan.specs[0], roots=tuple(r for spec in plan.specs for r in spec.roots))
    assert len(partition(together)) == 3


def test_names_come_from_the_program() -> None:
    text = print_tiles(scheduled("attention", S=512, T=512))
    for name in ("qk[", "scaled[", "score[", "log_l[", "carry m[", "carry l[", "carry acc["):
        assert name in text, name


def test_renaming_changes_names_only() -> None:
    """Nothing looks at a name: a program under other names gives the same tile program under these names."""
    p = program("softmax")
    other = Program(p.name, p.inputs, p.outputs, p.sizes, {n: f"z{k}" for k, n in enumerate(p.nodes)}, {})
    sizes = {Atom("N"): 64, Atom("K"): 512}
    first, second = (best([Candidate(x, ())], sizes, CPU)[0].tiles for x in (p, other))
    assert len(first.kernels) == len(second.kernels)
    for a, b in zip(first.kernels, second.kernels, strict=True):
        assert (a.grid, a.whole, a.lanes) == (b.grid, b.whole, b.lanes)
        assert [type(s) for s in all_of(a.body)] == [type(s) for s in all_of(b.body)]


def test_deep_programs_do_not_recurse() -> None:
    from cleave.ir.ops import input_node, map_node
    from cleave.ir.program import Output

    x = input_node("x", [[Atom("N")]], "f32")
    node = x
    for _ in range(3000):
        node = map_node("neg", node.axes, [node.read()], "f32")
    deep = Program("deep", (x,), (Output("y", node, ((0,),)),))
    tiles = best([Candidate(deep, ())], {Atom("N"): 100}, CPU, 1)[0].tiles
    assert len(list(all_of(tiles.kernels[0].body))) == 3002
