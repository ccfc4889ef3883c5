"""Plans of captured programs: their graphs, their pieces against the reference, their kernels on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from cleave.algebra.folds import folds_of
from cleave.frontend.files import Loaded, load
from cleave.fusion.from_program import graph_of
from cleave.fusion.pieces import Piece, pieces_of
from cleave.fusion.planning import plan_fusion
from cleave.fusion.rules import Rules, device_named
from cleave.ir.candidate import Candidate
from cleave.ir.ops import Input
from cleave.ir.precision import assign
from cleave.ir.reference import evaluate, infer_sizes
from cleave.report.found import named
from cleave.runtime.launch import Launcher
from cleave.schedule.machine import CPU
from cleave.schedule.select import best

SUITE = Path(__file__).parent / "suite.py"
NAMES = ("softmax", "layer_norm", "gelu_mlp", "updates", "residual_norm", "attention", "cartpole")
PLANS = (("none", "X26"), ("xla", "X22"), ("xla", "X23"), ("xla", "X26"), ("cleave", "X26"))


def loaded(name: str) -> Loaded:
    return load(f"{SUITE}:{name}")


def arguments(found: Loaded) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = found.program.bind(dict(found.sizes))
    made: dict[str, np.ndarray] = {}
    for node in found.program.inputs:
        assert isinstance(node.op, Input)
        shape = [int(np.prod([sizes[d] for d in group])) for group in node.op.layout]
        made[node.op.name] = rng.standard_normal(shape).astype(np.float32)
    if "a" in made and found.program.name == "cartpole":
        made["a"] = (made["a"] > 0).astype(np.float32)
    return made


def pieces(name: str, strategy: str, epoch: str) -> tuple[Loaded, tuple[Piece, ...]]:
    found = loaded(name)
    program = named(found.program)
    plan = plan_fusion(graph_of(program, found.sizes), strategy, Rules(epoch, device_named("cpu")))
    return found, pieces_of(plan, found.program)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("strategy", "epoch"), PLANS)
def test_the_pieces_of_a_plan_compute_the_program(name: str, strategy: str, epoch: str) -> None:
    found, made = pieces(name, strategy, epoch)
    values: dict[str, np.ndarray] = dict(arguments(found))
    expected = evaluate(found.program, values)
    for piece in made:
        values |= evaluate(piece.program, {n: values[n] for n in piece.reads})
    for key, value in expected.items():
        np.testing.assert_allclose(values[key], value, rtol=1e-12, atol=1e-12)


def run_piece(piece: Piece, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One kernel of a plan on the CPU backend."""
    args = [values[n] for n in piece.reads]
    shapes = {n: tuple(a.shape) for n, a in zip(piece.reads, args, strict=True)}
    sizes = infer_sizes(piece.program, shapes)
    candidate = assign(Candidate(piece.program, folds_of(piece.program)), piece.program)
    tiles = best([candidate], sizes, CPU, count=1)[0].tiles
    return dict(zip(piece.writes, Launcher(tiles)(*args), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("strategy", "epoch"), [("xla", "X23"), ("cleave", "X26")])
def test_the_kernels_of_a_plan_run_on_the_cpu(name: str, strategy: str, epoch: str) -> None:
    found, made = pieces(name, strategy, epoch)
    inputs = arguments(found)
    expected = evaluate(found.program, inputs)
    values = {n: torch.from_numpy(a) for n, a in inputs.items()}
    for piece in made:
        values |= run_piece(piece, values)
    for key, value in expected.items():
        np.testing.assert_allclose(values[key].double().numpy(), value, rtol=2e-3, atol=2e-4)


def test_ours_is_never_slower_by_the_model_on_the_suite() -> None:
    for name in NAMES:
        graph = graph_of(named(loaded(name).program), loaded(name).sizes)
        rules = Rules("X26", device_named("h200"))
        ours = plan_fusion(graph, "cleave", rules).totals.seconds
        for strategy, epoch in PLANS:
            assert ours <= plan_fusion(graph, strategy, Rules(epoch, rules.device)).totals.seconds * (
                1 + 1e-9
            )


def test_views_are_vertices_and_cost_no_kernel() -> None:
    graph = graph_of(named(loaded("cartpole").program), loaded("cartpole").sizes)
    views = [v for v in graph.vertices if v.view]
    assert {v.opcode for v in views} >= {"slice", "broadcast"}
    alone = plan_fusion(graph, "none")
    assert alone.totals.launches == sum(
        not v.view and v.opcode not in ("parameter", "constant") for v in graph.vertices
    )
    assert all(v.line for v in graph.vertices if v.opcode in ("sin", "cos"))
    dot = graph_of(named(loaded("attention").program), loaded("attention").sizes)
    assert [v.window for v in dot.vertices if v.opcode == "dot"] == [(16,), (24,)]
