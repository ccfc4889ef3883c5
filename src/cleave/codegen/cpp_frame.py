"""What the text of one C++ kernel refers to: sizes, strides, pointers, and the spans of the moment.

A `Frame` gives each of them an expression and remembers which became arguments of the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cleave.codegen.cpp_text import MEMORY_TYPES, Namer, Text, least, minus, plus, times
from cleave.codegen.source import Argument
from cleave.errors import Bug
from cleave.ir.dims import Atom, Dim, Extent, Index, Inject, Join, Lookup, Part, Parts, Term, Union
from cleave.schedule.terms import inside
from cleave.schedule.tiles import (
    AlignBound,
    Bound,
    Kernel,
    LimitBound,
    PartBound,
    SizeBound,
    SpanBound,
    Tensor,
    TileProgram,
)


@dataclass(frozen=True, slots=True)
class Span:
    """Where the current tile of an index starts, and how many positions it has."""

    start: Text
    count: Text


@dataclass(frozen=True, slots=True)
class Place:
    """An element of a tensor: its offset, and per dim that may be left its position and size."""

    offset: Text
    limits: tuple[tuple[Text, Text], ...]


class Frame:
    """The names and arguments of a kernel."""

    def __init__(self, program: TileProgram, kernel: Kernel) -> None:
        self.kernel = kernel
        self.known: dict[Dim, int | Extent] = dict(program.sizes)
        self.tensors = {tensor.name: tensor for tensor in kernel.tensors}
        self.names = Namer()
        self.spans: dict[Index, Span] = {}
        self.index_names: dict[Index, str] = {}
        self.mentioned: dict[Atom, int] = {}
        """Fixed sizes that stand in the text as literals."""
        self._arguments: dict[tuple[str, str, int], Argument] = {}
        self._tensor_names = {name: self.names.name(name) for name in self.tensors}
        for index, name in kernel.names:
            self.index_names[index] = self.names.name(name)

    def name_of(self, index: Index) -> str:
        """The loop variable of an index."""
        if index not in self.index_names:
            self.index_names[index] = self.names.name(f"i{index.number}")
        return self.index_names[index]

    # ------------------------------------------------------------ arguments

    def arguments(self) -> tuple[Argument, ...]:
        """The arguments that were asked for: pointers, strides, scalars, sizes, chunks and part counts, and
        the number of threads."""
        kinds = ["pointer", "stride", "scalar", "size", "chunk", "parts"]
        order = {name: number for number, name in enumerate(self.tensors)}

        def key(item: Argument) -> tuple[int, int, int, str]:
            return kinds.index(item.kind), order.get(item.tensor, 0), item.axis, str(item.dim)

        return (*sorted(self._arguments.values(), key=key), Argument("threads", "threads"))

    def _argument(
        self, kind: str, subject: str, axis: int, wanted: str, made: Callable[[str], Argument]
    ) -> str:
        key = (kind, subject, axis)
        if key not in self._arguments:
            name = self._tensor_names.get(wanted) or self.names.name(wanted)
            self._arguments[key] = made(name)
        return self._arguments[key].name

    def pointer(self, tensor: str) -> str:
        """The address of a tensor; of a scalar, its value."""
        dtype = self.tensors[tensor].dtype
        kind = "scalar" if self.tensors[tensor].role == "scalar" else "pointer"
        return self._argument(kind, tensor, 0, tensor, lambda n: Argument(kind, n, tensor, dtype=dtype))

    def _stride(self, tensor: str, axis: int) -> str:
        wanted = f"{self._tensor_names[tensor]}_s{axis}"
        return self._argument("stride", tensor, axis, wanted, lambda n: Argument("stride", n, tensor, axis))

    def size(self, dim: Dim) -> Text:
        """The size of a dim."""
        match dim:
            case Union(parts):
                return plus(*(self.size(part) for part in parts))
            case Parts(of, _):
                wanted = f"{of}_parts"
                return self._argument("parts", str(dim), 0, wanted, lambda n: Argument("parts", n, dim=of))
            case Part():
                raise Bug(f"the C++ emitter cannot size {dim}")
            case Atom():
                value = self.known.get(dim)
                if isinstance(value, int):
                    self.mentioned[dim] = value
                    return value
                if isinstance(value, Extent):
                    return self.extent(value)
                return self._argument("size", str(dim), 0, dim.name, lambda n: Argument("size", n, dim=dim))

    def fixed(self, dim: Dim) -> int | None:
        """The size of a dim, if it is fixed."""
        match dim:
            case Union(parts):
                sizes = [self.fixed(part) for part in parts]
                known = [s for s in sizes if s is not None]
                return sum(known) if len(known) == len(sizes) else None
            case Atom():
                value = self.known.get(dim)
                if isinstance(value, Extent):
                    terms = [(self.fixed(d), c) for d, c in value.terms]
                    known = [(s, c) for s, c in terms if s is not None]
                    return value.const + sum(s * c for s, c in known) if len(known) == len(terms) else None
                return value
            case _:
                return None

    def chunk(self, dim: Dim) -> str:
        """The length of a part of a split dim."""
        wanted = f"{dim}_chunk"
        return self._argument("chunk", str(dim), 0, wanted, lambda n: Argument("chunk", n, dim=dim))

    def extent(self, value: Extent) -> Text:
        """A linear expression in sizes."""
        positive = [times(c, self.size(d)) for d, c in value.terms if c > 0]
        result = plus(*positive, value.const if value.const > 0 else 0)
        for dim, factor in value.terms:
            if factor < 0:
                result = minus(result, times(-factor, self.size(dim)))
        return minus(result, -value.const) if value.const < 0 else result

    # ------------------------------------------------------------ spans and bounds

    @contextmanager
    def within(self, index: Index, span: Span) -> Iterator[None]:
        """Inside a loop over an index."""
        before = self.spans.get(index)
        self.spans[index] = span
        yield
        if before is None:
            del self.spans[index]
        else:
            self.spans[index] = before

    def count(self, index: Index) -> Text:
        return self.spans[index].count

    def bound(self, value: Bound) -> Text:
        """Where a loop starts or stops."""
        match value:
            case SizeBound(extent):
                return self.extent(extent)
            case SpanBound(index, end, offset):
                span = self.spans[index]
                last = span.count if end else 0
                shift = self.extent(offset)
                if isinstance(shift, str) and shift.startswith("-"):
                    shift = f"({shift})"
                return plus(span.start, last, shift)
            case PartBound(part, end, offset):
                if not isinstance(part.dim, Parts):
                    raise Bug(f"a part bound on {part}")
                of = part.dim.of
                number = self.spans[part].start
                number = plus(number, 1) if end else number
                return plus(least([times(number, self.chunk(of)), self.size(of)]), self.extent(offset))
            case AlignBound(inner, tile, up, origin):
                word = "align_up" if up else "align_down"
                return f"{word}({self.bound(inner)}, {tile}, {self.bound(origin)})"
            case LimitBound(kind, bounds):
                word = "least" if kind == "min" else "greatest"
                return least([self.bound(b) for b in bounds], word)

    # ------------------------------------------------------------ elements of tensors

    def strides(self, tensor: str) -> list[Text]:
        """The stride of each dim of a tensor's layout: dense for what kernels write, else the caller's."""
        layout = self.tensors[tensor].layout
        dense = self.tensors[tensor].role in ("output", "workspace")
        found: list[Text] = []
        step: Text = 1
        for axis in reversed(range(len(layout))):
            inner: Text = step if dense else self._stride(tensor, axis) if layout[axis] else 0
            for dim in reversed(layout[axis]):
                found.append(inner)
                inner = times(inner, self.size(dim))
            if dense:
                step = inner
        return found[::-1]

    def place(
        self,
        tensor: str,
        terms: tuple[Term, ...],
        variable: Callable[[Index], Text],
        lookup: Callable[[str], str],
    ) -> Place:
        """The element of a tensor at terms; `variable` gives the offset of an index in its tile, `lookup`
        the value of an integer tile."""
        dims = [dim for group in self.tensors[tensor].layout for dim in group]
        offset: Text = 0
        limits: list[tuple[Text, Text]] = []
        for dim, term, stride in zip(dims, terms, self.strides(tensor), strict=True):
            position = self.position(term, dim, variable, lookup)
            if self._may_leave(term, dim):
                limits.append((position, self.size(dim)))
            offset = plus(offset, times(position, stride))
        return Place(offset, tuple(limits))

    def _may_leave(self, term: Term, dim: Dim) -> bool:
        """Whether a term may leave an axis over `dim`, for all that is known. The span of an index ends where
        its own dim does."""
        known = {d: size for d, size in self.known.items() if isinstance(size, int)}
        if inside(term, dim, known):
            return False
        if not isinstance(term.leaf, Index):
            return True
        most, size = self.fixed(term.leaf.dim), self.fixed(dim)
        return most is None or size is None or most > size

    def position(
        self,
        term: Term,
        dim: Dim | None,
        variable: Callable[[Index], Text],
        lookup: Callable[[str], str],
    ) -> Text:
        """The value of a term over an axis of `dim`."""
        total: Text = 0
        for leaf, factor in term.leaves:
            match leaf:
                case Index():
                    value = plus(self.spans[leaf].start, variable(leaf))
                case Lookup(name):
                    value = lookup(name)
                case Inject(part, inner):
                    if not isinstance(dim, Union):
                        raise Bug(f"an element of a part of {dim}, which is no union")
                    before = plus(*(self.size(d) for d in dim.parts[:part]))
                    value = plus(before, self.position(inner, dim.parts[part], variable, lookup))
                case Join(part, within):
                    if dim is None:
                        raise Bug("an element of a part without its dim")
                    first = times(self.position(part, None, variable, lookup), self.chunk(dim))
                    value = plus(first, self.position(within, None, variable, lookup))
                case _:
                    raise Bug(f"the C++ emitter cannot place {leaf}")
            if factor < 0:
                total = minus(total, times(-factor, value)) if total else f"-({times(-factor, value)})"
            else:
                total = plus(total, times(factor, value))
        shift = self.extent(term.offset)
        if isinstance(shift, str) and shift.startswith("-"):
            return plus(total, f"({shift})")
        return plus(total, shift)


def memory_type(tensor: Tensor) -> str:
    """The C++ type of a tensor's elements."""
    return MEMORY_TYPES[tensor.dtype]
