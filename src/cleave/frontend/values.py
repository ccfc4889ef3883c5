"""Recorded operations before sizes are settled: `Pre` nodes, and `Value`s, which are views of them.

A `Value` reads a `Pre` node at *digits*: each says which element is meant of one dim of the node's axes, in
the value's own index variables; `axes` groups those variables into the tensor axes that PyTorch sees. Views
(`views.py`) only change digits and axes. `build.py` turns the graph into a `Program` once sizes are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cleave.frontend.axes import Expr, Ix, Space, Var, leaves_of, root

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8",
    torch.bool: "bool",
}  # fmt: skip
TORCH_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Fix:
    """Position `value` of a dim."""

    var: Var
    value: int


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Position `start + step * inner` of a dim, where `inner` runs over `width` (one position if empty)."""

    var: Var
    start: Expr
    step: int
    width: Var | None
    inner: tuple[Digit, ...]
    call: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class Pick:
    """The position that an integer value says."""

    var: Var
    access: Read
    call: int = -1


Digit = Ix | Fix | Span | Pick


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A node read at one digit per dim of its axes."""

    node: Pre
    digits: tuple[Digit, ...]


@dataclass(eq=False, slots=True)
class Pre:
    """An operation: `kind` names the constructor of `cleave.ir.ops` that it becomes, `data` what else it
    takes. `level` counts the PyTorch calls before it that were not compiled; `where` is the user's line."""

    kind: str
    data: Any
    axes: tuple[Ix, ...]
    dtype: str
    args: tuple[Read, ...] = ()
    bound: tuple[Ix, ...] = ()
    level: int = 0
    where: str = ""
    call: int = -1


@dataclass(eq=False, slots=True)
class Value:
    """A traced tensor: a view of a node. `axes` has one product of index variables per tensor axis."""

    node: Pre
    digits: tuple[Digit, ...]
    axes: tuple[tuple[Ix, ...], ...]

    @property
    def dtype(self) -> str:
        return self.node.dtype

    @property
    def rank(self) -> int:
        return len(self.axes)

    @property
    def level(self) -> int:
        """The level of the node and of everything its position depends on."""
        return max(
            r.node.level for r in (Read(self.node, self.digits), *_picks((Read(self.node, self.digits),)))
        )


@dataclass(eq=False, slots=True)
class Recorder:
    """Makes nodes: carries the sizes, the current line of the user, and which inputs exist."""

    space: Space
    where: str = ""
    call: int = -1
    scalars: dict[str, Pre] = field(default_factory=dict[str, Pre])

    def node(
        self,
        kind: str,
        data: Any,
        axes: Sequence[Ix],
        dtype: str,
        args: Iterable[Read] = (),
        bound: Sequence[Ix] = (),
    ) -> Pre:
        reads = tuple(args)
        levels = [r.node.level for r in (*reads, *_picks(reads))]
        return Pre(
            kind, data, tuple(axes), dtype, reads, tuple(bound), max(levels, default=0), self.where, self.call
        )


def _picks(reads: Iterable[Read]) -> list[Read]:
    found: list[Read] = []
    stack: list[Digit] = [d for r in reads for d in r.digits]
    while stack:
        digit = stack.pop()
        if isinstance(digit, Pick):
            found.append(digit.access)
            stack += digit.access.digits
        elif isinstance(digit, Span):
            stack += digit.inner
    return found


def whole(node: Pre, axes: Sequence[Sequence[Ix]]) -> Value:
    """A node seen as it is; `axes` groups its index variables."""
    return Value(node, node.axes, tuple(tuple(axis) for axis in axes))


def scalar(node: Pre) -> Value:
    """A node without axes."""
    return Value(node, (), ())


def swap(digits: Iterable[Digit], new: Mapping[Ix, Digit]) -> tuple[Digit, ...]:
    """Replace index variables, all at once."""
    found: list[Digit] = []
    for digit in digits:
        match digit:
            case Ix():
                if digit in new:
                    found.append(new[digit])
                    continue
                leaves = leaves_of((digit,))
                found += (new.get(leaf, leaf) for leaf in leaves)
            case Span(var, start, step, width, inner, call):
                found.append(Span(var, start, step, width, swap(inner, new), call))
            case Pick(var, access, call):
                found.append(Pick(var, Read(access.node, swap(access.digits, new)), call))
            case Fix():
                found.append(digit)
    return tuple(found)


def fresh_like(ixs: Iterable[Ix]) -> tuple[Ix, ...]:
    """New index variables over the same dims."""
    return tuple(Ix(root(ix.var)) for ix in leaves_of(ixs))


def read(value: Value, axes: Sequence[Sequence[Ix]]) -> Read:
    """Read a value at other index variables, one product per tensor axis of the reader, aligned at the last
    axis as in broadcasting; the axes must have been matched before."""
    new: dict[Ix, Digit] = {}
    for own, theirs in zip(reversed(value.axes), reversed(axes), strict=False):
        mine = leaves_of(own)
        if mine:
            new.update(zip(mine, leaves_of(theirs), strict=True))
    return Read(value.node, swap(value.digits, new))


def common_axes(space: Space, values: Sequence[Value]) -> tuple[tuple[Ix, ...], ...]:
    """Match the axes of values as broadcasting does; new index variables for the result."""
    rank = max((v.rank for v in values), default=0)
    columns: list[list[tuple[Ix, ...]]] = [[] for _ in range(rank)]
    for value in values:
        for column, axis in zip(reversed(columns), reversed(value.axes), strict=False):
            column.append(axis)
    for column in columns:
        chosen: tuple[Ix, ...] = ()
        for axis in column:
            space.match(chosen, axis)
            if not leaves_of(chosen):
                chosen = axis
        for axis in column:
            space.match(chosen, axis)
    result: list[tuple[Ix, ...]] = []
    for column in columns:
        widest = next((axis for axis in column if leaves_of(axis)), ())
        result.append(fresh_like(widest))
    return tuple(result)
