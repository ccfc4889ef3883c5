"""Hard programs under every strategy: their pieces compute the program, their logs replay, what is shown is
bounded, and every border between two kernels has a reason."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from cleave.cli import app
from cleave.errors import Unsupported
from cleave.frontend.files import Loaded, load
from cleave.fusion.decisions import from_data, replay
from cleave.fusion.from_program import graph_of
from cleave.fusion.pieces import pieces_of
from cleave.fusion.planning import Plan, plan_fusion
from cleave.fusion.rules import EPOCHS, Rules, device_named
from cleave.fusion.state import State
from cleave.ir.ops import Input, Scalar
from cleave.ir.reference import evaluate
from cleave.ir.text import print_program
from cleave.report.found import named
from cleave.runtime.planned import Workshop

FILE = Path(__file__).parent / "hostile.py"
SMALL = ("many", "in_place", "empty", "loop", "entropy", "halves")
NAMES = (*SMALL, "block", "drawn_step")
STRATEGIES = (
    "none", "vertical", "vertical-dup", "merger", "multi-output", "horizontal", "priority", "xla",
    "vertical-dup+merger+multi-output+horizontal", "cleave",
)  # fmt: skip
KINDS = {"f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32}
MOST_PAGE = 200_000
"""Bytes of a page, at most."""


def values_of(found: Loaded) -> dict[str, object]:
    rng = np.random.default_rng(0)
    sizes = found.program.bind(dict(found.sizes))
    made: dict[str, object] = {}
    for node in found.program.inputs:
        assert isinstance(node.op, Input | Scalar)
        if isinstance(node.op, Scalar):
            made[node.op.name] = 3 if node.dtype.startswith("i") else 0.25
            continue
        shape = [int(np.prod([sizes[d] for d in group])) for group in node.op.layout]
        if node.dtype == "bool":
            made[node.op.name] = rng.random(shape) > 0.5
        elif node.dtype.startswith("i"):
            made[node.op.name] = rng.integers(0, 50, shape).astype(KINDS[node.dtype])
        else:
            made[node.op.name] = rng.standard_normal(shape).astype(KINDS[node.dtype])
    return made


def plan_of(found: Loaded, strategy: str, epoch: str, device: str = "h200") -> Plan:
    graph = graph_of(named(found.program), found.sizes)
    return plan_fusion(graph, strategy, Rules(epoch, device_named(device)))


def picture(state: State) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    return [(u.kind, tuple(sorted(u.members)), tuple(u.outputs)) for u in state.post_order()]


def holds(name: str, strategies: tuple[str, ...], epochs: tuple[str, ...], folder: Path) -> None:
    """All that must be true of a program's plans, through the command."""
    found = load(f"{FILE}:{name}")
    values = values_of(found)
    expected = evaluate(found.program, values)  # type: ignore[arg-type]
    seen: set[tuple[str, ...]] = set()
    for strategy in strategies:
        for epoch in epochs:
            page, data = folder / "page.html", folder / "plan.json"
            words = ["fuse", f"{FILE}:{name}", "--strategy", strategy, "--epoch", epoch]
            result = CliRunner().invoke(
                app, [*words, "--html", str(page), "--json", str(data), "--limit", "0"]
            )
            assert result.exit_code == 0, result.output
            assert f"epoch {epoch}" in result.output and "launches" in result.output
            assert page.stat().st_size < MOST_PAGE and page.read_text().endswith("</body></html>")
            plan = plan_of(found, strategy, epoch)
            decisions = [from_data(d) for d in json.loads(data.read_text())["decisions"]]
            assert picture(replay(plan.graph, decisions)) == picture(plan.state)
            pieces = pieces_of(plan, found.program)
            key = tuple(print_program(p.program) for p in pieces)
            if key in seen:
                continue
            seen.add(key)
            got = dict(values)
            for piece in pieces:
                got |= evaluate(piece.program, {n: got[n] for n in piece.reads})  # type: ignore[arg-type]
            for output, value in expected.items():
                np.testing.assert_allclose(got[output], value, rtol=1e-9, atol=1e-9)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SMALL)
def test_plans_compute_the_program_and_replay(name: str, tmp_path: Path) -> None:
    holds(name, ("vertical-dup", "xla"), ("X23", "X26"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_of_every_epoch(name: str, tmp_path: Path) -> None:
    holds(name, STRATEGIES, tuple(EPOCHS), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_kernels_run_right_on_the_cpu(name: str) -> None:
    found = load(f"{FILE}:{name}")
    values = values_of(found)
    expected = evaluate(found.program, values)  # type: ignore[arg-type]
    workshop = Workshop("cpu")
    for strategy, epoch in (("vertical", "X23"), ("xla", "X22"), ("xla", "X26"), ("cleave", "X26")):
        plan = plan_of(found, strategy, epoch, "cpu")
        made = workshop.planned(found.program, pieces_of(plan, found.program), found.sizes)
        args = [values[n] for n in made.inputs]
        results = made(*[torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in args])  # type: ignore[arg-type]
        for output, value in zip(made.outputs, results, strict=True):
            np.testing.assert_allclose(value.double().numpy(), expected[output], rtol=2e-3, atol=2e-4)


def test_pieces_whose_sizes_follow_from_nothing_read_take_an_argument_for_its_shape() -> None:
    found = load(f"{FILE}:drawn_step")
    pieces = pieces_of(plan_of(found, "vertical", "X23"), found.program)
    counted = [p for p in pieces if "first" in p.reads]
    assert counted and all("s" in p.reads for p in counted)
    for piece in counted:
        reads = {n for node in piece.program.nodes for a in node.reads for n in [a.node.op]}
        assert not any(isinstance(op, Input) and op.name == "s" for op in reads)


def test_a_piece_that_computes_with_a_size_takes_an_argument_that_has_it() -> None:
    found = load(f"{FILE}:loop")
    values = values_of(found)
    got = dict(values)
    for piece in pieces_of(plan_of(found, "none", "X22"), found.program):
        got |= evaluate(piece.program, {n: got[n] for n in piece.reads})  # type: ignore[arg-type]
    for output, value in evaluate(found.program, values).items():  # type: ignore[arg-type]
        np.testing.assert_allclose(got[output], value, rtol=1e-12)  # type: ignore[arg-type]


def test_a_write_to_a_part_is_refused_by_name_and_line() -> None:
    with pytest.raises(Unsupported, match=r"assignment to a part of a tensor\s+at hostile.py:\d+: z\["):
        load(f"{FILE}:assigns")


@pytest.mark.parametrize(
    ("name", "strategy"), [("many", "none"), ("halves", "multi-output"), ("loop", "xla")]
)
def test_every_border_between_neighbours_has_a_reason(name: str, strategy: str) -> None:
    where = f"{FILE}:{name}"
    plan = plan_of(load(where), strategy, "X23")
    vertices = plan.graph.vertices
    apart = [
        (v.name, vertices[u].name)
        for v in vertices
        if not v.view and v.opcode not in ("parameter", "constant")
        for u in plan.graph.users[v.number]
        if not vertices[u].view and not plan.together(v, vertices[u])
    ]
    assert apart
    for one, two in apart[:4]:
        words = ["fuse", where, "--strategy", strategy, "--epoch", "X23", "--explain", one, two]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        assert "do not share a kernel" in result.output
        assert "refused " in result.output or "no pass decided this edge: " in result.output
