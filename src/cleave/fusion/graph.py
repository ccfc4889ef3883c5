"""The planner's input: a graph of typed operations with explicit movement, sizes bound.

A *vertex* is one operation with one result. Unlike in a `Program`, broadcasts, slices and transposes are
vertices of their own, as in XLA, as the rules want (docs/decisions/0007). Graphs come from a `Program`
(`from_program.py`) or from text (`notation.py`). Vertices are numbered so that operands come before users;
equality is identity. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from cleave.errors import Invalid

if TYPE_CHECKING:
    from cleave.ir.dims import Dim
    from cleave.ir.ops import Node, Number
    from cleave.ir.program import Program

WIDTHS: Mapping[str, int] = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u64": 8, "u32": 4,
    "u16": 2, "u8": 1, "bool": 1, "c64": 8, "c128": 16,
}  # fmt: skip
"""Bytes of one element."""

UNARY = frozenset(
    {"abs", "ceil", "cbrt", "convert", "cos", "copy", "erf", "exp", "exp2", "expm1", "floor", "id", "isnan"}
    | {"log", "log1p", "logistic", "neg", "not", "reciprocal", "round", "rsqrt", "sign", "sin", "sqrt"}
    | {"tanh", "tanh_coarse", "trunc"}
)
BINARY = frozenset(
    {"add", "and", "atan2", "compare", "div", "eq", "floordiv", "ge", "gt", "le", "lt", "max", "min", "mod"}
    | {"mul", "ne", "or", "pow", "rem", "shl", "shr", "sub", "xor"}
)
POINTWISE = UNARY | BINARY | {"select", "clamp", "fma"}
"""Elementwise in all operands."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A type: dtype, dims and `order`, the axes from minor to major. A tuple has `parts` and no dtype."""

    dtype: str
    dims: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    parts: tuple[Shape, ...] = ()

    @property
    def elements(self) -> int:
        return sum(p.elements for p in self.parts) if self.parts else prod(self.dims)

    @property
    def bytes(self) -> int:
        return sum(p.bytes for p in self.parts) if self.parts else prod(self.dims) * WIDTHS[self.dtype]

    @property
    def physical(self) -> tuple[int, ...]:
        """The axes from major to minor."""
        return self.order[::-1]

    def __str__(self) -> str:
        if self.parts:
            return "(" + ", ".join(map(str, self.parts)) + ")"
        order = "" if self.order == row_major(len(self.dims)) else "{" + ",".join(map(str, self.order)) + "}"
        return f"{self.dtype}[{','.join(map(str, self.dims))}]{order}"


def row_major(rank: int) -> tuple[int, ...]:
    """The order of axes, minor to major, of a dense row-major tensor."""
    return tuple(range(rank - 1, -1, -1))


def array(dtype: str, dims: Sequence[int] = (), order: Sequence[int] | None = None) -> Shape:
    """The type of a tensor, row-major unless an order is given."""
    return Shape(dtype, tuple(dims), tuple(row_major(len(dims)) if order is None else order))


