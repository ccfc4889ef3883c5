"""Random programs for property tests (hypothesis).

`programs()` draws anything that can be written down: odd names, unions, partitions, gathers, every dtype.
`programs(runnable=True)` draws programs that the reference can run at any sizes of `A`, `B` and `C`: floats
and a few operations, where a term that leaves its axis is held inside it and gathers stay in range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from cleave.ir.dims import Atom, Dim, Extent, Gather, Index, Inject, Join, Part, Parts, Term, Union, term, var
from cleave.ir.ops import (
    DTYPES,
    MAPS,
    REDUCTIONS,
    Access,
    Node,
    Number,
    cat_node,
    const,
    contract_node,
    input_node,
    map_node,
    position,
    reduce_node,
    scalar_node,
    size,
)
from cleave.ir.program import Output, Program

A, B, C = Atom("A"), Atom("B"), Atom("C")
PLAIN: tuple[Dim, ...] = (A, B, C, Union((A, B)), Union((B, B)))
ODD: tuple[Dim, ...] = (
    *PLAIN, Atom("n"), Atom("layer.size"), Atom("part"), Atom("my dim"), Atom("k1"), Atom("in0"), Parts(A),
    Part(A), Part(B, 1), Parts(B, 1), Union((Union((A, B)), C)), Union((A, Part(B))),
)  # fmt: skip
NAMES = (
    "x",
    "q",
    "return",
    "self.w",
    "L['x']",
    "in0",
    "`q`",
    "size",
    "sum1",
    "n",
    "A",
    "späte",
    "a b\n",
    "inf",
)
NUMBERS: tuple[Number, ...] = (
    0, 1, -3, True, False, 0.0, -0.0, 1.0, 0.1, 1e300, 5e-324, math.inf, -math.inf, math.nan, Fraction(1, 3),
    Fraction(-2), 10**30,
)  # fmt: skip
RUNNABLE = ("add", "sub", "mul", "max", "min", "neg", "abs", "select")


@st.composite
def programs(draw: Any, runnable: bool = False) -> Program:
    """A random program; see the module."""
    dims = PLAIN if runnable else ODD
    inputs = _inputs(draw, dims, runnable)
    nodes = list(inputs)
    for _ in range(draw(st.integers(1, 7))):
        nodes.append(_node(draw, nodes, dims, runnable))
    outputs: list[Output] = []
    for number in range(draw(st.integers(1, 3))):
        node = nodes[-1] if number == 0 else draw(st.sampled_from(nodes))
        name = f"y{number}" if runnable else draw(st.sampled_from(NAMES))
        outputs.append(Output(name, node, _layout(draw, range(len(node.axes)))))
    sizes: tuple[tuple[Atom, int | Extent], ...] = ()
    names: dict[Node, str] = {}
    if not runnable:
        values = st.sampled_from(
            [0, 7, Extent(3), Extent(-1, ((A, 2),)), Extent(0, ((B, 1), (Parts(A), -1)))]
        )
        sizes = tuple((atom, draw(values)) for atom in draw(st.lists(st.sampled_from([B, C]), unique=True)))
        names = {node: draw(st.sampled_from(NAMES)) for node in nodes if draw(st.booleans())}
    return Program("drawn", tuple(inputs), tuple(outputs), sizes, names)


def _inputs(draw: Any, dims: Sequence[Dim], runnable: bool) -> list[Node]:
    names = ["x", "w", "ids"]
    if not runnable:
        names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    found: list[Node] = [input_node("ids", [[A]], "i64")] if runnable else []
    for name in names[:2] if runnable else names:
        own = draw(st.lists(st.sampled_from(dims), max_size=3))
        dtype = "f32" if runnable else draw(st.sampled_from(DTYPES))
        if runnable:
            layout = tuple((d,) for d in own)
        else:
            layout = tuple(
                tuple(own[n] for n in group) for group in _layout(draw, range(len(own)), sort=True)
            )
        found.append(input_node(name, layout, dtype))
    if draw(st.booleans()):
        found.append(scalar_node("eps", "f32"))
    if runnable:
        # So that every size follows from the arguments.
        found += [input_node(f"size{d}", [[d]], "f32") for d in (B, C)]
    return found


def _layout(draw: Any, axes: Sequence[int], sort: bool = False) -> tuple[tuple[int, ...], ...]:
    order = list(axes) if sort else draw(st.permutations(list(axes)))
    groups: list[tuple[int, ...]] = []
    while order:
        count = draw(st.integers(0, min(2, len(order))))
        groups.append(tuple(order[:count]))
        order = order[count:]
    if draw(st.booleans()):
        groups.append(())
    return tuple(groups)


def _node(draw: Any, nodes: Sequence[Node], dims: Sequence[Dim], runnable: bool) -> Node:
    axes = [Index(d, n) for n, d in enumerate(draw(st.lists(st.sampled_from(dims), max_size=3)))]
    bound = [Index(d, n + len(axes)) for n, d in enumerate(draw(st.lists(st.sampled_from(dims), max_size=2)))]
    dtype = "f32" if runnable else draw(st.sampled_from(DTYPES))
    kind = draw(st.sampled_from(["map", "map", "map", "position", "reduce", "contract", "cat"]))
    if kind == "map":
        fn = draw(st.sampled_from(RUNNABLE if runnable else sorted(MAPS)))
        return map_node(fn, axes, [_access(draw, nodes, axes, runnable) for _ in range(MAPS[fn])], dtype)
    if kind == "position":
        return position(axes, _term(draw, nodes, axes, None, runnable), dtype)
    if kind == "reduce":
        fn = draw(st.sampled_from(("sum", "max", "min") if runnable else REDUCTIONS))
        return reduce_node(fn, axes, bound, _access(draw, nodes, [*axes, *bound], runnable), dtype)
    if kind == "contract":
        count = draw(st.integers(2, 3))
        args = [_access(draw, nodes, [*axes, *bound], runnable) for _ in range(count)]
        return contract_node(axes, bound, args, dtype)
    union = draw(st.sampled_from([d for d in dims if isinstance(d, Union)]))
    axis = draw(st.integers(0, len(axes)))
    axes = [*axes[:axis], Index(union, axis), *(Index(i.dim, i.number + 1) for i in axes[axis:])]
    pieces = [
        _access(draw, nodes, [Index(part, axis) if i.number == axis else i for i in axes], runnable)
        for part in union.parts
    ]
    return cat_node(axes, axis, pieces, dtype)


def _access(draw: Any, nodes: Sequence[Node], indices: Sequence[Index], runnable: bool) -> Access:
    if draw(st.integers(0, 5)) == 0:
        value = draw(st.sampled_from((0.5, -2, Fraction(1, 4)) if runnable else NUMBERS))
        return const(value, "f32" if runnable else draw(st.sampled_from(DTYPES)))
    if draw(st.integers(0, 8)) == 0:
        return size(draw(st.sampled_from(PLAIN)), "i64" if draw(st.booleans()) else "f32")
    node = draw(st.sampled_from(list(nodes)))
    return Access(node, tuple(_term(draw, nodes, indices, d, runnable) for d in node.dims))


def _term(
    draw: Any, nodes: Sequence[Node], indices: Sequence[Index], dim: Dim | None, runnable: bool
) -> Term:
    same = [i for i in indices if i.dim == dim]
    if same and draw(st.integers(0, 3)):
        return var(draw(st.sampled_from(same)))
    if isinstance(dim, Union) and draw(st.booleans()):
        number = draw(st.integers(0, len(dim.parts) - 1))
        return var(Inject(number, _term(draw, nodes, indices, dim.parts[number], runnable)))
    leaves: list[Any] = [(i, draw(st.integers(-2, 2))) for i in indices[:2]]
    if not runnable and indices and draw(st.booleans()):
        leaves.append((Join(var(indices[0]), term((indices[-1], 1), offset=1)), 1))
    if not runnable and draw(st.integers(0, 3)) == 0:
        node = draw(st.sampled_from(list(nodes)))
        leaves.append((Gather(Access(node, tuple(var(i) for i in _repeat(indices, len(node.axes))))), 1))
        if len(_repeat(indices, len(node.axes))) != len(node.axes):
            leaves.pop()
    elif runnable and dim == A and any(i.dim == A for i in indices) and draw(st.booleans()):
        ids = next(n for n in nodes if n.dtype == "i64")
        return var(Gather(ids(next(i for i in indices if i.dim == A))))
    sizes = [(d, draw(st.integers(-1, 1))) for d in PLAIN[:2]]
    kept = tuple(sorted(((d, c) for d, c in sizes if c), key=lambda item: str(item[0])))
    return term(*leaves, offset=Extent(draw(st.integers(-2, 2)), kept))


def _repeat(indices: Sequence[Index], count: int) -> list[Index]:
    return [indices[n % len(indices)] for n in range(count)] if indices else []
