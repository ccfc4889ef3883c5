"""A stand-in for the pipeline: programs run by the float64 reference. And the checks that the tests share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from cleave.frontend.capture import capture
from cleave.frontend.captured import Captured
from cleave.frontend.jit import Jit
from cleave.frontend.values import TORCH_DTYPES
from cleave.ir.dims import Dim
from cleave.ir.program import Program
from cleave.ir.reference import evaluate
from cleave.ir.text import parse_program, print_program


def as_array(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.double().numpy() if value.is_floating_point() else value.numpy()


def by_reference(
    program: Program, *, target: str = "cpu", sizes: Mapping[Dim, int] | None = None
) -> Callable[..., list[torch.Tensor]]:
    """A program as a function of tensors and numbers, in the order of its inputs."""

    def run(*args: Any) -> list[torch.Tensor]:
        assert len(args) == len(program.inputs)
        inputs = {node.op.name: as_array(a) for node, a in zip(program.inputs, args, strict=True)}
        results = evaluate(program, inputs)
        return [
            torch.from_numpy(np.array(results[o.name], order="C")).to(TORCH_DTYPES[o.node.dtype])
            for o in program.outputs
        ]

    return run


def jitted(fn: Callable[..., Any], **options: Any) -> Jit:
    return Jit(fn, compile_program=by_reference, **options)


LOOSE = {torch.float16: 2e-2, torch.bfloat16: 5e-2}


def same(actual: Any, expected: Any) -> None:
    """The same tree, dtypes and shapes, and values up to rounding."""
    left, left_spec = pytree.tree_flatten(actual)
    right, right_spec = pytree.tree_flatten(expected)
    assert left_spec == right_spec
    for a, e in zip(left, right, strict=True):
        if not isinstance(e, torch.Tensor):
            assert a == e and type(a) is type(e)
            continue
        assert a.dtype == e.dtype and a.shape == e.shape, (a.dtype, a.shape, e.dtype, e.shape)
        limit = LOOSE.get(e.dtype, 1e-4)
        torch.testing.assert_close(a, e, rtol=limit, atol=limit, equal_nan=True)


def agrees(compiled: Jit, *args: Any, **kwargs: Any) -> None:
    """A compiled function gives what eager gives."""
    same(compiled(*args, **kwargs), compiled.fn(*args, **kwargs))


def run(captured: Captured, *args: Any) -> Any:
    """Run a capture on the reference."""
    assert captured.whole is None, captured.whole
    env = captured.environment(pytree.tree_leaves(args))
    assert captured.holds(env)
    return captured.run(env, [by_reference(p) for p in captured.programs])


def check(fn: Callable[..., Any], *args: Any, fallbacks: Sequence[str] = (), **options: Any) -> Captured:
    """Capture, compare with eager, and see that exactly these operations fell back. Texts round-trip."""
    captured = capture(fn, args, **options)
    same(run(captured, *args), fn(*args))
    assert [f.op for f in captured.fallbacks] == list(fallbacks), captured.fallbacks
    for program in captured.programs:
        assert parse_program(print_program(program)) == program
    return captured
