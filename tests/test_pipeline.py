"""The stages together: what settings do, which variant serves which sizes, results by the reference."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import cleave.pipeline as pipeline
import tile_examples as te
from cleave.errors import Infeasible, Invalid, Unsupported
from cleave.frontend.files import capture_for_proof
from cleave.ir.dims import Atom
from cleave.ir.parse import parse_program
from cleave.ir.program import Program
from cleave.ir.reference import evaluate
from cleave.knobs import scope
from cleave.pipeline import (
    Compiled,
    compile_program,
    dims_by_name,
    plan,
    representatives,
    usable,
)
from cleave.runtime.triton_launch import TritonLauncher


def softmax(x):
    return torch.softmax(x, -1)


def matmul_rowsum(x, w):
    return (x @ w).sum(-1)


def normed_linear(x, g, w):
    return torch.nn.functional.linear(torch.nn.functional.rms_norm(x, (x.shape[-1],), g, 1e-5), w)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with scope(cache_dir=tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="module")
def rows() -> Program:
    return capture_for_proof(softmax, {"x": ("N", "K")}).program


@pytest.fixture(scope="module")
def compiled(rows) -> Compiled:
    return compile_program(rows, target="cpu", sizes=dims_by_name(rows, {"N": 64, "K": 256}))


def reference(program: Program, *args: torch.Tensor) -> torch.Tensor:
    inputs = {node.op.name: a.double().numpy() for node, a in zip(program.inputs, args, strict=True)}
    return torch.from_numpy(evaluate(program, inputs)[program.outputs[0].name])


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=1e-6, equal_nan=True)


# ---------------------------------------------------------------- settings


def test_unknown_target(rows):
    with pytest.raises(Invalid, match="unknown target 'tpu'") as caught:
        plan(rows, target="tpu")
    assert "cpu, cuda, interpret" in str(caught.value)


def test_dims_by_name(rows):
    assert dims_by_name(rows, {"K": 3}) == {Atom("K"): 3}
    with pytest.raises(Invalid, match="has no dim 'Q'") as caught:
        dims_by_name(rows, {"Q": 3})
    assert "it has K, N" in str(caught.value)


def test_strict_numerics_use_the_program_as_written():
    program = capture_for_proof(normed_linear, {"x": ("N", 64), "g": (64,), "w": ("O", 64)}).program
    with scope(numerics="strict"):
        made = plan(program, target="cpu")
    assert [c.form for c in made.candidates] == ["as written"]
    assert len(made.found.candidates) == 1
    assert {v.candidate.program for v in made.variants} == {program}


def test_stable_numerics_leave_out_what_stands_worse(rows):
    stable = plan(rows, target="cpu").found.candidates
    assert all(candidate.stable for candidate in stable)
    worse = dataclasses.replace(
        stable[-1],
        form="worse",
        conditions=tuple(dataclasses.replace(c, holds=False) for c in stable[-1].conditions),
    )
    assert not worse.stable
    assert usable(rows, (stable[0], worse)) == (stable[0],)
    with scope(numerics="fast"):
        assert usable(rows, (stable[0], worse)) == (stable[0], worse)
    with scope(numerics="strict"):
        assert [c.program for c in usable(rows, stable)] == [rows]


def test_the_users_program_is_always_usable(rows):
    own = plan(rows, target="cpu").found.candidates[0]
    failing = dataclasses.replace(
        own, conditions=tuple(dataclasses.replace(c, holds=False) for c in own.conditions)
    )
    assert usable(rows, (failing,)) == (failing,)


def test_reassociation_must_be_allowed():
    program = capture_for_proof(matmul_rowsum, {"x": ("S", "K"), "w": ("K", "N")}).program
    x, w = torch.rand(33, 20), torch.rand(20, 17)  # positive: no row cancels
    assert not any(c.reassociated for c in plan(program, target="cpu").candidates)
    with scope(reassociate=True):
        made = compile_program(program, target="cpu")
        assert any(c.reassociated for c in made.plan.candidates)
    assert_close(made(x, w)[0], reference(program, x, w))


def test_representative_sizes_are_the_given_ones_and_the_other_ends(rows):
    n, k = Atom("N"), Atom("K")
    points = representatives(rows, {n: 300, k: 20})
    assert points[0] == {n: 300, k: 20}
    assert {(p[n], p[k]) for p in points[1:]} == {(pipeline.SMALL, 20), (300, pipeline.LARGE)}


# ---------------------------------------------------------------- calls


@pytest.mark.parametrize("shape", [(1, 1), (17, 129), (64, 256), (3, 4097), (0, 5), (5, 0), (0, 0), (127, 1)])
def test_every_size_without_another_search(compiled, monkeypatch, shape):
    monkeypatch.setattr(pipeline, "search", None)
    x = torch.randn(shape) * 4
    found = compiled(x)[0]
    assert found.shape == x.shape
    assert_close(found, torch.softmax(x.double(), -1))


def test_one_choice_per_shapes(compiled, monkeypatch):
    x = torch.randn(9, 31)
    first = compiled(x)[0]
    monkeypatch.setattr(Compiled, "_choose", None)
    again = compiled(x)[0]
    assert torch.equal(first, again) and first.data_ptr() != again.data_ptr()


def test_the_choices_that_are_kept_are_bounded(compiled, monkeypatch):
    monkeypatch.setattr(pipeline, "MOST_SHAPES", 4)
    for rows in range(1, 12):
        compiled(torch.randn(rows, 8))
        assert len(compiled.chosen) <= max(4, 11)
    assert len(compiled.chosen) <= 4


def test_sizes_above_a_limit_get_another_variant(rows, monkeypatch):
    """From the same candidates: without a search."""
    made = plan(rows, target="cpu", sizes=dims_by_name(rows, {"N": 64, "K": 256}))
    limited = next(r for ranked in made.ranked for r in ranked if r.tiles.limits)
    only = Compiled(made, [limited])
    limit = dict(limited.tiles.limits)[Atom("K")]
    monkeypatch.setattr(pipeline, "search", None)
    monkeypatch.setattr(pipeline, "LEAST_GAIN", {"cpu": 0.0})  # none for being faster
    small, large = torch.randn(5, limit), torch.randn(5, limit + 1)
    assert_close(only(small)[0], torch.softmax(small.double(), -1))
    assert only.variants == [limited]
    assert_close(only(large)[0], torch.softmax(large.double(), -1))
    assert len(only.variants) == 2 and only.variants[0] is limited
    only(torch.randn(6, limit + 7))
    assert len(only.variants) == 2


def test_one_row_gets_a_variant_where_that_is_faster():
    """One row of a product is bound by reading the weight, for which the tiles of 16 rows are too narrow. (No
    recipe ships for a product of these sizes.)"""
    text = "program mm(x: f32[S, K], w: f32[K, N]) where K = 1152, N = 1152 {\n"
    text += "  y[s: S, n: N]: f32 = contract[k: K](x[s, k], w[k, n])\n  return y[s, n]\n}\n"
    program = parse_program(text)
    made = plan(program, target="cpu", sizes=dims_by_name(program, {"S": 16}))
    compiled = Compiled(made, list(made.variants))
    known, w = len(compiled.variants), torch.randn(1152, 1152) / 34
    for rows, variants in ((16, known), (1, known + 1), (1, known + 1)):
        x = torch.randn(rows, 1152)
        torch.testing.assert_close(compiled(x, w)[0], (x.double() @ w.double()).float(), rtol=1e-4, atol=1e-5)
        assert len(compiled.variants) == variants


def test_some_variant_has_no_limits(rows):
    made = plan(rows, target="cpu", sizes=dims_by_name(rows, {"N": 64, "K": 64}))
    assert any(not v.tiles.limits for v in made.variants)
    assert len({v.tiles for v in made.variants}) == len(made.variants)


def test_wrong_arguments(compiled):
    with pytest.raises(Invalid, match=r"takes 1 arguments \(x\), not 2"):
        compiled(torch.randn(2, 2), torch.randn(2))
    with pytest.raises(Invalid, match="x has 1 axes"):
        compiled(torch.randn(2))
    with pytest.raises(Invalid, match=r"x has dtype torch.float64, expected torch.float32"):
        compiled(torch.randn(2, 2).double())
    x = torch.randn(4, 4)
    assert_close(compiled(x)[0], torch.softmax(x.double(), -1))


# ---------------------------------------------------------------- building


def test_a_refused_tile_program_gives_way_to_the_next(rows, monkeypatch):
    made = plan(rows, target="cpu")
    best, *others = made.ranked[0]
    built: list[object] = []

    def launcher(tiles, target, args=None):
        built.append(tiles)
        if tiles == best.tiles:
            raise Infeasible("too large")
        return "launcher"

    monkeypatch.setattr(pipeline, "launcher_for", launcher)
    assert Compiled(made, list(made.variants)).launcher(made.variants[0]) == "launcher"
    assert built == [best.tiles, others[0].tiles]


def test_if_all_are_refused_the_reasons_are_given(rows, monkeypatch):
    made = plan(rows, target="cpu")

    def launcher(tiles, target, args=None):
        raise Infeasible("too large")

    monkeypatch.setattr(pipeline, "launcher_for", launcher)
    with pytest.raises(Unsupported, match="could be built for cpu") as caught:
        Compiled(made, list(made.variants)).launcher(made.variants[0])
    assert "too large" in str(caught.value)


def test_everything_can_be_built_at_once(rows, monkeypatch):
    monkeypatch.setattr(pipeline, "launcher_for", lambda tiles, target, args=None: "launcher")
    made = compile_program(rows, target="cpu", everything=True)
    assert set(made.launchers) == {v.tiles for v in made.variants}
    lazy = compile_program(rows, target="cpu")
    assert list(lazy.launchers) == [lazy.variants[0].tiles]


def test_the_next_choice_without_warp_groups_stands_behind_one_with_them(monkeypatch):
    def attention(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v

    def unbuilt(tiles, target, args=None):
        launcher = TritonLauncher.__new__(TritonLauncher)
        launcher.tiles, launcher.reports, launcher.stand_in = tiles, (), None
        return launcher

    shapes = {"q": "bf16[H, S, 128]", "k": "bf16[H, T, 128]", "v": "bf16[H, T, 128]"}
    program = capture_for_proof(attention, shapes).program
    made = plan(program, target="cuda", sizes={Atom("H"): 32, Atom("S"): 4096, Atom("T"): 4096})
    monkeypatch.setattr(pipeline, "launcher_for", unbuilt)
    launcher = Compiled(made, list(made.variants)).launcher(made.variants[0])
    assert isinstance(launcher, TritonLauncher) and pipeline.grouped(launcher.tiles)
    assert launcher.stand_in is not None
    other = launcher.stand_in(())
    assert not pipeline.grouped(other.tiles) and other.stand_in is None
    plain = next(r for r in made.ranked[0] if not pipeline.grouped(r.tiles))
    assert other.tiles == plain.tiles


def test_a_kernel_that_another_one_ends_with_is_no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    program = capture_for_proof(matmul_rowsum, {"x": "f32[N, 48]", "w": "f32[48, 32]"}).program
    compiled = compile_program(program, target="cpu")
    args = (torch.randn(8, 48), torch.randn(48, 32))
    tiles = te.matmul_split(16, 16, 32).tiles
    first, last = tiles.kernels
    merged = dataclasses.replace(tiles, kernels=(first, dataclasses.replace(last, merged=True)))
    grouped = dataclasses.replace(merged, kernels=(dataclasses.replace(first, groups=2), *merged.kernels[1:]))
    monkeypatch.setattr(pipeline, "choose_parts", lambda *_: {})
    for served, launches in ((tiles, 2), (merged, 1), (grouped, 2)):
        served = dataclasses.replace(served, workspaces=())
        monkeypatch.setattr(Compiled, "serving", lambda self, *args, served=served: served)
        assert compiled.footprint(*args) == (launches, 0)
