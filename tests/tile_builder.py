"""How tests write tile programs by hand: `Example`, and `Block`, which appends statements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cleave.ir.dims import (
    Dim,
    Extent,
    Index,
    Leaf,
    Term,
    extent,
    var,
)
from cleave.schedule.tiles import (
    Bound,
    Carry,
    Compute,
    ContractTile,
    Fill,
    Load,
    Locate,
    Loop,
    Measure,
    ReduceTile,
    SizeBound,
    Statement,
    Store,
    Tensor,
    TileProgram,
)

Inputs = dict[str, Any]
Sizes = Mapping[str, int]
INF = float("inf")


@dataclass(frozen=True)
class Example:
    """A tile program, what it should compute, and calls it must survive. `sizes` maps atom names to sizes,
    fixed atoms included; `parts` lists part counts to try for the split dims."""

    name: str
    tiles: TileProgram
    reference: Callable[[Mapping[str, Any]], dict[str, np.ndarray]]
    make_inputs: Callable[[Sizes, np.random.Generator], Inputs]
    sizes: tuple[dict[str, int], ...]
    parts: tuple[dict[Dim, int], ...] = field(default_factory=lambda: ({},))
    tolerance: float = 1e-5
    """Allowed error, relative to the largest value, of an emitter that works in the program's dtypes."""


# ---------------------------------------------------------------- building blocks


def axis_of(*dims: Dim) -> tuple[Dim, ...]:
    return dims


def tensor(name: str, role: str, dtype: str, *layout: Dim | tuple[Dim, ...]) -> Tensor:
    groups = tuple(group if isinstance(group, tuple) else (group,) for group in layout)
    return Tensor(name, role, dtype, groups)


def number(*dims: Dim) -> tuple[Index, ...]:
    """Indices over the given dims, numbered from 0."""
    return tuple(Index(dim, n) for n, dim in enumerate(dims))


def to_term(where: Leaf | Term) -> Term:
    return where if isinstance(where, Term) else var(where)


class Block:
    """A list of statements under construction; each method appends one and returns the value's name."""

    def __init__(self) -> None:
        self.body: list[Statement] = []

    def _add(self, statement: Any) -> str:
        self.body.append(statement)
        return statement.out

    def load(
        self,
        out: str,
        axes: Sequence[Index],
        source: Tensor,
        *terms: Leaf | Term,
        guarded: bool = False,
        other: Any = 0,
    ) -> str:
        where = tuple(map(to_term, terms))
        return self._add(Load(out, tuple(axes), source.dtype, source.name, where, guarded, other))

    def fill(self, out: str, axes: Sequence[Index], value: Any, dtype: str = "f32") -> str:
        return self._add(Fill(out, tuple(axes), dtype, value))

    def measure(self, out: str, size: Extent, dtype: str = "f32") -> str:
        return self._add(Measure(out, dtype, size))

    def locate(self, out: str, axes: Sequence[Index], where: Leaf | Term, dtype: str = "i64") -> str:
        return self._add(Locate(out, tuple(axes), dtype, to_term(where)))

    def compute(self, out: str, axes: Sequence[Index], fn: str, *args: str, dtype: str = "f32") -> str:
        return self._add(Compute(out, tuple(axes), dtype, fn, args))

    def reduce(
        self, out: str, axes: Sequence[Index], kind: str, over: Sequence[Index], arg: str, dtype: str = "f32"
    ) -> str:
        return self._add(ReduceTile(out, tuple(axes), dtype, kind, tuple(over), arg))

    def contract(
        self, out: str, axes: Sequence[Index], over: Sequence[Index], *args: str, dtype: str = "f32"
    ) -> str:
        return self._add(ContractTile(out, tuple(axes), dtype, tuple(over), args))

    def carry(self, out: str, axes: Sequence[Index], init: str, dtype: str = "f32") -> str:
        return self._add(Carry(out, tuple(axes), dtype, init))

    def loop(
        self,
        index: Index,
        tile: int,
        start: Bound,
        stop: Bound,
        inner: Block,
        exact: bool = False,
        **updates: str,
    ) -> None:
        self.body.append(Loop(index, tile, start, stop, exact, tuple(inner.body), tuple(updates.items())))

    def store(self, target: Tensor, value: str, *terms: Leaf | Term, first: Sequence[Index] = ()) -> None:
        self.body.append(Store(target.name, tuple(map(to_term, terms)), value, tuple(first)))


def size_bound(*dims: Dim) -> SizeBound:
    return SizeBound(extent(0, *((d, 1) for d in dims)))


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Float32 values that `dtype` holds exactly."""
    if dtype == "f64":
        return values.astype(np.float64)
    if dtype == "f16":
        return values.astype(np.float16).astype(np.float32)
    narrow = values.astype(np.float32)
    if dtype == "bf16":
        bits = narrow.view(np.uint32)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return bits.astype(np.uint32).view(np.float32)
    return narrow


TOLERANCE = {"f64": 1e-12, "f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}
