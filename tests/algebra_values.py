"""Random inputs for a program, and the float64 values of its nodes: what tests of `algebra` compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cleave.ir.dims import Dim, Gather, Term, size_of
from cleave.ir.ops import Access, Input, Node, Scalar
from cleave.ir.program import Output, Program
from cleave.ir.reference import evaluate

PRIMES = (3, 5, 2, 4, 6, 1, 7)


def sizes_for(program: Program, rng: np.random.Generator, least: int = 1) -> dict[Dim, int]:
    """Small sizes, some equal, some 1; what the program fixes is fixed."""
    sizes: dict[Dim, int] = {a: max(least, int(rng.choice(PRIMES))) for a in program.dynamic}
    return program.bind(sizes)


def inputs_for(
    program: Program, rng: np.random.Generator, *, spread: float = 1.0, least: int = 2
) -> tuple[dict[str, np.ndarray], dict[Dim, int]]:
    """An array per input: normal numbers times `spread`, whole numbers that are valid as gathers."""
    sizes = sizes_for(program, rng, least)
    limits = _limits(program, sizes)
    found: dict[str, np.ndarray] = {}
    for node in program.inputs:
        assert isinstance(node.op, Input | Scalar)
        name = node.op.name
        if isinstance(node.op, Scalar):
            found[name] = np.asarray(0.25)
            continue
        shape = tuple(int(np.prod([size_of(d, sizes) for d in group], dtype=int)) for group in node.op.layout)
        if node.dtype == "bool":
            found[name] = rng.random(shape) < 0.7
        elif node.dtype[0] in "iu":
            found[name] = rng.integers(0, limits.get(name, 4), shape)
        else:
            found[name] = (rng.normal(size=shape) * spread).astype(np.float32)
    return found, sizes


def _limits(program: Program, sizes: Mapping[Dim, int]) -> dict[str, int]:
    limits: dict[str, int] = {}

    def visit(access: Access) -> None:
        for term, axis in zip(access.terms, access.node.axes, strict=True):
            for inner in _gathered(term):
                if isinstance(inner.node.op, Input):
                    name = inner.node.op.name
                    limits[name] = min(limits.get(name, 1 << 30), size_of(axis.dim, sizes))

    for node in program.nodes:
        for access in node.reads:
            visit(access)
    return limits


def _gathered(term: Term) -> list[Access]:
    return [leaf.access for leaf, _ in term.leaves if isinstance(leaf, Gather)]


def computed(
    program: Program, inputs: Mapping[str, np.ndarray], nodes: Sequence[Node], sizes: Mapping[Dim, int]
) -> dict[Node, np.ndarray]:
    """The float64 value of some nodes, each over its axes."""
    outputs = tuple(
        Output(f"n{k}", node, tuple((axis,) for axis in range(len(node.axes))))
        for k, node in enumerate(nodes)
    )
    probe = Program("probe", program.inputs, outputs, program.sizes)
    found = evaluate(probe, inputs, sizes)
    return {node: found[f"n{k}"] for k, node in enumerate(nodes)}
