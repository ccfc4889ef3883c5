"""Stacks of ordinary code are concatenations for the planner: recognised, decided, reported, and run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks.cartpole_env import early_stacked_step, make_inputs, stacked_step

from cleave.frontend.capture import capture
from cleave.fusion.from_program import RENAMED, graph_of
from cleave.fusion.lints import lints
from cleave.fusion.opcodes import KNOWN
from cleave.fusion.pieces import pieces_of
from cleave.fusion.planning import plan_fusion
from cleave.fusion.rules import Rules
from cleave.ir.ops import MAPS
from cleave.ir.reference import evaluate


def captured(function, *args):  # type: ignore[no-untyped-def]
    return capture(function, args, dynamic={}).program


def early(both, count, action, fresh):  # type: ignore[no-untyped-def]
    (state, count), out = early_stacked_step((both, count), action, fresh)
    return state, count, *out


def late(both, count, action, fresh):  # type: ignore[no-untyped-def]
    (state, count), out = stacked_step((both, count), action, fresh)
    return state, count, *out


def results_of(program, pieces, args):  # type: ignore[no-untyped-def]
    """What the pieces compute one after the other, in float64."""
    names = [n.op.name for n in program.inputs]
    values = {name: a.numpy() for name, a in zip(names, args, strict=True)}
    for piece in pieces:
        values |= evaluate(piece.program, {name: values[name] for name in piece.reads})
    return [values[o.name] for o in program.outputs]


def arguments() -> tuple[torch.Tensor, ...]:
    inputs = make_inputs(8, 1, "cpu")
    fresh = torch.stack([f[0] for f in inputs.fresh], -1)
    return torch.stack(inputs.state, -1), inputs.count, inputs.action[0], fresh


def test_every_operation_of_a_program_is_known_to_the_planner() -> None:
    assert [name for name in MAPS if RENAMED.get(name, name) not in KNOWN] == []


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_stack_is_one_concatenation(dim: int) -> None:
    a, b, c = (torch.randn(4, 6) for _ in range(3))
    graph = graph_of(captured(lambda a, b, c: torch.stack((a + 1, b, c), dim), a, b, c))
    [concat] = [v for v in graph.vertices if v.opcode == "concat"]
    assert concat.dims == (dim % 3,) and len(concat.operands) == 3 and concat in graph.outputs
    assert not any(v.opcode in ("select", "eq", "iota") for v in graph.vertices)
    assert all(graph.users[v.number] or v in graph.outputs for v in graph.vertices)


def test_what_looks_like_a_stack_and_is_none_stays_selects() -> None:
    a, b = torch.randn(4, 3), torch.randn(4, 3)

    def first_two(a, b):  # type: ignore[no-untyped-def]
        at = torch.arange(3)
        return torch.where(at == 0, a, b)

    graph = graph_of(captured(first_two, a, b))
    assert [v.opcode for v in graph.vertices if v.opcode in ("select", "concat")] == ["select"]


def test_comparisons_that_others_read_are_operations_of_their_own() -> None:
    a, b = torch.randn(4), torch.randn(4)

    def both(a, b):  # type: ignore[no-untyped-def]
        return torch.stack((a, b), -1), (torch.arange(2) == 0).float()

    program = captured(both, a, b)
    for strategy in ("none", "xla", "cleave"):
        plan = plan_fusion(graph_of(program), strategy, Rules("X23"))
        found = results_of(program, pieces_of(plan, program), (a, b))
        for one, two in zip(found, both(a, b), strict=True):
            np.testing.assert_allclose(one, two.numpy(), rtol=1e-6)


@pytest.mark.parametrize("step", [late, early])
def test_a_stacked_state_is_linted_and_planned(step) -> None:  # type: ignore[no-untyped-def]
    graph = graph_of(captured(step, *arguments()))
    [lint] = lints(graph)
    assert lint.code == "CONCAT_CARRIED" and "4 parts" in lint.text and "cartpole_env.py" in lint.line


def test_a_stack_with_several_readers_breaks_the_cache_unless_that_is_allowed() -> None:
    graph = graph_of(captured(early, *arguments()))
    codes = {
        allowed: [
            d.code
            for d in plan_fusion(
                graph, "vertical-dup", Rules("X23", allow_multi_user_cache_breakers=allowed)
            ).decisions
            if d.producer == "stack" and not d.verdict
        ]
        for allowed in (False, True)
    }
    assert codes[False].count("CODE_DUP") > codes[True].count("CODE_DUP")
