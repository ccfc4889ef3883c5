"""Plans of captured programs: their graphs, their pieces against the reference, their kernels on the CPU."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cleave.codegen import triton
from cleave.codegen.together import together
from cleave.frontend.files import Loaded, load
from cleave.fusion.from_program import graph_of
from cleave.fusion.pieces import Piece, pieces_of
from cleave.fusion.planning import Plan, plan_fusion
from cleave.fusion.rules import Rules, device_named
from cleave.fusion.scheduled import candidates_of, scheduled_seconds
from cleave.ir.ops import Input, Position
from cleave.ir.reference import evaluate
from cleave.knobs import scope
from cleave.report.found import named
from cleave.runtime.planned import Planned, Workshop
from cleave.runtime.triton_build import compile_for
from cleave.schedule.beside import independent

SUITE = Path(__file__).parent / "suite.py"
NAMES = ("softmax", "layer_norm", "gelu_mlp", "updates", "residual_norm", "attention", "cartpole")
EVERY = (
    ("none", "X26"), ("vertical", "X23"), ("vertical-dup", "X23"), ("vertical-dup+merger", "X22"),
    ("vertical-dup+merger", "X23"), ("multi-output", "X23"), ("multi-output", "X26"), ("horizontal", "X23"),
    ("priority", "X26"), ("xla", "X22"), ("xla", "X23"), ("xla", "X26"), ("cleave", "X26"),
)  # fmt: skip
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
        dtype = np.float16 if node.dtype == "f16" else np.float32
        made[node.op.name] = rng.standard_normal(shape).astype(dtype)
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


@functools.cache
def workshop(target: str) -> Workshop:
    return Workshop(target)


def planned(name: str, strategy: str, epoch: str, target: str) -> tuple[Loaded, Plan, Planned]:
    """A plan with its kernels built."""
    found = loaded(name)
    program = named(found.program)
    device = device_named("cpu" if target == "cpu" else "h200")
    plan = plan_fusion(graph_of(program, found.sizes), strategy, Rules(epoch, device))
    more = candidates_of if strategy == "cleave" else None
    return (
        found,
        plan,
        workshop(target).planned(found.program, pieces_of(plan, found.program), found.sizes, more),
    )


def runs_right(name: str, strategy: str, epoch: str) -> tuple[Plan, Planned]:
    """Hold a plan's kernels on the CPU to float64."""
    found, plan, made = planned(name, strategy, epoch, "cpu")
    inputs = arguments(found)
    expected = evaluate(found.program, inputs)
    results = made(*[torch.from_numpy(inputs[n]) for n in made.inputs])
    assert made.outputs == tuple(o.name for o in found.program.outputs)
    for output, value in zip(made.outputs, results, strict=True):
        np.testing.assert_allclose(value.double().numpy(), expected[output], rtol=2e-3, atol=2e-4)
    return plan, made


@pytest.mark.parametrize(
    ("name", "strategy", "epoch"), [("updates", "xla", "X22"), ("exp_and_sum", "xla", "X26")]
)
def test_a_plan_with_several_results_or_side_by_side_is_one_launch(
    name: str, strategy: str, epoch: str
) -> None:
    plan, made = runs_right(name, strategy, epoch)
    assert plan.totals.launches == made.launches == 1
    assert len(plan.kernels[0].outputs) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", (*NAMES, "exp_and_sum"))
def test_the_kernels_of_every_strategy_run_on_the_cpu(name: str) -> None:
    for strategy, epoch in EVERY:
        plan, made = runs_right(name, strategy, epoch)
        if strategy != "cleave":  # whose kernels the scheduler may cut
            assert made.launches == plan.totals.launches, (strategy, epoch)


def run_interpreted(folder: Path, *plans: tuple[str, str, str]) -> list[str]:
    env = {**os.environ, "TRITON_INTERPRET": "1", "CLEAVE_CACHE_DIR": str(folder)}
    env["PYTHONPATH"] = os.pathsep.join([str(SUITE.parents[1]), env.get("PYTHONPATH", "")])
    command = [sys.executable, str(SUITE.with_name("plans_interpreted.py")), *(w for p in plans for w in p)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.slow
def test_plans_run_in_tritons_interpreter(tmp_path: Path) -> None:
    names = ("softmax", "softmax16", "updates", "updates16", "residual_norm", "exp_and_sum")
    plans = [(n, s, e) for n in names for s, e in (("xla", "X22"), ("cleave", "X26"), ("horizontal", "X23"))]
    lines = run_interpreted(tmp_path, *plans)
    assert len(lines) == len(plans)
    for line in lines:
        name, strategy, wanted, launched = line.split()
        assert strategy == "cleave" or wanted == launched, line
        if name.startswith("updates") and strategy == "cleave":
            assert launched == "1"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["updates", "softmax16", "attention"])
def test_plans_compile_for_a_gpu(name: str, tmp_path: Path) -> None:
    with scope(cache_dir=tmp_path):
        for strategy, epoch in (("xla", "X22"), ("cleave", "X26")):
            found = loaded(name)
            plan = plan_fusion(
                graph_of(named(found.program), found.sizes), strategy, Rules(epoch, device_named("h200"))
            )
            shop = Workshop("cuda")
            more = candidates_of if strategy == "cleave" else None
            for piece in pieces_of(plan, found.program):
                tiles = shop.scheduled(piece.program, found.program.bind(dict(found.sizes)), more)[1].tiles
                source = together(triton.emit(tiles), tiles)
                reports = compile_for(source, 90)
                assert len(reports) == 1 or not independent(tiles)
                assert all(r.spills == 0 for r in reports)


@pytest.mark.slow
def test_ours_is_never_slower_by_the_schedulers_model_on_the_suite() -> None:
    for name in ("softmax", "updates", "attention"):
        found = loaded(name)
        program = named(found.program)
        graph = graph_of(program, found.sizes)
        rules = Rules("X26", device_named("h200"))
        sizes = found.program.bind(dict(found.sizes))

        def seconds(plan: Plan, program=program, sizes=sizes, rules=rules) -> float:  # type: ignore[no-untyped-def]
            return scheduled_seconds([p.program for p in pieces_of(plan, program)], sizes, rules.device)

        ours = seconds(plan_fusion(graph, "cleave", rules))
        for strategy, epoch in PLANS:
            other = plan_fusion(graph, strategy, Rules(epoch, rules.device))
            assert ours <= seconds(other) * (1 + 1e-9), (name, strategy)


def test_views_are_vertices_and_cost_no_kernel() -> None:
    graph = graph_of(named(loaded("cartpole").program), loaded("cartpole").sizes)
    views = [v for v in graph.vertices if v.view]
    assert {v.opcode for v in views} >= {"slice", "broadcast"}
    alone = plan_fusion(graph, "none")
    computed = [v for v in graph.vertices if not v.view and v.opcode not in ("parameter", "constant")]
    assert alone.totals.launches == sum(not isinstance(v.node.op, Position) for v in computed if v.node)
    assert all(v.line for v in graph.vertices if v.opcode in ("sin", "cos"))
    dot = graph_of(named(loaded("attention").program), loaded("attention").sizes)
    assert [v.window for v in dot.vertices if v.opcode == "dot"] == [(16,), (24,)]