@dataclass(frozen=True, eq=False, slots=True)
class Vertex:
    """One operation. `dims` are the axes it speaks of: reduced ones, a broadcast's map of operand axes, a
    permutation, reversed ones, the axis of a concatenation. `effect` marks side effects. `view` marks
    movement that a `Program` writes as an access: reading through it costs no kernel. `node` and `line` lead
    back to the program and to the user's source; `inner` are nodes that the program writes this operation
    with besides. A loop has a `body`."""

    number: int
    name: str
    opcode: str
    operands: tuple[Vertex, ...]
    shape: Shape
    dims: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    window: tuple[int, ...] = ()
    value: Number | None = None
    effect: bool = False
    view: bool = False
    line: str = ""
    node: Node | None = None
    body: Graph | None = None
    trips: int | None = None
    inner: tuple[Node, ...] = ()
    elements: int = field(init=False, default=0)
    bytes: int = field(init=False, default=0)
    pointwise: bool = field(init=False, default=False)
    """Elementwise in all operands, whatever the dtype."""
    plain: bool = field(init=False, default=False)
    """Elementwise with operands, without side effects and no copy: what every pass takes."""

    def __post_init__(self) -> None:
        pointwise = self.opcode in POINTWISE
        object.__setattr__(self, "elements", self.shape.elements)
        object.__setattr__(self, "bytes", self.shape.bytes)
        object.__setattr__(self, "pointwise", pointwise)
        plain = pointwise and self.opcode != "copy" and not self.effect and bool(self.operands)
        object.__setattr__(self, "plain", plain)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Formed:
    """A group that exists before planning: `kind` is `L` or `I`, `outputs` the members others see."""

    name: str
    kind: str
    members: tuple[Vertex, ...]
    outputs: tuple[Vertex, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Graph:
    """Vertices in topological order, results in order. `carried` pairs a loop body's parameters with the
    results that become their next values."""

    name: str
    vertices: tuple[Vertex, ...]
    outputs: tuple[Vertex, ...]
    formed: tuple[Formed, ...] = ()
    carried: tuple[tuple[Vertex, Vertex], ...] = ()
    source: tuple[Program, Mapping[Dim, int]] | None = None
    """The program that the graph was made of, with the sizes of its dynamic dims."""
    made: Mapping[int, int] = field(default_factory=dict[int, int])
    """When vertices were made, where that is known and is not their order: XLA breaks ties by it."""
    users: tuple[tuple[int, ...], ...] = field(init=False, default=())
    by_name: Mapping[str, Vertex] = field(init=False, default_factory=dict[str, "Vertex"])
    links: dict[tuple[int, int], tuple[int, int, float, int]] = field(
        init=False, repr=False, default_factory=dict[tuple[int, int], tuple[int, int, float, int]]
    )
    """How a vertex reads an operand, by their numbers, as `units.py` computes and remembers it."""
    flops: dict[tuple[str, int, bool], dict[int, float]] = field(
        init=False, repr=False, default_factory=dict[tuple[str, int, bool], dict[int, float]]
    )
    """Operations for one element of a vertex, by device, penalty of concatenations and model (`cost.py`)."""
    counts: dict[int, tuple[int, int, bool, bool, bool, int, int, bool]] = field(
        init=False,
        repr=False,
        default_factory=dict[int, tuple[int, int, bool, bool, bool, int, int, bool]],
    )
    """What a vertex adds to a kernel, in the same way."""

    def __post_init__(self) -> None:
        names: dict[str, Vertex] = {}
        users: list[dict[int, None]] = [{} for _ in self.vertices]
        for number, vertex in enumerate(self.vertices):
            if vertex.number != number:
                raise Invalid(
                    f"graph {self.name}: vertex {vertex.name} has number {vertex.number} at {number}"
                )
            if names.setdefault(vertex.name, vertex) is not vertex:
                raise Invalid(f"graph {self.name}: two vertices are called {vertex.name!r}")
            for operand in vertex.operands:
                if operand.number >= number:
                    raise Invalid(f"graph {self.name}: {vertex.name} reads {operand.name}, which comes later")
                users[operand.number][number] = None
        object.__setattr__(self, "users", tuple(tuple(u) for u in users))
        object.__setattr__(self, "by_name", names)

    @property
    def root(self) -> Vertex | None:
        """The only result; `None` if there are several, which then meet in a tuple that no kernel makes."""
        return self.outputs[0] if len(self.outputs) == 1 else None

    def named(self, name: str) -> Vertex:
        """The vertex of a name; `Invalid` lists close ones."""
        found = self.by_name.get(name)
        if found is None:
            from difflib import get_close_matches

            close = get_close_matches(name, self.by_name, n=5, cutoff=0.4) or list(self.by_name)[:8]
            raise Invalid(f"graph {self.name} has no operation {name!r}", hint=f"it has {', '.join(close)}")
        return found


def sorted_by_need(wanted: Mapping[str, Sequence[str]], roots: Iterable[str], what: str) -> list[str]:
    """Names so that each comes after those it needs, else in order; `Invalid` shows a cycle."""
    done: dict[str, None] = {}
    active: dict[str, None] = {}
    for root in roots:
        stack: list[tuple[str, bool]] = [(root, False)]
        while stack:
            name, ready = stack.pop()
            if ready:
                active.pop(name, None)
                done[name] = None
            elif name in active:
                chain = list(active)
                cycle = [*chain[chain.index(name) :], name]
                raise Invalid(f"{what} has a cycle: {' -> '.join(reversed(cycle))}", hint="break it")
            elif name not in done:
                active[name] = None
                stack.append((name, True))
                stack += [(n, False) for n in reversed(wanted[name]) if n not in done]
    return list(done)
